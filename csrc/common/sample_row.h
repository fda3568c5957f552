// A row of logits as the blocks of a cluster share it out, and what `sample` asks of it: sums that are integers, so that they are the
// same in every order, cuts in the order of likelihood, and ids by ascending sums.
#pragma once

#include "../sample.h"
#include "cluster.h"
#include "order.h"

constexpr int kSampleThreads = 512;
constexpr int kSampleWarps = kSampleThreads / kWarp;
constexpr int kSampleBlocks = 8;
// A key is three digits: of 11, 11 and 10 bits.
constexpr int kDigits = 2048;
// A mass is three limbs of 14 bits; each sums 2^18 ids of a block without overflow.
constexpr int kLimbBits = 14;
constexpr int kLimbs = 3;
constexpr int kMassBits = 40;

struct __align__(16) SampleShared {
  uint32_t bins[kLimbs][kDigits];
  // Of a cluster's block: the sums of its share of the digits.
  uint64_t share[kDigits / kSampleBlocks];
  uint64_t scratch[kSampleWarps], warp_sums[kSampleWarps];
  uint64_t best, above, found, before;
  uint32_t digit;
  int32_t owner, id;
};

// A cut in the order (key falling, id rising): ids with a larger key are kept, and those at `key` up to `last_tie`.
struct Cut {
  uint32_t key;
  int last_tie;

  FL_DEVICE bool keeps(uint32_t k, int i) const { return k > key || (k == key && i <= last_tie); }
};

// The number with that key; +0 for both zeros.
FL_DEVICE float key_value(uint32_t key) { return bits_float((key & 0x80000000u) != 0 ? key ^ 0x80000000u : ~key); }

template <class T>
FL_DEVICE T warp_total(T x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(kFullMask, x, step);
  return x;
}

template <int kBlocks>
struct SampleRow {
  SampleShared& s;
  // The warp's run: ids `first` .. of the row, from `values` on.
  const float* values;
  int first, run, vocab;
  bool aligned;
  float best, inverse;

  FL_DEVICE static int rank() { return kBlocks == 1 ? 0 : cluster_rank(); }
  FL_DEVICE static void sync() {
    if (kBlocks == 1) {
      __syncthreads();
    } else {
      cluster_sync();
    }
  }
  template <class T>
  FL_DEVICE static T& peer(T& own, int block) {
    return kBlocks == 1 ? own : *(T*)cluster_peer(&own, block);
  }

  FL_DEVICE SampleRow(const SampleParams& p, int64_t row, float* stage, SampleShared& s)
      : s(s), run(p.run), vocab(p.vocab), aligned(p.vocab % 4 == 0), best(0.0f), inverse(0.0f) {
    first = (rank() * kSampleWarps + warp_idx()) * run;
    values = p.logits + row * p.vocab + first;
    if (p.staged == 0) return;
    float* to = stage + warp_idx() * run;
#pragma unroll 8
    for (int at = 4 * lane_idx(); at < run; at += 4 * kWarp) {
      if (first + at < vocab) *(float4*)(to + at) = quad(at);
    }
    values = to, aligned = true;
  }

  // Four logits of the run; the first is in the row.
  FL_DEVICE float4 quad(int at) const {
    if (aligned) return *(const float4*)(values + at);
    int left = vocab - first - at;
    return float4{values[at], left > 1 ? values[at + 1] : 0.0f, left > 2 ? values[at + 2] : 0.0f, left > 3 ? values[at + 3] : 0.0f};
  }

  // f(logit, id) for this lane's four ids from `at` on.
  template <class F>
  FL_DEVICE void each_of(int at, F f) const {
    int id = first + at;
    if (id >= vocab) return;
    float4 v = quad(at);
    f(v.x, id);
    if (id + 1 < vocab) f(v.y, id + 1);
    if (id + 2 < vocab) f(v.z, id + 2);
    if (id + 3 < vocab) f(v.w, id + 3);
  }
  template <class F>
  FL_DEVICE void each(F f) const {
#pragma unroll 2
    for (int at = 4 * lane_idx(); at < run; at += 4 * kWarp) each_of(at, f);
  }

  FL_DEVICE float likeness(float x) const { return expf((x - best) * inverse); }
  // In units of 2^-40 of the best id's, cut off.
  FL_DEVICE uint64_t mass(float x) const {
    uint32_t bits = float_bits(likeness(x));
    int shift = 127 - (int)(bits >> 23);
    return shift > kMassBits ? 0 : (uint64_t)((bits & 0x7fffffu) | 0x800000u) << (kMassBits - 23) >> shift;
  }

