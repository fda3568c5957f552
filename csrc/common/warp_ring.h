// The weights of one warp's tiles on their way from memory, with no barrier of the block: a ring of stages for each warp.
//
// A stage is one step of a tile: 128 bytes of codes of each of 16 rows, and their scales. A lane copies the codes that it
// will read itself (rows g and g + 8, four units of 16 bytes), so no banks stand in the way; scales are shared by the warp.
#pragma once

#include "tile.h"

constexpr int kWarpStageCodes = kTileRows * kStepBytes;
constexpr int kWarpStageBytes = kWarpStageCodes + kTileRows * 16;

// A tile of 16 rows as its lanes see it: rows g and g + 8, and the row whose scales this lane copies.
struct TileRows {
  const uint8_t* codes[2];
  const uint8_t* scales;
};

// `row(r)` is the weight row of tile row r in a stack's matrix of `rows` rows and `cols` columns.
template <int kFormat, class Row>
FL_DEVICE TileRows tile_rows(const Weight& w, int64_t stack, int rows, int cols, Row row) {
  TileRows out;
  constexpr bool kBlocks = kFormat == kWeightFp8Block;
  int code = (int)code_row_bytes(kFormat, cols), scale = (int)scale_row_bytes(kFormat, cols);
  int g = lane_idx() / 4, own = row(lane_idx() % kTileRows);
  const uint8_t* codes = (const uint8_t*)w.codes + stack * rows * code;
  out.codes[0] = codes + (int64_t)row(g) * code;
  out.codes[1] = codes + (int64_t)row(g + 8) * code;
  out.scales = (const uint8_t*)w.scales + (stack * (kBlocks ? (rows + 127) / 128 : rows) + (kBlocks ? own / 128 : own)) * scale;
  return out;
}

// Up to `kBytes` (4 or 16) of a row of `bytes` from `at` on, and zeros. Rows of whole units are aligned to them.
template <int kBytes>
FL_DEVICE void copy_unit(unsigned char* to, const uint8_t* row, int64_t at, int64_t bytes) {
  if (bytes % kBytes != 0) {
    copy_tail(to, row + at, bytes - at, kBytes);
  } else if (at < bytes) {
    copy_async<kBytes>(to, row + at);
  } else {
#pragma unroll
    for (int i = 0; i < kBytes; i += 4) *(uint32_t*)(to + i) = 0;
  }
}

// The bytes of step `step` that lie within rows of `cols` elements, and zeros. Not inlined: such rows are rare.
template <int kFormat>
static FL_RARE void warp_fetch_tail(unsigned char* stage, const TileRows& rows, int step, int cols) {
  using F = Step<kFormat>;
  int lane = lane_idx();
#pragma unroll 1
  for (int i = 0; i < 4; ++i) {
    int64_t at = (int64_t)step * kStepBytes + (i % 2 * 4 + lane % 4) * kUnitBytes;
    copy_unit<kUnitBytes>(stage + (i * kWarp + lane) * kUnitBytes, rows.codes[i / 2], at, code_row_bytes(kFormat, cols));
  }
  if (lane >= kTileRows) return;
  unsigned char* to = stage + kWarpStageCodes + lane * F::kScaleBytes;
#pragma unroll 1
  for (int i = 0; i < F::kScaleBytes; i += 4) {
    copy_unit<4>(to + i, rows.scales, (int64_t)step * F::kScaleBytes + i, scale_row_bytes(kFormat, cols));
  }
}

// A step's activations; `row` is null for none. Rows of whole units go by units though they end within the step.
template <int kFormat>
FL_DEVICE void load_activations(StepActivations<kFormat>& b, const uint16_t* row, int step, int cols) {
  using F = Step<kFormat>;
  bool whole = cols % F::kUnit == 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    int at = step * F::kElements + (half * 4 + lane_idx() % 4) * F::kUnit;
    b.halves[half].load(!whole || at < cols ? row : nullptr, at, whole ? F::kElements : cols);
  }
}

// A warp sends step `step` of a tile on its way to `stage`. A commit must follow.
template <int kFormat>
FL_DEVICE void warp_fetch(unsigned char* stage, const TileRows& rows, int step, int cols) {
  using F = Step<kFormat>;
  int lane = lane_idx();
  if (cols % F::kElements != 0) return warp_fetch_tail<kFormat>(stage, rows, step, cols);
  unsigned char* to = stage + lane * kUnitBytes;
  int at = step * kStepBytes + lane % 4 * kUnitBytes;
#pragma unroll
  for (int i = 0; i < 4; ++i) copy_async<16>(to + i * kWarp * kUnitBytes, rows.codes[i / 2] + at + i % 2 * 4 * kUnitBytes);
  if (F::kScaleBytes == 0 || lane >= kTileRows) return;
  copy_async<F::kScaleBytes>(stage + kWarpStageCodes + lane * F::kScaleBytes, rows.scales + step * F::kScaleBytes);
}

// Such a stage for `multiply_tile`.
template <int kFormat>
struct WarpStep : StepScales<kFormat> {
  const unsigned char* codes;

  FL_DEVICE explicit WarpStep(const unsigned char* stage)
      : StepScales<kFormat>(stage + kWarpStageCodes, Step<kFormat>::kScaleBytes), codes(stage) {}

  FL_DEVICE uint4 unit(int row, int half) const {
    return *(const uint4*)(codes + ((row / 8 * 2 + half) * kWarp + lane_idx()) * kUnitBytes);
  }
};
