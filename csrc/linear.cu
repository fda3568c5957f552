// linear: activation rows times a weight in bf16, fp8 blocks, NVFP4 or MXFP4; f32 sums; grouped, or with SwiGLU.
//
// Bytes: the weight once (2, 1.0002, 0.5625 or 0.53 bytes an element), and each block's activation rows from cache.
// Measured on an H200 with cold caches, 4096 x 4096 in bf16, fp8 and NVFP4: 12.1, 8.0 and 6.8 us for 1 row (62, 47 and 31 % of
// what the bytes allow), 21.0, 18.5 and 19.8 for 64 rows, 37.5, 35.8 and 36.1 for 256.
// Notes: (1) K is cut into 8 segments of every eighth step of 128 bytes, each summed from zero; those of a half are added in
// order, and then the halves: one canonical sum, whatever the number of rows; (2) up to 8 rows a block of `linear_8` owns 16
// weight rows, a warp a segment; one of `linear_8_fp8` takes such tiles one after another (common/few.h); (3) for more, where
// all blocks find a place at once, a cluster of eight or two shares the segments out (common/ring.h); clusters of four left
// so many processors of an H200 idle that 32 of them took two turns; (4) else a block owns 128 weight rows and 32, 64 or 128 rows
// (common/wide.h), and a cluster of four or two shares the segments out, or a block has them all where blocks are many
// (`alone`); (5) every path sums the same sixteens of elements in the same order, by mma or by wgmma, which give the same bits
// on sm_90a; (6) weights stream through a ring of stages, of which the first are on their way before the wait for the kernel
// before: weights never change; (7) with SwiGLU a tile is 8 gate rows and their 8 up rows; (8) rows that are no whole number of
// steps all go to `linear_8`; (9) a few registers spill in fp8 where two blocks share a multiprocessor, whose time is bound by
// memory, and in common/ring.h where a warp has 64 activation rows.
#include "linear.h"

#include "common/cluster.h"
#include "common/few.h"
#include "common/pdl.h"
#include "common/ring.h"
#include "common/wide.h"

namespace {

// Few rows: 16 weight rows by 8 rows, a segment a warp.
using FewStage = Stage<1, kSegments>;
constexpr int kFewStages = 4;
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
    ahead += kSegments;
  };
#pragma unroll 1
  for (int i = 0; i < kFewStages - 1; ++i) fetch(i);
  pdl_wait();
  const uint16_t* x = activation_row(p, map, blockIdx.y * kFewRows + lane_idx() / 4);
  int slot = 0, into = kFewStages - 1;
#pragma unroll 1
  for (int first = 0; first < steps; first += kSegments) {
    int step = first + segment;
    StepActivations<kFormat> b;
    b.load(step < steps ? x : nullptr, step, p.depth);
    copies_wait<kFewStages - 2>();
    __syncthreads();
    fetch(into);
    const unsigned char* stage = ring + slot * FewStage::kBytes;
    if (step < steps) multiply_tile<kFormat>(acc, TileStep<kFormat, FewStage>(stage, 0, segment), b);
    into = slot, slot = slot + 1 == kFewStages ? 0 : slot + 1;
  }
}

// The activation rows of a block of `kCols`.
template <int kCols>
FL_DEVICE WideRowsOf block_rows(const LinearParams& p, const RowMap& map) {
  int64_t pitch = (int64_t)p.groups * p.depth;
  int first = blockIdx.y * kCols;
  return {p.x + first * pitch + (int64_t)map.group * p.depth, pitch, p.rows - first};
}

// Many rows: the segments shared out over the blocks of a cluster, which meet in shared memory; or all of them a block.
// Gives where the sums of the segments before a block's last lie.
template <int kFormat, int kCols, int kBlocks>
FL_DEVICE float* multiply_many(const LinearParams& p, const RowMap& map, unsigned char* shared) {
  int rank = kBlocks == 1 ? 0 : cluster_rank();
  auto row = [&](int r) { return map.weight_row(r); };
  return wide_multiply<kFormat, kCols, kBlocks>(p.weight, p.depth, rank, row, block_rows<kCols>(p, map), shared);
}

struct Four {
  float4 v;

