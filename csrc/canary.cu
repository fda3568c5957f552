// canary: the position-mixed hash of spans of a pool or state (src/instrument/hash.rs), bit for bit as on the host.
//
// Bytes: what it hashes, read once; 24 a span.
// Notes: (1) a block owns a span; (2) a hash is a sum modulo 2^64, so no order of the threads changes a bit; (3) it is no
// part of a step: instruments launch it between two; (4) a span that reaches out of its store hashes to nothing, and the
// instrument takes that for a change.
#include "canary.h"

#include "common/pdl.h"

constexpr int kThreads = 256;

namespace {

// The finaliser of SplitMix64 over place and word: a bijection.
FL_DEVICE uint64_t mix(uint32_t word, uint32_t at) {
  uint64_t z = (uint64_t)at << 32 | word;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

}  // namespace

FL_KERNEL(kThreads, canary, CanaryParams) {
  __shared__ uint64_t sums[kThreads];
  pdl_wait();
  uint64_t start = p.spans[2 * (int64_t)blockIdx.x];
  uint64_t shape = p.spans[2 * (int64_t)blockIdx.x + 1];
  uint64_t words = shape & 0xffffffffu;
  uint32_t first = (uint32_t)(shape >> 32);
  bool inside = start <= (uint64_t)p.words && words <= (uint64_t)p.words - start;

  uint64_t sum = 0;
  for (uint64_t i = threadIdx.x; inside && i < words; i += kThreads) {
    sum += mix(p.store[start + i], first + (uint32_t)i);
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if ((int)threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) p.out[blockIdx.x] = sums[0];
}
