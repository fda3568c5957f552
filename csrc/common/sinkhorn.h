// Sinkhorn's iteration on a matrix of at most 4 x 4: a warp has it, an entry a lane and all of it in every lane.
#pragma once

#include "kernel.h"

constexpr int kMaxStreams = 4;

// 1 / x within two units in the last place.
FL_DEVICE float inverse(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return 1.0f / x;
#endif
}

// A matrix c[j][k] = m[j][k] / (rows[j] columns[k]): normalising changes the divisors alone, and m stays. Every lane of a warp has all of
// it; what is outside n x n is one on the diagonal, so that it keeps to itself.
struct Sinkhorn {
  float m[kMaxStreams][kMaxStreams], rows[kMaxStreams], columns[kMaxStreams];
  // 1 / rows and 1 / columns.
  float by_row[kMaxStreams], by_column[kMaxStreams];

  FL_DEVICE void start() {
#pragma unroll
    for (int i = 0; i < kMaxStreams; ++i) rows[i] = columns[i] = by_row[i] = by_column[i] = 1.0f;
  }
  FL_DEVICE void divide_rows(float eps) {
#pragma unroll
    for (int j = 0; j < kMaxStreams; ++j) {
      float sum = eps * rows[j];
#pragma unroll
      for (int k = 0; k < kMaxStreams; ++k) sum = fmaf(m[j][k], by_column[k], sum);
      rows[j] = sum, by_row[j] = inverse(sum);
    }
  }
  FL_DEVICE void divide_columns(float eps) {
#pragma unroll
    for (int k = 0; k < kMaxStreams; ++k) {
      float sum = eps * columns[k];
#pragma unroll
      for (int j = 0; j < kMaxStreams; ++j) sum = fmaf(m[j][k], by_row[j], sum);
      columns[k] = sum, by_column[k] = inverse(sum);
    }
  }
};

FL_DEVICE float sum_over(float x, int low, int high) {
  x += __shfl_xor_sync(kFullMask, x, low);
  return x + __shfl_xor_sync(kFullMask, x, high);
}

// A warp; lane 4 j + k holds entry (j, k) of at most 4x4. Gives its entry after `iters` rounds.
FL_DEVICE float sinkhorn(float logit, int n, int iters, float eps) {
  int lane = lane_idx() % 16, row = lane / 4, column = lane % 4;
  bool inside = row < n && column < n;
  float largest = inside ? logit : -INFINITY;
  largest = fmaxf(largest, __shfl_xor_sync(kFullMask, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(kFullMask, largest, 2));
  float c = inside ? expf(logit - largest) : 0.0f;
  float sum = sum_over(c, 1, 2);
  c = inside ? c / sum + eps : row == column ? 1.0f : 0.0f;
  Sinkhorn all;
  all.start();
#pragma unroll
  for (int i = 0; i < 16; ++i) all.m[i / 4][i % 4] = __shfl_sync(kFullMask, c, i);
  all.divide_columns(eps);
  for (int i = 1; i < iters; ++i) all.divide_rows(eps), all.divide_columns(eps);
  float by_row = 0.0f, by_column = 0.0f;
#pragma unroll
  for (int i = 0; i < kMaxStreams; ++i) {
    if (i == row) by_row = all.by_row[i];
    if (i == column) by_column = all.by_column[i];
  }
  return c * by_row * by_column;
}
