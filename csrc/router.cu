// router: the experts of a token, the k best of score + bias or a row of a table, and their normalised weights.
//
// Bytes: 4 * experts read a token; at decode the launch is the cost.
// Notes: (1) a warp a token; k rounds of a warp-wide maximum over (key, index), exact and with ties to the smaller id;
// (2) the chosen are written in ascending id, so that the experts that follow add in that order; (3) ids from a table are
// checked against the number of experts before use.
#include "router.h"

#include "common/order.h"
#include "common/pdl.h"

constexpr int kMaxExperts = 1024;
constexpr int kMaxChosen = 32;

namespace {

// sqrt(softplus(x)).
FL_DEVICE float score(float x) { return sqrtf(x > 20.0f ? x : log1pf(expf(x))); }

// The k best of a warp, one a round; `ranks` is used up.
FL_DEVICE void choose_scored(const RouterParams& p, const float* logits, uint64_t* ranks, int32_t* chosen) {
  int lane = lane_idx();
  for (int e = lane; e < p.experts; e += kWarp) ranks[e] = order_rank(score(logits[e]) + p.bias[e], (uint32_t)e);
  for (int round = 0; round < p.k; ++round) {
    uint64_t best = 0;
    for (int e = lane; e < p.experts; e += kWarp) best = ranks[e] > best ? ranks[e] : best;
    best = warp_max_rank(best);
    int expert = (int)rank_index(best);
    if (lane == round % kWarp) chosen[round] = best == 0 ? -1 : expert;
    if (best != 0 && expert % kWarp == lane) ranks[expert] = 0;
  }
}

FL_DEVICE void choose_hashed(const RouterParams& p, int64_t t, int32_t* chosen) {
  int32_t token = p.token[t];
  int lane = lane_idx();
  if (lane >= p.k) return;
  int32_t id = token >= 0 && token < p.vocab ? p.table[(int64_t)token * p.k + lane] : -1;
  chosen[lane] = id >= 0 && id < p.experts ? id : -1;
}

// Ascending, -1 last.
FL_DEVICE void sort_ids(int32_t* ids, int k) {
  for (int i = 1; i < k; ++i) {
    int32_t id = ids[i];
    int j = i;
    for (; j > 0 && (uint32_t)ids[j - 1] > (uint32_t)id; --j) ids[j] = ids[j - 1];
    ids[j] = id;
  }
}

}  // namespace

FL_KERNEL(kWarp, router, RouterParams) {
  __shared__ uint64_t ranks[kMaxExperts];
  __shared__ int32_t chosen[kMaxChosen];
  pdl_wait();
  int64_t t = blockIdx.x;
  int lane = lane_idx();
  const float* logits = p.logits + t * p.experts;
  if (lane < p.k) chosen[lane] = -1;
  __syncwarp();
  if (p.position[t] >= 0) {
    if (p.bias != nullptr) {
      choose_scored(p, logits, ranks, chosen);
    } else {
      choose_hashed(p, t, chosen);
    }
  }
  __syncwarp();
  if (lane == 0) sort_ids(chosen, p.k);
  __syncwarp();
  if (lane >= p.k) return;
  float sum = 0.0f;
  for (int i = 0; i < p.k; ++i) {
    if (chosen[i] >= 0) sum += score(logits[chosen[i]]);
  }
  int32_t id = chosen[lane];
  p.ids[t * p.k + lane] = id;
  p.weights[t * p.k + lane] = id < 0 ? 0.0f : p.factor * score(logits[id]) / sum;
}
