// attention for steps of many tokens: 64 heads share each row that is read, on whole warpgroups. The same bits as attention.cu; the
// launch chooses by the number of tokens.
//
// Bytes: as there, but a row is read once, not once for every 16 heads.
// Measured on an H200 with cold caches, 640 fp8 rows: 33 us for 1 token, 34 for 12, 38 for 64, 72 for 128. Of 38 us, 9 pass before the
// first tile, 3.7 a tile, and 7 after the last.
// Notes: (1) a cluster of two blocks has the two parts of a token's tiles; each block folds half of the dims, whose sums the other
// sends it; (2) both products are wgmma: queries and rows are the operands of the first, weights in registers and the same rows
// those of the second; (3) a warpgroup has half of the dims in each product, and between them half of the rows: it gives the other
// its sums of the other's rows, and its weights; (4) a tile's values are summed from zero, 64 dims at a time, and folded into the
// part's; (5) a tile's rows are on their way to registers during the products of the one before, and are expanded to bf16 while
// scores are summed; (6) eight rows are a warp's, found steps ahead: number, page, address; (7) where a block has too little
// shared memory for it (sm_120a) it is not launched, and there its registers spill.
#include "attention.h"

#include "common/attention_fold.h"
#include "common/attention_mma.h"
#include "common/attention_tile.h"
#include "common/cluster.h"
#include "common/convert.h"
#include "common/copy_async.h"
#include "common/pdl.h"

namespace {

constexpr int kBlockHeads = kGroupRows;
constexpr int kWords = kHeadDim * kTile;

// The rows of a tile and of the next, then the parts' sums of the dims that this block folds; and what the warpgroups tell each
// other of a tile: half sums of scores, weights, and for each head the largest score and the sum of weights.
struct Wide {
  uint16_t query[kHeadDim * kBlockHeads];
  union {
    uint16_t rows[2][kWords];
    float sums[kHeadDim * kBlockHeads];
  };
  float4 scores[2][4][kGroupThreads];
  uint4 weights[4][kGroupThreads];
  float tile_largest[2][kBlockHeads], tile_sum[2][kBlockHeads];
  float largest[kParts][kBlockHeads], sum[kParts][kBlockHeads];
  // A bit a row of a tile: whether it is there.
  __align__(8) uint8_t present[2][kWarps];
};

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
struct WideUnits {
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

  FL_DEVICE void expand(uint16_t* rows) const {
    uint16_t* to = rows + dims_matrix(0, warp_idx()) + lane_idx() % 8 * 8;
    int first = lane_idx() / 8;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
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

// A warpgroup's half of a tile's rows: scores of this lane's two heads, two neighbours of each eight rows.
struct Half {
  float c[4][4];

  // The halves of the sums meet, are scaled and masked.
  FL_DEVICE Half(const float (&sums)[8][4], int group, uint32_t present, float scale, Wide& s) {
    int thread = threadIdx.x % kGroupThreads, q = lane_idx() % 4;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      float give[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) give[i] = group == 0 ? sums[n + 4][i] : sums[n][i], c[n][i] = group == 0 ? sums[n][i] : sums[n + 4][i];
      s.scores[group][n][thread] = float4{give[0], give[1], give[2], give[3]};
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      float4 other = s.scores[1 - group][n][thread];
      c[n][0] += other.x, c[n][1] += other.y, c[n][2] += other.z, c[n][3] += other.w;
#pragma unroll
      for (int i = 0; i < 4; ++i) c[n][i] *= scale;
    }
    if (present == 0xffffffffu) return;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) c[n][i] = present >> (8 * n + 2 * q + i % 2) & 1 ? c[n][i] : kMasked;
    }
  }

  // Of head i; the four lanes of a head get the same. Sums are in the order of attention.cu.
  FL_DEVICE float largest(int i) const {
    float top = kFloor;
#pragma unroll
    for (int n = 0; n < 4; ++n) top = fmaxf(top, fmaxf(c[n][2 * i], c[n][2 * i + 1]));
    top = fmaxf(top, __shfl_xor_sync(kFullMask, top, 1));
    return fmaxf(top, __shfl_xor_sync(kFullMask, top, 2));
  }
  FL_DEVICE float sum(int i) const {
    float low = (c[0][2 * i] + c[2][2 * i]) + (c[0][2 * i + 1] + c[2][2 * i + 1]);
    float high = (c[1][2 * i] + c[3][2 * i]) + (c[1][2 * i + 1] + c[3][2 * i + 1]), sum = low + high;
    sum += __shfl_xor_sync(kFullMask, sum, 1);
    return sum + __shfl_xor_sync(kFullMask, sum, 2);
  }
};

