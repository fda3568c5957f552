// experts: the routed experts of a step in two launches: gate/up with clamped SwiGLU and the routing weight, then down with
// the sum over a token's experts and the shared expert.
//
// Bytes: every active expert's weights once: 14.2 MB an expert in NVFP4 at 4096 x 2048, two thirds of it in `experts_up`.
// Notes: (1) weights stream through a ring of stages in shared memory for each warp (common/warp_ring.h), which runs on
// across tiles and experts; each of a block's 8 warps has every eighth step of K, in `experts_down` counted through all
// experts, so that a narrow expert's few steps keep all warps busy too; (2) tokens stand on the narrow side of the matrix
// instruction, 8 at a time, so one token and eight cost the same; (3) `experts_up` spreads units of 16 columns (16 gate rows,
// 16 up rows) of the active experts evenly over a grid that fills the chip, and adds the warps' sums in order; (4) a block of
// `experts_down` owns 16 output rows of up to 64 tokens and walks the active experts in ascending order; each warp has its
// own sums over experts, added in warp order at the end, with no barrier on the way; (5) no sum depends on the number of
// tokens or on their places, nor on the number of blocks or stages; (6) ids outside 0..experts are skipped; an expert with no
// token costs nothing; (7) e2m1 in rows of 256 to 4,096 columns has kernels of its own in experts_fp4.cu.
#include "experts.h"

#include "common/pdl.h"
#include "common/routes.h"
#include "common/warp_ring.h"

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
// Stages of a warp's ring; `experts_up` takes two at a time, one of each of its tiles of 8 gate rows and 8 up rows.
constexpr int kUpStages = 4;
constexpr int kDownStages = 3;
constexpr int kUpTiles = 2;
constexpr int kUpColumns = 8 * kUpTiles;
constexpr int kSums = kTileCols * kTilePitch;

namespace {

// A slot of this warp's ring of so many stages: one stage, or several neighbouring ones.
template <int kStages, int kTiles>
struct Slots {
  static constexpr int kCount = kStages / kTiles, kRing = kWarps * kStages * kWarpStageBytes;

  FL_DEVICE static unsigned char* at(unsigned char* ring, int slot) {
    return ring + (warp_idx() * kStages + slot * kTiles) * kWarpStageBytes;
  }
  FL_DEVICE static int next(int slot) { return slot + 1 == kCount ? 0 : slot + 1; }
};
using UpSlots = Slots<kUpStages, kUpTiles>;
using DownSlots = Slots<kDownStages, 1>;

struct alignas(16) UpShared {
  Routes routes;
  uint16_t pairs[kWarps][kItemPairs];
};

// A place in the units of `experts_up`, of which `tiles` make up an item; and in the order in which a warp takes its steps.
struct UpCursor {
  int unit, item, tile, step;

  FL_DEVICE UpCursor(int first, int tiles) : unit(first), item(first / tiles), tile(first % tiles), step(warp_idx()) {}

  FL_DEVICE void next_unit(int tiles) {
    ++unit, step = warp_idx();
    if (++tile == tiles) tile = 0, ++item;
  }
};

template <int kFormat>
FL_DEVICE void up_fetch(const ExpertsUpParams& p, const Item* items, int last, int tiles, UpCursor& at, unsigned char* stage) {
  int steps = Step<kFormat>::count(p.hidden);
  if (at.unit < last && at.step < steps) {
#pragma unroll
    for (int m = 0; m < kUpTiles; ++m) {
      int base = at.tile * kUpColumns + m * 8, end = p.width - 1, width = p.width;
      auto row = [=](int r) { return min(base + r % 8, end) + (r < 8 ? 0 : width); };
      TileRows rows = tile_rows<kFormat>(p.weight, items[at.item].expert, 2 * p.width, p.hidden, row);
      warp_fetch<kFormat>(stage + m * kWarpStageBytes, rows, at.step, p.hidden);
    }
  }
  copies_commit();
  at.step += kWarps;
  if (at.step >= steps) at.next_unit(tiles);
}

// The block: sums of a unit's columns over the warps, to h.
FL_DEVICE void up_store(const ExpertsUpParams& p, const Item& item, int first_column, const float* partial,
                        const uint16_t* pairs, int first_pair) {
  float global = tile_scale(p.weight, item.expert);
  for (int i = threadIdx.x; i < item.count * kUpColumns; i += kThreads) {
    int r = i % 8, tile = i / 8 % kUpTiles, n = i / kUpColumns, column = first_column + tile * 8 + r;
    if (column >= p.width) continue;
    float gate = 0.0f, up = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float* sums = partial + (w * kUpTiles + tile) * kSums + n * kTilePitch;
      gate += sums[r];
      up += sums[r + 8];
    }
    int64_t pair = first_pair + pairs[n];
    float value = swiglu(gate * global, up * global, p.limit) * p.weights[pair];
    p.h[pair * p.width + column] = float_to_bf16(value);
  }
}

