// embed: the token of each row, given or carried from the last step, and its embedding, copied into every residual stream; a
// token outside the vocabulary gives zeros.
//
// Bytes: 2 * hidden read and 2 * streams * hidden written a token.
// Notes: (1) a thread has eight neighbouring elements of a token; (2) a token id is checked against the vocabulary before it
// becomes an address, and a slot against the number of slots.
#include "embed.h"

#include "common/pdl.h"
#include "common/rows.h"

constexpr int kThreads = 256;
constexpr int kCarried = -1;
constexpr int kEach = 8;

namespace {

// The token of row `t`, -1 where there is none.
FL_DEVICE int32_t token_of(const EmbedParams& p, int64_t t) {
  int32_t position = p.position[t], token = p.token[t];
  if (position < 0) return -1;
  if (token == kCarried) {
    int32_t slot = p.slot[t / p.per_request];
    if (slot < 0 || slot >= p.slots) return -1;
    token = p.carry[(int64_t)slot * 2 + position % 2];
  }
  return token >= 0 && token < p.vocab ? token : -1;
}

// Eight elements of the table from `at` on, which is a multiple of eight, as bf16.
FL_DEVICE uint4 load_bf16x8(const Gain& table, int64_t at) {
  if (!table.is_f32) return *(const uint4*)((const uint16_t*)table.data + at);
  const float4* from = (const float4*)((const float*)table.data + at);
  float4 a = from[0], b = from[1];
  auto pair = [](float low, float high) { return float_to_bf16(low) | (uint32_t)float_to_bf16(high) << 16; };
  return uint4{pair(a.x, a.y), pair(a.z, a.w), pair(b.x, b.y), pair(b.z, b.w)};
}

}  // namespace

FL_KERNEL(kThreads, embed, EmbedParams) {
  pdl_wait();
  int64_t t = blockIdx.x;
  int first = (int)(blockIdx.y * kThreads + threadIdx.x) * kEach;
  int32_t token = token_of(p, t);
  int64_t start = (int64_t)token * p.hidden;
  if (first == 0) p.ids[t] = token;
  if (first >= p.hidden) return;
  uint16_t* out = p.out + t * p.streams * p.hidden;
  if (p.hidden % kEach == 0) {
    uint4 values = token < 0 ? uint4{0, 0, 0, 0} : load_bf16x8(p.weight, start + first);
    for (int j = 0; j < p.streams; ++j) *(uint4*)(out + (int64_t)j * p.hidden + first) = values;
    return;
  }
  for (int i = first; i < min(first + kEach, p.hidden); ++i) {
    uint16_t value = token < 0 ? 0 : float_to_bf16(gain_at(p.weight, start + i));
    for (int j = 0; j < p.streams; ++j) out[(int64_t)j * p.hidden + i] = value;
  }
}
