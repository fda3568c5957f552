// nvfp4: NVFP4 and MXFP4 weights to bf16 or e4m3, and back from bf16 or f32; bit for bit as the Rust side defines them.
//
// Bytes an element: 0.5625 (0.53125 for MXFP4) read and 2 or 1 written; quantising 2 or 4 read, 0.5625 written.
// Notes: (1) a thread owns 32 neighbours (two NVFP4 blocks or one of MXFP4): one 16-byte load of codes, four 16-byte stores
// of bf16; (2) value = (e2m1 * e4m3) * scale2 in f32, the first product exact, one rounding; (3) quantising divides, as the
// definition does, so that ties fall the same way.
#include "nvfp4.h"

#include "common/kernel.h"
#include "common/pdl.h"
#include "common/rows.h"

constexpr int kThreads = 256;
constexpr int kUnit = 32;

namespace {

// The 32 values of a unit.
FL_DEVICE void decode_unit(const Fp4DequantizeParams& p, int64_t unit, float (&v)[kUnit]) {
  uint4 codes = ((const uint4*)p.codes)[unit];
  uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
  float scale[2];
  if (p.mxfp4) {
    scale[0] = scale[1] = ue8m0_to_float(p.scales[unit]);
  } else {
    scale[0] = e4m3_to_float(p.scales[2 * unit]);
    scale[1] = e4m3_to_float(p.scales[2 * unit + 1]);
  }
#pragma unroll
  for (int i = 0; i < kUnit; ++i) {
    v[i] = e2m1_to_float(words[i / 8] >> (4 * (i % 8)) & 15) * scale[i / 16];
    if (!p.mxfp4) v[i] *= p.scale2;
  }
}

FL_DEVICE uint32_t largest_bits(const float* v, int count) {
  uint32_t amax = 0;
  for (int i = 0; i < count; ++i) amax = max(amax, magnitude_bits(v[i]));
  return amax;
}

// The e4m3 scale of 16 values; `scale` is what they are divided by.
FL_DEVICE uint8_t nvfp4_scale(const float* v, float scale2, float& scale) {
  float largest = bits_float(largest_bits(v, 16));
  float wanted = largest == 0.0f ? 1.0f : largest / (6.0f * scale2);
  if (wanted < 0.001953125f) wanted = 0.001953125f;
  if (wanted > 448.0f) wanted = 448.0f;
  uint8_t code = float_to_e4m3(wanted);
  scale = e4m3_to_float(code) * scale2;
  return code;
}

}  // namespace

FL_KERNEL(kThreads, nvfp4_to_bf16, Fp4DequantizeParams) {
  pdl_wait();
  int64_t unit = (int64_t)blockIdx.x * kThreads + threadIdx.x;
  if (unit >= p.elements / kUnit) return;
  float v[kUnit];
  decode_unit(p, unit, v);
  uint16_t* out = (uint16_t*)p.out + unit * kUnit;
#pragma unroll
  for (int i = 0; i < kUnit; i += 8) {
    float part[8] = {v[i], v[i + 1], v[i + 2], v[i + 3], v[i + 4], v[i + 5], v[i + 6], v[i + 7]};
    store_bf16x8(out + i, part);
  }
}

FL_KERNEL(kThreads, nvfp4_to_e4m3, Fp4DequantizeParams) {
  pdl_wait();
  int64_t unit = (int64_t)blockIdx.x * kThreads + threadIdx.x;
  if (unit >= p.elements / kUnit) return;
  float v[kUnit];
  decode_unit(p, unit, v);
  uint32_t words[kUnit / 4] = {};
#pragma unroll
  for (int i = 0; i < kUnit; ++i) words[i / 4] |= (uint32_t)float_to_e4m3(v[i] * p.out_scale) << (8 * (i % 4));
  uint4* out = (uint4*)((uint8_t*)p.out + unit * kUnit);
  out[0] = uint4{words[0], words[1], words[2], words[3]};
  out[1] = uint4{words[4], words[5], words[6], words[7]};
}

FL_KERNEL(kThreads, nvfp4_quantize, Fp4QuantizeParams) {
  pdl_wait();
  int64_t unit = (int64_t)blockIdx.x * kThreads + threadIdx.x;
  if (unit >= p.elements / kUnit) return;
  float v[kUnit];
#pragma unroll
  for (int i = 0; i < kUnit; ++i) {
    int64_t at = unit * kUnit + i;
    v[i] = p.is_f32 ? ((const float*)p.x)[at] : bf16_to_float(((const uint16_t*)p.x)[at]);
  }
  uint32_t words[4] = {};
  if (p.mxfp4) {
    uint8_t scale = e2m1_tile_scale(largest_bits(v, kUnit));
    float inverse = ue8m0_reciprocal(scale);
    p.scales[unit] = scale;
#pragma unroll
    for (int i = 0; i < kUnit; ++i) words[i / 8] |= (uint32_t)float_to_e2m1(v[i] * inverse) << (4 * (i % 8));
  } else {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float scale;
      p.scales[2 * unit + half] = nvfp4_scale(v + 16 * half, p.scale2, scale);
#pragma unroll
      for (int i = 16 * half; i < 16 * half + 16; ++i) {
        words[i / 8] |= (uint32_t)float_to_e2m1(v[i] / scale) << (4 * (i % 8));
      }
    }
  }
  ((uint4*)p.codes)[unit] = uint4{words[0], words[1], words[2], words[3]};
}
