// The product of rows of e2m1 codes in shared memory and up to 8 activation rows in registers, by a block of 16 warps, each of
// which has a sixteenth of K.
//
// A row stands in shared memory as it does in memory, its scales after its codes; a bulk copy brings each. Lane 4 g + q
// multiplies, of 64 columns at a time, columns 16 q .. 16 q + 15 of rows g and g + 8: one scale of NVFP4 a row. The pitch puts
// rows g .. g + 3 in banks of their own.
#pragma once

#include "bulk.h"
#include "tile.h"

constexpr int kRowsWarps = 16;
// Four more warps fetch weights and add up sums.
constexpr int kRowsHelpers = 4;
constexpr int kRowsThreads = (kRowsWarps + kRowsHelpers) * kWarp;
constexpr int kStepCols = 64;
// Partial sums of 16 rows by 8 activation rows.
constexpr int kPartial = kTileRows * kTileCols;

// A matrix of kCols = 1024 kSteps columns.
template <int kFormat, int kSteps>
struct Fp4Rows {
  static constexpr int kCols = kRowsWarps * kSteps * kStepCols;
  static constexpr int kCodes = kCols / 2, kScales = kCols / Step<kFormat>::kGroup;
  static constexpr int kPitch = (kCols / 2 + kCols / 16 + 127) / 128 * 128 + 32;
  // Scales of a lane's warp in a row, in words of four.
  static constexpr int kWarpScales = kScales / kRowsWarps, kWords = (kWarpScales + 3) / 4;
};

// This lane copies row `row` of a stack's matrix to `to`: an even lane its codes, an odd one its scales.
template <int kFormat, int kSteps>
FL_DEVICE void copy_row(unsigned char* to, const Weight& w, int64_t row, bool scales, uint64_t* barrier) {
  using R = Fp4Rows<kFormat, kSteps>;
  const uint8_t* codes = (const uint8_t*)w.codes + row * R::kCodes;
  const uint8_t* from = scales ? (const uint8_t*)w.scales + row * R::kScales : codes;
  bulk_copy(scales ? to + R::kCodes : to, from, scales ? R::kScales : R::kCodes, barrier);
}

// A warp's columns of an activation row, as the lanes multiply them; null is a row of zeros.
template <int kSteps>
FL_DEVICE void load_columns(uint32_t (&x)[kSteps][8], const uint16_t* row) {
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    uint4 a = {0, 0, 0, 0}, b = a;
    if (row != nullptr) {
      const uint4* from = (const uint4*)(row + (warp_idx() * kSteps + s) * kStepCols + lane_idx() % 4 * 16);
      a = from[0], b = from[1];
    }
    x[s][0] = a.x, x[s][1] = a.y, x[s][2] = a.z, x[s][3] = a.w;
    x[s][4] = b.x, x[s][5] = b.y, x[s][6] = b.z, x[s][7] = b.w;
  }
}

// A warp's scales of a row, as words.
template <int kWords>
FL_DEVICE void load_scales(uint32_t (&words)[kWords], const unsigned char* at) {
  if constexpr (kWords % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kWords; i += 4) {
      uint4 v = *(const uint4*)(at + 4 * i);
      words[i] = v.x, words[i + 1] = v.y, words[i + 2] = v.z, words[i + 3] = v.w;
    }
  } else if constexpr (kWords % 2 == 0) {
#pragma unroll
    for (int i = 0; i < kWords; i += 2) {
      uint2 v = *(const uint2*)(at + 4 * i);
      words[i] = v.x, words[i + 1] = v.y;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = *(const uint32_t*)(at + 4 * i);
  }
}

// The byte `at` of each of two words, as the halves of one: bytes below 0x80, which a byte's sign, zero, extends.
FL_DEVICE uint32_t two_bytes(uint32_t low, uint32_t high, int at) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(low, high, 0xc480u + 0x1111u * at);
#else
  return (low >> (8 * at) & 0xffu) | (high >> (8 * at) & 0xffu) << 16;
#endif
}

// Of 64 columns: the scales of rows g and g + 8 for this lane's 16, each as a pair of equal bf16.
template <int kFormat, int kWords>
FL_DEVICE void row_scales(const uint32_t (&words)[2][kWords], int step, uint32_t (&pair)[2]) {
  int q = lane_idx() % 4;
  if constexpr (kFormat == kWeightNvfp4) {
    uint32_t codes = two_bytes(words[0][step], words[1][step], q);
    uint32_t both = mul_bf16x2(mul_bf16x2(codes << 4, kE4m3Bias), 0x7a807a80u);
    pair[0] = low_halves(both, both), pair[1] = high_halves(both, both);
  } else {
    int shift = 8 * (step % 2 * 2 + q / 2);
#pragma unroll
    for (int i = 0; i < 2; ++i) pair[i] = ue8m0_scale_pair((uint8_t)(words[i][step / 2] >> shift));
  }
}

// Sixteen codes of a row to pairs of bf16.
template <int kFormat>
FL_DEVICE void expand_codes(uint2 codes, uint32_t scale, uint32_t (&pairs)[8]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    uint32_t four[4];
    unpack_e2m1_arranged(i == 0 ? codes.x : codes.y, four);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (kFormat == kWeightMxfp4) four[j] = mul_bf16x2(four[j], kE2m1Bias);
      pairs[4 * i + j] = mul_bf16x2(four[j], scale);
    }
  }
}

// A warp: acc += 16 rows, the first at `rows`, x activations, over the warp's columns.
template <int kFormat, int kSteps>
FL_DEVICE void multiply_rows(float (&acc)[4], const unsigned char* rows, const uint32_t (&x)[kSteps][8]) {
  using R = Fp4Rows<kFormat, kSteps>;
  const unsigned char* row[2] = {rows + lane_idx() / 4 * R::kPitch, rows + (lane_idx() / 4 + 8) * R::kPitch};
  int at = warp_idx() * (kSteps * kStepCols / 2) + lane_idx() % 4 * 8;
  uint32_t scales[2][R::kWords];
#pragma unroll
  for (int i = 0; i < 2; ++i) load_scales(scales[i], row[i] + R::kCodes + warp_idx() * R::kWarpScales);
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    uint32_t scale[2], left[2][8];
    row_scales<kFormat>(scales, s, scale);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      expand_codes<kFormat>(*(const uint2*)(row[i] + at + s * (kStepCols / 2)), scale[i], left[i]);
    }
#pragma unroll
    for (int k = 0; k < 8; k += 2) {
      uint32_t a[4] = {left[0][k], left[1][k], left[0][k + 1], left[1][k + 1]};
      uint32_t b[2] = {x[s][k], x[s][k + 1]};
      mma_16x8x16(acc, a, b);
    }
  }
}

// Writes a warp's sums as [row][activation row].
FL_DEVICE void spill_rows(const float (&acc)[4], float* out) {
  float2* at = (float2*)(out + lane_idx() * 2);
  at[0] = {acc[0], acc[1]};
  at[kPartial / 4] = {acc[2], acc[3]};
}

// The warps' sums of element `i`, in order.
template <int kPitch>
FL_DEVICE float sum_warps(const float* partial, int i) {
  float total = 0.0f;
#pragma unroll
  for (int w = 0; w < kRowsWarps; ++w) total += partial[w * kPitch + i];
  return total;
}
