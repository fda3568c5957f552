// hyper: manifold-constrained hyper-connections: the mix before a sublayer (with the norm that follows it), the mix after
// one, and the last mix.
//
// Bytes with 4 streams of 4,096: `pre` reads 1.5 MiB of mixing weights (from cache after the first token) and 32 KiB a
// token, twice; `post` reads 40 KiB and writes 32 KiB a token.
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

// This block's share of mix[j] . z for j < outputs, and of z . z as sum 24, to s.partial; `row(t)` is z of token t, or null.
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
  for (int t = 0; t < tokens; ++t) s.scratch[t][warp_idx()][lane_idx()] = 0.0f;
  for (int start = begin; start < end; start += kThreads * kVector) {
    int i = start + threadIdx.x * kVector;
    if (start != begin) load_mix(i);
    for (int t = 0; t < tokens; ++t) {
      const uint16_t* z = row(t);
      if (z == nullptr) continue;
      float v[kVector] = {}, acc[kWarp] = {};
      if (i < end) load_stream<kVector>(z + i, v);
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
#pragma unroll
        for (int j = 0; j < kOutputs; ++j) acc[j] = fmaf(m[j][k], v[k], acc[j]);
        acc[kMaxMix] = fmaf(v[k], v[k], acc[kMaxMix]);
      }
      s.scratch[t][warp_idx()][lane_idx()] += warp_sums(acc);
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

// This block's columns of round(sum_j pre[j] z[j]).
struct Columns {
  int begin, end, n, hidden;

  FL_DEVICE Columns(int n, int hidden) : n(n), hidden(hidden) {
    int each = (hidden + kBlocks - 1) / kBlocks;
    begin = min(hidden, cluster_rank() * each), end = min(hidden, begin + each);
  }

  FL_DEVICE float mixed(const uint16_t* z, const float* pre, int i) const {
    float x = 0.0f;
    for (int j = 0; j < n; ++j) x = fmaf(pre[j], bf16_to_float(z[(int64_t)j * hidden + i]), x);
    return round_bf16(x);
  }
};

// This block's share of the squares of every token, to s.squares.
template <class Row>
FL_DEVICE void share_squares(const Columns& c, int tokens, Row row, Shared& s) {
  for (int t = 0; t < tokens; ++t) {
    const uint16_t* z = row(t);
    float squares = 0.0f;
    for (int i = c.begin + threadIdx.x; z != nullptr && i < c.end; i += kThreads) {
      float x = c.mixed(z, s.pre[t], i);
      squares = fmaf(x, x, squares);
    }
    squares = warp_sum(squares);
    if (lane_idx() == 0) s.scratch[t][warp_idx()][0] = squares;
  }
  __syncthreads();
  if ((int)threadIdx.x < tokens) {
    float total = 0.0f;
    for (int w = 0; w < kWarps; ++w) total += s.scratch[threadIdx.x][w][0];
    s.squares[threadIdx.x] = total;
  }
}

// out = rmsnorm(mixed) * norm, in this block's columns; zeros for a token without streams. After a cluster barrier.
template <class Row>
FL_DEVICE void store_normed(const Columns& c, int tokens, Row row, const Gain& norm, float eps, uint16_t* out, Shared& s) {
  for (int t = 0; t < tokens; ++t) {
    const uint16_t* z = row(t);
    float squares = 0.0f;
    for (int b = 0; b < kBlocks; ++b) squares += *cluster_peer(&s.squares[t], b);
    float scale = 1.0f / sqrtf(squares / (float)c.hidden + eps);
    for (int i = c.begin + threadIdx.x; i < c.end; i += kThreads) {
      uint16_t value = z == nullptr ? 0 : float_to_bf16(c.mixed(z, s.pre[t], i) * scale * gain_at(norm, i));
      out[(int64_t)t * c.hidden + i] = value;
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

}  // namespace

FL_KERNEL_CLUSTER(kThreads, 1, kBlocks, hyper_pre, HyperPreParams) {
  FL_DYNAMIC_SHARED(raw);
  Shared& s = *(Shared*)raw;
  int first = blockIdx.y * p.per_cluster, tokens = min(p.per_cluster, p.rows - first), warp = warp_idx();
  int n = p.n, width = n * p.hidden;
  auto row = [&](int t) { return p.position[first + t] < 0 ? nullptr : p.streams + (int64_t)(first + t) * width; };
  share_sums_any<kMaxMix>(p.mix, width, (2 + n) * n, tokens, row, s);
  cluster_sync();
  if (warp < tokens) gather_sums(warp, s);
  auto root = [&](int t) { return 1.0f / sqrtf(s.sums[t][kMaxMix] / (float)width + p.eps); };
  if (warp < tokens && lane_idx() < n) {
    int lane = lane_idx();
    s.pre[warp][lane] = sigmoid(s.sums[warp][lane] * root(warp) * p.scale[0] + p.base[lane]) + p.hc_eps;
  }
  __syncthreads();
  Columns columns(n, p.hidden);
  share_squares(columns, tokens, row, s);
  cluster_arrive();
  int mine = cluster_rank();
  if (warp == kWarps - 1 && mine < tokens) store_mixing(p, first + mine, s.sums[mine], root(mine), row(mine) == nullptr);
  cluster_wait();
  store_normed(columns, tokens, row, p.norm, p.eps, p.out + (int64_t)first * p.hidden, s);
  cluster_sync();
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
  int width = p.n * p.hidden, lane = lane_idx();
  auto row = [&](int) -> const uint16_t* {
    int64_t chosen = p.rows[blockIdx.y];
    return chosen < 0 || chosen >= p.tokens ? nullptr : p.streams + chosen * width;
  };
  share_sums_any<kMaxStreams>(p.mix, width, p.n, 1, row, s);
  cluster_sync();
  if (warp_idx() == 0) {
    gather_sums(0, s);
    float r = 1.0f / sqrtf(s.sums[0][kMaxMix] / (float)width + p.eps);
    if (lane < p.n) s.pre[0][lane] = sigmoid(s.sums[0][lane] * r * p.scale[0] + p.base[lane]) + p.hc_eps;
  }
  __syncthreads();
  Columns columns(p.n, p.hidden);
  share_squares(columns, 1, row, s);
  cluster_sync();
  store_normed(columns, 1, row, p.norm, p.eps, p.out + (int64_t)blockIdx.y * p.hidden, s);
  cluster_sync();
}
