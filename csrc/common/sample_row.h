// A row of logits as the blocks of a cluster share it out, and what `sample` asks of it: sums that are integers, so that they are the
// same in every order, cuts in the order of likelihood, and ids by ascending sums.
//
// Likelihoods are powers of two, of a distance from the best id in units of 2^-23; so a mass is what the distance says alone.
#pragma once

#include "../sample.h"
#include "cluster.h"
#include "order.h"
#include "reduce.h"

constexpr int kSampleThreads = 512;
constexpr int kSampleWarps = kSampleThreads / kWarp;
constexpr int kSampleBlocks = 8;
// Codes are looked at ten bits at a time.
constexpr int kDigitBits = 10;
constexpr int kDigits = 1 << kDigitBits;
// A mass is three limbs of 14 bits; each sums 2^18 ids without overflow.
constexpr int kLimbBits = 14;
constexpr int kLimbs = 3;
constexpr int kMassBits = 40;
constexpr int kFractionBits = 23;
// A distance of 2^6 or more: no mass.
constexpr uint32_t kFar = 64u << kFractionBits;
// Up to so many ids are counted in every block's bins at once.
constexpr uint64_t kScattered = 1024;
constexpr uint32_t kNoId = 0xffffffffu;

struct __align__(16) SampleShared {
  // In turn, so that one is empty while the other is read.
  uint32_t bins[2][kLimbs][kDigits];
  // Of a cluster's block: the sums of its share of the digits.
  uint64_t share[kDigits / kSampleBlocks];
  uint64_t scratch[kSampleWarps], warp_sums[kSampleWarps];
  uint64_t best, above, found, before;
  uint32_t digit, owner, id, pad;
};

// What a filter keeps: ids nearer to the best than `distance`, and of those at it the ones whose falling key is below `key`, and of
// those at it the ones below `id`.
struct Cut {
  uint32_t distance, key, id;

  // All ids up to a distance.
  FL_DEVICE static Cut after(uint32_t last) { return Cut{last + 1, 0, 0}; }
  FL_DEVICE bool keeps(uint32_t d, float x, uint32_t i) const {
    bool kept = d < distance;
    if ((key | id) != 0 && d == distance) {
      uint32_t k = ~order_key(x);
      kept = k < key || (k == key && i < id);
    }
    return kept;
  }
};

// Where an order is cut: the last code that is kept, whether all ids with it are, and if not, what of them is still wanted.
struct Reached {
  uint32_t code;
  bool whole;
  uint64_t left;
};

// 2^x for x in (-1, 0], within a few roundings.
FL_DEVICE float quick_exp2(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return exp2f(x);
#endif
}

FL_DEVICE uint64_t warp_total(uint64_t x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(kFullMask, x, step);
  return x;
}

// In units of 2^-40 of the best id's, cut off.
FL_DEVICE uint64_t mass_of(uint32_t distance) {
  constexpr uint32_t kFraction = (1u << kFractionBits) - 1;
  // 1 plus the fraction, and from it 2 to the fraction's negative, in (1/2, 1]; in units of 2^-24.
  uint32_t bits = float_bits(quick_exp2(1.0f - bits_float(0x3f800000u | (distance & kFraction))));
  uint32_t whole = ((bits & kFraction) | (1u << kFractionBits)) << ((bits >> kFractionBits) - 126);
  return (uint64_t)whole << (kMassBits - 24) >> min(distance >> kFractionBits, 63u);
}

template <int kBlocks>
struct SampleRow {
  SampleShared& s;
  // The warp's run in shared memory: ids `first` .. of the row, -inf past its end.
  float* values;
  int first, run;
  float best, scale;
  int bins;

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
      : s(s), run(p.run), best(0.0f), scale(0.0f), bins(0) {
    first = (rank() * kSampleWarps + warp_idx()) * run;
    values = stage + warp_idx() * run;
    const float* from = p.logits + row * p.vocab + first;
    int left = p.vocab - first;
    if (p.vocab % 4 == 0) {
#pragma unroll 8
      for (int at = 4 * lane_idx(); at < run; at += 4 * kWarp) {
        float4 none{-INFINITY, -INFINITY, -INFINITY, -INFINITY};
        *(float4*)(values + at) = at < left ? *(const float4*)(from + at) : none;
      }
    } else {
      for (int at = 4 * lane_idx(); at < run; at += 4 * kWarp) {
        for (int i = at; i < at + 4; ++i) values[i] = i < left ? from[i] : -INFINITY;
      }
    }
    for (int i = threadIdx.x; i < 2 * kLimbs * kDigits; i += kSampleThreads) ((uint32_t*)s.bins)[i] = 0;
  }