  FL_DEVICE explicit Four(const float* at) : v(*(const float4*)at) {}
  FL_DEVICE void add(const Four& o) { v.x += o.v.x, v.y += o.v.y, v.z += o.v.z, v.w += o.v.w; }
};

// Four neighbouring sums: those of the segments of each half in order, and the halves.
template <int kBlocks, int kCols>
FL_DEVICE Four fold_segments(const float* last, const float* before) {
  if constexpr (kBlocks == 1) {
    Four low(before), high(before + kSumFloats<kCols>);
    high.add(Four(last));
    low.add(high);
    return low;
  } else {
    auto half = [=](int first) {
      Four sum(cluster_peer(before, first));
      sum.add(Four(cluster_peer(last, first)));
      if (kBlocks == 4) sum.add(Four(cluster_peer(before, first + 1))), sum.add(Four(cluster_peer(last, first + 1)));
      return sum;
    };
    Four low = half(0);
    low.add(half(kBlocks / 2));
    return low;
  }
}

// The same of the blocks of common/ring.h, which have segments, or a half each.
template <class P>
FL_DEVICE Four fold_ring(const float* own) {
  auto part = [=](int i) { return Four(cluster_peer(own + i % P::kSegs * P::kSums, i / P::kSegs)); };
  constexpr int kHalf = P::kBlocks * P::kSegs / 2;
  auto half = [=](int first) {
    Four sum = part(first);
#pragma unroll
    for (int i = 1; i < kHalf; ++i) sum.add(part(first + i));
    return sum;
  };
  Four low = half(0);
  low.add(half(kHalf));
  return low;
}

