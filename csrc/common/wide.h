// The product of many activation rows and a weight: a block of 64 weight rows a warpgroup by up to 128 activation rows, over one
// segment of K in rounds of 128 elements.
//
// Weights are the left operand, expanded from a ring of stages straight to registers in the order of common/tile.h, so that
// every sum is over the same sixteens of elements as there. Activations are the right operand, in shared memory: their words
// are put where a lane of the left operand has its own, one round ahead by way of registers.
#pragma once

#include "group_mma.h"
#include "tile.h"

// The segments of K that every sum is made of: segment s has steps s, s + kSegments, ... Each is summed from zero; those of a
// half are added in order, and then the halves.
constexpr int kSegments = 8;
constexpr int kHalfSegments = kSegments / 2;
constexpr int kRoundElements = 128;

template <int kFormat>
struct Round {
  using F = Step<kFormat>;
  // 16-byte units of a row, and the quads of them that four lanes share; the pieces of 16 bytes of activations of a unit.
  static constexpr int kUnits = kRoundElements / F::kUnit, kQuads = kUnits / 4, kPieces = F::kUnit / 8;
  static constexpr int kRowBytes = kUnits * kUnitBytes;
  static constexpr int kScaleBytes = kFormat == kWeightNvfp4 ? 8 : kFormat == kWeightBf16 ? 0 : 4;

  // Rounds of a segment of `steps` steps in all.
  FL_DEVICE static int count(int steps, int segment) {
    int own = (steps - segment + kSegments - 1) / kSegments;
    if (own <= 0) return 0;
    return kFormat == kWeightBf16 ? (own + 1) / 2 : kFormat == kWeightFp8Block ? own : 2 * own;
  }
  // The first element of a quad.
  FL_DEVICE static int element(int segment, int round, int quad) {
    if (kFormat == kWeightBf16) return (segment + kSegments * (2 * round + quad / 2)) * F::kElements + quad % 2 * (4 * F::kUnit);
    if (kFormat == kWeightFp8Block) return (segment + kSegments * round) * F::kElements + quad * (4 * F::kUnit);
    return (segment + kSegments * (round / 2)) * F::kElements + round % 2 * kRoundElements;
  }
  FL_DEVICE static int code_bytes(int elements) {
    return kFormat == kWeightBf16 ? 2 * elements : kFormat == kWeightFp8Block ? elements : elements / 2;
  }
};

// Stages of the ring, by format: two blocks of a cluster of four fit a multiprocessor that has 227 KiB of shared memory, and
// one fits where there are 99. `src/cuda/ops/linear.rs` makes room for as many.
template <int kCols, int kBlocks>
FL_DEVICE constexpr int wide_stages(int format) {
  if (kCols == 128) return format == kWeightBf16 ? 3 : format == kWeightFp8Block ? 5 : 8;
  if (kBlocks == 1) return format == kWeightBf16 ? 4 : format == kWeightFp8Block ? 6 : 8;
  return format == kWeightBf16 || format == kWeightFp8Block ? 2 : 3;
}

constexpr int kWideThreads = 2 * kGroupThreads;
constexpr int kWideRows = 2 * kGroupRows;

template <int kFormat>
struct WideStage {
  using R = Round<kFormat>;
  static constexpr int kScales = kWideRows * R::kRowBytes, kBytes = kScales + kWideRows * R::kScaleBytes;

  // Units of neighbouring rows in banks of their own.
  FL_DEVICE static int unit_at(int row, int unit) {
    return row * R::kRowBytes + (R::kUnits > 4 ? unit ^ row % 2 * 4 : unit) * kUnitBytes;
  }
};

// What a thread copies of every round: a unit of some weight rows, and a row's scales. `row(r)` is the matrix's row r, which
// for rows 16 apart ascends.
template <int kFormat>
struct WideFetch {
  using R = Round<kFormat>;
  using S = WideStage<kFormat>;
  static constexpr bool kBlocks = kFormat == kWeightFp8Block;
  static constexpr int kAtOnce = kWideThreads / R::kUnits, kEach = kWideRows / kAtOnce;
  const uint8_t *codes, *scales;
  uint32_t offsets[kEach];

