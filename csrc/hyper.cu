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
#include "common/convert.h"
#include "common/copy_async.h"
#include "common/pdl.h"
#include "common/reduce.h"
#include "common/rows.h"

#ifndef FL_STAMP
#define FL_STAMP(i)
#define FL_STAMP_ANY(i)
#endif

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kBlocks = 8;
constexpr int kMaxTokens = 8;
constexpr int kMaxStreams = 4;
#ifndef POSTV
#define POSTV 4
#endif
constexpr int kPostVector = POSTV;
constexpr int kMaxMix = (2 + kMaxStreams) * kMaxStreams;
// Columns of a warp at once, two a lane.
constexpr int kRun = 2 * kWarp;
static_assert(kMaxMix < kWarp, "a lane a sum");
static_assert(kMaxTokens <= kWarps && kMaxTokens <= kBlocks, "a warp and a block a token");

namespace {

FL_DEVICE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// 1 / sqrt(x) and 1 / x within two units in the last place.
FL_DEVICE float inverse_root(float x) {
#if defined(__CUDA_ARCH__)
  return rsqrtf(x);
#else
  return 1.0f / sqrtf(x);
#endif
}
FL_DEVICE float inverse(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return 1.0f / x;
#endif
}

struct Shared {
  // This block's share of the streams, as its threads first read it, and of the gains.
  uint4 streams[kMaxTokens][kThreads];
  float gains[kWarps * kRun];
  float scratch[kMaxTokens][kWarps][kWarp];
  // What the blocks sent to each other: their shares of the sums, and of the norm's squares.
  float sums[kMaxTokens][kBlocks][kWarp];
  float squares[kMaxTokens][kBlocks][kWarps];
  float pre[kMaxTokens][kMaxStreams];
  int padded[kMaxTokens];
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

// The columns of this block, of each stream.
struct Share {
  int n, hidden, begin, columns, each;

  FL_DEVICE Share(int n, int hidden) : n(n), hidden(hidden) {
    each = ((hidden + kBlocks - 1) / kBlocks + 7) / 8 * 8;
    begin = min(hidden, cluster_rank() * each);
    columns = min(hidden, begin + each) - begin;
  }
  // Whether a thread has eight of them at most, so that they stay in shared memory.
  FL_DEVICE bool stays() const { return hidden % 8 == 0 && n * each <= 8 * kThreads && each <= kWarps * kRun; }
};

// This block's share of mix[j] . z for j < outputs, and of z . z as sum 24, to s.scratch; `row(t)` is token t's streams, null to
// read zeros. Waits for the kernel before once its first weights are on their way.
template <int kOutputs, int kVector, class Row>
FL_DEVICE void share_sums(const Share& share, const float* mix, int outputs, int tokens, Row row, Shared& s) {
  int per_stream = share.each / kVector, units = share.n * per_stream;
  float m[kOutputs][kVector];
  // Where a unit of columns lies in a row of streams; -1 past the block's.
  auto place = [&](int unit) {
    int stream = unit / per_stream, column = unit % per_stream * kVector;
    return unit < units && column < share.columns ? stream * share.hidden + share.begin + column : -1;
  };
  auto load_mix = [&](int at) {
#pragma unroll
    for (int j = 0; j < kOutputs; ++j) {
#pragma unroll
      for (int k = 0; k < kVector; ++k) m[j][k] = 0.0f;
      if (j < outputs && at >= 0) load_floats<kVector>(mix + (int64_t)j * share.n * share.hidden + at, m[j]);
    }
  };
  int at = place(threadIdx.x);
  load_mix(at);
  pdl_wait();
  FL_STAMP(1);
  bool stays = kVector == 8 && share.stays();
  for (int t = 0; t < tokens; ++t) {
    const uint16_t* from = row(t);
    bool valid = from != nullptr && at >= 0;
    if (stays) copy_async<16>(&s.streams[t][threadIdx.x], from + (valid ? at : 0), valid);
    s.scratch[t][warp_idx()][lane_idx()] = 0.0f;
  }
  close_copies();
  wait_copies<0>();
  FL_STAMP(2);
  for (int start = 0; start < units; start += kThreads) {
    if (start > 0) load_mix(at = place(start + threadIdx.x));
    for (int t = 0; t < tokens; ++t) {
      float v[kVector] = {};
      const uint16_t* from = row(t);
      if (stays) {
        load_stream<kVector>((const uint16_t*)&s.streams[t][threadIdx.x], v);
      } else if (from != nullptr && at >= 0) {
        load_stream<kVector>(from + at, v);
      }
      float acc[kWarp] = {};
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
#pragma unroll
        for (int j = 0; j < kOutputs; ++j) acc[j] = fmaf(m[j][k], v[k], acc[j]);
        acc[kMaxMix] = fmaf(v[k], v[k], acc[kMaxMix]);
      }
      s.scratch[t][warp_idx()][lane_idx()] += warp_sums(acc);
    }
  }
  FL_STAMP(3);
}

// The same for any width.
template <int kOutputs, class Row>
FL_DEVICE void share_sums_any(const Share& share, const float* mix, int outputs, int tokens, Row row, Shared& s) {
  if (share.hidden % 8 == 0) {
    share_sums<kOutputs, 8>(share, mix, outputs, tokens, row, s);
  } else {
    share_sums<kOutputs, 1>(share, mix, outputs, tokens, row, s);
  }
}

// A warp: this block's share of token t's sums to all blocks.
FL_DEVICE void send_sums(int t, Shared& s) {
  float total = 0.0f;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) total += s.scratch[t][w][lane_idx()];
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) *(float*)cluster_peer(&s.sums[t][cluster_rank()][lane_idx()], b) = total;
}

