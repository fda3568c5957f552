// experts in NVFP4 and MXFP4 whose rows are 256, 512, 1,024, 2,048 or 4,096 columns: the same two launches as in experts.cu.
//
// Bytes: every active expert's weights once, as there.
// Notes: (1) K is cut into slices of 256 columns, one for each of 16 warps, or fewer and several row tiles (common/fp4_slices.h);
// nothing but the sums of slices goes from warp to warp, through a few sets in shared memory, to four more warps that add them in
// order, so weights stream with no barrier of the block; (2) `experts_up` spreads units of 8 gate rows and 8 up rows for each row
// tile of the active experts evenly over one block a multiprocessor; an expert's activations stay in registers from unit to unit;
// (3) a block of `experts_down` owns its row tiles of as many tokens as its memory allows and walks the active experts in
// ascending order; the next expert's activations replace this one's as they are used; (4) no sum depends on the number of
// tokens, on their places, on the grid or on the stages; (5) an expert with no token costs nothing.
#include "experts.h"

#include "common/fp4_slices.h"
#include "common/pdl.h"
#include "common/routes.h"

// Four warps add.
constexpr int kAdders = 4;
constexpr int kAdderThreads = kAdders * kWarp;
constexpr int kThreads = kSliceWarps * kWarp + kAdderThreads;
static_assert(kAdderThreads == kPartial, "an adder has the same place in every row tile");

namespace {

// A set of sums is done when every warp has written its own, and free again when every adder has read them.
struct alignas(16) Fp4Shared {
  Routes routes;
  uint64_t done[kSets], free[kSets];
  uint16_t pairs[kSliceWarps + kAdders][kItemPairs];
  float partial[kSets][kSliceWarps * kPartial];
};

// This warp's ring.
struct Ring {
  unsigned char* stages;
  int into = 0, slot = 0;

  FL_DEVICE explicit Ring(unsigned char* all) : stages(all + warp_idx() * kSliceStages * kSliceBytes) {}
  FL_DEVICE unsigned char* next_in() { return stages + into++ % kSliceStages * kSliceBytes; }
  FL_DEVICE unsigned char* next_out() { return stages + slot++ % kSliceStages * kSliceBytes; }
  // Waits for the oldest of the stages under way; the warp has read the one before.
  FL_DEVICE void wait() const {
    copies_wait<kSliceStages - 2>();
    __syncwarp();
  }
};

// The units of a block of `experts_up`: some columns of an item.
struct UpUnits {
  int unit, last, per_item, item, within;

