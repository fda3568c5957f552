// index_logits: the score of every visible index key, sum_h scale w_h relu(q_h . key), keys read through a page table in
// bf16, fp8 or fp4. Two readers: `simple`, one thread a row, and `fast`, on matrix instructions.
//
// Bytes: 256, 132 or 68 a row read and 4 written; 64 heads make 16 kFLOP a row, so that memory bounds all three formats.
// Notes on `fast`: (1) a block is a warpgroup and scores tiles of 64 rows; the tiles of all tokens stand in one line that is
// cut evenly among a grid as large as the device holds, from the positions as they are on the device; (2) rows are the
// left operand, straight from memory to registers, the next tile's while this one is multiplied (not in bf16, whose tiles
// are large enough); the 64 heads are the columns, in shared memory as exact bf16; (3) relu, weights and the sum over heads
// stay in registers; the sum has one order: by head in a lane, then over the four lanes of a row; (4) scales of fp4 are
// inside the elements, of fp8 outside: the keys' on the sum, the query's on the weights, powers of two; (5) a row on a
// masked page scores -inf; columns past the visible rows are not written.
#include "index_logits.h"

#include "common/chosen.h"
#include "common/index_share.h"
#include "common/lookup.h"
#include "common/order.h"
#include "common/pdl.h"
#include "common/warpgroup.h"

constexpr int kThreads = kGroupThreads;
constexpr int kWarps = kThreads / kWarp;
constexpr int kMaxHeads = kGroupCols;
constexpr int kSimpleThreads = 256;

namespace {

FL_DEVICE int visible_keys(const IndexLogitsParams& p, int64_t t) {
  return visible_rows(p.position[t], (int64_t)p.keys.width * p.keys.page_rows);
}

FL_DEVICE int tiles_of(int rows) { return (rows + kGroupRows - 1) / kGroupRows; }

struct Shared {
  uint16_t columns[kMaxHeads * kIndexDim];
  float weights[kMaxHeads];
  int64_t token;
  int tile;
  int scratch[kWarps];
};

// Lays out the query of a token as the columns of the product.
template <int kFormat>
FL_DEVICE void stage_query(const IndexLogitsParams& p, int64_t t, Shared& s) {
  using Share = IndexShare<kFormat>;
  int g = lane_idx() / 4, q = lane_idx() % 4;
  const uint8_t* codes = p.codes + t * p.heads * Share::kCodeBytes;
  const uint8_t* scales = p.scales + t * p.heads * 4;
  if ((int)threadIdx.x < kMaxHeads) {
    int head = threadIdx.x;
    float w = head < p.heads ? p.weights[t * p.heads + head] : 0.0f;
    if (kFormat == kIndexFp8 && head < p.heads) w *= ((const float*)scales)[head];
    s.weights[head] = w;
  }
#pragma unroll
  for (int i = 0; i < kMaxHeads / 8 / kWarps; ++i) {
    int n = kWarps * i + warp_idx(), head = 8 * n + g;
    Share share;
    share.load(head < p.heads, codes + head * Share::kCodeBytes, scales + head * 4);
#pragma unroll
    for (int step = 0; step < Share::kSteps; ++step) {
      uint32_t low, high;
      share.pairs(step, low, high);
      *(uint32_t*)(s.columns + core_matrix(2 * step, n) + 8 * g + 2 * q) = low;
      *(uint32_t*)(s.columns + core_matrix(2 * step + 1, n) + 8 * g + 2 * q) = high;
    }
  }
  columns_written();
}

FL_DEVICE int tile_row(int tile, int i) { return tile * kGroupRows + 16 * warp_idx() + lane_idx() / 4 + 8 * i; }

// The page ids of a lane's two rows of a tile as the table has them, to be checked when used; -1 past the visible rows.
struct Pages {
  int32_t id[2];

