// Reductions over a warp and a block. Each has one order, fixed by the thread index, so that equal inputs give equal bits.
#pragma once

#include "kernel.h"

FL_DEVICE float warp_sum(float x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(kFullMask, x, step);
  return x;
}

FL_DEVICE float warp_max(float x) {
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(kFullMask, x, step));
  return x;
}

FL_DEVICE uint32_t warp_max(uint32_t x) {
#if defined(__CUDA_ARCH__)
  return __reduce_max_sync(kFullMask, x);
#else
  for (int step = 16; step > 0; step /= 2) x = max(x, __shfl_xor_sync(kFullMask, x, step));
  return x;
#endif
}

FL_DEVICE uint32_t warp_min(uint32_t x) {
#if defined(__CUDA_ARCH__)
  return __reduce_min_sync(kFullMask, x);
#else
  for (int step = 16; step > 0; step /= 2) x = min(x, __shfl_xor_sync(kFullMask, x, step));
  return x;
#endif
}

// Over aligned groups of `width` lanes.
FL_DEVICE uint32_t group_max(uint32_t x, int width) {
  for (int step = width / 2; step > 0; step /= 2) {
    uint32_t other = __shfl_xor_sync(kFullMask, x, step);
    x = other > x ? other : x;
  }
  return x;
}

// Over a block of `kThreads`, to every thread. `scratch` holds one float a warp, 16-byte aligned; safe to call again at once.
template <int kThreads>
FL_DEVICE float block_sum(float x, float* scratch) {
  constexpr int kWarps = kThreads / kWarp;
  static_assert(kWarps % 4 == 0, "four warps' sums are read at once");
  x = warp_sum(x);
  if (lane_idx() == 0) scratch[warp_idx()] = x;
  __syncthreads();
  float total = 0.0f;
#pragma unroll
  for (int i = 0; i < kWarps / 4; ++i) {
    float4 v = ((const float4*)scratch)[i];
    total += v.x, total += v.y, total += v.z, total += v.w;
  }
  __syncthreads();
  return total;
}
