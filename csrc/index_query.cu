// index_query: each indexer query head rotated (RoPE, then Hadamard) and encoded as an index row.
//
// Bytes: 256 read and 256, 132 or 68 written a head; 64 heads a token. At decode the launch is the cost.
// Notes: (1) a warp owns a head, a lane four neighbouring dims: rotation pairs stay in a lane, butterflies are shuffles and
// no barrier is needed; (2) the codes and scales of a padded row are zero bytes.
#include "index_query.h"

#include "common/index_row.h"
#include "common/pdl.h"
#include "common/rows.h"

constexpr int kThreads = 256;

FL_KERNEL(kThreads, index_query, IndexQueryParams) {
  pdl_wait();
  int64_t row = (int64_t)blockIdx.x * (kThreads / kWarp) + warp_idx();
  if (row >= p.rows) return;
  int32_t position = p.position[row / p.heads];
  int first = lane_idx() * 4;
  uint2 words = *(const uint2*)(p.q + row * kIndexDim + first);
  float v[4] = {bits_float(words.x << 16), bits_float(words.x & 0xffff0000u), bits_float(words.y << 16),
                bits_float(words.y & 0xffff0000u)};
  constexpr int kPlain = kIndexDim - kRopeDim;
  if (position >= 0 && first >= kPlain) rotate_pairs(v, p.rope, position, p.max_positions, (first - kPlain) / 2, 1.0f);
  hadamard_128(v);
  uint8_t* codes = p.codes + row * index_code_bytes(p.format);
  if (position < 0) {
    for (int i = lane_idx(); i < index_code_bytes(p.format); i += kWarp) codes[i] = 0;
    if (lane_idx() < index_scale_bytes(p.format)) p.scales[row * 4 + lane_idx()] = 0;
    return;
  }
  index_encode(v, codes, p.scales + row * 4, p.format);
}
