// attention: one query row against its window and its compressed rows, key and value the same 512-vector, a sink in the
// denominator, the inverse rotation in the epilogue; one launch.
//
// Bytes: 584 (fp8) or 1,024 (bf16) a row and 128 KiB of query and output a token with 64 heads; 640 rows: 0.5 MB a token.
// Notes: (1) a cluster of blocks owns 16 or 32 heads of a token and shares out its rows in tiles of 64, window first, compressed
// rows after, each block a run of tiles; the cut depends on the token's own rows alone; (2) a tile is expanded once to bf16
// in shared memory (fp8 by integer moves and exact multiplications) and serves as key and as value; (3) scores: a warp
// owns 8 rows (or 16 and half of the heads); output: a warp owns 64 dims; weights are rounded to bf16 for the second product, the
// denominator adds them unrounded; (4) the blocks' sums stay in their shared memory and are merged from there, in block order;
// (5) rows are found through page tables with every id and index checked, two tiles ahead; what is masked keeps its
// place, with weight zero.
#include "attention.h"

#include "common/cluster.h"
#include "common/convert.h"
#include "common/kv_row.h"
#include "common/lookup.h"
#include "common/mma.h"
#include "common/pdl.h"
#include "common/rows.h"
#include "common/stream.h"

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kTile = 64;
// Rows 4 banks apart, so that eight of them are read without conflict.
constexpr int kPitch = kHeadDim + 8;
constexpr int kScorePitch = kTile + 4;
// Weights lie over the scores that they were made of.
constexpr int kWeightPitch = 2 * kScorePitch;
constexpr int kWarpDims = kHeadDim / kWarps;
constexpr int kAhead = 3;
constexpr float kMasked = -INFINITY;
static_assert(kTile == 8 * kWarps, "a warp scores eight rows of a tile");
static_assert(kWarpDims == kRopeDim, "the rotated dims are one warp's");

namespace {

// The list of rows of a token: `window` of them from `window_start` on, then `compressed`.
struct RowList {
  int window_start, window, compressed, visible;

  FL_DEVICE RowList(const AttentionParams& p, int position) {
    window_start = max(0, position - (kWindow - 1));
    window = position < 0 ? 0 : position - window_start + 1;
    int ratio = p.source == kCompressedSelected ? 4 : 128;
    visible = position < 0 ? 0 : (int)(((int64_t)position + 1) / ratio);
    compressed = 0;
    if (position >= 0 && p.source == kCompressedSelected) compressed = p.k;
    if (p.source == kCompressedAll) compressed = (int)min((int64_t)visible, (int64_t)p.compressed.width * p.compressed.page_rows);
  }
};

// kGroups times 16 heads. The sums at the end lie where the rows lay.
template <int kGroups>
struct Shared {
  static constexpr int kHeads = 16 * kGroups;
  union {
    uint16_t rows[kTile * kPitch];
    float out[kHeads * kPitch];
  };
  uint16_t query[kHeads * kPitch];
  float scores[kHeads * kScorePitch];
  float largest[kHeads], sum[kHeads], rescale[kHeads];
  RowList list;
  uint8_t scales[kTile][kKvScales];
  // Of this tile and the next two: the row's data, null if masked; and its scales.
  const uint8_t* data[kAhead][kTile];
  const uint8_t* scale_data[kAhead][kTile];
};

// The data of row i of the list, or null; and of its scales.
FL_DEVICE const uint8_t* find_row(const AttentionParams& p, const RowList& list, int64_t t, int i, const uint8_t*& scales) {
  scales = nullptr;
  if (i >= list.window + list.compressed) return nullptr;
  bool in_window = i < list.window;
  const PagedRows& paged = in_window ? p.window : p.compressed;
  int row = in_window ? list.window_start + i : i - list.window;
  if (!in_window && p.source == kCompressedSelected) row = p.selected[t * p.k + row];
  if (row < 0 || (!in_window && row >= list.visible)) return nullptr;
  int32_t id = page_of(paged, t / p.per_request, row);
  if (id < 0) return nullptr;
  const uint8_t* page = paged.pool + id * kv_page_bytes(p.format, paged.page_rows);
  int in_page = row % paged.page_rows;
  scales = page + (int64_t)paged.page_rows * kKvData + in_page * kKvScales;
  return page + (int64_t)in_page * (p.format == kKvFp8 ? kKvData : 2 * kHeadDim);
}

// Finds the rows of a tile, one a thread of `threads` whose slot is not negative.
template <class S>
FL_DEVICE void find_rows(const AttentionParams& p, int64_t t, int tile, int slot, S& s) {
  if (slot < 0 || slot >= kTile) return;
  s.data[tile % kAhead][slot] = find_row(p, s.list, t, tile * kTile + slot, s.scale_data[tile % kAhead][slot]);
}

// Sixteen fp8 codes to as many bf16, in order.
FL_DEVICE void expand_codes(const uint4& raw, uint8_t scale, uint4 (&out)[2]) {
  uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w}, pairs[8], by = ue8m0_scale_pair(scale);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32_t across[2];
    unpack_e4m3_across(words[i], across);
    pairs[2 * i] = mul_bf16x2(low_halves(across[0], across[1]), by);
    pairs[2 * i + 1] = mul_bf16x2(high_halves(across[0], across[1]), by);
  }
  out[0] = uint4{pairs[0], pairs[1], pairs[2], pairs[3]};
  out[1] = uint4{pairs[4], pairs[5], pairs[6], pairs[7]};
}