// A lane's argument of a sigmoid or of the mixing matrix: its sum of token t, divided by the root mean square, scaled and shifted.
FL_DEVICE float argument(int t, float mean, float eps, float scale, float base, const Shared& s) {
  float total = 0.0f;
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) total += s.sums[t][b][lane_idx()];
  float r = inverse_root(__shfl_sync(kFullMask, total, kMaxMix) * mean + eps);
  return total * r * scale + base;
}

// round(sum_j pre[j] z[j]) of a token in two neighbouring columns of a block's, from column c on; zeros past them.
struct Mixed {
  const uint16_t* z;
  int n, stride, columns;
  float pre[kMaxStreams];

  FL_DEVICE Mixed(const Share& share, int t, const uint16_t* row, const Shared& s)
      : z(share.stays() ? (const uint16_t*)s.streams[t] : row == nullptr ? nullptr : row + share.begin),
        n(share.n),
        stride(share.stays() ? share.each : share.hidden),
        columns(z == nullptr ? 0 : share.columns) {
#pragma unroll
    for (int j = 0; j < kMaxStreams; ++j) pre[j] = j < n ? s.pre[t][j] : 0.0f;
  }
  FL_DEVICE void at(int c, float (&x)[2]) const {
    x[0] = x[1] = 0.0f;
#pragma unroll
    for (int j = 0; j < kMaxStreams; ++j) {
      if (j >= n || c >= columns) continue;
      const uint16_t* from = z + (int64_t)j * stride + c;
      uint32_t both;
      if (stride % 2 == 0) {
        both = *(const uint32_t*)from;
      } else {
        both = from[0] | (c + 1 < columns ? (uint32_t)from[1] << 16 : 0);
      }
      x[0] = fmaf(pre[j], bits_float(both << 16), x[0]);
      x[1] = fmaf(pre[j], bits_float(both & 0xffff0000u), x[1]);
    }
    uint32_t pair = bf16_pair(x[0], x[1]);
    x[0] = bits_float(pair << 16), x[1] = bits_float(pair & 0xffff0000u);
  }
};

// A warp: the squares of every eighth run of a block's columns, to all blocks.
FL_DEVICE void send_squares(const Mixed& mixed, int t, int part, Shared& s) {
  float squares = 0.0f;
  for (int c = part * kRun + 2 * lane_idx(); c < mixed.columns; c += kWarps * kRun) {
    float x[2];
    mixed.at(c, x);
    squares = fmaf(x[0], x[0], squares), squares = fmaf(x[1], x[1], squares);
  }
  squares = warp_sum(squares);
  if (lane_idx() < kBlocks) *(float*)cluster_peer(&s.squares[t][cluster_rank()][part], lane_idx()) = squares;
}

// A warp: out = rmsnorm(mixed) * norm in every eighth run of a block's columns.
FL_DEVICE void store_normed(const Mixed& mixed, const Share& share, int t, int part, const Gain& norm, float mean, float eps,
                            uint16_t* out, const Shared& s) {
  static_assert(kBlocks * kWarps == 2 * kWarp, "two shares a lane");
  const float* shares = &s.squares[t][0][0];
  float scale = inverse_root(warp_sum(shares[lane_idx()] + shares[lane_idx() + kWarp]) * mean + eps);
  for (int c = part * kRun + 2 * lane_idx(); c < share.columns; c += kWarps * kRun) {
    float x[2];
    mixed.at(c, x);
    bool pair = c + 1 < share.columns;
    float low = share.stays() ? s.gains[c] : gain_at(norm, share.begin + c);
    float high = share.stays() ? s.gains[c + 1] : pair ? gain_at(norm, share.begin + c + 1) : 0.0f;
    uint32_t both = bf16_pair(x[0] * scale * low, x[1] * scale * high);
    if (s.padded[t]) both = 0;
    if (share.hidden % 2 == 0) {
      *(uint32_t*)(out + share.begin + c) = both;
    } else {
      out[share.begin + c] = (uint16_t)both;
      if (pair) out[share.begin + c + 1] = (uint16_t)(both >> 16);
    }
  }
}

