// Scores of index keys, sum_h scale w_h relu(q_h . key): tiles of 64 rows, a page each, by a warpgroup, or a row by a thread.
#pragma once

#include "bulk.h"
#include "chosen.h"
#include "index_scores.h"
#include "index_share.h"
#include "lookup.h"
#include "warpgroup.h"

constexpr int kMaxHeads = kGroupCols;
// Whether registers have room for a lane's weights of heads beside the matrix fragments.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr bool kHoldWeights = true;
#else
constexpr bool kHoldWeights = false;
#endif

FL_DEVICE int visible_keys(const IndexScores& p, int64_t t) {
  return visible_rows(p.position[t], (int64_t)p.keys.width * p.keys.page_rows);
}

FL_DEVICE int tiles_of(int rows) { return (rows + kGroupRows - 1) / kGroupRows; }

// The query of one token in shared memory: the columns of the product, and what each head weighs.
struct Query {
  uint16_t columns[kMaxHeads * kIndexDim];
  float weights[kMaxHeads];
};

// A thread's part of a query on its way there, among `kWarps` warps.
template <int kFormat, int kWarps>
struct QueryPart {
  using Share = IndexShare<kFormat>;
  static constexpr int kEach = (kMaxHeads / 8 + kWarps - 1) / kWarps;
  Share share[kEach];
  float weight = 0.0f, weight_scale = 1.0f;

  FL_DEVICE QueryPart(const IndexScores& p, int64_t t) {
    const uint8_t* codes = p.codes + t * p.heads * Share::kCodeBytes;
    const uint32_t* scales = (const uint32_t*)p.scales + t * p.heads;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      int head = 8 * (kWarps * i + warp_idx()) + lane_idx() / 4;
      share[i].clear();
      if (head >= p.heads) continue;
      share[i].load(codes + head * Share::kCodeBytes);
      if (Share::kScaleBytes > 0) share[i].scale = scales[head];
    }
    int head = threadIdx.x;
    if (head < p.heads) weight = p.weights[t * p.heads + head];
    if (kFormat == kIndexFp8 && head < p.heads) weight_scale = bits_float(scales[head]);
  }

  // A barrier must follow.
  FL_DEVICE void write(Query& query) const {
    if ((int)threadIdx.x < kMaxHeads) query.weights[threadIdx.x] = weight * weight_scale;
    int within = 8 * (lane_idx() / 4) + 2 * (lane_idx() % 4);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      int n = kWarps * i + warp_idx();
      if (n >= kMaxHeads / 8) continue;
#pragma unroll
      for (int step = 0; step < Share::kSteps; ++step) {
        uint32_t low, high;
        share[i].template pairs<false>(step, low, high);
        *(uint32_t*)(query.columns + core_matrix(2 * step, n) + within) = low;
        *(uint32_t*)(query.columns + core_matrix(2 * step + 1, n) + within) = high;
      }
    }
    columns_written();
  }
};

// What the threads of a warpgroup tell each other about its ring of tiles.
constexpr int kMostTiles = 8;
struct Signals {
  uint64_t full[kMostTiles];
  uint64_t met;
  int32_t there[kMostTiles];  // 0 for a masked page, of which nothing is read.
};

// One thread; then a block barrier.
FL_DEVICE void make_signals(Signals* all, int count) {
  for (int i = 0; i < count; ++i) {
    barrier_init(all[i].full, kMostTiles, 1);
    barrier_init(&all[i].met, 1, kGroupThreads);
  }
  barriers_made();
}

// A warpgroup's way over every `stride`-th tile of a token, or of a line of tokens' tiles. The keys of the next `kDepth` tiles
// are on their way to shared memory while one is scored; lane i % 32 of the first warp looks up and asks for tile i.
template <int kFormat, int kDepth>
struct Tiles {
  using Share = IndexShare<kFormat>;
  // Rows 32 .. 63 lie 64 bytes further than rows 0 .. 31 would have them, so that the quarters of two rows, one of each half, are
  // in banks of their own. The scales follow them, as in the page.
  static constexpr int kHalfCodes = kGroupRows / 2 * Share::kCodeBytes, kUpper = kHalfCodes + 64, kScales = kUpper + kHalfCodes;
  static constexpr int kScaleBytes = kGroupRows * Share::kScaleBytes;
  static constexpr int kSlotBytes = (kScales + kScaleBytes + 127) / 128 * 128;
  static constexpr int kRingBytes = kDepth * kSlotBytes;
  static_assert(kDepth <= kMostTiles, "signals for each slot");

