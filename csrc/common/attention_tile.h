// What a block of `attention` holds, and how a tile of rows gets there: found through page tables with every id and index checked,
// expanded to bf16. What is masked keeps its place, as zeros.
#pragma once

#include "../attention.h"
#include "convert.h"
#include "kv_row.h"
#include "lookup.h"
#include "rows.h"
#include "stream.h"

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kHeads = 16;
constexpr int kTile = 64;
// Rows 4 banks apart, so that eight of them are read without conflict.
constexpr int kPitch = kHeadDim + 8;
constexpr int kScorePitch = kTile + 4;
// Weights lie over the scores that they were made of.
constexpr int kWeightPitch = 2 * kScorePitch;
constexpr int kWarpDims = kHeadDim / kWarps;
// Blocks of a cluster at most, and the tiles that one of them takes in a round.
constexpr int kMaxCluster = 8;
constexpr int kRound = 2;
// Runs of eight dims whose sums a block of a cluster folds at most; and the most runs of a round that it receives.
template <int kCluster>
constexpr int kRunsOf = (kHeadDim / 8 + kCluster - 1) / kCluster;
constexpr int kReceived = kRound * 5 * kRunsOf<5>;
static_assert(kReceived >= kRound * 8 * kRunsOf<8>, "with clusters of 5 or 8 blocks");
constexpr float kMasked = -INFINITY;
static_assert(kTile == 8 * kWarps, "a warp scores eight rows of a tile");

// The list of rows of a token: `window` of them from `window_start` on, then `compressed`.
struct RowList {
  int window_start, window, compressed, visible;

  FL_DEVICE RowList(const AttentionParams& p, int position) {
    window_start = max(0, position - (kWindow - 1));
    window = position < 0 ? 0 : position - window_start + 1;
    int ratio = p.source == kCompressedSelected ? 4 : 128;
    visible = position < 0 ? 0 : (int)(((int64_t)position + 1) / ratio);
    compressed = 0;
    if (position >= 0 && p.source == kCompressedSelected) compressed = p.k;
    if (p.source == kCompressedAll) compressed = (int)min((int64_t)visible, (int64_t)p.compressed.width * p.compressed.page_rows);
  }
  FL_DEVICE int tiles() const { return (window + compressed + kTile - 1) / kTile; }
};

// Where a block has room for both, the sums of a round's tiles lie beside the rows, else where they lay.
template <bool kBeside>
struct RowsAndSums {
  uint16_t rows[kTile * kPitch];
  float4 sums[kReceived][kWarp];
};
template <>
struct RowsAndSums<false> {
  union {
    uint16_t rows[kTile * kPitch];
    float4 sums[kReceived][kWarp];
  };
};

template <bool kBeside>
struct Shared : RowsAndSums<kBeside> {
  uint16_t query[kHeads * kPitch];
  // Of the low dims and of the high ones.
  float scores[2][kHeads * kScorePitch];
  // Of the tiles that this block took, and of all tiles of the round.
  float largest[kRound][kHeads], sum[kRound][kHeads];
  float tile_largest[kRound * kMaxCluster][kHeads], tile_sum[kRound * kMaxCluster][kHeads];
  float sink[kHeads];
  int position, tiles;
  uint8_t scales[kTile][kKvScales];
  // Of the round's tiles: a row's data, null if masked; and its scales.
  const uint8_t* data[kRound][kTile];
  const uint8_t* scale_data[kRound][kTile];
};

// What leads to a token's rows comes nearer before its position is known.
FL_DEVICE void prefetch_lists(const AttentionParams& p, int64_t t) {
  constexpr int kLine = 128 / sizeof(int32_t);
  int64_t request = (uint32_t)t / (uint32_t)p.per_request;
  int at = threadIdx.x * kLine;
  if (at < p.window.width) prefetch(p.window.table + request * p.window.width + at);
  if (p.source != kCompressedNone && at < p.compressed.width) prefetch(p.compressed.table + request * p.compressed.width + at);
  if (p.source == kCompressedSelected && at < p.k) prefetch(p.selected + t * p.k + at);
}

// And what its output is turned by.
FL_DEVICE void prefetch_angles(const AttentionParams& p, int position) {
  constexpr int kLine = 128 / sizeof(float);
  int at = threadIdx.x * kLine;
  if (position >= 0 && at < kRopeDim) prefetch(p.rope + (int64_t)min(position, p.max_positions - 1) * kRopeDim + at);
}

// The row that stands at place i of the list, before it is checked; -1 past its end.
FL_DEVICE int listed_row(const AttentionParams& p, const RowList& list, int64_t t, int i) {
  if (i >= list.window + list.compressed) return -1;
  if (i < list.window) return list.window_start + i;
  return p.source == kCompressedSelected ? p.selected[t * p.k + (i - list.window)] : i - list.window;
}

// The page of that row, -1 if it is masked.
FL_DEVICE int32_t listed_page(const AttentionParams& p, const RowList& list, int64_t request, int i, int row) {
  bool in_window = i < list.window;
  if (row < 0 || (!in_window && row >= list.visible)) return -1;
  return page_of(in_window ? p.window : p.compressed, request, row);
}

