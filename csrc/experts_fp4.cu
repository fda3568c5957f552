// experts in NVFP4 and MXFP4 whose rows are a whole number of 1,024 columns: the same two launches as in experts.cu.
//
// Bytes: every active expert's weights once, as there.
// Notes: (1) whole rows of weights come by bulk copies into a ring of stages that the block shares; with one block a
// multiprocessor some 100 KB are on their way; (2) each of 16 warps has a sixteenth of K and adds to it nothing else: sums of
// the warps are added in order, after the one barrier of a stage, which also frees the stage; (3) `experts_up` spreads tiles of
// 8 columns (8 gate rows, 8 up rows) of the active experts evenly over the grid; an expert's activations stay in registers
// from tile to tile; (4) a block of `experts_down` owns 32 output rows and walks the active experts in ascending order, one
// stage each; the next expert's activations are on their way to registers meanwhile; (5) no sum depends on the number of tokens,
// on their places, on the grid or on the stages.
#include "experts.h"

#include "common/fp4_rows.h"
#include "common/pdl.h"
#include "common/routes.h"

constexpr int kUpColumns = 8;
constexpr int kDownRows = 32;
constexpr int kDownTiles = kDownRows / kTileRows;
constexpr int kMaxStages = 8;
// Of a token's sums: one more than rows, which keeps tokens in banks of their own.
constexpr int kSumPitch = kDownRows + 1;

namespace {

struct alignas(16) Fp4Shared {
  Routes routes;
  uint64_t full[kMaxStages];
};

struct alignas(16) Fp4UpShared : Fp4Shared {
  uint16_t pairs[kRowsThreads / kWarp][kItemPairs];
  float partial[2][kRowsWarps * kPartial];
};

struct alignas(16) Fp4DownShared : Fp4Shared {
  float partial[2][kRowsWarps * kDownTiles * kPartial];
};

// A place in the ring, and the parity of its phase.
struct Place {
  int slot = 0, parity = 0;