template <int kFormat>
FL_DEVICE void up_body(const ExpertsUpParams& p, const Item* items, const int16_t* kept, int first_pair, int num_pairs,
                       UpShared& s, float* partial, unsigned char* ring) {
  int tiles = (p.width + kUpColumns - 1) / kUpColumns, steps = Step<kFormat>::count(p.hidden), warp = warp_idx();
  int64_t units = (int64_t)s.routes.num_items * tiles;
  int first = (int)(units * blockIdx.x / gridDim.x), last = (int)(units * (blockIdx.x + 1) / gridDim.x);
  int slot = 0, into = 0, collected = -1;
  UpCursor at(first, tiles), ahead = at;
#pragma unroll 1
  for (; into < UpSlots::kCount - 1; ++into) up_fetch<kFormat>(p, items, last, tiles, ahead, UpSlots::at(ring, into));
  for (; at.unit < last; at.next_unit(tiles)) {
    Item item = items[at.item];
    if (at.item != collected) collect_pairs(kept, num_pairs, item, s.pairs[warp]);
    collected = at.item;
    int g = lane_idx() / 4;
    const uint16_t* x = nullptr;
    if (g < item.count) x = p.x + (int64_t)((first_pair + s.pairs[warp][g]) / p.k) * p.hidden;
    float acc[kUpTiles][1][4] = {};
#pragma unroll 1
    for (int step = warp; step < steps; step += kWarps) {
      StepActivations<kFormat> b;
      load_activations(b, x, step, p.hidden);
      copies_wait<UpSlots::kCount - 2>();
      __syncwarp();
      up_fetch<kFormat>(p, items, last, tiles, ahead, UpSlots::at(ring, into));
      const unsigned char* stage = UpSlots::at(ring, slot);
#pragma unroll
      for (int m = 0; m < kUpTiles; ++m) multiply_tile<kFormat>(acc[m][0], WarpStep<kFormat>(stage + m * kWarpStageBytes), b);
      into = UpSlots::next(into), slot = UpSlots::next(slot);
    }
    // Two sets of sums by turns: the one that is written now was read before the barrier of the unit before.
    float* sums = partial + at.unit % 2 * kWarps * kUpTiles * kSums;
#pragma unroll
    for (int m = 0; m < kUpTiles; ++m) tile_spill<1>(acc[m], sums + (warp * kUpTiles + m) * kSums);
    __syncthreads();
    up_store(p, item, at.tile * kUpColumns, sums, s.pairs[warp], first_pair);
  }
}

// Pairs with no expert get a row of zeros, its columns shared out over the grid.
FL_DEVICE void clear_invalid(const ExpertsUpParams& p, const int16_t* kept, int first_pair, int num_pairs) {
  for (int i = 0; i < num_pairs; ++i) {
    if (kept[i] >= 0) continue;
    uint16_t* row = p.h + (int64_t)(first_pair + i) * p.width;
    for (int n = blockIdx.x * kThreads + threadIdx.x; n < p.width; n += gridDim.x * kThreads) row[n] = 0;
  }
}

// The first step of an expert that this warp takes: of all experts' steps it has every eighth.
FL_DEVICE int down_first(int expert, int steps) { return (warp_idx() - expert * steps) & (kWarps - 1); }

template <int kFormat>
FL_DEVICE void down_fetch(const ExpertsDownParams& p, const Item* items, int num_items, int base, int& item, int& step,
                          unsigned char* stage) {
  int steps = Step<kFormat>::count(p.width);
  while (item < num_items && step >= steps) {
    if (++item < num_items) step = down_first(items[item].expert, steps);
  }
  if (item < num_items) {
    int last = p.hidden - 1;
    auto row = [=](int r) { return min(base + r, last); };
    TileRows rows = tile_rows<kFormat>(p.weight, items[item].expert, p.hidden, p.width, row);
    warp_fetch<kFormat>(stage, rows, step, p.width);
  }
  copies_commit();
  step += kWarps;
}

// A warp adds an item's products to its sums [token][row]; pairs in order, as a token may have chosen an expert twice.
FL_DEVICE void down_add(const ExpertsDownParams& p, const float (&acc)[4], const Item& item, const uint16_t* pairs,
                        float* sums) {
  float global = tile_scale(p.weight, item.expert);
  int g = lane_idx() / 4, q = lane_idx() % 4;
  for (int n = 0; n < item.count; ++n) {
    if (q == n / 2) {
      float* row = sums + pairs[n] / p.k * kTileRows;
      row[g] += (n % 2 ? acc[1] : acc[0]) * global;
      row[g + 8] += (n % 2 ? acc[3] : acc[2]) * global;
    }
    __syncwarp();
  }
}

