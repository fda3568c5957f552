// attention: one query row against its window and its compressed rows, key and value the same 512-vector, a sink in the
// denominator, the inverse rotation in the epilogue; one launch. This kernel is for few tokens, attention_wide.cu for many: the
// same bits.
//
// Bytes: 584 (fp8) or 1,024 (bf16) a row and 128 KiB of query and output a token with 64 heads; 640 rows: 0.5 MB a token.
// Measured on an H200 with cold caches, 640 fp8 rows: 16.0 us for 1 token, 23.9 for 8, 13.9 with 64 rows of C128 in place of 512.
// Notes: (1) a token's rows, window first, compressed rows after, are taken in tiles of 64, each summed from zero at its own
// largest score; tiles are folded in order into two parts, cut by the number of tiles alone, and those into the whole; (2) a
// cluster of 8 blocks, or of 5 where more clusters must fit, shares out the tiles of 16 heads, two a block and round, and sends the
// sums of each dim to the block that folds that; (3) a tile is expanded once to bf16 in shared memory (fp8 by integer moves and exact
// multiplications) and serves as key and as value; (4) scores: a warp owns 8 rows; output: a warp owns 64 dims; weights are
// rounded to bf16 for the second product, the denominator adds them unrounded; (5) rows are found through page tables with every
// id and index checked; what is masked keeps its place, with weight zero.
#include "attention.h"

#include "common/attention_fold.h"
#include "common/attention_tile.h"
#include "common/cluster.h"
#include "common/mma.h"
#include "common/pdl.h"

namespace {

// A warp: the scores of its eight rows with all heads, each the sum of the low dims' and of the high dims'.
FL_DEVICE void score_tile(const AttentionParams& p, int tile, Shared& s) {
  int lane = lane_idx(), g = lane / 4, q = lane % 4, first = warp_idx() * 8;
  float acc[2][4] = {};
  // Matrices of A: rows 0-7 and 8-15 at low columns, then at high ones; of B: columns in four runs of eight.
  const uint16_t* a_row = s.query + (lane % 16) * kPitch + lane / 16 * 8;
  const uint16_t* b_row = s.rows + (first + lane % 8) * kPitch + lane / 8 * 8;
#pragma unroll 4
  for (int d = 0; d < kHeadDim / 2; d += 32) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int at = d + half * (kHeadDim / 2);
      uint32_t low[4], high[4], b[4];
      load_matrices<false>(low, a_row + at);
      load_matrices<false>(high, a_row + at + 16);
      load_matrices<false>(b, b_row + at);
      uint32_t b0[2] = {b[0], b[1]}, b1[2] = {b[2], b[3]};
      mma_16x8x16(acc[half], low, b0);
      mma_16x8x16(acc[half], high, b1);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    int head = g + i / 2 * 8, row = first + 2 * q + i % 2;
    s.scores[head * kScorePitch + row] = s.data[tile][row] != nullptr ? (acc[0][i] + acc[1][i]) * p.scale : kMasked;
  }
}

// A warp: the weights of two heads, and their sum.
FL_DEVICE void weigh_tile(int tile, Shared& s) {
  // Sums add in the order of attention_wide.cu, where a lane has neighbours and a warpgroup half of the rows.
  int lane = lane_idx(), row = lane / 16 * 32 + lane % 16;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    int head = 2 * warp_idx() + i;
    float a = s.scores[head * kScorePitch + row], b = s.scores[head * kScorePitch + row + 16];
    // fmaxf would pass over a NaN; the exponential below keeps it.
    float largest = fmaxf(kFloor, warp_max(fmaxf(a, b)));
    float x = quick_exp(a - largest), y = quick_exp(b - largest), sum = x + y;
#pragma unroll
    for (int step : {1, 8, 2, 4, 16}) sum += __shfl_xor_sync(kFullMask, sum, step);
    __syncwarp();
    uint16_t* weights = (uint16_t*)s.scores + head * kWeightPitch;
    weights[row] = float_to_bf16(x);
    weights[row + 16] = float_to_bf16(y);
    if (lane == 0) s.largest[tile][head] = largest, s.sum[tile][head] = sum;
  }
}

