// rmsnorm: out[r] = weight * x[r] / sqrt(mean(x[r]^2) + eps), f32 inside, rounded once.
//
// Bytes: each row read once and written once, the gains once from cache: 4 * width a row, so at decode the launch is the cost.
// Notes: (1) a block owns a row and each thread a fixed set of columns, so a row's bits depend on the row alone;
// (2) the second read of the row hits the first-level cache.
#include "rmsnorm.h"

#include "common/pdl.h"
#include "common/reduce.h"
#include "common/rows.h"

constexpr int kThreads = 256;

FL_KERNEL(kThreads, rmsnorm, RmsNormParams) {
  __shared__ float scratch[kThreads / kWarp];
  pdl_wait();
  const uint16_t* x = p.x + (int64_t)blockIdx.x * p.width;
  uint16_t* out = p.out + (int64_t)blockIdx.x * p.width;
  bool vector = p.width % 8 == 0;
  int step = vector ? 8 : 1;

  float squares = 0.0f;
  for (int i = threadIdx.x * step; i < p.width; i += kThreads * step) {
    if (vector) {
      float v[8];
      load_bf16x8(x + i, v);
#pragma unroll
      for (int j = 0; j < 8; ++j) squares = fmaf(v[j], v[j], squares);
    } else {
      float v = bf16_to_float(x[i]);
      squares = fmaf(v, v, squares);
    }
  }
  float scale = 1.0f / sqrtf(block_sum(squares, scratch) / (float)p.width + p.eps);

  for (int i = threadIdx.x * step; i < p.width; i += kThreads * step) {
    if (vector) {
      float v[8];
      load_bf16x8(x + i, v);
#pragma unroll
      for (int j = 0; j < 8; ++j) v[j] = v[j] * scale * gain_at(p.weight, i + j);
      store_bf16x8(out + i, v);
    } else {
      out[i] = float_to_bf16(bf16_to_float(x[i]) * scale * gain_at(p.weight, i));
    }
  }
}
