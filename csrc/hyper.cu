// hyper: manifold-constrained hyper-connections: the mix before a sublayer (with the norm that follows it), the mix after
// one, and the last mix.
//
// Bytes with 4 streams of 4,096: `pre` reads 1.5 MiB of mixing weights (from cache after the first token) and 32 KiB a
// token, twice; `post` reads 40 KiB and writes 32 KiB a token.
// Measured on an H200 with cold caches: `pre` 11.1 us for 1 token (3 % of what the bytes allow), 14.6 for 64, in clusters that all run
// at once: it holds 15 of them.
// Notes: (1) a cluster of 8 blocks serves up to 8 tokens, each block an eighth of the weights, which it reads once for all of them
// into registers and, as they never change, before the wait for the kernel before; (2) every sum has one order, by thread, warp and
// block, whatever the number of tokens; (3) the norm's columns are shared out over the cluster too, and Sinkhorn (a warp, an
// entry a lane) runs in one block a token while the others norm; (4) up to 4 streams, so that 25 sums fit a warp's lanes.
#include "hyper.h"

#include "common/cluster.h"
#include "common/pdl.h"
#include "common/reduce.h"
#include "common/rows.h"

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kBlocks = 8;
constexpr int kMaxTokens = 8;
constexpr int kMaxStreams = 4;
constexpr int kMaxMix = (2 + kMaxStreams) * kMaxStreams;
static_assert(kMaxMix < kWarp, "a lane a sum");
static_assert(kMaxTokens <= kWarps && kMaxTokens <= kBlocks, "a warp and a block a token");

namespace {

FL_DEVICE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

struct Shared {
  // The streams of each token, null for padding.
  const uint16_t* rows[kMaxTokens];
  float scratch[kMaxTokens][kWarps][kWarp];
  // What the other blocks read: this block's share of the sums, and of the squares.
  float partial[kMaxTokens][kWarp];
  float squares[kMaxTokens];
  float sums[kMaxTokens][kWarp];
  float pre[kMaxTokens][kMaxStreams];
};

// Half as many values a lane, each over twice as many lanes.
template <int kStep>
FL_DEVICE void fold(float (&v)[kWarp]) {
  bool upper = lane_idx() & kStep;
#pragma unroll
  for (int i = 0; i < kStep; ++i) {
    float keep = upper ? v[i + kStep] : v[i], give = upper ? v[i] : v[i + kStep];
    v[i] = keep + __shfl_xor_sync(kFullMask, give, kStep);
  }
}

// A warp's 32 sums over its lanes, sum l to lane l.
FL_DEVICE float warp_sums(float (&v)[kWarp]) {
  fold<16>(v), fold<8>(v), fold<4>(v), fold<2>(v), fold<1>(v);
  return v[0];
}

// `kVector` (1 or 8) neighbouring floats, or bf16 as floats, aligned to 16 bytes if eight.
template <int kVector>
FL_DEVICE void load_floats(const float* from, float (&to)[kVector]) {
  if constexpr (kVector == 8) {
    float4 a = ((const float4*)from)[0], b = ((const float4*)from)[1];
    to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w, to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
  } else {
    to[0] = from[0];
  }
}
template <int kVector>
FL_DEVICE void load_stream(const uint16_t* from, float (&to)[kVector]) {
  if constexpr (kVector == 8) {
    load_bf16x8(from, to);
  } else {
    to[0] = bf16_to_float(from[0]);
  }
}

// This block's share of mix[j] . z for j < outputs, and of z . z as sum 24, to s.partial; `row(t)` gives s.rows[t].
// Waits for the kernel before once its first weights are on their way.
template <int kOutputs, int kVector, class Row>
FL_DEVICE void share_sums(const float* mix, int width, int outputs, int tokens, Row row, Shared& s) {
  int each = (width / kVector + kBlocks - 1) / kBlocks * kVector;
  int begin = min(width, cluster_rank() * each), end = min(width, begin + each);
  float m[kOutputs][kVector];
  auto load_mix = [&](int i) {
#pragma unroll
    for (int j = 0; j < kOutputs; ++j) {
#pragma unroll
      for (int k = 0; k < kVector; ++k) m[j][k] = 0.0f;
      if (j < outputs && i < end) load_floats<kVector>(mix + (int64_t)j * width + i, m[j]);
    }
  };
  load_mix(begin + threadIdx.x * kVector);
  pdl_wait();
  if ((int)threadIdx.x < tokens) s.rows[threadIdx.x] = row(threadIdx.x);
  for (int t = 0; t < tokens; ++t) s.scratch[t][warp_idx()][lane_idx()] = 0.0f;
  __syncthreads();
  for (int start = begin; start < end; start += kThreads * kVector) {
    int i = start + threadIdx.x * kVector;
    if (start != begin) load_mix(i);
    auto load = [&](int t, float(&v)[kVector]) {
#pragma unroll
      for (int k = 0; k < kVector; ++k) v[k] = 0.0f;
      if (t < tokens && s.rows[t] != nullptr && i < end) load_stream<kVector>(s.rows[t] + i, v);
    };
    float v[kVector], next[kVector];
    load(0, v);
    for (int t = 0; t < tokens; ++t) {
      load(t + 1, next);
      float acc[kWarp] = {};
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
#pragma unroll
        for (int j = 0; j < kOutputs; ++j) acc[j] = fmaf(m[j][k], v[k], acc[j]);
        acc[kMaxMix] = fmaf(v[k], v[k], acc[kMaxMix]);
      }
      s.scratch[t][warp_idx()][lane_idx()] += warp_sums(acc);
#pragma unroll
      for (int k = 0; k < kVector; ++k) v[k] = next[k];
    }
  }
  __syncthreads();
  int t = warp_idx();
  if (t < tokens) {
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total += s.scratch[t][w][lane_idx()];
    s.partial[t][lane_idx()] = total;
  }
}

