// The product of rows of e2m1 codes and up to 8 activation rows, by a block of 16 warps: K in slices of 256 columns, a slice of
// 16 rows for each warp.
//
// With `slices` of them in K, warp w has slice w % slices of row tile w / slices. Weights come through a ring of stages that the
// copy engine fills, whole rows of memory at a time; activations stay in registers. Lane 4 g + q multiplies, of 64 columns at a
// time, columns 16 q .. 16 q + 15 of two rows: one scale of NVFP4 a row.
#pragma once

#include "bulk.h"
#include "tile.h"

constexpr int kSliceWarps = 16;
constexpr int kSliceCols = 256;
constexpr int kSliceSteps = 4;
constexpr int kSliceStepCols = kSliceCols / kSliceSteps;
constexpr int kSliceCodes = kSliceCols / 2;
// Partial sums of 16 rows by 8 activation rows.
constexpr int kPartial = kTileRows * kTileCols;
// Runs of a block of rows in a stage.
constexpr int kRuns = 4;

// A lane's rows of a slice: codes and scales of the first, and what lies between them and those of the second.
struct SliceRows {
  const unsigned char *codes, *scales;
  int code_apart, scale_apart;
};

// A stage: the rows of a block's tiles, in `kBlocks` blocks (2: the first row of every lane is of one, the second of the other)
// of neighbouring rows of the matrix, and their scales. A block's codes are cut into four runs and a gap lies after each, so that
// the rows of four neighbouring lanes, one of each run, are in banks of their own.
template <int kFormat, int kBlocks>
struct SliceStage {
  static constexpr int kGroup = Step<kFormat>::kGroup, kScales = kSliceCols / kGroup;
  int tiles, codes, scales;  // Row tiles, and the bytes of a row.

  FL_DEVICE explicit SliceStage(int cols) : tiles(kSliceWarps / (cols / kSliceCols)), codes(cols / 2), scales(cols / kGroup) {}
  FL_DEVICE int rows() const { return tiles * kTileRows / kBlocks; }
  FL_DEVICE int pitch() const { return rows() / kRuns * codes + 32; }
  FL_DEVICE int bytes() const { return kBlocks * (kRuns * pitch() + rows() * scales); }

  // The row of a block that is row g of a tile, in the only block the first or second of a lane.
  FL_DEVICE int row(int tile, int g, int second) const {
    return g % kRuns * (rows() / kRuns) + tile * (kTileRows / kBlocks / kRuns) + (kBlocks == 1 ? 2 * second : 0) + g / kRuns;
  }

  // A warp asks for a stage of blocks whose first rows are `first`, and `apart` rows on.
  FL_DEVICE void fetch(unsigned char* stage, const Weight& w, int64_t first, int apart, uint64_t* full) const {
    if (lane_idx() == 0) barrier_expect(full, kBlocks * rows() * (codes + scales));
    __syncwarp();
    int i = lane_idx(), run = i - kBlocks;
    if (i >= kBlocks * (1 + kRuns)) return;
    // First the scales.
    int64_t from = first + (run < 0 ? i * apart : run / kRuns * apart + run % kRuns * (rows() / kRuns));
    const uint8_t* source = run < 0 ? (const uint8_t*)w.scales + from * scales : (const uint8_t*)w.codes + from * codes;
    int at = run < 0 ? kBlocks * kRuns * pitch() + i * rows() * scales : run * pitch();
    copy_bulk(stage + at, source, run < 0 ? rows() * scales : rows() / kRuns * codes, full);
  }

  // This lane's rows of a warp's slice.
  FL_DEVICE SliceRows slice(const unsigned char* stage) const {
    int slices = codes / kSliceCodes, slice = warp_idx() % slices, g = lane_idx() / 4, within = row(warp_idx() / slices, g, 0);
    return {stage + g % kRuns * pitch() + (within - g % kRuns * (rows() / kRuns)) * codes + slice * kSliceCodes + lane_idx() % 4 * 8,
            stage + kBlocks * kRuns * pitch() + within * scales + slice * kScales,
            kBlocks == 1 ? 2 * codes : kRuns * pitch(), kBlocks == 1 ? 2 * scales : rows() * scales};
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

// Each half of a word twice, in a form that the multiplications read without another instruction.
FL_DEVICE void spread_halves(uint32_t both, uint32_t (&pair)[2]) {
#if defined(__CUDA_ARCH__)
  asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\nmov.b32 %0, {low, low};\nmov.b32 %1, {high, high};\n}"
      : "=r"(pair[0]), "=r"(pair[1])
      : "r"(both));
#else
  pair[0] = low_halves(both, both), pair[1] = high_halves(both, both);
#endif
}

// The scales of rows g and g + 8 in a slice, for this lane's columns.
template <int kFormat>
struct SliceScales {
  uint32_t words[2][4];