  // f(logit, id) for this lane's four ids from `at` on, and for all of its ids.
  template <class F>
  FL_DEVICE void each_of(int at, F f) const {
    float4 v = *(const float4*)(values + at);
    uint32_t id = (uint32_t)(first + at);
    f(v.x, id), f(v.y, id + 1), f(v.z, id + 2), f(v.w, id + 3);
  }
  template <class F>
  FL_DEVICE void each(F f) const {
#pragma unroll 2
    for (int at = 4 * lane_idx(); at < run; at += 4 * kWarp) each_of(at, f);
  }

  // How far a logit is from the best, times log2(e) / temperature.
  FL_DEVICE uint32_t distance(float x) const { return (uint32_t)fminf((best - x) * scale, (float)kFar); }

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

  FL_DEVICE void count(uint32_t digit, uint64_t measure, bool scattered) {
    constexpr uint32_t kLimb = (1u << kLimbBits) - 1;
    uint32_t limbs[kLimbs] = {(uint32_t)measure & kLimb, (uint32_t)(measure >> kLimbBits) & kLimb, (uint32_t)(measure >> 2 * kLimbBits)};
#pragma unroll
    for (int limb = 0; limb < kLimbs; ++limb) {
      if (limbs[limb] == 0) continue;
      uint32_t& bin = s.bins[bins][limb][digit];
      if (kBlocks == 1 || !scattered) {
        atomicAdd(&bin, limbs[limb]);
      } else {
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) atomicAdd(&peer(bin, b), limbs[limb]);
      }
    }
  }

  // The sum of a digit over the bins of all blocks, or of this one.
  template <int kOf>
  FL_DEVICE uint64_t digit_sum(int digit) const {
    uint64_t sum = 0;
#pragma unroll
    for (int b = 0; b < kOf; ++b) {
#pragma unroll
      for (int limb = 0; limb < kLimbs; ++limb) {
        uint32_t& bin = s.bins[bins][limb][digit];
        sum += (uint64_t)(kOf == 1 ? bin : peer(bin, b)) << (limb * kLimbBits);
      }
    }
    return sum;
  }

  // The digit at which sums over smaller digits first reach what `wanted` makes of the whole; s.above is their sum before it, and
  // s.found its own. The bins are full before, and empty afterwards. Gives what was wanted.
  template <class Wanted>
  FL_DEVICE uint64_t choose_digit(bool scattered, Wanted wanted) {
    constexpr int kShare = kDigits / kBlocks, kEach = kDigits / kSampleThreads;
    bool shared = kBlocks > 1 && !scattered;
    sync();
    if (shared) {
      for (int i = threadIdx.x; i < kShare; i += kSampleThreads) s.share[i % kShare] = digit_sum<kBlocks>(rank() * kShare + i);
      sync();
    }
    uint64_t sums[kEach], own = 0, total;
    int start = (int)threadIdx.x * kEach;
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      int digit = start + n;
      sums[n] = shared ? peer(s.share[digit % kShare], digit / kShare) : digit_sum<1>(digit), own += sums[n];
    }
    uint64_t before = block_exclusive_sum<kSampleThreads>(own, total, s.scratch), goal = wanted(total);
    for (int i = threadIdx.x; i < kLimbs * kDigits; i += kSampleThreads) ((uint32_t*)s.bins[bins])[i] = 0;
    bins = 1 - bins;
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
      if (before < goal && before + sums[n] >= goal) s.digit = (uint32_t)(start + n), s.above = before, s.found = sums[n];
      before += sums[n];
    }
    __syncthreads();
    return goal;
  }

  // Where ids in ascending order of `code`, of 10 more bits than `shift`, reach what `wanted` makes of the whole, by what `measure`
  // gives of a logit, an id and a code; `least` is the least that one with a code, or a smaller one, may measure.
  template <class Code, class Measure, class Least, class Wanted>
  FL_DEVICE Reached reach(int shift, Code code, Measure measure, Least least, Wanted wanted) {
    each([&](float x, uint32_t id) {
      uint32_t c = code(x, id);
      count(c >> shift, measure(x, id, c), false);
    });
    uint64_t left = choose_digit(false, wanted) - s.above;
    uint32_t lead = s.digit;
    for (int level = shift;; level -= kDigitBits) {
      uint32_t last = ((lead + 1) << level) - 1;
      uint64_t found = s.found, one = least(last);
      // All of them, for what is left takes the last of them.
      if (left + one > found) return Reached{last, true, 0};
      if (level == 0) return Reached{last, false, left};
      bool scattered = one != 0 && found / one <= kScattered;
      each([&](float x, uint32_t id) {
        uint32_t c = code(x, id);
        if (c >> level == lead) count(c >> (level - kDigitBits) & (kDigits - 1), measure(x, id, c), scattered);
      });
      left = choose_digit(scattered, [&](uint64_t) { return left; }) - s.above;
      lead = lead << kDigitBits | s.digit;
    }
  }

  // The smallest cut within `cut` whose sum of `measure`, by distance, reaches what `wanted` makes of the whole cut's.
  template <class Measure, class Wanted>
  FL_DEVICE Cut cut_reaching(const Cut& cut, Measure measure, Wanted wanted) {
    auto by_distance = [&](float x, uint32_t) { return distance(x); };
    auto kept = [&](float x, uint32_t id, uint32_t d) { return cut.keeps(d, x, id) ? measure(d) : 0; };
    Reached near = reach(2 * kDigitBits, by_distance, kept, measure, wanted);
    if (!near.whole) return cut_ties(cut, near, measure(near.code));
    return near.code < cut.distance ? Cut::after(near.code) : cut;
  }

  // The cut among ids at one distance, each measuring `one`: by the logits themselves, and of equal ones the smaller ids. Not
  // inlined: it is rare.
  FL_RARE Cut cut_ties(const Cut& cut, const Reached& near, uint64_t one) {
    bool last = near.code == cut.distance;
    auto same = [=](uint32_t) { return one; };
    auto by_key = [&](float x, uint32_t) { return ~order_key(x); };
    auto at = [&](float x, uint32_t id, uint32_t) { return distance(x) == near.code && cut.keeps(near.code, x, id) ? one : 0; };
    Reached tied = reach(3 * kDigitBits, by_key, at, same, [&](uint64_t) { return near.left; });
    if (tied.whole) return last && tied.code >= cut.key ? cut : Cut{near.code, min(tied.code, kNoId - 1) + 1, 0};
    auto by_id = [](float, uint32_t id) { return id; };
    auto equal = [&](float x, uint32_t id, uint32_t) { return ~order_key(x) == tied.code ? at(x, id, 0) : 0; };
    uint32_t id = reach(2 * kDigitBits, by_id, equal, same, [&](uint64_t) { return tied.left; }).code;
    return Cut{near.code, tied.code, last && tied.code == cut.key ? min(id + 1, cut.id) : id + 1};
  }

  // The id at which the sum of `measure` over ascending ids first reaches what `wanted` makes of the whole, kNoId if none does; to
  // the first block.
  template <class Measure, class Wanted>
  FL_DEVICE uint32_t id_reaching(Measure measure, Wanted wanted) {
    uint64_t own = 0, total;
    each([&](float x, uint32_t id) { own += measure(x, id); });
    own = warp_total(own);
    if (lane_idx() == 0) s.warp_sums[warp_idx()] = own;
    if (threadIdx.x == 0) s.owner = s.id = kNoId;
    sync();
    uint32_t i = threadIdx.x;
    own = i < kBlocks * kSampleWarps ? peer(s.warp_sums[i % kSampleWarps], i / kSampleWarps) : 0;
    uint64_t before = block_exclusive_sum<kSampleThreads>(own, total, s.scratch), goal = wanted(total);
    if (before < goal && before + own >= goal) s.owner = i, s.before = before;
    __syncthreads();
    if (s.owner == (uint32_t)(rank() * kSampleWarps + warp_idx())) find_in_run(measure, goal);
    sync();
    return s.id;
  }

  // A warp, in whose run the sum reaches `goal`: the id, to the first block.
  template <class Measure>
  FL_DEVICE void find_in_run(Measure measure, uint64_t goal) {
    uint64_t before = s.before;
#pragma unroll 1
    for (int at = 4 * lane_idx(); at < run && before < goal; at += 4 * kWarp) {
      uint64_t own = 0, total;
      each_of(at, [&](float x, uint32_t id) { own += measure(x, id); });
      uint64_t sum = before + warp_exclusive_sum(own, total);
      if (sum < goal && sum + own >= goal) {
        each_of(at, [&](float x, uint32_t id) {
          uint64_t next = sum + measure(x, id);
          if (sum < goal && next >= goal) peer(s.id, 0) = id;
          sum = next;
        });
      }
      before += total;
    }
  }
};
