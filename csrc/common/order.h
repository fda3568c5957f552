// The order of scores: larger first, ties to the smaller index, NaN below every number, -0 equal to +0.
#pragma once

#include "kernel.h"

// Larger scores have larger keys; NaN has 0, every number more.
FL_DEVICE uint32_t order_key(float x) {
  uint32_t u = float_bits(x + 0.0f);  // -0 becomes +0.
  return x != x ? 0 : u ^ ((uint32_t)((int32_t)u >> 31) | 0x80000000u);
}

// The better of two has the larger rank; never 0.
FL_DEVICE uint64_t order_rank(float x, uint32_t index) { return (uint64_t)order_key(x) << 32 | (0xffffffffu - index); }

FL_DEVICE uint64_t warp_max_rank(uint64_t x) {
  for (int step = 16; step > 0; step /= 2) {
    uint64_t other = __shfl_xor_sync(kFullMask, x, step);
    x = other > x ? other : x;
  }
  return x;
}

FL_DEVICE uint32_t rank_index(uint64_t rank) { return 0xffffffffu - (uint32_t)rank; }

// Sum over all lower lanes (exclusive) and over the warp.
template <class T>
FL_DEVICE T warp_exclusive_sum(T x, T& total) {
  T sum = x;
  for (int step = 1; step < kWarp; step *= 2) {
    T below = __shfl_up_sync(kFullMask, sum, step);
    if (lane_idx() >= step) sum += below;
  }
  total = __shfl_sync(kFullMask, sum, kWarp - 1);
  return sum - x;
}

// The same over a block of `kThreads`; `scratch` holds one T a warp. Safe to call again at once.
template <int kThreads, class T>
FL_DEVICE T block_exclusive_sum(T x, T& total, T* scratch) {
  T warp_total;
  T before = warp_exclusive_sum(x, warp_total);
  if (lane_idx() == 0) scratch[warp_idx()] = warp_total;
  __syncthreads();
  total = 0;
#pragma unroll
  for (int w = 0; w < kThreads / kWarp; ++w) {
    T sum = scratch[w];
    if (w < warp_idx()) before += sum;
    total += sum;
  }
  __syncthreads();
  return before;
}
