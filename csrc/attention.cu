// attention: one query row against its window and its compressed rows, key and value the same 512-vector, a sink in the
// denominator, the inverse rotation in the epilogue; one launch.
//
// Bytes: 584 (fp8) or 1,024 (bf16) a row and 128 KiB of query and output a token with 64 heads; 640 rows: 0.5 MB a token.
// Measured on an H200 with cold caches, 640 fp8 rows: 15.6 us for 1 token, 21.4 for 8, 81.8 for 64 (9 % of what the bytes allow).
// Notes: (1) a token's rows, window first, compressed rows after, are taken in tiles of 64, and the tiles cut into 5 or 8
// parts by their number alone; each part is summed from zero and folded into those before; (2) for few tokens a cluster of
// blocks shares out the parts of 16 heads, keeps their sums in its shared memory and folds them from there (`attention_5`,
// `attention_8`); for many a block takes the parts one after another (`attention_alone`): the same bits; (3) a tile is
// expanded once to bf16 in shared memory (fp8 by integer moves and exact multiplications) and serves as key and as value;
// (4) scores: a warp owns 8 rows; output: a warp owns 64 dims; weights are rounded to bf16 for the second product, the
// denominator adds them unrounded; (5) rows are found through page tables with every id and index checked, two tiles ahead;
// what is masked keeps its place, with weight zero.
#include "attention.h"

#include "common/attention_fold.h"
#include "common/attention_tile.h"
#include "common/cluster.h"
#include "common/mma.h"
#include "common/pdl.h"

namespace {

// A warp: the scores of its eight rows with all heads. Four sums a score, added in a fixed order.
FL_DEVICE void score_tile(const AttentionParams& p, int tile, Shared& s) {
  int lane = lane_idx(), g = lane / 4, q = lane % 4, first = warp_idx() * 8;
  float acc[4][4] = {};
  // Matrices of A: rows 0-7 and 8-15 at low columns, then at high ones; of B: columns in four runs of eight.
  const uint16_t* a_row = s.query + (lane % 16) * kPitch + lane / 16 * 8;
  const uint16_t* b_row = s.rows + (first + lane % 8) * kPitch + lane / 8 * 8;
#pragma unroll 4
  for (int d = 0; d < kHeadDim; d += 64) {
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      uint32_t low[4], high[4], b[4];
      load_matrices<false>(low, a_row + d + 32 * part);
      load_matrices<false>(high, a_row + d + 32 * part + 16);
      load_matrices<false>(b, b_row + d + 32 * part);
      uint32_t b0[2] = {b[0], b[1]}, b1[2] = {b[2], b[3]};
      mma_16x8x16(acc[2 * part], low, b0);
      mma_16x8x16(acc[2 * part + 1], high, b1);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    int head = g + i / 2 * 8, row = first + 2 * q + i % 2;
    float sum = (acc[0][i] + acc[1][i]) + (acc[2][i] + acc[3][i]);
    s.scores[head * kScorePitch + row] = s.data[tile % kAhead][row] != nullptr ? sum * p.scale : kMasked;
  }
}

// A warp: the weights of two heads, and how much the sums so far shrink.
FL_DEVICE void weigh_tile(Shared& s) {
  int lane = lane_idx();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    int head = 2 * warp_idx() + i;
    float a = s.scores[head * kScorePitch + lane], b = s.scores[head * kScorePitch + lane + kWarp];
    // fmaxf would pass over a NaN; the exponential below keeps it.
    float before = s.largest[head], largest = fmaxf(before, warp_max(fmaxf(a, b)));
    float x = expf(a - largest), y = expf(b - largest);
    float sum = warp_sum(x + y);
    __syncwarp();
    uint16_t* weights = (uint16_t*)s.scores + head * kWeightPitch;
    weights[lane] = float_to_bf16(x);
    weights[lane + kWarp] = float_to_bf16(y);
    if (lane == 0) {
      float rescale = expf(before - largest);
      s.rescale[head] = rescale;
      s.sum[head] = fmaf(s.sum[head], rescale, sum);
      s.largest[head] = largest;
    }
  }
}

