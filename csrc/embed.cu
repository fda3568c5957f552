// embed: the token of each row, given or carried from the last step, and its embedding, copied into every residual stream; a
// token outside the vocabulary gives zeros.
//
// Bytes: 2 * hidden read and 2 * streams * hidden written a token.
// Notes: (1) one block a token; (2) a token id is checked against the vocabulary before it becomes an address, and a slot
// against the number of slots.
#include "embed.h"

#include "common/pdl.h"
#include "common/rows.h"

constexpr int kThreads = 256;
constexpr int kCarried = -1;

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

}  // namespace

FL_KERNEL(kThreads, embed, EmbedParams) {
  pdl_wait();
  int64_t t = blockIdx.x;
  int32_t token = token_of(p, t);
  bool valid = token >= 0;
  int64_t start = valid ? (int64_t)token * p.hidden : 0;
  if (threadIdx.x == 0) p.ids[t] = token;
  for (int i = threadIdx.x; i < p.hidden; i += kThreads) {
    uint16_t value = valid ? float_to_bf16(gain_at(p.weight, start + i)) : 0;
    for (int j = 0; j < p.streams; ++j) p.out[(t * p.streams + j) * p.hidden + i] = value;
  }
}
