// sample: the next token of each row: greedy, or drawn after top-k, top-p and min-p by a counter-based uniform number.
//
// Bytes: 4 * vocab a row from memory, later passes from cache (517 KB at 129,280 ids); one block a row.
// Notes: (1) no sort: the id at which a filter cuts is found by radix over (key, then index): counts for top-k, masses for
// top-p; (2) masses are fixed point (2^40 for the best id), so sums are integers, the same in every order, and the draw is
// exact; (3) ties at a cut go to the smaller ids, and the walk is in ascending ids, by prefix sums over contiguous runs;
// (4) a row with a NaN, with +inf, or with nothing but -inf is reported, not drawn; (5) the token goes to the carry too, for
// the next step's embed.
#include "sample.h"

#include "common/order.h"
#include "common/pdl.h"

constexpr int kThreads = 1024;
constexpr int kDigits = 256;
constexpr float kFixedPoint = 1099511627776.0f;
enum Status { kDrawn = 0, kBadRow = 1, kPadded = 2 };

namespace {

struct Shared {
  uint64_t bins[kDigits];
  uint64_t scratch[kThreads / kWarp];
  uint64_t best;
  uint64_t above, key;
  int32_t token;
  uint32_t bad;
};

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

struct Row {
  const float* logits;
  int vocab;
  float best, temperature;

  FL_DEVICE uint32_t key(int i) const { return order_key(logits[i]); }
  FL_DEVICE float likeness(int i) const { return expf((logits[i] - best) / temperature); }
  FL_DEVICE uint64_t mass(int i) const { return (uint64_t)(likeness(i) * kFixedPoint); }
};

// A cut in the order (key falling, id rising): ids with a larger key are kept, and those at `key` up to `last_tie`.
struct Cut {
  uint32_t key;
  int last_tie;

  FL_DEVICE bool keeps(uint32_t k, int i) const { return k > key || (k == key && i <= last_tie); }
};

template <class Measure>
FL_DEVICE uint64_t total_of(const Row& row, const Cut& cut, Measure measure, Shared& s) {
  uint64_t sum = 0, total;
  for (int i = threadIdx.x; i < row.vocab; i += kThreads) sum += cut.keeps(row.key(i), i) ? measure(i) : 0;
  block_exclusive_sum<kThreads>(sum, total, s.scratch);
  return total;
}

// Ids of this thread: a contiguous run, so that a prefix sum over threads is one over ids.
FL_DEVICE void run_of(const Row& row, int& begin, int& end) {
  int length = (row.vocab + kThreads - 1) / kThreads;
  begin = min((int)threadIdx.x * length, row.vocab);
  end = min(begin + length, row.vocab);
}

// The id at which the sum of `measure` over ids that `counts`, in ascending order, first reaches `wanted` (> 0).
template <class Counts, class Measure>
FL_DEVICE int id_reaching(const Row& row, uint64_t wanted, Counts counts, Measure measure, Shared& s) {
  int begin, end;
  run_of(row, begin, end);
  uint64_t own = 0, total;
  for (int i = begin; i < end; ++i) own += counts(i) ? measure(i) : 0;
  uint64_t before = block_exclusive_sum<kThreads>(own, total, s.scratch);
  if (threadIdx.x == 0) s.token = -1;
  __syncthreads();
  if (before < wanted && before + own >= wanted) {
    for (int i = begin; i < end; ++i) {
      before += counts(i) ? measure(i) : 0;
      if (before >= wanted) {
        s.token = i;
        break;
      }
    }
  }
  __syncthreads();
  int id = s.token;
  __syncthreads();
  return id;
}

// The smallest cut within `cut` whose sum of `measure` reaches `wanted`, which the whole reaches.
template <class Measure>
FL_DEVICE Cut cut_reaching(const Row& row, const Cut& cut, uint64_t wanted, Measure measure, Shared& s) {
  uint32_t key = 0, mask = 0;
  uint64_t left = wanted;
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = threadIdx.x; i < kDigits; i += kThreads) s.bins[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < row.vocab; i += kThreads) {
      uint32_t k = row.key(i);
      if ((k & mask) == key && cut.keeps(k, i)) {
        uint64_t m = measure(i);
        if (m != 0) atomicAdd((unsigned long long*)&s.bins[k >> shift & (kDigits - 1)], (unsigned long long)m);
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      int digit = kDigits - 1;
      uint64_t above = 0;
      while (digit > 0 && above + s.bins[digit] < left) above += s.bins[digit--];
      s.above = above;
      s.key = (uint64_t)digit;
    }
    __syncthreads();
    left -= s.above;
    key |= (uint32_t)s.key << shift;
    mask |= 0xffu << shift;
    __syncthreads();
  }
  int last = id_reaching(row, left, [&](int i) { return row.key(i) == key && cut.keeps(key, i); }, measure, s);
  return Cut{key, last < 0 ? row.vocab : last};
}