// The thread's index, not kept: what follows from it is cheaper to compute again than to hold in registers over a loop.
FL_DEVICE int thread_again() {
#if defined(__CUDA_ARCH__)
  int thread;
  asm volatile("mov.u32 %0, %tid.x;" : "=r"(thread));
  return thread;
#else
  return (int)threadIdx.x;
#endif
}

// Rows of a tile into shared memory; masked ones as zeros, so that weight zero gives zero. All loads of a thread are under
// way at once, and meanwhile some threads find the rows of the tile after the next.
template <int kGroups>
FL_DEVICE void load_fp8(const AttentionParams& p, int64_t t, int tile, int last, Shared<kGroups>& s) {
  constexpr int kCodes = kNopeDim / 16, kUnits = kKvData / 16, kEach = kTile * kUnits / kThreads;
  // As many at once as there are registers for.
  constexpr int kBatch = kGroups == 1 ? kEach : 5;
  static_assert(kTile * kUnits % kThreads == 0, "every thread has as many units");
  uint4 raw[kBatch];
  int thread = thread_again();
  auto load = [&](int first) {
#pragma unroll
    for (int n = 0; n < kBatch; ++n) {
      if (first + n >= kEach) continue;
      int i = thread + (first + n) * kThreads;
      const uint8_t* data = s.data[tile % kAhead][i / kUnits];
      raw[n] = data == nullptr ? uint4{0, 0, 0, 0} : ((const uint4*)data)[i % kUnits];
    }
  };
  auto expand = [&](int first) {
#pragma unroll
    for (int n = 0; n < kBatch; ++n) {
      if (first + n >= kEach) continue;
      int i = thread + (first + n) * kThreads, row = i / kUnits, unit = i % kUnits;
      uint16_t* to = s.rows + row * kPitch;
      if (unit < kCodes) {
        uint4 both[2];
        expand_codes(raw[n], s.scales[row][unit / 4], both);
        *(uint4*)(to + 16 * unit) = both[0];
        *(uint4*)(to + 16 * unit + 8) = both[1];
      } else {
        *(uint4*)(to + kNopeDim + 8 * (unit - kCodes)) = raw[n];
      }
    }
  };
  load(0);
  if (threadIdx.x < kTile) {
    const uint8_t* scales = s.scale_data[tile % kAhead][threadIdx.x];
    *(uint2*)s.scales[threadIdx.x] = scales == nullptr ? uint2{0, 0} : *(const uint2*)scales;
  } else if (tile + 2 < last) {
    find_rows(p, t, tile + 2, (int)threadIdx.x - kTile, s);
  }
  __syncthreads();
  expand(0);
#pragma unroll
  for (int first = kBatch; first < kEach; first += kBatch) load(first), expand(first);
}

template <class S>
FL_DEVICE void load_bf16(const AttentionParams& p, int64_t t, int tile, int last, S& s) {
  constexpr int kUnits = kHeadDim / 8;
  for (int i = threadIdx.x; i < kTile * kUnits; i += kThreads) {
    const uint8_t* data = s.data[tile % kAhead][i / kUnits];
    uint16_t* to = s.rows + i / kUnits * kPitch + 8 * (i % kUnits);
    if (data == nullptr) {
      *(uint4*)to = uint4{0, 0, 0, 0};
    } else {
      copy_async<16>(to, data + 16 * (i % kUnits));
    }
  }
  copies_commit();
  if (tile + 2 < last) find_rows(p, t, tile + 2, threadIdx.x, s);
  copies_wait<0>();
}

