// Products of 64 rows in registers and some columns in shared memory by a warpgroup, sixteen elements at a time: wgmma on
// sm_90a, mma elsewhere, with the fragments of mma.h.
//
// The columns of a round of 128 elements lie in core matrices of 8 columns x 8 elements, 128 bytes each: [element / 8]
// [column / 8][column % 8][element % 8], with 16 bytes between the runs of 8 elements that keep writers in banks of their own.
#pragma once

#include "warpgroup.h"

template <int kCols>
struct Columns {
  static constexpr int kApart = kCols * 16 + 16;
  static constexpr int kBytes = 16 * kApart;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
template <int kCols>
struct GroupMma;
#define FL_SUMS(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
template <>
struct GroupMma<32> {
  // c (+)= a x columns; `columns` is a matrix descriptor. Asynchronous.
  FL_DEVICE static void run(float (&c)[4][4], const uint32_t (&a)[4], uint64_t columns, int accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, "
        "{%16,%17,%18,%19}, %20, p, 1, 1, 0;\n}"
        : FL_SUMS(0), FL_SUMS(1), FL_SUMS(2), FL_SUMS(3)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(columns), "r"(accumulate));
  }
};
template <>
struct GroupMma<64> {
  // c (+)= a x columns; `columns` is a matrix descriptor. Asynchronous.
  FL_DEVICE static void run(float (&c)[8][4], const uint32_t (&a)[4], uint64_t columns, int accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"
        "%24,%25,%26,%27,%28,%29,%30,%31}, "
        "{%32,%33,%34,%35}, %36, p, 1, 1, 0;\n}"
        : FL_SUMS(0), FL_SUMS(1), FL_SUMS(2), FL_SUMS(3), FL_SUMS(4), FL_SUMS(5), FL_SUMS(6), FL_SUMS(7)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(columns), "r"(accumulate));
  }
};
template <>
struct GroupMma<128> {
  // c (+)= a x columns; `columns` is a matrix descriptor. Asynchronous.
  FL_DEVICE static void run(float (&c)[16][4], const uint32_t (&a)[4], uint64_t columns, int accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"
        "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
        "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
        "{%64,%65,%66,%67}, %68, p, 1, 1, 0;\n}"
        : FL_SUMS(0), FL_SUMS(1), FL_SUMS(2), FL_SUMS(3), FL_SUMS(4), FL_SUMS(5), FL_SUMS(6), FL_SUMS(7),
          FL_SUMS(8), FL_SUMS(9), FL_SUMS(10), FL_SUMS(11), FL_SUMS(12), FL_SUMS(13), FL_SUMS(14), FL_SUMS(15)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(columns), "r"(accumulate));
  }
};
#undef FL_SUMS
#endif

// c (+)= rows x columns over half `half` of a round, 64 elements; the sums are there after `group_wait`.
template <int kCols>
FL_DEVICE void group_multiply(float (&c)[kCols / 8][4], const uint32_t (&a)[4][4], const unsigned char* columns, int half,
                              bool accumulate) {
  constexpr int kApart = Columns<kCols>::kApart;
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  // No swizzle; kApart bytes from a core matrix to the next along the elements, 128 along the columns.
  constexpr uint64_t kLayout = (uint64_t)(kApart >> 4) << 16 | (uint64_t)(128 >> 4) << 32;
  uint64_t at = kLayout | ((uint32_t)__cvta_generic_to_shared(columns + half * 8 * kApart) & 0x3ffffu) >> 4;
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (int s = 0; s < 4; ++s) GroupMma<kCols>::run(c, a[s], at + s * (2 * kApart >> 4), accumulate || s > 0);
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
  if (!accumulate) {
#pragma unroll
    for (int n = 0; n < kCols / 8; ++n) c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0.0f;
  }
  int m = lane_idx() / 8;
#pragma unroll
  for (int s = 0; s < 4; ++s) {
    const unsigned char* from = columns + (8 * half + 2 * s + m % 2) * kApart + m / 2 * 128 + lane_idx() % 8 * 16;
#pragma unroll
    for (int n = 0; n < kCols / 8; n += 2) {
      uint32_t b[4];
      load_matrices<false>(b, (const uint16_t*)(from + n * 128));
      uint32_t left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
      mma_16x8x16(c[n], a[s], left);
      mma_16x8x16(c[n + 1], a[s], right);
    }
  }
#endif
}

// Waits for all products of this warpgroup.
template <int kCols>
FL_DEVICE void group_wait(float (&c)[kCols / 8][4]) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (int n = 0; n < kCols / 8; ++n) {
    // The sums arrive at the wait; nothing that uses them may move before it.
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(c[n][i])::"memory");
  }
#endif
}
