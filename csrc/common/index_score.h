// Scores of index keys, sum_h scale w_h relu(q_h . key): a tile of 64 rows by a warpgroup, or a row by a thread.
#pragma once

#include "chosen.h"
#include "index_scores.h"
#include "index_share.h"
#include "lookup.h"
#include "warpgroup.h"

constexpr int kMaxHeads = kGroupCols;

FL_DEVICE int visible_keys(const IndexScores& p, int64_t t) {
  return visible_rows(p.position[t], (int64_t)p.keys.width * p.keys.page_rows);
}

FL_DEVICE int tiles_of(int rows) { return (rows + kGroupRows - 1) / kGroupRows; }

// The query of one token in shared memory: the columns of the product, and what each head weighs.
struct Query {
  uint16_t columns[kMaxHeads * kIndexDim];
  float weights[kMaxHeads];
};

// Lays out the query of a token as the columns of the product, by `kWarps` warps. A barrier must follow.
template <int kFormat, int kWarps>
FL_DEVICE void stage_query(const IndexScores& p, int64_t t, Query& query) {
  using Share = IndexShare<kFormat>;
  constexpr int kEach = (kMaxHeads / 8 + kWarps - 1) / kWarps;
  int g = lane_idx() / 4, q = lane_idx() % 4;
  const uint8_t* codes = p.codes + t * p.heads * Share::kCodeBytes;
  const uint8_t* scales = p.scales + t * p.heads * 4;
  Share share[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    int head = 8 * (kWarps * i + warp_idx()) + g;
    share[i].load(head < p.heads, codes + head * Share::kCodeBytes, scales + head * 4);
  }
  if ((int)threadIdx.x < kMaxHeads) {
    int head = threadIdx.x;
    float w = head < p.heads ? p.weights[t * p.heads + head] : 0.0f;
    if (kFormat == kIndexFp8 && head < p.heads) w *= ((const float*)scales)[head];
    query.weights[head] = w;
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    int n = kWarps * i + warp_idx();
    if (n >= kMaxHeads / 8) continue;
#pragma unroll
    for (int step = 0; step < Share::kSteps; ++step) {
      uint32_t low, high;
      share[i].pairs(step, low, high);
      *(uint32_t*)(query.columns + core_matrix(2 * step, n) + 8 * g + 2 * q) = low;
      *(uint32_t*)(query.columns + core_matrix(2 * step + 1, n) + 8 * g + 2 * q) = high;
    }
  }
  columns_written();
}

FL_DEVICE int tile_row(int tile, int i) { return tile * kGroupRows + 16 * (warp_idx() % 4) + lane_idx() / 4 + 8 * i; }

// The page ids of a lane's two rows of a tile as the table has them, to be checked when used; -1 past the visible rows.
struct Pages {
  int32_t id[2];

  FL_DEVICE void find(const IndexScores& p, int64_t request, int tile, int visible) {
    const int32_t* table = p.keys.table + request * p.keys.width;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      int row = tile_row(tile, i), page_rows = p.keys.page_rows;
      int number = page_rows == kGroupRows ? tile : (int)((uint32_t)row / (uint32_t)page_rows);
      id[i] = -1;
      if (row < visible) id[i] = table[number];
    }
  }

  FL_DEVICE bool valid(const IndexScores& p, int i) const { return id[i] >= 0 && id[i] < p.keys.pages; }
};

// Scores a tile into `logits`, by row; nothing past the visible rows.
template <int kFormat>
FL_DEVICE void score_rows(const IndexShare<kFormat> (&rows)[2], const IndexScores& p, const Pages& pages, int tile,
                          int visible, const Query& query, float* logits) {
  constexpr int kSteps = IndexShare<kFormat>::kSteps;
  uint32_t left[kSteps][4];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    rows[0].pairs(step, left[step][0], left[step][2]);
    rows[1].pairs(step, left[step][1], left[step][3]);
  }
  float c[8][4];
  warpgroup_multiply<kSteps>(c, left, query.columns);
  int q = lane_idx() % 4;
  float sums[2] = {0.0f, 0.0f};
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    float2 w = *(const float2*)(query.weights + 8 * n + 2 * q);
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

