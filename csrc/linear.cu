// linear: activation rows times a weight in bf16, fp8 blocks, NVFP4 or MXFP4; f32 sums; grouped, or with SwiGLU.
//
// Bytes: the weight once (2, 1.0002, 0.5625 or 0.53 bytes an element), and each block's activation rows from cache.
// Notes: (1) a block owns 16 or 32 weight rows and its 8 warps share out K in steps of 128 bytes, each accumulating from zero; the
// partial sums are added in warp order: one canonical sum, whatever the number of rows; (2) one matrix instruction serves
// every row count: `linear_8` for up to 8 rows, `linear_32` with 32 weight rows a block for up to 32 at a time; (3) weights stream through a ring a
// warp (common/stream.h), whose first stages are on their way before the wait for the kernel before: weights never change;
// (4) with SwiGLU a tile is 8 gate rows and their 8 up rows, so both sums of an output meet in one thread; (5) prefill at
// 256 rows reads activations often from cache: wgmma with both operands in shared memory is the next step there.
#include "linear.h"

#include "common/pdl.h"
#include "common/tile.h"

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
#ifndef FL_LINEAR_STAGES
#define FL_LINEAR_STAGES 4
#endif
constexpr int kStages = FL_LINEAR_STAGES;

namespace {

// The weight rows of a block, in `high` tiles of 16; they do not cross groups, and past the end the last one is repeated and
// not stored.
struct RowMap {
  int group, base, count, width;  // Output columns base .. base + count - 1, of `width` that a block has.
  bool swiglu;
  int columns;

  FL_DEVICE RowMap(const LinearParams& p, int block, int high) : swiglu(p.swiglu != 0) {
    columns = swiglu ? p.weight_rows / 2 : p.weight_rows;
    width = high * (swiglu ? kTileRows / 2 : kTileRows);
    int per_group = columns / p.groups, blocks = (per_group + width - 1) / width;
    group = block / blocks;
    base = group * per_group + block % blocks * width;
    count = min(width, (group + 1) * per_group - base);
  }

  FL_DEVICE int weight_row(int tile, int r) const {
    int within = swiglu ? tile * 8 + r % 8 : tile * kTileRows + r;
    int column = base + min(within, count - 1);
    return swiglu && r >= 8 ? columns + column : column;
  }
};

FL_DEVICE void store(const LinearParams& p, int64_t row, int columns, int column, float value) {
  int64_t at = row * columns + column;
  if (p.out_f32) {
    ((float*)p.out)[at] = value;
  } else {
    ((uint16_t*)p.out)[at] = float_to_bf16(value);
  }
}

// A warp's share of the sums of its block's tiles. Waits for the kernel before once its first weights are on their way.
template <int kFormat, int kHigh, int kTiles>
FL_DEVICE void multiply_rows(float (&acc)[kHigh][kTiles][4], const LinearParams& p, const RowMap& map, unsigned char* ring) {
  constexpr int kSlots = kStages / kHigh, kSlotBytes = kHigh * kStageBytes;
  int steps = Step<kFormat>::count(p.depth), g = lane_idx() / 4, first_row = blockIdx.y * kTiles * kTileCols;
  TileRows rows[kHigh];
#pragma unroll
  for (int m = 0; m < kHigh; ++m) {
    rows[m] = tile_rows<kFormat>(p.weight, 0, p.weight_rows, p.depth, [&](int r) { return map.weight_row(m, r); });
  }
  ring += warp_idx() * kSlots * kSlotBytes;
  int ahead = warp_idx();
  auto fetch = [&](int slot) {
    if (ahead < steps) {
#pragma unroll
      for (int m = 0; m < kHigh; ++m) {
        stage_fetch<kFormat>(ring + slot * kSlotBytes + m * kStageBytes, rows[m], ahead, p.depth);
      }
    }
    copies_commit();
    ahead += kWarps;
  };
#pragma unroll
  for (int i = 0; i < kSlots - 1; ++i) fetch(i);
  pdl_wait();
  const uint16_t* x[kTiles];
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    int row = first_row + n * kTileCols + g;
    x[n] = row < p.rows ? p.x + ((int64_t)row * p.groups + map.group) * p.depth : nullptr;
  }
  int slot = 0, into = kSlots - 1;
#pragma unroll 1
  for (int step = warp_idx(); step < steps; step += kWarps) {
    copies_wait<kSlots - 2>();
    __syncwarp();
    fetch(into);
    multiply_stages<kFormat, kHigh, kTiles>(acc, ring + slot * kSlotBytes, x, step, p.depth);
    into = slot, slot = slot + 1 == kSlots ? 0 : slot + 1;
  }
}

template <int kHigh, int kTiles>
FL_DEVICE void linear_body(const LinearParams& p, unsigned char* ring) {
  RowMap map(p, blockIdx.x, kHigh);
  int first_row = blockIdx.y * kTiles * kTileCols;
  float acc[kHigh][kTiles][4] = {};
  switch (p.weight.format) {
    case kWeightBf16: multiply_rows<kWeightBf16>(acc, p, map, ring); break;
    case kWeightFp8Block: multiply_rows<kWeightFp8Block>(acc, p, map, ring); break;
    case kWeightNvfp4: multiply_rows<kWeightNvfp4>(acc, p, map, ring); break;
    default: multiply_rows<kWeightMxfp4>(acc, p, map, ring); break;
  }

  // The partial sums lie where the ring was, [warp][tile][column][row].
  constexpr int kTileSums = kTiles * kTileCols * kTilePitch;
  static_assert(kWarps * kHigh * kTileSums * 4 <= kWarps * kStages * kStageBytes, "the sums fit the ring");
  float* partial = (float*)ring;
  copies_wait<0>();
  __syncthreads();
#pragma unroll
  for (int m = 0; m < kHigh; ++m) tile_spill<kTiles>(acc[m], partial + (warp_idx() * kHigh + m) * kTileSums);
  __syncthreads();
  float global = tile_scale(p.weight, 0);
  auto sum = [=](int tile, int column, int r) {
    float total = 0.0f;
    for (int w = 0; w < kWarps; ++w) total += partial[(w * kHigh + tile) * kTileSums + column * kTilePitch + r];
    return total * global;
  };
  for (int i = threadIdx.x; i < kTiles * kTileCols * map.width; i += kThreads) {
    int within = i % map.width, column = i / map.width, row = first_row + column;
    if (within >= map.count || row >= p.rows) continue;
    int per_tile = map.width / kHigh, tile = within / per_tile, r = within % per_tile;
    float value = sum(tile, column, r);
    if (map.swiglu) value = swiglu(value, sum(tile, column, r + 8), p.limit);
    store(p, row, map.columns, map.base + within, value);
  }
}

}  // namespace

// Dynamic shared memory: the ring.
FL_KERNEL_BLOCKS(kThreads, 2, linear_8, LinearParams) {
  FL_DYNAMIC_SHARED(ring);
  linear_body<1, 1>(p, ring);
}

FL_KERNEL(kThreads, linear_32, LinearParams) {
  FL_DYNAMIC_SHARED(ring);
  linear_body<2, 4>(p, ring);
}