// The same for any width.
template <int kOutputs, class Row>
FL_DEVICE void share_sums_any(const float* mix, int width, int outputs, int tokens, Row row, Shared& s) {
  if (width % 8 == 0) {
    share_sums<kOutputs, 8>(mix, width, outputs, tokens, row, s);
  } else {
    share_sums<kOutputs, 1>(mix, width, outputs, tokens, row, s);
  }
}

// A warp: the sums of token t over the cluster, in block order. After a cluster barrier.
FL_DEVICE void gather_sums(int t, Shared& s) {
  float total = 0.0f;
  for (int b = 0; b < kBlocks; ++b) total += *cluster_peer(&s.partial[t][lane_idx()], b);
  s.sums[t][lane_idx()] = total;
  __syncwarp();
}

// This block's columns of round(sum_j pre[j] z[j]), for one token.
struct Columns {
  int begin, end, n, hidden;
  const uint16_t* z;
  float pre[kMaxStreams];

  FL_DEVICE Columns(int n, int hidden, int t, const Shared& s) : n(n), hidden(hidden), z(s.rows[t]) {
    int each = ((hidden + kBlocks - 1) / kBlocks + 7) / 8 * 8;
    begin = min(hidden, cluster_rank() * each), end = min(hidden, begin + each);
#pragma unroll
    for (int j = 0; j < kMaxStreams; ++j) pre[j] = j < n ? s.pre[t][j] : 0.0f;
  }

  // kVector of them from column i on; zeros for padding.
  template <int kVector>
  FL_DEVICE void mixed(int i, float (&x)[kVector]) const {
#pragma unroll
    for (int k = 0; k < kVector; ++k) x[k] = 0.0f;
#pragma unroll
    for (int j = 0; j < kMaxStreams; ++j) {
      if (j >= n || z == nullptr) continue;
      float v[kVector];
      load_stream<kVector>(z + (int64_t)j * hidden + i, v);
#pragma unroll
      for (int k = 0; k < kVector; ++k) x[k] = fmaf(pre[j], v[k], x[k]);
    }
#pragma unroll
    for (int k = 0; k < kVector; ++k) x[k] = round_bf16(x[k]);
  }
};

