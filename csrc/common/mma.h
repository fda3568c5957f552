// The one matrix instruction: m16n8k16, bf16 or f16 in, f32 accumulated. The emulator computes it from the same fragments.
//
// Lane l = 4 g + q holds: A rows g and g + 8, columns {2q, 2q+1} and {2q+8, 2q+9}: a[0] = (g, low), a[1] = (g+8, low),
// a[2] = (g, high), a[3] = (g+8, high). B column g, rows as the columns of A: b[0] low, b[1] high. C rows g and g + 8,
// columns 2q and 2q + 1: c[0..1] of row g, c[2..3] of row g + 8.
#pragma once

#include "kernel.h"

template <bool kHalf = false>
FL_DEVICE void mma_16x8x16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if defined(__CUDA_ARCH__)
#define FL_MMA(type)                                                                                                        \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                             \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
  if (kHalf) {
    FL_MMA("f16");
  } else {
    FL_MMA("bf16");
  }
#undef FL_MMA
#elif defined(FL_EMULATED)
  uint64_t low[32], high[32], right[32];
  memcpy(low, emu::meet(kFullMask, a[0] | (uint64_t)a[1] << 32), sizeof low);
  memcpy(high, emu::meet(kFullMask, a[2] | (uint64_t)a[3] << 32), sizeof high);
  memcpy(right, emu::meet(kFullMask, b[0] | (uint64_t)b[1] << 32), sizeof right);
  auto element = [](uint64_t pair, int upper, int odd) {
    uint16_t bits = (uint16_t)(pair >> (32 * upper + 16 * odd));
    return kHalf ? half_to_float(bits) : bf16_to_float(bits);
  };
  int g = emu::self().lane / 4, q = emu::self().lane % 4;
  for (int i = 0; i < 4; ++i) {
    int lower_row = i / 2, column = 2 * q + i % 2;
    float sum = c[i];
    for (int k = 0; k < 16; ++k) {
      int upper = k / 8, pair = k % 8 / 2, odd = k % 2;
      float left = element(upper ? high[4 * g + pair] : low[4 * g + pair], lower_row, odd);
      sum += left * element(right[4 * column + pair], upper, odd);
    }
    c[i] = sum;
  }
#endif
}

// max(x, 0); a NaN stays one.
FL_DEVICE float relu(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
  return y;
#else
  return x < 0.0f ? 0.0f : x;
#endif
}

// Two bf16 in one register, the first in the low half.
FL_DEVICE uint32_t pack_bf16(uint16_t low, uint16_t high) { return low | (uint32_t)high << 16; }
FL_DEVICE uint32_t pack_bf16(float low, float high) { return pack_bf16(float_to_bf16(low), float_to_bf16(high)); }

// Four 8x8 matrices of 16-bit elements from shared memory; lane l gives the address of row l % 8 of matrix l / 8. Lane
// 4 g + q receives of each matrix row g, columns 2q and 2q + 1; transposed: column g, rows 2q and 2q + 1.
template <bool kTransposed>
FL_DEVICE void load_matrices(uint32_t (&r)[4], const uint16_t* row) {
#if defined(__CUDA_ARCH__)
  uint32_t address = (uint32_t)__cvta_generic_to_shared(row);
  if (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
  }
#elif defined(FL_EMULATED)
  const uint64_t* rows = emu::meet(kFullMask, (uint64_t)(uintptr_t)row);
  int g = emu::self().lane / 4, q = emu::self().lane % 4;
  for (int m = 0; m < 4; ++m) {
    auto at = [&](int i, int j) { return ((const uint16_t*)(uintptr_t)rows[8 * m + i])[j]; };
    r[m] = kTransposed ? at(2 * q, g) | (uint32_t)at(2 * q + 1, g) << 16 : at(g, 2 * q) | (uint32_t)at(g, 2 * q + 1) << 16;
  }
#endif
}
