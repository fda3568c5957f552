// router: the experts of a token, the k best of score + bias or a row of a table, and their normalised weights.
//
// Bytes: 4 * experts read a token; at decode the launch is the cost.
// Notes: (1) a block scores a token's experts and a warp chooses, every 32nd key in a lane's registers; k rounds of a warp-wide
// maximum over the keys, ties to the smaller id; (2) the chosen are written in ascending id, so that
// the experts that follow add in that order; (3) ids from a table are checked against the number of experts before use; (4) all
// loads are under way at once.
#include "router.h"

#include "common/order.h"
#include "common/pdl.h"
#include "common/reduce.h"

constexpr int kThreads = 128;
constexpr int kMaxExperts = 1024;

namespace {

// sqrt(softplus(x)).
FL_DEVICE float score(float x) { return sqrtf(x > 20.0f ? x : log1pf(expf(x))); }

// All experts' scores, and their keys; larger keys are better, zero is none.
FL_DEVICE void score_all(const RouterParams& p, const float* logits, float* scores, uint32_t* keys) {
#pragma unroll 2
  for (int e = threadIdx.x; e < p.experts; e += kThreads) {
    float bias = p.bias[e], found = score(logits[e]);
    scores[e] = found, keys[e] = order_key(found + bias) + 1;
  }
}

// A warp: the lane's `lane`-th of the k best by key, -1 if there are fewer. A lane holds `kEach`.
template <int kEach>
FL_DEVICE int32_t choose_scored(const RouterParams& p, const uint32_t* all) {
  int lane = lane_idx();
  uint32_t keys[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) keys[i] = lane + i * kWarp < p.experts ? all[lane + i * kWarp] : 0;
  int32_t chosen = -1;
  for (int round = 0; round < p.k; ++round) {
    uint32_t best[kEach], at[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) best[i] = keys[i], at[i] = i;
#pragma unroll
    for (int step = 1; step < kEach; step *= 2) {
#pragma unroll
      for (int i = 0; i < kEach; i += 2 * step) {
        if (best[i + step] > best[i]) best[i] = best[i + step], at[i] = at[i + step];
      }
    }
    uint32_t largest = warp_max(best[0]);
    if (largest == 0) break;
    uint32_t expert = warp_min(best[0] == largest ? lane + at[0] * kWarp : 0xffffffffu);
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

FL_KERNEL(kThreads, router, RouterParams) {
  __shared__ float scores[kMaxExperts];
  __shared__ uint32_t keys[kMaxExperts];
  pdl_wait();
  int64_t t = blockIdx.x;
  int lane = lane_idx();
  const float* logits = p.logits + t * p.experts;
  int32_t position = p.position[t], id = -1;
  float found = 0.0f;
  if (p.bias != nullptr) {
    score_all(p, logits, scores, keys);
    __syncthreads();
    if (warp_idx() > 0) return;
    id = p.experts <= 8 * kWarp ? choose_scored<8>(p, keys) : choose_scored<kMaxExperts / kWarp>(p, keys);
  } else {
    if (warp_idx() > 0) return;
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