  // The largest of the blocks' values, to every thread.
  FL_DEVICE uint64_t largest(uint64_t x) {
    x = warp_max_rank(x);
    if (lane_idx() == 0) s.scratch[warp_idx()] = x;
    __syncthreads();
    if (warp_idx() == 0) {
      x = warp_max_rank(lane_idx() < kSampleWarps ? s.scratch[lane_idx()] : 0);
      if (lane_idx() == 0) s.best = x;
    }
    sync();
    x = 0;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      uint64_t other = peer(s.best, b);
      x = other > x ? other : x;
    }
    return x;
  }

  // The sum of a digit over the blocks.
  FL_DEVICE uint64_t digit_sum(int digit) const {
    uint64_t sum = 0;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int limb = 0; limb < kLimbs; ++limb) sum += (uint64_t)peer(s.bins[limb][digit], b) << (limb * kLimbBits);
    }
    return sum;
  }

  // The digit at which sums over larger digits first reach what `wanted` makes of the whole; s.above is their sum before it, and
  // s.found its own. Bins are full before, and empty afterwards. Gives what was wanted.
  template <class Wanted>
  FL_DEVICE uint64_t choose_digit(Wanted wanted) {
    constexpr int kShare = kDigits / kBlocks, kEach = kDigits / kSampleThreads;
    sync();
    if (kBlocks > 1) {
      for (int i = threadIdx.x; i < kShare; i += kSampleThreads) s.share[i] = digit_sum(rank() * kShare + i);
      sync();
    }
    uint64_t sums[kEach], own = 0, total;
    int last = kDigits - 1 - (int)threadIdx.x * kEach;
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      int digit = last - n;
      sums[n] = kBlocks == 1 ? digit_sum(digit) : peer(s.share[digit % kShare], digit / kShare), own += sums[n];
    }
    uint64_t before = block_exclusive_sum<kSampleThreads>(own, total, s.scratch), goal = wanted(total);
    clear_bins();
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      if (before < goal && before + sums[n] >= goal) s.digit = (uint32_t)(last - n), s.above = before, s.found = sums[n];
      before += sums[n];
    }
    __syncthreads();
    return goal;
  }

  FL_DEVICE void clear_bins() {
    for (int i = threadIdx.x; i < kLimbs * kDigits; i += kSampleThreads) ((uint32_t*)s.bins)[i] = 0;
  }

  FL_DEVICE void count(uint32_t digit, uint64_t measure) {
    constexpr uint32_t kLimb = (1u << kLimbBits) - 1;
    uint32_t limbs[kLimbs] = {(uint32_t)measure & kLimb, (uint32_t)(measure >> kLimbBits) & kLimb, (uint32_t)(measure >> 2 * kLimbBits)};
#pragma unroll
    for (int limb = 0; limb < kLimbs; ++limb) {
      if (limbs[limb] != 0) atomicAdd(&s.bins[limb][digit], limbs[limb]);
    }
  }

  // The smallest cut within `cut` whose sum of `measure` reaches what `wanted` makes of the whole cut's (at least 1 and at most
  // that). Equal logits measure the same.
  template <class Measure, class Wanted>
  FL_DEVICE Cut cut_reaching(const Cut& cut, Measure measure, Wanted wanted) {
    uint32_t key = 0;
    uint64_t left = 0;
#pragma unroll 1
    for (int shift = 21; shift >= 0; shift = shift == 21 ? 10 : shift - 10) {
      int above = shift == 21 ? 32 : shift == 10 ? 21 : 10;
      __syncthreads();
      each([&](float x, int id) {
        uint32_t k = order_key(x);
        if ((above < 32 && k >> (above % 32) != key) || !cut.keeps(k, id)) return;
        count(k >> shift & ((1u << (above - shift)) - 1), measure(x));
      });
      left = choose_digit([&](uint64_t total) { return shift == 21 ? wanted(total) : left; }) - s.above;
      key = key << (above - shift) | s.digit;
    }
    // Ties are as many as reach what is left.
    uint64_t one = measure(key_value(key));
    if (left + one > s.found) return Cut{key, key == cut.key ? cut.last_tie : vocab};
    auto tie = [&](float x, int id) { return order_key(x) == key && cut.keeps(key, id) ? one : 0; };
    return Cut{key, id_reaching(tie, [&](uint64_t) { return left; })};
  }

  // The id at which the sum of `measure` over ascending ids first reaches what `wanted` makes of the whole; to every thread, -1 if
  // none does.
  template <class Measure, class Wanted>
  FL_DEVICE int id_reaching(Measure measure, Wanted wanted) {
    uint64_t own = 0, total;
    each([&](float x, int id) { own += measure(x, id); });
    own = warp_total(own);
    if (lane_idx() == 0) s.warp_sums[warp_idx()] = own;
    if (threadIdx.x == 0) s.owner = -1, s.id = -1;
    sync();
    int i = threadIdx.x;
    own = i < kBlocks * kSampleWarps ? peer(s.warp_sums[i % kSampleWarps], i / kSampleWarps) : 0;
    uint64_t before = block_exclusive_sum<kSampleThreads>(own, total, s.scratch), goal = wanted(total);
    if (before < goal && before + own >= goal) s.owner = i, s.before = before;
    __syncthreads();
    if (s.owner == rank() * kSampleWarps + warp_idx()) find_in_run(measure, goal);
    sync();
    int id = s.id;
    __syncthreads();
    return id;
  }

  // A warp, in whose run the sum reaches `goal`: the id, to every block.
  template <class Measure>
  FL_DEVICE void find_in_run(Measure measure, uint64_t goal) {
    uint64_t before = s.before;
#pragma unroll 1
    for (int at = 4 * lane_idx(); at < run && before < goal; at += 4 * kWarp) {
      uint64_t own = 0, total;
      each_of(at, [&](float x, int id) { own += measure(x, id); });
      uint64_t sum = before + warp_exclusive_sum(own, total);
      if (sum < goal && sum + own >= goal) {
        each_of(at, [&](float x, int id) {
          if (sum >= goal) return;
          sum += measure(x, id);
          if (sum < goal) return;
#pragma unroll
          for (int b = 0; b < kBlocks; ++b) peer(s.id, b) = id;
        });
      }
      before += total;
    }
  }
};
