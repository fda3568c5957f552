// The mix before a sublayer and the norm that follows it, in clusters of 8 blocks that serve some tokens: each block has an eighth of
// the columns, and sends the others its shares of every sum.
#pragma once

#include "../hyper.h"
#include "cluster.h"
#include "convert.h"
#include "copy_async.h"
#include "pdl.h"
#include "reduce.h"
#include "rows.h"
#include "sinkhorn.h"

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kBlocks = 8;
constexpr int kMaxTokens = 8;
// Sums come in groups of eight: of `pre` and `post`, and two of the mixing matrix; then the squares.
constexpr int kGroup = 8;
constexpr int kMatrix = 2 * kMaxStreams, kSquares = kMatrix + kMaxStreams * kMaxStreams;
// Columns of a warp at once, two a lane.
constexpr int kRun = 2 * kWarp;
static_assert(kMatrix == kGroup && kSquares == 3 * kGroup, "groups of sums, a lane a sum");
static_assert(kMaxTokens <= kWarps && kMaxTokens <= kBlocks, "a warp and a block a token");

FL_DEVICE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// 1 / sqrt(x) within two units in the last place.
FL_DEVICE float inverse_root(float x) {
#if defined(__CUDA_ARCH__)
  return rsqrtf(x);
#else
  return 1.0f / sqrtf(x);
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
FL_DEVICE void fold(float (&v)[kGroup], int lanes) {
  bool upper = lane_idx() & lanes;
#pragma unroll
  for (int i = 0; i < kStep; ++i) {
    float keep = upper ? v[i + kStep] : v[i], give = upper ? v[i] : v[i + kStep];
    v[i] = keep + __shfl_xor_sync(kFullMask, give, lanes);
  }
}

// A warp's eight sums over its lanes, in the order of `warp_sum`: sum i to lanes 4 i to 4 i + 3.
FL_DEVICE float warp_sums(float (&v)[kGroup]) {
  fold<4>(v, 16), fold<2>(v, 8), fold<1>(v, 4);
  v[0] += __shfl_xor_sync(kFullMask, v[0], 2);
  return v[0] + __shfl_xor_sync(kFullMask, v[0], 1);
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

// What a block computes: `pre`, `post` and the normed row, or the mixing matrix, or all of it. Groups of sums from the first on.
template <int kFirst, int kCount>
struct Role {
  static constexpr int kFirstGroup = kFirst, kGroups = kCount;
  static constexpr bool kNorm = kFirst == 0, kMixing = kFirst + kCount == 3;

  // The output whose sum stands at `slot`, -1 if there is none: of n + (has_post ? n : 0) before the matrix.
  FL_DEVICE static int output(int slot, int n, bool has_post) {
    if (slot < kMatrix) return kNorm && slot < (has_post ? 2 * n : n) ? slot : -1;
    return kMixing && slot - kMatrix < n * n ? slot - kMatrix + 2 * n : -1;
  }
};

// This block's share of each output's sum over mix . z, and of z . z, to s.scratch; `row(t)` is token t's streams, null to read
// zeros. Waits for the kernel before once its first weights are on their way.
template <class R, int kVector, class Row>
FL_DEVICE void share_sums(const Share& share, const float* mix, bool has_post, int tokens, Row row, Shared& s) {
  int per_stream = share.each / kVector, units = share.n * per_stream;
  float m[R::kGroups][kGroup][kVector];
  // Where a unit of columns lies in a row of streams; -1 past the block's.
  auto place = [&](int unit) {
    int stream = unit / per_stream, column = unit % per_stream * kVector;
    return unit < units && column < share.columns ? stream * share.hidden + share.begin + column : -1;
  };
  auto load_mix = [&](int at) {
#pragma unroll
    for (int j = 0; j < R::kGroups * kGroup; ++j) {
      int output = R::output(R::kFirstGroup * kGroup + j, share.n, has_post);
      float(&to)[kVector] = m[j / kGroup][j % kGroup];
#pragma unroll
      for (int k = 0; k < kVector; ++k) to[k] = 0.0f;
      if (output >= 0 && at >= 0) load_floats<kVector>(mix + (int64_t)output * share.n * share.hidden + at, to);
    }
  };
  int at = place(threadIdx.x), lane = lane_idx();
  load_mix(at);
  pdl_wait();
  bool stays = kVector == 8 && share.stays();
  for (int t = 0; t < tokens; ++t) {
    const uint16_t* from = row(t);
    bool valid = from != nullptr && at >= 0;
    if (stays) copy_async<16>(&s.streams[t][threadIdx.x], from + (valid ? at : 0), valid);
    s.scratch[t][warp_idx()][lane] = 0.0f;
  }
  close_copies();
  wait_copies<0>();
  __syncwarp();
  for (int start = 0; start < units; start += kThreads) {
    if (start > 0) load_mix(at = place(start + threadIdx.x));
    for (int t = 0; t < tokens; ++t) {
      float v[kVector] = {}, squares = 0.0f;
      const uint16_t* from = row(t);
      if (stays) {
        load_stream<kVector>((const uint16_t*)&s.streams[t][threadIdx.x], v);
      } else if (from != nullptr && at >= 0) {
        load_stream<kVector>(from + at, v);
      }
      float found = 0.0f;
#pragma unroll
      for (int g = 0; g < R::kGroups; ++g) {
        float acc[kGroup] = {};
#pragma unroll
        for (int k = 0; k < kVector; ++k) {
#pragma unroll
          for (int j = 0; j < kGroup; ++j) acc[j] = fmaf(m[g][j][k], v[k], acc[j]);
        }
        float sum = warp_sums(acc);
        if (lane % 4 == g) found = sum;
      }
#pragma unroll
      for (int k = 0; k < kVector; ++k) squares = fmaf(v[k], v[k], squares);
      squares = warp_sum(squares);
      // The squares stand behind all groups.
      int slot = lane % 4 < R::kGroups ? (R::kFirstGroup + lane % 4) * kGroup + lane / 4 : kSquares + lane / 4;
      if (lane % 4 < R::kGroups || lane % 4 == 3) s.scratch[t][warp_idx()][slot] += lane % 4 == 3 ? squares : found;
    }
  }
}

// The same for any width.
template <class R, class Row>
FL_DEVICE void share_sums_any(const Share& share, const float* mix, bool has_post, int tokens, Row row, Shared& s) {
  if (share.hidden % 8 == 0) {
    share_sums<R, 8>(share, mix, has_post, tokens, row, s);
  } else {
    share_sums<R, 1>(share, mix, has_post, tokens, row, s);
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
  float r = inverse_root(__shfl_sync(kFullMask, total, kSquares) * mean + eps);
  return total * r * scale + base;
}

// round(sum_j pre[j] z[j]) of a token in two neighbouring columns of a block's, from column c on, as a pair.
template <bool kStays>
FL_DEVICE uint32_t mixed_pair(const Share& share, const uint16_t* row, int t, int c, const Shared& s) {
  float4 all = *(const float4*)s.pre[t];
  float pre[kMaxStreams] = {all.x, all.y, all.z, all.w}, low = 0.0f, high = 0.0f;
  uint32_t pairs[kMaxStreams];
#pragma unroll
  for (int j = 0; j < kMaxStreams; ++j) {
    pairs[j] = 0;
    if (kStays) {
      if (j < share.n) pairs[j] = *(const uint32_t*)((const uint16_t*)s.streams[t] + j * share.each + c);
    } else if (j < share.n && row != nullptr) {
      const uint16_t* from = row + (int64_t)j * share.hidden + share.begin + c;
      pairs[j] = from[0] | (c + 1 < share.columns ? (uint32_t)from[1] << 16 : 0);
    }
  }
#pragma unroll
  for (int j = 0; j < kMaxStreams; ++j) {
    low = fmaf(pre[j], bits_float(pairs[j] << 16), low), high = fmaf(pre[j], bits_float(pairs[j] & 0xffff0000u), high);
  }
  return bf16_pair(low, high);
}

// A warp: the squares of every eighth run of a token's columns in this block, to all blocks.
template <bool kStays>
FL_DEVICE void send_squares(const Share& share, const uint16_t* row, int t, int part, Shared& s) {
  float squares = 0.0f;
  for (int c = part * kRun + 2 * lane_idx(); c < share.columns; c += kWarps * kRun) {
    uint32_t pair = mixed_pair<kStays>(share, row, t, c, s);
    float low = bits_float(pair << 16), high = bits_float(pair & 0xffff0000u);
    squares = fmaf(low, low, squares), squares = fmaf(high, high, squares);
    if (kStays) break;
  }
  squares = warp_sum(squares);
  if (lane_idx() < kBlocks) *(float*)cluster_peer(&s.squares[t][cluster_rank()][part], lane_idx()) = squares;
}

// A warp: out = rmsnorm(mixed) * norm in every eighth run of a token's columns in this block.
template <bool kStays>
FL_DEVICE void store_normed(const Share& share, const uint16_t* row, int t, int part, const Gain& norm, float mean, float eps,
                            uint16_t* out, const Shared& s) {
  static_assert(kBlocks * kWarps == 2 * kWarp, "two shares a lane");
  const float* shares = &s.squares[t][0][0];
  float scale = inverse_root(warp_sum(shares[lane_idx()] + shares[lane_idx() + kWarp]) * mean + eps);
  for (int c = part * kRun + 2 * lane_idx(); c < share.columns; c += kWarps * kRun) {
    uint32_t pair = mixed_pair<kStays>(share, row, t, c, s);
    bool both = c + 1 < share.columns;
    float2 gains;
    if (kStays) {
      gains = *(const float2*)&s.gains[c];
    } else {
      gains = {gain_at(norm, share.begin + c), both ? gain_at(norm, share.begin + c + 1) : 0.0f};
    }
    pair = bf16_pair(bits_float(pair << 16) * scale * gains.x, bits_float(pair & 0xffff0000u) * scale * gains.y);
    if (s.padded[t]) pair = 0;
    if (kStays) {
      *(uint32_t*)(out + share.begin + c) = pair;
      break;
    }
    out[share.begin + c] = (uint16_t)pair;
    if (both) out[share.begin + c + 1] = (uint16_t)(pair >> 16);
  }
}

// The norm's two halves, a warp a run of a token's columns; `meanwhile` stands between them. Warps from `workers` on have none.
template <bool kStays, class Params, class Row, class Meanwhile>
FL_DEVICE void norm_mixed(const Params& p, const Share& share, int tokens, Row row, uint16_t* out, int workers, Meanwhile meanwhile,
                          Shared& s) {
  int warp = warp_idx(), end = warp < workers ? kWarps * tokens : 0;
#pragma unroll 2
  for (int i = warp; i < end; i += workers) send_squares<kStays>(share, row(i / kWarps), i / kWarps, i % kWarps, s);
  cluster_arrive();
  meanwhile();
  cluster_wait();
  float mean = 1.0f / (float)p.hidden;
#pragma unroll 2
  for (int i = warp; i < end; i += workers) {
    int t = i / kWarps;
    store_normed<kStays>(share, row(t), t, i % kWarps, p.norm, mean, p.eps, out + (int64_t)t * p.hidden, s);
  }
}

// A role for some tokens of a cluster. `padded(t)`; `post(t, argument)` gets the lanes' arguments of each token in one block, and
// `mixing(argument)` those of the token whose matrix this block has: token `cluster_rank()`.
template <class R, class Params, class Row, class Padded, class Post, class Mixing>
FL_DEVICE void play(const Params& p, bool has_post, int tokens, Row row, Padded padded, uint16_t* out, Post post, Mixing mixing,
                    Shared& s) {
  int lane = lane_idx(), warp = warp_idx(), n = p.n, output = R::output(lane, n, has_post);
  cluster_arrive();
  Share share(n, p.hidden);
  // What is known before the kernel before ends: a lane's scale and base, and gains.
  float scale = 0.0f, base = 0.0f, gain[2] = {}, width = 1.0f / (float)(n * p.hidden);
  if (output >= 0) scale = p.scale[output < n ? 0 : output < 2 * n ? 1 : 2], base = p.base[output];
  bool gains = R::kNorm && share.stays() && 2 * (int)threadIdx.x < share.columns;
  if (gains) gain[0] = gain_at(p.norm, share.begin + 2 * threadIdx.x), gain[1] = gain_at(p.norm, share.begin + 2 * threadIdx.x + 1);
  share_sums_any<R>(share, p.mix, has_post, tokens, row, s);
  if (gains) *(float2*)&s.gains[2 * threadIdx.x] = float2{gain[0], gain[1]};
  if ((int)threadIdx.x < tokens) s.padded[threadIdx.x] = padded(threadIdx.x);
  // Every block has begun, and takes what the others send.
  cluster_wait();
  __syncthreads();
  if (warp < tokens) send_sums(warp, s);
  cluster_sync();
  bool has_matrix = R::kMixing && cluster_rank() < tokens && warp == kWarps - 1;
  auto matrix = [&] {
    if (has_matrix) mixing(argument(cluster_rank(), width, p.eps, scale, base, s));
  };
  if constexpr (!R::kNorm) {
    matrix();
  } else {
    if (warp < tokens) {
      float a = argument(warp, width, p.eps, scale, base, s), gate = sigmoid(a);
      if (lane < kMaxStreams) s.pre[warp][lane] = lane < n ? gate + p.hc_eps : 0.0f;
      if (has_post && cluster_rank() == warp) post(warp, gate);
    }
    __syncthreads();
    int workers = R::kMixing && cluster_rank() < tokens ? kWarps - 1 : kWarps;
    if (share.stays()) {
      norm_mixed<true>(p, share, tokens, row, out, workers, matrix, s);
    } else {
      norm_mixed<false>(p, share, tokens, row, out, workers, matrix, s);
    }
  }
}
