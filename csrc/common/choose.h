// The k largest of a row of scores by one block, or by a cluster that shares the row: exact, ties to the smaller index,
// written in ascending order.
//
// A thread holds up to 64 keys that order as their scores do. The k-th largest of the maxima of groups of keys bounds the
// k-th key from below, and seldom by much, so only a few keys above k are candidates; each block gathers all of them and
// cuts at the k-th. A cut narrows a range of keys by histograms of 2,048 bins and stops where the keys left in it are all
// wanted, or equal. Where candidates do not fit (ties by the thousand), the histograms are of all keys instead, read anew
// and summed over the cluster. Counts are integers and the chosen go through a bitmap of the rows, so no order of arrival shows.
#pragma once

#include "chosen.h"
#include "cluster.h"
#include "order.h"
#include "reduce.h"

constexpr int kChoiceThreads = 512;
constexpr int kClusterBlocks = 8;
constexpr int kChoiceWarps = kChoiceThreads / kWarp;
constexpr int kDigitBits = 11;
constexpr int kDigits = 1 << kDigitBits;
// Keys of a thread, in groups of four neighbours.
constexpr int kRounds = 16;
constexpr int kStride = 4 * kChoiceThreads;
constexpr int kSegment = kRounds * kStride;
constexpr int kWords = kSegment / 32;
// Candidates of a block, and those of its cluster that a thread gathers.
constexpr int kList = 3072;
constexpr int kGathered = 8;
constexpr uint32_t kNoNumber = 0x7fffffffu;

static_assert(kDigits == 4 * kChoiceThreads, "four digits a thread");
static_assert(kWords == 2 * kChoiceThreads, "two words of the bitmap a thread");

struct Choice {
  uint32_t histogram[kDigits];  // Zeros between two cuts; at last what is chosen before each word of the bitmaps.
  uint32_t above[kWords];       // Rows above the cut,
  uint32_t within[kWords];      // and within it.
  uint32_t list[kList];         // Candidates of this block,
  uint16_t places[kList];       // and where in its segment they stand.
  uint32_t maxima[kChoiceThreads];
  uint32_t lows[kChoiceWarps], highs[kChoiceWarps];
  uint32_t scratch[kChoiceWarps];
  uint32_t total;  // Marks of this block.
  uint32_t count;
  uint32_t found[3];
};

// Chosen are all keys above `high` and the first `wanted` of low..=high.
struct Cut {
  uint32_t low, high, wanted;
};

// A block's part of a row: scores `first` and the next ones, `count` in all, at `scores`, in steps of 16 bytes if aligned.
struct Segment {
  const float* scores;
  int first, count;
  bool aligned;
};

// To be called before `choose`, with a barrier between them.
FL_DEVICE void prepare(Choice& s) {
  ((uint4*)s.histogram)[threadIdx.x] = uint4{0, 0, 0, 0};
  ((uint4*)s.above)[threadIdx.x] = uint4{0, 0, 0, 0};  // And `within`.
  if (threadIdx.x == 0) s.count = 0;
}

template <int kBlocks>
FL_DEVICE void group_sync() {
  if (kBlocks == 1) {
    __syncthreads();
  } else {
    cluster_sync();
  }
}

// Sum over all lower threads, with one barrier: another must come before the next call.
FL_DEVICE uint32_t sum_below(uint32_t x, uint32_t& total, Choice& s) {
  uint32_t warp_total, below = warp_exclusive_sum(x, warp_total);
  if (lane_idx() == 0) s.scratch[warp_idx()] = warp_total;
  __syncthreads();
  total = 0;
#pragma unroll
  for (int w = 0; w < kChoiceWarps; ++w) {
    if (w < warp_idx()) below += s.scratch[w];
    total += s.scratch[w];
  }
  return below;
}

FL_DEVICE int place(int round, int j) { return round * kStride + 4 * (int)threadIdx.x + j; }

