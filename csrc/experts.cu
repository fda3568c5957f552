// experts: the routed experts of a step in two launches: gate/up with clamped SwiGLU and the routing weight, then down with
// the sum over a token's experts and the shared expert.
//
// Bytes: every active expert's weights once: 14.2 MB an expert in NVFP4 at 4096 x 2048, two thirds of it in `experts_up`.
// Notes: (1) tokens stand on the narrow side of the matrix instruction, so one token and eight cost the same; (2) a block
// of `experts_up` owns one expert and 32 output columns, 8 at a time (8 gate rows and 8 up rows): its warps share out K in
// chunks of 128 and add in warp order; `experts_up_8` and `experts_up_32` differ in the tokens that a loaded weight serves; the grid's second axis is the s-th active expert, found from the ids on the device, so a captured
// launch fits every routing; (3) a block of `experts_down` owns 16 output rows of up to 64 tokens and walks the active experts
// in ascending order, a warp an expert: sums meet in shared memory in that order, with no atomics; (4) no sum depends on the
// number of tokens or on their places; (5) ids outside 0..experts are skipped; an expert with no token costs nothing.
#include "experts.h"

#include "common/order.h"
#include "common/pdl.h"
#include "common/tile.h"

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kMaxExperts = 1024;
constexpr int kTiles = 4;
constexpr int kPass = kTiles * kTileCols;
constexpr int kGroupTokens = 64;
constexpr int kMaxPairs = 1024;
constexpr int kSums = kPass * kTilePitch;
// Columns of a block of `experts_up`, 8 at a time.
constexpr int kUpColumns = 32;