  FL_DEVICE void find(const IndexLogitsParams& p, int64_t request, int tile, int visible) {
    const int32_t* table = p.keys.table + request * p.keys.width;
    if (p.keys.page_rows == kGroupRows) {
      id[0] = tile_row(tile, 0) < visible ? table[tile] : -1;
      id[1] = tile_row(tile, 1) < visible ? id[0] : -1;
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        uint32_t row = tile_row(tile, i);
        id[i] = (int)row < visible ? table[row / (uint32_t)p.keys.page_rows] : -1;
      }
    }
  }

  FL_DEVICE bool valid(const IndexLogitsParams& p, int i) const { return id[i] >= 0 && id[i] < p.keys.pages; }
};

template <int kFormat>
FL_DEVICE void load_rows(IndexShare<kFormat> (&rows)[2], const IndexLogitsParams& p, const Pages& pages, int tile) {
  constexpr int kBytes = IndexShare<kFormat>::kCodeBytes;
  uint32_t per_page = p.keys.page_rows;
  int64_t page_bytes = index_page_bytes(kFormat, p.keys.page_rows);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    uint32_t row = tile_row(tile, i), at = per_page == kGroupRows ? row % kGroupRows : row % per_page;
    const uint8_t* page = p.keys.pool + pages.id[i] * page_bytes;
    rows[i].load(pages.valid(p, i), page + at * kBytes, page + per_page * kBytes + at * 4);
  }
}

template <int kFormat>
FL_DEVICE void score_rows(const IndexShare<kFormat> (&rows)[2], const IndexLogitsParams& p, const Pages& pages, int tile,
                          int visible, const Shared& s, float* logits) {
  constexpr int kSteps = IndexShare<kFormat>::kSteps;
  uint32_t left[kSteps][4];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    rows[0].pairs(step, left[step][0], left[step][2]);
    rows[1].pairs(step, left[step][1], left[step][3]);
  }
  float c[8][4];
  warpgroup_multiply<kSteps>(c, left, s.columns);
  int q = lane_idx() % 4;
  float sums[2] = {0.0f, 0.0f};
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    float2 w = *(const float2*)(s.weights + 8 * n + 2 * q);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sums[i] = fmaf(w.x, relu(c[n][2 * i]), sums[i]);
      sums[i] = fmaf(w.y, relu(c[n][2 * i + 1]), sums[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    sums[i] += __shfl_xor_sync(kFullMask, sums[i], 1);
    sums[i] += __shfl_xor_sync(kFullMask, sums[i], 2);
    int row = tile_row(tile, i);
    if (q == 0 && row < visible) logits[row] = pages.valid(p, i) ? p.scale * (sums[i] * rows[i].outer_scale()) : -INFINITY;
  }
}

// Scores tiles first .. end - 1 of a token, whose query is staged.
template <int kFormat>
FL_DEVICE void score_tiles(const IndexLogitsParams& p, int64_t t, int first, int end, int visible, const Shared& s) {
  constexpr bool kAhead = kFormat != kIndexBf16;
  int64_t request = t / p.per_request;
  float* logits = p.logits + t * (int64_t)p.keys.width * p.keys.page_rows;
  IndexShare<kFormat> rows[2], next[2];
  Pages here, ahead, later;
  here.find(p, request, first, visible);
  ahead.find(p, request, first + 1, visible);
  if (kAhead) load_rows(rows, p, here, first);
#pragma unroll 1
  for (int tile = first; tile < end; ++tile) {
    later.find(p, request, tile + 2, visible);
    if (!kAhead) {
      load_rows(rows, p, here, tile);
    } else if (tile + 1 < end) {
      load_rows(next, p, ahead, tile + 1);
    }
    score_rows(rows, p, here, tile, visible, s, logits);
    if (kAhead) rows[0] = next[0], rows[1] = next[1];
    here = ahead, ahead = later;
  }
}

