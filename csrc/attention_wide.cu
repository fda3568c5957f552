// attention for steps of many tokens: 64 heads share each row that is read, on whole warpgroups.
//
// The same operation as attention.cu, with other sums: an executor runs one of the two for every number of tokens
// (`Options::attention`). Bytes: as there, but a row is read once, not once for every 16 heads.
// Measured on an H200 with cold caches, 640 fp8 rows: 36.6 us for 64 tokens where attention.cu takes 80.8, 137 for 256 where it
// takes 310; for 1 token 33.8 where it takes 15.3.
// Notes: (1) a cluster of 2 or 4 blocks cuts a token's tiles of 64 rows into as many parts by their number alone, and folds
// them in order; (2) both products are wgmma: queries and rows are the operands of the first, weights in registers and the
// same rows those of the second; a warpgroup has half of the dims in each, and the halves of the scores meet in shared
// memory; (3) a tile's rows are on their way to registers during the first product, and are expanded to bf16 during the
// second; (4) eight rows are a warp's, found three steps ahead: number, page, address; (5) of 33.8 us, 7 pass before the
// first tile, 4 a tile, and 5 in the fold, whose reads of the other block's shared memory are slow: next to do.
#include "attention.h"

#include "common/attention_fold.h"
#include "common/attention_mma.h"
#include "common/attention_tile.h"
#include "common/cluster.h"
#include "common/copy_async.h"
#include "common/pdl.h"

namespace {

constexpr int kBlockHeads = kGroupRows;
constexpr int kWords = kHeadDim * kTile;
constexpr int kMaxParts = 4;

// The rows of a tile and of the next; between the products the half sums lie where the next will; then the parts' sums of the
// dims that this block folds.
struct Wide {
  uint16_t query[kHeadDim * kBlockHeads];
  union {
    uint16_t rows[2][kWords];
    float sums[kHeadDim * kBlockHeads];
  };
  float largest[kMaxParts][kBlockHeads], sum[kMaxParts][kBlockHeads];
  // A bit a row of a tile: whether it is there.
  __align__(8) uint8_t present[2][kWarps];
};

FL_DEVICE uint32_t round_pair(float low, float high) {
#if defined(__CUDA_ARCH__)
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return pack_bf16(low, high);
#endif
}

// This lane's row of the warp's eight of a tile, and the four lanes that share it.
FL_DEVICE int own_row(int tile) { return tile * kTile + warp_idx() * 8 + lane_idx() % 8; }

// Rows on their way: the next tile's address, the one's after that page, the third's number.
struct Ahead {
  const AttentionParams& p;
  const RowList& list;
  int64_t t, request;
  const uint8_t *data, *scales;
  int32_t page;
  int row, after;

  FL_DEVICE Ahead(const AttentionParams& p, const RowList& list, int64_t t, int tile)
      : p(p), list(list), t(t), request((uint32_t)t / (uint32_t)p.per_request) {
    row = number(tile);
    int second = number(tile + 1);
    after = number(tile + 2);
    page = listed_page(p, list, request, own_row(tile), row);
    address(tile);
    row = second, page = listed_page(p, list, request, own_row(tile + 1), row);
  }

  FL_DEVICE int number(int tile) const { return listed_row(p, list, t, own_row(tile)); }
  // Of `tile`, whose page was asked for before.
  FL_DEVICE void address(int tile) { data = listed_data(p, list, own_row(tile), row, page, scales); }
  // The page of `tile`, whose row's number was, and the number of the next.
  FL_DEVICE void ask(int tile) {
    row = after;
    page = listed_page(p, list, request, own_row(tile), row);
    after = number(tile + 1);
  }
};

// A lane's units of a tile in the fp8 format: every fourth of its row.
struct Units {
  static constexpr int kCodes = kNopeDim / 16, kEach = kKvData / 16 / 4;
  uint4 raw[kEach];
  uint2 scales;

  FL_DEVICE void load(const Ahead& ahead) {
    int unit = lane_idx() / 8;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      raw[i] = ahead.data == nullptr ? uint4{0, 0, 0, 0} : ((const uint4*)ahead.data)[4 * i + unit];
    }
    scales = ahead.data == nullptr ? uint2{0, 0} : *(const uint2*)ahead.scales;
  }

