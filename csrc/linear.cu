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

#include "common/cluster.h"
#include "common/pdl.h"
#include "common/wide.h"

constexpr int kFewThreads = kSegments * kWarp;
constexpr int kFewRows = kTileCols;
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

  FL_DEVICE int weight_row(int r) const {
    int within = swiglu ? r / kTileRows * 8 + r % 8 : r;
    int column = base + min(within, count - 1);
    return swiglu && r % kTileRows >= 8 ? columns + column : column;
  }

  // The row of the tile that makes an output column; with SwiGLU its gate, eight before its up.
  FL_DEVICE int tile_row(int within) const { return swiglu ? within / 8 * kTileRows + within % 8 : within; }
};

FL_DEVICE void store(const LinearParams& p, int64_t row, int columns, int column, float value) {
  int64_t at = row * columns + column;
  if (p.out_f32) {
    ((float*)p.out)[at] = value;
  } else {
    ((uint16_t*)p.out)[at] = float_to_bf16(value);
  }
}

// This block's activation row `row`, null past the end.
FL_DEVICE const uint16_t* activation_row(const LinearParams& p, const RowMap& map, int row) {
  return row < p.rows ? p.x + ((int64_t)row * p.groups + map.group) * p.depth : nullptr;
}

// Few rows: 16 weight rows by 8 rows, a segment a warp.
using FewStage = Stage<1, 2 * kSegments>;
constexpr int kFewStages = 4;
constexpr int kTileSums = kTileCols * kTilePitch;
static_assert(kSegments * kTileSums * 4 <= kFewStages * FewStage::kBytes, "the sums fit the ring");

// A warp's segment of the sums of its tile. Waits for the kernel before once the first weights are on their way.
template <int kFormat>
FL_DEVICE void multiply_few(float (&acc)[4], const LinearParams& p, const RowMap& map, unsigned char* ring) {
  int steps = Step<kFormat>::count(p.depth), segment = warp_idx(), ahead = 0;
  auto fetch = [&](int slot) {
    auto row = [&](int r) { return map.weight_row(r); };
    unsigned char* stage = ring + slot * FewStage::kBytes;
    if (ahead < steps) stage_fetch<kFormat, FewStage, kFewThreads>(stage, p.weight, 0, p.weight_rows, p.depth, ahead, row);
    copies_commit();
    ahead += FewStage::kWide;
  };
#pragma unroll 1
  for (int i = 0; i < kFewStages - 1; ++i) fetch(i);
  pdl_wait();
  const uint16_t* x = activation_row(p, map, blockIdx.y * kFewRows + lane_idx() / 4);
  int slot = 0, into = kFewStages - 1;
#pragma unroll 1
  for (int first = 0; first < steps; first += FewStage::kWide) {
    StepActivations<kFormat> b[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      int step = first + segment + i * kSegments;
      b[i].load(step < steps ? x : nullptr, step, p.depth);
    }
    copies_wait<kFewStages - 2>();
    __syncthreads();
    fetch(into);
    const unsigned char* stage = ring + slot * FewStage::kBytes;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      int in_stage = segment + i * kSegments;
      if (first + in_stage < steps) multiply_tile<kFormat>(acc, TileStep<kFormat, FewStage>(stage, 0, in_stage), b[i]);
    }
    into = slot, slot = slot + 1 == kFewStages ? 0 : slot + 1;
  }
}

// The output columns of a block: the sums of the segments in order.
FL_DEVICE void store_few(const LinearParams& p, const RowMap& map, const float* partial) {
  float global = tile_scale(p.weight, 0);
  auto sum = [=](int column, int r) {
    float total = partial[column * kTilePitch + r];
#pragma unroll
    for (int s = 1; s < kSegments; ++s) total += partial[s * kTileSums + column * kTilePitch + r];
    return total * global;
  };
  for (int i = threadIdx.x; i < kTileCols * map.width; i += kFewThreads) {
    int within = i % map.width, column = i / map.width, row = blockIdx.y * kFewRows + column;
    if (within >= map.count || row >= p.rows) continue;
    float value = sum(column, within);
    if (map.swiglu) value = swiglu(value, sum(column, within + 8), p.limit);
    store(p, row, map.columns, map.base + within, value);
  }
}

// Many rows: a segment a block of a cluster, which meet in shared memory; or all of them a block.
template <int kFormat, int kGroups, int kCols, int kBlocks>
FL_DEVICE void multiply_many(float (&sums)[kCols / 8][4], const LinearParams& p, const RowMap& map, unsigned char* shared) {
  constexpr bool kAll = kBlocks == 1;
  auto row = [&](int r) { return map.weight_row(r); };
  auto x = [&](int n) { return activation_row(p, map, blockIdx.y * kCols + n); };
  wide_multiply<kFormat, WideStage<kFormat, kGroups>, kCols, kGroups * kGroupThreads, kAll>(
      sums, p.weight, p.depth, kAll ? 0 : cluster_rank(), row, x, shared);
}

// Where a sum lies, [column][row], with a pitch that keeps the banks of a fragment apart.
template <int kGroups>
FL_DEVICE int sum_at(int column, int row) {
  return column * (kGroups * kGroupRows + 4) + row;
}

template <int kGroups, int kCols>
FL_DEVICE void spill_many(const float (&acc)[kCols / 8][4], float* sums) {
  int g = lane_idx() / 4, q = lane_idx() % 4, row = warp_idx() * kTileRows + g;
#pragma unroll
  for (int n = 0; n < kCols / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[sum_at<kGroups>(8 * n + 2 * q + i % 2, row + i / 2 * 8)] = acc[n][i];
  }
}

