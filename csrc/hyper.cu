// hyper: manifold-constrained hyper-connections: the mix before a sublayer (with the norm that follows it), the mix after
// one, and the last mix.
//
// Bytes with 4 streams of 4,096: `pre` reads 1.5 MiB of mixing weights (from cache after the first token) and 32 KiB a
// token; `post` reads 40 KiB and writes 32 KiB a token.
// Measured on an H200 with cold caches: `pre` 6.6 us for 1 token, 12.8 for 64; `post` 2.1 and 3.0.
// Notes: (1) a cluster of 8 blocks serves up to 8 tokens, each block an eighth of the columns; a thread reads its share of the weights
// once for all of them into registers and, as they never change, before the wait for the kernel before, and gains, scales and
// bases with it; (2) the streams are read once, all tokens' at once, and stay in shared memory; (3) every sum has one order, by
// thread, warp and block, whatever the number of tokens and whichever kernel runs; blocks send their shares to each other, so that
// nothing is fetched after a barrier; (4) while twice as many clusters run at once, those of the mixing matrices are others than
// those of the norm: fewer weights a block, and Sinkhorn beside the norm; (5) Sinkhorn keeps the matrix and iterates on its
// divisors, all in every lane: no shuffle in a chain of 40 divisions; (6) up to 4 streams, so that 25 sums fit a warp's lanes.
#include "hyper.h"

#include "common/hyper_mix.h"

// Columns of a thread of `post`.
constexpr int kPostVector = 4;

static_assert(sizeof(Shared) == 53408, "as src/cuda/ops/hyper.rs has it");

namespace {

// One, two, four or eight neighbouring bf16, aligned to their size.
template <int kVector>
FL_DEVICE void load_columns(const uint16_t* from, float (&to)[kVector]) {
  if constexpr (kVector == 1) {
    to[0] = bf16_to_float(from[0]);
  } else {
    uint32_t words[kVector / 2];
    if constexpr (kVector == 8) {
      *(uint4*)words = *(const uint4*)from;
    } else if constexpr (kVector == 4) {
      *(uint2*)words = *(const uint2*)from;
    } else {
      words[0] = *(const uint32_t*)from;
    }
#pragma unroll
    for (int i = 0; i < kVector / 2; ++i) to[2 * i] = bits_float(words[i] << 16), to[2 * i + 1] = bits_float(words[i] & 0xffff0000u);
  }
}
template <int kVector>
FL_DEVICE void store_columns(uint16_t* to, const float (&from)[kVector]) {
  if constexpr (kVector == 1) {
    to[0] = float_to_bf16(from[0]);
  } else {
    uint32_t words[kVector / 2];
#pragma unroll
    for (int i = 0; i < kVector / 2; ++i) words[i] = bf16_pair(from[2 * i], from[2 * i + 1]);
    if constexpr (kVector == 8) {
      *(uint4*)to = *(const uint4*)words;
    } else if constexpr (kVector == 4) {
      *(uint2*)to = *(const uint2*)words;
    } else {
      *(uint32_t*)to = words[0];
    }
  }
}

// A token's streams after a sublayer, `kVector` neighbouring columns a thread.
template <int kVector>
FL_DEVICE void mix_after(const HyperPostParams& p) {
  pdl_wait();
  int64_t t = blockIdx.x;
  int n = p.n;
  bool padded = p.position[t] < 0;
  float post[kMaxStreams], comb[kMaxStreams][kMaxStreams];
#pragma unroll
  for (int k = 0; k < kMaxStreams; ++k) {
    post[k] = k < n ? p.post[t * n + k] : 0.0f;
#pragma unroll
    for (int j = 0; j < kMaxStreams; ++j) comb[j][k] = j < n && k < n ? p.comb[(t * n + j) * n + k] : 0.0f;
  }
  for (int i = (blockIdx.y * kThreads + threadIdx.x) * kVector; i < p.hidden; i += gridDim.y * kThreads * kVector) {
    float y[kVector], x[kMaxStreams][kVector] = {};
    load_columns<kVector>(p.y + t * p.hidden + i, y);
#pragma unroll
    for (int j = 0; j < kMaxStreams; ++j) {
      if (j < n) load_columns<kVector>(p.streams + (t * n + j) * p.hidden + i, x[j]);
    }
#pragma unroll
    for (int k = 0; k < kMaxStreams; ++k) {
      float sums[kVector] = {};
#pragma unroll
      for (int c = 0; c < kVector; ++c) {
#pragma unroll
        for (int j = 0; j < kMaxStreams; ++j) sums[c] = fmaf(comb[j][k], x[j][c], sums[c]);
        sums[c] = padded ? 0.0f : fmaf(post[k], y[c], sums[c]);
      }
      if (k < n) store_columns<kVector>(p.out + (t * n + k) * p.hidden + i, sums);
    }
  }
}

// A warp: the mixing matrix of a token, of the lanes' arguments; zeros if it is padding.
FL_DEVICE void store_mixing(const HyperPreParams& p, int64_t token, float argument, bool padded) {
  int lane = lane_idx(), j = lane / 4, k = lane % 4, n = p.n;
  bool inside = j < n && k < n;
  float logit = __shfl_sync(kFullMask, argument, kMatrix + (inside ? j * n + k : 0));
  float c = sinkhorn(logit, n, p.sinkhorn_iters, p.hc_eps);
  if (inside) p.comb[(token * n + j) * n + k] = padded ? 0.0f : c;
}

// A block of hyper_pre.
template <class R>
FL_DEVICE void pre(const HyperPreParams& p, Shared& s) {
  int first = blockIdx.y * p.per_cluster, tokens = min(p.per_cluster, p.rows - first), n = p.n;
  auto row = [&](int t) { return p.streams + (int64_t)(first + t) * n * p.hidden; };
  auto padded = [&](int t) { return p.position[first + t] < 0; };
  auto post = [&](int t, float gate) {
    int k = lane_idx() - n;
    if (k >= 0 && k < n) p.post[(int64_t)(first + t) * n + k] = s.padded[t] ? 0.0f : 2.0f * gate;
  };
  auto mixing = [&](float argument) {
    int t = cluster_rank();
    store_mixing(p, first + t, argument, s.padded[t]);
  };
  play<R>(p, true, tokens, row, padded, p.out + (int64_t)first * p.hidden, post, mixing, s);
}

}  // namespace

