// Stored codes to pairs of bf16, by integer moves and exact multiplications.
//
// Every result is exact: a code has at most 4 significant bits and a scale at most 4, a bf16 has 8. The NaN codes of e4m3
// are not told apart (they read as 480): weights are checked when loaded, and cache rows carry a NaN in their scale.
#pragma once

#include "kernel.h"

// The product of two pairs of bf16, each rounded to nearest even; subnormals kept.
FL_DEVICE uint32_t mul_bf16x2(uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__)
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
#else
  float low = bf16_to_float((uint16_t)a) * bf16_to_float((uint16_t)b);
  float high = bf16_to_float((uint16_t)(a >> 16)) * bf16_to_float((uint16_t)(b >> 16));
  return float_to_bf16(low) | (uint32_t)float_to_bf16(high) << 16;
#endif
}

// Two floats as bf16, the first in the low half; a NaN is some NaN.
FL_DEVICE uint32_t bf16_pair(float low, float high) {
#if defined(__CUDA_ARCH__)
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return float_to_bf16(low) | (uint32_t)float_to_bf16(high) << 16;
#endif
}

// Two floats to e4m3, nearest even, saturating; the first in the low byte.
FL_DEVICE uint32_t e4m3_pair(float low, float high) {
#if defined(__CUDA_ARCH__)
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return float_to_e4m3(low) | (uint32_t)float_to_e4m3(high) << 8;
#endif
}

FL_DEVICE uint32_t both_halves(uint16_t x) { return x | (uint32_t)x << 16; }

// e4m3 at 2^-120 and e2m1 at 2^-126 of their values are what their bits mean inside a bf16.
constexpr uint32_t kE4m3Bias = 0x7b807b80u;
constexpr uint32_t kE2m1Bias = 0x7e807e80u;

FL_DEVICE uint32_t rotate_right(uint32_t w, int by) {
#if defined(__CUDA_ARCH__)
  return __funnelshift_r(w, w, by);
#else
  return w >> by | w << (32 - by);
#endif
}

// Two words of a weight's e2m1 codes hold sixteen elements. A code is four bits, of its magnitude at t, t + 1 and t + 2 and of its
// sign at t + 9, as they lie in a bf16 from bit 6 on; the second element of a pair has its own 16 bits higher; all places are
// modulo 32. Pairs 0, 1 and 2 have the first word and t = 0, 4 and 10, pairs 3, 4 and 5 the second and t = 2, 6 and 12. Pairs 6
// and 7 have t = 8 and 14, in what bits are left of either word. So a rotation and a mask bring a pair to its place.
// `arrange_fp4` of src/cuda/weights.rs makes it. Gives the pairs at 2^-126 of their values.
FL_DEVICE void unpack_e2m1_arranged(uint32_t first, uint32_t second, uint32_t (&pair)[8]) {
  constexpr uint32_t kCodes = 0x81c081c0u, kLeft = 0xc180c180u;
  uint32_t both = (first & kLeft) | (second & ~kLeft);
  pair[0] = first << 6 & kCodes, pair[1] = first << 2 & kCodes, pair[2] = rotate_right(first, 4) & kCodes;
  pair[3] = second << 4 & kCodes, pair[4] = second & kCodes, pair[5] = rotate_right(second, 6) & kCodes;
  pair[6] = rotate_right(both, 2) & kCodes, pair[7] = rotate_right(both, 8) & kCodes;
}

// Four e4m3 codes to two pairs of elements i and i + 2.
FL_DEVICE void unpack_e4m3_across(uint32_t w, uint32_t (&pair)[2]) {
  uint32_t near = w << 8;
  pair[0] = mul_bf16x2((near & 0x80008000u) | (near >> 4 & 0x07f007f0u), kE4m3Bias);
  pair[1] = mul_bf16x2((w & 0x80008000u) | (w >> 4 & 0x07f007f0u), kE4m3Bias);
}

// The low (high) halves of two words, the first word's below.
FL_DEVICE uint32_t low_halves(uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(a, b, 0x5410);
#else
  return (a & 0xffffu) | b << 16;
#endif
}
FL_DEVICE uint32_t high_halves(uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(a, b, 0x7632);
#else
  return a >> 16 | (b & 0xffff0000u);
#endif
}

// An e4m3 scale times 2^118 as a pair of equal bf16, for codes at 2^-126: exact, and 2^8 (`kNvfp4Rest`) is left to do after
// the sum, for 2^126 times the largest scale is no bf16.
constexpr float kNvfp4Rest = 256.0f;
FL_DEVICE uint32_t nvfp4_scale_pair(uint32_t code) {
  return mul_bf16x2(mul_bf16x2(code * 0x00100010u, kE4m3Bias), 0x7a807a80u);
}

// A scale in ue8m0 as a pair of equal bf16, which is exact; 0xff is a NaN.
FL_DEVICE uint32_t ue8m0_scale_pair(uint8_t code) {
  return both_halves(code == 0 ? 0x0040 : code == 255 ? 0x7fc0 : (uint16_t)(code << 7));
}
