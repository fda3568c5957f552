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

// The rows of a tile and of the next; between the products the half sums lie where the next will; then the sums of the part.
struct Wide {
  uint16_t query[kHeadDim * kBlockHeads];
  union {
    uint16_t rows[2][kWords];
    float out[kHeadDim * kBlockHeads];
  };
  float largest[kBlockHeads], sum[kBlockHeads];
  // A bit a row of a tile: whether it is there.
  __align__(8) uint8_t present[2][kWarps];
};

// exp(x) within a few roundings of x.
FL_DEVICE float quick_exp(float x) {
#if defined(__CUDA_ARCH__)
  return __expf(x);
#else
  return expf(x);
#endif
}

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

// The running softmax of this lane's two heads; the four lanes of a head hold the same.
struct Softmax {
  float largest[2], sum[2];

  FL_DEVICE Softmax(const AttentionParams& p, int first_head, bool counts_sink) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      int head = first_head + warp_idx() % 4 * 16 + lane_idx() / 4 + 8 * i;
      // One of -inf adds nothing; the floor keeps the differences below finite.
      float sink = counts_sink && head < p.heads ? p.sink[head] : -INFINITY;
      largest[i] = fmaxf(sink, -1e30f);
      sum[i] = expf(sink - largest[i]);
    }
  }

  // Scores to weights, the left operand of the second product; and what the sums so far shrink by.
  FL_DEVICE void weigh(float (&c)[8][4], uint32_t (&weights)[4][4], float (&rescale)[2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      // Each in four runs: the maximum is the same in any order, the sum's is this one. fmaxf would pass over a NaN; the
      // exponential below keeps it.
      float tops[4], totals[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (int n = 0; n < 16; ++n) {
        float score = c[n / 2][2 * i + n % 2];
        tops[n % 4] = n < 4 ? score : fmaxf(tops[n % 4], score);
      }
      float top = fmaxf(fmaxf(tops[0], tops[1]), fmaxf(tops[2], tops[3]));
      top = fmaxf(top, __shfl_xor_sync(kFullMask, top, 1));
      top = fmaxf(top, __shfl_xor_sync(kFullMask, top, 2));
      top = fmaxf(largest[i], top);
      rescale[i] = quick_exp(largest[i] - top);
#pragma unroll
      for (int n = 0; n < 16; ++n) {
        float& x = c[n / 2][2 * i + n % 2];
        x = quick_exp(x - top), totals[n % 4] += x;
      }
      float total = (totals[0] + totals[1]) + (totals[2] + totals[3]);
      total += __shfl_xor_sync(kFullMask, total, 1);
      total += __shfl_xor_sync(kFullMask, total, 2);
      sum[i] = fmaf(sum[i], rescale[i], total), largest[i] = top;
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) weights[k][i] = round_pair(c[2 * k + i / 2][i % 2 * 2], c[2 * k + i / 2][i % 2 * 2 + 1]);
    }
  }
};

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

FL_DEVICE void shrink(float (&acc)[32][4], const float (&rescale)[2]) {
  if (!__any_sync(kFullMask, rescale[0] != 1.0f || rescale[1] != 1.0f)) return;
#pragma unroll
  for (int n = 0; n < 32; ++n) acc[n][0] *= rescale[0], acc[n][1] *= rescale[0], acc[n][2] *= rescale[1], acc[n][3] *= rescale[1];
}

// A tile's rows, once they are there, to shared memory.
template <int kFormat>
FL_DEVICE void place_rows(const Units& units, const Ahead& ahead, int buffer, Wide& s) {
  if (kFormat == kKvFp8) {
    units.expand(s.rows[buffer]);
  } else {
    copy_rows(ahead, s.rows[buffer]);
    copies_commit();
  }
  unsigned here = __ballot_sync(kFullMask, ahead.data != nullptr);
  if (lane_idx() == 0) s.present[buffer][warp_idx()] = (uint8_t)here;
}