// A warp: weights x rows over its 64 dims.
FL_DEVICE void sum_tile(float (&acc)[8][4], const Shared& s) {
  int lane = lane_idx(), base = warp_idx() * kWarpDims;
  const uint16_t* weights = (const uint16_t*)s.scores;
#pragma unroll
  for (int n = 0; n < 8; ++n) acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0.0f;
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

// A tile's sums to the blocks that fold them, and its largest scores and denominators to all of them.
template <int kCluster>
FL_DEVICE void send_tile(const float (&acc)[8][4], int tile, int slot, Shared& s) {
  constexpr int kOwnRuns = kRunsOf<kCluster>;
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    int run = warp_idx() * (kWarpDims / 8) + n;
    *(float4*)cluster_peer(&s.sums[slot * kOwnRuns + run % kOwnRuns][lane_idx()], run / kOwnRuns) =
        float4{acc[n][0], acc[n][1], acc[n][2], acc[n][3]};
  }
  int block = threadIdx.x / kHeads, head = threadIdx.x % kHeads;
  if (block >= kCluster) return;
  *(float*)cluster_peer(&s.tile_largest[slot][head], block) = s.largest[tile][head];
  *(float*)cluster_peer(&s.tile_sum[slot][head], block) = s.sum[tile][head];
}

// What a thread folds: of heads g and g + 8, two dims of each of some runs; over the part's tiles so far, and over the parts before.
template <int kCluster>
struct Sums {
  static constexpr int kOwnRuns = kRunsOf<kCluster>, kRuns = (kOwnRuns + kWarps - 1) / kWarps;
  Denominator part[2], whole[2];
  float in_part[kRuns][4], in_whole[kRuns][4];
  int parts;

  FL_DEVICE explicit Sums(const Shared& s)
      : part{Denominator(s.sink[lane_idx() / 4]), Denominator(s.sink[lane_idx() / 4 + 8])},
        whole{Denominator(0.0f, 0.0f), Denominator(0.0f, 0.0f)},
        parts(0) {
#pragma unroll
    for (int i = 0; i < 4 * kRuns; ++i) in_part[i / 4][i % 4] = in_whole[i / 4][i % 4] = 0.0f;
  }
  FL_DEVICE void add(int slot, const Shared& s) {
    int g = lane_idx() / 4;
    Fold low = part[0].fold(Denominator(s.tile_largest[slot][g], s.tile_sum[slot][g]));
    Fold high = part[1].fold(Denominator(s.tile_largest[slot][g + 8], s.tile_sum[slot][g + 8]));
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      float4 v = s.sums[slot * kOwnRuns + min(warp_idx() + i * kWarps, kOwnRuns - 1)][lane_idx()];
      in_part[i][0] = low.sum(in_part[i][0], v.x), in_part[i][1] = low.sum(in_part[i][1], v.y);
      in_part[i][2] = high.sum(in_part[i][2], v.z), in_part[i][3] = high.sum(in_part[i][3], v.w);
    }
  }
  FL_DEVICE void close_part() {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      bool first = parts == 0;
      if (first) whole[h] = part[h];
      Fold fold = first ? Fold(0.0f, 0.0f) : whole[h].fold(part[h]);
#pragma unroll
      for (int i = 0; i < 2 * kRuns; ++i) {
        float &to = in_whole[i / 2][2 * h + i % 2], &from = in_part[i / 2][2 * h + i % 2];
        to = first ? from : fold.sum(to, from), from = 0.0f;
      }
      part[h] = Denominator(-INFINITY);
    }
    ++parts;
  }
};

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

