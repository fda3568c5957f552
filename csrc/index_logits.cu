// index_logits: the score of every visible index key, sum_h scale w_h relu(q_h . key), keys read through a page table in
// bf16, fp8 or fp4. Two readers: `simple`, one thread a row, and `fast`, on matrix instructions.
//
// Bytes: 256, 132 or 68 a row read and 4 written; 64 heads make 16 kFLOP a row, so fp8 is bound by memory.
// Notes: (1) both hold the query of a token in shared memory, as exact values with its scales inside; (2) `fast`: a warp
// scores 32 rows; the rows are the wide operand, straight from memory to fragments, and the heads the narrow one, in
// fragment order, so that a shared read is 16 bytes without conflicts; relu, weight and the sum over heads stay in
// registers; (3) the sum over heads has one order: by head pair in a lane, then over the four lanes of a row; (4) lengths,
// tables and weights are read on the device; the grid is fixed by the shape, and its blocks stride over a row's chunks;
// (5) a row on a masked page scores -inf; columns past the visible rows are not written.
#include "index_logits.h"

#include "common/convert.h"
#include "common/index_row.h"
#include "common/lookup.h"
#include "common/mma.h"
#include "common/pdl.h"

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kMaxHeads = 64;
constexpr int kWarpRows = 32;
constexpr int kSteps = kIndexDim / 16;
constexpr int kRowsPerBlock = kWarps * kWarpRows;

namespace {

// Rows that the token sees, at most what the table holds.
FL_DEVICE int visible_rows(const IndexLogitsParams& p, int64_t t) {
  int32_t position = p.position[t];
  int64_t rows = position < 0 ? 0 : ((int64_t)position + 1) / 4;
  return (int)min(rows, (int64_t)p.keys.width * p.keys.page_rows);
}

// Element `d` of a vector, its scale applied.
FL_DEVICE float element(const uint8_t* codes, const uint8_t* scales, int format, int d) {
  if (format == kIndexBf16) return bf16_to_float(((const uint16_t*)codes)[d]);
  if (format == kIndexFp8) return e4m3_to_float(codes[d]) * *(const float*)scales;
  return e2m1_to_float(codes[d / 2] >> (4 * (d % 2)) & 15) * ue8m0_to_float(scales[d / 32]);
}

struct KeyRow {
  const uint8_t* codes;
  const uint8_t* scales;
};

// The stored key of `row`; null codes on a masked page.
FL_DEVICE KeyRow key_row(const IndexLogitsParams& p, int64_t request, int row) {
  int32_t id = page_of(p.keys, request, row);
  if (id < 0) return {nullptr, nullptr};
  const uint8_t* page = p.keys.pool + id * index_page_bytes(p.format, p.keys.page_rows);
  int in_page = row % p.keys.page_rows, bytes = index_code_bytes(p.format);
  return {page + in_page * bytes, page + p.keys.page_rows * bytes + in_page * 4};
}

// 32 elements of a key, from 32 * q on, as pairs of bf16 with fp4's scale inside and fp8's outside.
FL_DEVICE void load_share(uint32_t (&out)[16], const KeyRow& key, int format, int q) {
  if (format == kIndexBf16) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      uint4 v = ((const uint4*)key.codes)[4 * q + i];
      out[4 * i] = v.x, out[4 * i + 1] = v.y, out[4 * i + 2] = v.z, out[4 * i + 3] = v.w;
    }
  } else if (format == kIndexFp8) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint4 v = ((const uint4*)key.codes)[2 * q + i];
      uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) unpack_e4m3x4(words[j], out[8 * i + 2 * j], out[8 * i + 2 * j + 1]);
    }
  } else {
    uint4 v = ((const uint4*)key.codes)[q];
    uint32_t words[4] = {v.x, v.y, v.z, v.w}, scale = ue8m0_scale_pair(key.scales[q]);
#pragma unroll
    for (int j = 0; j < 8; ++j) unpack_e2m1x4(words[j / 2] >> (16 * (j % 2)), scale, out[2 * j], out[2 * j + 1]);
  }
}

FL_DEVICE float row_scale(const KeyRow& key, int format) { return format == kIndexFp8 ? *(const float*)key.scales : 1.0f; }

// Lays the query of a token out in fragment order: [head / 8][step / 2][lane][4 words], heads past the last as zeros.
FL_DEVICE void stage_query(const IndexLogitsParams& p, int64_t t, uint32_t* fragments) {
  int code_bytes = index_code_bytes(p.format);
#pragma unroll 8
  for (int round = 0; round < kMaxHeads * kIndexDim / 2 / kThreads; ++round) {
    int i = round * kThreads + threadIdx.x;
    int word = i % 4, lane = i / 4 % kWarp, step = 2 * (i / 128 % (kSteps / 2)) + word / 2, head = i / 512 * 8 + lane / 4;
    int d = 32 * (lane % 4) + 4 * step + 2 * (word % 2);
    uint32_t value = 0;
    if (head < p.heads) {
      const uint8_t* codes = p.codes + (t * p.heads + head) * code_bytes;
      const uint8_t* scales = p.scales + (t * p.heads + head) * 4;
      value = pack_bf16(element(codes, scales, p.format, d), element(codes, scales, p.format, d + 1));
    }
    fragments[i] = value;
  }
}