  FL_DEVICE void next(int stages) {
    if (++slot == stages) slot = 0, parity ^= 1;
  }
};

// A warp sends the 8 gate and 8 up rows of a tile on their way: lane l the codes or the scales of row l % 16.
template <int kFormat, int kSteps>
FL_DEVICE void up_fetch(const ExpertsUpParams& p, int expert, int tile, unsigned char* stage, uint64_t* full) {
  using R = Fp4Rows<kFormat, kSteps>;
  int lane = lane_idx(), r = lane % kTileRows;
  if (lane == 0) bulk_expect(full, kTileRows * (R::kCodes + R::kScales));
  __syncwarp();
  int64_t row = (int64_t)expert * 2 * p.width + tile * kUpColumns + r % 8 + (r < 8 ? 0 : p.width);
  copy_row<kFormat, kSteps>(stage + r * R::kPitch, p.weight, row, lane >= kTileRows, full);
}

// Two warps: a tile's columns, added up over the warps of the product, to h.
FL_DEVICE void up_store(const ExpertsUpParams& p, const Item& item, int tile, const float* partial, const uint16_t* pairs,
                        int first_pair) {
  int i = threadIdx.x - kRowsWarps * kWarp, n = i % kTileCols;
  if (n >= item.count) return;
  int64_t pair = first_pair + pairs[n];
  float global = tile_scale(p.weight, item.expert), weight = p.weights[pair];
  float gate = sum_warps<kPartial>(partial, i), up = sum_warps<kPartial>(partial, kPartial / 2 + i);
  float value = swiglu(gate * global, up * global, p.limit) * weight;
  p.h[pair * p.width + tile * kUpColumns + i / kTileCols] = float_to_bf16(value);
}

template <int kFormat, int kSteps>
FL_DEVICE void up_body(const ExpertsUpParams& p, const Item* items, const int16_t* kept, int first_pair, int num_pairs,
                       Fp4UpShared& s, unsigned char* ring) {
  constexpr int kStage = kTileRows * Fp4Rows<kFormat, kSteps>::kPitch;
  int tiles = p.width / kUpColumns, warp = warp_idx();
  int64_t units = (int64_t)s.routes.num_items * tiles;
  int first = (int)(units * blockIdx.x / gridDim.x), last = (int)(units * (blockIdx.x + 1) / gridDim.x);
  bool multiplies = warp < kRowsWarps, stores = !multiplies && warp < kRowsWarps + 2, fetches = warp == kRowsWarps + 2;
  if (fetches) {
    for (int i = 0; i < p.stages && first + i < last; ++i) {
      int unit = first + i;
      up_fetch<kFormat, kSteps>(p, items[unit / tiles].expert, unit % tiles, ring + i * kStage, &s.full[i]);
    }
  }
  __syncthreads();
  Place place;
  int item_at = first / tiles, tile = first % tiles, item_ahead = (first + p.stages) / tiles, tile_ahead = (first + p.stages) % tiles;
  uint32_t x[kSteps][8];
  int collected = -1;
  for (int unit = first; unit < last; ++unit) {
    Item item = items[item_at];
    if (item_at != collected) {
      collect_pairs(kept, num_pairs, item, s.pairs[warp]);
      int g = lane_idx() / 4;
      bool row = multiplies && g < item.count;
      load_columns<kSteps>(x, row ? p.x + (int64_t)((first_pair + s.pairs[warp][g]) / p.k) * p.hidden : nullptr);
      collected = item_at;
    }
    // Two sets of sums by turns: the one that is written now was read before the barrier of the unit before.
    float* partial = s.partial[unit % 2];
    if (multiplies) {
      float acc[4] = {};
      bulk_wait(&s.full[place.slot], place.parity);
#if !defined(NOCOMP)
      multiply_rows<kFormat, kSteps>(acc, ring + place.slot * kStage, x);
#endif
      spill_rows(acc, partial + warp * kPartial);
    }
    __syncthreads();
    if (fetches && unit + p.stages < last) {
      up_fetch<kFormat, kSteps>(p, items[item_ahead].expert, tile_ahead, ring + place.slot * kStage, &s.full[place.slot]);
    }
    if (stores) up_store(p, item, tile, partial, s.pairs[warp], first_pair);
    place.next(p.stages);
    if (++tile == tiles) tile = 0, ++item_at;
    if (++tile_ahead == tiles) tile_ahead = 0, ++item_ahead;
  }
}

// Pairs with no expert get a row of zeros, its columns shared out over the grid.
FL_DEVICE void clear_invalid(const ExpertsUpParams& p, const int16_t* kept, int first_pair, int num_pairs) {
  for (int i = 0; i < num_pairs; ++i) {
    if (kept[i] >= 0) continue;
    uint16_t* row = p.h + (int64_t)(first_pair + i) * p.width;
    for (int n = blockIdx.x * kRowsThreads + threadIdx.x; n < p.width; n += gridDim.x * kRowsThreads) row[n] = 0;
  }
}

// A warp sends an expert's rows base .. base + 31 on their way.
template <int kFormat, int kSteps>
FL_DEVICE void down_fetch(const ExpertsDownParams& p, int expert, int base, unsigned char* stage, uint64_t* full) {
  using R = Fp4Rows<kFormat, kSteps>;
  int r = lane_idx();
  if (r == 0) bulk_expect(full, kDownRows * (R::kCodes + R::kScales));
  __syncwarp();
  int64_t row = (int64_t)expert * p.hidden + base + r;
  copy_row<kFormat, kSteps>(stage + r * R::kPitch, p.weight, row, false, full);
  copy_row<kFormat, kSteps>(stage + r * R::kPitch, p.weight, row, true, full);
}

// The helpers add an item's products to the sums [token][row]; a token that chose an expert twice adds its pairs in order.
FL_DEVICE void down_add(const ExpertsDownParams& p, const Item& item, const float* partial, const uint16_t* pairs, float* sums) {
  int i = threadIdx.x - kRowsWarps * kWarp, first = i % kTileCols;
  if (first >= item.count) return;
  int token = pairs[first] / p.k;
  if (first > 0 && pairs[first - 1] / p.k == token) return;
  float global = tile_scale(p.weight, item.expert);
#pragma unroll
  for (int r = i / kTileCols; r < kDownRows; r += kRowsHelpers * kWarp / kTileCols) {
    float total = sums[token * kSumPitch + r];
    int n = first;
    do {
      total += sum_warps<kDownTiles * kPartial>(partial, r * kTileCols + n) * global;
    } while (++n < item.count && pairs[n] / p.k == token);
    sums[token * kSumPitch + r] = total;
  }
}

template <int kFormat, int kSteps>
FL_DEVICE void down_body(const ExpertsDownParams& p, const Item* items, const uint16_t* pairs, int first_pair, int base,
                         float* sums, Fp4DownShared& s, unsigned char* ring) {
  using R = Fp4Rows<kFormat, kSteps>;
  constexpr int kStage = kDownRows * R::kPitch;
  int warp = warp_idx(), num_items = s.routes.num_items, g = lane_idx() / 4;
  bool multiplies = warp < kRowsWarps, fetches = warp == kRowsWarps + kRowsHelpers - 1;
  if (fetches) {
    for (int i = 0; i < p.stages && i < num_items; ++i) {
      down_fetch<kFormat, kSteps>(p, items[i].expert, base, ring + i * kStage, &s.full[i]);
    }
  }
  __syncthreads();
  auto row_of = [=](int i) -> const uint16_t* {
    if (!multiplies || i >= num_items || g >= items[i].count) return nullptr;
    return p.h + (int64_t)(first_pair + pairs[items[i].first + g]) * p.width;
  };
  // Where registers allow, an item's activations come while the one before is multiplied.
  constexpr bool kAhead = kSteps <= 2;
  uint32_t x[kSteps][8], ahead[kSteps][8];
  if (kAhead) load_columns<kSteps>(ahead, row_of(0));
  Place place;
  for (int i = 0; i < num_items; ++i) {
    float* partial = s.partial[i % 2];
    if (multiplies) {
#pragma unroll
      for (int j = 0; kAhead && j < 8 * kSteps; ++j) x[j / 8][j % 8] = ahead[j / 8][j % 8];
      load_columns<kSteps>(kAhead ? ahead : x, row_of(kAhead ? i + 1 : i));
      float acc[kDownTiles][4] = {};
      bulk_wait(&s.full[place.slot], place.parity);
#if !defined(NOCOMP)
#pragma unroll
      for (int m = 0; m < kDownTiles; ++m) {
        multiply_rows<kFormat, kSteps>(acc[m], ring + place.slot * kStage + m * kTileRows * R::kPitch, x);
      }
#endif
#pragma unroll
      for (int m = 0; m < kDownTiles; ++m) spill_rows(acc[m], partial + (warp * kDownTiles + m) * kPartial);
    }
    __syncthreads();
    if (fetches && i + p.stages < num_items) {
      down_fetch<kFormat, kSteps>(p, items[i + p.stages].expert, base, ring + place.slot * kStage, &s.full[place.slot]);
    }
    if (!multiplies) down_add(p, items[i], partial, pairs + items[i].first, sums);
    place.next(p.stages);
  }
}

// y = the sums, and the shared expert last.
FL_DEVICE void down_store(const ExpertsDownParams& p, int first_token, int tokens, int base, const float* sums) {
  for (int i = threadIdx.x; i < tokens * kDownRows; i += kRowsThreads) {
    int r = i % kDownRows, token = i / kDownRows;
    int64_t at = (int64_t)(first_token + token) * p.hidden + base + r;
    p.y[at] = float_to_bf16(sums[token * kSumPitch + r] + bf16_to_float(p.shared[at]));
  }
}

}  // namespace