  // Those of share `share` of `kShares`.
  template <int kShares>
  FL_DEVICE void expand(uint16_t* rows, int share) const {
    uint16_t* to = rows + dims_matrix(0, warp_idx()) + lane_idx() % 8 * 8;
    int first = lane_idx() / 8;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (i * kShares / kEach != share) continue;
      int unit = 4 * i + first;
      if (i < kCodes / 4) {
        uint4 both[2];
        expand_codes(raw[i], (uint8_t)((i < 4 ? scales.x : scales.y) >> (8 * (i % 4))), both);
        *(uint4*)(to + dims_matrix(2 * unit, 0)) = both[0];
        *(uint4*)(to + dims_matrix(2 * unit + 1, 0)) = both[1];
      } else {
        *(uint4*)(to + dims_matrix(kCodes + unit, 0)) = raw[i];
      }
    }
  }
};

// A bf16 tile's rows, straight to where they belong.
FL_DEVICE void copy_rows(const Ahead& ahead, uint16_t* rows) {
  uint16_t* to = rows + dims_matrix(0, warp_idx()) + lane_idx() % 8 * 8;
#pragma unroll 4
  for (int unit = lane_idx() / 8; unit < kHeadDim / 8; unit += 4) {
    uint16_t* at = to + dims_matrix(unit, 0);
    if (ahead.data == nullptr) {
      *(uint4*)at = uint4{0, 0, 0, 0};
    } else {
      copy_async<16>(at, ahead.data + 16 * unit);
    }
  }
}

FL_DEVICE void fetch_heads(const AttentionParams& p, int64_t t, int first_head, Wide& s) {
  int head = warp_idx() * 8 + lane_idx() % 8;
  uint16_t* to = s.query + dims_matrix(0, warp_idx()) + lane_idx() % 8 * 8;
  const uint16_t* from = p.q + (t * p.heads + first_head + head) * kHeadDim;
#pragma unroll 4
  for (int unit = lane_idx() / 8; unit < kHeadDim / 8; unit += 4) {
    uint16_t* at = to + dims_matrix(unit, 0);
    if (first_head + head < p.heads) {
      copy_async<16>(at, from + 8 * unit);
    } else {
      *(uint4*)at = uint4{0, 0, 0, 0};
    }
  }
}

// The larger of a head's scores, and the sum of its weights, of which a lane has two neighbours of each eight; the four lanes of a
// head get the same. In the order of attention.cu.
FL_DEVICE float tile_largest(const float (&c)[8][4], int i) {
  float tops[4];
#pragma unroll
  for (int n = 0; n < 16; ++n) {
    float score = c[n / 2][2 * i + n % 2];
    tops[n % 4] = n < 4 ? score : fmaxf(tops[n % 4], score);
  }
  float top = fmaxf(fmaxf(tops[0], tops[1]), fmaxf(tops[2], tops[3]));
  top = fmaxf(top, __shfl_xor_sync(kFullMask, top, 1));
  return fmaxf(kFloor, fmaxf(top, __shfl_xor_sync(kFullMask, top, 2)));
}
FL_DEVICE float tile_sum(const float (&c)[8][4], int i) {
  float sums[4];
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    auto at = [&](int k) { return c[k + n / 2][2 * i + n % 2]; };
    sums[n] = (at(0) + at(4)) + (at(2) + at(6));
  }
  float sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  sum += __shfl_xor_sync(kFullMask, sum, 1);
  return sum + __shfl_xor_sync(kFullMask, sum, 2);
}

// Scores of this lane's two heads to weights, the left operand of the second product; what the sums so far and the tile's are
// multiplied by.
FL_DEVICE void weigh(float (&c)[8][4], Denominator (&part)[2], uint32_t (&weights)[4][4], float (&keep)[2], float (&add)[2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    // fmaxf would pass over a NaN; the exponential keeps it.
    float largest = tile_largest(c, i);
#pragma unroll
    for (int n = 0; n < 16; ++n) {
      float& x = c[n / 2][2 * i + n % 2];
      x = quick_exp(x - largest);
    }
    Fold fold = part[i].fold(Denominator(largest, tile_sum(c, i)));
    keep[i] = fold.keep, add[i] = fold.add;
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) weights[k][i] = round_pair(c[2 * k + i / 2][i % 2 * 2], c[2 * k + i / 2][i % 2 * 2 + 1]);
  }
}

