// attention: one query row against its window and its compressed rows, key and value the same 512-vector, a sink in the
// denominator, the inverse rotation in the epilogue; one launch. This kernel is for few tokens, attention_wide.cu for many: the
// same bits.
//
// Bytes: 584 (fp8) or 1,024 (bf16) a row and 128 KiB of query and output a token with 64 heads; 640 rows: 0.5 MB a token.
// Measured on an H200 with cold caches, 640 fp8 rows: 15.0 us for 1 token, 23.1 for 8.
// Notes: (1) a token's rows, window first, compressed rows after, are taken in tiles of 64, each summed from zero at its own
// largest score; tiles are folded in order into two parts, cut by the number of tiles alone, and those into the whole; (2) a
// cluster of 8 blocks, or of 5 where more clusters must fit, shares out the tiles of 16 heads, two a block and round, and sends the
// sums of each dim to the block that folds that; with 8 blocks a multiprocessor has one, with room to receive while it sums;
// (3) a tile is expanded once to bf16 in shared memory (fp8 by integer moves and exact multiplications) and serves as key and as
// value; (4) scores: a warp owns half of the dims of 16 rows; output: a warp owns 64 dims; weights are rounded to bf16 for the second
// product, the denominator adds them unrounded; (5) rows are found through page tables with every id and index checked; what is
// masked keeps its place, with weight zero; (6) on sm_120a two registers spill where 128 are all that there are.
#include "attention.h"

#include "common/attention_fold.h"
#include "common/attention_tile.h"
#include "common/cluster.h"
#include "common/mma.h"
#include "common/pdl.h"

static_assert(sizeof(Shared<false>) == 96848 && sizeof(Shared<true>) == 163408, "as src/cuda/ops/attention.rs has it");

