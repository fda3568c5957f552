// attention: one query row against its window and its compressed rows, key and value the same 512-vector, a sink in the
// denominator, the inverse rotation in the epilogue; one launch.
//
// Bytes: 584 (fp8) or 1,024 (bf16) a row and 128 KiB of query and output a token with 64 heads; 640 rows: 0.5 MB a token.
// Notes: (1) a block owns 16 heads of a token and walks its rows in tiles of 64, window first, compressed rows after, so
// the running softmax has one order, fixed by the token; (2) a tile is expanded once to bf16 in shared memory (fp8 by integer
// moves and one exact multiplication) and serves as key and as value; (3) scores: a warp owns 8 rows; output: a warp owns 64
// dims; weights are rounded to bf16 for the second product, the denominator adds them unrounded; (4) rows are found
// through page tables with every id and index checked; what is masked keeps its place, with weight zero; (5) at few
// tokens a cluster of blocks over the row tiles, merged in order, is the next step.
#include "attention.h"

#include "common/convert.h"
#include "common/kv_row.h"
#include "common/lookup.h"
#include "common/mma.h"
#include "common/pdl.h"
#include "common/rows.h"

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kHeads = 16;
constexpr int kTile = 64;
// Rows 4 banks apart, so that eight of them are read without conflict.
constexpr int kPitch = kHeadDim + 8;
constexpr int kScorePitch = kTile + 4;
constexpr int kWeightPitch = kTile + 8;
constexpr int kWarpDims = kHeadDim / kWarps;
constexpr float kMasked = -INFINITY;
static_assert(kTile == 8 * kWarps, "a warp scores eight rows of a tile");
static_assert(kWarpDims == kRopeDim, "the rotated dims are one warp's");

namespace {

struct Shared {
  uint16_t rows[kTile * kPitch];
  uint16_t query[kHeads * kPitch];
  uint16_t weights[kHeads * kWeightPitch];
  float scores[kHeads * kScorePitch];
  float largest[kHeads], sum[kHeads], rescale[kHeads];
  // Of this tile and the next: byte offset of the row's data in its pool, -1 if masked; and of its scales.
  int64_t place[2][kTile];
  int64_t scale_place[2][kTile];
};

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

FL_DEVICE void find_row(const AttentionParams& p, const RowList& list, int64_t t, int i, int64_t& place,
                        int64_t& scale_place) {
  place = -1;
  if (i >= list.window + list.compressed) return;
  bool in_window = i < list.window;
  const PagedRows& paged = in_window ? p.window : p.compressed;
  int row = in_window ? list.window_start + i : i - list.window;
  if (!in_window && p.source == kCompressedSelected) row = p.selected[t * p.k + row];
  if (row < 0 || (!in_window && row >= list.visible)) return;
  int32_t id = page_of(paged, t / p.per_request, row);
  if (id < 0) return;
  int64_t page = id * kv_page_bytes(p.format, paged.page_rows);
  int in_page = row % paged.page_rows;
  place = page + (int64_t)in_page * (p.format == kKvFp8 ? kKvData : 2 * kHeadDim);
  scale_place = page + (int64_t)paged.page_rows * kKvData + in_page * kKvScales;
}

FL_DEVICE void find_rows(const AttentionParams& p, const RowList& list, int64_t t, int first, Shared& s) {
  int slot = threadIdx.x, half = first / kTile % 2;
  if (slot < kTile) find_row(p, list, t, first + slot, s.place[half][slot], s.scale_place[half][slot]);
}

// Eight dims of a stored row as they lie in memory, and as bf16.
struct Unit {
  uint4 raw;
  uint8_t scale;

  FL_DEVICE void load(const uint8_t* pool, int64_t place, int64_t scale_place, int format, int unit) {
    raw = uint4{0, 0, 0, 0};
    scale = 127;
    if (place < 0) return;
    if (format == kKvBf16) {
      raw = ((const uint4*)(pool + place))[unit];
    } else if (unit >= kNopeDim / 8) {
      raw = ((const uint4*)(pool + place + kNopeDim))[unit - kNopeDim / 8];
    } else {
      uint2 codes = ((const uint2*)(pool + place))[unit];
      raw.x = codes.x, raw.y = codes.y;
      scale = pool[scale_place + unit / (kKvTile / 8)];
    }
  }