  FL_DEVICE UpUnits(int num_items, int per_item) : per_item(per_item) {
    int64_t units = (int64_t)num_items * per_item;
    unit = (int)(units * blockIdx.x / gridDim.x), last = (int)(units * (blockIdx.x + 1) / gridDim.x);
    item = unit / per_item, within = unit % per_item;
  }
  FL_DEVICE bool more() const { return unit < last; }
  // True at another item.
  FL_DEVICE bool next() {
    ++unit;
    if (++within < per_item) return false;
    within = 0, ++item;
    return true;
  }
};

// A warp that multiplies: its slice of every unit.
template <int kFormat>
FL_DEVICE void up_multiply(const ExpertsUpParams& p, const Item* items, const int16_t* kept, int first_pair, int num_pairs,
                           UpUnits at, Fp4Shared& s, unsigned char* rings) {
  int slices = p.hidden / kSliceCols, tiles = kSliceWarps / slices, warp = warp_idx(), slice = warp % slices;
  int lane = lane_idx(), g = lane / 4, column = slice * kSliceCols + lane % 4 * 16, held = -1;
  auto source = [&](const UpUnits& u) {
    int64_t row = (int64_t)items[u.item].expert * 2 * p.width + (u.within * tiles + warp / slices) * 8;
    return SliceSource<kFormat>(p.weight, row, row + p.width, p.hidden, slice);
  };
  UpUnits ahead = at;
  SliceSource<kFormat> from = source(ahead);
  Ring ring(rings);
  auto fetch = [&] {
    if (ahead.more()) {
      from.fetch(ring.next_in());
      if (!ahead.next()) {
        from = from.at(8 * tiles);
      } else if (ahead.more()) {
        from = source(ahead);
      }
    }
    copies_commit();
  };
  for (int i = 0; i < kSliceStages - 1; ++i) fetch();
  uint32_t x[kSliceSteps][8];
  Place set;
  for (; at.more(); at.next(), set.next(kSets)) {
    if (at.item != held) {
      Item item = items[held = at.item];
      collect_pairs(kept, num_pairs, item, s.pairs[warp]);
      // Columns beyond the item's pairs repeat its first: nothing reads what they give.
      int pair = first_pair + s.pairs[warp][g < item.count ? g : 0];
      const uint16_t* row = p.x + (int64_t)(pair / p.k) * p.hidden + column;
#pragma unroll
      for (int i = 0; i < kSliceSteps; ++i) load_step(x[i], row, i);
    }
    ring.wait();
    fetch();
    float acc[4];
    multiply_slice<kFormat>(acc, ring.next_out(), x, [](int) {});
    barrier_wait(&s.free[set.slot], set.parity ^ 1);
    spill_slice(acc, s.partial[set.slot] + warp * kPartial);
    barrier_arrive(&s.done[set.slot]);
  }
}

// The warps that add: the sums of a unit's columns over the slices, to h.
FL_DEVICE void up_add(const ExpertsUpParams& p, const Item* items, const int16_t* kept, int first_pair, int num_pairs,
                      UpUnits at, Fp4Shared& s) {
  int slices = p.hidden / kSliceCols, columns = 8 * (kSliceWarps / slices), held = -1;
  int thread = threadIdx.x - kSliceWarps * kWarp, n = thread % kTileCols, column = thread / kTileCols;
  float global = 0.0f, weight = 0.0f;
  uint16_t* h = nullptr;
  Place set;
  for (; at.more(); at.next(), set.next(kSets)) {
    if (at.item != held) {
      Item item = items[held = at.item];
      uint16_t* pairs = s.pairs[warp_idx()];
      collect_pairs(kept, num_pairs, item, pairs);
      global = tile_scale(p.weight, item.expert), h = nullptr;
      if (n < item.count) {
        int64_t pair = first_pair + pairs[n];
        weight = p.weights[pair], h = p.h + pair * p.width;
      }
    }
    barrier_wait(&s.done[set.slot], set.parity);
    // Column c is gate row c % 8 of row tile c / 8; its up row is 8 rows on.
    for (int c = column; h != nullptr && c < columns; c += kAdderThreads / kTileCols) {
      const float* partial = s.partial[set.slot] + c / 8 * slices * kPartial;
      int i = c % 8 * kTileCols + n;
      float gate = sum_slices(partial, slices, i), up = sum_slices(partial, slices, kPartial / 2 + i);
      h[at.within * columns + c] = float_to_bf16(swiglu(gate * global, up * global, p.limit) * weight);
    }
    barrier_arrive(&s.free[set.slot]);
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

// A warp that multiplies: its slice of the block's rows, for every item.
template <int kFormat>
FL_DEVICE void down_multiply(const ExpertsDownParams& p, const Item* items, const uint16_t* pairs, int first_pair, int base,
                             Fp4Shared& s, unsigned char* rings) {
  int slices = p.width / kSliceCols, warp = warp_idx(), slice = warp % slices, lane = lane_idx(), g = lane / 4;
  int num_items = s.routes.num_items, ahead = 0, low = base + warp / slices * kTileRows;
  if (num_items == 0) return;
  SliceSource<kFormat> from(p.weight, low, low + 8, p.width, slice);
  Ring ring(rings);
  auto fetch = [&] {
    if (ahead < num_items) from.at((uint32_t)(items[ahead++].expert * p.hidden)).fetch(ring.next_in());
    copies_commit();
  };
  for (int i = 0; i < kSliceStages - 1; ++i) fetch();
  const uint16_t* h = p.h + (int64_t)first_pair * p.width + slice * kSliceCols + lane % 4 * 16;
  auto row_of = [&](const Item& item) { return h + (int64_t)pairs[item.first + (g < item.count ? g : 0)] * p.width; };
  uint32_t x[kSliceSteps][8];
  const uint16_t* row = row_of(items[0]);
#pragma unroll
  for (int i = 0; i < kSliceSteps; ++i) load_step(x[i], row, i);
  Place set;
  for (int i = 0; i < num_items; ++i, set.next(kSets)) {
    // The last item's activations are followed by themselves.
    row = row_of(items[min(i + 1, num_items - 1)]);
    ring.wait();
    fetch();
    float acc[4];
    multiply_slice<kFormat>(acc, ring.next_out(), x, [&](int step) { load_step(x[step], row, step); });
    barrier_wait(&s.free[set.slot], set.parity ^ 1);
    spill_slice(acc, s.partial[set.slot] + warp * kPartial);
    barrier_arrive(&s.done[set.slot]);
  }
}

// The warps that add an item's products to the sums [token][row]; a token that chose an expert twice adds its pairs in order.
FL_DEVICE void down_add(const ExpertsDownParams& p, const Item* items, const uint16_t* tokens, float* sums, Fp4Shared& s) {
  int slices = p.width / kSliceCols, tiles = kSliceWarps / slices, pitch = tiles * kTileRows + 1;
  int thread = threadIdx.x - kSliceWarps * kWarp, first = thread % kTileCols, r = thread / kTileCols;
  Place set;
  for (int i = 0; i < s.routes.num_items; ++i, set.next(kSets)) {
    Item item = items[i];
    float global = tile_scale(p.weight, item.expert);
    const uint16_t* of = tokens + item.first;
    bool adds = first < item.count && (first == 0 || of[first - 1] != of[first]);
    barrier_wait(&s.done[set.slot], set.parity);
    for (int tile = 0; adds && tile < tiles; ++tile) {
      const float* partial = s.partial[set.slot] + tile * slices * kPartial;
      float* sum = sums + of[first] * pitch + tile * kTileRows + r;
      float total = *sum;
      int n = first;
      do {
        total += sum_slices(partial, slices, r * kTileCols + n) * global;
      } while (++n < item.count && of[n - 1] == of[n]);
      *sum = total;
    }
    // A token's next pair may be another lane's.
    __syncwarp();
    barrier_arrive(&s.free[set.slot]);
  }
}

// y = the sums, and the shared expert last.
FL_DEVICE void down_store(const ExpertsDownParams& p, int first_token, int tokens, int base, int rows, const float* sums) {
  for (int i = threadIdx.x; i < tokens * rows; i += kThreads) {
    int r = i % rows, token = i / rows;
    int64_t at = (int64_t)(first_token + token) * p.hidden + base + r;
    p.y[at] = float_to_bf16(sums[token * (rows + 1) + r] + bf16_to_float(p.shared[at]));
  }
}

FL_DEVICE void init_sets(Fp4Shared& s) {
  if (threadIdx.x != 0) return;
  barrier_init(s.done, kSets, kSliceWarps * kWarp);
  barrier_init(s.free, kSets, kAdders * kWarp);
}

}  // namespace

// Dynamic shared memory: Fp4Shared, rings, items, then the ids of the block's pairs.
FL_KERNEL_BLOCKS(kThreads, 1, experts_up_fp4, ExpertsUpParams) {
  FL_DYNAMIC_SHARED(dynamic);
  pdl_wait();
  int first_pair = blockIdx.y * p.tokens * p.k, num_pairs = min(p.tokens, p.rows - (int)blockIdx.y * p.tokens) * p.k;
  Fp4Shared& s = *(Fp4Shared*)dynamic;
  unsigned char* rings = dynamic + sizeof(Fp4Shared);
  Item* items = (Item*)(rings + kSliceRings);
  int16_t* kept = (int16_t*)(items + p.items);
  init_sets(s);
  find_items<kThreads>(p.ids, first_pair, first_pair + num_pairs, p.experts, kept, items, s.routes);
  if (s.routes.invalid) clear_invalid(p, kept, first_pair, num_pairs);
  UpUnits at(s.routes.num_items, p.width / (8 * (kSliceWarps / (p.hidden / kSliceCols))));
  if (!at.more()) return;
  if (warp_idx() >= kSliceWarps) {
    up_add(p, items, kept, first_pair, num_pairs, at, s);
  } else if (p.weight.format == kWeightNvfp4) {
    up_multiply<kWeightNvfp4>(p, items, kept, first_pair, num_pairs, at, s, rings);
  } else {
    up_multiply<kWeightMxfp4>(p, items, kept, first_pair, num_pairs, at, s, rings);
  }
}

// Dynamic shared memory: Fp4Shared, rings, the tokens' sums, items, then of the block's pairs the ids, and in the order of the
// items themselves and their tokens.
FL_KERNEL_BLOCKS(kThreads, 1, experts_down_fp4, ExpertsDownParams) {
  FL_DYNAMIC_SHARED(dynamic);
  pdl_wait();
  int rows = kSliceWarps / (p.width / kSliceCols) * kTileRows, first_token = blockIdx.y * p.tokens, base = blockIdx.x * rows;
  int tokens = min(p.tokens, p.rows - first_token), first_pair = first_token * p.k, num_pairs = tokens * p.k;
  int num_sums = (tokens * (rows + 1) + 3) / 4 * 4;
  Fp4Shared& s = *(Fp4Shared*)dynamic;
  unsigned char* rings = dynamic + sizeof(Fp4Shared);
  float* sums = (float*)(rings + kSliceRings);
  Item* items = (Item*)(sums + num_sums);
  int16_t* kept = (int16_t*)(items + p.items);
  uint16_t *pairs = (uint16_t*)(kept + num_pairs), *of_pairs = pairs + num_pairs;
  init_sets(s);
  for (int i = threadIdx.x; i < num_sums; i += kThreads) sums[i] = 0.0f;
  for (int i = threadIdx.x; i < num_pairs; i += kThreads) pairs[i] = 0;
  find_items<kThreads>(p.ids, first_pair, first_pair + num_pairs, p.experts, kept, items, s.routes);
  sort_pairs<kThreads>(kept, num_pairs, items, s.routes, pairs);
  for (int i = threadIdx.x; i < num_pairs; i += kThreads) of_pairs[i] = pairs[i] / p.k;
  __syncthreads();
  if (warp_idx() >= kSliceWarps) {
    down_add(p, items, of_pairs, sums, s);
  } else if (p.weight.format == kWeightNvfp4) {
    down_multiply<kWeightNvfp4>(p, items, pairs, first_pair, base, s, rings);
  } else {
    down_multiply<kWeightMxfp4>(p, items, pairs, first_pair, base, s, rings);
  }
  __syncthreads();
  down_store(p, first_token, tokens, base, rows, sums);
}
