// The product of 64 rows in registers and 64 columns in shared memory, by four warps: wgmma on sm_90a, mma elsewhere.
//
// Warp w holds rows 16 w .. 16 w + 15, each 16 elements of a row in the fragment of mma.h, and of the sums c[n] the fragment
// of columns 8 n .. 8 n + 7. The columns lie in core matrices of 8 columns x 8 elements, 128 bytes each: [element / 8]
// [column / 8][column % 8][element % 8].
#pragma once

#include "mma.h"
#include "phases.h"

constexpr int kGroupThreads = 128;
constexpr int kGroupRows = 64;
constexpr int kGroupCols = 64;

// 16-bit words from the start of the columns to the core matrix of elements 8 k .. and columns 8 n ...
FL_DEVICE int core_matrix(int k, int n) { return (k * (kGroupCols / 8) + n) * 64; }

// Makes what this thread wrote to shared memory visible to the matrix unit; before the barrier.
FL_DEVICE void columns_written() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// All threads of a warpgroup meet for the `times`-th time, from 0. The emulator has no barriers of a part of a block but those of
// phases.h: `met` is one of all threads.
FL_DEVICE void warpgroup_sync(uint64_t* met, uint32_t times) {
#if defined(__CUDA_ARCH__)
  asm volatile("bar.sync %0, %1;" ::"r"(1 + warp_idx() / 4), "n"(kGroupThreads) : "memory");
#elif defined(FL_EMULATED)
  barrier_arrive(met);
  barrier_wait(met, (int)(times % 2));
#endif
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// c (+)= a x columns, 16 elements; `columns` is a matrix descriptor. Asynchronous.
template <bool kHalf>
FL_DEVICE void wgmma_64x64x16(float (&c)[8][4], const uint32_t (&a)[4], uint64_t columns, int accumulate) {
#define FL_SUMS(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define FL_WGMMA(type)                                                                                                     \
  asm volatile(                                                                                                            \
      "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"                                                                         \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                                                          \
      " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, " \
      "{%32,%33,%34,%35}, %36, p, 1, 1, 0;\n}"                                                                             \
      : FL_SUMS(0), FL_SUMS(1), FL_SUMS(2), FL_SUMS(3), FL_SUMS(4), FL_SUMS(5), FL_SUMS(6), FL_SUMS(7)                     \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(columns), "r"(accumulate))
  if (kHalf) {
    FL_WGMMA("f16");
  } else {
    FL_WGMMA("bf16");
  }
#undef FL_WGMMA
#undef FL_SUMS
}
#endif

// c = rows x columns over 16 kSteps elements, f16 or bf16. The sums are there after `warpgroup_wait`.
template <bool kHalf, int kSteps>
FL_DEVICE void warpgroup_multiply(float (&c)[8][4], const uint32_t (&a)[kSteps][4], const uint16_t* columns) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  // No swizzle; 1,024 bytes from a core matrix to the next along the elements, 128 along the columns.
  constexpr uint64_t kLayout = (uint64_t)(1024 >> 4) << 16 | (uint64_t)(128 >> 4) << 32;
  uint64_t at = kLayout | ((uint32_t)__cvta_generic_to_shared(columns) & 0x3ffffu) >> 4;
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (int s = 0; s < kSteps; ++s) wgmma_64x64x16<kHalf>(c, a[s], at + s * (2 * 1024 >> 4), s);
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
#pragma unroll
  for (int n = 0; n < 8; ++n) c[n][0] = c[n][1] = c[n][2] = c[n][3] = 0.0f;
  int m = lane_idx() / 8;
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
#pragma unroll
    for (int n = 0; n < 8; n += 2) {
      uint32_t b[4];
      load_matrices<false>(b, columns + core_matrix(2 * s + m % 2, n + m / 2) + lane_idx() % 8 * 8);
      uint32_t left[2] = {b[0], b[1]}, right[2] = {b[2], b[3]};
      mma_16x8x16<kHalf>(c[n], a[s], left);
      mma_16x8x16<kHalf>(c[n + 1], a[s], right);
    }
  }
#endif
}

template <int kSteps>
FL_DEVICE void warpgroup_wait(float (&c)[8][4], const uint32_t (&a)[kSteps][4]) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    // The registers of `a` are not for others until now.
    asm volatile("" ::"r"(a[s][0]), "r"(a[s][1]), "r"(a[s][2]), "r"(a[s][3]));
  }
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    // The sums arrive at the wait; nothing that uses them may move before it.
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(c[n][i])::"memory");
  }
#endif
}