// A warp: the scores of its rows with its heads. Four sums a score, added in a fixed order.
template <int kGroups>
FL_DEVICE void score_tile(const AttentionParams& p, int tile, Shared<kGroups>& s) {
  int lane = lane_idx(), g = lane / 4, q = lane % 4;
  int group = warp_idx() % kGroups, first = warp_idx() / kGroups * 8 * kGroups;
  float acc[kGroups][4][4] = {};
  // Matrices of A: rows 0-7 and 8-15 at low columns, then at high ones; of B: columns in four runs of eight.
  const uint16_t* a_row = s.query + (group * 16 + lane % 16) * kPitch + lane / 16 * 8;
  const uint16_t* b_row = s.rows + (first + lane % 8) * kPitch + lane / 8 * 8;
#pragma unroll 2
  for (int d = 0; d < kHeadDim; d += 64) {
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      uint32_t low[4], high[4];
      load_matrices<false>(low, a_row + d + 32 * part);
      load_matrices<false>(high, a_row + d + 32 * part + 16);
#pragma unroll
      for (int n = 0; n < kGroups; ++n) {
        uint32_t b[4];
        load_matrices<false>(b, b_row + n * 8 * kPitch + d + 32 * part);
        uint32_t b0[2] = {b[0], b[1]}, b1[2] = {b[2], b[3]};
        mma_16x8x16(acc[n][2 * part], low, b0);
        mma_16x8x16(acc[n][2 * part + 1], high, b1);
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kGroups; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      int head = group * 16 + g + i / 2 * 8, row = first + n * 8 + 2 * q + i % 2;
      float sum = (acc[n][0][i] + acc[n][1][i]) + (acc[n][2][i] + acc[n][3][i]);
      s.scores[head * kScorePitch + row] = s.data[tile % kAhead][row] != nullptr ? sum * p.scale : kMasked;
    }
  }
}

// A warp: the weights of its heads, and how much the sums so far shrink.
template <int kGroups>
FL_DEVICE void weigh_tile(Shared<kGroups>& s) {
  int lane = lane_idx();
#pragma unroll
  for (int i = 0; i < 2 * kGroups; ++i) {
    int head = 2 * kGroups * warp_idx() + i;
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
template <int kGroups>
FL_DEVICE void add_tile(float (&acc)[kGroups][8][4], const Shared<kGroups>& s) {
  int lane = lane_idx(), g = lane / 4, base = warp_idx() * kWarpDims;
  const uint16_t* weights = (const uint16_t*)s.scores;
#pragma unroll
  for (int m = 0; m < kGroups; ++m) {
    float low = s.rescale[16 * m + g], high = s.rescale[16 * m + g + 8];
#pragma unroll
    for (int n = 0; n < 8; ++n) acc[m][n][0] *= low, acc[m][n][1] *= low, acc[m][n][2] *= high, acc[m][n][3] *= high;
  }
#pragma unroll
  for (int k = 0; k < kTile; k += 16) {
    uint32_t a[kGroups][4];
#pragma unroll
    for (int m = 0; m < kGroups; ++m) {
      load_matrices<false>(a[m], weights + (16 * m + lane % 16) * kWeightPitch + k + lane / 16 * 8);
    }
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
      uint32_t b[4];
      load_matrices<true>(b, s.rows + (k + lane % 16) * kPitch + base + n * 8 + lane / 16 * 8);
      uint32_t b0[2] = {b[0], b[1]}, b1[2] = {b[2], b[3]};
#pragma unroll
      for (int m = 0; m < kGroups; ++m) {
        mma_16x8x16(acc[m][n], a[m], b0);
        mma_16x8x16(acc[m][n + 1], a[m], b1);
      }
    }
  }
}

template <int kGroups>
FL_DEVICE void spill_sums(const float (&acc)[kGroups][8][4], Shared<kGroups>& s) {
  int lane = lane_idx(), g = lane / 4, q = lane % 4, base = warp_idx() * kWarpDims;
#pragma unroll
  for (int m = 0; m < kGroups; ++m) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      float* to = s.out + (16 * m + g) * kPitch + base + n * 8 + 2 * q;
      *(float2*)to = float2{acc[m][n][0], acc[m][n][1]};
      *(float2*)(to + 8 * kPitch) = float2{acc[m][n][2], acc[m][n][3]};
    }
  }
}