  FL_DEVICE uint4 expand(int format, int unit) const {
    if (format == kKvBf16 || unit >= kNopeDim / 8) return raw;
    uint32_t pair = ue8m0_scale_pair(scale);
    uint4 out;
    unpack_e4m3x4(raw.x, out.x, out.y);
    unpack_e4m3x4(raw.y, out.z, out.w);
    return uint4{mul_bf16x2(out.x, pair), mul_bf16x2(out.y, pair), mul_bf16x2(out.z, pair), mul_bf16x2(out.w, pair)};
  }
};

// Rows first .. first + 63 of the list into shared memory; masked ones as zeros, so that weight zero gives zero.
FL_DEVICE void load_tile(const AttentionParams& p, const RowList& list, int first, Shared& s) {
  constexpr int kUnits = kHeadDim / 8, kStep = kThreads / kUnits, kBatch = 8;
  int unit = threadIdx.x % kUnits, half = first / kTile % 2;
  for (int start = threadIdx.x / kUnits; start < kTile; start += kStep * kBatch) {
    Unit units[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      int slot = start + i * kStep;
      const uint8_t* pool = first + slot < list.window ? p.window.pool : p.compressed.pool;
      units[i].load(pool, s.place[half][slot], s.scale_place[half][slot], p.format, unit);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      *(uint4*)(s.rows + (start + i * kStep) * kPitch + 8 * unit) = units[i].expand(p.format, unit);
    }
  }
}

// A warp: the scores of its eight rows with all heads.
FL_DEVICE void score_tile(const AttentionParams& p, int half, Shared& s) {
  int lane = lane_idx(), g = lane / 4, q = lane % 4, first = warp_idx() * 8;
  float acc[4] = {};
  // Matrices of A: rows 0-7 and 8-15 at low columns, then at high ones; of B: columns in four runs of eight.
  const uint16_t* a_row = s.query + (lane % 16) * kPitch + lane / 16 * 8;
  const uint16_t* b_row = s.rows + (first + lane % 8) * kPitch + lane / 8 * 8;
#pragma unroll 4
  for (int d = 0; d < kHeadDim; d += 32) {
    uint32_t low[4], high[4], b[4];
    load_matrices<false>(low, a_row + d);
    load_matrices<false>(high, a_row + d + 16);
    load_matrices<false>(b, b_row + d);
    uint32_t b0[2] = {b[0], b[1]}, b1[2] = {b[2], b[3]};
    mma_16x8x16(acc, low, b0);
    mma_16x8x16(acc, high, b1);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    int head = g + i / 2 * 8, row = first + 2 * q + i % 2;
    s.scores[head * kScorePitch + row] = s.place[half][row] >= 0 ? acc[i] * p.scale : kMasked;
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
    s.weights[head * kWeightPitch + lane] = float_to_bf16(x);
    s.weights[head * kWeightPitch + lane + kWarp] = float_to_bf16(y);
    __syncwarp();
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
  float low = s.rescale[g], high = s.rescale[g + 8];
#pragma unroll
  for (int n = 0; n < 8; ++n) acc[n][0] *= low, acc[n][1] *= low, acc[n][2] *= high, acc[n][3] *= high;
#pragma unroll
  for (int k = 0; k < kTile; k += 16) {
    uint32_t a[4];
    load_matrices<false>(a, s.weights + (lane % 16) * kWeightPitch + k + lane / 16 * 8);
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

// Divides by the denominator, turns the last 64 dims back and stores.
FL_DEVICE void store_out(const AttentionParams& p, const float (&acc)[8][4], const Shared& s, int64_t t, int first_head,
                         int position) {
  int lane = lane_idx(), g = lane / 4, q = lane % 4, base = warp_idx() * kWarpDims;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    int head = g + 8 * half;
    if (first_head + head >= p.heads) continue;
    float sum = s.sum[head], inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
    uint32_t* out = (uint32_t*)(p.out + (t * p.heads + first_head + head) * kHeadDim + base);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      float v[2] = {acc[n][2 * half] * inverse, acc[n][2 * half + 1] * inverse};
      if (base == kNopeDim && position >= 0) rotate_pairs(v, p.rope, position, p.max_positions, n * 4 + q, -1.0f);
      out[n * 4 + q] = pack_bf16(v[0], v[1]);
    }
  }
}

}  // namespace

FL_KERNEL(kThreads, attention, AttentionParams) {
  FL_DYNAMIC_SHARED(raw);
  Shared& s = *(Shared*)raw;
  pdl_wait();
  int64_t t = blockIdx.y;
  int first_head = blockIdx.x * kHeads, position = p.position[t];
  RowList list(p, position);

  for (int i = threadIdx.x; i < kHeads * kHeadDim / 8; i += kThreads) {
    int head = i / (kHeadDim / 8), unit = i % (kHeadDim / 8);
    uint4 v{0, 0, 0, 0};
    if (first_head + head < p.heads) v = ((const uint4*)(p.q + (t * p.heads + first_head + head) * kHeadDim))[unit];
    *(uint4*)(s.query + head * kPitch + 8 * unit) = v;
  }
  if (threadIdx.x < kHeads) {
    int head = first_head + threadIdx.x;
    float sink = head < p.heads ? p.sink[head] : 0.0f;
    // A sink of -inf adds nothing; the floor keeps the differences below finite.
    s.largest[threadIdx.x] = fmaxf(sink, -1e30f);
    s.sum[threadIdx.x] = expf(sink - s.largest[threadIdx.x]);
  }
  float acc[8][4] = {};
  find_rows(p, list, t, 0, s);
  __syncthreads();
  for (int first = 0; first < list.window + list.compressed; first += kTile) {
    load_tile(p, list, first, s);
    find_rows(p, list, t, first + kTile, s);
    __syncthreads();
    score_tile(p, first / kTile % 2, s);
    __syncthreads();
    weigh_tile(s);
    __syncthreads();
    add_tile(acc, s);
    __syncthreads();
  }
  __syncthreads();
  store_out(p, acc, s, t, first_head, position);
}