// Dynamic shared memory: Fp4UpShared, ring, items, then the ids of the block's pairs.
FL_KERNEL_BLOCKS(kRowsThreads, 1, experts_up_fp4, ExpertsUpParams) {
  FL_DYNAMIC_SHARED(dynamic);
  pdl_wait();
  int first_pair = blockIdx.y * p.tokens * p.k, num_pairs = min(p.tokens, p.rows - (int)blockIdx.y * p.tokens) * p.k;
  Fp4UpShared& s = *(Fp4UpShared*)dynamic;
  unsigned char* ring = dynamic + sizeof(Fp4UpShared);
  Item* items = (Item*)(ring + p.ring);
  int16_t* kept = (int16_t*)(items + p.items);
  if (threadIdx.x == 0) bulk_init(s.full, p.stages);
  find_items<kRowsThreads>(p.ids, first_pair, first_pair + num_pairs, p.experts, kept, items, s.routes);
  if (s.routes.invalid) clear_invalid(p, kept, first_pair, num_pairs);
  if (p.weight.format == kWeightNvfp4) {
    switch (p.hidden >> 10) {
      case 1: return up_body<kWeightNvfp4, 1>(p, items, kept, first_pair, num_pairs, s, ring);
      case 2: return up_body<kWeightNvfp4, 2>(p, items, kept, first_pair, num_pairs, s, ring);
      default: return up_body<kWeightNvfp4, 4>(p, items, kept, first_pair, num_pairs, s, ring);
    }
  }
  switch (p.hidden >> 10) {
    case 1: return up_body<kWeightMxfp4, 1>(p, items, kept, first_pair, num_pairs, s, ring);
    case 2: return up_body<kWeightMxfp4, 2>(p, items, kept, first_pair, num_pairs, s, ring);
    default: return up_body<kWeightMxfp4, 4>(p, items, kept, first_pair, num_pairs, s, ring);
  }
}