// This thread's keys; 0, as of NaN, past the segment's end. No load waits for another.
FL_DEVICE void load_keys(uint32_t (&keys)[4 * kRounds], const Segment& segment) {
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    uint32_t* x = keys + 4 * r;
    x[0] = x[1] = x[2] = x[3] = kNoNumber;
    if (r * kStride >= segment.count) continue;
    int i = place(r, 0);
    if (segment.aligned && i + 4 <= segment.count) {
      uint4 v = *(const uint4*)(segment.scores + i);
      x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) x[j] = i + j < segment.count ? float_bits(segment.scores[i + j]) : kNoNumber;
    }
  }
#pragma unroll
  for (int i = 0; i < 4 * kRounds; ++i) keys[i] = order_key(bits_float(keys[i]));
}

// Calls f(key, place, inside) for every key of the segment, read anew; all lanes of a warp call it together.
template <class F>
FL_DEVICE void each_key(const Segment& segment, F f) {
#pragma unroll 4
  for (int start = 0; start < segment.count; start += kChoiceThreads) {
    int at = start + (int)threadIdx.x;
    bool inside = at < segment.count;
    f(inside ? order_key(segment.scores[at]) : 0, at, inside);
  }
}

// Counts the digit of a key; a digit that many lanes share costs one addition.
FL_DEVICE void count_digit(uint32_t* histogram, uint32_t digit, bool counts) {
  uint32_t common = __shfl_sync(kFullMask, digit, 0);
  unsigned sharing = __ballot_sync(kFullMask, counts && digit == common);
  if (lane_idx() == 0 && sharing != 0) atomicAdd(&histogram[common], (uint32_t)__popc(sharing));
  if (counts && digit != common) atomicAdd(&histogram[digit], 1u);
}

// Narrows the cut until its range holds one key, or no more keys than are wanted and `slack`. `fill` adds this block's keys
// to the histogram, by the digit (key - low) >> shift; with several blocks the digits are counted over the cluster.
template <int kBlocks, class Fill>
FL_DEVICE Cut narrow(Cut cut, uint32_t slack, Choice& s, Fill fill) {
  // The four digits of this thread, counted from the largest.
  int at = kChoiceThreads - 1 - (int)threadIdx.x;
  for (;;) {
    int shift = max(0, 32 - __clz((int)(cut.high - cut.low)) - kDigitBits);
    fill(cut, shift);
    group_sync<kBlocks>();
    uint4 counts{0, 0, 0, 0};
#pragma unroll 1
    for (int b = 0; b < kBlocks; ++b) {
      uint4 v = ((const uint4*)(kBlocks == 1 ? s.histogram : cluster_peer(s.histogram, b)))[at];
      counts.x += v.x, counts.y += v.y, counts.z += v.z, counts.w += v.w;
    }
    if (kBlocks > 1) cluster_sync();
    ((uint4*)s.histogram)[at] = uint4{0, 0, 0, 0};
    uint32_t digits[4] = {counts.w, counts.z, counts.y, counts.x}, total;
    uint32_t before = sum_below(digits[0] + digits[1] + digits[2] + digits[3], total, s);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (before < cut.wanted && before + digits[i] >= cut.wanted) {
        s.found[0] = (uint32_t)(4 * at + 3 - i);
        s.found[1] = cut.wanted - before;
        s.found[2] = digits[i];
      }
      before += digits[i];
    }
    __syncthreads();
    cut.low += s.found[0] << shift;
    cut.high = min(cut.high, cut.low + ((1u << shift) - 1));
    cut.wanted = s.found[1];
    if (shift == 0 || s.found[2] - cut.wanted <= slack) return cut;
  }
}