// The sums of tiles tile .. last - 1.
template <int kFormat>
FL_DEVICE void attend_tiles(const AttentionParams& p, const RowList& list, int64_t t, int tile, int last, Softmax& softmax,
                            float (&acc)[32][4], Wide& s) {
  // From one lane, so that the compiler sees that a warp has one: descriptors then live in uniform registers.
  int half = __shfl_sync(kFullMask, (int)threadIdx.x / kGroupThreads, 0), buffer = 0;
  if (tile >= last) return;
  Ahead ahead(p, list, t, tile);
  Units units;
  if (kFormat == kKvFp8) units.load(ahead);
  place_rows<kFormat>(units, ahead, buffer, s);
  ahead.address(tile + 1);
  ahead.ask(tile + 2);
#pragma unroll 1
  for (; tile < last; ++tile, buffer = 1 - buffer) {
    bool more = tile + 1 < last;
    copies_wait<0>();
    columns_written();
    __syncthreads();
    float c[8][4], rescale[2];
    multiply_scores(c, s.query, s.rows[buffer], half);
    if (kFormat == kKvFp8 && more) units.load(ahead);
    group_wait<64>(c);
    meet_scores(c, (float4*)s.rows[1 - buffer], s.present[buffer], p.scale);
    uint32_t weights[4][4];
    softmax.weigh(c, weights, rescale);
    shrink(acc, rescale);
    multiply_values(acc, weights, s.rows[buffer], half);
    __syncthreads();
    if (more) {
      place_rows<kFormat>(units, ahead, 1 - buffer, s);
      ahead.address(tile + 2);
      ahead.ask(tile + 3);
    }
    group_wait<256>(acc);
  }
}

// A part's sums as [dim / 8][head][dim % 8].
FL_DEVICE int out_at(int head, int dim) { return (dim / 8 * kBlockHeads + head) * 8 + dim % 8; }

FL_DEVICE void spill_part(const float (&acc)[32][4], const Softmax& softmax, Wide& s) {
  int group = threadIdx.x / kGroupThreads, q = lane_idx() % 4, head = warp_idx() % 4 * 16 + lane_idx() / 4;
#pragma unroll
  for (int n = 0; n < 32; ++n) {
    int dim = group * kHalfDims + 8 * n + 2 * q;
    *(float2*)(s.out + out_at(head, dim)) = float2{acc[n][0], acc[n][1]};
    *(float2*)(s.out + out_at(head + 8, dim)) = float2{acc[n][2], acc[n][3]};
  }
  if (group == 0 && q == 0) {
#pragma unroll
    for (int i = 0; i < 2; ++i) s.largest[head + 8 * i] = softmax.largest[i], s.sum[head + 8 * i] = softmax.sum[i];
  }
}

// The parts folded in order: a thread has one head and every kStep-th eight of the block's share of the dims.
template <int kBlocks>
FL_DEVICE void merge_parts(const AttentionParams& p, const Wide& s, int64_t t, int first_head, int position) {
  constexpr int kEach = kHeadDim / 8 / kBlocks, kStep = kThreads / kBlockHeads, kBatch = 8 / kBlocks;
  int head = warp_idx() * 8 + lane_idx() % 8, first = cluster_rank() * kEach + lane_idx() / 8;
  if (first_head + head >= p.heads) return;
  float largest[kBlocks], sum[kBlocks];
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) largest[b] = *cluster_peer(&s.largest[head], b), sum[b] = *cluster_peer(&s.sum[head], b);
#pragma unroll 1
  for (int n = 0; n < kEach; n += kStep * kBatch) {
    float4 parts[kBatch][kBlocks][2];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        const float4* from = (const float4*)cluster_peer(s.out + out_at(head, 8 * (first + n + i * kStep)), b);
        parts[i][b][0] = from[0], parts[i][b][1] = from[1];
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      float4 low = parts[i][0][0], high = parts[i][0][1];
      float v[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}, total = sum[0], top = largest[0];
#pragma unroll
      for (int b = 1; b < kBlocks; ++b) {
        low = parts[i][b][0], high = parts[i][b][1];
        float other[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        Fold fold(top, largest[b]);
#pragma unroll
        for (int d = 0; d < 8; ++d) v[d] = fold.sum(v[d], other[d]);
        total = fold.sum(total, sum[b]), top = fold.largest;
      }
      store_dims(p, v, total, t, first_head + head, 8 * (first + n + i * kStep), position);
    }
  }
}

template <int kBlocks>
FL_DEVICE void attend(const AttentionParams& p, Wide& s) {
  int64_t t = blockIdx.z;
  int first_head = blockIdx.y * kBlockHeads, rank = cluster_rank(), position = p.position[t];
  fetch_heads(p, t, first_head, s);
  copies_commit();
  RowList list(p, position);
  int tiles = (list.window + list.compressed + kTile - 1) / kTile, each = (tiles + kBlocks - 1) / kBlocks;
  float acc[32][4] = {};
  Softmax softmax(p, first_head, rank == 0);
  if (p.format == kKvFp8) {
    attend_tiles<kKvFp8>(p, list, t, rank * each, min(tiles, rank * each + each), softmax, acc, s);
  } else {
    attend_tiles<kKvBf16>(p, list, t, rank * each, min(tiles, rank * each + each), softmax, acc, s);
  }
  copies_wait<0>();
  __syncthreads();
  spill_part(acc, softmax, s);
  cluster_sync();
  merge_parts<kBlocks>(p, s, t, first_head, position);
  cluster_sync();
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