// A warp scores rows first .. first + 31 of a request. `weights` has kMaxHeads entries, zeros past the last head.
FL_DEVICE void score_rows(const IndexLogitsParams& p, int64_t request, int first, int visible, const uint32_t* fragments,
                          const float* weights, float* logits) {
  int g = lane_idx() / 4, q = lane_idx() % 4;
  uint32_t share[4][16];  // Rows g, g + 8, g + 16, g + 24.
  float scale[4];
  bool masked[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    int row = first + g + 8 * i;
    KeyRow key = row < visible ? key_row(p, request, row) : KeyRow{nullptr, nullptr};
    masked[i] = key.codes == nullptr;
    scale[i] = 1.0f;
    if (masked[i]) {
#pragma unroll
      for (int j = 0; j < 16; ++j) share[i][j] = 0;
    } else {
      load_share(share[i], key, p.format, q);
      scale[i] = row_scale(key, p.format);
    }
  }
  float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  int tiles = (p.heads + 7) / 8;
  for (int n = 0; n < tiles; ++n) {
    float acc[2][4] = {};
#pragma unroll
    for (int s = 0; s < kSteps / 2; ++s) {
      uint4 v = ((const uint4*)fragments)[(n * (kSteps / 2) + s) * kWarp + lane_idx()];
      uint32_t right[2][2] = {{v.x, v.y}, {v.z, v.w}};
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        int at = 2 * (2 * s + odd);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          uint32_t left[4] = {share[2 * m][at], share[2 * m + 1][at], share[2 * m][at + 1], share[2 * m + 1][at + 1]};
          mma_16x8x16(acc[m], left, right[odd]);
        }
      }
    }
    float2 w = *(const float2*)(weights + 8 * n + 2 * q);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float even = acc[i / 2][i % 2 * 2], odd = acc[i / 2][i % 2 * 2 + 1];
      // Not fmaxf, which would hide a NaN.
      sums[i] = fmaf(w.x, even < 0.0f ? 0.0f : even, sums[i]);
      sums[i] = fmaf(w.y, odd < 0.0f ? 0.0f : odd, sums[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sums[i] += __shfl_xor_sync(kFullMask, sums[i], 1);
    sums[i] += __shfl_xor_sync(kFullMask, sums[i], 2);
    int row = first + g + 8 * i;
    if (q == 0 && row < visible) logits[row] = masked[i] ? -INFINITY : p.scale * (sums[i] * scale[i]);
  }
}

}  // namespace

FL_KERNEL(kThreads, index_logits_fast, IndexLogitsParams) {
  __shared__ __align__(16) uint32_t fragments[kMaxHeads * kIndexDim / 2];
  __shared__ __align__(16) float weights[kMaxHeads];
  pdl_wait();
  int64_t t = blockIdx.y;
  int visible = visible_rows(p, t);
  if ((int)blockIdx.x * kRowsPerBlock >= visible) return;
  if (threadIdx.x < kMaxHeads) weights[threadIdx.x] = (int)threadIdx.x < p.heads ? p.weights[t * p.heads + threadIdx.x] : 0.0f;
  stage_query(p, t, fragments);
  __syncthreads();
  float* logits = p.logits + t * (int64_t)p.keys.width * p.keys.page_rows;
  for (int block = blockIdx.x; block * kRowsPerBlock < visible; block += gridDim.x) {
    int first = block * kRowsPerBlock + warp_idx() * kWarpRows;
    if (first < visible) score_rows(p, t / p.per_request, first, visible, fragments, weights, logits);
  }
}

FL_KERNEL(kThreads, index_logits_simple, IndexLogitsParams) {
  __shared__ __align__(16) float query[kMaxHeads * kIndexDim];
  pdl_wait();
  int64_t t = blockIdx.y;
  int visible = visible_rows(p, t);
  if ((int)blockIdx.x * kThreads >= visible) return;
  for (int i = threadIdx.x; i < p.heads * kIndexDim; i += kThreads) {
    int64_t head = t * p.heads + i / kIndexDim;
    query[i] = element(p.codes + head * index_code_bytes(p.format), p.scales + head * 4, p.format, i % kIndexDim);
  }
  __syncthreads();
  float* logits = p.logits + t * (int64_t)p.keys.width * p.keys.page_rows;
  for (int row = blockIdx.x * kThreads + threadIdx.x; row < visible; row += gridDim.x * kThreads) {
    KeyRow key = key_row(p, t / p.per_request, row);
    float score = key.codes == nullptr ? -INFINITY : 0.0f;
    for (int h = 0; h < p.heads && key.codes != nullptr; ++h) {
      float dot = 0.0f;
      for (int d = 0; d < kIndexDim; ++d) {
        dot = fmaf(query[h * kIndexDim + d], element(key.codes, key.scales, p.format, d), dot);
      }
      score = fmaf(p.scale * p.weights[t * p.heads + h], dot < 0.0f ? 0.0f : dot, score);
    }
    logits[row] = score;
  }
}