// A warp: acc = acc * rescale + weights x rows over its 64 dims.
FL_DEVICE void add_tile(float (&acc)[8][4], const Shared& s) {
  int lane = lane_idx(), g = lane / 4, base = warp_idx() * kWarpDims;
  const uint16_t* weights = (const uint16_t*)s.scores;
  float low = s.rescale[g], high = s.rescale[g + 8];
#pragma unroll
  for (int n = 0; n < 8; ++n) acc[n][0] *= low, acc[n][1] *= low, acc[n][2] *= high, acc[n][3] *= high;
#pragma unroll
  for (int k = 0; k < kTile; k += 16) {
    uint32_t a[4];
    load_matrices<false>(a, weights + (lane % 16) * kWeightPitch + k + lane / 16 * 8);
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
      uint32_t b[4];
      load_matrices<true>(b, s.rows + (k + lane % 16) * kPitch + base + n * 8 + lane / 16 * 8);
      uint32_t b0[2] = {b[0], b[1]}, b1[2] = {b[2], b[3]};
      mma_16x8x16(acc[n], a, b0);
      mma_16x8x16(acc[n + 1], a, b1);
    }
  }
}

FL_DEVICE void spill_sums(const float (&acc)[8][4], Shared& s) {
  int lane = lane_idx(), g = lane / 4, q = lane % 4, base = warp_idx() * kWarpDims;
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    float* to = s.out + g * kPitch + base + n * 8 + 2 * q;
    *(float2*)to = float2{acc[n][0], acc[n][1]};
    *(float2*)(to + 8 * kPitch) = float2{acc[n][2], acc[n][3]};
  }
}

// The blocks' sums folded in block order: four dims a thread, the heads' dims shared out over the cluster.
template <int kBlocks>
FL_DEVICE void merge(const AttentionParams& p, const Shared& s, int64_t t, int first_head, int position) {
  constexpr int kQuads = kHeadDim / 4;
  for (int i = cluster_rank() * kThreads + threadIdx.x; i < kHeads * kQuads; i += kBlocks * kThreads) {
    int head = i / kQuads, dim = i % kQuads * 4;
    if (first_head + head >= p.heads) continue;
    float largest[kBlocks], sums[kBlocks];
    float4 parts[kBlocks];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      largest[b] = *cluster_peer(&s.largest[head], b), sums[b] = *cluster_peer(&s.sum[head], b);
      parts[b] = *(const float4*)cluster_peer(s.out + head * kPitch + dim, b);
    }
    float v[4] = {parts[0].x, parts[0].y, parts[0].z, parts[0].w};
#pragma unroll
    for (int b = 1; b < kBlocks; ++b) {
      Fold fold(largest[0], largest[b]);
      largest[0] = fold.largest, sums[0] = fold.sum(sums[0], sums[b]);
      v[0] = fold.sum(v[0], parts[b].x), v[1] = fold.sum(v[1], parts[b].y);
      v[2] = fold.sum(v[2], parts[b].z), v[3] = fold.sum(v[3], parts[b].w);
    }
    store_dims(p, v, sums[0], t, first_head + head, dim, position);
  }
}

// The queries of a block's heads on their way to shared memory.
FL_DEVICE void fetch_queries(const AttentionParams& p, int64_t t, int first_head, Shared& s) {
  for (int i = threadIdx.x; i < kHeads * kHeadDim / 8; i += kThreads) {
    int head = i / (kHeadDim / 8), unit = i % (kHeadDim / 8);
    uint16_t* to = s.query + head * kPitch + 8 * unit;
    if (first_head + head < p.heads) {
      copy_async<16>(to, p.q + (t * p.heads + first_head + head) * kHeadDim + 8 * unit);
    } else {
      *(uint4*)to = uint4{0, 0, 0, 0};
    }
  }
  copies_commit();
}

