// The inner product of every linear operation: 16 weight rows times up to 8 * kTiles activation rows, over K in chunks of
// 128, by one warp with bf16 matrix instructions.
//
// A chunk's 128 elements are dealt out so that lane quarter q owns 32 neighbours: one 16-byte load of fp4, two of fp8, four
// of bf16. The matrix instruction sees them in another order than memory does, the same for weights and activations, so
// the sum is over the same pairs. An output's sum depends on its row and column alone: never on the number of activation
// rows, on their places, or on what other columns hold.
#pragma once

#include "convert.h"
#include "mma.h"
#include "weight.h"

constexpr int kChunk = 128;
constexpr int kShare = kChunk / 4;
constexpr int kTileRows = 16;
constexpr int kTileCols = 8;

// The two weight rows of a lane (g and g + 8 of the tile), and where their scales begin.
struct TileRows {
  const uint8_t* codes[2];
  const uint8_t* scales[2];
};

FL_DEVICE int64_t code_row_bytes(int format, int cols) {
  return format == kWeightBf16 ? 2 * (int64_t)cols : format == kWeightFp8Block ? cols : (cols + 1) / 2;
}

FL_DEVICE int64_t scale_row_bytes(int format, int cols) {
  switch (format) {
    case kWeightFp8Block: return 4 * (int64_t)((cols + kChunk - 1) / kChunk);
    case kWeightNvfp4: return cols / 16;
    case kWeightMxfp4: return cols / 32;
    default: return 0;
  }
}

// Rows `a` and `b` of matrix `stack`, each of `cols` elements; the matrix has `rows`.
FL_DEVICE TileRows tile_rows(const Weight& w, int64_t stack, int rows, int cols, int a, int b) {
  TileRows out;
  int64_t code = code_row_bytes(w.format, cols), scale = scale_row_bytes(w.format, cols);
  bool blocks = w.format == kWeightFp8Block;
  int64_t scale_rows = blocks ? (rows + kChunk - 1) / kChunk : rows;
  int index[2] = {a, b};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    out.codes[i] = (const uint8_t*)w.codes + (stack * rows + index[i]) * code;
    out.scales[i] = (const uint8_t*)w.scales + (stack * scale_rows + (blocks ? index[i] / kChunk : index[i])) * scale;
  }
  return out;
}

// `valid` bytes and zeros after them. Not inlined: rows that are no whole number of chunks are rare, and their code would
// be most of every kernel; it goes through a few words of local memory.
static FL_RARE void copy_tail(uint32_t* words, const uint8_t* from, int valid, int count) {
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    uint32_t word = 0;
#pragma unroll 1
    for (int j = 0; j < 4; ++j) word |= 4 * i + j < valid ? (uint32_t)from[4 * i + j] << (8 * j) : 0;
    words[i] = word;
  }
}

// A lane's 32 elements of one row and chunk, as stored.
template <int kFormat>
struct Share {
  static constexpr int kBytes = kFormat == kWeightBf16 ? 64 : kFormat == kWeightFp8Block ? 32 : 16;
  uint32_t words[kBytes / 4];
  uint8_t scale_code[2];  // One for each half of the share, converted only when used: a load must not be waited for.

  FL_DEVICE void load_codes(const uint8_t* from, int valid, bool exact) {
    if (exact) {
#pragma unroll
      for (int i = 0; i < kBytes / 16; ++i) {
        uint4 v = ((const uint4*)from)[i];
        words[4 * i] = v.x, words[4 * i + 1] = v.y, words[4 * i + 2] = v.z, words[4 * i + 3] = v.w;
      }
      return;
    }
    uint32_t tail[kBytes / 4];
    copy_tail(tail, from, valid, kBytes / 4);
#pragma unroll
    for (int i = 0; i < kBytes / 4; ++i) words[i] = tail[i];
  }

  // `first` is the element at which the share begins; `exact` rows are aligned and have whole chunks.
  FL_DEVICE void load(const uint8_t* row, const uint8_t* scales, int first, int cols, bool exact) {
    int left = min(kShare, max(0, cols - first));
    int valid = left * kBytes / kShare;
    load_codes(row + (int64_t)first * kBytes / kShare, valid, exact);
    if (kFormat == kWeightNvfp4) {
      scale_code[0] = left > 0 ? scales[first / 16] : 0;
      scale_code[1] = left > 16 ? scales[first / 16 + 1] : 0;
    } else if (kFormat == kWeightMxfp4) {
      scale_code[0] = left > 0 ? scales[first / 32] : 0;
    }
  }

