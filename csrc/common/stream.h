// The weights of a block on their way from memory: asynchronous copies into a ring of stages in shared memory.
//
// A stage is a few steps of 128 bytes of codes of some rows, and their scales. Its threads copy neighbouring bytes of a row,
// a kilobyte where it can be, as memory wants it, and several stages are on their way while one is used. Rows that are no
// whole number of steps go byte by byte.
#pragma once

#include "kernel.h"
#include "weight.h"

constexpr int kTileRows = 16;
constexpr int kStepBytes = 128;
constexpr int kUnitBytes = 16;

template <int kFormat>
struct Step {
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
  if (kBytes == 0) return;
#if defined(__CUDA_ARCH__)
  uint32_t address = (uint32_t)__cvta_generic_to_shared(to);
  if (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
  } else if (kBytes > 0) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(address), "l"(from), "n"(kBytes > 0 ? kBytes : 4) : "memory");
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

// `kTiles` tiles of 16 rows by `kSteps` steps. The pitches keep the rows of a tile in banks of their own.
template <int kTiles, int kSteps>
struct Stage {
  static constexpr int kRows = kTiles * kTileRows, kWide = kSteps;
  static constexpr int kCodePitch = kSteps * kStepBytes + 64, kScalePitch = kSteps * 16 + 16;
  static constexpr int kScales = kRows * kCodePitch, kBytes = kScales + kRows * kScalePitch;
};

// The bytes of a stage that lie within rows of `cols` elements, and zeros. Not inlined: such rows are rare.
template <int kFormat, class S, int kThreads>
static FL_RARE void stage_fetch_row_tail(unsigned char* stage, const uint8_t* codes, const uint8_t* scales, int row, int step,
                                         int cols) {
  using F = Step<kFormat>;
  int64_t at = (int64_t)step * kStepBytes, left = code_row_bytes(kFormat, cols) - at;
  unsigned char* to = stage + row * S::kCodePitch;
  for (int i = threadIdx.x; i < S::kWide * kStepBytes; i += kThreads) to[i] = i < left ? codes[at + i] : 0;
  at = (int64_t)step * F::kScaleBytes, left = scale_row_bytes(kFormat, cols) - at;
  to = stage + S::kScales + row * S::kScalePitch;
  for (int i = threadIdx.x; i < S::kWide * F::kScaleBytes; i += kThreads) to[i] = i < left ? scales[at + i] : 0;
}

// A block sends steps `step` .. of some rows of a stack's matrix of `rows` rows and `cols` columns on their way to `stage`;
// `row(r)` is the matrix's row that becomes row r. A commit must follow.
template <int kFormat, class S, int kThreads, class Row>
FL_DEVICE void stage_fetch(unsigned char* stage, const Weight& w, int64_t stack, int rows, int cols, int step, Row row) {
  using F = Step<kFormat>;
  constexpr bool kBlocks = kFormat == kWeightFp8Block;
  // Threads of a row, and the units that each of them copies.
  constexpr int kAcross = kThreads / S::kRows, kEach = S::kWide * kStepBytes / kUnitBytes / kAcross;
  static_assert(kAcross >= S::kWide && kEach > 0, "a row's threads share it evenly, and its scales");
  int code_bytes = (int)code_row_bytes(kFormat, cols), scale_bytes = (int)scale_row_bytes(kFormat, cols);
  const uint8_t* codes = (const uint8_t*)w.codes + stack * rows * code_bytes;
  const uint8_t* scales = (const uint8_t*)w.scales + stack * (kBlocks ? (rows + 127) / 128 : rows) * scale_bytes;
  auto scale_row = [=](int r) { return scales + (int64_t)(kBlocks ? r / 128 : r) * scale_bytes; };
  if (cols % F::kElements != 0) {
#pragma unroll 1
    for (int r = 0; r < S::kRows; ++r) {
      const uint8_t* from = codes + (int64_t)row(r) * code_bytes;
      stage_fetch_row_tail<kFormat, S, kThreads>(stage, from, scale_row(row(r)), r, step, cols);
    }
    return;
  }
  int r = threadIdx.x / kAcross, within = threadIdx.x % kAcross, own = row(r);
  int at = step * kStepBytes + within * kUnitBytes;
  const uint8_t* from = codes + (int64_t)own * code_bytes + at;
  unsigned char* to = stage + r * S::kCodePitch + within * kUnitBytes;
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    constexpr int kApart = kAcross * kUnitBytes;
    if (at + n * kApart < code_bytes) copy_async<16>(to + n * kApart, from + n * kApart);
  }
  if (F::kScaleBytes == 0 || within >= S::kWide || (step + within) * F::kElements >= cols) return;
  unsigned char* to_scales = stage + S::kScales + r * S::kScalePitch + within * F::kScaleBytes;
  copy_async<F::kScaleBytes>(to_scales, scale_row(own) + (step + within) * F::kScaleBytes);
}
