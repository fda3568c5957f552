// How parts of a query's rows become one, and how the whole is stored.
#pragma once

#include "../attention.h"
#include "mma.h"
#include "rows.h"

// Two parts of the rows as one: sums at `largest` and a later part's at `other`.
struct Fold {
  float largest, keep, add;

  FL_DEVICE Fold(float first, float other) {
    largest = fmaxf(first, other);
    keep = expf(first - largest), add = expf(other - largest);
  }
  FL_DEVICE float sum(float first, float other) const { return fmaf(add, other, first * keep); }
};

// Divided by the denominator, the last 64 dims turned back, and stored: `kCount` neighbouring dims of a head.
template <int kCount>
FL_DEVICE void store_dims(const AttentionParams& p, float (&v)[kCount], float sum, int64_t t, int head, int dim, int position) {
  float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
#pragma unroll
  for (int n = 0; n < kCount; ++n) v[n] *= inverse;
  if (dim >= kNopeDim && position >= 0) rotate_pairs(v, p.rope, position, p.max_positions, (dim - kNopeDim) / 2, -1.0f);
  uint32_t* out = (uint32_t*)(p.out + (t * p.heads + head) * kHeadDim + dim);
#pragma unroll
  for (int n = 0; n < kCount / 2; ++n) out[n] = pack_bf16(v[2 * n], v[2 * n + 1]);
}