  FL_DEVICE SliceScales(const unsigned char* low, const unsigned char* high) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const unsigned char* at = i == 0 ? low : high;
      if constexpr (kFormat == kWeightNvfp4) {
        uint4 v = *(const uint4*)at;
        words[i][0] = v.x, words[i][1] = v.y, words[i][2] = v.z, words[i][3] = v.w;
      } else {
        uint2 v = *(const uint2*)at;
        words[i][0] = v.x, words[i][1] = v.y;
      }
    }
  }

  // Whether the warp may take scales of ue8m0 by the short way: none is 2 or more, so that 2^118 times as much is a bf16, and
  // none so small that a weight at 2^-8 is not.
  FL_DEVICE bool small() const {
    uint32_t any = 0, all = ~0u;
#pragma unroll
    for (int i = 0; i < 4; ++i) any |= words[i / 2][i % 2], all &= words[i / 2][i % 2] + 0x7c7c7c7cu;
    return !__any_sync(kFullMask, ((any | ~all) & 0x80808080u) != 0);
  }

  // Of a step, each as a pair of equal bf16. `kShort`: times 2^118, for codes at 2^-126; 2^8 (`kNvfp4Rest`) is left to do.
  template <bool kShort>
  FL_DEVICE void of(int step, uint32_t (&pair)[2]) const {
    int q = lane_idx() % 4;
    if constexpr (kFormat == kWeightNvfp4) {
      uint32_t codes = two_bytes(words[0][step], words[1][step], q);
      spread_halves(mul_bf16x2(mul_bf16x2(codes << 4, kE4m3Bias), 0x7a807a80u), pair);
    } else if constexpr (kShort) {
      uint32_t codes = two_bytes(words[0][step / 2], words[1][step / 2], step % 2 * 2 + q / 2);
      spread_halves(codes * 128 + 118 * 128 * 0x10001u, pair);
    } else {
      int shift = 8 * (step % 2 * 2 + q / 2);
#pragma unroll
      for (int i = 0; i < 2; ++i) pair[i] = ue8m0_scale_pair((uint8_t)(words[i][step / 2] >> shift));
    }
  }
};

template <int kFormat, bool kShort, class Used>
FL_DEVICE void multiply_steps(float (&acc)[4], const SliceRows& at, const SliceScales<kFormat>& scales, uint32_t (&x)[kSliceSteps][8], Used used) {
  const unsigned char *low = at.codes, *high = low + at.code_apart;
  // Four chains of sums, for the matrix unit's latency; codes are read a step ahead, for the memory's.
  float sums[4][4] = {};
  auto read = [&](const unsigned char* from, int s) { return *(const uint2*)(from + s * (kSliceStepCols / 2)); };
  uint2 next[2] = {read(low, 0), read(high, 0)};
#pragma unroll
  for (int s = 0; s < kSliceSteps; ++s) {
    uint2 rows[2] = {next[0], next[1]};
    if (s + 1 < kSliceSteps) next[0] = read(low, s + 1), next[1] = read(high, s + 1);
    uint32_t scale[2], left[2][8];
    scales.template of<kShort>(s, scale);
#pragma unroll
    for (int i = 0; i < 2; ++i) expand_codes<kShort ? kWeightNvfp4 : kFormat>(rows[i].x, rows[i].y, scale[i], left[i]);
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

// A warp: acc = its slice of 16 rows x activations. After step s `used(s)` may load other activations.
template <int kFormat, class Used>
FL_DEVICE void multiply_slice(float (&acc)[4], const SliceRows& at, uint32_t (&x)[kSliceSteps][8], Used used) {
  SliceScales<kFormat> scales(at.scales, at.scales + at.scale_apart);
  if constexpr (kFormat == kWeightNvfp4) {
    multiply_steps<kFormat, true>(acc, at, scales, x, used);
  } else if (scales.small()) {
    multiply_steps<kFormat, true>(acc, at, scales, x, used);
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[i] *= kNvfp4Rest;
  } else {
    multiply_steps<kFormat, false>(acc, at, scales, x, used);
  }
}

// Writes a lane's sums of its first row, columns 2 q and 2 q + 1; those of the second are half of all on.
FL_DEVICE void spill_slice(const float (&acc)[4], float* out) {
  float2* at = (float2*)(out + lane_idx() * 2);
  at[0] = {acc[0], acc[1]};
  at[kPartial / 4] = {acc[2], acc[3]};
}

// `kSlices` of them, or `slices`.
template <int kSlices>
FL_DEVICE float2 add_slices(const float2* at, int slices) {
  float2 total = {0.0f, 0.0f};
#pragma unroll(kSlices > 0 ? kSlices : 1)
  for (int s = 0; s < (kSlices > 0 ? kSlices : slices); ++s) {
    float2 part = at[s * (kPartial / 2)];
    total.x += part.x, total.y += part.y;
  }
  return total;
}

// The sums of a row tile's slices, the first set at `partial`, in order: the two that this lane's place is for, of its first or
// second row.
FL_DEVICE float2 sum_slices(const float* partial, int slices, int second) {
  const float2* at = (const float2*)(partial + lane_idx() * 2) + second * (kPartial / 4);
  if (slices == 16) return add_slices<16>(at, slices);
  if (slices == 8) return add_slices<8>(at, slices);
  return add_slices<0>(at, slices);
}