FL_KERNEL_CLUSTER(kThreads, 1, kBlocks, hyper_pre, HyperPreParams) {
  FL_DYNAMIC_SHARED(raw);
  pre<Role<0, 3>>(p, *(Shared*)raw);
}

// The same bits from pairs of clusters, of which one has the mixing matrices.
FL_KERNEL_CLUSTER(kThreads, 1, kBlocks, hyper_pre_split, HyperPreParams) {
  FL_DYNAMIC_SHARED(raw);
  if (blockIdx.z == 0) {
    pre<Role<0, 1>>(p, *(Shared*)raw);
  } else {
    pre<Role<1, 2>>(p, *(Shared*)raw);
  }
}

FL_KERNEL(kThreads, hyper_post, HyperPostParams) {
  if (p.hidden % kPostVector == 0) {
    mix_after<kPostVector>(p);
  } else {
    mix_after<1>(p);
  }
}

FL_KERNEL_CLUSTER(kThreads, 1, kBlocks, hyper_head, HyperHeadParams) {
  FL_DYNAMIC_SHARED(raw);
  auto row = [&](int) -> const uint16_t* {
    int64_t chosen = p.rows[blockIdx.y];
    return chosen < 0 || chosen >= p.tokens ? nullptr : p.streams + chosen * p.n * p.hidden;
  };
  auto padded = [&](int t) { return row(t) == nullptr; };
  uint16_t* out = p.out + (int64_t)blockIdx.y * p.hidden;
  play<Role<0, 1>>(p, false, 1, row, padded, out, [](int, float) {}, [](float) {}, *(Shared*)raw);
}