// The sums of one part of the rows, tiles tile .. last - 1, to acc, s.largest and s.sum; `kBatch` loads of a thread are under way
// at once, as many as there are registers for.
template <int kBatch>
FL_DEVICE void attend_part(const AttentionParams& p, int64_t t, int first_head, int part, int tile, int last, float (&acc)[8][4],
                           Shared& s) {
  if (tile < last && threadIdx.x < 2 * kTile) find_rows(p, t, tile + (int)threadIdx.x / kTile, (int)threadIdx.x % kTile, s);
  if (threadIdx.x < kHeads) {
    int head = first_head + threadIdx.x;
    // The sink counts once, in the first part. One of -inf adds nothing; the floor keeps the differences below finite.
    float sink = part == 0 && head < p.heads ? p.sink[head] : -INFINITY;
    s.largest[threadIdx.x] = fmaxf(sink, -1e30f);
    s.sum[threadIdx.x] = expf(sink - s.largest[threadIdx.x]);
  }
#pragma unroll
  for (int i = 0; i < 32; ++i) acc[i / 4][i % 4] = 0.0f;
  copies_wait<0>();
  __syncthreads();
#pragma unroll 1
  for (; tile < last; ++tile) {
    if (p.format == kKvFp8) {
      load_fp8<kBatch>(p, t, tile, last, s);
    } else {
      load_bf16(p, t, tile, last, s);
    }
    __syncthreads();
    score_tile(p, tile, s);
    __syncthreads();
    weigh_tile(s);
    __syncthreads();
    add_tile(acc, s);
    __syncthreads();
  }
}

// How a token's tiles are cut into parts: by their number alone.
FL_DEVICE int tiles_of_part(const RowList& list, int parts, int& tiles) {
  tiles = (list.window + list.compressed + kTile - 1) / kTile;
  return (tiles + parts - 1) / parts;
}

// A cluster shares out the parts of a token's rows.
template <int kBlocks>
FL_DEVICE void attend_shared(const AttentionParams& p, Shared& s) {
  int64_t t = blockIdx.z;
  int first_head = blockIdx.y * kHeads, rank = cluster_rank(), tiles;
  fetch_queries(p, t, first_head, s);
  int position = p.position[t];
  RowList list(p, position);
  int each = tiles_of_part(list, kBlocks, tiles);
  if (threadIdx.x == 0) s.list = list;
  __syncthreads();
  float acc[8][4];
  attend_part<9>(p, t, first_head, rank, rank * each, min(tiles, rank * each + each), acc, s);
  spill_sums(acc, s);
  cluster_sync();
  merge<kBlocks>(p, s, t, first_head, position);
  cluster_sync();
}

// A block takes the parts one after another, with the same sums.
FL_DEVICE void attend_alone(const AttentionParams& p, int parts, Shared& s) {
  int64_t t = blockIdx.y;
  int first_head = blockIdx.x * kHeads, lane = lane_idx(), g = lane / 4, tiles;
  fetch_queries(p, t, first_head, s);
  int position = p.position[t];
  RowList list(p, position);
  int each = tiles_of_part(list, parts, tiles);
  if (threadIdx.x == 0) s.list = list;
  __syncthreads();
  float acc[8][4], sums[8][4] = {}, largest[2], total[2];
#pragma unroll 1
  for (int part = 0; part < parts; ++part) {
    attend_part<3>(p, t, first_head, part, part * each, min(tiles, part * each + each), acc, s);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float other = s.largest[g + 8 * half], sum = s.sum[g + 8 * half];
      Fold fold(part == 0 ? other : largest[half], other);
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        float &to = sums[i / 2][2 * half + i % 2], from = acc[i / 2][2 * half + i % 2];
        to = part == 0 ? from : fold.sum(to, from);
      }
      total[half] = part == 0 ? sum : fold.sum(total[half], sum);
      largest[half] = fold.largest;
    }
    __syncthreads();
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    int head = first_head + g + 8 * half;
    if (head >= p.heads) continue;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      float v[2] = {sums[n][2 * half], sums[n][2 * half + 1]};
      store_dims(p, v, total[half], t, head, warp_idx() * kWarpDims + n * 8 + 2 * (lane % 4), position);
    }
  }
}

}  // namespace

FL_KERNEL_CLUSTER(kThreads, 2, 5, attention_5, AttentionParams) {
  FL_DYNAMIC_SHARED(raw);
  pdl_wait();
  attend_shared<5>(p, *(Shared*)raw);
}

FL_KERNEL_CLUSTER(kThreads, 2, 8, attention_8, AttentionParams) {
  FL_DYNAMIC_SHARED(raw);
  pdl_wait();
  attend_shared<8>(p, *(Shared*)raw);
}

FL_KERNEL_BLOCKS(kThreads, 2, attention_alone, AttentionParams) {
  FL_DYNAMIC_SHARED(raw);
  pdl_wait();
  attend_alone(p, p.parts, *(Shared*)raw);
}