namespace {

// A warp: half of the dims' share of the scores of sixteen rows with all heads.
template <class S>
FL_DEVICE void score_tile(S& s) {
  int lane = lane_idx(), g = lane / 4, q = lane % 4, half = warp_idx() % 2, first = warp_idx() / 2 * 16;
  float acc[2][4] = {};
  // Matrices of A: rows 0-7 and 8-15 at low columns, then at high ones; of B: columns in four runs of eight.
  const uint16_t* a_row = s.query + (lane % 16) * kPitch + half * (kHeadDim / 2) + lane / 16 * 8;
  const uint16_t* b_row = s.rows + (first + lane % 8) * kPitch + half * (kHeadDim / 2) + lane / 8 * 8;
#pragma unroll 4
  for (int d = 0; d < kHeadDim / 2; d += 32) {
    uint32_t low[4], high[4];
    load_matrices<false>(low, a_row + d);
    load_matrices<false>(high, a_row + d + 16);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      uint32_t b[4];
      load_matrices<false>(b, b_row + n * 8 * kPitch + d);
      uint32_t b0[2] = {b[0], b[1]}, b1[2] = {b[2], b[3]};
      mma_16x8x16(acc[n], low, b0);
      mma_16x8x16(acc[n], high, b1);
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    int head = g + i / 2 % 2 * 8, row = first + i / 4 * 8 + 2 * q + i % 2;
    s.scores[half][head * kScorePitch + row] = acc[i / 4][i % 4];
  }
}

// A warp: the weights of two heads, and their sum. Weights lie over the low dims' scores.
template <class S>
FL_DEVICE void weigh_tile(const AttentionParams& p, int tile, S& s) {
  // Sums add in the order of attention_wide.cu, where a lane has neighbours and a warpgroup half of the rows.
  int lane = lane_idx(), row = lane / 16 * 32 + lane % 16, first = 2 * warp_idx() * kScorePitch;
  bool there = s.data[tile][row] != nullptr, there_too = s.data[tile][row + 16] != nullptr;
  float a[2], b[2], largest[2], sum[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    int at = first + i * kScorePitch + row;
    a[i] = there ? (s.scores[0][at] + s.scores[1][at]) * p.scale : kMasked;
    b[i] = there_too ? (s.scores[0][at + 16] + s.scores[1][at + 16]) * p.scale : kMasked;
    largest[i] = fmaxf(a[i], b[i]);
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
#pragma unroll
    for (int i = 0; i < 2; ++i) largest[i] = fmaxf(largest[i], __shfl_xor_sync(kFullMask, largest[i], step));
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    // fmaxf would pass over a NaN; the exponential below keeps it.
    largest[i] = fmaxf(kFloor, largest[i]);
    a[i] = quick_exp(a[i] - largest[i]), b[i] = quick_exp(b[i] - largest[i]), sum[i] = a[i] + b[i];
  }
#pragma unroll
  for (int step : {1, 8, 2, 4, 16}) {
#pragma unroll
    for (int i = 0; i < 2; ++i) sum[i] += __shfl_xor_sync(kFullMask, sum[i], step);
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    int head = 2 * warp_idx() + i;
    uint16_t* weights = (uint16_t*)s.scores[0] + head * kWeightPitch;
    weights[row] = float_to_bf16(a[i]);
    weights[row + 16] = float_to_bf16(b[i]);
    if (lane == 0) s.largest[tile][head] = largest[i], s.sum[tile][head] = sum[i];
  }
}

// A warp: weights x rows over its 64 dims.
template <class S>
FL_DEVICE void sum_tile(float (&acc)[8][4], const S& s) {
  int lane = lane_idx(), base = warp_idx() * kWarpDims;
  const uint16_t* weights = (const uint16_t*)s.scores[0];
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
template <int kCluster, class S>
FL_DEVICE void send_tile(const float (&acc)[8][4], int tile, int slot, S& s) {
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

  template <class S>
  FL_DEVICE explicit Sums(const S& s)
      : part{Denominator(s.sink[lane_idx() / 4]), Denominator(s.sink[lane_idx() / 4 + 8])},
        whole{Denominator(0.0f, 0.0f), Denominator(0.0f, 0.0f)},
        parts(0) {
#pragma unroll
    for (int i = 0; i < 4 * kRuns; ++i) in_part[i / 4][i % 4] = in_whole[i / 4][i % 4] = 0.0f;
  }
  template <class S>
  FL_DEVICE void add(int slot, const S& s) {
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
template <class S>
FL_DEVICE void fetch_queries(const AttentionParams& p, int64_t t, int first_head, S& s) {
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

// The sums of a tile's rows, the round's `i`-th.
template <class S>
FL_DEVICE void attend_tile(const AttentionParams& p, int i, float (&acc)[8][4], S& s) {
  if (p.format == kKvFp8) {
    load_fp8(i, s);
  } else {
    load_bf16(i, s);
  }
  __syncthreads();
  score_tile(s);
  __syncthreads();
  weigh_tile(p, i, s);
  __syncthreads();
  sum_tile(acc, s);
  __syncthreads();
}

// The sums of a round's tiles first + rank and first + kCluster + rank, to the blocks that fold them. This block has arrived at a
// barrier of the cluster since it last read such sums.
template <int kCluster, bool kBeside>
FL_DEVICE void attend_round(const AttentionParams& p, const RowList& list, int64_t t, int first, Shared<kBeside>& s) {
  int n = (int)threadIdx.x / kTile, own = first + n * kCluster + cluster_rank();
  if (n < kRound && own < list.tiles()) find_row(p, list, t, own, n, (int)threadIdx.x % kTile, s);
  __syncthreads();
  copies_wait<0>();
  float acc[kBeside ? 1 : kRound][8][4];
#pragma unroll
  for (int i = 0; i < kRound; ++i) {
    int slot = i * kCluster + cluster_rank();
    bool has = first + slot < s.tiles;
    if (has) attend_tile(p, i, acc[kBeside ? 0 : i], s);
    if (!kBeside) continue;
    // On their way while the next tile is summed.
    if (i == 0) cluster_wait();
    if (has) send_tile<kCluster>(acc[0], i, slot, s);
  }
  if (!kBeside) {
    // Every block is done with its rows, and the sums may lie over them.
    cluster_wait();
    cluster_sync();
#pragma unroll
    for (int i = 0; i < kRound; ++i) {
      int slot = i * kCluster + cluster_rank();
      if (first + slot < s.tiles) send_tile<kCluster>(acc[kBeside ? 0 : i], i, slot, s);
    }
  }
  cluster_sync();
}

// What a round found, folded in the order of tiles.
template <int kCluster, class S>
FL_DEVICE void fold_round(Sums<kCluster>& sums, int first, const S& s) {
  int tiles = s.tiles, each = tiles_of_part(tiles), of_part = first > 0 ? first % each : 0;
#pragma unroll 5
  for (int slot = 0; slot < min(kRound * kCluster, tiles - first); ++slot) {
    if (of_part == 0 && first + slot > 0) sums.close_part();
    of_part = of_part + 1 == each ? 0 : of_part + 1;
    sums.add(slot, s);
  }
}

// The rounds after the first. Not inlined: such lists are rare, and the first has registers for no more; in this one some spill.
template <int kCluster, bool kBeside>
FL_RARE Sums<kCluster> attend_more(const AttentionParams& p, Sums<kCluster> sums, Shared<kBeside>& s) {
  RowList list(p, s.position);
#pragma unroll 1
  for (int first = kRound * kCluster; first < s.tiles; first += kRound * kCluster) {
    __syncthreads();
    cluster_arrive();
    attend_round<kCluster>(p, list, blockIdx.z, first, s);
    fold_round(sums, first, s);
  }
  return sums;
}

template <int kCluster, bool kBeside>
FL_DEVICE void attend(const AttentionParams& p, Shared<kBeside>& s) {
  constexpr int kOwnRuns = kRunsOf<kCluster>;
  cluster_arrive();
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
  attend<5>(p, *(Shared<false>*)raw);
}

FL_KERNEL_CLUSTER(kThreads, 1, 8, attention_8, AttentionParams) {
  FL_DYNAMIC_SHARED(raw);
  pdl_wait();
  attend<8>(p, *(Shared<true>*)raw);
}
