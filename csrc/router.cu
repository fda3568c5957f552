// router: the experts of a token, the k best of score + bias or a row of a table, and their normalised weights.
//
// Bytes: 4 * experts read a token; at decode the launch is the cost.
// Notes: (1) a warp a token, whose lanes hold every 32nd score in registers; k rounds of a warp-wide maximum over the keys, ties to
// the smaller id, in which only the lane that had the best looks for its next; (2) the chosen are written in ascending id, so that
// the experts that follow add in that order; (3) ids from a table are checked against the number of experts before use; (4) all
// loads are under way at once.
#include "router.h"

#include "common/order.h"
#include "common/pdl.h"
#include "common/reduce.h"

constexpr int kMaxExperts = 1024;

namespace {

// sqrt(softplus(x)).
FL_DEVICE float score(float x) { return sqrtf(x > 20.0f ? x : log1pf(expf(x))); }

// The lane's `lane`-th of the k best by score + bias, -1 if there are fewer; all scores go to `scores`. A lane holds `kEach`.
template <int kEach>
FL_DEVICE int32_t choose_scored(const RouterParams& p, const float* logits, float* scores) {
  int lane = lane_idx();
  float logit[kEach], bias[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    int e = lane + i * kWarp;
    logit[i] = e < p.experts ? logits[e] : 0.0f, bias[i] = e < p.experts ? p.bias[e] : 0.0f;
  }
  uint32_t keys[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    int e = lane + i * kWarp;
    float found = score(logit[i]);
    keys[i] = e < p.experts ? order_key(found + bias[i]) + 1 : 0;
    if (e < p.experts) scores[e] = found;
  }
  int32_t chosen = -1;
  for (int round = 0; round < p.k; ++round) {
    uint32_t best = 0, at = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (keys[i] > best) best = keys[i], at = i;
    }
    uint32_t largest = warp_max(best);
    if (largest == 0) break;
    uint32_t expert = warp_min(best == largest ? lane + at * kWarp : 0xffffffffu);
    if (lane == round) chosen = (int32_t)expert;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (lane + i * kWarp == (int)expert) keys[i] = 0;
    }
  }
  return chosen;
}

// The lane's expert in its token's row of the table.
FL_DEVICE int32_t choose_hashed(const RouterParams& p, int32_t token) {
  int lane = lane_idx();
  int32_t id = lane < p.k && token >= 0 && token < p.vocab ? p.table[(int64_t)token * p.k + lane] : -1;
  return id >= 0 && id < p.experts ? id : -1;
}

// The first k lanes' ids in ascending order, -1 last.
FL_DEVICE int32_t sorted(int32_t id, int k) {
  int lane = lane_idx(), place = 0;
  for (int i = 0; i < k; ++i) {
    uint32_t other = (uint32_t)__shfl_sync(kFullMask, id, i);
    place += other < (uint32_t)id || (other == (uint32_t)id && i < lane);
  }
  int32_t found = -1;
  for (int i = 0; i < k; ++i) {
    int to = __shfl_sync(kFullMask, place, i);
    int32_t other = __shfl_sync(kFullMask, id, i);
    found = to == lane ? other : found;
  }
  return found;
}

}  // namespace

FL_KERNEL(kWarp, router, RouterParams) {
  __shared__ float scores[kMaxExperts];
  pdl_wait();
  int64_t t = blockIdx.x;
  int lane = lane_idx();
  const float* logits = p.logits + t * p.experts;
  int32_t position = p.position[t], id = -1;
  float found = 0.0f;
  if (p.bias != nullptr) {
    id = p.experts <= 8 * kWarp ? choose_scored<8>(p, logits, scores) : choose_scored<kMaxExperts / kWarp>(p, logits, scores);
  } else {
    id = choose_hashed(p, p.token[t]);
  }
  id = sorted(position < 0 ? -1 : id, p.k);
  __syncwarp();
  if (id >= 0) found = p.bias != nullptr ? scores[id] : score(logits[id]);
  float sum = 0.0f;
  for (int i = 0; i < p.k; ++i) {
    float other = __shfl_sync(kFullMask, found, i);
    if (__shfl_sync(kFullMask, id, i) >= 0) sum += other;
  }
  if (lane >= p.k) return;
  p.ids[t * p.k + lane] = id;
  p.weights[t * p.k + lane] = id < 0 ? 0.0f : p.factor * found / sum;
}
