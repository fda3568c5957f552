// linear: activation rows times a weight in bf16, fp8 blocks, NVFP4 or MXFP4; f32 sums; grouped, or with SwiGLU.
//
// Bytes: the weight once (2, 1.0002, 0.5625 or 0.53 bytes an element), and each block's activation rows from cache.
// Notes: (1) K is cut into 8 segments of every eighth step of 128 bytes, each summed from zero by one warp and added in
// order: one canonical sum, whatever the number of rows; (2) one matrix instruction serves every row count: a block of
// `linear_8` owns 16 weight rows for 8 rows, one of `linear_32` 32 for 32; in `linear_64` a cluster of 8 owns 128 for 64 and
// shares out the segments, so that a block reads an eighth of the activations; (3) weights stream through a ring of stages
// (common/stream.h), of which the first are on their way before the wait for the kernel before: weights never change; (4)
// with SwiGLU a tile is 8 gate rows and their 8 up rows, so both sums of an output meet in one thread; (5) prefill at 256
// rows reads activations often from cache: wgmma with both operands in shared memory is the next step there.
#include "linear.h"

#include "common/cluster.h"
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

// The tiles of weight rows and of activation rows of a block, the blocks of a cluster, and the stages of the ring. A block alone
// has all 8 segments of K, one a warp, each with all tiles; in a cluster of 8 a block has one segment, and a warp a tile.
template <int kHighTiles, int kRowTiles, int kClusterBlocks, int kRingStages>
struct Shape {
  static constexpr bool kAlone = kClusterBlocks == 1;
  static constexpr int kTiles = kRowTiles, kBlocks = kClusterBlocks, kStages = kRingStages, kBlockTiles = kHighTiles;
  static constexpr int kHigh = kAlone ? kHighTiles : 1, kSegments = kAlone ? kWarps : 1;
  using Slab = Stage<kBlockTiles, kSegments>;
  static constexpr int kTileSums = kTiles * kTileCols * kTilePitch;
  static_assert(kAlone || (kBlocks == kWarps && kBlockTiles == kWarps), "a block a segment, a warp a tile");
  static_assert(kSegments * kBlockTiles * kTileSums * 4 <= kStages * Slab::kBytes, "the sums fit the ring");
};

// A warp's segment of the sums of its tiles. Waits for the kernel before once the first weights are on their way.
template <int kFormat, class S>
FL_DEVICE void multiply_rows(float (&acc)[S::kHigh][S::kTiles][4], const LinearParams& p, const RowMap& map, int rank,
                             unsigned char* ring) {
  using Slab = typename S::Slab;
  int steps = Step<kFormat>::count(p.depth), g = lane_idx() / 4, first_row = blockIdx.y * S::kTiles * kTileCols;
  int segment = S::kAlone ? warp_idx() : rank, tile = S::kAlone ? 0 : warp_idx(), ahead = S::kAlone ? 0 : rank;
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
    int step = first + segment, in_stage = S::kAlone ? segment : 0;
    StepActivations<kFormat> b;
    if (S::kTiles == 1) b.load(step < steps ? x(0) : nullptr, step, p.depth);
    copies_wait<S::kStages - 2>();
    __syncthreads();
    fetch(into);
    const unsigned char* stage = ring + slot * Slab::kBytes;
    if (step < steps) {
      if constexpr (S::kTiles == 1) {
        multiply_tile(acc[0][0], TileStep<kFormat, Slab>(stage, 0, in_stage), b);
      } else {
        multiply_tiles<kFormat, Slab, S::kHigh, S::kTiles>(acc, stage, tile, in_stage, x, step, p.depth);
      }
    }
    into = slot, slot = slot + 1 == S::kStages ? 0 : slot + 1;
  }
}

// The output columns of a cluster: the sums of the segments in order, from the blocks that have them.
template <class S>
FL_DEVICE void store_sums(const LinearParams& p, const RowMap& map, const float* partial, int rank) {
  int first_row = blockIdx.y * S::kTiles * kTileCols, per_tile = map.width / S::kBlockTiles;
  float global = tile_scale(p.weight, 0);
  auto sum = [=](int tile, int column, int r) {
    float total = 0.0f;
#pragma unroll
    for (int k = 0; k < kWarps; ++k) {
      const float* from = partial + (k % S::kSegments * S::kBlockTiles + tile) * S::kTileSums + column * kTilePitch + r;
      total += S::kAlone ? *from : *cluster_peer(from, k / S::kSegments);
    }
    return total * global;
  };
  for (int i = rank * kThreads + threadIdx.x; i < S::kTiles * kTileCols * map.width; i += S::kBlocks * kThreads) {
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
  int rank = S::kAlone ? 0 : cluster_rank(), warp = warp_idx();
  RowMap map(p, blockIdx.x / S::kBlocks, S::kBlockTiles);
  float acc[S::kHigh][S::kTiles][4] = {};
  switch (p.weight.format) {
    case kWeightBf16: multiply_rows<kWeightBf16, S>(acc, p, map, rank, ring); break;
    case kWeightFp8Block: multiply_rows<kWeightFp8Block, S>(acc, p, map, rank, ring); break;
    case kWeightNvfp4: multiply_rows<kWeightNvfp4, S>(acc, p, map, rank, ring); break;
    default: multiply_rows<kWeightMxfp4, S>(acc, p, map, rank, ring); break;
  }
  // The partial sums lie where the ring was, [segment][tile][column][row].
  float* partial = (float*)ring;
  copies_wait<0>();
  __syncthreads();
#pragma unroll
  for (int m = 0; m < S::kHigh; ++m) {
    int at = S::kAlone ? warp * S::kBlockTiles + m : warp;
    tile_spill<S::kTiles>(acc[m], partial + at * S::kTileSums);
  }
  if constexpr (S::kAlone) {
    __syncthreads();
    store_sums<S>(p, map, partial, rank);
  } else {
    cluster_sync();
    store_sums<S>(p, map, partial, rank);
    cluster_sync();
  }
}

}  // namespace

// Dynamic shared memory: the ring.
FL_KERNEL_BLOCKS(kThreads, 2, linear_8, LinearParams) {
  FL_DYNAMIC_SHARED(ring);
  linear_body<Shape<1, 1, 1, 4>>(p, ring);
}

FL_KERNEL(kThreads, linear_32, LinearParams) {
  FL_DYNAMIC_SHARED(ring);
  linear_body<Shape<2, 4, 1, 2>>(p, ring);
}

FL_KERNEL_CLUSTER(kThreads, 1, 8, linear_64, LinearParams) {
  FL_DYNAMIC_SHARED(ring);
  linear_body<Shape<8, 8, 8, 3>>(p, ring);
}