// Its data on that page, null if it is masked; and its scales.
FL_DEVICE const uint8_t* listed_data(const AttentionParams& p, const RowList& list, int i, int row, int32_t id,
                                     const uint8_t*& scales) {
  scales = nullptr;
  if (id < 0) return nullptr;
  const PagedRows& paged = i < list.window ? p.window : p.compressed;
  const uint8_t* page = paged.pool + id * kv_page_bytes(p.format, paged.page_rows);
  int in_page = row % paged.page_rows;
  scales = page + (int64_t)paged.page_rows * kKvData + in_page * kKvScales;
  return page + (int64_t)in_page * (p.format == kKvFp8 ? kKvData : 2 * kHeadDim);
}

// Finds row `slot` of a tile, the `n`-th of the round.
template <class S>
FL_DEVICE void find_row(const AttentionParams& p, const RowList& list, int64_t t, int tile, int n, int slot, S& s) {
  int i = tile * kTile + slot, row = listed_row(p, list, t, i);
  int32_t id = listed_page(p, list, (uint32_t)t / (uint32_t)p.per_request, i, row);
  const uint8_t* scales;
  const uint8_t* data = listed_data(p, list, i, row, id, scales);
  s.data[n][slot] = data, s.scale_data[n][slot] = scales;
  if (n == 0 || data == nullptr) return;
  // What is not read at once comes nearer meanwhile.
  for (int at = 0; at < (p.format == kKvFp8 ? kKvData : 2 * kHeadDim); at += 128) prefetch(data + at);
  if (p.format == kKvFp8) prefetch(scales);
}

// Sixteen fp8 codes to as many bf16, in order.
FL_DEVICE void expand_codes(const uint4& raw, uint8_t scale, uint4 (&out)[2]) {
  uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w}, pairs[8], by = ue8m0_scale_pair(scale);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32_t across[2];
    unpack_e4m3_across(words[i], across);
    pairs[2 * i] = mul_bf16x2(low_halves(across[0], across[1]), by);
    pairs[2 * i + 1] = mul_bf16x2(high_halves(across[0], across[1]), by);
  }
  out[0] = uint4{pairs[0], pairs[1], pairs[2], pairs[3]};
  out[1] = uint4{pairs[4], pairs[5], pairs[6], pairs[7]};
}

// The thread's index, not kept: what follows from it is cheaper to compute again than to hold in registers over a loop.
FL_DEVICE int thread_again() {
#if defined(__CUDA_ARCH__)
  int thread;
  asm volatile("mov.u32 %0, %tid.x;" : "=r"(thread));
  return thread;
#else
  return (int)threadIdx.x;
#endif
}

// Rows of the round's `n`-th tile into shared memory; masked ones as zeros, so that weight zero gives zero.
template <class S>
FL_DEVICE void load_fp8(int n, S& s) {
  constexpr int kCodes = kNopeDim / 16, kUnits = kKvData / 16, kEach = kTile * kUnits / kThreads;
  static_assert(kTile * kUnits % kThreads == 0, "every thread has as many units");
  uint4 raw[kEach];
  int thread = thread_again();
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    int i = thread + j * kThreads;
    const uint8_t* data = s.data[n][i / kUnits];
    raw[j] = data == nullptr ? uint4{0, 0, 0, 0} : ((const uint4*)data)[i % kUnits];
  }
  if (threadIdx.x < kTile) {
    const uint8_t* scales = s.scale_data[n][threadIdx.x];
    *(uint2*)s.scales[threadIdx.x] = scales == nullptr ? uint2{0, 0} : *(const uint2*)scales;
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    int i = thread + j * kThreads, row = i / kUnits, unit = i % kUnits;
    uint16_t* to = s.rows + row * kPitch;
    if (unit < kCodes) {
      uint4 both[2];
      expand_codes(raw[j], s.scales[row][unit / 4], both);
      // Eight lanes write to as many groups of banks.
      bool high = thread & 4;
      *(uint4*)(to + 16 * unit + 8 * high) = high ? both[1] : both[0];
      *(uint4*)(to + 16 * unit + 8 * !high) = high ? both[0] : both[1];
    } else {
      *(uint4*)(to + kNopeDim + 8 * (unit - kCodes)) = raw[j];
    }
  }
}

template <class S>
FL_DEVICE void load_bf16(int n, S& s) {
  constexpr int kUnits = kHeadDim / 8;
  for (int i = threadIdx.x; i < kTile * kUnits; i += kThreads) {
    const uint8_t* data = s.data[n][i / kUnits];
    uint16_t* to = s.rows + i / kUnits * kPitch + 8 * (i % kUnits);
    if (data == nullptr) {
      *(uint4*)to = uint4{0, 0, 0, 0};
    } else {
      copy_async<16>(to, data + 16 * (i % kUnits));
    }
  }
  copies_commit();
  copies_wait<0>();
}
