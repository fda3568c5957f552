// experts: the routed experts of a step in two launches: gate/up with clamped SwiGLU and the routing weight, then down with
// the sum over a token's experts and the shared expert.
//
// Bytes: every active expert's weights once: 14.2 MB an expert in NVFP4 at 4096 x 2048, two thirds of it in `experts_up`.
// Notes: (1) tokens stand on the narrow side of the matrix instruction, so one token and eight cost the same; (2) a block
// of `experts_up` owns one expert and 8 output columns (8 gate rows and 8 up rows): its warps share out K in chunks of 128
// and add in warp order; the grid's second axis is the s-th active expert, found from the ids on the device, so a captured
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

namespace {

// One item of work: an expert and which of its passes of 32 pairs.
struct Item {
  int32_t expert, pass;
};

FL_DEVICE void clear_words(uint32_t* words, int count) {
  for (int i = threadIdx.x; i < count; i += kThreads) words[i] = 0;
}

// The index of the s-th set bit of `words`, or -1. One thread.
FL_DEVICE int nth_active(const uint32_t* words, int s) {
  for (int w = 0; w < kMaxExperts / 32; ++w) {
    uint32_t bits = words[w];
    int count = __popc(bits);
    if (s >= count) {
      s -= count;
      continue;
    }
    for (; s > 0; --s) bits &= bits - 1;
    return 32 * w + __ffs((int)bits) - 1;
  }
  return -1;
}

// A warp collects, in order, the pairs begin..end (a pair is token * k + i) that chose `expert`: of those the ones from
// `skip` on, at most kPass. Gives the number collected.
FL_DEVICE int collect(const int32_t* ids, int begin, int end, int expert, int skip, int32_t* pairs) {
  int seen = 0;
  for (int start = begin; start < end; start += kWarp) {
    int pair = start + lane_idx();
    bool chosen = pair < end && ids[pair] == expert;
    unsigned votes = __ballot_sync(kFullMask, chosen);
    int place = seen + __popc(votes & ((1u << lane_idx()) - 1)) - skip;
    if (chosen && place >= 0 && place < kPass) pairs[place] = pair;
    seen += __popc(votes);
  }
  __syncwarp();
  return max(0, min(seen - skip, kPass));
}

}  // namespace

FL_KERNEL(kThreads, experts_up, ExpertsUpParams) {
  __shared__ uint32_t active[kMaxExperts / 32];
  __shared__ int32_t pairs[kPass];
  __shared__ int32_t shared_expert, shared_count;
  __shared__ float partial[kWarps * kSums];
  pdl_wait();
  int total = p.rows * p.k, g = lane_idx() / 4;
  clear_words(active, kMaxExperts / 32);
  __syncthreads();
  for (int i = threadIdx.x; i < total; i += kThreads) {
    int32_t id = p.ids[i];
    if (id >= 0 && id < p.experts) {
      atomicOr(&active[id / 32], 1u << (id % 32));
    } else if (blockIdx.y == 0) {
      for (int n = blockIdx.x * 8; n < min((int)(blockIdx.x + 1) * 8, p.width); ++n) p.h[(int64_t)i * p.width + n] = 0;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) shared_expert = nth_active(active, blockIdx.y);
  __syncthreads();
  int expert = shared_expert;
  if (expert < 0) return;

  int base = blockIdx.x * 8, row = min(base + g, p.width - 1);
  TileRows rows = tile_rows(p.weight, expert, 2 * p.width, p.hidden, row, p.width + row);
  float global = p.weight.format == kWeightNvfp4 ? p.weight.global[expert] : 1.0f;
  for (int skip = 0;; skip += kPass) {
    if (warp_idx() == 0) {
      int count = collect(p.ids, 0, total, expert, skip, pairs);
      if (lane_idx() == 0) shared_count = count;
    }
    __syncthreads();
    int count = shared_count;
    if (count == 0) return;
    const uint16_t* x[kTiles];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      int at = n * kTileCols + g;
      x[n] = at < count ? p.x + (int64_t)(pairs[at] / p.k) * p.hidden : nullptr;
    }
    float acc[kTiles][4] = {};
    if (count <= kTileCols) {
      const uint16_t* const one[1] = {x[0]};
      float narrow[1][4] = {};
      tile_product_any<1>(narrow, p.weight.format, rows, one, p.hidden, warp_idx(), kWarps);
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[0][i] = narrow[0][i];
    } else {
      tile_product_any<kTiles>(acc, p.weight.format, rows, x, p.hidden, warp_idx(), kWarps);
    }
    tile_spill<kTiles>(acc, partial + warp_idx() * kSums);
    __syncthreads();
    for (int i = threadIdx.x; i < count * 8; i += kThreads) {
      int r = i % 8, column = i / 8;
      if (base + r >= p.width) continue;
      float gate = 0.0f, up = 0.0f;
      for (int w = 0; w < kWarps; ++w) {
        gate += partial[w * kSums + column * kTilePitch + r];
        up += partial[w * kSums + column * kTilePitch + r + 8];
      }
      float value = swiglu(gate * global, up * global, p.limit) * p.weights[pairs[column]];
      p.h[(int64_t)pairs[column] * p.width + base + r] = float_to_bf16(value);
    }
    __syncthreads();
  }
}

