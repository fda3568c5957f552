// embed: the embedding of each token, copied into every residual stream; a token outside the vocabulary gives zeros.
//
// Bytes: 2 * hidden read and 2 * streams * hidden written a token.
// Notes: (1) one block a token; (2) a token id is checked against the vocabulary before it becomes an address.
#include "embed.h"

#include "common/pdl.h"
#include "common/rows.h"

constexpr int kThreads = 256;

FL_KERNEL(kThreads, embed, EmbedParams) {
  pdl_wait();
  int64_t t = blockIdx.x;
  int32_t token = p.token[t];
  bool valid = p.position[t] >= 0 && token >= 0 && token < p.vocab;
  int64_t start = valid ? (int64_t)token * p.hidden : 0;
  for (int i = threadIdx.x; i < p.hidden; i += kThreads) {
    uint16_t value = valid ? float_to_bf16(gain_at(p.weight, start + i)) : 0;
    for (int j = 0; j < p.streams; ++j) p.out[(t * p.streams + j) * p.hidden + i] = value;
  }
}