// Dynamic shared memory: Fp4DownShared, ring, the tokens' sums, items, then the ids and the order of the block's pairs.
FL_KERNEL_BLOCKS(kRowsThreads, 1, experts_down_fp4, ExpertsDownParams) {
  FL_DYNAMIC_SHARED(dynamic);
  pdl_wait();
  int first_token = blockIdx.y * p.tokens, base = blockIdx.x * kDownRows;
  int tokens = min(p.tokens, p.rows - first_token), first_pair = first_token * p.k, num_pairs = tokens * p.k;
  Fp4DownShared& s = *(Fp4DownShared*)dynamic;
  unsigned char* ring = dynamic + sizeof(Fp4DownShared);
  float* sums = (float*)(ring + p.ring);
  Item* items = (Item*)(sums + (tokens * kSumPitch + 3) / 4 * 4);
  int16_t* kept = (int16_t*)(items + p.items);
  uint16_t* pairs = (uint16_t*)(kept + num_pairs);
  if (threadIdx.x == 0) bulk_init(s.full, p.stages);
  for (int i = threadIdx.x; i < tokens * kSumPitch; i += kRowsThreads) sums[i] = 0.0f;
  find_items<kRowsThreads>(p.ids, first_pair, first_pair + num_pairs, p.experts, kept, items, s.routes);
  sort_pairs<kRowsThreads>(kept, num_pairs, items, s.routes, pairs);
  int steps = p.width >> 10;
  if (p.weight.format == kWeightNvfp4) {
    if (steps == 1) {
      down_body<kWeightNvfp4, 1>(p, items, pairs, first_pair, base, sums, s, ring);
    } else if (steps == 2) {
      down_body<kWeightNvfp4, 2>(p, items, pairs, first_pair, base, sums, s, ring);
    } else {
      down_body<kWeightNvfp4, 4>(p, items, pairs, first_pair, base, sums, s, ring);
    }
  } else if (steps == 1) {
    down_body<kWeightMxfp4, 1>(p, items, pairs, first_pair, base, sums, s, ring);
  } else if (steps == 2) {
    down_body<kWeightMxfp4, 2>(p, items, pairs, first_pair, base, sums, s, ring);
  } else {
    down_body<kWeightMxfp4, 4>(p, items, pairs, first_pair, base, sums, s, ring);
  }
  __syncthreads();
  down_store(p, first_token, tokens, base, sums);
}