  template <class Row>
  FL_DEVICE WideFetch(const Weight& w, int cols, Row row) {
    int64_t code_bytes = code_row_bytes(kFormat, cols), scale_bytes = scale_row_bytes(kFormat, cols);
    int unit = threadIdx.x % R::kUnits, first = threadIdx.x / R::kUnits, from = row(first);
    codes = (const uint8_t*)w.codes + from * code_bytes + unit % 4 * kUnitBytes;
#pragma unroll
    for (int i = 0; i < kEach; ++i) offsets[i] = (uint32_t)((row(first + i * kAtOnce) - from) * code_bytes);
    int own = row((int)threadIdx.x % kWideRows);
    scales = (const uint8_t*)w.scales + (kBlocks ? own / 128 : own) * scale_bytes;
  }

  // A commit must follow.
  FL_DEVICE void fetch(unsigned char* stage, int cols, int segment, int round) const {
    int unit = threadIdx.x % R::kUnits, element = R::element(segment, round, unit / 4);
    if (element < cols) {
      const uint8_t* from = codes + R::code_bytes(element);
      unsigned char* to = stage + S::unit_at(threadIdx.x / R::kUnits, unit);
#pragma unroll
      for (int i = 0; i < kEach; ++i) copy_async<16>(to + i * kAtOnce * R::kRowBytes, from + offsets[i]);
    }
    if constexpr (R::kScaleBytes > 0) {
      if (threadIdx.x >= kWideRows) return;
      int first = R::element(segment, round, 0), at = kBlocks ? first / 128 * 4 : first / Step<kFormat>::kGroup;
      copy_async<R::kScaleBytes>(stage + S::kScales + threadIdx.x * R::kScaleBytes, scales + at);
    }
  }
};

// The activation rows of a block: `count` of them, `pitch` elements apart.
struct WideRowsOf {
  const uint16_t* first;
  int64_t pitch;
  int count;
};

// The activations of a round, held by the threads on their way to shared memory: a piece of 16 bytes of every 16th row.
template <int kFormat, int kCols>
struct WideActivations {
  using R = Round<kFormat>;
  static constexpr int kEach = kCols / 16;
  const uint16_t* from;
  int64_t step;
  int count, to;
  uint4 held[kEach];

  FL_DEVICE static int piece() { return lane_idx() / 4 % 2 + 2 * (warp_idx() % 2); }

  FL_DEVICE WideActivations(const WideRowsOf& x) {
    int row = warp_idx() / 2 * 4 + lane_idx() / 8, q = lane_idx() % 4;
    from = x.first + row * x.pitch + q * Step<kFormat>::kUnit + piece() % R::kPieces * 8;
    step = 16 * x.pitch, count = (x.count - row + 15) / 16;
    to = row * 16 + q * 4 + 4 * piece() * Columns<kCols>::kApart;
  }

  FL_DEVICE void load(int cols, int segment, int round) {
    int element = R::element(segment, round, piece() / R::kPieces);
    const uint16_t* at = from + element;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      held[i] = uint4{0, 0, 0, 0};
      if (i < count && element < cols) held[i] = *(const uint4*)(at + i * step);
    }
  }

  FL_DEVICE void store(unsigned char* columns) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      uint32_t words[4] = {held[i].x, held[i].y, held[i].z, held[i].w};
      if (kFormat == kWeightFp8Block) {
        words[0] = low_halves(held[i].x, held[i].y), words[1] = high_halves(held[i].x, held[i].y);
        words[2] = low_halves(held[i].z, held[i].w), words[3] = high_halves(held[i].z, held[i].w);
      }
#pragma unroll
      for (int w = 0; w < 4; ++w) *(uint32_t*)(columns + to + i * 256 + w * Columns<kCols>::kApart) = words[w];
    }
  }
};