template <int kFormat>
FL_DEVICE void down_body(const ExpertsDownParams& p, const Item* items, int num_items, const uint16_t* pairs, int first_pair,
                         int base, float* sums, unsigned char* ring) {
  int steps = Step<kFormat>::count(p.width), slot = 0, into = 0, item_ahead = 0;
  int step_ahead = num_items > 0 ? down_first(items[0].expert, steps) : 0;
#pragma unroll 1
  for (; into < DownSlots::kCount - 1; ++into) {
    down_fetch<kFormat>(p, items, num_items, base, item_ahead, step_ahead, DownSlots::at(ring, into));
  }
  for (int i = 0; i < num_items; ++i) {
    Item item = items[i];
    int g = lane_idx() / 4, first = down_first(item.expert, steps);
    if (first >= steps) continue;
    const uint16_t* x = nullptr;
    if (g < item.count) x = p.h + (int64_t)(first_pair + pairs[item.first + g]) * p.width;
    float acc[4] = {};
#pragma unroll 1
    for (int step = first; step < steps; step += kWarps) {
      StepActivations<kFormat> b;
      load_activations(b, x, step, p.width);
      copies_wait<DownSlots::kCount - 2>();
      __syncwarp();
      down_fetch<kFormat>(p, items, num_items, base, item_ahead, step_ahead, DownSlots::at(ring, into));
      multiply_tile<kFormat>(acc, WarpStep<kFormat>(DownSlots::at(ring, slot)), b);
      into = DownSlots::next(into), slot = DownSlots::next(slot);
    }
    down_add(p, acc, item, pairs + item.first, sums);
  }
}

// y = the warps' sums in order, and the shared expert last.
FL_DEVICE void down_store(const ExpertsDownParams& p, int first_token, int tokens, int base, const float* sums) {
  for (int i = threadIdx.x; i < tokens * kTileRows; i += kThreads) {
    int r = i % kTileRows;
    if (base + r >= p.hidden) continue;
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total += sums[w * tokens * kTileRows + i];
    int64_t at = (int64_t)(first_token + i / kTileRows) * p.hidden + base + r;
    p.y[at] = float_to_bf16(total + bf16_to_float(p.shared[at]));
  }
}

}  // namespace

// Dynamic shared memory: UpShared, ring, sums, items, then the ids of the block's pairs.
FL_KERNEL_BLOCKS(kThreads, 2, experts_up, ExpertsUpParams) {
  FL_DYNAMIC_SHARED(dynamic);
  pdl_wait();
  int first_pair = blockIdx.y * p.tokens * p.k, num_pairs = min(p.tokens, p.rows - (int)blockIdx.y * p.tokens) * p.k;
  UpShared& s = *(UpShared*)dynamic;
  unsigned char* ring = dynamic + sizeof(UpShared);
  float* partial = (float*)(ring + UpSlots::kRing);
  Item* items = (Item*)(partial + 2 * kWarps * kUpTiles * kSums);
  int16_t* kept = (int16_t*)(items + p.items);
  find_items<kThreads>(p.ids, first_pair, first_pair + num_pairs, p.experts, kept, items, s.routes);
  if (s.routes.invalid) clear_invalid(p, kept, first_pair, num_pairs);
  switch (p.weight.format) {
    case kWeightBf16: return up_body<kWeightBf16>(p, items, kept, first_pair, num_pairs, s, partial, ring);
    case kWeightFp8Block: return up_body<kWeightFp8Block>(p, items, kept, first_pair, num_pairs, s, partial, ring);
    case kWeightNvfp4: return up_body<kWeightNvfp4>(p, items, kept, first_pair, num_pairs, s, partial, ring);
    default: return up_body<kWeightMxfp4>(p, items, kept, first_pair, num_pairs, s, partial, ring);
  }
}

// Dynamic shared memory: Routes, ring, the warps' sums, items, then the ids and the order of the block's pairs.
FL_KERNEL_BLOCKS(kThreads, 2, experts_down, ExpertsDownParams) {
  FL_DYNAMIC_SHARED(dynamic);
  pdl_wait();
  int first_token = blockIdx.y * p.tokens, base = blockIdx.x * kTileRows;
  int tokens = min(p.tokens, p.rows - first_token), first_pair = first_token * p.k, num_pairs = tokens * p.k;
  Routes& s = *(Routes*)dynamic;
  unsigned char* ring = dynamic + sizeof(Routes);
  float* sums = (float*)(ring + DownSlots::kRing);
  Item* items = (Item*)(sums + kWarps * tokens * kTileRows);
  int16_t* kept = (int16_t*)(items + p.items);
  uint16_t* pairs = (uint16_t*)(kept + num_pairs);
  for (int i = threadIdx.x; i < kWarps * tokens * kTileRows; i += kThreads) sums[i] = 0.0f;
  find_items<kThreads>(p.ids, first_pair, first_pair + num_pairs, p.experts, kept, items, s);
  sort_pairs(kept, num_pairs, s, pairs);
  float* mine = sums + warp_idx() * tokens * kTileRows;
  switch (p.weight.format) {
    case kWeightBf16: down_body<kWeightBf16>(p, items, s.num_items, pairs, first_pair, base, mine, ring); break;
    case kWeightFp8Block: down_body<kWeightFp8Block>(p, items, s.num_items, pairs, first_pair, base, mine, ring); break;
    case kWeightNvfp4: down_body<kWeightNvfp4>(p, items, s.num_items, pairs, first_pair, base, mine, ring); break;
    default: down_body<kWeightMxfp4>(p, items, s.num_items, pairs, first_pair, base, mine, ring); break;
  }
  __syncthreads();
  down_store(p, first_token, tokens, base, sums);
}