// A tile's scores to weights, the left operand of the second product; what the sums so far and the tile's are multiplied by.
FL_DEVICE void weigh(Half& half, int group, Denominator (&part)[2], uint32_t (&weights)[4][4], float (&keep)[2], float (&add)[2],
                     Wide& s) {
  int thread = threadIdx.x % kGroupThreads, head = warp_idx() % 4 * 16 + lane_idx() / 4;
  bool tells = lane_idx() % 4 == 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float largest = half.largest(i);
    if (tells) s.tile_largest[group][head + 8 * i] = largest;
  }
  __syncthreads();
  float largest[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    // fmaxf would pass over a NaN; the exponential keeps it.
    largest[i] = fmaxf(s.tile_largest[0][head + 8 * i], s.tile_largest[1][head + 8 * i]);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      float& x = half.c[n / 2][2 * i + n % 2];
      x = quick_exp(x - largest[i]);
    }
    float sum = half.sum(i);
    if (tells) s.tile_sum[group][head + 8 * i] = sum;
  }
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    auto pair = [&](int i) { return bf16_pair(half.c[2 * k + i / 2][i % 2 * 2], half.c[2 * k + i / 2][i % 2 * 2 + 1]); };
    s.weights[2 * group + k][thread] = uint4{pair(0), pair(1), pair(2), pair(3)};
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    uint4 four = s.weights[k][thread];
    weights[k][0] = four.x, weights[k][1] = four.y, weights[k][2] = four.z, weights[k][3] = four.w;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float sum = s.tile_sum[0][head + 8 * i] + s.tile_sum[1][head + 8 * i];
    Fold fold = part[i].fold(Denominator(largest[i], sum));
    keep[i] = fold.keep, add[i] = fold.add;
  }
}

// A tile's rows, once they are there, to shared memory.
template <int kFormat>
FL_DEVICE void place_rows(const WideUnits& units, const Ahead& ahead, bool here, int buffer, Wide& s) {
  if (kFormat == kKvFp8) {
    units.expand(s.rows[buffer]);
  } else {
    copy_rows(ahead, s.rows[buffer]);
    copies_commit();
  }
  unsigned rows = __ballot_sync(kFullMask, here);
  if (lane_idx() == 0) s.present[buffer][warp_idx()] = (uint8_t)rows;
}

// Rows of the tile at whose address `ahead` is, on their way; `ahead` goes on to the next.
template <int kFormat>
FL_DEVICE bool fetch_rows(WideUnits& units, Ahead& ahead, int tile) {
  bool here = ahead.data != nullptr;
  if (kFormat == kKvFp8) units.load(ahead), ahead.address(tile + 1), ahead.ask(tile + 2);
  return here;
}

// The sums of tiles tile .. last - 1 folded in order.
template <int kFormat>
FL_DEVICE void attend_tiles(const AttentionParams& p, const RowList& list, int64_t t, int tile, int last, Denominator (&part)[2],
                            float (&acc)[8 * kSlices][4], Wide& s) {
  // From one lane, so that the compiler sees that a warp has one: descriptors then live in uniform registers.
  int group = __shfl_sync(kFullMask, (int)threadIdx.x / kGroupThreads, 0), buffer = 0;
  if (tile >= last) return;
  Ahead ahead(p, list, t, tile);
  WideUnits units;
  bool here = fetch_rows<kFormat>(units, ahead, tile);
  place_rows<kFormat>(units, ahead, here, buffer, s);
  if (kFormat != kKvFp8) ahead.address(tile + 1), ahead.ask(tile + 2);
  if (tile + 1 < last) here = fetch_rows<kFormat>(units, ahead, tile + 1);
#pragma unroll 1
  for (; tile < last; ++tile, buffer = 1 - buffer) {
    copies_wait<0>();
    columns_written();
    __syncthreads();
    float c[8][4], keep[2], add[2];
    multiply_scores(c, s.query, s.rows[buffer], group);
    if (tile + 1 < last) {
      place_rows<kFormat>(units, ahead, here, 1 - buffer, s);
      if (kFormat != kKvFp8) ahead.address(tile + 2), ahead.ask(tile + 3);
      if (tile + 2 < last) here = fetch_rows<kFormat>(units, ahead, tile + 2);
    }
    group_wait<64>(c);
    uint32_t weights[4][4];
    Half half(c, group, *(const uint32_t*)&s.present[buffer][4 * group], p.scale, s);
    weigh(half, group, part, weights, keep, add, s);
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
      multiply_values(c, weights, s.rows[buffer], group * kSlices + slice);
      group_wait<64>(c);
#pragma unroll
      for (int n = 0; n < 32; ++n) {
        float& sum = acc[8 * slice + n / 4][n % 4];
        sum = fmaf(add[n / 2 % 2], c[n / 4][n % 4], sum * keep[n / 2 % 2]);
      }
    }
  }
}