// The cut at the wanted-th largest of keys that threads hold, the first `count` of each `kKeys`.
template <int kKeys>
FL_DEVICE Cut cut_held(const uint32_t (&keys)[kKeys], int count, uint32_t wanted, uint32_t slack, Choice& s) {
  uint32_t low = 0, high = 0;  // The smallest, inverted, and the largest.
#pragma unroll
  for (int i = 0; i < kKeys; ++i) {
    if (i < count) low = max(low, ~keys[i]), high = max(high, keys[i]);
  }
  low = warp_max(low), high = warp_max(high);
  if (lane_idx() == 0) s.lows[warp_idx()] = low, s.highs[warp_idx()] = high;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kChoiceWarps; ++w) low = max(low, s.lows[w]), high = max(high, s.highs[w]);
  return narrow<1>(Cut{~low, high, wanted}, slack, s, [&](const Cut& cut, int shift) {
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      uint32_t from_low = keys[i] - cut.low;
      if (i < count && from_low <= cut.high - cut.low) atomicAdd(&s.histogram[from_low >> shift], 1u);
    }
  });
}

// A key that at least k keys of the row reach: the k-th largest of the maxima of groups, or one a little smaller.
template <int kBlocks>
FL_DEVICE uint32_t lower_bound(const uint32_t (&keys)[4 * kRounds], int k, Choice& s) {
  constexpr int kGroups = kBlocks == 1 ? 4 : kBlocks;
  uint32_t largest[kGroups];
#pragma unroll
  for (int i = 0; i < kGroups; ++i) largest[i] = 0;
#pragma unroll
  for (int i = 0; i < 4 * kRounds; ++i) {
    int group = kBlocks == 1 ? i % kGroups : 0;
    largest[group] = max(largest[group], keys[i]);
  }
  if (kBlocks > 1) {
    s.maxima[threadIdx.x] = largest[0];
    cluster_sync();
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) largest[b] = cluster_peer(s.maxima, b)[threadIdx.x];
  }
  return cut_held(largest, kGroups, (uint32_t)k, (uint32_t)k / 4, s).low;
}

// Lists the keys of this block from `bound` on. All of them are listed in place if there are few rows.
FL_DEVICE void list_candidates(const uint32_t (&keys)[4 * kRounds], int count, uint32_t bound, bool few, Choice& s) {
  if (few && threadIdx.x == 0) s.count = (uint32_t)count;
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    if (r * kStride >= count) continue;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      uint32_t key = keys[4 * r + j];
      int at = place(r, j);
      if (key < bound || at >= count) continue;
      uint32_t i = few ? (uint32_t)at : atomicAdd(&s.count, 1u);
      if (i >= kList) continue;
      s.list[i] = key;
      s.places[i] = (uint16_t)at;
    }
  }
}

// Gathers the lists of the cluster, dealt out to the threads of each block: how many this thread got, or -1 if they are too
// many.
template <int kBlocks>
FL_DEVICE int gather(uint32_t (&keys)[kGathered], Choice& s) {
  uint32_t counts[kBlocks], total = 0;
  uint32_t mine = lane_idx() < kBlocks ? (kBlocks == 1 ? s.count : *cluster_peer(&s.count, lane_idx())) : 0;
  bool fits = true;
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    counts[b] = __shfl_sync(kFullMask, mine, b);
    fits &= counts[b] <= kList;
    total += counts[b];
  }
  if (!fits || total > kGathered * kChoiceThreads) return -1;
  int got = 0;
#pragma unroll
  for (int j = 0; j < kGathered; ++j) {
    uint32_t at = j * kChoiceThreads + threadIdx.x;
    keys[j] = 0;
    if (at >= total) continue;
    int b = 0;
#pragma unroll
    for (int c = 0; c < kBlocks; ++c) {
      if (b == c && at >= counts[c]) at -= counts[c], b = c + 1;
    }
    keys[j] = (kBlocks == 1 ? s.list : cluster_peer(s.list, b))[at];
    got = j + 1;
  }
  return got;
}

