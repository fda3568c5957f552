// sample: the next token of each row: greedy, or drawn after top-k, top-p and min-p by a counter-based uniform number.
//
// Bytes: 4 * vocab a row from memory, read once: a cluster of eight blocks, or one block for small vocabularies, holds it.
// Measured on an H200 with cold caches, 129,280 normal logits, top-p 0.95: 45 us for 1 row, 163 for 64, of which 8 and 29 are the
// reading and the best; with a hundred likely ids among them 27 and 97. Next to do: an H200 holds 30 of these clusters at once.
// Notes: (1) no sort: the id at which a filter cuts is found by radix over distance from the best, then logit, then id: counts for
// top-k, masses for top-p; a level ends the search where one id is left; (2) masses are fixed point (2^40 for the best id), so
// sums are integers, the same in every order, and the draw is exact; (3) bins are in limbs of 32 bits, for which shared memory has an
// addition; while many ids count, blocks fill bins of their own and share out their sums, and when few do, every block's; (4) ties at
// a cut go to the smaller ids, and the walk is in ascending ids, by prefix sums over contiguous runs, one a warp; (5) a row with a
// NaN, with +inf, or with nothing but -inf is reported, not drawn; (6) the token goes to the carry too, for the next step's embed.
#include "sample.h"

#include "common/pdl.h"
#include "common/sample_row.h"

static_assert(sizeof(SampleShared) == 25904, "as src/cuda/ops/sample.rs has it");

namespace {

enum Status { kDrawn = 0, kBadRow = 1, kPadded = 2 };

// Above every rank of a number.
constexpr uint64_t kBad = ~(uint64_t)0;

// SplitMix64's finaliser.
FL_DEVICE uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

// 24 bits, of which the draw is made; the same as the Rust side's `sample_uniform`, times 2^24.
FL_DEVICE uint64_t uniform_bits(uint64_t seed, uint32_t position) {
  const uint64_t golden = 0x9e3779b97f4a7c15ull;
  return mix(mix(seed + golden) ^ ((uint64_t)position + 1) * golden) >> 40;
}

// What is asked of a row, read at once.
struct Request {
  float temperature, top_p, min_p;
  int32_t top_k, position, slot;
  uint64_t seed;

  FL_DEVICE Request(const SampleParams& p, int64_t r)
      : temperature(p.temperature[r]),
        top_p(p.top_p[r]),
        min_p(p.min_p[r]),
        top_k(p.top_k[r]),
        position(p.position[r]),
        slot(p.slot[r / p.per_request]),
        seed(p.seed[r]) {}
};

// The id drawn from what the filters keep, kNoId if that is nothing.
template <int kBlocks>
FL_DEVICE uint32_t draw(SampleRow<kBlocks>& row, int vocab, const Request& q) {
  uint64_t bits = uniform_bits(q.seed, (uint32_t)q.position), top_k = (uint64_t)q.top_k;
  Cut cut = Cut::after(kFar - 1);
  if (q.top_k > 0 && q.top_k < vocab) {
    auto one = [](uint32_t distance) { return (uint64_t)(distance < kFar); };
    cut = row.cut_reaching(cut, one, [=](uint64_t all) { return min(top_k, all); });
  }
  if (q.top_p < 1.0f) {
    double share = q.top_p > 0.0f ? (double)q.top_p : 0.0;
    cut = row.cut_reaching(cut, [](uint32_t distance) { return mass_of(distance); }, [=](uint64_t all) {
      double part = (double)all * share;
      uint64_t wanted = (uint64_t)part;
      wanted += (double)wanted < part ? 1 : 0;
      return wanted > 0 ? wanted : 1;
    });
  }
  // No number is at least one that is none; a mass is a whole number.
  uint64_t least = q.min_p > 0.0f ? (uint64_t)ceil(min((double)q.min_p, 2.0) * (double)((uint64_t)1 << kMassBits)) : 0;
  auto kept = [&](float x, uint32_t id) {
    uint32_t distance = row.distance(x);
    uint64_t mass = mass_of(distance);
    return cut.keeps(distance, x, id) && mass >= least ? mass : 0;
  };
  // The first id whose sum exceeds uniform * total.
  return row.id_reaching(kept, [=](uint64_t total) { return (total >> 24) * bits + (((total & 0xffffffu) * bits) >> 24) + 1; });
}

// The number with that key; +0 for both zeros.
FL_DEVICE float key_value(uint32_t key) { return bits_float((key & 0x80000000u) != 0 ? key ^ 0x80000000u : ~key); }

// One thread of the row's blocks.
FL_DEVICE void finish(const SampleParams& p, int64_t r, const Request& q, int32_t token, Status status) {
  p.token[r] = token, p.status[r] = status;
  if (q.position >= 0 && q.slot >= 0 && q.slot < p.slots) p.carry[(int64_t)q.slot * 2 + q.position % 2] = token;
}

template <int kBlocks>
FL_DEVICE void sample_row(const SampleParams& p, unsigned char* shared) {
  SampleShared& s = *(SampleShared*)shared;
  int64_t r = blockIdx.x / kBlocks;
  bool writes = blockIdx.x % kBlocks == 0 && threadIdx.x == 0;
  Request q(p, r);
  if (q.position < 0) {
    if (writes) finish(p, r, q, -1, kPadded);
    return;
  }
  SampleRow<kBlocks> row(p, r, (float*)(shared + sizeof(SampleShared)), s);
  // Of equal ones the first: a lane's ids ascend.
  float top = -INFINITY;
  uint32_t at = (uint32_t)row.first;
  bool bad = false;
  row.each([&](float x, uint32_t id) {
    bad |= !(x < INFINITY);
    if (x > top) top = x, at = id;
  });
  uint64_t best = row.largest(bad ? kBad : order_rank(top, at));
  int token = (int)rank_index(best);
  Status status = best == kBad || (uint32_t)(best >> 32) == order_key(-INFINITY) ? kBadRow : kDrawn;
  if (status == kDrawn && q.temperature > 0.0f) {
    row.best = key_value((uint32_t)(best >> 32));
    // Of the smallest temperatures the inverse is no number.
    row.scale = fminf(1.44269504f * (1 << kFractionBits) / q.temperature, 3.4028235e38f);
    uint32_t drawn = draw(row, p.vocab, q);
    token = drawn == kNoId ? token : (int)drawn;
  } else if (kBlocks > 1) {
    // No block ends while others read what it found.
    cluster_sync();
  }
  if (writes) finish(p, r, q, status == kDrawn ? token : -1, status);
}

}  // namespace

FL_KERNEL_BLOCKS(kSampleThreads, 2, sample, SampleParams) {
  FL_DYNAMIC_SHARED(shared);
  pdl_wait();
  sample_row<1>(p, shared);
}

FL_KERNEL_CLUSTER(kSampleThreads, 2, kSampleBlocks, sample_cluster, SampleParams) {
  FL_DYNAMIC_SHARED(shared);
  pdl_wait();
  sample_row<kSampleBlocks>(p, shared);
}