// The halves of the scores meet, are scaled and masked.
FL_DEVICE void meet_scores(float (&c)[8][4], float4* between, const uint8_t* present, float scale) {
  int group = threadIdx.x / kGroupThreads, thread = threadIdx.x % kGroupThreads, q = lane_idx() % 4;
  float4 *mine = between + group * 8 * kGroupThreads, *other = between + (1 - group) * 8 * kGroupThreads;
#pragma unroll
  for (int n = 0; n < 8; ++n) mine[n * kGroupThreads + thread] = float4{c[n][0], c[n][1], c[n][2], c[n][3]};
  __syncthreads();
  uint2 here = *(const uint2*)present;
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    float4 half = other[n * kGroupThreads + thread];
    c[n][0] += half.x, c[n][1] += half.y, c[n][2] += half.z, c[n][3] += half.w;
#pragma unroll
    for (int i = 0; i < 4; ++i) c[n][i] *= scale;
  }
  if ((here.x & here.y) == 0xffffffffu) return;
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    uint32_t bits = (n < 4 ? here.x : here.y) >> (8 * (n % 4) + 2 * q);
#pragma unroll
    for (int i = 0; i < 4; ++i) c[n][i] = bits >> (i % 2) & 1 ? c[n][i] : kMasked;
  }
}

// A tile's rows, once they are there, to shared memory: a share of them in the fp8 format, else all with the first.
template <int kFormat, int kShares>
FL_DEVICE void place_rows(const Units& units, const Ahead& ahead, int share, int buffer, Wide& s) {
  if (kFormat == kKvFp8) {
    units.expand<kShares>(s.rows[buffer], share);
  } else if (share == 0) {
    copy_rows(ahead, s.rows[buffer]);
    copies_commit();
  }
  if (share > 0) return;
  unsigned here = __ballot_sync(kFullMask, ahead.data != nullptr);
  if (lane_idx() == 0) s.present[buffer][warp_idx()] = (uint8_t)here;
}

// The sums of tiles tile .. last - 1 folded in order.
template <int kFormat>
FL_DEVICE void attend_tiles(const AttentionParams& p, const RowList& list, int64_t t, int tile, int last, Denominator (&part)[2],
                            float (&acc)[8 * kSlices][4], Wide& s) {
  // From one lane, so that the compiler sees that a warp has one: descriptors then live in uniform registers.
  int half = __shfl_sync(kFullMask, (int)threadIdx.x / kGroupThreads, 0), buffer = 0;
  if (tile >= last) return;
  Ahead ahead(p, list, t, tile);
  Units units;
  if (kFormat == kKvFp8) units.load(ahead);
  place_rows<kFormat, 1>(units, ahead, 0, buffer, s);
  ahead.address(tile + 1);
  ahead.ask(tile + 2);
#pragma unroll 1
  for (; tile < last; ++tile, buffer = 1 - buffer) {
    bool more = tile + 1 < last;
    copies_wait<0>();
    columns_written();
    __syncthreads();
    float c[8][4], keep[2], add[2];
    multiply_scores(c, s.query, s.rows[buffer], half);
    if (kFormat == kKvFp8 && more) units.load(ahead);
    group_wait<64>(c);
    meet_scores(c, (float4*)s.rows[1 - buffer], s.present[buffer], p.scale);
    uint32_t weights[4][4];
    weigh(c, part, weights, keep, add);
    multiply_values(c, weights, s.rows[buffer], half * kSlices);
    __syncthreads();
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
      if (more) place_rows<kFormat, kSlices>(units, ahead, slice, 1 - buffer, s);
      group_wait<64>(c);
#pragma unroll
      for (int n = 0; n < 32; ++n) {
        float& sum = acc[8 * slice + n / 4][n % 4];
        sum = fmaf(add[n / 2 % 2], c[n / 4][n % 4], sum * keep[n / 2 % 2]);
      }
      if (slice + 1 < kSlices) multiply_values(c, weights, s.rows[buffer], half * kSlices + slice + 1);
    }
    if (more) ahead.address(tile + 2), ahead.ask(tile + 3);
  }
}

// Where the sums of a part lie in the block that folds them: [part][dim / 8][head][dim % 8].
template <int kBlocks>
FL_DEVICE int sum_at(int part, int head, int dim) {
  return ((part * (kHeadDim / kBlocks / 8) + dim / 8) * kBlockHeads + head) * 8 + dim % 8;
}