// A warp: this block's share of a token's squares.
template <int kVector>
FL_DEVICE float share_squares(const Columns& c) {
  float squares = 0.0f;
  for (int i = c.begin + lane_idx() * kVector; i < c.end; i += kWarp * kVector) {
    float x[kVector];
    c.mixed(i, x);
#pragma unroll
    for (int k = 0; k < kVector; ++k) squares = fmaf(x[k], x[k], squares);
  }
  return warp_sum(squares);
}

// A warp: out = rmsnorm(mixed) * norm in this block's columns. After a cluster barrier.
template <int kVector>
FL_DEVICE void store_normed(const Columns& c, const float* squares, const Gain& norm, float eps, uint16_t* out) {
  float total = 0.0f;
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) total += *cluster_peer(squares, b);
  float scale = 1.0f / sqrtf(total / (float)c.hidden + eps);
  for (int i = c.begin + lane_idx() * kVector; i < c.end; i += kWarp * kVector) {
    float x[kVector];
    c.mixed(i, x);
#pragma unroll
    for (int k = 0; k < kVector; ++k) x[k] = x[k] * scale * gain_at(norm, i + k);
    if constexpr (kVector == 8) {
      store_bf16x8(out + i, x);
    } else {
      out[i] = float_to_bf16(x[0]);
    }
  }
}

// a / b within two units in the last place, in a quarter of the time: 40 of them follow one another.
FL_DEVICE float quotient(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fdividef(a, b);
#else
  return a / b;
#endif
}

FL_DEVICE float sum_over(float x, int low, int high) {
  x += __shfl_xor_sync(kFullMask, x, low);
  return x + __shfl_xor_sync(kFullMask, x, high);
}

// A warp; lane 4 j + k holds entry (j, k) of at most 4x4, other entries are zero. Gives its entry after `iters` rounds.
FL_DEVICE float sinkhorn(float logit, bool inside, int iters, float eps) {
  float largest = inside ? logit : -INFINITY;
  largest = fmaxf(largest, __shfl_xor_sync(kFullMask, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(kFullMask, largest, 2));
  float c = inside ? expf(logit - largest) : 0.0f;
  float row = sum_over(c, 1, 2);
  c = inside ? c / row + eps : 0.0f;
  c = quotient(c, sum_over(c, 4, 8) + eps);
  for (int i = 1; i < iters; ++i) {
    c = quotient(c, sum_over(c, 1, 2) + eps);
    c = quotient(c, sum_over(c, 4, 8) + eps);
  }
  return c;
}

// A warp: what `pre` gives beside the row: post and the mixing matrix of token t; zeros if it is padding.
FL_DEVICE void store_mixing(const HyperPreParams& p, int64_t token, const float* sums, float r, bool padded) {
  int lane = lane_idx(), j = lane / 4, k = lane % 4, n = p.n;
  if (lane < n) {
    float post = 2.0f * sigmoid(sums[n + lane] * r * p.scale[1] + p.base[n + lane]);
    p.post[token * n + lane] = padded ? 0.0f : post;
  }
  bool inside = j < n && k < n;
  int entry = inside ? 2 * n + j * n + k : 0;
  float c = sinkhorn(sums[entry] * r * p.scale[2] + p.base[entry], inside, p.sinkhorn_iters, p.hc_eps);
  if (inside) p.comb[(token * n + j) * n + k] = padded ? 0.0f : c;
}

// What follows the sums, a warp a token: pre, the norm over the cluster, and `meanwhile` between its two halves. `out` is the
// first token's row.
template <class Meanwhile>
FL_DEVICE void finish(int n, int hidden, int tokens, const float* scale, const float* base, float eps, float hc_eps,
                      const Gain& norm, uint16_t* out, Meanwhile meanwhile, Shared& s) {
  int t = warp_idx(), lane = lane_idx();
  cluster_sync();
  if (t < tokens) {
    gather_sums(t, s);
    float r = 1.0f / sqrtf(s.sums[t][kMaxMix] / (float)(n * hidden) + eps);
    if (lane < n) s.pre[t][lane] = sigmoid(s.sums[t][lane] * r * scale[0] + base[lane]) + hc_eps;
  }
  __syncthreads();
  Columns columns(n, hidden, min(t, tokens - 1), s);
  if (t < tokens) {
    float squares = hidden % 8 == 0 ? share_squares<8>(columns) : share_squares<1>(columns);
    if (lane == 0) s.squares[t] = squares;
  }
  cluster_arrive();
  meanwhile();
  cluster_wait();
  if (t < tokens) {
    uint16_t* row = out + (int64_t)t * hidden;
    if (hidden % 8 == 0) {
      store_normed<8>(columns, &s.squares[t], norm, eps, row);
    } else {
      store_normed<1>(columns, &s.squares[t], norm, eps, row);
    }
  }
  cluster_sync();
}

}  // namespace

