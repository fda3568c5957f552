// The product of many activation rows and a weight: a block of 64 weight rows a warpgroup by up to 128 activation rows, over one
// segment of K in rounds of 128 elements.
//
// Weights are the left operand, expanded from a ring of stages straight to registers in the order of common/tile.h, so that
// every sum is over the same sixteens of elements as there. Activations are the right operand, in shared memory: their words
// are put where a lane of the left operand has its own, one round ahead by way of registers.
#pragma once

#include "group_mma.h"
#include "pdl.h"
#include "phases.h"
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

// How a block goes about its tile of weight rows by `kCols` activation rows. Two groups of four warps multiply and a third
// feeds them. A cluster of `kBlocks` blocks shares the segments out; with `kSplit` so do the two groups, each with all 64 weight
// rows of the block; else each has 64 of 128.
template <int kCols_, int kBlocks_, bool kSplit_>
struct WidePlan {
  static constexpr int kCols = kCols_, kBlocks = kBlocks_;
  static constexpr bool kSplit = kSplit_;
  static constexpr int kStreams = kSplit ? 2 : 1, kRows = (kSplit ? 1 : 2) * kGroupRows;
  // Segments of a stream.
  static constexpr int kOwn = kSegments / kBlocks / kStreams;
  // Columns that a feeding thread holds at once.
  static constexpr int kHeld = kCols < 64 ? kCols : 64;
};
constexpr int kWideRows = 2 * kGroupRows;
constexpr int kFeedThreads = kGroupThreads;
constexpr int kFedThreads = 2 * kGroupThreads;
constexpr int kWideThreads = kFedThreads + kFeedThreads;

template <int kFormat, int kRows>
struct WideStage {
  using R = Round<kFormat>;
  static constexpr int kScales = kRows * R::kRowBytes, kBytes = kScales + kRows * R::kScaleBytes;

  // Units of neighbouring rows in banks of their own.
  FL_DEVICE static int unit_at(int row, int unit) {
    return row * R::kRowBytes + (R::kUnits > 4 ? unit ^ row % 2 * 4 : unit) * kUnitBytes;
  }
};

// Shared memory of a block: barriers, where its weight rows start, activations of some rounds, and a ring of weights for each
// stream.
constexpr int kWideBarriers = 512, kWideStarts = 4 * kWideRows;
template <int kFormat, class P>
struct WideShared {
  using S = WideStage<kFormat, P::kRows>;
  static constexpr int kColumns = Columns<P::kCols>::kBytes;
  unsigned char* base;
  int stages, buffers;

  FL_DEVICE uint64_t* weights_full(int stream, int slot) const { return (uint64_t*)base + stream * stages + slot; }
  FL_DEVICE uint64_t* columns_full(int stream, int slot) const {
    return (uint64_t*)base + P::kStreams * stages + stream * buffers + slot;
  }
  FL_DEVICE uint64_t* columns_free(int stream, int slot) const { return columns_full(stream, slot) + P::kStreams * buffers; }
  FL_DEVICE unsigned char* columns(int stream, int slot) const {
    return base + kWideBarriers + kWideStarts + (stream * buffers + slot) * kColumns;
  }
  FL_DEVICE unsigned char* stage(int stream, int slot) const {
    return columns(P::kStreams, 0) + (stream * stages + slot) * S::kBytes;
  }
  FL_DEVICE uint32_t* starts() const { return (uint32_t*)(base + kWideBarriers); }

  // `row(r)` is the matrix's row r, none before row 0.
  template <class Row>
  FL_DEVICE void init(int64_t code_bytes, Row row) const {
    int r = threadIdx.x;
    if (r < P::kRows) starts()[r] = (uint32_t)((row(r) - row(0)) * code_bytes);
    if (threadIdx.x == 0) {
      barrier_init((uint64_t*)base, P::kStreams * stages, kFeedThreads);
      barrier_init(columns_full(0, 0), P::kStreams * buffers, kFeedThreads / kWarp * (P::kCols / P::kHeld));
      barrier_init(columns_free(0, 0), P::kStreams * buffers, kFedThreads / kWarp / P::kStreams);
    }
    __syncthreads();
  }
};

// What a feeding thread copies of every round: a unit of some weight rows, and a row's scales.
template <int kFormat, int kRows>
struct WideFetch {
  using R = Round<kFormat>;
  using S = WideStage<kFormat, kRows>;
  static constexpr bool kBlocks = kFormat == kWeightFp8Block;
  static constexpr int kAtOnce = kFeedThreads / R::kUnits, kEach = kRows / kAtOnce;
  const uint8_t *codes, *scales;
  const uint32_t* starts;
  int thread;

