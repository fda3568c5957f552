// linear: activation rows times a weight in bf16, fp8 blocks, NVFP4 or MXFP4; f32 sums; grouped, or with SwiGLU.
//
// Bytes: the weight once (2, 1.0002, 0.5625 or 0.53 bytes an element), and each block's activation rows from cache.
// Measured on an H200 with cold caches, 4096 x 4096 and 1 row: 13.1 us in bf16 (58 % of what the bytes allow), 10.2 in fp8 (37 %),
// 8.8 in NVFP4 (24 %), of which a launch is 2.
// Notes: (1) K is cut into 8 segments of every eighth step of 128 bytes, each summed from zero by one warp and added in
// order: one canonical sum, whatever the number of rows; (2) one matrix instruction serves every row count: a block of
// `linear_8` owns 16 weight rows for 8 rows, one of `linear_32` 32 for 32; (3) weights stream through a ring of stages
// (common/stream.h), of which the first are on their way before the wait for the kernel before: weights never change; (4)
// with SwiGLU a tile is 8 gate rows and their 8 up rows, so both sums of an output meet in one thread; (5) from 32 rows on
// activations are read often from cache: wgmma with both operands in shared memory is the next step there.
#include "linear.h"

#include "common/pdl.h"
#include "common/tile.h"

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
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

// The tiles of weight rows and of activation rows of a block, and the stages of its ring. Each warp has a segment of K.
template <int kHighTiles, int kRowTiles, int kRingStages>
struct Shape {
  static constexpr int kHigh = kHighTiles, kTiles = kRowTiles, kStages = kRingStages;
  using Slab = Stage<kHigh, kWarps>;
  static constexpr int kTileSums = kTiles * kTileCols * kTilePitch;
  static_assert(kWarps * kHigh * kTileSums * 4 <= kStages * Slab::kBytes, "the sums fit the ring");
};

// A warp's segment of the sums of its tiles. Waits for the kernel before once the first weights are on their way.
template <int kFormat, class S>
FL_DEVICE void multiply_rows(float (&acc)[S::kHigh][S::kTiles][4], const LinearParams& p, const RowMap& map,
                             unsigned char* ring) {
  using Slab = typename S::Slab;
  int steps = Step<kFormat>::count(p.depth), g = lane_idx() / 4, first_row = blockIdx.y * S::kTiles * kTileCols;
  int segment = warp_idx(), ahead = 0;
  auto fetch = [&](int slot) {
    auto row = [&](int r) { return map.weight_row(r / kTileRows, r % kTileRows); };
    unsigned char* stage = ring + slot * Slab::kBytes;
    if (ahead < steps) stage_fetch<kFormat, Slab, kThreads>(stage, p.weight, 0, p.weight_rows, p.depth, ahead, row);
    copies_commit();
    ahead += kWarps;
  };
#pragma unroll 1
  for (int i = 0; i < S::kStages - 1; ++i) fetch(i);
  pdl_wait();
  auto x = [&](int n) -> const uint16_t* {
    int row = first_row + n * kTileCols + g;
    return row < p.rows ? p.x + ((int64_t)row * p.groups + map.group) * p.depth : nullptr;
  };
  int slot = 0, into = S::kStages - 1;
#pragma unroll 1
  for (int first = 0; first < steps; first += kWarps) {
    int step = first + segment;
    StepActivations<kFormat> b;
    if (S::kTiles == 1) b.load(step < steps ? x(0) : nullptr, step, p.depth);
    copies_wait<S::kStages - 2>();
    __syncthreads();
    fetch(into);
    const unsigned char* stage = ring + slot * Slab::kBytes;
    if (step < steps) {
      if constexpr (S::kTiles == 1) {
        multiply_tile<kFormat>(acc[0][0], TileStep<kFormat, Slab>(stage, 0, segment), b);
      } else {
        multiply_tiles<kFormat, Slab, S::kHigh, S::kTiles>(acc, stage, 0, segment, x, step, p.depth);
      }
    }
    into = slot, slot = slot + 1 == S::kStages ? 0 : slot + 1;
  }
}

// The output columns of a block: the sums of the segments in order.
template <class S>
FL_DEVICE void store_sums(const LinearParams& p, const RowMap& map, const float* partial) {
  int first_row = blockIdx.y * S::kTiles * kTileCols, per_tile = map.width / S::kHigh;
  float global = tile_scale(p.weight, 0);
  auto sum = [=](int tile, int column, int r) {
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total += partial[(w * S::kHigh + tile) * S::kTileSums + column * kTilePitch + r];
    return total * global;
  };
  for (int i = threadIdx.x; i < S::kTiles * kTileCols * map.width; i += kThreads) {
    int within = i % map.width, column = i / map.width, row = first_row + column;
    if (within >= map.count || row >= p.rows) continue;
    int tile = within / per_tile, r = within % per_tile;
    float value = sum(tile, column, r);
    if (map.swiglu) value = swiglu(value, sum(tile, column, r + 8), p.limit);
    store(p, row, map.columns, map.base + within, value);
  }
}

template <class S>
FL_DEVICE void linear_body(const LinearParams& p, unsigned char* ring) {
  RowMap map(p, blockIdx.x, S::kHigh);
  float acc[S::kHigh][S::kTiles][4] = {};
  switch (p.weight.format) {
    case kWeightBf16: multiply_rows<kWeightBf16, S>(acc, p, map, ring); break;
    case kWeightFp8Block: multiply_rows<kWeightFp8Block, S>(acc, p, map, ring); break;
    case kWeightNvfp4: multiply_rows<kWeightNvfp4, S>(acc, p, map, ring); break;
    default: multiply_rows<kWeightMxfp4, S>(acc, p, map, ring); break;
  }
  // The partial sums lie where the ring was, [segment][tile][column][row].
  float* partial = (float*)ring;
  copies_wait<0>();
  __syncthreads();
#pragma unroll
  for (int m = 0; m < S::kHigh; ++m) tile_spill<S::kTiles>(acc[m], partial + (warp_idx() * S::kHigh + m) * S::kTileSums);
  __syncthreads();
  store_sums<S>(p, map, partial);
}

}  // namespace

// Dynamic shared memory: the ring.
FL_KERNEL_BLOCKS(kThreads, 2, linear_8, LinearParams) {
  FL_DYNAMIC_SHARED(ring);
  linear_body<Shape<1, 1, 4>>(p, ring);
}

FL_KERNEL(kThreads, linear_32, LinearParams) {
  FL_DYNAMIC_SHARED(ring);
  linear_body<Shape<2, 4, 2>>(p, ring);
}