  const IndexScores& p;
  uint8_t* ring;
  Signals& signals;
  int tokens;  // Where the line ends; 0 if it is one token's tiles.
  int stride, count;
  uint32_t taken = 0;  // Tiles, by this thread.
  // The lane's next tile: where, of how many rows, and its page, none if that is masked.
  int token, tile, rows;
  const uint8_t* page;

  // From tile `tile` of token `token` on, `count` tiles at most. The first pages are looked up, for which a lone token's length
  // need not be known yet.
  FL_DEVICE Tiles(const IndexScores& p, int tokens, int token, int tile, int stride, int count, uint8_t* ring, Signals& signals)
      : p(p), ring(ring), signals(signals), tokens(tokens), stride(stride), count(count), token(token), tile(tile + lane_idx() * stride) {
    if (warp_idx() % 4 == 0) look_up();
  }

  // Once the signals are made.
  FL_DEVICE void start() {
    if (warp_idx() % 4 == 0 && lane_idx() < min(kDepth, count)) fetch(lane_idx());
  }

  FL_DEVICE void look_up() {
    while (token < tokens) {
      int others = tiles_of(visible_keys(p, token));
      if (tile < others) break;
      tile -= others, ++token;
    }
    page = nullptr, rows = 0;
    if (tile >= p.keys.width || (tokens > 0 && token >= tokens)) return;
    int32_t id = p.keys.table[(int64_t)((uint32_t)token / (uint32_t)p.per_request) * p.keys.width + tile];
    if (id >= 0 && id < p.keys.pages) page = p.keys.pool + id * index_page_bytes(kFormat, kGroupRows);
    rows = min(kGroupRows, visible_keys(p, token) - tile * kGroupRows);
  }

  // Asks for the lane's tile.
  FL_DEVICE void fetch(int slot) {
    uint8_t* to = ring + slot * kSlotBytes;
    uint64_t* full = signals.full + slot;
    if (rows <= 0) return;
    signals.there[slot] = page != nullptr;
    if (page == nullptr) {
      barrier_arrive(full);
    } else if (rows == kGroupRows) {
      barrier_expect(full, 2 * kHalfCodes + kScaleBytes);
      copy_bulk(to, page, kHalfCodes, full);
      copy_bulk(to + kUpper, page + kHalfCodes, kHalfCodes + kScaleBytes, full);
    } else {
      fetch_some(to, full);
    }
  }

  // Nothing of rows that are not visible is read: the last scales are no whole run.
  FL_DEVICE void fetch_some(uint8_t* to, uint64_t* full) {
    const uint8_t* scales = page + 2 * kHalfCodes;
    int runs = rows * Share::kScaleBytes / 16 * 16, lower = min(rows, kGroupRows / 2);
#pragma unroll 1
    for (int at = runs; at < rows * Share::kScaleBytes; at += 4) *(uint32_t*)(to + kScales + at) = *(const uint32_t*)(scales + at);
    barrier_expect(full, rows * Share::kCodeBytes + runs);
    copy_bulk(to, page, lower * Share::kCodeBytes, full);
    if (rows > lower) copy_bulk(to + kUpper, page + kHalfCodes, (rows - lower) * Share::kCodeBytes, full);
    if (runs > 0) copy_bulk(to + kScales, scales, runs, full);
  }

  // Fills the slot of the last keys again.
  FL_DEVICE void refill() {
    if (warp_idx() % 4 != 0) return;
    uint32_t next = taken - 1 + kDepth;
    if (next % kWarp == 0) {
      tile += kWarp * stride;
      look_up();
    }
    if (lane_idx() == (int)(next % kWarp) && (int)next < count) fetch((int)(next % kDepth));
  }