// A part's sums to the blocks that fold them.
template <int kBlocks>
FL_DEVICE void send_part(const float (&acc)[8 * kSlices][4], const Denominator (&part)[2], Wide& s) {
  constexpr int kOwn = kHeadDim / kBlocks;
  int group = threadIdx.x / kGroupThreads, q = lane_idx() % 4, head = warp_idx() % 4 * 16 + lane_idx() / 4, rank = cluster_rank();
#pragma unroll
  for (int n = 0; n < 8 * kSlices; ++n) {
    int first = group * kHalfDims + 8 * n, dim = first % kOwn + 2 * q;
    float* sums = (float*)cluster_peer(s.sums, first / kOwn);
    *(float2*)(sums + sum_at<kBlocks>(rank, head, dim)) = float2{acc[n][0], acc[n][1]};
    *(float2*)(sums + sum_at<kBlocks>(rank, head + 8, dim)) = float2{acc[n][2], acc[n][3]};
  }
  if (group == 0 && q < kBlocks) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      *(float*)cluster_peer(&s.largest[rank][head + 8 * i], q) = part[i].largest;
      *(float*)cluster_peer(&s.sum[rank][head + 8 * i], q) = part[i].sum;
    }
  }
}

// The parts folded in order: a thread has one head and every kStep-th eight of the block's share of the dims.
template <int kBlocks>
FL_DEVICE void fold_parts(const AttentionParams& p, const Wide& s, int64_t t, int first_head, int position) {
  constexpr int kOwn = kHeadDim / kBlocks, kStep = 8 * kThreads / kBlockHeads;
  int head = warp_idx() * 8 + lane_idx() % 8, swap = lane_idx() / 4 % 2;
  if (first_head + head >= p.heads) return;
  Denominator whole(s.largest[0][head], s.sum[0][head]);
  float keep[kBlocks], add[kBlocks];
#pragma unroll
  for (int b = 1; b < kBlocks; ++b) {
    Fold fold = whole.fold(Denominator(s.largest[b][head], s.sum[b][head]));
    keep[b] = fold.keep, add[b] = fold.add;
  }
#pragma unroll 2
  for (int dim = lane_idx() / 8 * 8; dim < kOwn; dim += kStep) {
    float v[8];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      // Half of the lanes begin with the upper four, so that eight of them meet no bank twice.
      const float4* from = (const float4*)(s.sums + sum_at<kBlocks>(b, head, dim));
      float4 first = from[swap], second = from[1 - swap], low = swap ? second : first, high = swap ? first : second;
      float other[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int d = 0; d < 8; ++d) v[d] = b == 0 ? other[d] : fmaf(add[b], other[d], v[d] * keep[b]);
    }
    store_dims(p, v, whole.sum, t, first_head + head, cluster_rank() * kOwn + dim, position);
  }
}

template <int kBlocks>
FL_DEVICE void attend(const AttentionParams& p, Wide& s) {
  int64_t t = blockIdx.z;
  int first_head = blockIdx.y * kBlockHeads, rank = cluster_rank(), position = p.position[t];
  fetch_heads(p, t, first_head, s);
  copies_commit();
  RowList list(p, position);
  int tiles = (list.window + list.compressed + kTile - 1) / kTile, each = tiles_of_part(p, tiles);
  int head = first_head + warp_idx() % 4 * 16 + lane_idx() / 4;
  auto sink = [&](int h) { return rank == 0 && h < p.heads ? p.sink[h] : -INFINITY; };
  Denominator part[2] = {Denominator(sink(head)), Denominator(sink(head + 8))};
  float acc[8 * kSlices][4] = {};
  if (p.format == kKvFp8) {
    attend_tiles<kKvFp8>(p, list, t, rank * each, min(tiles, rank * each + each), part, acc, s);
  } else {
    attend_tiles<kKvBf16>(p, list, t, rank * each, min(tiles, rank * each + each), part, acc, s);
  }
  copies_wait<0>();
  // Every block is done with its rows, and the sums may lie over them.
  cluster_sync();
  send_part<kBlocks>(acc, part, s);
  cluster_sync();
  fold_parts<kBlocks>(p, s, t, first_head, position);
}

}  // namespace

FL_KERNEL_CLUSTER(kThreads, 1, 2, attention_wide_2, AttentionParams) {
  FL_DYNAMIC_SHARED(raw);
  pdl_wait();
  attend<2>(p, *(Wide*)raw);
}

FL_KERNEL_CLUSTER(kThreads, 1, 4, attention_wide_4, AttentionParams) {
  FL_DYNAMIC_SHARED(raw);
  pdl_wait();
  attend<4>(p, *(Wide*)raw);
}
