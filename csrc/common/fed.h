// The product of up to 64 activation rows and a weight by blocks of 64 weight rows in a cluster of two or four, which share the
// segments of K out (common/wide.h): in a block two groups of four warps multiply, each its own segments, and a third feeds
// both, so that fetching, expanding and multiplying go on side by side. Barriers in shared memory pass rounds from one to the
// other. Every sum is over the same sixteens of elements, in the same order, as in common/wide.h.
#pragma once

#include "cluster.h"
#include "pdl.h"
#include "phases.h"
#include "wide.h"

constexpr int kFedRows = kGroupRows, kFedCols = 64;
constexpr int kMultiplyThreads = 2 * kGroupThreads;
constexpr int kFedThreads = kMultiplyThreads + kGroupThreads;
// Rounds of weights in the ring of each group; of activations there is one. More were no faster.
constexpr int kFedStages = 2;

// Shared memory of a block: barriers, where its weight rows start, and for each group a round of activations and its ring.
template <int kFormat>
struct FedShared {
  using S = WideStage<kFormat, kFedRows>;
  static constexpr int kStarts = 128, kColumns = kStarts + 4 * kFedRows, kRing = kColumns + 2 * Columns<kFedCols>::kBytes;
  unsigned char* base;

  FL_DEVICE uint64_t* weights_full(int group, int slot) const { return (uint64_t*)base + group * kFedStages + slot; }
  FL_DEVICE uint64_t* columns_full(int group) const { return (uint64_t*)base + 2 * kFedStages + group; }
  FL_DEVICE uint64_t* columns_free(int group) const { return columns_full(group) + 2; }
  FL_DEVICE uint32_t* starts() const { return (uint32_t*)(base + kStarts); }
  FL_DEVICE unsigned char* columns(int group) const { return base + kColumns + group * Columns<kFedCols>::kBytes; }
  FL_DEVICE unsigned char* stage(int group, int slot) const {
    return base + kRing + (group * kFedStages + slot) * S::kBytes;
  }

  // `row(r)` is the matrix's row r, none before row 0. Every thread.
  template <class Row>
  FL_DEVICE void init(int cols, Row row) const {
    int r = threadIdx.x;
    if (r < kFedRows) starts()[r] = (uint32_t)((row(r) - row(0)) * code_row_bytes(kFormat, cols));
    if (r == 0) {
      barrier_init(weights_full(0, 0), 2 * kFedStages, kGroupThreads);
      barrier_init(columns_full(0), 2, kGroupThreads / kWarp);
      barrier_init(columns_free(0), 2, kGroupThreads / kWarp);
    }
    __syncthreads();
  }
};

// What a feeding thread copies of every round: a unit of some weight rows, and a row's scales.
template <int kFormat>
struct FedWeights {
  using R = Round<kFormat>;
  using S = WideStage<kFormat, kFedRows>;
  static constexpr bool kBlocks = kFormat == kWeightFp8Block;
  static constexpr int kAtOnce = kGroupThreads / R::kUnits, kEach = kFedRows / kAtOnce;
  const uint8_t *codes, *scales;
  const uint32_t* starts;
  int thread = threadIdx.x % kGroupThreads;

  template <class Row>
  FL_DEVICE FedWeights(const Weight& w, int cols, Row row, const uint32_t* all) : starts(all + thread / R::kUnits) {
    int first = row(0), own = row(thread % kFedRows);
    codes = (const uint8_t*)w.codes + first * code_row_bytes(kFormat, cols) + thread % R::kUnits % 4 * kUnitBytes;
    scales = (const uint8_t*)w.scales + (kBlocks ? own / 128 : own) * scale_row_bytes(kFormat, cols);
  }

  // `full` is told when they are there.
  FL_DEVICE void fetch(unsigned char* stage, uint64_t* full, int cols, int segment, int round) const {
    int unit = thread % R::kUnits, element = R::element(segment, round, unit / 4);
    if (element < cols) {
      const uint8_t* from = codes + R::code_bytes(element);
      unsigned char* to = stage + S::unit_at(thread / R::kUnits, unit);
      uint32_t at[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) at[i] = starts[i * kAtOnce];
#pragma unroll
      for (int i = 0; i < kEach; ++i) copy_async<16>(to + i * kAtOnce * R::kRowBytes, from + at[i]);
    }
    if (R::kScaleBytes > 0 && thread < kFedRows) {
      int first = R::element(segment, round, 0), at = kBlocks ? first / 128 * 4 : first / Step<kFormat>::kGroup;
      copy_async<R::kScaleBytes>(stage + S::kScales + thread * R::kScaleBytes, scales + at);
    }
    barrier_arrive_copied(full);
  }
};

// The activations of a round, held by the feeding threads on their way to shared memory: a piece of 16 bytes of every eighth
// row.
template <int kFormat>
struct FedActivations {
  using R = Round<kFormat>;
  static constexpr int kEach = kFedCols / 8;
  uint4 held[kEach];
  bool valid = false;

  FL_DEVICE static int piece() { return lane_idx() / 4 % 2 + 2 * (warp_idx() % 2); }
  FL_DEVICE static int row() { return warp_idx() / 2 % 2 * 4 + lane_idx() / 8; }

  FL_DEVICE void load(const WideRowsOf& x, int cols, int segment, int round) {
    int element = R::element(segment, round, piece() / R::kPieces);
    const uint16_t* at = x.first + row() * x.pitch + lane_idx() % 4 * Step<kFormat>::kUnit + piece() % R::kPieces * 8 + element;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      held[i] = uint4{0, 0, 0, 0};
      if (row() + 8 * i < x.count && element < cols) held[i] = *(const uint4*)(at + i * (8 * x.pitch));
    }
  }

  FL_DEVICE void store(unsigned char* columns) const {
    unsigned char* to = columns + row() * 16 + lane_idx() % 4 * 4 + 4 * piece() * Columns<kFedCols>::kApart;
#pragma unroll
    for (int i = 0; i < kEach; ++i) put_words<kFormat, kFedCols>(to + i * 128, held[i]);
  }
};