  // The first of the rows of a tile that this lane has in the matrix fragments; the second follows.
  FL_DEVICE static int own_row() { return 32 * (lane_idx() / 4 % 2) + 8 * (warp_idx() % 4) + lane_idx() / 8 * 2; }

  // Takes the next slot's keys, all threads theirs; whether there are any.
  FL_DEVICE bool take(Share (&keys)[2]) {
    int at = (int)(taken % kDepth), row = own_row();
    const uint8_t* slot = ring + at * kSlotBytes;
    barrier_wait(signals.full + at, (int)(taken / kDepth % 2));
    bool there = signals.there[at] != 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) keys[i].load(slot + row / 32 * kUpper + (row % 32 + i) * Share::kCodeBytes);
    if (Share::kScaleBytes > 0) {
      uint2 scales = *(const uint2*)(slot + kScales + row * 4);
      keys[0].scale = scales.x, keys[1].scale = scales.y;
    }
    warpgroup_sync(&signals.met, taken++);
    return there;
  }

  // Scores the way's tiles from `tile` to end - 1 of a token into `logits`, nothing past the visible rows; the first that was not
  // scored.
  FL_DEVICE int score(int tile, int end, int visible, const Query& query, float* logits) {
    int q = lane_idx() % 4;
    float2 weights[8];
    if (kHoldWeights) load_weights(query, weights);
#pragma unroll 1
    for (; tile < end; tile += stride) {
      Share keys[2];
      uint32_t left[Share::kSteps][4];
      float c[8][4], sums[2];
      bool there = take(keys);
      unpack(keys, left);
      warpgroup_multiply<Share::kHalf>(c, left, query.columns);
      refill();  // While the matrix unit works.
      warpgroup_wait(c, left);
      if (!kHoldWeights) load_weights(query, weights);
      add_heads(c, weights, sums);
      int row = tile * kGroupRows + own_row();
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (q == 0 && row + i < visible) logits[row + i] = there ? p.scale * (sums[i] * keys[i].outer_scale()) : -INFINITY;
      }
    }
    return tile;
  }

  // Meets once more if other warpgroups of a block that shares out `tiles` one by one do. For racecheck: it counts a thread's
  // barriers, whichever they are, and takes threads of unequal counts for unordered ever after.
  FL_DEVICE void meet_until(int tiles) {
    if ((int)taken < (tiles + stride - 1) / stride) warpgroup_sync(&signals.met, taken++);
  }

  FL_DEVICE static void unpack(const Share (&keys)[2], uint32_t (&left)[Share::kSteps][4]) {
    bool large = kFormat == kIndexFp4 && max(keys[0].own_scale(), keys[1].own_scale()) > kSmallScale;
    if (__any_sync(kFullMask, large)) {
      unpack_with<false>(keys, left);
    } else {
      unpack_with<true>(keys, left);
    }
  }

  template <bool kSmall>
  FL_DEVICE static void unpack_with(const Share (&keys)[2], uint32_t (&left)[Share::kSteps][4]) {
#pragma unroll
    for (int step = 0; step < Share::kSteps; ++step) {
      keys[0].template pairs<kSmall>(step, left[step][0], left[step][2]);
      keys[1].template pairs<kSmall>(step, left[step][1], left[step][3]);
    }
  }

  FL_DEVICE static void load_weights(const Query& query, float2 (&weights)[8]) {
#pragma unroll
    for (int n = 0; n < 8; ++n) weights[n] = *(const float2*)(query.weights + 8 * n + 2 * (lane_idx() % 4));
  }

  // By head in a lane, then over the four lanes of a row.
  FL_DEVICE static void add_heads(const float (&c)[8][4], const float2 (&weights)[8], float (&sums)[2]) {
    sums[0] = sums[1] = 0.0f;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        sums[i] = fmaf(weights[n].x, relu(c[n][2 * i]), sums[i]);
        sums[i] = fmaf(weights[n].y, relu(c[n][2 * i + 1]), sums[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      sums[i] += __shfl_xor_sync(kFullMask, sums[i], 1);
      sums[i] += __shfl_xor_sync(kFullMask, sums[i], 2);
    }
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
