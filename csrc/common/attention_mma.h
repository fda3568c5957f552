// The two products of attention by warpgroups: 64 heads by a tile of 64 rows of 512 dims in shared memory, each row a key and
// a value. wgmma on sm_90a, mma elsewhere, with the fragments of mma.h.
//
// Queries and rows lie in core matrices of 8 of them x 8 dims, 128 bytes each: [dim / 8][row / 8][row % 8][dim % 8]. A
// warpgroup has half of the dims in both products.
#pragma once

#include "group_mma.h"

constexpr int kHalfDims = kHeadDim / 2;
// Dims whose values are summed at once.
constexpr int kSliceDims = 64;
constexpr int kSlices = kHalfDims / kSliceDims;

// 16-bit words to the core matrix of dims 8 d .. and rows 8 r ...
FL_DEVICE int dims_matrix(int d, int r) { return (d * 8 + r) * 64; }

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define FL_SUMS(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
// c (+)= a x b, both with 16 dims in shared memory. Asynchronous.
FL_DEVICE void wgmma_scores(float (&c)[8][4], uint64_t a, uint64_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"
      "%24,%25,%26,%27,%28,%29,%30,%31}, "
      "%32, %33, p, 1, 1, 0, 0;\n}"
      : FL_SUMS(0), FL_SUMS(1), FL_SUMS(2), FL_SUMS(3), FL_SUMS(4), FL_SUMS(5), FL_SUMS(6), FL_SUMS(7)
      : "l"(a), "l"(b), "r"(accumulate));
}
// c (+)= a x b, b with 16 rows of 64 dims. Asynchronous.
FL_DEVICE void wgmma_values(float (&c)[8][4], const uint32_t (&a)[4], uint64_t b, int accumulate) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"
      "%24,%25,%26,%27,%28,%29,%30,%31}, "
      "{%32,%33,%34,%35}, %36, p, 1, 1, 1;\n}"
      : FL_SUMS(0), FL_SUMS(1), FL_SUMS(2), FL_SUMS(3), FL_SUMS(4), FL_SUMS(5), FL_SUMS(6), FL_SUMS(7)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}
#undef FL_SUMS

// Descriptors without swizzle: from a core matrix to the next 1,024 bytes along the dims, 128 along the rows.
FL_DEVICE uint64_t matrix_descriptor(const uint16_t* at, int along_sum, int across) {
  return ((uint32_t)__cvta_generic_to_shared(at) & 0x3ffffu) >> 4 | (uint64_t)(along_sum >> 4) << 16 | (uint64_t)(across >> 4) << 32;
}
#endif

// c = queries x rows over dims 256 half ...; the sums are there after `group_wait`.
FL_DEVICE void multiply_scores(float (&c)[8][4], const uint16_t* queries, const uint16_t* rows, int half) {
  constexpr int kSteps = kHalfDims / 16;
  int start = dims_matrix(half * (kHalfDims / 8), 0);
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  uint64_t a = matrix_descriptor(queries + start, 1024, 128), b = matrix_descriptor(rows + start, 1024, 128);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (int s = 0; s < kSteps; ++s) wgmma_scores(c, a + s * (2 * 1024 >> 4), b + s * (2 * 1024 >> 4), s);
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
  int lane = lane_idx(), m = lane / 8, head = warp_idx() % 4 * 2;
#pragma unroll
  for (int n = 0; n < 8; ++n) c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0.0f;
#pragma unroll 1
  for (int s = 0; s < kSteps; ++s) {
    uint32_t a[4];
    load_matrices<false>(a, queries + start + dims_matrix(2 * s + m / 2, head + m % 2) + lane % 8 * 8);
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
      uint32_t b[4];
      load_matrices<false>(b, rows + start + dims_matrix(2 * s + m % 2, n + m / 2) + lane % 8 * 8);
      uint32_t left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
      mma_16x8x16(c[n], a, left);
      mma_16x8x16(c[n + 1], a, right);
    }
  }
#endif
}

// c = weights x rows over the tile, dims 64 slice ...; the sums are there after `group_wait`.
FL_DEVICE void multiply_values(float (&c)[8][4], const uint32_t (&weights)[4][4], const uint16_t* rows, int slice) {
  int start = dims_matrix(slice * (kSliceDims / 8), 0);
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  uint64_t b = matrix_descriptor(rows + start, 128, 1024);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (int k = 0; k < 4; ++k) wgmma_values(c, weights[k], b + k * (2 * 128 >> 4), k);
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
  int lane = lane_idx(), m = lane / 8;
#pragma unroll
  for (int n = 0; n < 8; ++n) c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0.0f;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
      uint32_t b[4];
      load_matrices<true>(b, rows + start + dims_matrix(n + m / 2, 2 * k + m % 2) + lane % 8 * 8);
      uint32_t left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
      mma_16x8x16(c[n], weights[k], left);
      mma_16x8x16(c[n + 1], weights[k], right);
    }
  }
#endif
}