  template <class Row>
  FL_DEVICE WideFetch(const Weight& w, int cols, Row row, const uint32_t* all) {
    thread = threadIdx.x % kFeedThreads;
    int64_t code_bytes = code_row_bytes(kFormat, cols), scale_bytes = scale_row_bytes(kFormat, cols);
    codes = (const uint8_t*)w.codes + row(0) * code_bytes + thread % R::kUnits % 4 * kUnitBytes;
    starts = all + thread / R::kUnits;
    int own = row(thread % kRows);
    scales = (const uint8_t*)w.scales + (kBlocks ? own / 128 : own) * scale_bytes;
  }

  FL_DEVICE void fetch(unsigned char* stage, int cols, int segment, int round) const {
    int unit = thread % R::kUnits, element = R::element(segment, round, unit / 4);
    if (element < cols) {
      const uint8_t* from = codes + R::code_bytes(element);
      unsigned char* to = stage + S::unit_at(thread / R::kUnits, unit);
#pragma unroll
      for (int i = 0; i < kEach; ++i) copy_async<16>(to + i * kAtOnce * R::kRowBytes, from + starts[i * kAtOnce]);
    }
    if constexpr (R::kScaleBytes > 0) {
      if (thread >= kRows) return;
      int first = R::element(segment, round, 0), at = kBlocks ? first / 128 * 4 : first / Step<kFormat>::kGroup;
      copy_async<R::kScaleBytes>(stage + S::kScales + thread * R::kScaleBytes, scales + at);
    }
  }
};

// The activation rows of a block: `count` of them, `pitch` elements apart.
struct WideRowsOf {
  const uint16_t* first;
  int64_t pitch;
  int count;
};

// `kHeld` of the activation rows of a round, held by the feeding threads on their way to shared memory: a piece of 16 bytes of
// every eighth row.
template <int kFormat, int kCols, int kHeld>
struct WideActivations {
  using R = Round<kFormat>;
  static constexpr int kEach = kHeld / 8;
  uint4 held[kEach];
  bool valid = false;

  FL_DEVICE static int piece() { return lane_idx() / 4 % 2 + 2 * (warp_idx() % 2); }
  FL_DEVICE static int row() { return warp_idx() / 2 % 2 * 4 + lane_idx() / 8; }

  FL_DEVICE void load(const WideRowsOf& x, int first, int cols, int segment, int round) {
    int own = first + row(), element = R::element(segment, round, piece() / R::kPieces);
    const uint16_t* at = x.first + own * x.pitch + lane_idx() % 4 * Step<kFormat>::kUnit + piece() % R::kPieces * 8 + element;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      held[i] = uint4{0, 0, 0, 0};
      if (own + 8 * i < x.count && element < cols) held[i] = *(const uint4*)(at + i * (8 * x.pitch));
    }
    valid = true;
  }

  FL_DEVICE void store(unsigned char* columns, int first) const {
    unsigned char* to = columns + (first + row()) * 16 + lane_idx() % 4 * 4 + 4 * piece() * Columns<kCols>::kApart;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      uint32_t words[4] = {held[i].x, held[i].y, held[i].z, held[i].w};
      if (kFormat == kWeightFp8Block) {
        words[0] = low_halves(held[i].x, held[i].y), words[1] = high_halves(held[i].x, held[i].y);
        words[2] = low_halves(held[i].z, held[i].w), words[3] = high_halves(held[i].z, held[i].w);
      }
#pragma unroll
      for (int w = 0; w < 4; ++w) *(uint32_t*)(to + i * 128 + w * Columns<kCols>::kApart) = words[w];
    }
  }
};

// The left operands of half a round: four instructions' fragments of this warp's 16 rows from `row` on.
template <int kFormat, int kRows>
FL_DEVICE void wide_expand(uint32_t (&a)[4][4], const unsigned char* stage, int row, int half) {
  using S = WideStage<kFormat, kRows>;
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

// Where a sum lies in shared memory, [column][row], with a pitch that keeps the banks of a fragment apart.
template <class P>
FL_DEVICE int sum_at(int column, int row) {
  return column * (P::kRows + 4) + row;
}

// Floats of the sums of a block.
template <class P>
constexpr int kSumFloats = P::kCols * (P::kRows + 4);

// A group gives registers to the others, or takes them.
template <class P>
constexpr int kFeedRegisters = P::kCols == 128 ? 120 : 152;
template <class P>
constexpr int kFedRegisters = P::kCols == 128 ? 192 : 176;
template <int kCount>
FL_DEVICE void registers_fewer() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
#endif
}
template <int kCount>
FL_DEVICE void registers_more() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
#endif
}