// A warpgroup's way over every `stride`-th tile from `first` to end - 1 of a token. The keys of the next `kDepth` tiles are
// on their way while one is scored, each in a place in shared memory that its thread alone knows.
template <int kFormat, int kDepth>
struct Tiles {
  using Share = IndexShare<kFormat>;
  static constexpr int kRowBytes = kGroupThreads * Share::kPlaceBytes;
  static constexpr int kRingBytes = kDepth * 2 * kRowBytes;

  const IndexScores& p;
  int64_t request;
  int first, end, stride, visible;
  uint8_t* ring;
  Pages ahead;

  FL_DEVICE Tiles(const IndexScores& p, int64_t t, int first, int end, int stride, int visible, uint8_t* ring)
      : p(p), request((uint32_t)t / (uint32_t)p.per_request), first(first), end(end), stride(stride), ring(ring) {
    this->visible = min(visible, end * kGroupRows);  // Of others' tiles nothing is loaded.
    Pages pages[kDepth];
#pragma unroll
    for (int d = 0; d < kDepth; ++d) pages[d].find(p, request, first + d * stride, this->visible);
    ahead.find(p, request, first + kDepth * stride, this->visible);
#pragma unroll
    for (int d = 0; d < kDepth; ++d) fetch(d, pages[d], first + d * stride);
  }

  FL_DEVICE void fetch(int slot, const Pages& pages, int tile) {
    uint32_t per_page = p.keys.page_rows;
    int64_t page_bytes = index_page_bytes(kFormat, p.keys.page_rows);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t row = tile_row(tile, i), at = per_page == kGroupRows ? row % kGroupRows : row % per_page;
      bool valid = pages.valid(p, i);
      const uint8_t* page = p.keys.pool + (valid ? pages.id[i] : 0) * page_bytes;
      Share::template fetch<kGroupThreads>(ring + (2 * slot + i) * kRowBytes, threadIdx.x % kGroupThreads, valid,
                                           page + at * Share::kCodeBytes, page + per_page * Share::kCodeBytes + at * 4);
    }
    close_copies();
  }

  // Once the query is staged.
  FL_DEVICE void score(const Query& query, float* logits) {
    int slot = 0;
#pragma unroll 1
    for (int tile = first; tile < end; tile += stride) {
      Pages here;  // For what is masked; the keys have been asked for long since.
      here.find(p, request, tile, visible);
      Share rows[2];
      wait_copies<kDepth - 1>();
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        rows[i].template take<kGroupThreads>(ring + (2 * slot + i) * kRowBytes, threadIdx.x % kGroupThreads);
      }
      fetch(slot, ahead, tile + kDepth * stride);
      ahead.find(p, request, tile + (kDepth + 1) * stride, visible);
      score_rows(rows, p, here, tile, visible, query, logits);
      slot = slot + 1 == kDepth ? 0 : slot + 1;
    }
    wait_copies<0>();  // The ring is free for others.
  }
};

// Element `d` of a vector, its scale applied.
FL_DEVICE float element(const uint8_t* codes, const uint8_t* scales, int format, int d) {
  if (format == kIndexBf16) return bf16_to_float(((const uint16_t*)codes)[d]);
  if (format == kIndexFp8) return e4m3_to_float(codes[d]) * *(const float*)scales;
  return e2m1_to_float(codes[d / 2] >> (4 * (d % 2)) & 15) * ue8m0_to_float(scales[d / 32]);
}

// The readable way: one row by one thread, heads and dims in ascending order.
FL_DEVICE float score_row(const IndexScores& p, int64_t t, int row) {
  int32_t id = page_of(p.keys, (uint32_t)t / (uint32_t)p.per_request, row);
  if (id < 0) return -INFINITY;
  const uint8_t* page = p.keys.pool + id * index_page_bytes(p.format, p.keys.page_rows);
  int at = row % p.keys.page_rows, bytes = index_code_bytes(p.format);
  const uint8_t *codes = page + at * bytes, *scales = page + p.keys.page_rows * bytes + at * 4;
  float score = 0.0f;
  for (int h = 0; h < p.heads; ++h) {
    int64_t head = t * p.heads + h;
    const uint8_t *query = p.codes + head * bytes, *query_scales = p.scales + head * 4;
    float dot = 0.0f;
    for (int d = 0; d < kIndexDim; ++d) {
      dot = fmaf(element(query, query_scales, p.format, d), element(codes, scales, p.format, d), dot);
    }
    score = fmaf(p.scale * p.weights[head], dot < 0.0f ? 0.0f : dot, score);
  }
  return score;
}