// The left operands of half a round: four instructions' fragments of this warp's 16 rows from `row` on.
template <int kFormat>
FL_DEVICE void wide_expand(uint32_t (&a)[4][4], const unsigned char* stage, int row, int half) {
  using S = WideStage<kFormat>;
  int g = lane_idx() / 4, q = lane_idx() % 4;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    int own = row + g + 8 * i;
    uint32_t pairs[8];
    if constexpr (kFormat == kWeightBf16) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        uint4 unit = *(const uint4*)(stage + S::unit_at(own, (2 * half + n) * 4 + q));
        pairs[4 * n] = unit.x, pairs[4 * n + 1] = unit.y, pairs[4 * n + 2] = unit.z, pairs[4 * n + 3] = unit.w;
      }
    } else if constexpr (kFormat == kWeightFp8Block) {
      uint32_t none[2] = {0, 0};
      expand_unit<kFormat>(*(const uint4*)(stage + S::unit_at(own, half * 4 + q)), none, pairs);
    } else {
      uint2 codes = *(const uint2*)(stage + S::unit_at(own, q) + 8 * half);
      const unsigned char* scales = stage + S::kScales + own * Round<kFormat>::kScaleBytes;
      uint32_t scale = kFormat == kWeightNvfp4 ? nvfp4_scale_pair(scales[2 * q + half]) : ue8m0_scale_pair(scales[q]);
      expand_codes<kFormat>(codes.x, codes.y, scale, pairs);
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) a[k][i] = pairs[2 * k], a[k][i + 2] = pairs[2 * k + 1];
  }
}

// A place among the rounds of segments first .. end - 1, one after the other.
template <int kFormat>
struct Cursor {
  int steps, segment, end, round;

  FL_DEVICE Cursor(int cols, int first, int end) : steps(Step<kFormat>::count(cols)), segment(first), end(end), round(0) {
    pass_empty();
  }
  FL_DEVICE bool valid() const { return segment < end; }
  FL_DEVICE void pass_empty() {
    // Steps are dealt out in turn: from an empty segment on all are empty.
    if (segment >= steps) segment = end;
  }
  // Whether a segment ends there.
  FL_DEVICE bool next() {
    if (++round < Round<kFormat>::count(steps, segment)) return false;
    ++segment, round = 0;
    pass_empty();
    return true;
  }
};

// The products of a round added to a segment's sums; they are there after `wide_wait`.
template <int kFormat, int kCols>
struct WideSums {
  static constexpr bool kScaled = kFormat == kWeightFp8Block;
  float acc[kCols / 8][4] = {};
  float part[kScaled ? kCols / 8 : 1][4];
  uint32_t left[2][4][4];

  FL_DEVICE void begin(const unsigned char* stage, const unsigned char* columns, bool both) {
    int row = warp_idx() * kTileRows;
    wide_expand<kFormat>(left[0], stage, row, 0);
    half(columns, 0);
    if (!both) return;
    wide_expand<kFormat>(left[1], stage, row, 1);
    half(columns, 1);
  }

  FL_DEVICE void half(const unsigned char* columns, int half) {
    if constexpr (kScaled) {
      group_multiply<kCols>(part, left[half], columns, half, half > 0);
    } else {
      group_multiply<kCols>(acc, left[half], columns, half, true);
    }
  }

  FL_DEVICE void end(const unsigned char* stage) {
    if constexpr (!kScaled) {
      group_wait<kCols>(acc);
    } else {
      group_wait<kCols>(part);
      using S = WideStage<kFormat>;
      int row = warp_idx() * kTileRows + lane_idx() / 4;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float scale = *(const float*)(stage + S::kScales + (row + 8 * i) * Round<kFormat>::kScaleBytes);
#pragma unroll
        for (int n = 0; n < kCols / 8; ++n) {
          acc[n][2 * i] = fmaf(scale, part[n][2 * i], acc[n][2 * i]);
          acc[n][2 * i + 1] = fmaf(scale, part[n][2 * i + 1], acc[n][2 * i + 1]);
        }
      }
    }
  }
};

// Where a sum lies in shared memory, [column][row], with a pitch that keeps the banks of a fragment apart.
FL_DEVICE int sum_at(int column, int row) { return column * (kWideRows + 4) + row; }

