// Reads and writes of bf16 rows and of gains, 16 bytes a thread where the row allows it.
#pragma once

#include "kernel.h"
#include "weight.h"

// Brings the line of an address to the second-level cache.
FL_DEVICE void prefetch(const void* at) {
#if defined(__CUDA_ARCH__)
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
#endif
}

FL_DEVICE float gain_at(const Gain& gain, int64_t i) {
  return gain.is_f32 ? ((const float*)gain.data)[i] : bf16_to_float(((const uint16_t*)gain.data)[i]);
}

// kCount gains (a multiple of 8) from `i`, a multiple of 8, on.
template <int kCount>
FL_DEVICE void load_gains(const Gain& gain, int64_t i, float (&out)[kCount]) {
  if (gain.is_f32) {
    const float4* from = (const float4*)((const float*)gain.data + i);
#pragma unroll
    for (int k = 0; k < kCount / 4; ++k) {
      float4 v = from[k];
      out[4 * k] = v.x, out[4 * k + 1] = v.y, out[4 * k + 2] = v.z, out[4 * k + 3] = v.w;
    }
  } else {
    const uint4* from = (const uint4*)((const uint16_t*)gain.data + i);
#pragma unroll
    for (int k = 0; k < kCount / 8; ++k) {
      uint4 v = from[k];
      uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        out[8 * k + 2 * j] = bits_float(words[j] << 16), out[8 * k + 2 * j + 1] = bits_float(words[j] & 0xffff0000u);
      }
    }
  }
}

// Eight bf16 at `p`, which is 16-byte aligned.
FL_DEVICE void load_bf16x8(const uint16_t* p, float (&out)[8]) {
  uint4 v = *(const uint4*)p;
  uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out[2 * i] = bits_float(words[i] << 16);
    out[2 * i + 1] = bits_float(words[i] & 0xffff0000u);
  }
}

FL_DEVICE void store_bf16x8(uint16_t* p, const float (&in)[8]) {
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) words[i] = float_to_bf16(in[2 * i]) | (uint32_t)float_to_bf16(in[2 * i + 1]) << 16;
  *(uint4*)p = uint4{words[0], words[1], words[2], words[3]};
}

// The angles of a position, from a pair on.
FL_DEVICE const float2* rope_angles(const float* rope, int position, int max_positions, int pair) {
  int row = position < max_positions ? position : max_positions - 1;
  return (const float2*)rope + (int64_t)row * (kRopeDim / 2) + pair;
}

template <int kCount>
FL_DEVICE void load_angles(float2 (&to)[kCount], const float2* from) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    float4 v = ((const float4*)from)[i];
    to[2 * i] = float2{v.x, v.y}, to[2 * i + 1] = float2{v.z, v.w};
  }
}

// Turns pairs (2i, 2i + 1) of `count` values by as many angles.
template <int kCount>
FL_DEVICE void rotate_by(float (&v)[kCount], const float2* angles, float sign) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    float2 angle = angles[i];
    float a = v[2 * i], b = v[2 * i + 1], sine = sign * angle.y;
    v[2 * i] = a * angle.x - b * sine;
    v[2 * i + 1] = a * sine + b * angle.x;
  }
}

// The same by the angles of one position; `pair` is the index of the first pair.
template <int kCount>
FL_DEVICE void rotate_pairs(float (&v)[kCount], const float* rope, int position, int max_positions, int pair, float sign) {
  rotate_by(v, rope_angles(rope, position, max_positions, pair), sign);
}
