// nvfp4: NVFP4 and MXFP4 weights to bf16 or e4m3, and back from bf16 or f32; bit for bit as the Rust side defines them.
//
// Bytes an element: 0.5625 (0.53125 for MXFP4) read and 2 or 1 written; quantising 2 or 4 read, 0.5625 written.
// Notes: (1) a thread takes what it stores as 16 bytes: 8 elements of bf16, 16 of e4m3, and quantises 16; its next are a block's
// threads further on, so that a warp's accesses are one line after another; (2) value = (e2m1 * scale) * scale2 in f32, the first
// product exact, one rounding; (3) quantising divides, as the definition does, so that ties fall the same way: by the scale's
// reciprocal and two corrections, which round as a division does where nothing overflows, and by a division elsewhere.
#include "nvfp4.h"

#include "common/convert.h"
#include "common/pdl.h"
#include "common/rows.h"

constexpr int kThreads = 256;
// Elements of a block of threads.
constexpr int kElements = 32 * kThreads;

namespace {

// The scale of an element, without the second level.
FL_DEVICE float scale_at(const Fp4DequantizeParams& p, int64_t element) {
  return p.mxfp4 ? ue8m0_to_float(p.scales[element / 32]) : e4m3_to_float(p.scales[element / 16]);
}

// Eight codes.
FL_DEVICE void decode_word(uint32_t codes, float scale, float scale2, float (&v)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    uint32_t top = codes << (28 - 4 * i);
    float bits = bits_float((top & 0x80000000u) | (top >> 6 & 0x01c00000u));
    v[i] = bits * bits_float(0x7e800000u) * scale * scale2;
  }
}

FL_DEVICE void load_values(const Fp4QuantizeParams& p, int64_t element, float (&v)[16]) {
#pragma unroll
  for (int i = 0; i < 16; i += 8) {
    if (p.is_f32) {
      const float4* from = (const float4*)((const float*)p.x + element + i);
      float4 a = from[0], b = from[1];
      v[i] = a.x, v[i + 1] = a.y, v[i + 2] = a.z, v[i + 3] = a.w;
      v[i + 4] = b.x, v[i + 5] = b.y, v[i + 6] = b.z, v[i + 7] = b.w;
    } else {
      float part[8];
      load_bf16x8((const uint16_t*)p.x + element + i, part);
#pragma unroll
      for (int j = 0; j < 8; ++j) v[i + j] = part[j];
    }
  }
}

FL_DEVICE uint32_t largest_bits(const float (&v)[16]) {
  uint32_t amax = 0;
#pragma unroll
  for (int i = 0; i < 16; ++i) amax = max(amax, magnitude_bits(v[i]));
  return amax;
}

// The e4m3 scale of 16 values, of which `amax` is the largest; `scale` is what they are divided by.
FL_DEVICE uint8_t nvfp4_scale(uint32_t amax, float scale2, float& scale) {
  float largest = bits_float(amax);
  float wanted = largest == 0.0f ? 1.0f : largest / (6.0f * scale2);
  if (wanted < 0.001953125f) wanted = 0.001953125f;
  if (wanted > 448.0f) wanted = 448.0f;
  uint8_t code = float_to_e4m3(wanted);
  scale = e4m3_to_float(code) * scale2;
  return code;
}

// True where neither a quotient of values up to `amax` nor what is left of one overflows or loses bits that matter.
FL_DEVICE bool divides_plainly(uint32_t amax, float scale) {
  constexpr uint32_t kLow = (127u - 60) << 23, kHigh = (127u + 60) << 23;
  return amax < kHigh && float_bits(scale) > kLow && float_bits(scale) < kHigh;
}

FL_DEVICE float quotient(float a, float b, float reciprocal) {
  float q = a * reciprocal;
  q = fmaf(fmaf(-b, q, a), reciprocal, q);
  return fmaf(fmaf(-b, q, a), reciprocal, q);
}

template <class Code>
FL_DEVICE uint2 encode(const float (&v)[16], Code code) {
  uint32_t words[2] = {};
#pragma unroll
  for (int i = 0; i < 16; ++i) words[i / 8] |= (uint32_t)code(v[i]) << (4 * (i % 8));
  return uint2{words[0], words[1]};
}

// A block of NVFP4, or half a block of MXFP4: its scale and codes.
FL_DEVICE void quantize(const Fp4QuantizeParams& p, int64_t element) {
  float v[16];
  load_values(p, element, v);
  uint32_t amax = largest_bits(v);
  uint2& codes = *(uint2*)(p.codes + element / 2);
  if (p.mxfp4) {
    float other[16];
    load_values(p, element ^ 16, other);
    uint8_t scale = e2m1_tile_scale(max(amax, largest_bits(other)));
    float inverse = ue8m0_reciprocal(scale);
    if (element % 32 == 0) p.scales[element / 32] = scale;
    codes = encode(v, [&](float x) { return float_to_e2m1(x * inverse); });
    return;
  }
  float scale;
  p.scales[element / 16] = nvfp4_scale(amax, p.scale2, scale);
  if (divides_plainly(amax, scale)) {
    float reciprocal = 1.0f / scale;
    codes = encode(v, [&](float x) { return float_to_e2m1(quotient(x, scale, reciprocal)); });
  } else {
    codes = encode(v, [&](float x) { return float_to_e2m1(x / scale); });
  }
}

}  // namespace

FL_KERNEL(kThreads, nvfp4_to_bf16, Fp4DequantizeParams) {
  pdl_wait();
#pragma unroll
  for (int i = 0; i < kElements; i += 8 * kThreads) {
    int64_t at = (int64_t)blockIdx.x * kElements + i + 8 * threadIdx.x;
    if (at >= p.elements) return;
    float v[8];
    decode_word(((const uint32_t*)p.codes)[at / 8], scale_at(p, at), p.scale2, v);
    uint4 out = {bf16_pair(v[0], v[1]), bf16_pair(v[2], v[3]), bf16_pair(v[4], v[5]), bf16_pair(v[6], v[7])};
    *(uint4*)((uint16_t*)p.out + at) = out;
  }
}

FL_KERNEL(kThreads, nvfp4_to_e4m3, Fp4DequantizeParams) {
  pdl_wait();
#pragma unroll
  for (int i = 0; i < kElements; i += 16 * kThreads) {
    int64_t at = (int64_t)blockIdx.x * kElements + i + 16 * threadIdx.x;
    if (at >= p.elements) return;
    uint2 codes = ((const uint2*)p.codes)[at / 16];
    float scale = scale_at(p, at), v[2][8];
    decode_word(codes.x, scale, p.scale2, v[0]);
    decode_word(codes.y, scale, p.scale2, v[1]);
    uint32_t words[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float* four = v[j / 2] + 4 * (j % 2);
      words[j] = e4m3_pair(four[0] * p.out_scale, four[1] * p.out_scale) |
                 e4m3_pair(four[2] * p.out_scale, four[3] * p.out_scale) << 16;
    }
    *(uint4*)((uint8_t*)p.out + at) = uint4{words[0], words[1], words[2], words[3]};
  }
}

FL_KERNEL(kThreads, nvfp4_quantize, Fp4QuantizeParams) {
  pdl_wait();
#pragma unroll 1
  for (int i = 0; i < kElements; i += 16 * kThreads) {
    int64_t at = (int64_t)blockIdx.x * kElements + i + 16 * threadIdx.x;
    if (at < p.elements) quantize(p, at);
  }
}