FL_KERNEL_CLUSTER(kThreads, 1, kBlocks, hyper_pre, HyperPreParams) {
  FL_DYNAMIC_SHARED(raw);
  Shared& s = *(Shared*)raw;
  int first = blockIdx.y * p.per_cluster, tokens = min(p.per_cluster, p.rows - first), n = p.n, width = n * p.hidden;
  auto row = [&](int t) { return p.position[first + t] < 0 ? nullptr : p.streams + (int64_t)(first + t) * width; };
  share_sums_any<kMaxMix>(p.mix, width, (2 + n) * n, tokens, row, s);
  auto mixing = [&]() {
    int mine = cluster_rank();
    if (warp_idx() != kWarps - 1 || mine >= tokens) return;
    float r = 1.0f / sqrtf(s.sums[mine][kMaxMix] / (float)width + p.eps);
    store_mixing(p, first + mine, s.sums[mine], r, s.rows[mine] == nullptr);
  };
  uint16_t* out = p.out + (int64_t)first * p.hidden;
  finish(n, p.hidden, tokens, p.scale, p.base, p.eps, p.hc_eps, p.norm, out, mixing, s);
}

FL_KERNEL(kThreads, hyper_post, HyperPostParams) {
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
  for (int i = blockIdx.y * kThreads + threadIdx.x; i < p.hidden; i += gridDim.y * kThreads) {
    float y = bf16_to_float(p.y[t * p.hidden + i]), x[kMaxStreams];
#pragma unroll
    for (int j = 0; j < kMaxStreams; ++j) x[j] = j < n ? bf16_to_float(p.streams[(t * n + j) * p.hidden + i]) : 0.0f;
#pragma unroll
    for (int k = 0; k < kMaxStreams; ++k) {
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < kMaxStreams; ++j) sum = fmaf(comb[j][k], x[j], sum);
      sum = fmaf(post[k], y, sum);
      if (k < n) p.out[(t * n + k) * p.hidden + i] = padded ? 0 : float_to_bf16(sum);
    }
  }
}

FL_KERNEL_CLUSTER(kThreads, 1, kBlocks, hyper_head, HyperHeadParams) {
  FL_DYNAMIC_SHARED(raw);
  Shared& s = *(Shared*)raw;
  int width = p.n * p.hidden;
  auto row = [&](int) -> const uint16_t* {
    int64_t chosen = p.rows[blockIdx.y];
    return chosen < 0 || chosen >= p.tokens ? nullptr : p.streams + chosen * width;
  };
  share_sums_any<kMaxStreams>(p.mix, width, p.n, 1, row, s);
  uint16_t* out = p.out + (int64_t)blockIdx.y * p.hidden;
  finish(p.n, p.hidden, 1, p.scale, p.base, p.eps, p.hc_eps, p.norm, out, [] {}, s);
}