// Four neighbouring sums, those of the blocks added in order.
template <int kBlocks>
FL_DEVICE void fold_blocks(float (&sum)[4], const float* own) {
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    float4 part = *(const float4*)(kBlocks == 1 ? own : cluster_peer(own, b));
    if (b == 0) {
      sum[0] = part.x, sum[1] = part.y, sum[2] = part.z, sum[3] = part.w;
    } else {
      sum[0] += part.x, sum[1] += part.y, sum[2] += part.z, sum[3] += part.w;
    }
  }
}

// A block stores its share of the cluster's outputs, four neighbouring columns a thread.
template <int kGroups, int kCols, int kBlocks>
FL_DEVICE void store_many(const LinearParams& p, const RowMap& map, const float* sums) {
  float global = tile_scale(p.weight, 0);
  constexpr int kOwn = kCols / kBlocks;
  int fours = map.width / 4, first = kBlocks == 1 ? 0 : cluster_rank() * kOwn;
  for (int i = threadIdx.x; i < kOwn * fours; i += kGroups * kGroupThreads) {
    int within = i % fours * 4, column = first + i / fours, row = blockIdx.y * kCols + column;
    if (within >= map.count || row >= p.rows) continue;
    float value[4], up[4];
    const float* own = sums + sum_at<kGroups>(column, map.tile_row(within));
    fold_blocks<kBlocks>(value, own);
    if (map.swiglu) fold_blocks<kBlocks>(up, own + 8);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      value[n] *= global;
      if (map.swiglu) value[n] = swiglu(value[n], up[n] * global, p.limit);
    }
    int64_t at = (int64_t)row * map.columns + map.base + within;
    if (!p.out_f32 && within + 4 <= map.count && at % 4 == 0) {
      *(uint2*)((uint16_t*)p.out + at) = uint2{pack_bf16(value[0], value[1]), pack_bf16(value[2], value[3])};
      continue;
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      if (within + n < map.count) store(p, row, map.columns, map.base + within + n, value[n]);
    }
  }
}

template <int kGroups, int kCols, int kBlocks>
FL_DEVICE void many_body(const LinearParams& p, unsigned char* shared) {
  RowMap map(p, blockIdx.x / kBlocks, kGroups * kGroupRows / kTileRows);
  float sums[kCols / 8][4];
  switch (p.weight.format) {
    case kWeightBf16: multiply_many<kWeightBf16, kGroups, kCols, kBlocks>(sums, p, map, shared); break;
    case kWeightFp8Block:
      if constexpr (kBlocks > 1 || kCols < 128) multiply_many<kWeightFp8Block, kGroups, kCols, kBlocks>(sums, p, map, shared);
      break;
    case kWeightNvfp4: multiply_many<kWeightNvfp4, kGroups, kCols, kBlocks>(sums, p, map, shared); break;
    default: multiply_many<kWeightMxfp4, kGroups, kCols, kBlocks>(sums, p, map, shared); break;
  }
  copies_wait<0>();
  __syncthreads();
  spill_many<kGroups, kCols>(sums, (float*)shared);
  if (kBlocks == 1) {
    __syncthreads();
  } else {
    cluster_sync();
  }
  store_many<kGroups, kCols, kBlocks>(p, map, (const float*)shared);
  if (kBlocks > 1) cluster_sync();
}

}  // namespace

// Dynamic shared memory: the ring.
FL_KERNEL_BLOCKS(kFewThreads, 2, linear_8, LinearParams) {
  FL_DYNAMIC_SHARED(ring);
  RowMap map(p, blockIdx.x, 1);
  float acc[4] = {};
  switch (p.weight.format) {
    case kWeightBf16: multiply_few<kWeightBf16>(acc, p, map, ring); break;
    case kWeightFp8Block: multiply_few<kWeightFp8Block>(acc, p, map, ring); break;
    case kWeightNvfp4: multiply_few<kWeightNvfp4>(acc, p, map, ring); break;
    default: multiply_few<kWeightMxfp4>(acc, p, map, ring); break;
  }
  // The partial sums lie where the ring was, [segment][column][row].
  float* partial = (float*)ring;
  copies_wait<0>();
  __syncthreads();
  float sums[1][4] = {{acc[0], acc[1], acc[2], acc[3]}};
  tile_spill<1>(sums, partial + warp_idx() * kTileSums);
  __syncthreads();
  store_few(p, map, partial);
}

// Dynamic shared memory: two rounds of activations and the ring; later the sums.
FL_KERNEL_CLUSTER(256, 1, kSegments, linear_64, LinearParams) {
  FL_DYNAMIC_SHARED(shared);
  many_body<2, 64, kSegments>(p, shared);
}
FL_KERNEL_CLUSTER(256, 1, kSegments, linear_128, LinearParams) {
  FL_DYNAMIC_SHARED(shared);
  many_body<2, 128, kSegments>(p, shared);
}
FL_KERNEL_CLUSTER(256, 1, kSegments, linear_32, LinearParams) {
  FL_DYNAMIC_SHARED(shared);
  many_body<2, 32, kSegments>(p, shared);
}
FL_KERNEL(256, linear_64_alone, LinearParams) {
  FL_DYNAMIC_SHARED(shared);
  many_body<2, 64, 1>(p, shared);
}
FL_KERNEL(256, linear_128_alone, LinearParams) {
  FL_DYNAMIC_SHARED(shared);
  many_body<2, 128, 1>(p, shared);
}
