// The inner product of every linear operation: 16 weight rows times up to 8 * kTiles activation rows, over K in steps of 128
// bytes of weights, by one warp with bf16 matrix instructions.
//
// Lane quarter q owns two units of 16 bytes of a row and step. The matrix instruction sees a step's elements in another order
// than memory does, the same for weights and activations, so the sum is over the same pairs. An output's sum depends on its
// row and column alone: never on the number of activation rows, on their places, or on what other columns hold.
#pragma once

#include "convert.h"
#include "mma.h"
#include "stream.h"

constexpr int kTileCols = 8;

// A row's last elements and zeros after them, to `words`. Not inlined: rows that are no whole number of steps are rare; it goes
// through a few words of local memory.
static FL_RARE void activations_tail(uint32_t* words, const uint16_t* row, int at, int cols, int count) {
  copy_tail((uint8_t*)words, (const uint8_t*)(row + at), 2 * ((int64_t)cols - at), 4 * count);
}

// What the sums of a format must be multiplied by: its second-level scale, and what the codes' expansion leaves out.
FL_DEVICE float tile_scale(const Weight& w, int64_t stack) {
  return w.format == kWeightNvfp4 ? w.global[stack] * kNvfp4Rest : 1.0f;
}

// One unit of an activation row, in the order in which the weights' unit is expanded.
template <int kFormat>
struct Activations {
  static constexpr int kWords = Step<kFormat>::kUnit / 2;
  uint32_t words[kWords];

  // Elements at .. at + kUnit - 1 of a row of `cols`; null is a row of zeros.
  FL_DEVICE void load(const uint16_t* row, int at, int cols) {
    if (row == nullptr) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) words[i] = 0;
    } else if (cols % Step<kFormat>::kElements == 0) {
#pragma unroll
      for (int i = 0; i < kWords / 4; ++i) {
        uint4 v = *(const uint4*)(row + at + 8 * i);
        words[4 * i] = v.x, words[4 * i + 1] = v.y, words[4 * i + 2] = v.z, words[4 * i + 3] = v.w;
      }
    } else {
      uint32_t tail[kWords];
      activations_tail(tail, row, at, cols, kWords);
#pragma unroll
      for (int i = 0; i < kWords; ++i) words[i] = tail[i];
    }
    order();
  }

  FL_DEVICE void order() {
    if constexpr (kFormat == kWeightFp8Block) {
#pragma unroll
      for (int i = 0; i < kWords; i += 2) {
        uint32_t a = words[i], b = words[i + 1];
        words[i] = low_halves(a, b), words[i + 1] = high_halves(a, b);
      }
    }
  }
};

// The scales of a tile's rows in one step, `pitch` bytes apart.
template <int kFormat>
struct StepScales {
  const unsigned char* scales;
  int pitch;

  FL_DEVICE StepScales(const unsigned char* scales, int pitch) : scales(scales), pitch(pitch) {}

  // The row's scale in the fp8 format.
  FL_DEVICE float block_scale(int row) const { return *(const float*)(scales + row * pitch); }

  // The scales of this lane's unit `half` as pairs of equal bf16, of its first and its second half.
  FL_DEVICE void unit_scales(int row, int half, uint32_t (&pair)[2]) const {
    const unsigned char* of_row = scales + row * pitch;
    int unit = half * 4 + lane_idx() % 4;
    if constexpr (kFormat == kWeightNvfp4) {
      uint32_t codes = *(const uint16_t*)(of_row + 2 * unit);
      pair[0] = nvfp4_scale_pair(codes & 0xffu), pair[1] = nvfp4_scale_pair(codes >> 8);
    } else if constexpr (kFormat == kWeightMxfp4) {
      pair[0] = pair[1] = ue8m0_scale_pair(of_row[unit]);
    }
  }
};

// One step of one tile of a stage, as its lanes see it.
template <int kFormat, class S>
struct TileStep : StepScales<kFormat> {
  const unsigned char* codes;

  FL_DEVICE TileStep(const unsigned char* stage, int tile, int in_stage)
      : StepScales<kFormat>(stage + S::kScales + tile * kTileRows * S::kScalePitch + in_stage * Step<kFormat>::kScaleBytes,
                            S::kScalePitch),
        codes(stage + tile * kTileRows * S::kCodePitch + in_stage * kStepBytes) {}

  // The unit `half` (0 or 1) of this lane's in a row.
  FL_DEVICE uint4 unit(int row, int half) const {
    return *(const uint4*)(codes + row * S::kCodePitch + (half * 4 + lane_idx() % 4) * kUnitBytes);
  }
};

