// topk: the k largest of a row's visible logits, exact, ties to the smaller index, written in ascending index order.
//
// Bytes: 4 a visible logit, read once; all that follows stays in registers and shared memory.
// Notes: (1) `topk` gives a row to one block, `topk_cluster` to eight, which read each other's shared memory; the launch
// chooses by the shape; (2) a thread holds up to 64 keys that order as their scores do. The k-th largest of the maxima of
// groups of keys bounds the k-th key from below, and seldom by much, so only a few keys above k are candidates; each block
// collects all of them and cuts at the k-th; (3) a cut narrows a range of keys by histograms of 2,048 bins and stops where
// the keys left in it are all wanted, or equal; (4) where candidates do not fit (ties by the thousand), the histograms are
// of all keys instead, summed over the cluster; (5) counts are integers and the chosen go through a bitmap of the rows, so
// no order of arrival shows; (6) with no more than k visible rows nothing is read; (7) rows too long for a cluster go to
// topk_long.cu.
#include "topk.h"

#include "common/chosen.h"
#include "common/cluster.h"
#include "common/order.h"
#include "common/pdl.h"
#include "common/reduce.h"

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / kWarp;
constexpr int kClusterBlocks = 8;
constexpr int kDigitBits = 11;
constexpr int kDigits = 1 << kDigitBits;
// Keys of a thread, in groups of four neighbours.
constexpr int kRounds = 16;
constexpr int kStride = 4 * kThreads;
constexpr int kSegment = kRounds * kStride;
constexpr int kWords = kSegment / 32;
// Candidates of a block, and of its cluster.
constexpr int kList = 3072;
constexpr int kPool = 4096;
constexpr uint32_t kNoNumber = 0x7fffffffu;

static_assert(kDigits == 4 * kThreads, "four digits a thread");
static_assert(kWords == 2 * kThreads, "two words of the bitmap a thread");

namespace {

struct Shared {
  uint32_t pool[kPool];  // Maxima of groups, then candidates, of the whole cluster; at last the bitmaps.
  uint32_t histogram[kDigits];
  uint32_t list[kList];    // Candidates of this block,
  uint16_t places[kList];  // and where in its segment they stand.
  uint32_t maxima[kThreads];
  uint32_t count;
  uint32_t counts[kClusterBlocks];
  uint32_t range[2];
  uint32_t found[3];
  uint32_t totals[kClusterBlocks];
  uint32_t scratch[kWarps];
};

static_assert(sizeof(Shared) == 45208, "as src/cuda/ops/topk.rs has it");

// Chosen are all keys above `high` and the first `wanted` of low..=high.
struct Cut {
  uint32_t low, high, wanted;
};

// A block's part of a row: `count` logits from `row` on.
struct Segment {
  const float* row;
  int count;
  bool aligned;
};

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
      uint4 v = *(const uint4*)(segment.row + i);
      x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) x[j] = i + j < segment.count ? float_bits(segment.row[i + j]) : kNoNumber;
    }
  }
#pragma unroll
  for (int i = 0; i < 4 * kRounds; ++i) keys[i] = order_key(bits_float(keys[i]));
}

// Calls f(key, place, inside) for every key of a thread; all lanes of a warp call it together.
template <class F>
FL_DEVICE void each_held(const uint32_t (&keys)[4 * kRounds], int count, F f) {
#pragma unroll
  for (int r = 0; r < kRounds; ++r) {
    if (r * kStride >= count) continue;
#pragma unroll
    for (int j = 0; j < 4; ++j) f(keys[4 * r + j], place(r, j), place(r, j) < count);
  }
}

// Counts the digit of a key; a digit that many lanes share costs one addition.
FL_DEVICE void count_digit(uint32_t* histogram, uint32_t digit, bool counts) {
  uint32_t common = __shfl_sync(kFullMask, digit, 0);
  unsigned sharing = __ballot_sync(kFullMask, counts && digit == common);
  if (lane_idx() == 0 && sharing != 0) atomicAdd(&histogram[common], (uint32_t)__popc(sharing));
  if (counts && digit != common) atomicAdd(&histogram[digit], 1u);
}

// The four digits of this thread, counted from the largest, over the cluster.
template <int kBlocks>
FL_DEVICE void digit_counts(uint32_t (&counts)[4], Shared& s) {
  int at = kDigits - 4 - 4 * (int)threadIdx.x;
  counts[0] = counts[1] = counts[2] = counts[3] = 0;
#pragma unroll 2
  for (int b = 0; b < kBlocks; ++b) {
    const uint32_t* histogram = kBlocks == 1 ? s.histogram : cluster_peer(s.histogram, b);
    uint4 v = *(const uint4*)(histogram + at);
    counts[0] += v.w, counts[1] += v.z, counts[2] += v.y, counts[3] += v.x;
  }
}