// Counts what is marked before each word: in this block, and (above, within) in those before it. The cluster's last look at
// each other's memory, so it arrives at a barrier, for which the caller is to wait.
template <int kBlocks>
FL_DEVICE uint2 count_marks(int rank, Choice& s) {
  int w = 2 * (int)threadIdx.x;
  uint32_t first = (uint32_t)__popc(s.above[w]) | (uint32_t)__popc(s.within[w]) << 16;
  uint32_t second = (uint32_t)__popc(s.above[w + 1]) | (uint32_t)__popc(s.within[w + 1]) << 16;
  uint32_t total, before = sum_below(first + second, total, s);
  s.histogram[w] = before;
  s.histogram[w + 1] = before + first;
  if (threadIdx.x == 0) s.total = total;
  if (kBlocks > 1) cluster_arrive();
  __syncthreads();  // For racecheck, which forgets a cluster's barrier as soon as the next one is arrived at, as below.
  uint2 base{0, 0};
  if (kBlocks > 1) {
    cluster_wait();
    uint32_t theirs = lane_idx() < rank ? *cluster_peer(&s.total, lane_idx()) : 0;
    cluster_arrive();
    for (int b = 0; b < rank; ++b) {
      uint32_t marks = __shfl_sync(kFullMask, theirs, b);
      base.x += marks & 0xffffu, base.y += marks >> 16;
    }
  }
  return base;
}

FL_DEVICE void mark(uint32_t key, int at, const Cut& cut, Choice& s) {
  if (key >= cut.low) atomicOr(&(key > cut.high ? s.above : s.within)[at / 32], 1u << at % 32);
}

// Writes a row to its place if it is chosen.
FL_DEVICE void write_chosen(uint32_t key, int at, const Cut& cut, const uint2& base, int first, int32_t* selected,
                            const Choice& s) {
  if (key < cut.low) return;
  int w = at / 32;
  uint32_t below = (1u << at % 32) - 1, before = s.histogram[w];
  uint32_t greater = base.x + (before & 0xffffu) + __popc(s.above[w] & below);
  uint32_t equal = base.y + (before >> 16) + __popc(s.within[w] & below);
  if (key > cut.high || equal < cut.wanted) selected[greater + min(equal, cut.wanted)] = first + at;
}

// Writes the k chosen rows of n, k < n, of which this block, number `rank` of its cluster, holds a segment.
template <int kBlocks>
FL_DEVICE void choose(const Segment& segment, int n, int rank, int k, int32_t* selected, Choice& s) {
  constexpr int kGroups = kBlocks == 1 ? 4 * kChoiceThreads : kBlocks * kChoiceThreads;
  uint32_t keys[4 * kRounds], gathered[kGathered];
  load_keys(keys, segment);
  bool few = n <= kList;
  uint32_t bound = !few && k <= kGroups ? lower_bound<kBlocks>(keys, k, s) : 0;
  list_candidates(keys, segment.count, bound, few, s);
  group_sync<kBlocks>();
  int got = gather<kBlocks>(gathered, s);
  if (got >= 0) {
    Cut cut = cut_held(gathered, got, (uint32_t)k, 0, s);
    int count = (int)s.count;
    for (int i = threadIdx.x; i < count; i += kChoiceThreads) mark(s.list[i], s.places[i], cut, s);
    __syncthreads();
    uint2 base = count_marks<kBlocks>(rank, s);
    for (int i = threadIdx.x; i < count; i += kChoiceThreads) {
      write_chosen(s.list[i], s.places[i], cut, base, segment.first, selected, s);
    }
  } else {
    Cut all{0, 0xffffffffu, (uint32_t)k};
    Cut cut = narrow<kBlocks>(all, 0, s, [&](const Cut& c, int shift) {
      each_key(segment, [&](uint32_t key, int, bool inside) {
        count_digit(s.histogram, (key - c.low) >> shift & (kDigits - 1), inside && key - c.low <= c.high - c.low);
      });
    });
    each_key(segment, [&](uint32_t key, int at, bool inside) {
      if (inside) mark(key, at, cut, s);
    });
    __syncthreads();
    uint2 base = count_marks<kBlocks>(rank, s);
    each_key(segment, [&](uint32_t key, int at, bool inside) {
      if (inside) write_chosen(key, at, cut, base, segment.first, selected, s);
    });
  }
  if (kBlocks > 1) cluster_wait();  // No block leaves while another may read its memory.
}
