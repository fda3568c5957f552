// hyper: manifold-constrained hyper-connections: the mix before a sublayer (with the norm that follows it), the mix after
// one, and the last mix.
//
// Bytes with 4 streams of 4,096: `pre` reads 1.5 MiB of mixing weights (from cache after the first token) and 32 KiB a
// token, twice; `post` reads 40 KiB and writes 32 KiB a token.
// Notes: (1) one block a token: the 24 dot products share the token's values, and every sum has one order, by thread then
// by warp; (2) Sinkhorn runs in one warp, an entry a lane, row and column sums by shuffles; (3) up to 4 streams, so that
// the accumulators stay in registers; (4) at decode the mixing weights pass through one SM per token: to split them over
// a cluster is the next step.
#include "hyper.h"

#include "common/pdl.h"
#include "common/reduce.h"
#include "common/rows.h"

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / kWarp;
constexpr int kMaxStreams = 4;
constexpr int kMaxMix = (2 + kMaxStreams) * kMaxStreams;

namespace {

FL_DEVICE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// sums[j] = mix[j] . z for j < outputs, and sums[outputs] = z . z; to every thread.
FL_DEVICE void mixing_sums(const uint16_t* z, const float* mix, int width, int outputs, float (*scratch)[kWarps],
                           float* sums) {
  float acc[kMaxMix + 1];
#pragma unroll
  for (int j = 0; j <= kMaxMix; ++j) acc[j] = 0.0f;
  if (width % 4 == 0) {
    for (int i = threadIdx.x * 4; i < width; i += kThreads * 4) {
      uint2 words = *(const uint2*)(z + i);
      float v[4] = {bits_float(words.x << 16), bits_float(words.x & 0xffff0000u), bits_float(words.y << 16),
                    bits_float(words.y & 0xffff0000u)};
#pragma unroll
      for (int j = 0; j < kMaxMix; ++j) {
        if (j >= outputs) continue;
        float4 m = *(const float4*)(mix + (int64_t)j * width + i);
        acc[j] = fmaf(m.w, v[3], fmaf(m.z, v[2], fmaf(m.y, v[1], fmaf(m.x, v[0], acc[j]))));
      }
#pragma unroll
      for (int k = 0; k < 4; ++k) acc[kMaxMix] = fmaf(v[k], v[k], acc[kMaxMix]);
    }
  } else {
    for (int i = threadIdx.x; i < width; i += kThreads) {
      float v = bf16_to_float(z[i]);
#pragma unroll
      for (int j = 0; j < kMaxMix; ++j) {
        if (j < outputs) acc[j] = fmaf(mix[(int64_t)j * width + i], v, acc[j]);
      }
      acc[kMaxMix] = fmaf(v, v, acc[kMaxMix]);
    }
  }
#pragma unroll
  for (int j = 0; j <= kMaxMix; ++j) {
    if (j < outputs || j == kMaxMix) {
      float sum = warp_sum(acc[j]);
      if (lane_idx() == 0) scratch[j][warp_idx()] = sum;
    }
  }
  __syncthreads();
  if (threadIdx.x <= kMaxMix && ((int)threadIdx.x < outputs || threadIdx.x == kMaxMix)) {
    float total = 0.0f;
    for (int w = 0; w < kWarps; ++w) total += scratch[threadIdx.x][w];
    sums[threadIdx.x] = total;
  }
  __syncthreads();
}

// out = rmsnorm(round(sum_j pre[j] z[j])) * norm.
FL_DEVICE void mix_and_norm(const uint16_t* z, const float* pre, const Gain& norm, int n, int hidden, float eps,
                            float* scratch, uint16_t* out) {
  auto mixed = [=](int i) {
    float x = 0.0f;
    for (int j = 0; j < n; ++j) x = fmaf(pre[j], bf16_to_float(z[(int64_t)j * hidden + i]), x);
    return round_bf16(x);
  };
  float squares = 0.0f;
  for (int i = threadIdx.x; i < hidden; i += kThreads) {
    float x = mixed(i);
    squares = fmaf(x, x, squares);
  }
  float scale = 1.0f / sqrtf(block_sum(squares, scratch) / (float)hidden + eps);
  for (int i = threadIdx.x; i < hidden; i += kThreads) out[i] = float_to_bf16(mixed(i) * scale * gain_at(norm, i));
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
  c = c / (sum_over(c, 4, 8) + eps);
  for (int i = 1; i < iters; ++i) {
    c = c / (sum_over(c, 1, 2) + eps);
    c = c / (sum_over(c, 4, 8) + eps);
  }
  return c;
}

}  // namespace

FL_KERNEL(kThreads, hyper_pre, HyperPreParams) {
  __shared__ float scratch[kMaxMix + 1][kWarps];
  __shared__ float sums[kMaxMix + 1];
  __shared__ float pre[kMaxStreams];
  pdl_wait();
  int64_t t = blockIdx.x;
  int n = p.n, width = n * p.hidden, outputs = (2 + n) * n;
  if (p.position[t] < 0) {
    for (int i = threadIdx.x; i < p.hidden; i += kThreads) p.out[t * p.hidden + i] = 0;
    if ((int)threadIdx.x < n) p.post[t * n + threadIdx.x] = 0.0f;
    if ((int)threadIdx.x < n * n) p.comb[t * n * n + threadIdx.x] = 0.0f;
    return;
  }
  const uint16_t* z = p.streams + t * width;
  mixing_sums(z, p.mix, width, outputs, scratch, sums);
  float r = 1.0f / sqrtf(sums[kMaxMix] / (float)width + p.eps);
  if (warp_idx() == 0) {
    int lane = lane_idx(), j = lane / 4, k = lane % 4;
    if (lane < n) {
      pre[lane] = sigmoid(sums[lane] * r * p.scale[0] + p.base[lane]) + p.hc_eps;
      p.post[t * n + lane] = 2.0f * sigmoid(sums[n + lane] * r * p.scale[1] + p.base[n + lane]);
    }
    bool inside = j < n && k < n;
    int entry = inside ? 2 * n + j * n + k : 0;
    float logit = sums[entry] * r * p.scale[2] + p.base[entry];
    float c = sinkhorn(logit, inside, p.sinkhorn_iters, p.hc_eps);
    if (inside) p.comb[(t * n + j) * n + k] = c;
  }
  __syncthreads();
  mix_and_norm(z, pre, p.norm, n, p.hidden, p.eps, scratch[0], p.out + t * p.hidden);
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

FL_KERNEL(kThreads, hyper_head, HyperHeadParams) {
  __shared__ float scratch[kMaxMix + 1][kWarps];
  __shared__ float sums[kMaxMix + 1];
  __shared__ float pre[kMaxStreams];
  pdl_wait();
  int64_t row = p.rows[blockIdx.x];
  uint16_t* out = p.out + (int64_t)blockIdx.x * p.hidden;
  if (row < 0 || row >= p.tokens) {
    for (int i = threadIdx.x; i < p.hidden; i += kThreads) out[i] = 0;
    return;
  }
  int width = p.n * p.hidden;
  const uint16_t* z = p.streams + row * width;
  mixing_sums(z, p.mix, width, p.n, scratch, sums);
  float r = 1.0f / sqrtf(sums[kMaxMix] / (float)width + p.eps);
  if ((int)threadIdx.x < p.n) pre[threadIdx.x] = sigmoid(sums[threadIdx.x] * r * p.scale[0] + p.base[threadIdx.x]) + p.hc_eps;
  __syncthreads();
  mix_and_norm(z, pre, p.norm, p.n, p.hidden, p.eps, scratch[0], out);
}
