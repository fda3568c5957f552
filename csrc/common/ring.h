// The product of some activation rows and a weight by blocks of a cluster that share the segments of K out (common/wide.h), where
// weights and activations come through one ring of stages, as they lie in memory, with several stages on their way.
//
// A warp has 32 weight rows and up to 64 activation rows of a segment, and sums them in the order of common/tile.h with the same
// instructions. A stage is a step of each segment that the block sums side by side, which are neighbours: 128 bytes of codes of
// every weight row and as many elements of every activation row. Pieces of 16 bytes are moved within a row so that lanes that
// read together find them in banks of their own.
#pragma once

#include "copy_async.h"
#include "pdl.h"
#include "wide.h"

// Tiles of 16 weight rows of a warp.
constexpr int kRingHigh = 2;

// How a cluster of blocks shares the segments out: `kSideBySide` of a block's at once, the others in turn. Its warps are so many
// for each of those, down the weight rows, and across the activation rows, of which each has `kTileCount` tiles of 8.
template <int kBlockCount, int kSideBySide, int kWarpsDown, int kWarpsAcross, int kTileCount, int kBytes>
struct RingPlan {
  static constexpr int kBlocks = kBlockCount, kSegs = kSideBySide, kDown = kWarpsDown, kTiles = kTileCount;
  static constexpr int kTurns = kSegments / kBlocks / kSegs, kThreads = kSegs * kDown * kWarpsAcross * kWarp;
  static constexpr int kHighTiles = kRingHigh * kDown, kRows = kHighTiles * kTileRows, kCols = kWarpsAcross * kTiles * kTileCols;
  // Of the ring; `src/cuda/ops/linear.rs` makes room for as many.
  static constexpr int kRoom = kBytes;
  static_assert(kTurns == 1 || kSegs == 1, "segments that a warp has in turn are a half in order");

  // Where a sum lies in the end, [segment][column][row], with a pitch that keeps the banks of a fragment apart.
  static constexpr int kPitch = kRows + 4, kSums = kCols * kPitch;
};

template <int kFormat, class P>
struct RingStage {
  using F = Step<kFormat>;
  // Pieces of 16 bytes of an activation row.
  static constexpr int kPieces = F::kElements / 8, kRows = P::kRows;
  static constexpr int kScales = P::kSegs * P::kRows * kStepBytes, kColumns = kScales + P::kSegs * P::kRows * F::kScaleBytes;
  static constexpr int kBytes = kColumns + P::kSegs * P::kCols * kPieces * 16;
  static constexpr int kStages = P::kRoom / kBytes > 8 ? 8 : P::kRoom / kBytes;

  FL_DEVICE static int code_at(int segment, int row, int unit) {
    return (segment * P::kRows + row) * kStepBytes + (unit ^ row % 2 * 4) * kUnitBytes;
  }
  FL_DEVICE static int scale_at(int segment, int row) { return kScales + (segment * P::kRows + row) * F::kScaleBytes; }
  FL_DEVICE static int piece_at(int segment, int column, int piece) {
    int odd = column % 2, by = kPieces == 8 ? odd * 4 : kPieces == 16 ? odd : piece / 8 % 2 + odd * 2;
    return kColumns + ((segment * P::kCols + column) * kPieces + (piece ^ by)) * 16;
  }
};

// What a thread copies of every stage. `row(r)` is the matrix's row r, none before row 0; `step` is that of the first segment.
template <int kFormat, class P>
struct RingFetch {
  using F = Step<kFormat>;
  using S = RingStage<kFormat, P>;
  static constexpr bool kBlocks = kFormat == kWeightFp8Block;
  static constexpr int kUnits = kStepBytes / kUnitBytes, kAcross = P::kSegs * kUnits, kAtOnce = P::kThreads / kAcross;
  static constexpr int kEach = P::kRows / kAtOnce, kPieces = P::kSegs * S::kPieces;
  static constexpr int kColumnsAtOnce = P::kThreads / kPieces, kColumnsEach = P::kCols / kColumnsAtOnce;
  static_assert(kAtOnce % 2 == 0 && kColumnsAtOnce > 0, "a thread's rows are all even or all odd, and a column is copied at once");
  const uint8_t *codes, *scales;
  uint32_t offsets[kEach];
  int steps;