// This block's part of the line of tiles.
template <int kFormat>
FL_DEVICE void score_part(const IndexLogitsParams& p, Shared& s) {
  int line = 0;
  for (int start = 0; start < p.tokens; start += kThreads) {
    int t = start + (int)threadIdx.x, total;
    block_exclusive_sum<kThreads>(t < p.tokens ? tiles_of(visible_keys(p, t)) : 0, total, s.scratch);
    line += total;
  }
  int part = (line + (int)gridDim.x - 1) / (int)gridDim.x, first = (int)blockIdx.x * part, left = min(part, line - first);
  if (left <= 0) return;
  for (int start = 0, before = 0; start < p.tokens && before <= first; start += kThreads) {
    int t = start + (int)threadIdx.x, total, mine = t < p.tokens ? tiles_of(visible_keys(p, t)) : 0;
    int from = before + block_exclusive_sum<kThreads>(mine, total, s.scratch);
    if (from <= first && first < from + mine) s.token = t, s.tile = first - from;
    before += total;
  }
  __syncthreads();
  int64_t t = s.token;
  int tile = s.tile;
  for (; left > 0 && t < p.tokens; ++t, tile = 0) {
    int visible = visible_keys(p, t), end = min(tiles_of(visible), tile + left);
    if (tile >= end) continue;
    stage_query<kFormat>(p, t, s);
    __syncthreads();
    score_tiles<kFormat>(p, t, tile, end, visible, s);
    left -= end - tile;
    __syncthreads();
  }
}

// Element `d` of a vector, its scale applied.
FL_DEVICE float element(const uint8_t* codes, const uint8_t* scales, int format, int d) {
  if (format == kIndexBf16) return bf16_to_float(((const uint16_t*)codes)[d]);
  if (format == kIndexFp8) return e4m3_to_float(codes[d]) * *(const float*)scales;
  return e2m1_to_float(codes[d / 2] >> (4 * (d % 2)) & 15) * ue8m0_to_float(scales[d / 32]);
}

}  // namespace

FL_KERNEL_BLOCKS(kThreads, 4, index_logits_fast, IndexLogitsParams) {
  __shared__ __align__(128) Shared s;
  pdl_wait();
  switch (p.format) {
    case kIndexBf16: return score_part<kIndexBf16>(p, s);
    case kIndexFp8: return score_part<kIndexFp8>(p, s);
    default: return score_part<kIndexFp4>(p, s);
  }
}

FL_KERNEL(kSimpleThreads, index_logits_simple, IndexLogitsParams) {
  __shared__ __align__(16) float query[kMaxHeads * kIndexDim];
  pdl_wait();
  int64_t t = blockIdx.y;
  int visible = visible_keys(p, t);
  if ((int)blockIdx.x * kSimpleThreads >= visible) return;
  for (int i = threadIdx.x; i < p.heads * kIndexDim; i += kSimpleThreads) {
    int64_t head = t * p.heads + i / kIndexDim;
    query[i] = element(p.codes + head * index_code_bytes(p.format), p.scales + head * 4, p.format, i % kIndexDim);
  }
  __syncthreads();
  float* logits = p.logits + t * (int64_t)p.keys.width * p.keys.page_rows;
  for (int row = blockIdx.x * kSimpleThreads + threadIdx.x; row < visible; row += gridDim.x * kSimpleThreads) {
    int32_t id = page_of(p.keys, t / p.per_request, row);
    if (id < 0) {
      logits[row] = -INFINITY;
      continue;
    }
    const uint8_t* page = p.keys.pool + id * index_page_bytes(p.format, p.keys.page_rows);
    int at = row % p.keys.page_rows, bytes = index_code_bytes(p.format);
    const uint8_t *codes = page + at * bytes, *scales = page + p.keys.page_rows * bytes + at * 4;
    float score = 0.0f;
    for (int h = 0; h < p.heads; ++h) {
      float dot = 0.0f;
      for (int d = 0; d < kIndexDim; ++d) dot = fmaf(query[h * kIndexDim + d], element(codes, scales, p.format, d), dot);
      score = fmaf(p.scale * p.weights[t * p.heads + h], dot < 0.0f ? 0.0f : dot, score);
    }
    logits[row] = score;
  }
}