// Where the sums of a part lie in the block that folds them: [part][dim / 8][head][dim % 8].
FL_DEVICE int sum_at(int part, int head, int dim) {
  return ((part * (kHeadDim / kParts / 8) + dim / 8) * kBlockHeads + head) * 8 + dim % 8;
}

// A part's sums to the blocks that fold them.
FL_DEVICE void send_part(const float (&acc)[8 * kSlices][4], const Denominator (&part)[2], Wide& s) {
  constexpr int kOwn = kHeadDim / kParts;
  int group = threadIdx.x / kGroupThreads, q = lane_idx() % 4, head = warp_idx() % 4 * 16 + lane_idx() / 4, rank = cluster_rank();
#pragma unroll
  for (int n = 0; n < 8 * kSlices; ++n) {
    int first = group * kHalfDims + 8 * n, dim = first % kOwn + 2 * q;
    float* sums = (float*)cluster_peer(s.sums, first / kOwn);
    *(float2*)(sums + sum_at(rank, head, dim)) = float2{acc[n][0], acc[n][1]};
    *(float2*)(sums + sum_at(rank, head + 8, dim)) = float2{acc[n][2], acc[n][3]};
  }
  if (group == 0 && q < kParts) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      *(float*)cluster_peer(&s.largest[rank][head + 8 * i], q) = part[i].largest;
      *(float*)cluster_peer(&s.sum[rank][head + 8 * i], q) = part[i].sum;
    }
  }
}

// The parts folded in order: a thread has one head and every kStep-th eight of the block's share of the dims.
FL_DEVICE void fold_parts(const AttentionParams& p, const Wide& s, int64_t t, int first_head, int position) {
  constexpr int kOwn = kHeadDim / kParts, kStep = 8 * kThreads / kBlockHeads;
  int head = warp_idx() * 8 + lane_idx() % 8, swap = lane_idx() / 4 % 2;
  if (first_head + head >= p.heads) return;
  Denominator whole(s.largest[0][head], s.sum[0][head]);
  float keep[kParts], add[kParts];
#pragma unroll
  for (int b = 1; b < kParts; ++b) {
    Fold fold = whole.fold(Denominator(s.largest[b][head], s.sum[b][head]));
    keep[b] = fold.keep, add[b] = fold.add;
  }
#pragma unroll 2
  for (int dim = lane_idx() / 8 * 8; dim < kOwn; dim += kStep) {
    float v[8];
#pragma unroll
    for (int b = 0; b < kParts; ++b) {
      // Half of the lanes begin with the upper four, so that eight of them meet no bank twice.
      const float4* from = (const float4*)(s.sums + sum_at(b, head, dim));
      float4 first = from[swap], second = from[1 - swap], low = swap ? second : first, high = swap ? first : second;
      float other[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
      for (int d = 0; d < 8; ++d) v[d] = b == 0 ? other[d] : fmaf(add[b], other[d], v[d] * keep[b]);
    }
    store_dims(p, v, whole.sum, t, first_head + head, cluster_rank() * kOwn + dim, position);
  }
}

FL_DEVICE void attend(const AttentionParams& p, Wide& s) {
  int64_t t = blockIdx.z;
  prefetch_lists(p, t);
  int first_head = blockIdx.y * kBlockHeads, rank = cluster_rank(), position = p.position[t];
  fetch_heads(p, t, first_head, s);
  copies_commit();
  prefetch_angles(p, position);
  RowList list(p, position);
  int tiles = list.tiles(), each = tiles_of_part(tiles);
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
  send_part(acc, part, s);
  cluster_sync();
  fold_parts(p, s, t, first_head, position);
}

}  // namespace

FL_KERNEL_CLUSTER(kThreads, 1, kParts, attention_wide, AttentionParams) {
  FL_DYNAMIC_SHARED(raw);
  pdl_wait();
  attend(p, *(Wide*)raw);
}