// A block stores its share of the cluster's outputs, four neighbouring columns a thread; `sum_of(column, row)` gives the sums of
// four rows of the tile.
template <int kCols, int kBlocks, class Sum>
FL_DEVICE void store_many(const LinearParams& p, const RowMap& map, Sum sum_of) {
  float global = tile_scale(p.weight, 0);
  constexpr int kOwn = kCols / kBlocks;
  int fours = map.width / 4, first = kBlocks == 1 ? 0 : cluster_rank() * kOwn;
  for (int i = threadIdx.x; i < kOwn * fours; i += blockDim.x) {
    int within = i % fours * 4, column = first + i / fours, row = blockIdx.y * kCols + column;
    if (within >= map.count || row >= p.rows) continue;
    float4 sum = sum_of(column, map.tile_row(within)).v;
    float value[4] = {sum.x * global, sum.y * global, sum.z * global, sum.w * global};
    if (map.swiglu) {
      float4 up = sum_of(column, map.tile_row(within) + 8).v;
      float ups[4] = {up.x * global, up.y * global, up.z * global, up.w * global};
#pragma unroll
      for (int n = 0; n < 4; ++n) value[n] = swiglu(value[n], ups[n], p.limit);
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

template <int kCols, int kBlocks>
FL_DEVICE void many_body(const LinearParams& p, unsigned char* shared) {
  RowMap map(p, blockIdx.x / kBlocks, kWideRows / kTileRows);
  const float* before = nullptr;
  switch (p.weight.format) {
    case kWeightBf16: before = multiply_many<kWeightBf16, kCols, kBlocks>(p, map, shared); break;
    case kWeightFp8Block: before = multiply_many<kWeightFp8Block, kCols, kBlocks>(p, map, shared); break;
    case kWeightNvfp4: before = multiply_many<kWeightNvfp4, kCols, kBlocks>(p, map, shared); break;
    default: before = multiply_many<kWeightMxfp4, kCols, kBlocks>(p, map, shared); break;
  }
  if (kBlocks == 1) {
    __syncthreads();
  } else {
    cluster_sync();
  }
  const float* last = (const float*)shared;
  store_many<kCols, kBlocks>(p, map, [=](int column, int row) {
    return fold_segments<kBlocks, kCols>(last + sum_at(column, row), before + sum_at(column, row));
  });
  if (kBlocks > 1) cluster_sync();
}

// Clusters of eight blocks of 128 weight rows and 32 or 64 activation rows with a segment each, and of two of 64 and 64 with a half,
// all at once or in turn. Of all but the third two fit a multiprocessor that has 227 KiB of shared memory, and of the first one
// fits where there are 99.
using Eighth32 = RingPlan<8, 1, 4, 1, 4, 99 << 10>;
using Eighth64 = RingPlan<8, 1, 4, 1, 8, 112 << 10>;
using Half64 = RingPlan<2, 4, 2, 1, 8, 224 << 10>;
using Turns64 = RingPlan<2, 1, 2, 2, 4, 112 << 10>;

// False where the ring has no room for the format: it is never launched for it.
template <int kFormat, class P>
FL_DEVICE bool multiply_ring(const LinearParams& p, const RowMap& map, unsigned char* shared) {
  if constexpr (RingStage<kFormat, P>::kStages < 2) {
    pdl_wait();
    return false;
  } else {
    auto row = [&](int r) { return map.weight_row(r); };
    ring_block<kFormat, P>(p.weight, p.depth, cluster_rank(), row, block_rows<P::kCols>(p, map), shared);
    return true;
  }
}

template <class P>
FL_DEVICE void ring_body(const LinearParams& p, unsigned char* shared) {
  RowMap map(p, blockIdx.x / P::kBlocks, P::kHighTiles);
  bool done = false;
  switch (p.weight.format) {
    case kWeightBf16: done = multiply_ring<kWeightBf16, P>(p, map, shared); break;
    case kWeightFp8Block: done = multiply_ring<kWeightFp8Block, P>(p, map, shared); break;
    case kWeightNvfp4: done = multiply_ring<kWeightNvfp4, P>(p, map, shared); break;
    default: done = multiply_ring<kWeightMxfp4, P>(p, map, shared); break;
  }
  if (!done) return;
  cluster_sync();
  const float* sums = (const float*)shared;
  store_many<P::kCols, P::kBlocks>(p, map, [=](int column, int row) { return fold_ring<P>(sums + column * P::kPitch + row); });
  cluster_sync();
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

// Dynamic shared memory: as FewStream says. Weights in blocks of fp8, of whole steps.
FL_KERNEL_BLOCKS(kFewThreads, 3, linear_8_fp8, LinearParams) {
  FL_DYNAMIC_SHARED(shared);
  few_stream<kWeightFp8Block>(p, shared);
}

// Dynamic shared memory: two rounds of activations, the ring, and the sums of the segments before a block's last.
FL_KERNEL_CLUSTER(kWideThreads, 2, 4, linear_32, LinearParams) {
  FL_DYNAMIC_SHARED(shared);
  many_body<32, 4>(p, shared);
}

FL_KERNEL_CLUSTER(kWideThreads, 2, 4, linear_64, LinearParams) {
  FL_DYNAMIC_SHARED(shared);
  many_body<64, 4>(p, shared);
}

// Dynamic shared memory: the ring, where the sums are in the end.
FL_KERNEL_CLUSTER(Eighth32::kThreads, 2, 8, linear_32_eighth, LinearParams) {
  FL_DYNAMIC_SHARED(shared);
  ring_body<Eighth32>(p, shared);
}

FL_KERNEL_CLUSTER(Eighth64::kThreads, 2, 8, linear_64_eighth, LinearParams) {
  FL_DYNAMIC_SHARED(shared);
  ring_body<Eighth64>(p, shared);
}

FL_KERNEL_CLUSTER(Half64::kThreads, 1, 2, linear_64_half, LinearParams) {
  FL_DYNAMIC_SHARED(shared);
  ring_body<Half64>(p, shared);
}

FL_KERNEL_CLUSTER(Turns64::kThreads, 2, 2, linear_64_turns, LinearParams) {
  FL_DYNAMIC_SHARED(shared);
  ring_body<Turns64>(p, shared);
}

FL_KERNEL_CLUSTER(kWideThreads, 1, 2, linear_128, LinearParams) {
  FL_DYNAMIC_SHARED(shared);
  many_body<128, 2>(p, shared);
}

FL_KERNEL(kWideThreads, linear_64_alone, LinearParams) {
  FL_DYNAMIC_SHARED(shared);
  many_body<64, 1>(p, shared);
}
