// Element math, one source for kernels and host: number formats and their roundings, pinned bit for bit to the Rust side.
//
// Everything here is integer work or single correctly rounded operations, so that device and host agree in every bit.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__CUDACC__)
#define HD __host__ __device__ __forceinline__
#else
#define HD static inline
#endif

HD uint32_t float_bits(float x) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(x);
#else
  uint32_t u;
  memcpy(&u, &x, 4);
  return u;
#endif
}

HD float bits_float(uint32_t u) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(u);
#else
  float x;
  memcpy(&x, &u, 4);
  return x;
#endif
}

HD float bf16_to_float(uint16_t b) { return bits_float((uint32_t)b << 16); }

// f16: 1 sign, 5 exponent (bias 15), 10 mantissa bits.
HD float half_to_float(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000u) << 16, a = h & 0x7fffu;
  if (a >= 0x7c00u) return bits_float(sign | 0x7f800000u | (a & 0x3ffu) << 13);
  // The fifteen bits stand in an f32 at 2^-112 of their value.
  return bits_float(sign | float_bits(bits_float(a << 13) * bits_float(0x77800000u)));
}

// Nearest even; a NaN stays a (quiet) NaN.
HD uint16_t float_to_bf16(float x) {
  uint32_t u = float_bits(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
  return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

HD float round_bf16(float x) { return bf16_to_float(float_to_bf16(x)); }

// e4m3fn: 1 sign, 4 exponent (bias 7), 3 mantissa bits; 0x7f is NaN, no infinity, largest 448.
HD float e4m3_to_float(uint8_t c) {
  uint32_t sign = (uint32_t)(c & 0x80u) << 24, a = c & 0x7fu;
  if (a == 0x7fu) return bits_float(sign | 0x7fc00000u);
  // The seven bits stand in an f32 at 2^-120 of their value; the product is exact, subnormals included.
  float magnitude = bits_float(a << 20) * bits_float(0x7b800000u);
  return bits_float(float_bits(magnitude) | sign);
}

// The same as an f16, which holds every e4m3 exactly.
HD uint16_t e4m3_to_half(uint8_t c) {
  uint32_t u = float_bits(e4m3_to_float(c)), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return (uint16_t)0x7fffu;
  return (uint16_t)(sign | (a == 0 ? 0 : (a >> 13) - (112u << 10)));
}

// Nearest even, saturating; NaN to 0x7f.
HD uint8_t float_to_e4m3(float x) {
  uint32_t u = float_bits(x), a = u & 0x7fffffffu;
  uint8_t sign = (uint8_t)(u >> 24 & 0x80u);
  if (a > 0x7f800000u) return 0x7f;
  if (a >= 0x43e00000u) return sign | 0x7e;
  if (a < 0x3c800000u) {
    // Below 2^-6 the step is 2^-9, which is the step of an f32 at 2^14.
    return sign | (uint8_t)(float_bits(bits_float(a) + 16384.0f) - float_bits(16384.0f));
  }
  a += 0x7ffffu + (a >> 20 & 1u);
  uint32_t code = (a >> 20) - (120u << 3);
  return sign | (uint8_t)(code > 0x7eu ? 0x7eu : code);
}

// e2m1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives.
HD float e2m1_to_float(uint8_t c) {
  uint32_t sign = (uint32_t)(c & 8u) << 28;
  float magnitude = bits_float((uint32_t)(c & 7u) << 22) * bits_float(0x7e800000u);
  return bits_float(float_bits(magnitude) | sign);
}

// Nearest even code, saturating at 6; a NaN becomes +6, for the format has none.
HD uint8_t float_to_e2m1(float x) {
  uint32_t u = float_bits(x), a = u & 0x7fffffffu;
  uint8_t sign = (uint8_t)(u >> 28 & 8u);
  if (a > 0x7f800000u) return 7;
  if (a >= 0x40c00000u) return sign | 7;
  if (a < 0x3f800000u) {
    return sign | (uint8_t)(float_bits(bits_float(a) + 4194304.0f) - float_bits(4194304.0f));
  }
  a += 0x1fffffu + (a >> 22 & 1u);
  uint32_t code = (a >> 22) - (126u << 1);
  return sign | (uint8_t)(code > 7u ? 7u : code);
}

// ue8m0: 2^(b - 127); 255 is NaN.
HD float ue8m0_to_float(uint8_t b) {
  if (b == 255) return bits_float(0x7fc00000u);
  return bits_float(b == 0 ? 0x00400000u : (uint32_t)b << 23);
}

// Bits of |x|: they order like magnitudes, NaN above infinity, so the largest magnitude is an integer maximum.
HD uint32_t magnitude_bits(float x) { return float_bits(x) & 0x7fffffffu; }

// The smallest power of two s with amax <= limit * s, as ue8m0; `amax` counts as at least `floor`, a NaN gives the NaN byte.
HD uint8_t ue8m0_scale(uint32_t amax, float limit, float floor) {
  if (amax >= 0x7f800000u) return amax > 0x7f800000u ? 255 : 254;
  // Of a / limit the exponent, one more where a's mantissa exceeds the limit's.
  uint32_t least = float_bits(floor), by = float_bits(limit), a = amax > least ? amax : least;
  int32_t e = (int32_t)((a + (0x7fffffu - (by & 0x7fffffu))) >> 23) - (int32_t)(by >> 23) + 127;
  return (uint8_t)(e < 1 ? 1 : e > 254 ? 254 : e);
}

// 2^(127 - b): the reciprocal of a scale, exact.
HD float ue8m0_reciprocal(uint8_t b) {
  if (b == 255) return bits_float(0x7fc00000u);
  return bits_float(b == 254 ? 0x00400000u : (uint32_t)(254 - b) << 23);
}

// Scale of a tile of a cache row stored as e4m3.
HD uint8_t e4m3_tile_scale(uint32_t amax) { return ue8m0_scale(amax, 448.0f, 1e-4f); }

// Scale of a block stored as e2m1.
HD uint8_t e2m1_tile_scale(uint32_t amax) { return ue8m0_scale(amax, 6.0f, 6.0f * bits_float(0x00800000u)); }
