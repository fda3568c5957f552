// The product of rows of e2m1 codes and up to 8 activation rows, by a block of 16 warps: K in slices of 256 columns, a slice of
// 16 rows for each warp.
//
// With `slices` of them in K, warp w has slice w % slices of row tile w / slices. Its weights come through a ring of stages of
// its own in shared memory, so no warp waits for another's; its activations stay in registers. Lane 4 g + q multiplies, of 64
// columns at a time, columns 16 q .. 16 q + 15 of rows g and g + 8: one scale of NVFP4 a row.
#pragma once

#include "phases.h"
#include "tile.h"

constexpr int kSliceWarps = 16;
constexpr int kSliceCols = 256;
constexpr int kSliceSteps = 4;
constexpr int kSliceStepCols = kSliceCols / kSliceSteps;
constexpr int kSliceCodes = kSliceCols / 2;
// A row of a stage: codes, then scales. This pitch puts four neighbouring rows in banks of their own.
constexpr int kSlicePitch = kSliceCodes + 32;
constexpr int kSliceBytes = kTileRows * kSlicePitch;
// Stages of a warp's ring.
constexpr int kSliceStages = 4;
constexpr int kSliceRings = kSliceWarps * kSliceStages * kSliceBytes;
// Partial sums of 16 rows by 8 activation rows, and how many sets of them there are.
constexpr int kPartial = kTileRows * kTileCols;
constexpr int kSets = 4;

// Where a warp's slices of 16 rows come from: rows 0 .. 7 of a tile follow each other from one row on, rows 8 .. 15 from another.
template <int kFormat>
struct SliceSource {
  static constexpr int kScales = kSliceCols / Step<kFormat>::kGroup;
  // This lane's unit of code rows lane / 8, 4 more, and both from the other row on; and the scales of row lane % 16.
  const uint8_t *low, *high, *scales;
  uint32_t row_codes, row_scales;

  FL_DEVICE SliceSource(const Weight& w, int64_t low_row, int64_t high_row, int cols, int slice) {
    int lane = lane_idx(), r = lane % kTileRows, at = slice * kSliceCodes + lane % 8 * kUnitBytes;
    row_codes = cols / 2, row_scales = cols / Step<kFormat>::kGroup;
    low = (const uint8_t*)w.codes + (low_row + lane / 8) * row_codes + at;
    high = (const uint8_t*)w.codes + (high_row + lane / 8) * row_codes + at;
    scales = (const uint8_t*)w.scales + ((r < 8 ? low_row + r : high_row + r - 8) * row_scales + slice * kScales);
  }

  // The same of the tile that many rows on.
  FL_DEVICE SliceSource at(uint32_t rows) const {
    SliceSource to = *this;
    to.low += (uint64_t)rows * row_codes, to.high += (uint64_t)rows * row_codes, to.scales += (uint64_t)rows * row_scales;
    return to;
  }

  FL_DEVICE void fetch(unsigned char* stage) const {
    int lane = lane_idx();
    unsigned char* to = stage + lane / 8 * kSlicePitch + lane % 8 * kUnitBytes;
    copy_async<16>(to, low);
    copy_async<16>(to + 4 * kSlicePitch, low + 4 * row_codes);
    copy_async<16>(to + 8 * kSlicePitch, high);
    copy_async<16>(to + 12 * kSlicePitch, high + 4 * row_codes);
    if (lane < kTileRows) copy_async<kScales>(stage + lane * kSlicePitch + kSliceCodes, scales);
  }
};

// 16 bytes, asked for here and not where they are used.
FL_DEVICE uint4 load_now(const uint16_t* from) {
#if defined(__CUDA_ARCH__)
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
  return v;
#else
  return *(const uint4*)from;
#endif
}