  FL_DEVICE uint32_t scale(int half) const {
    return kFormat == kWeightNvfp4 ? e4m3_scale_pair(scale_code[half]) : ue8m0_scale_pair(scale_code[0]);
  }

  // Elements 4 step .. 4 step + 3 as two pairs.
  FL_DEVICE void pairs(int step, uint32_t& low, uint32_t& high) const {
    if (kFormat == kWeightBf16) {
      low = words[2 * step % (kBytes / 4)];
      high = words[(2 * step + 1) % (kBytes / 4)];
    } else if (kFormat == kWeightFp8Block) {
      unpack_e4m3x4(words[step % (kBytes / 4)], low, high);
    } else {
      unpack_e2m1x4(words[step / 2 % (kBytes / 4)] >> (16 * (step % 2)), scale(step / 4), low, high);
    }
  }
};

// One chunk: acc += a x activations. `x[n]` is this lane's activation row (column g of tile n), null for none.
template <int kFormat, int kTiles>
FL_DEVICE void multiply_chunk(float (&acc)[kTiles][4], const Share<kFormat> (&a)[2], const float (&scale)[2],
                              const uint16_t* const (&x)[kTiles], int at, int cols, bool exact) {
  Share<kWeightBf16> b[kTiles];
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    if (x[n] != nullptr) {
      b[n].load((const uint8_t*)x[n], nullptr, at, cols, exact);
    } else {
#pragma unroll
      for (int i = 0; i < 16; ++i) b[n].words[i] = 0;
    }
  }
  float part[kTiles][4];
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) part[n][i] = kFormat == kWeightFp8Block ? 0.0f : acc[n][i];
  }
#pragma unroll
  for (int step = 0; step < kShare / 4; ++step) {
    uint32_t left[4];
    a[0].pairs(step, left[0], left[2]);
    a[1].pairs(step, left[1], left[3]);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      uint32_t right[2];
      b[n].pairs(step, right[0], right[1]);
      mma_16x8x16(part[n], left, right);
    }
  }
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      acc[n][i] = kFormat == kWeightFp8Block ? fmaf(scale[i / 2], part[n][i], acc[n][i]) : part[n][i];
    }
  }
}

// One warp: acc += rows x activations over chunks first, first + stride, ... Accumulators are not cleared. `kInFlight` chunks
// of weights are loaded before the first is used (one in bf16, which has no registers for more); it changes no sum.
template <int kFormat, int kTiles, int kInFlight>
FL_DEVICE void tile_product(float (&acc)[kTiles][4], const TileRows& rows, const uint16_t* const (&x)[kTiles], int cols,
                            int first, int stride) {
  constexpr int kDepth = kFormat == kWeightBf16 ? 1 : kInFlight;
  int q = lane_idx() % 4, chunks = (cols + kChunk - 1) / kChunk;
  bool exact = cols % kChunk == 0;
#pragma unroll 1
  for (int group = first; group < chunks; group += stride * kDepth) {
    Share<kFormat> a[kDepth][2];
    float scale[kDepth][2];
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      int chunk = group + d * stride;
      if (chunk >= chunks) continue;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        a[d][i].load(rows.codes[i], rows.scales[i], chunk * kChunk + q * kShare, cols, exact);
        scale[d][i] = kFormat == kWeightFp8Block ? ((const float*)rows.scales[i])[chunk] : 1.0f;
      }
    }
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      int chunk = group + d * stride;
      if (chunk < chunks) multiply_chunk<kFormat, kTiles>(acc, a[d], scale[d], x, chunk * kChunk + q * kShare, cols, exact);
    }
  }
}

// The same for a format known only at run time.
template <int kTiles, int kInFlight>
FL_DEVICE void tile_product_any(float (&acc)[kTiles][4], int format, const TileRows& rows,
                                const uint16_t* const (&x)[kTiles], int cols, int first, int stride) {
  switch (format) {
    case kWeightBf16: return tile_product<kWeightBf16, kTiles, kInFlight>(acc, rows, x, cols, first, stride);
    case kWeightFp8Block: return tile_product<kWeightFp8Block, kTiles, kInFlight>(acc, rows, x, cols, first, stride);
    case kWeightNvfp4: return tile_product<kWeightNvfp4, kTiles, kInFlight>(acc, rows, x, cols, first, stride);
    default: return tile_product<kWeightMxfp4, kTiles, kInFlight>(acc, rows, x, cols, first, stride);
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