// The products of the rounds of a group's segments, for 16 weight rows a warp by `kCols` activation rows.
template <int kFormat, class P>
struct WideSums {
  static constexpr bool kScaled = kFormat == kWeightFp8Block;
  static constexpr int kCols = P::kCols, kTiles = kCols / 8;
  // Columns whose sums of a round are apart until they are scaled.
  static constexpr int kPart = kCols < 64 ? kCols : 64;
  float acc[kTiles][4] = {};
  // The segments before: the one before the last, or all of this half and (`kBlocks` 1) those of the first.
  float before[kTiles][4], low[P::kBlocks == 1 ? kTiles : 1][4];
  int ended = 0;

  FL_DEVICE static int row() { return warp_idx() % (P::kRows / kTileRows) * kTileRows; }

  FL_DEVICE void multiply(const unsigned char* stage, const unsigned char* columns, bool both) {
    uint32_t left[2][4][4];
    wide_expand<kFormat, P::kRows>(left[0], stage, row(), 0);
    if constexpr (!kScaled) {
      group_multiply<kCols>(acc, left[0], columns, 0, true);
      if (both) {
        wide_expand<kFormat, P::kRows>(left[1], stage, row(), 1);
        group_multiply<kCols>(acc, left[1], columns, 1, true);
      }
      group_wait<kCols>(acc);
    } else {
      float part[kPart / 8][4];
      const float* scales = (const float*)(stage + WideStage<kFormat, P::kRows>::kScales) + row() + lane_idx() / 4;
#pragma unroll
      for (int c = 0; c < kCols; c += kPart) {
        group_multiply<kPart, Columns<kCols>::kApart>(part, left[0], columns + c * 16, 0, false);
        if (c == 0) wide_expand<kFormat, P::kRows>(left[1], stage, row(), 1);
        group_multiply<kPart, Columns<kCols>::kApart>(part, left[1], columns + c * 16, 1, true);
        group_wait<kPart>(part);
#pragma unroll
        for (int i = 0; i < kPart / 2; ++i) {
          float& to = acc[c / 8 + i / 4][i % 4];
          to = fmaf(scales[i % 4 / 2 * 8], part[i / 4][i % 4], to);
        }
      }
    }
  }

  // The segment is over; not the last of the stream's.
  FL_DEVICE void end_segment() {
#pragma unroll
    for (int i = 0; i < 4 * kTiles; ++i) {
      float &sum = acc[i / 4][i % 4], &to = before[i / 4][i % 4];
      if (P::kBlocks == 1 && ended == kHalfSegments) low[P::kBlocks == 1 ? i / 4 : 0][i % 4] = to;
      to = ended % kHalfSegments == 0 ? sum : to + sum;
      sum = 0.0f;
    }
    ++ended;
  }

  template <class Use>
  FL_DEVICE void each(Use use) {
    int g = lane_idx() / 4, q = lane_idx() % 4;
#pragma unroll
    for (int i = 0; i < 4 * kTiles; ++i) {
      int at = sum_at<P>(i / 4 * 8 + 2 * q + i % 2, row() + g + i % 4 / 2 * 8);
      use(at, acc[i / 4][i % 4], before[i / 4][i % 4], low[P::kBlocks == 1 ? i / 4 : 0][i % 4]);
    }
  }
};

