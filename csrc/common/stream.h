// The weights of a warp's tiles on their way from memory: asynchronous copies into a ring of stages in shared memory.
//
// A stage is one step of a tile: 128 bytes of codes of each of 16 rows, and their scales. A lane copies the codes that it
// will read itself (rows g and g + 8, four units of 16 bytes), so neither banks nor barriers stand in the way; scales are shared
// by a warp. Several stages are on their way while one is used. Rows that are no whole number of steps go byte by byte.
#pragma once

#include "kernel.h"
#include "weight.h"

constexpr int kTileRows = 16;
constexpr int kStepBytes = 128;
constexpr int kUnitBytes = 16;
constexpr int kStageCodes = kTileRows * kStepBytes;
constexpr int kStageScales = kTileRows * 16;
constexpr int kStageBytes = kStageCodes + kStageScales;

template <int kFormat>
struct Step {
  static constexpr bool kFp4 = kFormat == kWeightNvfp4 || kFormat == kWeightMxfp4;
  // Elements of a unit and of a step.
  static constexpr int kUnit = kFormat == kWeightBf16 ? 8 : kFormat == kWeightFp8Block ? 16 : 32;
  static constexpr int kElements = kStepBytes / kUnitBytes * kUnit;
  // Scales of a row and step: bytes, and the elements that share one.
  static constexpr int kScaleBytes = kFormat == kWeightNvfp4 ? 16 : kFormat == kWeightMxfp4 ? 8 : kFormat == kWeightFp8Block ? 4 : 0;
  static constexpr int kGroup = kFormat == kWeightNvfp4 ? 16 : kFormat == kWeightMxfp4 ? 32 : 128;

  FL_DEVICE static int count(int cols) { return (cols + kElements - 1) / kElements; }
};

// Copies `kBytes` (4, 8 or 16, aligned) on their own; visible to this thread after `copies_wait`.
template <int kBytes>
FL_DEVICE void copy_async(void* to, const void* from) {
#if defined(__CUDA_ARCH__)
  uint32_t address = (uint32_t)__cvta_generic_to_shared(to);
  if (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address), "l"(from), "n"(kBytes) : "memory");
  }
#else
  memcpy(to, from, kBytes);
#endif
}

// Closes a group of copies; waits until at most `kPending` groups of this thread are under way.
FL_DEVICE void copies_commit() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int kPending>
FL_DEVICE void copies_wait() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

FL_DEVICE int64_t code_row_bytes(int format, int cols) {
  return format == kWeightBf16 ? 2 * (int64_t)cols : format == kWeightFp8Block ? cols : (cols + 1) / 2;
}

FL_DEVICE int64_t scale_row_bytes(int format, int cols) {
  switch (format) {
    case kWeightFp8Block: return 4 * (int64_t)((cols + 127) / 128);
    case kWeightNvfp4: return cols / 16;
    case kWeightMxfp4: return cols / 32;
    default: return 0;
  }
}

// Up to `count` bytes, `valid` of them from memory and zeros after them.
FL_DEVICE void copy_tail(uint8_t* to, const uint8_t* from, int64_t valid, int count) {
#pragma unroll 1
  for (int i = 0; i < count; ++i) to[i] = i < valid ? from[i] : 0;
}

// A tile of 16 rows as its lanes see it: rows g and g + 8, and the row whose scales this lane copies.
struct TileRows {
  const uint8_t* codes[2];
  const uint8_t* scales;
};

// `row(r)` is the weight row of tile row r in a stack's matrix of `rows` rows and `cols` columns.
template <int kFormat, class Row>
FL_DEVICE TileRows tile_rows(const Weight& w, int64_t stack, int rows, int cols, Row row) {
  TileRows out;
  int64_t code = code_row_bytes(kFormat, cols), scale = scale_row_bytes(kFormat, cols);
  bool blocks = kFormat == kWeightFp8Block;
  int g = lane_idx() / 4, own = row(lane_idx() % kTileRows);
  int64_t scale_rows = blocks ? (rows + 127) / 128 : rows;
  out.codes[0] = (const uint8_t*)w.codes + (stack * rows + row(g)) * code;
  out.codes[1] = (const uint8_t*)w.codes + (stack * rows + row(g + 8)) * code;
  out.scales = (const uint8_t*)w.scales + (stack * scale_rows + (blocks ? own / 128 : own)) * scale;
  return out;
}

// The bytes of step `step` that lie within rows of `cols` elements, and zeros. Not inlined: such rows are rare.
template <int kFormat>
static FL_RARE void stage_fetch_tail(unsigned char* stage, const TileRows& rows, int step, int cols) {
  using S = Step<kFormat>;
  int lane = lane_idx();
  for (int i = 0; i < 4; ++i) {
    int64_t at = (int64_t)step * kStepBytes + (i % 2 * 4 + lane % 4) * kUnitBytes;
    copy_tail(stage + (i * kWarp + lane) * kUnitBytes, rows.codes[i / 2] + at, code_row_bytes(kFormat, cols) - at, kUnitBytes);
  }
  if (lane >= kTileRows) return;
  int64_t at = (int64_t)step * S::kScaleBytes;
  copy_tail(stage + kStageCodes + lane * S::kScaleBytes, rows.scales + at, scale_row_bytes(kFormat, cols) - at, S::kScaleBytes);
}

// Sends step `step` of a tile on its way to `stage`. A commit must follow.
template <int kFormat>
FL_DEVICE void stage_fetch(unsigned char* stage, const TileRows& rows, int step, int cols) {
  using S = Step<kFormat>;
  int lane = lane_idx();
  if (cols % S::kElements != 0) return stage_fetch_tail<kFormat>(stage, rows, step, cols);
  unsigned char* to = stage + lane * kUnitBytes;
  int64_t at = (int64_t)step * kStepBytes + lane % 4 * kUnitBytes;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    copy_async<kUnitBytes>(to + i * kWarp * kUnitBytes, rows.codes[i / 2] + at + i % 2 * 4 * kUnitBytes);
  }
  if constexpr (S::kScaleBytes > 0) {
    if (lane >= kTileRows) return;
    copy_async<S::kScaleBytes>(stage + kStageCodes + lane * S::kScaleBytes, rows.scales + (int64_t)step * S::kScaleBytes);
  }
}

// The unit `half` (0 or 1) of tile row g + 8 * which of this lane.
FL_DEVICE uint4 stage_unit(const unsigned char* stage, int which, int half) {
  return *(const uint4*)(stage + ((2 * which + half) * kWarp + lane_idx()) * kUnitBytes);
}