// A matrix c[j][k] = m[j][k] / (rows[j] columns[k]): normalising changes the divisors alone, and m stays. Every lane of a warp has all of
// it; what is outside n x n is one on the diagonal, so that it keeps to itself.
struct Sinkhorn {
  float m[kMaxStreams][kMaxStreams], rows[kMaxStreams], columns[kMaxStreams];
  // 1 / rows and 1 / columns.
  float by_row[kMaxStreams], by_column[kMaxStreams];

  FL_DEVICE void start() {
#pragma unroll
    for (int i = 0; i < kMaxStreams; ++i) rows[i] = columns[i] = by_row[i] = by_column[i] = 1.0f;
  }
  FL_DEVICE void divide_rows(float eps) {
#pragma unroll
    for (int j = 0; j < kMaxStreams; ++j) {
      float sum = eps * rows[j];
#pragma unroll
      for (int k = 0; k < kMaxStreams; ++k) sum = fmaf(m[j][k], by_column[k], sum);
      rows[j] = sum, by_row[j] = inverse(sum);
    }
  }
  FL_DEVICE void divide_columns(float eps) {
#pragma unroll
    for (int k = 0; k < kMaxStreams; ++k) {
      float sum = eps * columns[k];
#pragma unroll
      for (int j = 0; j < kMaxStreams; ++j) sum = fmaf(m[j][k], by_row[j], sum);
      columns[k] = sum, by_column[k] = inverse(sum);
    }
  }
};

FL_DEVICE float sum_over(float x, int low, int high) {
  x += __shfl_xor_sync(kFullMask, x, low);
  return x + __shfl_xor_sync(kFullMask, x, high);
}