// The blocks' sums merged in block order, divided by the denominator, the last 64 dims turned back: four dims a thread, the
// heads' dims shared out over the cluster.
template <int kGroups, int kBlocks>
FL_DEVICE void merge(const AttentionParams& p, const Shared<kGroups>& s, int64_t t, int first_head, int position) {
  constexpr int kQuads = kHeadDim / 4;
  for (int i = cluster_rank() * kThreads + threadIdx.x; i < 16 * kGroups * kQuads; i += kBlocks * kThreads) {
    int head = i / kQuads, dim = i % kQuads * 4;
    if (first_head + head >= p.heads) continue;
    float larges[kBlocks], largest = -INFINITY, sum = 0.0f, v[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      larges[b] = *cluster_peer(&s.largest[head], b);
      largest = fmaxf(largest, larges[b]);
    }
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      float keep = expf(larges[b] - largest);
      float4 part = *(const float4*)cluster_peer(s.out + head * kPitch + dim, b);
      sum = fmaf(keep, *cluster_peer(&s.sum[head], b), sum);
      v[0] = fmaf(keep, part.x, v[0]), v[1] = fmaf(keep, part.y, v[1]);
      v[2] = fmaf(keep, part.z, v[2]), v[3] = fmaf(keep, part.w, v[3]);
    }
    float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
#pragma unroll
    for (int n = 0; n < 4; ++n) v[n] *= inverse;
    if (dim >= kNopeDim && position >= 0) rotate_pairs(v, p.rope, position, p.max_positions, (dim - kNopeDim) / 2, -1.0f);
    uint2* out = (uint2*)(p.out + (t * p.heads + first_head + head) * kHeadDim + dim);
    *out = uint2{pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3])};
  }
}

template <int kGroups, int kBlocks>
FL_DEVICE void attention_body(const AttentionParams& p, Shared<kGroups>& s) {
  constexpr int kHeads = 16 * kGroups;
  int64_t t = blockIdx.z;
  int first_head = blockIdx.y * kHeads, rank = cluster_rank();
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
  int position = p.position[t];
  RowList list(p, position);
  if (threadIdx.x == 0) s.list = list;
  __syncthreads();
  int tiles = (list.window + list.compressed + kTile - 1) / kTile, each = (tiles + kBlocks - 1) / kBlocks;
  int tile = rank * each, last = min(tiles, tile + each);
  if (tile < last) find_rows(p, t, tile + (int)threadIdx.x / kTile, (int)threadIdx.x < 2 * kTile ? (int)threadIdx.x % kTile : -1, s);
  if (threadIdx.x < kHeads) {
    int head = first_head + threadIdx.x;
    // The sink counts once, in the first block. One of -inf adds nothing; the floor keeps the differences below finite.
    float sink = rank == 0 && head < p.heads ? p.sink[head] : -INFINITY;
    s.largest[threadIdx.x] = fmaxf(sink, -1e30f);
    s.sum[threadIdx.x] = expf(sink - s.largest[threadIdx.x]);
  }
  copies_wait<0>();
  __syncthreads();
  float acc[kGroups][8][4] = {};
  for (; tile < last; ++tile) {
    if (p.format == kKvFp8) {
      load_fp8(p, t, tile, last, s);
    } else {
      load_bf16(p, t, tile, last, s);
    }
    __syncthreads();
    score_tile<kGroups>(p, tile, s);
    __syncthreads();
    weigh_tile<kGroups>(s);
    __syncthreads();
    add_tile<kGroups>(acc, s);
    __syncthreads();
  }
  spill_sums<kGroups>(acc, s);
  cluster_sync();
  merge<kGroups, kBlocks>(p, s, t, first_head, position);
  cluster_sync();
}

}  // namespace

// Heads of a block, then blocks of a cluster.
FL_KERNEL_CLUSTER(kThreads, 2, 5, attention_16x5, AttentionParams) {
  FL_DYNAMIC_SHARED(raw);
  pdl_wait();
  attention_body<1, 5>(p, *(Shared<1>*)raw);
}

FL_KERNEL_CLUSTER(kThreads, 2, 8, attention_16x8, AttentionParams) {
  FL_DYNAMIC_SHARED(raw);
  pdl_wait();
  attention_body<1, 8>(p, *(Shared<1>*)raw);
}

FL_KERNEL_CLUSTER(kThreads, 2, 5, attention_32x5, AttentionParams) {
  FL_DYNAMIC_SHARED(raw);
  pdl_wait();
  attention_body<2, 5>(p, *(Shared<2>*)raw);
}

FL_KERNEL_CLUSTER(kThreads, 2, 8, attention_32x8, AttentionParams) {
  FL_DYNAMIC_SHARED(raw);
  pdl_wait();
  attention_body<2, 8>(p, *(Shared<2>*)raw);
}