// A lane's part of one step of its slice of an activation row, of which `row` is the lane's first element.
FL_DEVICE void load_step(uint32_t (&x)[8], const uint16_t* row, int step) {
  uint4 a = load_now(row + step * kSliceStepCols), b = load_now(row + step * kSliceStepCols + 8);
  x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
  x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
}

// The byte `at` of each of two words, as the halves of one: bytes below 0x80, which their sign, zero, extends.
FL_DEVICE uint32_t two_bytes(uint32_t low, uint32_t high, int at) {
#if defined(__CUDA_ARCH__)
  uint32_t halves;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(halves) : "r"(low), "r"(high), "r"(0xc480u + 0x1111u * at));
  return halves;
#else
  return (low >> (8 * at) & 0xffu) | (high >> (8 * at) & 0xffu) << 16;
#endif
}

// The scales of rows g and g + 8 in a slice, for this lane's columns.
template <int kFormat>
struct SliceScales {
  uint32_t words[2][4];

  FL_DEVICE explicit SliceScales(const unsigned char* stage) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const unsigned char* at = stage + (lane_idx() / 4 + 8 * i) * kSlicePitch + kSliceCodes;
      if constexpr (kFormat == kWeightNvfp4) {
        uint4 v = *(const uint4*)at;
        words[i][0] = v.x, words[i][1] = v.y, words[i][2] = v.z, words[i][3] = v.w;
      } else {
        uint2 v = *(const uint2*)at;
        words[i][0] = v.x, words[i][1] = v.y;
      }
    }
  }

  // Of a step, each as a pair of equal bf16.
  FL_DEVICE void of(int step, uint32_t (&pair)[2]) const {
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
};

// A warp: acc = its slice of 16 rows x activations. After step s `used(s)` may load other activations.
template <int kFormat, class Used>
FL_DEVICE void multiply_slice(float (&acc)[4], const unsigned char* stage, uint32_t (&x)[kSliceSteps][8], Used used) {
  const unsigned char* codes = stage + lane_idx() / 4 * kSlicePitch + lane_idx() % 4 * 8;
  SliceScales<kFormat> scales(stage);
  // Four chains of sums, for the matrix unit's latency; codes are read a step ahead, for the memory's.
  float sums[4][4] = {};
  auto read = [&](int s, int i) { return *(const uint2*)(codes + i * 8 * kSlicePitch + s * (kSliceStepCols / 2)); };
  uint2 next[2] = {read(0, 0), read(0, 1)};
#pragma unroll
  for (int s = 0; s < kSliceSteps; ++s) {
    uint2 rows[2] = {next[0], next[1]};
    if (s + 1 < kSliceSteps) next[0] = read(s + 1, 0), next[1] = read(s + 1, 1);
    uint32_t scale[2], left[2][8];
    scales.of(s, scale);
#pragma unroll
    for (int i = 0; i < 2; ++i) expand_codes<kFormat>(rows[i].x, rows[i].y, scale[i], left[i]);
#pragma unroll
    for (int k = 0; k < 8; k += 2) {
      uint32_t a[4] = {left[0][k], left[1][k], left[0][k + 1], left[1][k + 1]};
      uint32_t b[2] = {x[s][k], x[s][k + 1]};
      mma_16x8x16(sums[k / 2], a, b);
    }
    used(s);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) acc[i] = (sums[0][i] + sums[1][i]) + (sums[2][i] + sums[3][i]);
}

// Writes a warp's sums as [row][activation row].
FL_DEVICE void spill_slice(const float (&acc)[4], float* out) {
  float2* at = (float2*)(out + lane_idx() * 2);
  at[0] = {acc[0], acc[1]};
  at[kPartial / 4] = {acc[2], acc[3]};
}

// Element `i` of a row tile: the sums of its slices, the first set at `partial`, in order.
FL_DEVICE float sum_slices(const float* partial, int slices, int i) {
  float total = 0.0f;
#pragma unroll 4
  for (int s = 0; s < slices; ++s) total += partial[s * kPartial + i];
  return total;
}