  template <class Row>
  FL_DEVICE RingFetch(const Weight& w, int cols, Row row) : steps(F::count(cols)) {
    int64_t code_bytes = code_row_bytes(kFormat, cols);
    int first = row(0), own = row((int)threadIdx.x % P::kRows);
    codes = (const uint8_t*)w.codes + first * code_bytes + threadIdx.x % kAcross * kUnitBytes;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      offsets[i] = (uint32_t)((row((int)threadIdx.x / kAcross + i * kAtOnce) - first) * code_bytes);
    }
    scales = (const uint8_t*)w.scales + (kBlocks ? own / 128 : own) * scale_row_bytes(kFormat, cols);
  }

  FL_DEVICE void weights(unsigned char* stage, int step) const {
    int segment = threadIdx.x % kAcross / kUnits;
    if (step + segment < steps) {
      unsigned char* to = stage + S::code_at(segment, threadIdx.x / kAcross, threadIdx.x % kUnits);
      const uint8_t* from = codes + (int64_t)step * kStepBytes;
#pragma unroll
      for (int i = 0; i < kEach; ++i) copy_async<16>(to + i * kAtOnce * kStepBytes, from + offsets[i]);
    }
    if constexpr (F::kScaleBytes > 0) {
      int of = threadIdx.x / P::kRows;
      if (of >= P::kSegs || step + of >= steps) return;
      copy_async<F::kScaleBytes>(stage + S::scale_at(of, threadIdx.x % P::kRows), scales + (step + of) * F::kScaleBytes);
    }
  }

  // Activation rows past the last are zeros.
  FL_DEVICE void columns(unsigned char* stage, const WideRowsOf& x, int step) const {
    int across = threadIdx.x % kPieces, segment = across / S::kPieces, column = threadIdx.x / kPieces;
    if (step + segment >= steps) return;
    const uint16_t* from = x.first + column * x.pitch + step * F::kElements + across * 8;
#pragma unroll
    for (int i = 0; i < kColumnsEach; ++i) {
      int at = column + i * kColumnsAtOnce;
      bool valid = at < x.count;
      unsigned char* to = stage + S::piece_at(segment, at, across % S::kPieces);
      copy_async<16>(to, valid ? from + i * kColumnsAtOnce * x.pitch : x.first, valid);
    }
  }
};

// A tile of 16 weight rows of a stage, as its lanes see it.
template <int kFormat, class S>
struct RingTile : StepScales<kFormat> {
  const unsigned char* codes;

  FL_DEVICE RingTile(const unsigned char* stage, int segment, int row)
      : StepScales<kFormat>(stage + S::scale_at(segment, row), Step<kFormat>::kScaleBytes),
        codes(stage + (segment * S::kRows + row) * kStepBytes) {}

  FL_DEVICE uint4 unit(int row, int half) const {
    return *(const uint4*)(codes + S::code_at(0, row, half * 4 + lane_idx() % 4));
  }
};

// What a warp sums: a segment of some weight rows and activation rows of its block.
template <class P>
struct RingWarp {
  static constexpr int kOwnCols = P::kTiles * kTileCols, kAcross = P::kCols / kOwnCols;
  int column = kAcross == 1 ? 0 : warp_idx() / P::kDown % kAcross * kOwnCols;
  int row = warp_idx() % P::kDown * (kRingHigh * kTileRows);
  int segment = P::kSegs == 1 ? 0 : warp_idx() / (P::kThreads / kWarp / P::kSegs);
  float acc[kRingHigh][P::kTiles][4] = {};
  float sums[P::kTurns > 1 ? kRingHigh : 1][P::kTiles][4];

  template <class Use>
  FL_DEVICE static void each(Use use) {
#pragma unroll
    for (int i = 0; i < kRingHigh * P::kTiles * 4; ++i) use(i / 4 / P::kTiles, i / 4 % P::kTiles, i % 4);
  }