FL_KERNEL(kThreads, experts_down, ExpertsDownParams) {
  __shared__ uint32_t counts[kMaxExperts];
  __shared__ Item items[kMaxPairs];
  __shared__ int32_t shared_items;
  __shared__ int32_t pairs[kWarps][kPass];
  __shared__ int32_t pair_count[kWarps];
  __shared__ float acc_rows[kGroupTokens * kTileRows];
  FL_DYNAMIC_SHARED(raw);
  float* partial = (float*)raw;
  pdl_wait();
  int first_token = blockIdx.x * kGroupTokens, base = blockIdx.y * kTileRows;
  int tokens = min(kGroupTokens, p.rows - first_token);
  int begin = first_token * p.k, end = begin + tokens * p.k;
  int g = lane_idx() / 4, warp = warp_idx();

  clear_words(counts, kMaxExperts);
  for (int i = threadIdx.x; i < kGroupTokens * kTileRows; i += kThreads) acc_rows[i] = 0.0f;
  __syncthreads();
  for (int i = begin + threadIdx.x; i < end; i += kThreads) {
    int32_t id = p.ids[i];
    if (id >= 0 && id < p.experts) atomicAdd(&counts[id], 1u);
  }
  __syncthreads();
  if (warp == 0) {
    int placed = 0;
    for (int start = 0; start < kMaxExperts; start += kWarp) {
      int passes = ((int)counts[start + lane_idx()] + kPass - 1) / kPass, all;
      int at = placed + warp_exclusive_sum(passes, all);
      for (int i = 0; i < passes; ++i) items[at + i] = Item{start + lane_idx(), i};
      placed += all;
    }
    if (lane_idx() == 0) shared_items = placed;
  }
  __syncthreads();

  int total = shared_items;
  for (int round = 0; round < total; round += kWarps) {
    int count = 0;
    if (round + warp < total) {
      Item item = items[round + warp];
      count = collect(p.ids, begin, end, item.expert, item.pass * kPass, pairs[warp]);
      int a = min(base + g, p.hidden - 1), b = min(base + g + 8, p.hidden - 1);
      TileRows rows = tile_rows(p.weight, item.expert, p.hidden, p.width, a, b);
      const uint16_t* x[kTiles];
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        int at = n * kTileCols + g;
        x[n] = at < count ? p.h + (int64_t)pairs[warp][at] * p.width : nullptr;
      }
      float acc[kTiles][4] = {};
      if (count <= kTileCols) {
        const uint16_t* const one[1] = {x[0]};
        float narrow[1][4] = {};
        tile_product_any<1>(narrow, p.weight.format, rows, one, p.width, 0, 1);
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[0][i] = narrow[0][i];
      } else {
        tile_product_any<kTiles>(acc, p.weight.format, rows, x, p.width, 0, 1);
      }
      float global = p.weight.format == kWeightNvfp4 ? p.weight.global[item.expert] : 1.0f;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[n][i] *= global;
      }
      tile_spill<kTiles>(acc, partial + warp * kSums);
    }
    if (lane_idx() == 0) pair_count[warp] = count;
    __syncthreads();
    // A thread owns one row of every 16th token and adds in item order, then in pair order.
    int r = threadIdx.x % kTileRows, mine = threadIdx.x / kTileRows;
    for (int w = 0; w < kWarps; ++w) {
      for (int n = 0; n < pair_count[w]; ++n) {
        int token = pairs[w][n] / p.k - first_token;
        if (token % (kThreads / kTileRows) != mine) continue;
        acc_rows[token * kTileRows + r] += partial[w * kSums + n * kTilePitch + r];
      }
    }
    __syncthreads();
  }

  for (int i = threadIdx.x; i < tokens * kTileRows; i += kThreads) {
    int r = i % kTileRows, token = first_token + i / kTileRows;
    if (base + r >= p.hidden) continue;
    int64_t at = (int64_t)token * p.hidden + base + r;
    p.y[at] = float_to_bf16(acc_rows[i] + bf16_to_float(p.shared[at]));
  }
}
