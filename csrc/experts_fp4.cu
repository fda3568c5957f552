// experts in NVFP4 and MXFP4 whose rows are 256, 512, 1,024, 2,048 or 4,096 columns: the same two launches as in experts.cu.
//
// Bytes: every active expert's weights once, as there.
// Measured on an H200 with cold caches, NVFP4 at 4096 x 2048: `experts_up` 24, 115 and 239 us for 1, 8 and 64 rows with 6, 48 and
// 104 experts (52, 88 and 92 % of what the bytes allow), `experts_down` 18, 70 and 143 (36, 72 and 77 %).
// Notes: (1) K is cut into slices of 256 columns, one for each of 16 warps, or fewer and several row tiles (common/fp4_slices.h);
// nothing but the sums of slices goes from warp to warp, through a few sets in shared memory, to four more warps that add them in
// order and ask the copy engine for a stage of weights when one has been read, so weights stream with no barrier of the block;
// (2) `experts_up` spreads units of 8 gate rows and 8 up rows for each row tile of the active experts evenly over one block a
// multiprocessor; an expert's activations stay in registers from unit to unit; (3) a block of `experts_down` owns its row tiles
// of as many tokens as its memory allows and walks the active experts in ascending order, all items of an expert over one stage;
// the next item's activations replace this one's as they are used; (4) no sum depends on the number of tokens, on their places,
// on the grid or on the stages; (5) an expert with no token costs nothing.
#include "experts.h"

#include "common/fp4_slices.h"
#include "common/pdl.h"
#include "common/routes.h"

constexpr int kAdders = 4;
constexpr int kThreads = (kSliceWarps + kAdders) * kWarp;
// Stages of the ring, and sets of partial sums.
constexpr int kSlots = 4;

