// A lane's quarter of an index vector, as stored and as pairs of bf16.
//
// The four lanes of a vector take 16 bytes of every 64, so that their loads fill whole sectors, and the codes of a word are
// paired as it is cheapest to unpack them. Queries and keys are dealt out alike, so that a product pairs the right elements.
#pragma once

#include "convert.h"
#include "copy_async.h"
#include "index_row.h"

// Bytes 0 and 2 of four e4m3 codes, and 1 and 3.
FL_DEVICE void unpack_e4m3_strided(uint32_t w, uint32_t& even, uint32_t& odd) {
  even = mul_bf16x2((w << 4 & 0x07f007f0u) | (w << 8 & 0x80008000u), kE4m3Bias);
  odd = mul_bf16x2((w >> 4 & 0x07f007f0u) | (w & 0x80008000u), kE4m3Bias);
}

// Codes `i` and `i + 4` of eight of e2m1, i < 4, times a pair of equal scales.
FL_DEVICE uint32_t unpack_e2m1_strided(uint32_t w, int i, uint32_t scale) {
  uint32_t magnitude = i == 0 ? w << 6 : i == 1 ? w << 2 : i == 2 ? w >> 2 : w >> 6;
  uint32_t pair = (magnitude & 0x01c001c0u) | (w << (12 - 4 * i) & 0x80008000u);
  return mul_bf16x2(mul_bf16x2(pair, kE2m1Bias), scale);
}

template <int kFormat>
struct IndexShare {
  static constexpr int kCodeBytes = kFormat == kIndexBf16 ? 256 : kFormat == kIndexFp8 ? 128 : 64;
  static constexpr int kWords = kCodeBytes / 16;
  static constexpr int kSteps = kIndexDim / 16;
  uint32_t words[kWords];
  uint32_t scale;  // fp8: the bits of the vector's; fp4: the four codes of its quarters; converted only when used.

  // Zeros where the vector is not valid; its address is not read then.
  FL_DEVICE void load(bool valid, const uint8_t* codes, const uint8_t* scales) {
    int q = lane_idx() % 4;
#pragma unroll
    for (int i = 0; i < kWords / 4; ++i) {
      uint4 v{0, 0, 0, 0};
      if (valid) v = *(const uint4*)(codes + 64 * i + 16 * q);
      words[4 * i] = v.x, words[4 * i + 1] = v.y, words[4 * i + 2] = v.z, words[4 * i + 3] = v.w;
    }
    scale = kFormat != kIndexBf16 && valid ? *(const uint32_t*)scales : 0;
  }

  // The same by way of shared memory: a place of kPlaceBytes for each of `kThreads`, of which only the thread knows.
  static constexpr int kPlaceBytes = 4 * kWords + (kFormat == kIndexBf16 ? 0 : 4);

  template <int kThreads>
  static FL_DEVICE void fetch(uint8_t* places, int thread, bool valid, const uint8_t* codes, const uint8_t* scales) {
#pragma unroll
    for (int i = 0; i < kWords / 4; ++i) {
      copy_async<16>(places + (i * kThreads + thread) * 16, codes + 64 * i + 16 * (lane_idx() % 4), valid);
    }
    if (kFormat != kIndexBf16) copy_async<4>(places + kThreads * 4 * kWords + thread * 4, scales, valid);
  }

  template <int kThreads>
  FL_DEVICE void take(const uint8_t* places, int thread) {
#pragma unroll
    for (int i = 0; i < kWords / 4; ++i) {
      uint4 v = *(const uint4*)(places + (i * kThreads + thread) * 16);
      words[4 * i] = v.x, words[4 * i + 1] = v.y, words[4 * i + 2] = v.z, words[4 * i + 3] = v.w;
    }
    scale = kFormat == kIndexBf16 ? 0 : *(const uint32_t*)(places + kThreads * 4 * kWords + thread * 4);
  }

  // What is to be multiplied with the product.
  FL_DEVICE float outer_scale() const { return kFormat == kIndexFp8 ? bits_float(scale) : 1.0f; }

  // Four elements of matrix step `step`, as two pairs.
  FL_DEVICE void pairs(int step, uint32_t& low, uint32_t& high) const {
    if (kFormat == kIndexBf16) {
      low = words[2 * step % kWords], high = words[(2 * step + 1) % kWords];
    } else if (kFormat == kIndexFp8) {
      unpack_e4m3_strided(words[step % kWords], low, high);
    } else {
      uint32_t pair = ue8m0_scale_pair((uint8_t)(scale >> (lane_idx() % 4 * 8)));
      low = unpack_e2m1_strided(words[step / 2 % kWords], 2 * (step % 2), pair);
      high = unpack_e2m1_strided(words[step / 2 % kWords], 2 * (step % 2) + 1, pair);
    }
  }
};
