// query: each head of 512 divided by its root mean square (no gain), its last 64 dims rotated; f32, rounded once.
//
// Bytes: 2 KiB a head, half read and half written; 128 KiB a token with 64 heads.
// Notes: (1) a warp owns a head and a lane 16 neighbouring dims, so a rotation pair stays in a lane and no barrier is
// needed; (2) a lane's values and angles are in flight before the first use.
#include "query.h"

#include "common/pdl.h"
#include "common/reduce.h"
#include "common/rows.h"

constexpr int kThreads = 128;
constexpr int kPerLane = kHeadDim / kWarp;
static_assert(kPerLane == 16 && kNopeDim % kPerLane == 0, "the rotated dims begin at a lane");

FL_KERNEL(kThreads, query, QueryParams) {
  pdl_wait();
  int64_t row = (int64_t)blockIdx.x * (kThreads / kWarp) + warp_idx();
  if (row >= p.rows) return;
  int32_t position = p.position[row / p.heads];
  int first = lane_idx() * kPerLane;
  const uint16_t* q = p.q + row * kHeadDim + first;
  uint16_t* out = p.out + row * kHeadDim + first;

  float low[8], high[8], v[kPerLane];
  load_bf16x8(q, low);
  load_bf16x8(q + 8, high);
  float2 angles[kPerLane / 2] = {};
  bool turns = first >= kNopeDim && position >= 0;
  if (turns) load_angles(angles, rope_angles(p.rope, position, p.max_positions, (first - kNopeDim) / 2));
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = low[i], v[i + 8] = high[i];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) squares = fmaf(v[i], v[i], squares);
  float scale = 1.0f / sqrtf(warp_sum(squares) / (float)kHeadDim + p.eps);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) v[i] = position < 0 ? 0.0f : v[i] * scale;
  if (turns) rotate_by(v, angles, 1.0f);
#pragma unroll
  for (int i = 0; i < 8; ++i) low[i] = v[i], high[i] = v[i + 8];
  store_bf16x8(out, low);
  store_bf16x8(out + 8, high);
}
