// Reads and writes of bf16 rows and of gains, 16 bytes a thread where the row allows it.
#pragma once

#include "kernel.h"
#include "weight.h"

FL_DEVICE float gain_at(const Gain& gain, int64_t i) {
  return gain.is_f32 ? ((const float*)gain.data)[i] : bf16_to_float(((const uint16_t*)gain.data)[i]);
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

// Turns pairs (2i, 2i + 1) of `count` values by the angles of one position; `pair` is the index of the first pair.
template <int kCount>
FL_DEVICE void rotate_pairs(float (&v)[kCount], const float* rope, int position, int max_positions, int pair, float sign) {
  int row = position < max_positions ? position : max_positions - 1;
  const float2* angles = (const float2*)rope + (int64_t)row * (kRopeDim / 2) + pair;
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    float2 angle = angles[i];
    float a = v[2 * i], b = v[2 * i + 1], sine = sign * angle.y;
    v[2 * i] = a * angle.x - b * sine;
    v[2 * i + 1] = a * sine + b * angle.x;
  }
}
