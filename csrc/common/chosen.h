// What a token sees of its compressed rows, and the choice where it is all of them.
#pragma once

#include "kernel.h"

// Rows of ratio 4 that a token at `position` sees, of at most `width`.
FL_DEVICE int visible_rows(int32_t position, int64_t width) {
  return position < 0 ? 0 : (int)min(((int64_t)position + 1) / 4, width);
}

// All visible rows, where they are no more than k.
FL_DEVICE void take_all(int n, int k, int32_t* selected) {
  for (int i = threadIdx.x; i < k; i += blockDim.x) selected[i] = i < n ? i : -1;
}