FL_DEVICE int draw(const Row& row, const SampleParams& p, int64_t r, int best, Shared& s) {
  auto one = [](int) { return (uint64_t)1; };
  auto mass = [&row](int i) { return row.mass(i); };
  Cut cut{0, row.vocab};
  if (p.top_k[r] > 0 && p.top_k[r] < row.vocab) cut = cut_reaching(row, cut, (uint64_t)p.top_k[r], one, s);
  float top_p = p.top_p[r];
  if (top_p < 1.0f) {
    uint64_t all = total_of(row, cut, mass, s);
    double part = (double)all * (top_p > 0.0f ? (double)top_p : 0.0);
    uint64_t wanted = (uint64_t)part;
    wanted += (double)wanted < part ? 1 : 0;
    cut = cut_reaching(row, cut, wanted > 0 ? wanted : 1, mass, s);
  }
  float min_p = p.min_p[r];
  auto kept = [&](int i) { return cut.keeps(row.key(i), i) && !(row.likeness(i) < min_p); };
  auto kept_mass = [&](int i) { return kept(i) ? row.mass(i) : (uint64_t)0; };
  uint64_t total = total_of(row, cut, kept_mass, s);
  // The first id whose sum exceeds uniform * total.
  uint64_t bits = uniform_bits(p.seed[r], (uint32_t)p.position[r]);
  uint64_t wanted = (total >> 24) * bits + (((total & 0xffffffu) * bits) >> 24) + 1;
  int id = id_reaching(row, wanted, kept, mass, s);
  return id < 0 ? best : id;
}

// One thread of the row's block.
FL_DEVICE void finish(const SampleParams& p, int64_t r, int32_t token, Status status) {
  p.token[r] = token, p.status[r] = status;
  int32_t position = p.position[r], slot = p.slot[r / p.per_request];
  if (position >= 0 && slot >= 0 && slot < p.slots) p.carry[(int64_t)slot * 2 + position % 2] = token;
}

}  // namespace

FL_KERNEL(kThreads, sample, SampleParams) {
  __shared__ Shared s;
  pdl_wait();
  int64_t r = blockIdx.x;
  if (p.position[r] < 0) {
    if (threadIdx.x == 0) finish(p, r, -1, kPadded);
    return;
  }
  Row row{p.logits + r * p.vocab, p.vocab, 0.0f, p.temperature[r]};
  if (threadIdx.x == 0) s.best = 0, s.bad = 0;
  __syncthreads();
  uint64_t best = 0;
  bool bad = false;
  for (int i = threadIdx.x; i < row.vocab; i += kThreads) {
    float x = row.logits[i];
    bad |= !(x < INFINITY);
    uint64_t rank = order_rank(x, (uint32_t)i);
    best = rank > best ? rank : best;
  }
  best = warp_max_rank(best);
  if (lane_idx() == 0) atomicMax((unsigned long long*)&s.best, (unsigned long long)best);
  if (bad) atomicOr(&s.bad, 1u);
  __syncthreads();
  int id = (int)rank_index(s.best);
  if (s.bad != 0 || row.logits[id] == -INFINITY) {
    if (threadIdx.x == 0) finish(p, r, -1, kBadRow);
    return;
  }
  row.best = row.logits[id];
  if (row.temperature > 0.0f) id = draw(row, p, r, id, s);
  if (threadIdx.x == 0) finish(p, r, id, kDrawn);
}