// A warp; lane 4 j + k holds entry (j, k) of at most 4x4. Gives its entry after `iters` rounds.
FL_DEVICE float sinkhorn(float logit, int n, int iters, float eps) {
  int lane = lane_idx() % 16, row = lane / 4, column = lane % 4;
  bool inside = row < n && column < n;
  float largest = inside ? logit : -INFINITY;
  largest = fmaxf(largest, __shfl_xor_sync(kFullMask, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(kFullMask, largest, 2));
  float c = inside ? expf(logit - largest) : 0.0f;
  float sum = sum_over(c, 1, 2);
  c = inside ? c / sum + eps : row == column ? 1.0f : 0.0f;
  Sinkhorn all;
  all.start();
#pragma unroll
  for (int i = 0; i < 16; ++i) all.m[i / 4][i % 4] = __shfl_sync(kFullMask, c, i);
  all.divide_columns(eps);
  for (int i = 1; i < iters; ++i) all.divide_rows(eps), all.divide_columns(eps);
  float by_row = 0.0f, by_column = 0.0f;
#pragma unroll
  for (int i = 0; i < kMaxStreams; ++i) {
    if (i == row) by_row = all.by_row[i];
    if (i == column) by_column = all.by_column[i];
  }
  return c * by_row * by_column;
}

// A warp: what `pre` gives beside the row: post and the mixing matrix of a token, of the lanes' arguments; zeros if it is padding.
FL_DEVICE void store_mixing(const HyperPreParams& p, int64_t token, float argument, bool padded) {
  int lane = lane_idx(), j = lane / 4, k = lane % 4, n = p.n;
  float post = 2.0f * sigmoid(argument);
  if (lane >= n && lane < 2 * n) p.post[token * n + lane - n] = padded ? 0.0f : post;
  bool inside = j < n && k < n;
  float logit = __shfl_sync(kFullMask, argument, inside ? 2 * n + j * n + k : 0);
  float c = sinkhorn(logit, n, p.sinkhorn_iters, p.hc_eps);
  if (inside) p.comb[(token * n + j) * n + k] = padded ? 0.0f : c;
}

// What is known before the kernel before ends: a lane's scale and base, by its sum.
struct Affine {
  float scale = 0.0f, base = 0.0f;

  FL_DEVICE Affine(const float* scales, const float* bases, int n, int outputs) {
    int lane = lane_idx();
    if (lane < outputs) scale = scales[lane < n ? 0 : lane < 2 * n ? 1 : 2], base = bases[lane];
  }
};

// The mix, and the norm that follows. `padded(t)`; `mixing(argument)` gets the arguments of the token that this block has, if any:
// token `cluster_rank()`.
template <int kOutputs, class Params, class Row, class Padded, class Mixing>
FL_DEVICE void mix_and_norm(const Params& p, int outputs, int tokens, Row row, Padded padded, uint16_t* out, bool has_mixing,
                            Mixing mixing, Shared& s) {
  FL_STAMP(0);
  int lane = lane_idx(), warp = warp_idx(), n = p.n;
  cluster_arrive();
  Share share(n, p.hidden);
  Affine affine(p.scale, p.base, n, outputs);
  float width = 1.0f / (float)(n * p.hidden), mean = 1.0f / (float)p.hidden, gain[2] = {};
  bool gains = share.stays() && 2 * (int)threadIdx.x < share.columns;
  if (gains) gain[0] = gain_at(p.norm, share.begin + 2 * threadIdx.x), gain[1] = gain_at(p.norm, share.begin + 2 * threadIdx.x + 1);
  share_sums_any<kOutputs>(share, p.mix, outputs, tokens, row, s);
  if (gains) *(float2*)&s.gains[2 * threadIdx.x] = float2{gain[0], gain[1]};
  if ((int)threadIdx.x < tokens) s.padded[threadIdx.x] = padded(threadIdx.x);
  // Every block has begun, and takes what the others send.
  cluster_wait();
  __syncthreads();
  if (warp < tokens) send_sums(warp, s);
  FL_STAMP(4);
  cluster_sync();
  FL_STAMP(5);
  if (warp < tokens) {
    float a = argument(warp, width, p.eps, affine.scale, affine.base, s);
    if (lane < n) s.pre[warp][lane] = sigmoid(a) + p.hc_eps;
  }
  __syncthreads();
  FL_STAMP(6);
  // One warp has the mixing matrix, where there is one, and the others the columns.
  int workers = has_mixing ? kWarps - 1 : kWarps;
#pragma unroll 1
  for (int i = warp; i < kWarps * tokens && warp < workers; i += workers) {
    send_squares(Mixed(share, i / kWarps, row(i / kWarps), s), i / kWarps, i % kWarps, s);
  }
  FL_STAMP(7);
  cluster_arrive();
  if (warp >= workers) mixing(argument(cluster_rank(), width, p.eps, affine.scale, affine.base, s));
  cluster_wait();
  FL_STAMP(8);
#pragma unroll 1
  for (int i = warp; i < kWarps * tokens && warp < workers; i += workers) {
    int t = i / kWarps;
    Mixed mixed(share, t, row(t), s);
    store_normed(mixed, share, t, i % kWarps, p.norm, mean, p.eps, out + (int64_t)t * p.hidden, s);
  }
  FL_STAMP(9);
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

}  // namespace

FL_KERNEL_CLUSTER(kThreads, 1, kBlocks, hyper_pre, HyperPreParams) {
  FL_DYNAMIC_SHARED(raw);
  Shared& s = *(Shared*)raw;
  int first = blockIdx.y * p.per_cluster, tokens = min(p.per_cluster, p.rows - first), width = p.n * p.hidden;
  auto row = [&](int t) { return p.streams + (int64_t)(first + t) * width; };
  auto padded = [&](int t) { return p.position[first + t] < 0; };
  int mine = cluster_rank();
  auto mixing = [&](float argument) {
    FL_STAMP_ANY(10);
    store_mixing(p, first + mine, argument, s.padded[mine]);
    FL_STAMP_ANY(11);
  };
  uint16_t* out = p.out + (int64_t)first * p.hidden;
  mix_and_norm<kMaxMix>(p, (2 + p.n) * p.n, tokens, row, padded, out, mine < tokens, mixing, s);
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
  Shared& s = *(Shared*)raw;
  auto row = [&](int) -> const uint16_t* {
    int64_t chosen = p.rows[blockIdx.y];
    return chosen < 0 || chosen >= p.tokens ? nullptr : p.streams + chosen * p.n * p.hidden;
  };
  auto padded = [&](int t) { return row(t) == nullptr; };
  uint16_t* out = p.out + (int64_t)blockIdx.y * p.hidden;
  mix_and_norm<kMaxStreams>(p, p.n, 1, row, padded, out, false, [](float) {}, s);
}