// The group that feeds: the weights of all rounds as places fall free, and the activations a round ahead by way of registers.
// Waits for the kernel before once the first weights are on their way.
template <int kFormat, class P, class Row>
FL_DEVICE void wide_feed(const Weight& w, int cols, int segment, Row row, const WideRowsOf& x, const WideShared<kFormat, P>& s) {
  WideFetch<kFormat, P::kRows> weights(w, cols, row, s.starts());
  auto cursor = [=](int stream) {
    return Cursor<kFormat>(cols, segment + stream * P::kOwn, segment + (stream + 1) * P::kOwn);
  };
  Cursor<kFormat> ahead[2] = {cursor(0), cursor(P::kStreams - 1)}, soon[2] = {ahead[0], ahead[1]};
  int into[2] = {};
  Place place[2];
  int passed[2] = {};
  auto fetch = [&](int stream) {
    if (!ahead[stream].valid()) return;
    weights.fetch(s.stage(stream, into[stream]), cols, ahead[stream].segment, ahead[stream].round);
    barrier_arrive_copied(s.weights_full(stream, into[stream]));
    ahead[stream].next();
    into[stream] = into[stream] + 1 == s.stages ? 0 : into[stream] + 1;
  };
#pragma unroll 1
  for (int i = 0; i < s.stages; ++i) {
#pragma unroll
    for (int stream = 0; stream < P::kStreams; ++stream) fetch(stream);
  }
  pdl_wait();
  WideActivations<kFormat, P::kCols, P::kHeld> held[2];
  // With two streams each half has its own; else the halves take turns, at the parts of a round or at rounds.
  constexpr int kParts = P::kCols / P::kHeld;
  auto load = [&](int half) {
    int stream = P::kSplit ? half : 0;
    Cursor<kFormat>& at = soon[stream];
    held[half].valid = at.valid();
    if (!at.valid()) return;
    held[half].load(x, kParts == 2 ? half * P::kHeld : 0, cols, at.segment, at.round);
    if (kParts == 1 || half == 1) at.next();
  };
  load(0);
  load(1);
#pragma unroll 1
  while (held[0].valid || held[1].valid) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!held[half].valid) continue;
      int stream = P::kSplit ? half : 0;
      Place& at = place[stream];
      if (kParts == 1 || half == 0) {
        barrier_wait(s.columns_free(stream, at.slot), at.parity ^ 1);
        if (passed[stream] == s.buffers) {
          fetch(stream);
        } else {
          ++passed[stream];
        }
      }
      held[half].store(s.columns(stream, at.slot), kParts == 2 ? half * P::kHeld : 0);
      columns_written();
      __syncwarp();
      if (lane_idx() == 0) barrier_arrive(s.columns_full(stream, at.slot));
      if (kParts == 1 || half == 1) at.next(s.buffers);
      load(half);
    }
  }
}

// A group that multiplies.
template <int kFormat, class P>
FL_DEVICE void wide_multiply(WideSums<kFormat, P>& sums, int cols, int segment, const WideShared<kFormat, P>& s) {
  int stream = P::kSplit ? warp_idx() / 4 : 0;
  Cursor<kFormat> at(cols, segment + stream * P::kOwn, segment + (stream + 1) * P::kOwn);
  Place weights, columns;
#pragma unroll 1
  while (at.valid()) {
    bool both = kFormat != kWeightBf16 || Round<kFormat>::element(at.segment, at.round, 2) < cols;
    barrier_wait(s.weights_full(stream, weights.slot), weights.parity);
    barrier_wait(s.columns_full(stream, columns.slot), columns.parity);
    sums.multiply(s.stage(stream, weights.slot), s.columns(stream, columns.slot), both);
    __syncwarp();
    if (lane_idx() == 0) barrier_arrive(s.columns_free(stream, columns.slot));
    weights.next(s.stages), columns.next(s.buffers);
    if (at.next() && sums.ended < P::kOwn - 1) sums.end_segment();
  }
  // Segments without steps add zero.
#pragma unroll 1
  while (sums.ended < P::kOwn - 1) sums.end_segment();
}

// A block's sums, to `out` as `sum_at` says: of its half of the segments (two blocks) or of all, or (four) of its two segments,
// one after the other; there after a barrier of all. Two barriers of the block; the feeding group has as many.
template <int kFormat, class P>
FL_DEVICE void wide_sums(int cols, int segment, const WideShared<kFormat, P>& s, float* out) {
  WideSums<kFormat, P> sums;
  wide_multiply<kFormat, P>(sums, cols, segment, s);
  bool second = P::kSplit && warp_idx() >= 4;
  __syncthreads();
  if constexpr (P::kBlocks == 4) {
    float* own = out + (second ? kSumFloats<P> : 0);
    sums.each([=](int at, float last, float, float) { own[at] = last; });
  } else if (!second) {
    sums.each([=](int at, float last, float before, float low) {
      out[at] = P::kBlocks == 2 ? before + last : low + (before + last);
    });
  }
  __syncthreads();
  if (P::kBlocks == 2 && second) {
    sums.each([=](int at, float last, float first, float) { out[at] = (out[at] + first) + last; });
  }
}
