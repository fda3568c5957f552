// rope_store: norm, rotation, rounding and page store of a token's window key/value row, in one launch.
//
// Bytes: 1,024 read and 584 (fp8) or 1,024 (bf16) written a token; at decode the launch is the cost.
// Notes: (1) a warp owns a token and a lane 16 neighbouring dims: one scale tile is four lanes, a rotation pair one lane,
// and nothing needs a barrier; (2) gains are read before the wait, angles before the norm; (3) 64-bit page offsets; a slot outside
// the pool is not stored.
#include "rope_store.h"

#include "common/kv_row.h"
#include "common/pdl.h"
#include "common/rows.h"

constexpr int kThreads = 128;
constexpr int kPageRows = 64;

FL_KERNEL(kThreads, rope_store, RopeStoreParams) {
  int first = lane_idx() * 16;
  float low[8], high[8], v[16], gains[16];
  load_gains(p.norm, first, gains);
  pdl_wait();
  int64_t t = (int64_t)blockIdx.x * (kThreads / kWarp) + warp_idx();
  if (t >= p.rows) return;
  int32_t position = p.position[t];
  int64_t slot = p.slot[t];
  load_bf16x8(p.kv + t * kHeadDim + first, low);
  load_bf16x8(p.kv + t * kHeadDim + first + 8, high);
  if (position < 0 || !slot_valid(slot, p.pages, kPageRows)) return;
  // On their way before they are needed.
  float2 angles[8] = {};
  if (first >= kNopeDim) load_angles(angles, rope_angles(p.rope, position, p.max_positions, (first - kNopeDim) / 2));
#pragma unroll
  for (int i = 0; i < 8; ++i) v[i] = low[i], v[i + 8] = high[i];
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < 16; ++i) squares = fmaf(v[i], v[i], squares);
  float scale = 1.0f / sqrtf(warp_sum(squares) / (float)kHeadDim + p.eps);
#pragma unroll
  for (int i = 0; i < 16; ++i) v[i] = v[i] * scale * gains[i];
  if (first >= kNopeDim) rotate_by(v, angles, 1.0f);
  kv_store(v, p.pool, slot, kPageRows, p.format, p.trained != 0);
}
