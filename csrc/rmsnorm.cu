// rmsnorm: out[r] = weight * x[r] / sqrt(mean(x[r]^2) + eps), f32 inside, rounded once.
//
// Bytes: each row read once and written once, the gains once from cache: 4 * width a row, so at decode the launch is the cost.
// Notes: (1) a block owns a row and each thread a fixed set of columns, so a row's bits depend on the row alone;
// (2) up to 4,096 columns and their gains stay in registers, the gains from before the wait.
#include "rmsnorm.h"

#include "common/pdl.h"
#include "common/reduce.h"
#include "common/rows.h"

constexpr int kThreads = 256;
// Columns of a thread that stay in registers, and with them their gains: enough for 4,096 a row.
constexpr int kHeld = 2;

namespace {

// `kVector` (1 or 8) neighbouring columns a thread.
template <int kVector>
FL_DEVICE void norm_row(const RmsNormParams& p, float* scratch) {
  auto load = [](const uint16_t* from, float(&v)[kVector]) {
    if constexpr (kVector == 8) {
      load_bf16x8(from, v);
    } else {
      v[0] = bf16_to_float(from[0]);
    }
  };
  auto gains = [&p](int i, float(&g)[kVector]) {
    if constexpr (kVector == 8) {
      load_gains(p.weight, i, g);
    } else {
      g[0] = gain_at(p.weight, i);
    }
  };
  constexpr int kStep = kThreads * kVector;
  float v[kHeld][kVector] = {}, g[kHeld][kVector] = {};
  int first = threadIdx.x * kVector, rest = first + kHeld * kStep;
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    if (first + h * kStep < p.width) gains(first + h * kStep, g[h]);
  }
  pdl_wait();
  const uint16_t* x = p.x + (int64_t)blockIdx.x * p.width;
  uint16_t* out = p.out + (int64_t)blockIdx.x * p.width;
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    if (first + h * kStep < p.width) load(x + first + h * kStep, v[h]);
  }
  float squares = 0.0f;
  auto add = [&squares](const float(&v)[kVector]) {
#pragma unroll
    for (int j = 0; j < kVector; ++j) squares = fmaf(v[j], v[j], squares);
  };
#pragma unroll
  for (int h = 0; h < kHeld; ++h) add(v[h]);
  for (int i = rest; i < p.width; i += kStep) {
    float more[kVector];
    load(x + i, more);
    add(more);
  }
  float scale = 1.0f / sqrtf(block_sum<kThreads>(squares, scratch) / (float)p.width + p.eps);
  auto store = [out, scale](int i, const float(&v)[kVector], const float(&g)[kVector]) {
    float y[kVector];
#pragma unroll
    for (int j = 0; j < kVector; ++j) y[j] = v[j] * scale * g[j];
    if constexpr (kVector == 8) {
      store_bf16x8(out + i, y);
    } else {
      out[i] = float_to_bf16(y[0]);
    }
  };
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    if (first + h * kStep < p.width) store(first + h * kStep, v[h], g[h]);
  }
  for (int i = rest; i < p.width; i += kStep) {
    float more[kVector], by[kVector];
    gains(i, by), load(x + i, more);
    store(i, more, by);
  }
}

}  // namespace

FL_KERNEL(kThreads, rmsnorm, RmsNormParams) {
  __shared__ __align__(16) float scratch[kThreads / kWarp];
  if (p.width % 8 == 0) {
    norm_row<8>(p, scratch);
  } else {
    norm_row<1>(p, scratch);
  }
}
