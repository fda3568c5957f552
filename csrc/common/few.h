// linear for up to 8 activation rows: tiles of 16 weight rows, a warp each of the segments of K (common/wide.h).
#pragma once

#include "linear_rows.h"
#include "pdl.h"
#include "warp_ring.h"
#include "wide.h"

constexpr int kFewThreads = kSegments * kWarp;
constexpr int kFewRows = kTileCols;
constexpr int kTileSums = kTileCols * kTilePitch;

// The output columns of a block: the sums of the segments of each half in order, and the halves.
FL_DEVICE void store_few(const LinearParams& p, const RowMap& map, const float* partial) {
  float global = tile_scale(p.weight, 0);
  auto sum = [=](int column, int r) {
    float halves[2];
#pragma unroll
    for (int s = 0; s < kSegments; ++s) {
      float part = partial[s * kTileSums + column * kTilePitch + r], &half = halves[s / kHalfSegments];
      half = s % kHalfSegments == 0 ? part : half + part;
    }
    return (halves[0] + halves[1]) * global;
  };
  for (int i = threadIdx.x; i < kTileCols * map.width; i += kFewThreads) {
    int within = i % map.width, column = i / map.width, row = blockIdx.y * kFewRows + column;
    if (within >= map.count || row >= p.rows) continue;
    float value = sum(column, within);
    if (map.swiglu) value = swiglu(value, sum(column, within + 8), p.limit);
    store(p, row, map.columns, map.base + within, value);
  }
}

// Weights of whole steps as a stream: a block takes every gridDim.x-th tile, and a warp its segment of each by a ring of its
// own, so that weights of the next tiles are on their way whatever the block waits for. One barrier a tile: sums lie in two sets.
template <int kFormat>
struct FewStream {
  static constexpr int kStages = 3, kSums = kSegments * kTileSums;
  static constexpr int kBytes = kSegments * kStages * kWarpStageBytes + 2 * kSums * 4;
  const LinearParams& p;
  unsigned char* ring;
  int steps, tiles;
  // What is fetched next, and from where: this lane's unit of every fourth row, and the scales of row lane % 16.
  int tile, step, into = 0;
  const uint8_t *codes[4], *scales;

  FL_DEVICE FewStream(const LinearParams& p, unsigned char* shared)
      : p(p), ring(shared + warp_idx() * kStages * kWarpStageBytes), steps(Step<kFormat>::count(p.depth)), tiles(RowMap::blocks(p, 1)) {
    step = warp_idx(), tile = step < steps ? blockIdx.x : tiles;
    aim();
  }

  FL_DEVICE void aim() {
    if (tile >= tiles) return;
    RowMap map(p, tile, 1);
    int lane = lane_idx(), own = map.weight_row(lane % kTileRows);
    const uint8_t* first = (const uint8_t*)p.weight.codes + lane % 8 * kUnitBytes;
#pragma unroll
    for (int i = 0; i < 4; ++i) codes[i] = first + map.weight_row(lane / 8 + 4 * i) * code_row_bytes(kFormat, p.depth);
    scales = (const uint8_t*)p.weight.scales + (kFormat == kWeightFp8Block ? own / 128 : own) * scale_row_bytes(kFormat, p.depth);
  }

  // The next step on its way, a whole line of a row at a time, to where WarpStep looks for it.
  FL_DEVICE void fetch() {
    if (tile < tiles) {
      unsigned char* stage = ring + into * kWarpStageBytes;
      int lane = lane_idx(), unit = lane % 8;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        int row = lane / 8 + 4 * i, at = (row / 8 * 2 + unit / 4) * kWarp + row % 8 * 4 + unit % 4;
        copy_async<16>(stage + at * kUnitBytes, codes[i] + step * kStepBytes);
      }
      constexpr int kScales = Step<kFormat>::kScaleBytes;
      if (lane < kTileRows) copy_async<kScales>(stage + kWarpStageCodes + lane * kScales, scales + step * kScales);
      step += kSegments;
      if (step >= steps) step = warp_idx(), tile += gridDim.x, aim();
    }
    copies_commit();
    into = into + 1 == kStages ? 0 : into + 1;
  }
};

template <int kFormat>
FL_DEVICE void few_stream(const LinearParams& p, unsigned char* shared) {
  using Stream = FewStream<kFormat>;
  Stream stream(p, shared);
#pragma unroll 1
  for (int i = 0; i < Stream::kStages - 1; ++i) stream.fetch();
  pdl_wait();
  float* sums = (float*)(shared + kSegments * Stream::kStages * kWarpStageBytes);
  int slot = 0, set = 0;
#pragma unroll 1
  for (int tile = blockIdx.x; tile < stream.tiles; tile += gridDim.x, set ^= 1) {
    RowMap map(p, tile, 1);
    const uint16_t* x = activation_row(p, map, blockIdx.y * kFewRows + lane_idx() / 4);
    float acc[1][4] = {};
#pragma unroll 1
    for (int step = warp_idx(); step < stream.steps; step += kSegments) {
      StepActivations<kFormat> b;
      b.load(x, step, Step<kFormat>::kElements);  // No tail, whatever the depth.
      copies_wait<Stream::kStages - 2>();
      __syncwarp();
      stream.fetch();
      multiply_tile<kFormat>(acc[0], WarpStep<kFormat>(stream.ring + slot * kWarpStageBytes), b);
      slot = slot + 1 == Stream::kStages ? 0 : slot + 1;
    }
    float* partial = sums + set * Stream::kSums;
    tile_spill<1>(acc, partial + warp_idx() * kTileSums);
    __syncthreads();
    store_few(p, map, partial);
  }
}