// The group that feeds: for each group its weights as places fall free, and its activations by way of registers. Waits for the
// kernel before once the first weights are on their way.
template <int kFormat, class Row>
FL_DEVICE void fed_feed(const Weight& w, int cols, const Cursor<kFormat> (&rounds)[2], Row row, const WideRowsOf& x,
                        const FedShared<kFormat>& s) {
  FedWeights<kFormat> weights(w, cols, row, s.starts());
  Cursor<kFormat> ahead[2] = {rounds[0], rounds[1]}, soon[2] = {rounds[0], rounds[1]};
  int into[2] = {}, passed[2] = {};
  auto fetch = [&](int group) {
    if (!ahead[group].valid()) return;
    int slot = into[group];
    weights.fetch(s.stage(group, slot), s.weights_full(group, slot), cols, ahead[group].segment, ahead[group].round);
    ahead[group].next();
    into[group] = (slot + 1) % kFedStages;
  };
#pragma unroll 1
  for (int i = 0; i < kFedStages; ++i) fetch(0), fetch(1);
  pdl_wait();
  FedActivations<kFormat> held[2];
  auto load = [&](int group) {
    held[group].valid = soon[group].valid();
    if (!held[group].valid) return;
    held[group].load(x, cols, soon[group].segment, soon[group].round);
    soon[group].next();
  };
  load(0), load(1);
#pragma unroll 1
  while (held[0].valid || held[1].valid) {
#pragma unroll
    for (int group = 0; group < 2; ++group) {
      if (!held[group].valid) continue;
      // What a group is done with: its last activations, and their weights with them.
      barrier_wait(s.columns_free(group), passed[group] % 2 ^ 1);
      if (passed[group]++ > 0) fetch(group);
      held[group].store(s.columns(group));
      columns_written();
      __syncwarp();
      if (lane_idx() == 0) barrier_arrive(s.columns_full(group));
      load(group);
    }
  }
}

// Where a sum lies in shared memory, [column][row].
FL_DEVICE int fed_sum_at(int column, int row) { return column * (kFedRows + 4) + row; }
constexpr int kFedSums = kFedCols * (kFedRows + 4);

// A group that multiplies: its sums, of the last of its segments and of the one before.
template <int kFormat, int kOwn>
struct FedSums {
  WideSums<kFormat, kFedCols, kFedRows> last;
  float before[kFedCols / 8][4] = {};

  FL_DEVICE void multiply(int cols, Cursor<kFormat> at, int group, const FedShared<kFormat>& s) {
    int passed = 0, ended = 0;
#pragma unroll 1
    while (at.valid()) {
      bool both = kFormat != kWeightBf16 || Round<kFormat>::element(at.segment, at.round, 2) < cols;
      int slot = passed % kFedStages;
      barrier_wait(s.weights_full(group, slot), passed / kFedStages % 2);
      barrier_wait(s.columns_full(group), passed % 2);
      last.begin(s.stage(group, slot), s.columns(group), both);
      last.end(s.stage(group, slot));
      __syncwarp();
      if (lane_idx() == 0) barrier_arrive(s.columns_free(group));
      ++passed;
      if (!at.next() || ++ended == kOwn) continue;
#pragma unroll
      for (int i = 0; i < kFedCols / 2; ++i) before[i / 4][i % 4] = last.acc[i / 4][i % 4], last.acc[i / 4][i % 4] = 0.0f;
    }
  }

  // `use(place of a sum, the last segment's, the one's before)`.
  template <class Use>
  FL_DEVICE void each(Use use) const {
    int g = lane_idx() / 4, q = lane_idx() % 4;
#pragma unroll
    for (int i = 0; i < kFedCols / 2; ++i) {
      int at = fed_sum_at(i / 4 * 8 + 2 * q + i % 2, last.row() + g + i % 4 / 2 * 8);
      use(at, last.acc[i / 4][i % 4], before[i / 4][i % 4]);
    }
  }
};

// The sums of a block to the start of shared memory: of its half of the segments (two blocks), or (four) of its two segments,
// one after the other; there after a barrier. All threads.
template <int kFormat, int kBlocks, class Row>
FL_DEVICE void fed_block(const Weight& w, int cols, int rank, Row row, const WideRowsOf& x, unsigned char* shared) {
  constexpr int kOwn = kSegments / kBlocks / 2;
  FedShared<kFormat> s{shared};
  s.init(cols, row);
  int first = 2 * kOwn * rank, group = threadIdx.x / kGroupThreads;
  Cursor<kFormat> rounds[2] = {{cols, first, first + kOwn}, {cols, first + kOwn, first + 2 * kOwn}};
  if (group == 2) {
    fed_feed<kFormat>(w, cols, rounds, row, x, s);
    __syncthreads();
    __syncthreads();
    return;
  }
  pdl_wait();
  FedSums<kFormat, kOwn> sums;
  sums.multiply(cols, group == 0 ? rounds[0] : rounds[1], group, s);
  __syncthreads();
  float* out = (float*)shared;
  if (kBlocks == 4) {
    sums.each([=](int at, float last, float) { out[group * kFedSums + at] = last; });
  } else if (group == 0) {
    sums.each([=](int at, float last, float before) { out[at] = before + last; });
  }
  __syncthreads();
  if (kBlocks == 2 && group == 1) {
    sums.each([=](int at, float last, float before) { out[at] = (out[at] + before) + last; });
  }
}