// A thread's sums to where they lie, or added to what it put there before; and then zero.
template <int kCols>
FL_DEVICE void put_sums(float (&acc)[kCols / 8][4], float* sums, bool add) {
  int g = lane_idx() / 4, q = lane_idx() % 4, row = warp_idx() * kTileRows + g;
#pragma unroll
  for (int n = 0; n < kCols / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float* at = sums + sum_at(8 * n + 2 * q + i % 2, row + i / 2 * 8);
      *at = add ? *at + acc[n][i] : acc[n][i];
      acc[n][i] = 0.0f;
    }
  }
}

// Floats of the sums of a block.
template <int kCols>
constexpr int kSumFloats = kCols * (kWideRows + 4);

// A block's share of the segments: an eighth of them times 2, 4 or 8. The sums of the last lie at the start of shared memory in
// the end; those of the segments before it, added up half by half, where the result points, [half]. Waits for the kernel
// before once the first weights are on their way.
template <int kFormat, int kCols, int kBlocks, class Row>
FL_DEVICE float* wide_multiply(const Weight& w, int cols, int rank, Row row, const WideRowsOf& x, unsigned char* shared) {
  using S = WideStage<kFormat>;
  constexpr int kBuffer = Columns<kCols>::kBytes, kStages = wide_stages<kCols, kBlocks>(kFormat);
  constexpr int kOwn = kSegments / kBlocks;
  // The sums of the segment before are held in registers where there are enough of them, to save shared memory.
  constexpr bool kHeld = kBlocks == 4 && kFormat == kWeightBf16;
  unsigned char* ring = shared + 2 * kBuffer;
  float* before = kHeld ? (float*)shared + kSumFloats<kCols> : (float*)(ring + kStages * S::kBytes);
  WideFetch<kFormat> weights(w, cols, row);
  Cursor<kFormat> ahead(cols, rank * kOwn, (rank + 1) * kOwn), here = ahead;
  auto fetch = [&](int slot) {
    if (ahead.valid()) {
      weights.fetch(ring + slot * S::kBytes, cols, ahead.segment, ahead.round);
      ahead.next();
    }
    copies_commit();
  };
#pragma unroll 1
  for (int i = 0; i < kStages - 1; ++i) fetch(i);
  pdl_wait();
  Cursor<kFormat> soon = here;  // What `held` has.
  WideActivations<kFormat, kCols> held(x);
  auto load = [&]() {
    if (soon.valid()) held.load(cols, soon.segment, soon.round);
  };
  load();
  if (soon.valid()) {
    held.store(shared);
    soon.next();
  }
  load();
  WideSums<kFormat, kCols> sums;
  float first[kHeld ? kCols / 8 : 1][4] = {};
  int slot = 0, into = kStages - 1, buffer = 0, ended = 0;
  auto end_segment = [&]() {
    if constexpr (kHeld) {
#pragma unroll
      for (int i = 0; i < kCols / 2; ++i) first[i / 4][i % 4] = sums.acc[i / 4][i % 4], sums.acc[i / 4][i % 4] = 0.0f;
    } else {
      put_sums<kCols>(sums.acc, before + ended / kHalfSegments * kSumFloats<kCols>, ended % kHalfSegments > 0);
    }
    ++ended;
  };
#pragma unroll 1
  while (here.valid()) {
    copies_wait<kStages - 2>();
    columns_written();
    __syncthreads();
    const unsigned char* stage = ring + slot * S::kBytes;
    bool both = kFormat != kWeightBf16 || Round<kFormat>::element(here.segment, here.round, 2) < cols;
    sums.begin(stage, shared + buffer * kBuffer, both);
    fetch(into);
    if (soon.valid()) {
      held.store(shared + (1 - buffer) * kBuffer);
      soon.next();
      load();
    }
    sums.end(stage);
    if (here.next() && ended < kOwn - 1) end_segment();
    into = slot, slot = slot + 1 == kStages ? 0 : slot + 1, buffer = 1 - buffer;
  }
  // Segments without steps add zero.
#pragma unroll 1
  while (ended < kOwn - 1) end_segment();
  copies_wait<0>();
  __syncthreads();
  put_sums<kCols>(sums.acc, (float*)shared, false);
  if constexpr (kHeld) put_sums<kCols>(first, before, false);
  return before;
}
