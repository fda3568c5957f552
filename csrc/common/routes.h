// Which pairs (token * k + i) go to which expert, sorted out by a block from the ids alone: items of work of at most 8 pairs,
// in ascending order of expert, an expert's pairs in ascending order.
#pragma once

#include "order.h"

constexpr int kMaxExperts = 1024;
constexpr int kItemPairs = 8;

// `count` pairs of one expert: those from `skip` on among its pairs, from `first` on in the sorted list of all.
struct Item {
  uint16_t expert, count;
  uint16_t first, skip;
};

struct alignas(16) Routes {
  uint32_t counts[kMaxExperts];
  uint32_t scratch[32];
  int32_t num_items, invalid;
};

// Fills `items` and s.num_items; ids[i] for begin <= i < end go to `kept` as they are if valid, else as -1, and s.invalid says
// whether any was. At most 4096 pairs, which give at most items_limit() items. s.counts becomes where each expert's first pair is
// among all pairs in the order of the items; `kPadded`: where every item has room for eight.
template <int kThreads, bool kPadded = false>
FL_DEVICE void find_items(const int32_t* ids, int begin, int end, int experts, int16_t* kept, Item* items, Routes& s) {
  constexpr int kEach = (kMaxExperts + kThreads - 1) / kThreads;
  for (int i = threadIdx.x; i < kMaxExperts; i += kThreads) s.counts[i] = 0;
  if (threadIdx.x == 0) s.invalid = 0;
  __syncthreads();
  for (int i = begin + threadIdx.x; i < end; i += kThreads) {
    int32_t id = ids[i];
    bool valid = id >= 0 && id < experts;
    kept[i - begin] = (int16_t)(valid ? id : -1);
    if (valid) {
      atomicAdd(&s.counts[id], 1u);
    } else {
      atomicOr(&s.invalid, 1);
    }
  }
  __syncthreads();
  uint32_t mine = 0, total;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    int expert = threadIdx.x * kEach + i;
    uint32_t n = expert < kMaxExperts ? s.counts[expert] : 0;
    mine += n << 16 | (n + kItemPairs - 1) / kItemPairs;
  }
  uint32_t before = block_exclusive_sum<kThreads>(mine, total, s.scratch);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    int expert = threadIdx.x * kEach + i;
    uint32_t n = expert < kMaxExperts ? s.counts[expert] : 0;
    for (uint32_t skip = 0; skip < n; skip += kItemPairs) {
      uint32_t left = n - skip, first = before >> 16;
      items[(before & 0xffffu) + skip / kItemPairs] =
          Item{(uint16_t)expert, (uint16_t)min(left, (uint32_t)kItemPairs), (uint16_t)(first + skip), (uint16_t)skip};
    }
    if (expert < kMaxExperts) s.counts[expert] = kPadded ? (before & 0xffffu) * kItemPairs : before >> 16;
    before += n << 16 | (n + kItemPairs - 1) / kItemPairs;
  }
  if (threadIdx.x == 0) s.num_items = (int32_t)(total & 0xffffu);
  __syncthreads();
}

// A warp collects an item's pairs, counted from the begin of `kept`.
FL_DEVICE void collect_pairs(const int16_t* kept, int pairs, const Item& item, uint16_t* out) {
  __syncwarp();
  int seen = 0, wanted = item.skip + item.count;
  for (int start = 0; start < pairs && seen < wanted; start += kWarp) {
    int pair = start + lane_idx();
    bool chosen = pair < pairs && kept[pair] == item.expert;
    unsigned votes = __ballot_sync(kFullMask, chosen);
    int place = seen + __popc(votes & ((1u << lane_idx()) - 1)) - item.skip;
    if (chosen && place >= 0 && place < item.count) out[place] = (uint16_t)pair;
    seen += __popc(votes);
  }
  __syncwarp();
}

// The block sorts all pairs by expert, to where s.counts has their places: it uses them up.
FL_DEVICE void sort_pairs(const int16_t* kept, int pairs, Routes& s, uint16_t* out) {
  constexpr int kChunks = 4;
  unsigned lower = (1u << lane_idx()) - 1;
  for (int start = 0; warp_idx() == 0 && start < pairs; start += kChunks * kWarp) {
    int expert[kChunks];
    unsigned same[kChunks];
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      int pair = start + c * kWarp + lane_idx();
      expert[c] = pair < pairs ? kept[pair] : -1;
      same[c] = __match_any_sync(kFullMask, expert[c]);
    }
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      uint32_t place = expert[c] >= 0 ? s.counts[expert[c]] : 0;
      __syncwarp();
      if (expert[c] >= 0) {
        out[place + __popc(same[c] & lower)] = (uint16_t)(start + c * kWarp + lane_idx());
        if ((same[c] & lower) == 0) s.counts[expert[c]] = place + __popc(same[c]);
      }
      __syncwarp();
    }
  }
  __syncthreads();
}
