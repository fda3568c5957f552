// fill: random weights of a model that no file holds, made where they are used. An element depends on the seed and its index.
//
// Bytes: what it writes.
#include "fill.h"

#include "common/convert.h"
#include "common/pdl.h"

namespace {

// Splitmix64 of a counter.
FL_DEVICE uint64_t bits_at(uint64_t seed, int64_t index) {
  uint64_t z = seed + ((uint64_t)index + 1) * 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

FL_DEVICE float uniform(uint64_t bits) { return ((float)(bits >> 40) + 0.5f) * 0x1p-23f - 1.0f; }

FL_DEVICE uint8_t byte_of(const FillParams& p, uint64_t bits) {
  if (p.kind == kFillByte) return (uint8_t)p.byte;
  if (p.kind == kFillBytes) return (uint8_t)bits;
  return (uint8_t)((bits & 0x80) | (0x28 + (bits >> 8 & 0x1f)));
}

}  // namespace

FL_KERNEL(256, fill, FillParams) {
  pdl_wait();
  int64_t stride = (int64_t)gridDim.x * 256;
  for (int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x; i < p.count; i += stride) {
    uint64_t bits = bits_at(p.seed, i);
    float value = p.mean + p.scale * uniform(bits);
    if (p.kind == kFillF32) {
      ((float*)p.out)[i] = value;
    } else if (p.kind == kFillBf16) {
      ((uint16_t*)p.out)[i] = float_to_bf16(value);
    } else {
      ((uint8_t*)p.out)[i] = byte_of(p, bits);
    }
  }
}