// Sixteen e2m1 codes of a row to pairs of bf16, times their scale.
template <int kFormat>
FL_DEVICE void expand_codes(uint32_t first, uint32_t second, uint32_t scale, uint32_t* pairs) {
  uint32_t unpacked[8];
  unpack_e2m1_arranged(first, second, unpacked);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    if (kFormat == kWeightMxfp4) unpacked[j] = mul_bf16x2(unpacked[j], kE2m1Bias);
    pairs[j] = mul_bf16x2(unpacked[j], scale);
  }
}

// A unit's codes to pairs of bf16.
template <int kFormat>
FL_DEVICE void expand_unit(const uint4& unit, const uint32_t (&scale)[2], uint32_t (&pairs)[Step<kFormat>::kUnit / 2]) {
  uint32_t words[4] = {unit.x, unit.y, unit.z, unit.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (kFormat == kWeightBf16) {
      pairs[i] = words[i];
    } else if constexpr (kFormat == kWeightFp8Block) {
      uint32_t two[2];
      unpack_e4m3_across(words[i], two);
      pairs[2 * i] = two[0], pairs[2 * i + 1] = two[1];
    } else if (i % 2 == 0) {
      expand_codes<kFormat>(words[i], words[i + 1], scale[i / 2], pairs + 4 * i);
    }
  }
}

// A unit of both rows of this lane's, expanded.
template <int kFormat, class Tile>
FL_DEVICE void expand_rows(const Tile& tile, int half, uint32_t (&left)[2][Step<kFormat>::kUnit / 2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    int row = lane_idx() / 4 + 8 * i;
    uint32_t scale[2] = {0, 0};
    tile.unit_scales(row, half, scale);
    expand_unit<kFormat>(tile.unit(row, half), scale, left[i]);
  }
}

template <int kFormat>
FL_DEVICE void multiply_unit(float (&sum)[4], const uint32_t (&left)[2][Step<kFormat>::kUnit / 2],
                             const Activations<kFormat>& b, int k) {
  uint32_t a[4] = {left[0][k], left[1][k], left[0][k + 1], left[1][k + 1]};
  uint32_t right[2] = {b.words[k], b.words[k + 1]};
  mma_16x8x16(sum, a, right);
}

// A step's activations of one tile of 8 rows.
template <int kFormat>
struct StepActivations {
  Activations<kFormat> halves[2];

  FL_DEVICE void load(const uint16_t* row, int step, int cols) {
    using F = Step<kFormat>;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      halves[half].load(row, step * F::kElements + (half * 4 + lane_idx() % 4) * F::kUnit, cols);
    }
  }
};

// A warp: acc += weights x activations, for one tile and step of a stage.
template <int kFormat, class Tile>
FL_DEVICE void multiply_tile(float (&acc)[4], const Tile& tile, const StepActivations<kFormat>& b) {
  constexpr bool kScaled = kFormat == kWeightFp8Block;
  float part[4] = {kScaled ? 0.0f : acc[0], kScaled ? 0.0f : acc[1], kScaled ? 0.0f : acc[2], kScaled ? 0.0f : acc[3]};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t left[2][Step<kFormat>::kUnit / 2];
    expand_rows<kFormat>(tile, half, left);
#pragma unroll
    for (int k = 0; k < Step<kFormat>::kUnit / 2; k += 2) multiply_unit<kFormat>(part, left, b.halves[half], k);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    acc[i] = kScaled ? fmaf(tile.block_scale(lane_idx() / 4 + i / 2 * 8), part[i], acc[i]) : part[i];
  }
}

// Writes a warp's accumulators as [column][row] floats with a pitch that keeps banks apart.
constexpr int kTilePitch = kTileRows + 1;
template <int kTiles>
FL_DEVICE void tile_spill(const float (&acc)[kTiles][4], float* out) {
  int g = lane_idx() / 4, q = lane_idx() % 4;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    float* column = out + (n * kTileCols + 2 * q) * kTilePitch;
    column[g] = acc[n][0];
    column[kTilePitch + g] = acc[n][1];
    column[g + 8] = acc[n][2];
    column[kTilePitch + g + 8] = acc[n][3];
  }
}

// Clamped SwiGLU of sums that were rounded to bf16; a limit of 0 is none. A NaN stays one.
FL_DEVICE float swiglu(float gate, float up, float limit) {
  gate = round_bf16(gate), up = round_bf16(up);
  if (limit > 0.0f) {
    gate = gate > limit ? limit : gate;
    up = up > limit ? limit : up < -limit ? -limit : up;
  }
  return gate / (1.0f + expf(-gate)) * up;
}