// Narrows the cut until its range holds one key, or no more keys than are wanted and `slack`. `fill` adds this block's keys
// to the histogram, by the digit (key - low) >> shift.
template <int kBlocks, class Fill>
FL_DEVICE Cut narrow(Cut cut, uint32_t slack, Shared& s, Fill fill) {
  for (;;) {
    int shift = max(0, 32 - __clz((int)(cut.high - cut.low)) - kDigitBits);
    for (int i = threadIdx.x; i < kDigits; i += kThreads) s.histogram[i] = 0;
    __syncthreads();
    fill(cut, shift);
    if (kBlocks == 1) {
      __syncthreads();
    } else {
      cluster_sync();
    }
    uint32_t counts[4], total;
    digit_counts<kBlocks>(counts, s);
    uint32_t above = block_exclusive_sum<kThreads>(counts[0] + counts[1] + counts[2] + counts[3], total, s.scratch);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (above < cut.wanted && above + counts[i] >= cut.wanted) {
        s.found[0] = (uint32_t)(kDigits - 1 - 4 * (int)threadIdx.x - i);
        s.found[1] = cut.wanted - above;
        s.found[2] = counts[i];
      }
      above += counts[i];
    }
    if (kBlocks == 1) {
      __syncthreads();
    } else {
      cluster_sync();
    }
    cut.low += s.found[0] << shift;
    cut.high = min(cut.high, cut.low + ((1u << shift) - 1));
    cut.wanted = s.found[1];
    uint32_t left = s.found[2];
    __syncthreads();
    if (shift == 0 || left - cut.wanted <= slack) return cut;
  }
}

// The cut at the wanted-th largest of the first `count` keys of the pool.
FL_DEVICE Cut cut_pool(int count, uint32_t wanted, uint32_t slack, Shared& s) {
  if (threadIdx.x < 2) s.range[threadIdx.x] = 0;
  __syncthreads();
  uint32_t low = 0, high = 0;  // The smallest, inverted, and the largest.
  for (int i = threadIdx.x; i < count; i += kThreads) {
    low = max(low, ~s.pool[i]);
    high = max(high, s.pool[i]);
  }
  low = group_max(low, kWarp), high = group_max(high, kWarp);
  if (lane_idx() == 0) {
    atomicMax(&s.range[0], low);
    atomicMax(&s.range[1], high);
  }
  __syncthreads();
  return narrow<1>(Cut{~s.range[0], s.range[1], wanted}, slack, s, [&](const Cut& cut, int shift) {
    for (int i = threadIdx.x; i < count; i += kThreads) {
      uint32_t from_low = s.pool[i] - cut.low;
      if (from_low <= cut.high - cut.low) atomicAdd(&s.histogram[from_low >> shift], 1u);
    }
  });
}

// A key that at least k keys of the row reach: the k-th largest of the maxima of groups, or one a little smaller.
template <int kBlocks>
FL_DEVICE uint32_t lower_bound(const uint32_t (&keys)[4 * kRounds], int k, Shared& s) {
  constexpr int kGroups = kBlocks == 1 ? 4 : 1;
  uint32_t largest[4] = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < 4 * kRounds; ++i) largest[i % kGroups] = max(largest[i % kGroups], keys[i]);
  if (kBlocks == 1) {
#pragma unroll
    for (int i = 0; i < kGroups; ++i) s.pool[i * kThreads + threadIdx.x] = largest[i];
  } else {
    s.maxima[threadIdx.x] = largest[0];
    cluster_sync();
    // All loads before the first store, which might alias them.
    uint32_t all[kBlocks];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) all[b] = cluster_peer(s.maxima, b)[threadIdx.x];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) s.pool[b * kThreads + threadIdx.x] = all[b];
  }
  __syncthreads();
  return cut_pool(kBlocks * kGroups * kThreads, (uint32_t)k, (uint32_t)k / 4, s).low;
}

// Lists the keys of this block from `bound` on, and collects the lists of the cluster in the pool. The candidates, or -1
// where they do not fit.
template <int kBlocks>
FL_DEVICE int collect(const uint32_t (&keys)[4 * kRounds], int count, uint32_t bound, Shared& s) {
  if (threadIdx.x == 0) s.count = 0;
  __syncthreads();
  each_held(keys, count, [&](uint32_t key, int at, bool inside) {
    if (!inside || key < bound) return;
    uint32_t i = atomicAdd(&s.count, 1u);
    if (i >= kList) return;
    s.list[i] = key;
    s.places[i] = (uint16_t)at;
  });
  if (kBlocks == 1) {
    __syncthreads();
  } else {
    cluster_sync();
  }
  if (threadIdx.x < kBlocks) s.counts[threadIdx.x] = kBlocks == 1 ? s.count : *cluster_peer(&s.count, (int)threadIdx.x);
  __syncthreads();
  uint32_t total = 0;
  bool fits = true;
  for (int b = 0; b < kBlocks; ++b) {
    fits &= s.counts[b] <= kList;
    total += s.counts[b];
  }
  if (!fits || total > kPool) return -1;
  for (uint32_t i = threadIdx.x; i < total; i += kThreads) {
    int b = 0;
    uint32_t at = i;
    while (at >= s.counts[b]) at -= s.counts[b++];
    s.pool[i] = (kBlocks == 1 ? s.list : cluster_peer(s.list, b))[at];
  }
  __syncthreads();
  return (int)total;
}