  // Adds a step of a stage.
  template <int kFormat>
  FL_DEVICE void multiply(const unsigned char* stage) {
    using F = Step<kFormat>;
    using S = RingStage<kFormat, P>;
    constexpr bool kScaled = kFormat == kWeightFp8Block;
    int g = lane_idx() / 4, q = lane_idx() % 4;
    float part[kScaled ? kRingHigh : 1][P::kTiles][4] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t left[kRingHigh][2][F::kUnit / 2];
#pragma unroll
      for (int m = 0; m < kRingHigh; ++m) {
        expand_rows<kFormat>(RingTile<kFormat, S>(stage, segment, row + m * kTileRows), half, left[m]);
      }
#pragma unroll
      for (int n = 0; n < P::kTiles; ++n) {
        Activations<kFormat> b;
#pragma unroll
        for (int i = 0; i < F::kUnit / 8; ++i) {
          int piece = (half * 4 + q) * (F::kUnit / 8) + i;
          uint4 v = *(const uint4*)(stage + S::piece_at(segment, column + n * kTileCols + g, piece));
          b.words[4 * i] = v.x, b.words[4 * i + 1] = v.y, b.words[4 * i + 2] = v.z, b.words[4 * i + 3] = v.w;
        }
        b.order();
#pragma unroll
        for (int k = 0; k < F::kUnit / 2; k += 2) {
#pragma unroll
          for (int m = 0; m < kRingHigh; ++m) multiply_unit<kFormat>(kScaled ? part[kScaled ? m : 0][n] : acc[m][n], left[m], b, k);
        }
      }
    }
    if constexpr (kScaled) {
#pragma unroll
      for (int m = 0; m < kRingHigh; ++m) {
        RingTile<kFormat, S> tile(stage, segment, row + m * kTileRows);
        float scale[2] = {tile.block_scale(g), tile.block_scale(g + 8)};
#pragma unroll
        for (int i = 0; i < P::kTiles * 4; ++i) {
          acc[m][i / 4][i % 4] = fmaf(scale[i % 4 / 2], part[m][i / 4][i % 4], acc[m][i / 4][i % 4]);
        }
      }
    }
  }

  // Ends the segment of a turn.
  FL_DEVICE void end(int turn) {
    if constexpr (P::kTurns > 1) {
      each([&](int m, int n, int i) {
        sums[m][n][i] = turn == 0 ? acc[m][n][i] : sums[m][n][i] + acc[m][n][i];
        acc[m][n][i] = 0.0f;
      });
    }
  }

  FL_DEVICE void put(float* to) const {
    int g = lane_idx() / 4, q = lane_idx() % 4;
    to += segment * P::kSums + (column + 2 * q) * P::kPitch + row + g;
    each([&](int m, int n, int i) {
      int at = (n * kTileCols + i % 2) * P::kPitch + m * kTileRows + i / 2 * 8;
      to[at] = P::kTurns > 1 ? sums[P::kTurns > 1 ? m : 0][n][i] : acc[m][n][i];
    });
  }
};

// A place among the steps of a block's segments, in turn; of those side by side it is the first's.
template <class P>
struct RingPlace {
  int step, turn = 0;

  FL_DEVICE explicit RingPlace(int first) : step(first) {}
  // Steps are dealt out in turn: from an empty segment on all are empty.
  FL_DEVICE bool valid(int steps) const { return step < steps; }
  // Whether a turn ends there.
  FL_DEVICE bool next(int steps) {
    step += kSegments;
    if (step < steps) return false;
    if (P::kTurns > 1) step = ++turn < P::kTurns ? step % kSegments + 1 : steps;
    return true;
  }
};

// The sums of a block's share of the segments to the start of shared memory: of each, or of a half that was added up in turn;
// there after a barrier. Waits for the kernel before once the first weights are on their way.
template <int kFormat, class P, class Row>
FL_DEVICE void ring_block(const Weight& w, int cols, int rank, Row row, const WideRowsOf& x, unsigned char* shared) {
  using S = RingStage<kFormat, P>;
  constexpr int kOwn = kSegments / P::kBlocks, kStages = S::kStages;
  static_assert(kStages >= 2, "one stage is used while the next is on its way");
  RingFetch<kFormat, P> fetch(w, cols, row);
  RingPlace<P> here(rank * kOwn), ahead = here, early = here;
#pragma unroll 1
  for (int i = 0; i < kStages && early.valid(fetch.steps); ++i) {
    fetch.weights(shared + i * S::kBytes, early.step), early.next(fetch.steps);
  }
  pdl_wait();
#pragma unroll 1
  for (int i = 0; i < kStages; ++i) {
    if (ahead.valid(fetch.steps)) fetch.columns(shared + i * S::kBytes, x, ahead.step), ahead.next(fetch.steps);
    copies_commit();
  }
  RingWarp<P> warp;
  int slot = 0, used = -1, turn = 0;  // `used` is the stage that all are done with after the next barrier.
#pragma unroll 1
  while (here.valid(fetch.steps)) {
    if (used < 0) {
      copies_wait<kStages - 1>();
    } else {
      copies_wait<kStages - 2>();
    }
    __syncthreads();
    if (used >= 0) {
      if (ahead.valid(fetch.steps)) {
        unsigned char* stage = shared + used * S::kBytes;
        fetch.weights(stage, ahead.step), fetch.columns(stage, x, ahead.step), ahead.next(fetch.steps);
      }
      copies_commit();
    }
    if (here.step + warp.segment < fetch.steps) warp.template multiply<kFormat>(shared + slot * S::kBytes);
    used = slot, slot = slot + 1 == kStages ? 0 : slot + 1;
    if (here.next(fetch.steps)) warp.end(turn++);
  }
  // Segments without steps add zero.
#pragma unroll 1
  for (; turn < P::kTurns; ++turn) warp.end(turn);
  copies_wait<0>();
  __syncthreads();
  warp.put((float*)shared);
}