namespace {

// A stage is full when its bytes are there. A set of sums is done when every warp has written its own, and free again when its
// adders have read them. The tables, and the block's ids after them, make way for the sums.
struct alignas(128) Fp4Shared {
  uint64_t full[kSlots], done[kSlots], free[kSlots];
  uint16_t pairs[kSliceWarps + kAdders][kItemPairs];
  union {
    Routes routes;
    float partial[kSlots][kSliceWarps * kPartial];
  };
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
  FL_DEVICE void skip(int n) {
    unit += n, within += n;
    while (within >= per_item) within -= per_item, ++item;
  }
};

// A warp that multiplies: its slice of every unit.
template <int kFormat>
FL_DEVICE void up_multiply(const ExpertsUpParams& p, const Item* items, const int16_t* kept, int first_pair, int num_pairs,
                           UpUnits at, Fp4Shared& s, unsigned char* ring) {
  SliceStage<kFormat, 2> shape(p.hidden);
  int warp = warp_idx(), g = lane_idx() / 4, column = warp % (p.hidden / kSliceCols) * kSliceCols + lane_idx() % 4 * 16;
  int apart = shape.bytes(), held = -1;
  SliceRows first = shape.slice(ring);
  uint32_t x[kSliceSteps][8];
  Place slot;
#pragma unroll 1
  for (; at.more(); at.skip(1), slot.next(kSlots)) {
    if (at.item != held) {
      Item item = items[held = at.item];
      collect_pairs(kept, num_pairs, item, s.pairs[warp]);
      // Columns beyond the item's pairs repeat its first: nothing reads what they give.
      int pair = first_pair + s.pairs[warp][g < item.count ? g : 0];
      const uint16_t* row = p.x + (int64_t)(pair / p.k) * p.hidden + column;
#pragma unroll
      for (int i = 0; i < kSliceSteps; ++i) load_step(x[i], row, i);
    }
    SliceRows rows = first;
    rows.codes += slot.slot * apart, rows.scales += slot.slot * apart;
    barrier_wait(&s.full[slot.slot], slot.parity);
    __syncwarp();
    float acc[4];
    multiply_slice<kFormat>(acc, rows, x, [](int) {});
    barrier_wait(&s.free[slot.slot], slot.parity ^ 1);
    spill_slice(acc, s.partial[slot.slot] + warp * kPartial);
    barrier_arrive(&s.done[slot.slot]);
  }
}

// A warp asks for a unit's stage.
template <int kFormat>
FL_DEVICE void up_fetch(const ExpertsUpParams& p, const Item* items, const UpUnits& at, int slot, Fp4Shared& s,
                        unsigned char* ring) {
  if (!at.more()) return;
  SliceStage<kFormat, 2> shape(p.hidden);
  int64_t gate = (int64_t)items[at.item].expert * 2 * p.width + at.within * shape.rows();
  shape.fetch(ring + slot * shape.bytes(), p.weight, gate, p.width, &s.full[slot]);
}

// A warp that adds: the sums of every fourth unit's columns over the slices, to h. It asks for every fourth stage.
template <int kFormat>
FL_DEVICE void up_add(const ExpertsUpParams& p, const Item* items, const int16_t* kept, int first_pair, int num_pairs,
                      UpUnits at, Fp4Shared& s, unsigned char* ring) {
  static_assert(kSlots == kAdders, "an adder has a stage and a set");
  SliceStage<kFormat, 2> shape(p.hidden);
  int slices = p.hidden / kSliceCols, rows = shape.rows(), g = lane_idx() / 4, q = lane_idx() % 4, held = -1;
  int own = warp_idx() - kSliceWarps, parity = 0;
  float global = 0.0f, weight[2] = {0.0f, 0.0f};
  uint16_t* h[2] = {nullptr, nullptr};
  at.skip(own);
  for (UpUnits ahead = at; at.more(); at = ahead, parity ^= 1) {
    if (at.item != held) {
      Item item = items[held = at.item];
      uint16_t* pairs = s.pairs[warp_idx()];
      collect_pairs(kept, num_pairs, item, pairs);
      global = tile_scale(p.weight, item.expert);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        h[j] = nullptr;
        if (2 * q + j >= item.count) continue;
        int64_t pair = first_pair + pairs[2 * q + j];
        weight[j] = p.weights[pair], h[j] = p.h + pair * p.width;
      }
    }
    barrier_wait(&s.done[own], parity);
    __syncwarp();
    ahead.skip(kAdders);
    up_fetch<kFormat>(p, items, ahead, own, s, ring);
    for (int tile = 0; tile < shape.tiles; ++tile) {
      const float* partial = s.partial[own] + tile * slices * kPartial;
      float2 gate = sum_slices(partial, slices, 0), up = sum_slices(partial, slices, 1);
      int row = at.within * rows + shape.row(tile, g, 0);
      if (h[0] != nullptr) h[0][row] = float_to_bf16(swiglu(gate.x * global, up.x * global, p.limit) * weight[0]);
      if (h[1] != nullptr) h[1][row] = float_to_bf16(swiglu(gate.y * global, up.y * global, p.limit) * weight[1]);
    }
    barrier_arrive(&s.free[own]);
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

// What is known of a place for a pair in a list of items: the pair, and in all of an item's places whether it is its expert's
// last and whether a token has two pairs in it. A place beyond an item's pairs repeats the first.
constexpr uint32_t kPairMask = 0xfff, kPairTwice = 0x2000, kPairBeyond = 0x4000, kPairLast = 0x8000;

// What the warps of a block of `experts_down` share: the items in order, their places, and what their sums are multiplied by.
struct DownBlock {
  const ExpertsDownParams& p;
  Fp4Shared& s;
  unsigned char* ring;
  const Item* items;
  uint16_t* places;
  float* globals;
  int num_items, first_pair, base;

  FL_DEVICE int token(uint32_t place) const { return (int)((place & kPairMask) * ((0xffffu + p.k) / (uint32_t)p.k) >> 16); }

  // A block fills the places, where the pairs are; `global` is of the thread's first item.
  FL_DEVICE void fill_places(float global) const {
    for (int i = threadIdx.x; i < num_items; i += kThreads) {
      Item item = items[i];
      uint16_t* own = places + i * kItemPairs;
      bool last = i + 1 >= num_items || items[i + 1].expert != item.expert;
      uint32_t flags = last ? kPairLast : 0;
      for (int n = 1; n < item.count; ++n) flags |= token(own[n]) == token(own[n - 1]) ? kPairTwice : 0;
      for (int n = item.count; n < kItemPairs; ++n) own[n] = (uint16_t)(own[0] | kPairBeyond);
      for (int n = 0; n < kItemPairs; ++n) own[n] |= (uint16_t)flags;
      globals[i] = i < kThreads ? global : tile_scale(p.weight, item.expert);
    }
  }
};

// A warp that multiplies: its slice of the block's rows, for every item.
template <int kFormat>
FL_DEVICE void down_multiply(const DownBlock& b) {
  const ExpertsDownParams& p = b.p;
  SliceStage<kFormat, 1> shape(p.width);
  SliceRows first = shape.slice(b.ring);
  int apart = shape.bytes(), last = b.num_items - 1;
  const uint8_t* h = (const uint8_t*)(p.h + (int64_t)b.first_pair * p.width + warp_idx() % (p.width / kSliceCols) * kSliceCols +
                                      lane_idx() % 4 * 16);
  uint32_t row_bytes = 2 * (uint32_t)p.width;
  auto place_of = [&](int i) -> uint32_t { return b.places[min(i, last) * kItemPairs + lane_idx() / 4]; };
  auto row_of = [&](uint32_t place) { return (const uint16_t*)(h + (uint64_t)(place & kPairMask) * row_bytes); };
  uint32_t place = place_of(0), next = place_of(1), x[kSliceSteps][8];
#pragma unroll
  for (int i = 0; i < kSliceSteps; ++i) load_step(x[i], row_of(place), i);
  Place set, slot;
#pragma unroll 1
  for (int i = 0; i <= last; ++i, set.next(kSlots)) {
    SliceRows rows = first;
    rows.codes += slot.slot * apart, rows.scales += slot.slot * apart;
    // The last item is followed by itself.
    const uint16_t* row = row_of(next);
    barrier_wait(&b.s.full[slot.slot], slot.parity);
    __syncwarp();
    float acc[4];
    multiply_slice<kFormat>(acc, rows, x, [&](int step) { load_step(x[step], row, step); });
    barrier_wait(&b.s.free[set.slot], set.parity ^ 1);
    spill_slice(acc, b.s.partial[set.slot] + warp_idx() * kPartial);
    barrier_arrive(&b.s.done[set.slot]);
    if (place & kPairLast) slot.next(kSlots);
    place = next, next = place_of(i + 2);
  }
}

// Asks for an expert's stage, if it is this warp's turn; the first item of the next expert.
template <int kFormat>
FL_DEVICE int down_fetch(const DownBlock& b, int item, int slot) {
  if (item >= b.num_items) return item;
  if (warp_idx() - kSliceWarps == slot) {
    SliceStage<kFormat, 1> shape(b.p.width);
    int64_t row = (int64_t)b.items[item].expert * b.p.hidden + b.base;
    shape.fetch(b.ring + slot * shape.bytes(), b.p.weight, row, 0, &b.s.full[slot]);
  }
  do ++item;
  while (item < b.num_items && b.items[item].expert == b.items[item - 1].expert);
  return item;
}

// The warps that add an item's products to the sums [token][row], each its rows; a token that chose an expert twice adds its
// pairs in order.
template <int kFormat>
FL_DEVICE void down_add(const DownBlock& b, int ahead, float* sums) {
  SliceStage<kFormat, 1> shape(b.p.width);
  int slices = b.p.width / kSliceCols, rows = shape.rows(), q = lane_idx() % 4;
  Place set, slot;
#pragma unroll 1
  for (int i = 0; i < b.num_items; ++i, set.next(kSlots)) {
    uint32_t two = *(const uint32_t*)(b.places + i * kItemPairs + 2 * q), place[2] = {two & 0xffffu, two >> 16};
    int at[2] = {b.token(place[0]) * rows, b.token(place[1]) * rows};
    float global = b.globals[i];
    barrier_wait(&b.s.done[set.slot], set.parity);
    __syncwarp();
    if (two & kPairLast) {
      ahead = down_fetch<kFormat>(b, ahead, slot.slot);
      slot.next(kSlots);
    }
    for (int half = warp_idx() - kSliceWarps; half < 2 * shape.tiles; half += kAdders) {
      float2 total = sum_slices(b.s.partial[set.slot] + half / 2 * slices * kPartial, slices, half % 2);
      float* sum = sums + shape.row(half / 2, lane_idx() / 4, half % 2);
      bool on[2] = {!(place[0] & kPairBeyond), !(place[1] & kPairBeyond)};
      if (!(two & kPairTwice)) {
        if (on[0]) sum[at[0]] += total.x * global;
        if (on[1]) sum[at[1]] += total.y * global;
      } else {
        for (int turn = 0; turn < kItemPairs / 2; ++turn) {
          if (q == turn && on[0]) sum[at[0]] += total.x * global;
          if (q == turn && on[1]) sum[at[1]] += total.y * global;
          __syncwarp();
        }
      }
    }
    // A token's next pair may be another lane's.
    __syncwarp();
    barrier_arrive(&b.s.free[set.slot]);
  }
}

// y = the sums, and the shared expert last.
FL_DEVICE void down_store(const ExpertsDownParams& p, int first_token, int tokens, int base, int rows, const float* sums) {
  for (int i = threadIdx.x; i < tokens * rows; i += kThreads) {
    int r = i % rows, token = i / rows;
    int64_t at = (int64_t)(first_token + token) * p.hidden + base + r;
    p.y[at] = float_to_bf16(sums[i] + bf16_to_float(p.shared[at]));
  }
}

FL_DEVICE void init_barriers(Fp4Shared& s, int adders) {
  if (threadIdx.x != 0) return;
  barrier_init(s.full, kSlots, 1);
  barrier_init(s.done, kSlots, kSliceWarps * kWarp);
  barrier_init(s.free, kSlots, adders * kWarp);
  barriers_made();
}

template <int kFormat>
FL_DEVICE void up_body(const ExpertsUpParams& p, unsigned char* dynamic) {
  int first_pair = blockIdx.y * p.tokens * p.k, num_pairs = min(p.tokens, p.rows - (int)blockIdx.y * p.tokens) * p.k;
  SliceStage<kFormat, 2> shape(p.hidden);
  Fp4Shared& s = *(Fp4Shared*)dynamic;
  unsigned char* ring = dynamic + sizeof(Fp4Shared);
  Item* items = (Item*)(ring + kSlots * shape.bytes());
  int16_t* kept = (int16_t*)(items + p.items);
  init_barriers(s, 1);
  find_items<kThreads>(p.ids, first_pair, first_pair + num_pairs, p.experts, kept, items, s.routes);
  UpUnits at(s.routes.num_items, p.width / shape.rows());
  if (warp_idx() >= kSliceWarps) {
    // The first stages are on their way before anything else.
    UpUnits first = at;
    first.skip(warp_idx() - kSliceWarps);
    up_fetch<kFormat>(p, items, first, warp_idx() - kSliceWarps, s, ring);
  }
  if (s.routes.invalid) clear_invalid(p, kept, first_pair, num_pairs);
  __syncthreads();
  if (warp_idx() < kSliceWarps) {
    up_multiply<kFormat>(p, items, kept, first_pair, num_pairs, at, s, ring);
  } else {
    up_add<kFormat>(p, items, kept, first_pair, num_pairs, at, s, ring);
  }
}

template <int kFormat>
FL_DEVICE void down_body(const ExpertsDownParams& p, unsigned char* dynamic) {
  SliceStage<kFormat, 1> shape(p.width);
  int rows = shape.rows(), first_token = blockIdx.y * p.tokens, base = blockIdx.x * rows;
  int tokens = min(p.tokens, p.rows - first_token), first_pair = first_token * p.k, num_pairs = tokens * p.k;
  Fp4Shared& s = *(Fp4Shared*)dynamic;
  unsigned char* ring = dynamic + sizeof(Fp4Shared);
  float* sums = (float*)(ring + kSlots * shape.bytes());
  Item* items = (Item*)(sums + tokens * rows);
  float* globals = (float*)(items + p.items);
  uint16_t* places = (uint16_t*)(globals + p.items);
  int16_t* kept = (int16_t*)(&s.routes + 1);
  init_barriers(s, kAdders);
  for (int i = threadIdx.x; i < tokens * rows; i += kThreads) sums[i] = 0.0f;
  find_items<kThreads, true>(p.ids, first_pair, first_pair + num_pairs, p.experts, kept, items, s.routes);
  DownBlock b{p, s, ring, items, places, globals, s.routes.num_items, first_pair, base};
  // The first stages are on their way, and the scales, while pairs are sorted.
  int ahead = 0;
  for (int i = 0; warp_idx() >= kSliceWarps && i < kSlots; ++i) ahead = down_fetch<kFormat>(b, ahead, i);
  float global = (int)threadIdx.x < b.num_items ? tile_scale(p.weight, items[threadIdx.x].expert) : 0.0f;
  sort_pairs(kept, num_pairs, s.routes, places);
  b.fill_places(global);
  __syncthreads();
  if (b.num_items == 0) {
  } else if (warp_idx() < kSliceWarps) {
    down_multiply<kFormat>(b);
  } else {
    down_add<kFormat>(b, ahead, sums);
  }
  __syncthreads();
  down_store(p, first_token, tokens, base, rows, sums);
}

}  // namespace

// Dynamic shared memory: Fp4Shared, the ring, items, then the ids of the block's pairs.
FL_KERNEL_BLOCKS(kThreads, 1, experts_up_fp4, ExpertsUpParams) {
  FL_DYNAMIC_SHARED(dynamic);
  pdl_wait();
  p.weight.format == kWeightNvfp4 ? up_body<kWeightNvfp4>(p, dynamic) : up_body<kWeightMxfp4>(p, dynamic);
}

// Dynamic shared memory: Fp4Shared, the ring, the tokens' sums, items, then of the block's pairs, in the order of the items,
// themselves and their tokens.
FL_KERNEL_BLOCKS(kThreads, 1, experts_down_fp4, ExpertsDownParams) {
  FL_DYNAMIC_SHARED(dynamic);
  pdl_wait();
  p.weight.format == kWeightNvfp4 ? down_body<kWeightNvfp4>(p, dynamic) : down_body<kWeightMxfp4>(p, dynamic);
}
