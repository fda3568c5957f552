// The 128-vector of an index key or of one index query head: rotation by the Hadamard matrix, encoding and addressing.
//
// A warp holds a vector, four neighbouring dims a lane. Pages of P rows are planar: [P x codes][P x scales].
#pragma once

#include "convert.h"
#include "kernel.h"
#include "reduce.h"

enum IndexRowFormat { kIndexBf16 = 1, kIndexFp8 = 2, kIndexFp4 = 3 };

FL_DEVICE int index_code_bytes(int format) {
  return format == kIndexBf16 ? 2 * kIndexDim : format == kIndexFp8 ? kIndexDim : kIndexDim / 2;
}
FL_DEVICE int index_scale_bytes(int format) { return format == kIndexBf16 ? 0 : 4; }
FL_DEVICE int64_t index_page_bytes(int format, int page_rows) {
  return (int64_t)page_rows * (index_code_bytes(format) + index_scale_bytes(format));
}

// v <- H v / sqrt(128), butterflies at distance 1, 2, 4, .. 64 as the Rust side has them.
FL_DEVICE void hadamard_128(float (&v)[4]) {
  float a = v[0] + v[1], b = v[0] - v[1], c = v[2] + v[3], d = v[2] - v[3];
  v[0] = a + c, v[1] = b + d, v[2] = a - c, v[3] = b - d;
  int lane = lane_idx();
  for (int bit = 1; bit < kWarp; bit *= 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float other = __shfl_xor_sync(kFullMask, v[i], bit);
      v[i] = lane & bit ? other - v[i] : v[i] + other;
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] *= 0.088388346f;
}

FL_DEVICE void index_encode(const float (&v)[4], uint8_t* codes, uint8_t* scales, int format) {
  int lane = lane_idx();
  uint32_t amax = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) amax = max(amax, magnitude_bits(v[i]));
  if (format == kIndexBf16) {
    uint2 words{float_to_bf16(v[0]) | (uint32_t)float_to_bf16(v[1]) << 16,
                float_to_bf16(v[2]) | (uint32_t)float_to_bf16(v[3]) << 16};
    *(uint2*)(codes + 8 * lane) = words;
  } else if (format == kIndexFp8) {
    uint8_t scale = e4m3_tile_scale(group_max(amax, kWarp));
    float inverse = ue8m0_reciprocal(scale);
    *(uint32_t*)(codes + 4 * lane) =
        e4m3_pair(v[0] * inverse, v[1] * inverse) | e4m3_pair(v[2] * inverse, v[3] * inverse) << 16;
    if (lane == 0) *(float*)scales = ue8m0_to_float(scale);
  } else {
    uint8_t scale = e2m1_tile_scale(group_max(amax, 8));
    float inverse = ue8m0_reciprocal(scale);
    uint32_t half = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) half |= (uint32_t)float_to_e2m1(v[i] * inverse) << (4 * i);
    *(uint16_t*)(codes + 2 * lane) = (uint16_t)half;
    if (lane % 8 == 0) scales[lane / 8] = scale;
  }
}