namespace {

// One item of work: an expert and which of its passes of 32 pairs.
struct Item {
  int32_t expert, pass;
};

FL_DEVICE void clear_words(uint32_t* words, int count) {
  for (int i = threadIdx.x; i < count; i += kThreads) words[i] = 0;
}

// The index of the s-th set bit of `words`, one word a lane, or -1; to every lane of the warp.
FL_DEVICE int nth_active(const uint32_t* words, int s) {
  static_assert(kMaxExperts == kWarp * 32, "one word a lane");
  uint32_t bits = words[lane_idx()];
  int total, before = warp_exclusive_sum(__popc(bits), total);
  bool mine = s >= before && s < before + __popc(bits);
  for (int skip = s - before; mine && skip > 0; --skip) bits &= bits - 1;
  unsigned votes = __ballot_sync(kFullMask, mine);
  int index = 32 * lane_idx() + __ffs((int)bits) - 1;
  return votes == 0 ? -1 : __shfl_sync(kFullMask, index, __ffs((int)votes) - 1);
}

// A warp collects, in order, the pairs begin..end (a pair is token * k + i) that chose `expert`: of those the ones from
// `skip` on, at most `limit`. Gives the number collected.
FL_DEVICE int collect(const int32_t* ids, int begin, int end, int expert, int skip, int limit, int32_t* pairs) {
  int seen = 0;
  for (int start = begin; start < end; start += kWarp) {
    int pair = start + lane_idx();
    bool chosen = pair < end && ids[pair] == expert;
    unsigned votes = __ballot_sync(kFullMask, chosen);
    int place = seen + __popc(votes & ((1u << lane_idx()) - 1)) - skip;
    if (chosen && place >= 0 && place < limit) pairs[place] = pair;
    seen += __popc(votes);
  }
  __syncwarp();
  return max(0, min(seen - skip, limit));
}

// What the blocks of `experts_up` share within themselves.
struct UpShared {
  uint32_t active[kMaxExperts / 32];
  int32_t pairs[kPass];
  int32_t expert, count;
};

// Marks the experts that are chosen; pairs with none get a row of zeros, in the columns of this block.
FL_DEVICE void find_active(const ExpertsUpParams& p, int first_column, int end_column, UpShared& s) {
  clear_words(s.active, kMaxExperts / 32);
  __syncthreads();
  for (int i = threadIdx.x; i < p.rows * p.k; i += kThreads) {
    int32_t id = p.ids[i];
    if (id >= 0 && id < p.experts) {
      atomicOr(&s.active[id / 32], 1u << (id % 32));
    } else if (blockIdx.y == 0) {
      for (int n = first_column; n < end_column; ++n) p.h[(int64_t)i * p.width + n] = 0;
    }
  }
  __syncthreads();
}

// The sums of one tile of 8 columns for `count` pairs, to h.
template <int kWide>
FL_DEVICE void up_tile(const ExpertsUpParams& p, int base, const uint16_t* const (&x)[kWide], const UpShared& s,
                       float global, float* partial) {
  constexpr int kTileSums = kWide * kTileCols * kTilePitch;
  int g = lane_idx() / 4, row = min(base + g, p.width - 1);
  TileRows rows = tile_rows(p.weight, s.expert, 2 * p.width, p.hidden, row, p.width + row);
  float acc[kWide][4] = {};
  tile_product_any<kWide, 1>(acc, p.weight.format, rows, x, p.hidden, warp_idx(), kWarps);
  tile_spill<kWide>(acc, partial + warp_idx() * kTileSums);
  __syncthreads();
  for (int i = threadIdx.x; i < s.count * 8; i += kThreads) {
    int r = i % 8, column = i / 8;
    if (base + r >= p.width) continue;
    float gate = 0.0f, up = 0.0f;
    for (int w = 0; w < kWarps; ++w) {
      gate += partial[w * kTileSums + column * kTilePitch + r];
      up += partial[w * kTileSums + column * kTilePitch + r + 8];
    }
    float value = swiglu(gate * global, up * global, p.limit) * p.weights[s.pairs[column]];
    p.h[(int64_t)s.pairs[column] * p.width + base + r] = float_to_bf16(value);
  }
  __syncthreads();
}

template <int kWide>
FL_DEVICE void up_body(const ExpertsUpParams& p, UpShared& s, float* partial) {
  int g = lane_idx() / 4, total = p.rows * p.k;
  int first_column = blockIdx.x * kUpColumns, end_column = min(first_column + kUpColumns, p.width);
  find_active(p, first_column, end_column, s);
  if (warp_idx() == 0) {
    int expert = nth_active(s.active, blockIdx.y);
    if (lane_idx() == 0) s.expert = expert;
  }
  __syncthreads();
  if (s.expert < 0) return;
  float global = p.weight.format == kWeightNvfp4 ? p.weight.global[s.expert] : 1.0f;
  for (int skip = 0;; skip += kWide * kTileCols) {
    if (warp_idx() == 0) {
      int count = collect(p.ids, 0, total, s.expert, skip, kWide * kTileCols, s.pairs);
      if (lane_idx() == 0) s.count = count;
    }
    __syncthreads();
    if (s.count == 0) return;
    const uint16_t* x[kWide];
#pragma unroll
    for (int n = 0; n < kWide; ++n) {
      int at = n * kTileCols + g;
      x[n] = at < s.count ? p.x + (int64_t)(s.pairs[at] / p.k) * p.hidden : nullptr;
    }
    for (int base = first_column; base < end_column; base += 8) up_tile<kWide>(p, base, x, s, global, partial);
  }
}

struct DownShared {
  uint32_t counts[kMaxExperts];
  Item items[kMaxPairs];
  int32_t num_items;
  int32_t pairs[kWarps][kPass];
  int32_t pair_count[kWarps];
  float rows[kGroupTokens * kTileRows];
};

// Lists the work of a group of tokens: each expert that they chose, as often as it takes `pass` pairs at a time.
FL_DEVICE void list_items(const ExpertsDownParams& p, int begin, int end, int pass, DownShared& s) {
  clear_words(s.counts, kMaxExperts);
  __syncthreads();
  for (int i = begin + threadIdx.x; i < end; i += kThreads) {
    int32_t id = p.ids[i];
    if (id >= 0 && id < p.experts) atomicAdd(&s.counts[id], 1u);
  }
  __syncthreads();
  if (warp_idx() == 0) {
    int placed = 0;
    for (int start = 0; start < kMaxExperts; start += kWarp) {
      int passes = ((int)s.counts[start + lane_idx()] + pass - 1) / pass, all;
      int at = placed + warp_exclusive_sum(passes, all);
      for (int i = 0; i < passes; ++i) s.items[at + i] = Item{start + lane_idx(), i};
      placed += all;
    }
    if (lane_idx() == 0) s.num_items = placed;
  }
  __syncthreads();
}

// A warp: the sums of one item, to `partial`.
template <int kWide>
FL_DEVICE int down_item(const ExpertsDownParams& p, const Item& item, int begin, int end, int base, int32_t* pairs,
                        float* partial) {
  int g = lane_idx() / 4;
  int count = collect(p.ids, begin, end, item.expert, item.pass * kWide * kTileCols, kWide * kTileCols, pairs);
  int a = min(base + g, p.hidden - 1), b = min(base + g + 8, p.hidden - 1);
  TileRows rows = tile_rows(p.weight, item.expert, p.hidden, p.width, a, b);
  const uint16_t* x[kWide];
#pragma unroll
  for (int n = 0; n < kWide; ++n) {
    int at = n * kTileCols + g;
    x[n] = at < count ? p.h + (int64_t)pairs[at] * p.width : nullptr;
  }
  float acc[kWide][4] = {};
  tile_product_any<kWide, 1>(acc, p.weight.format, rows, x, p.width, 0, 1);
  float global = p.weight.format == kWeightNvfp4 ? p.weight.global[item.expert] : 1.0f;
#pragma unroll
  for (int n = 0; n < kWide; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[n][i] *= global;
  }
  tile_spill<kWide>(acc, partial);
  return count;
}

template <int kWide>
FL_DEVICE void down_body(const ExpertsDownParams& p, DownShared& s, float* partial) {
  constexpr int kItemSums = kWide * kTileCols * kTilePitch;
  int first_token = blockIdx.x * kGroupTokens, base = blockIdx.y * kTileRows;
  int tokens = min(kGroupTokens, p.rows - first_token);
  int begin = first_token * p.k, end = begin + tokens * p.k;
  int warp = warp_idx();
  for (int i = threadIdx.x; i < kGroupTokens * kTileRows; i += kThreads) s.rows[i] = 0.0f;
  list_items(p, begin, end, kWide * kTileCols, s);

  int total = s.num_items;
  for (int round = 0; round < total; round += kWarps) {
    int count = 0;
    if (round + warp < total) {
      count = down_item<kWide>(p, s.items[round + warp], begin, end, base, s.pairs[warp], partial + warp * kItemSums);
    }
    if (lane_idx() == 0) s.pair_count[warp] = count;
    __syncthreads();
    // A thread owns one row of every 16th token and adds in item order, then in pair order.
    int r = threadIdx.x % kTileRows, mine = threadIdx.x / kTileRows;
    for (int w = 0; w < kWarps; ++w) {
      for (int n = 0; n < s.pair_count[w]; ++n) {
        int token = s.pairs[w][n] / p.k - first_token;
        if (token % (kThreads / kTileRows) != mine) continue;
        s.rows[token * kTileRows + r] += partial[w * kItemSums + n * kTilePitch + r];
      }
    }
    __syncthreads();
  }

  for (int i = threadIdx.x; i < tokens * kTileRows; i += kThreads) {
    int r = i % kTileRows, token = first_token + i / kTileRows;
    if (base + r >= p.hidden) continue;
    int64_t at = (int64_t)token * p.hidden + base + r;
    p.y[at] = float_to_bf16(s.rows[i] + bf16_to_float(p.shared[at]));
  }
}

}  // namespace

FL_KERNEL_BLOCKS(kThreads, 3, experts_up_8, ExpertsUpParams) {
  __shared__ UpShared s;
  __shared__ float partial[kWarps * kTileCols * kTilePitch];
  pdl_wait();
  up_body<1>(p, s, partial);
}

FL_KERNEL(kThreads, experts_up_32, ExpertsUpParams) {
  __shared__ UpShared s;
  __shared__ float partial[kWarps * kSums];
  pdl_wait();
  up_body<kTiles>(p, s, partial);
}

FL_KERNEL_BLOCKS(kThreads, 2, experts_down_8, ExpertsDownParams) {
  __shared__ DownShared s;
  FL_DYNAMIC_SHARED(partial);
  pdl_wait();
  down_body<1>(p, s, (float*)partial);
}

FL_KERNEL(kThreads, experts_down_32, ExpertsDownParams) {
  __shared__ DownShared s;
  FL_DYNAMIC_SHARED(partial);
  pdl_wait();
  down_body<kTiles>(p, s, (float*)partial);
}
