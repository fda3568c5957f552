// The stored row of a key/value pool (512 dims): `fp8` = 448 e4m3 and 64 bf16, with 7 scale bytes and a zero beside;
// `bf16` = 512 bf16. Pages of P rows: fp8 [P x 576][P x 8] padded to a multiple of 576.
#pragma once

#include "convert.h"
#include "kernel.h"
#include "reduce.h"

enum KvRowFormat { kKvFp8 = 0, kKvBf16 = 1 };

constexpr int kKvData = kNopeDim + 2 * kRopeDim;
constexpr int kKvScales = 8;
constexpr int kKvTile = 64;

FL_DEVICE int64_t kv_page_bytes(int format, int page_rows) {
  if (format == kKvBf16) return (int64_t)page_rows * 2 * kHeadDim;
  int64_t bytes = (int64_t)page_rows * (kKvData + kKvScales);
  return (bytes + kKvData - 1) / kKvData * kKvData;
}

// Where a slot lies, in 32-bit divisions where it allows them.
struct KvPlace {
  int64_t page;
  int row;

  FL_DEVICE KvPlace(int64_t slot, int page_rows) {
    if ((uint64_t)slot >> 32 == 0) {
      page = (uint32_t)slot / (uint32_t)page_rows;
    } else {
      page = slot / page_rows;
    }
    row = (int)(slot - page * page_rows);
  }
};

// A slot (page * page_rows + row) that lies within the pool.
FL_DEVICE bool slot_valid(int64_t slot, int pages, int page_rows) {
  return slot >= 0 && slot < (int64_t)pages * page_rows;
}

// Rounds 16 dims of this lane to what an fp8 row holds, and gives the scale of its tile.
FL_DEVICE uint8_t kv_tile_scale(const float (&v)[16]) {
  uint32_t amax = 0;
#pragma unroll
  for (int i = 0; i < 16; ++i) amax = max(amax, magnitude_bits(v[i]));
  return e4m3_tile_scale(group_max(amax, kKvTile / 16));
}

// A warp stores one row, 16 neighbouring dims a lane. `trained` rounds to fp8 first, in every format; a tile whose maximum
// was rounded down to a power of two then gets the smaller scale, as on the Rust side.
FL_DEVICE void kv_store(float (&v)[16], uint8_t* pool, int64_t slot, int page_rows, int format, bool trained) {
  int lane = lane_idx(), first = lane * 16;
  KvPlace place(slot, page_rows);
  uint8_t* page = pool + place.page * kv_page_bytes(format, page_rows);
  int row = place.row;
  bool rotated = first >= kNopeDim;

  uint8_t scale = kv_tile_scale(v);
  if (trained && !rotated) {
    float inverse = ue8m0_reciprocal(scale), value = ue8m0_to_float(scale);
#pragma unroll
    for (int i = 0; i < 16; i += 2) {
      uint32_t pair = e4m3_pair(v[i] * inverse, v[i + 1] * inverse);
      v[i] = e4m3_to_float((uint8_t)pair) * value, v[i + 1] = e4m3_to_float((uint8_t)(pair >> 8)) * value;
    }
  }
  scale = kv_tile_scale(v);

  if (format == kKvBf16 || rotated) {
    uint16_t* out = format == kKvBf16 ? (uint16_t*)page + (int64_t)row * kHeadDim + first
                                      : (uint16_t*)(page + (int64_t)row * kKvData + kNopeDim) + (first - kNopeDim);
    uint32_t words[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) words[i] = bf16_pair(v[2 * i], v[2 * i + 1]);
    *(uint4*)out = uint4{words[0], words[1], words[2], words[3]};
    *(uint4*)(out + 8) = uint4{words[4], words[5], words[6], words[7]};
  } else {
    float inverse = ue8m0_reciprocal(scale);
    uint32_t words[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 16; i += 2) words[i / 4] |= e4m3_pair(v[i] * inverse, v[i + 1] * inverse) << (8 * (i % 4));
    *(uint4*)(page + (int64_t)row * kKvData + first) = uint4{words[0], words[1], words[2], words[3]};
  }
  uint8_t* scales = page + (int64_t)page_rows * kKvData + row * kKvScales;
  if (format == kKvFp8 && lane % 4 == 0) scales[lane / 4] = rotated ? 0 : scale;
}