// The sums of a round's tiles first + rank and first + kCluster + rank, to the blocks that fold them.
template <int kCluster>
FL_DEVICE void attend_round(const AttentionParams& p, const RowList& list, int64_t t, int first, Shared& s) {
  int n = (int)threadIdx.x / kTile, own = first + n * kCluster + cluster_rank();
  if (n < kRound && own < list.tiles()) find_row(p, list, t, own, n, (int)threadIdx.x % kTile, s);
  __syncthreads();
  copies_wait<0>();
  float acc[kRound][8][4];
#pragma unroll
  for (int i = 0; i < kRound; ++i) {
    if (first + i * kCluster + cluster_rank() >= s.tiles) continue;
    if (p.format == kKvFp8) {
      load_fp8(i, s);
    } else {
      load_bf16(i, s);
    }
    __syncthreads();
    score_tile(p, i, s);
    __syncthreads();
    weigh_tile(i, s);
    __syncthreads();
    sum_tile(acc[i], s);
    __syncthreads();
  }
  // Every block is done with its rows, and the sums may lie over them.
  cluster_sync();
#pragma unroll
  for (int i = 0; i < kRound; ++i) {
    if (first + i * kCluster + cluster_rank() < s.tiles) send_tile<kCluster>(acc[i], i, i * kCluster + cluster_rank(), s);
  }
  cluster_sync();
}

// What a round found, folded in the order of tiles.
template <int kCluster>
FL_DEVICE void fold_round(Sums<kCluster>& sums, int first, const Shared& s) {
  int tiles = s.tiles, each = tiles_of_part(tiles);
#pragma unroll 5
  for (int slot = 0; slot < min(kRound * kCluster, tiles - first); ++slot) {
    if (first + slot > 0 && (first + slot) % each == 0) sums.close_part();
    sums.add(slot, s);
  }
}

// The rounds after the first. Not inlined: such lists are rare, and the first has registers for no more; in this one some spill.
template <int kCluster>
FL_RARE Sums<kCluster> attend_more(const AttentionParams& p, Sums<kCluster> sums, Shared& s) {
  RowList list(p, s.position);
#pragma unroll 1
  for (int first = kRound * kCluster; first < s.tiles; first += kRound * kCluster) {
    __syncthreads();
    attend_round<kCluster>(p, list, blockIdx.z, first, s);
    fold_round(sums, first, s);
  }
  return sums;
}

template <int kCluster>
FL_DEVICE void attend(const AttentionParams& p, Shared& s) {
  constexpr int kOwnRuns = kRunsOf<kCluster>;
  int first_head = blockIdx.y * kHeads;
  prefetch_lists(p, blockIdx.z);
  fetch_queries(p, blockIdx.z, first_head, s);
  int position = p.position[blockIdx.z];
  RowList list(p, position);
  // Read again when the registers are free.
  if (threadIdx.x == 0) s.position = position, s.tiles = list.tiles();
  if (threadIdx.x < kHeads) s.sink[threadIdx.x] = first_head + (int)threadIdx.x < p.heads ? p.sink[first_head + threadIdx.x] : -INFINITY;
  prefetch_angles(p, position);
  attend_round<kCluster>(p, list, blockIdx.z, 0, s);
  Sums<kCluster> sums(s);
  fold_round(sums, 0, s);
  if (s.tiles > kRound * kCluster) sums = attend_more(p, sums, s);
  while (sums.parts < kParts) sums.close_part();
#pragma unroll
  for (int i = 0; i < 2 * Sums<kCluster>::kRuns; ++i) {
    int own = warp_idx() + i / 2 * kWarps, run = cluster_rank() * kOwnRuns + own, head = first_head + lane_idx() / 4 + i % 2 * 8;
    if (own >= kOwnRuns || run >= kHeadDim / 8 || head >= p.heads) continue;
    float v[2] = {sums.in_whole[i / 2][i % 2 * 2], sums.in_whole[i / 2][i % 2 * 2 + 1]};
    store_dims(p, v, sums.whole[i % 2].sum, blockIdx.z, head, 8 * run + lane_idx() % 4 * 2, s.position);
  }
}

}  // namespace

FL_KERNEL_CLUSTER(kThreads, 2, 5, attention_5, AttentionParams) {
  FL_DYNAMIC_SHARED(raw);
  pdl_wait();
  attend<5>(p, *(Shared*)raw);
}

FL_KERNEL_CLUSTER(kThreads, 2, 8, attention_8, AttentionParams) {
  FL_DYNAMIC_SHARED(raw);
  pdl_wait();
  attend<8>(p, *(Shared*)raw);
}
