// linear: activation rows times a weight in bf16, fp8 blocks, NVFP4 or MXFP4; f32 sums; grouped, or with SwiGLU.
//
// Bytes: the weight once (2, 1.0002, 0.5625 or 0.53 bytes an element), and each block's activation rows from cache.
// Notes: (1) a block owns 16 weight rows and its 8 warps share out K in chunks of 128, each accumulating from zero; the
// partial sums are added in warp order: one canonical sum, whatever the number of rows; (2) one matrix instruction serves
// every row count: `linear_8` for up to 8 rows, `linear_32` reuses a loaded weight for 32; (3) weights go from memory to
// fragment registers, without a stop in shared memory; (4) with SwiGLU a tile is 8 gate rows and their 8 up rows, so both
// sums of an output meet in one thread; (5) prefill at 256 rows reads activations often from cache: wgmma with both operands
// in shared memory is the next step there.
#include "linear.h"

#include "common/pdl.h"
#include "common/tile.h"

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;

namespace {

// Weight row of tile row `r`: tiles do not cross groups; rows past the end repeat the last one and are not stored.
struct RowMap {
  int group, base, count;  // Output columns base .. base + count - 1.
  bool swiglu;
  int columns;

  FL_DEVICE RowMap(const LinearParams& p, int tile) : swiglu(p.swiglu != 0) {
    columns = swiglu ? p.weight_rows / 2 : p.weight_rows;
    int per_group = columns / p.groups, width = swiglu ? kTileRows / 2 : kTileRows;
    int tiles = (per_group + width - 1) / width;
    group = tile / tiles;
    base = group * per_group + tile % tiles * width;
    count = min(width, (group + 1) * per_group - base);
  }

  FL_DEVICE int weight_row(int r) const {
    int within = swiglu ? r % 8 : r;
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

template <int kTiles>
FL_DEVICE void linear_body(const LinearParams& p, float* partial) {
  int g = lane_idx() / 4;
  RowMap map(p, blockIdx.x);
  int first_row = blockIdx.y * kTiles * kTileCols;
  const uint16_t* x[kTiles];
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    int row = first_row + n * kTileCols + g;
    x[n] = row < p.rows ? p.x + ((int64_t)row * p.groups + map.group) * p.depth : nullptr;
  }
  TileRows rows = tile_rows(p.weight, 0, p.weight_rows, p.depth, map.weight_row(g), map.weight_row(g + 8));
  float acc[kTiles][4] = {};
  tile_product_any<kTiles, kTiles == 1 ? 2 : 1>(acc, p.weight.format, rows, x, p.depth, warp_idx(), kWarps);

  constexpr int kSums = kTiles * kTileCols * kTilePitch;
  tile_spill<kTiles>(acc, partial + warp_idx() * kSums);
  __syncthreads();
  float global = p.weight.format == kWeightNvfp4 ? p.weight.global[0] : 1.0f;
  auto sum = [=](int column, int r) {
    float total = 0.0f;
    for (int w = 0; w < kWarps; ++w) total += partial[w * kSums + column * kTilePitch + r];
    return total * global;
  };
  int width = map.swiglu ? kTileRows / 2 : kTileRows;
  for (int i = threadIdx.x; i < kTiles * kTileCols * width; i += kThreads) {
    int r = i % width, column = i / width, row = first_row + column;
    if (r >= map.count || row >= p.rows) continue;
    float value = sum(column, r);
    if (map.swiglu) value = swiglu(value, sum(column, r + 8), p.limit);
    store(p, row, map.columns, map.base + r, value);
  }
}

}  // namespace

FL_KERNEL_BLOCKS(kThreads, 2, linear_8, LinearParams) {
  __shared__ float partial[kWarps * kTileCols * kTilePitch];
  pdl_wait();
  linear_body<1>(p, partial);
}

FL_KERNEL(kThreads, linear_32, LinearParams) {
  __shared__ float partial[kWarps * 4 * kTileCols * kTilePitch];
  pdl_wait();
  linear_body<4>(p, partial);
}
