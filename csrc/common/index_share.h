// A lane's quarter of an index vector, as stored and as pairs of elements for the matrix unit: f16 from e4m3, else bf16.
//
// The four lanes of a vector take 16 bytes of every 64, so that their loads fill whole sectors, and the codes of a word are
// paired as it is cheapest to unpack them. Queries and keys are dealt out alike, so that a product pairs the right elements.
#pragma once

#include "convert.h"
#include "index_row.h"

// Four e4m3 codes as two pairs of f16.
FL_DEVICE void unpack_e4m3_halves(uint32_t codes, uint32_t& low, uint32_t& high) {
#if defined(__CUDA_ARCH__)
  // The conversion takes the upper half of a register as well as the lower.
  asm("{\n.reg .b16 a, b;\nmov.b32 {a, b}, %2;\ncvt.rn.f16x2.e4m3x2 %0, a;\ncvt.rn.f16x2.e4m3x2 %1, b;\n}"
      : "=r"(low), "=r"(high)
      : "r"(codes));
#else
  auto half = [=](int i) { return (uint32_t)e4m3_to_half((uint8_t)(codes >> (8 * i))); };
  low = half(0) | half(1) << 16, high = half(2) | half(3) << 16;
#endif
}

// Codes `i` and `i + 4` of eight of e2m1, i < 4, at 2^-126 of their values. One product shifts the sign of a code to its place in
// a bf16 and the magnitude to its own.
FL_DEVICE uint32_t unpack_e2m1_strided(uint32_t w, int i) {
  uint32_t near = i < 2 ? w : w >> 8;
  uint32_t pair = i % 2 == 0 ? (near & 0x000f000fu) * 0x1040u : (near & 0x00f000f0u) * 0x0104u;
  return pair & 0x81c081c0u;
}

// The largest ue8m0 code whose scale times 2^126 is a bf16.
constexpr uint32_t kSmallScale = 128;

template <int kFormat>
struct IndexShare {
  static constexpr int kCodeBytes = kFormat == kIndexBf16 ? 256 : kFormat == kIndexFp8 ? 128 : 64;
  static constexpr int kScaleBytes = kFormat == kIndexBf16 ? 0 : 4;
  static constexpr int kWords = kCodeBytes / 16;
  static constexpr int kSteps = kIndexDim / 16;
  static constexpr bool kHalf = kFormat == kIndexFp8;
  uint32_t words[kWords];
  uint32_t scale;  // fp8: the bits of the vector's; fp4: the four codes of its quarters; converted only when used.

  FL_DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = 0;
    scale = 0;
  }

  // From global or shared memory; the scale is the caller's to load.
  FL_DEVICE void load(const uint8_t* codes) {
#pragma unroll
    for (int i = 0; i < kWords / 4; ++i) {
      uint4 v = *(const uint4*)(codes + 64 * i + 16 * (lane_idx() % 4));
      words[4 * i] = v.x, words[4 * i + 1] = v.y, words[4 * i + 2] = v.z, words[4 * i + 3] = v.w;
    }
  }

  // What is to be multiplied with the product.
  FL_DEVICE float outer_scale() const { return kFormat == kIndexFp8 ? bits_float(scale) : 1.0f; }

  // The code of the scale of a lane's quarter of an fp4 vector.
  FL_DEVICE uint32_t own_scale() const { return scale >> (lane_idx() % 4 * 8) & 255u; }

  // Four elements of matrix step `step`, as two pairs. With `kSmall` an fp4 vector's scale is at most `kSmallScale`, which saves a
  // product; the pairs are the same.
  template <bool kSmall>
  FL_DEVICE void pairs(int step, uint32_t& low, uint32_t& high) const {
    if (kFormat == kIndexBf16) {
      low = words[2 * step % kWords], high = words[(2 * step + 1) % kWords];
    } else if (kFormat == kIndexFp8) {
      unpack_e4m3_halves(words[step % kWords], low, high);
    } else {
      uint32_t pair = kSmall ? both_halves((uint16_t)((own_scale() + 126) << 7)) : ue8m0_scale_pair((uint8_t)own_scale());
      low = unpack_e2m1_strided(words[step / 2 % kWords], 2 * (step % 2));
      high = unpack_e2m1_strided(words[step / 2 % kWords], 2 * (step % 2) + 1);
      if (!kSmall) low = mul_bf16x2(low, kE2m1Bias), high = mul_bf16x2(high, kE2m1Bias);
      low = mul_bf16x2(low, pair), high = mul_bf16x2(high, pair);
    }
  }
};