// Writes the chosen rows of this block, whose bits are in the pool: keys above the cut, then keys within it.
template <int kBlocks>
FL_DEVICE void write_selected(int first, int rank, uint32_t wanted, int32_t* selected, Shared& s) {
  const uint32_t* above = s.pool + 2 * threadIdx.x;
  const uint32_t* within = above + kWords;
  uint32_t packed = 0, total, greater, equal;
#pragma unroll
  for (int w = 0; w < 2; ++w) packed += (uint32_t)__popc(above[w]) | (uint32_t)__popc(within[w]) << 16;
  uint32_t before = block_exclusive_sum<kThreads>(packed, total, s.scratch);
  greater = before & 0xffffu, equal = before >> 16;
  if (kBlocks > 1) {
    if (threadIdx.x < kBlocks) *(uint32_t*)cluster_peer(&s.totals[rank], (int)threadIdx.x) = total;
    cluster_sync();
    for (int b = 0; b < rank; ++b) greater += s.totals[b] & 0xffffu, equal += s.totals[b] >> 16;
  }
#pragma unroll
  for (int w = 0; w < 2; ++w) {
    uint32_t bits = equal < wanted ? above[w] | within[w] : above[w];
    while (bits != 0) {
      int bit = __ffs((int)bits) - 1;
      bits &= bits - 1;
      bool is_within = within[w] >> bit & 1u;
      if (!is_within || equal < wanted) selected[greater + min(equal, wanted)] = first + 64 * (int)threadIdx.x + 32 * w + bit;
      if (is_within) {
        ++equal;
      } else {
        ++greater;
      }
    }
  }
}

FL_DEVICE void mark(uint32_t key, int at, const Cut& cut, Shared& s) {
  if (key < cut.low) return;
  atomicOr(&s.pool[(key > cut.high ? 0 : kWords) + at / 32], 1u << at % 32);
}

template <int kBlocks>
FL_DEVICE void choose(const TopKParams& p, Shared& s) {
  int64_t t = blockIdx.x / kBlocks;
  int rank = (int)(blockIdx.x % kBlocks), n = visible_rows(p.position[t], p.width);
  int32_t* selected = p.selected + t * p.k;
  if (n <= p.k) {
    if (rank == 0) take_all(n, p.k, selected);
    return;
  }
  int part = ((n + kBlocks - 1) / kBlocks + 3) / 4 * 4, first = min(n, rank * part);
  Segment segment{p.logits + t * p.width + first, min(part, n - first), p.width % 4 == 0};
  uint32_t keys[4 * kRounds];
  load_keys(keys, segment);
  constexpr int kGroups = kBlocks == 1 ? 4 * kThreads : kBlocks * kThreads;
  uint32_t bound = n > kList && p.k <= kGroups ? lower_bound<kBlocks>(keys, p.k, s) : 0;
  int candidates = collect<kBlocks>(keys, segment.count, bound, s);
  Cut cut;
  if (candidates >= 0) {
    cut = cut_pool(candidates, (uint32_t)p.k, 0, s);
  } else {
    cut = narrow<kBlocks>(Cut{0, 0xffffffffu, (uint32_t)p.k}, 0, s, [&](const Cut& c, int shift) {
      each_held(keys, segment.count, [&](uint32_t key, int, bool inside) {
        count_digit(s.histogram, (key - c.low) >> shift & (kDigits - 1), inside && key - c.low <= c.high - c.low);
      });
    });
  }
  for (int i = threadIdx.x; i < 2 * kWords; i += kThreads) s.pool[i] = 0;
  __syncthreads();
  if (candidates >= 0) {
    for (int i = threadIdx.x; i < (int)s.count; i += kThreads) mark(s.list[i], s.places[i], cut, s);
  } else {
    each_held(keys, segment.count, [&](uint32_t key, int at, bool inside) {
      if (inside) mark(key, at, cut, s);
    });
  }
  __syncthreads();
  write_selected<kBlocks>(first, rank, cut.wanted, selected, s);
}

}  // namespace

FL_KERNEL(kThreads, topk, TopKParams) {
  __shared__ __align__(16) Shared s;
  pdl_wait();
  choose<1>(p, s);
}

FL_KERNEL_CLUSTER(kThreads, 1, kClusterBlocks, topk_cluster, TopKParams) {
  FL_DYNAMIC_SHARED(shared);
  pdl_wait();
  choose<kClusterBlocks>(p, *(Shared*)shared);
}
