// The product of many activation rows and a weight: a block of 64 weight rows a warpgroup by up to 128 activation rows, over one
// segment of K in rounds of 128 elements.
//
// Weights are the left operand, expanded from a ring of stages straight to registers in the order of common/tile.h, so that
// every sum is over the same sixteens of elements as there. Activations are the right operand, in shared memory: their words
// are put where a lane of the left operand has its own, one round ahead by way of registers.
#pragma once

#include "group_mma.h"
#include "tile.h"

// The segments of K that every sum is made of: segment s has steps s, s + kSegments, ...
constexpr int kSegments = 4;
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

// Stages of the ring, by format: as many as `src/cuda/ops/linear.rs` makes room for.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr int kWideStages[] = {0, 4, 6, 8, 8};
#else
constexpr int kWideStages[] = {0, 2, 3, 6, 6};
#endif

template <int kFormat, int kGroups>
struct WideStage {
  using R = Round<kFormat>;
  static constexpr int kRows = 64 * kGroups, kStages = kWideStages[kFormat];
  static constexpr int kScales = kRows * R::kRowBytes, kBytes = kScales + kRows * R::kScaleBytes;

  // Units of neighbouring rows in banks of their own.
  FL_DEVICE static int unit_at(int row, int unit) {
    return row * R::kRowBytes + (R::kUnits > 4 ? unit ^ row % 2 * 4 : unit) * kUnitBytes;
  }
};

// Sends a round of `S::kRows` weight rows on its way to a stage; `row(r)` is the matrix's row. A commit must follow.
template <int kFormat, class S, int kThreads, class Row>
FL_DEVICE void wide_fetch(unsigned char* stage, const Weight& w, int cols, int segment, int round, Row row) {
  using R = Round<kFormat>;
  constexpr bool kBlocks = kFormat == kWeightFp8Block;
  int64_t code_bytes = code_row_bytes(kFormat, cols), scale_bytes = scale_row_bytes(kFormat, cols);
  constexpr int kAtOnce = kThreads / R::kUnits;
  int unit = threadIdx.x % R::kUnits, first = threadIdx.x / R::kUnits;
  int element = R::element(segment, round, unit / 4);
  if (element < cols) {
    const uint8_t* from = (const uint8_t*)w.codes + R::code_bytes(element) + unit % 4 * kUnitBytes;
#pragma unroll
    for (int r = 0; r < S::kRows; r += kAtOnce) {
      copy_async<16>(stage + S::unit_at(first + r, unit), from + row(first + r) * code_bytes);
    }
  }
  if constexpr (R::kScaleBytes > 0) {
    element = R::element(segment, round, 0);
    if (threadIdx.x < S::kRows) {
      int own = row(threadIdx.x);
      const uint8_t* from = (const uint8_t*)w.scales + (kBlocks ? own / 128 : own) * scale_bytes;
      from += kBlocks ? element / 128 * 4 : element / Step<kFormat>::kGroup;
      copy_async<R::kScaleBytes>(stage + S::kScales + threadIdx.x * R::kScaleBytes, from);
    }
  }
}

// The activations of a round, held by the threads on their way to shared memory.
template <int kFormat, int kCols, int kThreads>
struct WideActivations {
  using R = Round<kFormat>;
  static constexpr int kEach = kCols * 16 / kThreads;
  static_assert(kEach > 0, "every thread has a share");
  uint4 held[kEach];

  FL_DEVICE static int piece(int i) { return lane_idx() / 4 % 2 + 2 * ((warp_idx() + i * (kThreads / kWarp)) % 2); }
  FL_DEVICE static int column(int i) { return (warp_idx() + i * (kThreads / kWarp)) / 2 * 4 + lane_idx() / 8; }

  // `x(n)` is activation row n, null for none.
  template <class Rows>
  FL_DEVICE void load(Rows x, int cols, int segment, int round) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      int element = R::element(segment, round, piece(i) / R::kPieces);
      const uint16_t* row = x(column(i));
      held[i] = uint4{0, 0, 0, 0};
      int at = element + lane_idx() % 4 * Step<kFormat>::kUnit + piece(i) % R::kPieces * 8;
      if (row != nullptr && element < cols) held[i] = *(const uint4*)(row + at);
    }
  }

  FL_DEVICE void store(unsigned char* to) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      uint32_t words[4] = {held[i].x, held[i].y, held[i].z, held[i].w};
      if (kFormat == kWeightFp8Block) {
        words[0] = low_halves(held[i].x, held[i].y), words[1] = high_halves(held[i].x, held[i].y);
        words[2] = low_halves(held[i].z, held[i].w), words[3] = high_halves(held[i].z, held[i].w);
      }
      unsigned char* at = to + column(i) * 16 + lane_idx() % 4 * 4 + 4 * piece(i) * Columns<kCols>::kApart;
#pragma unroll
      for (int w = 0; w < 4; ++w) *(uint32_t*)(at + w * Columns<kCols>::kApart) = words[w];
    }
  }
};

// The left operands of half a round: four instructions' fragments of this warp's 16 rows from `row` on.
template <int kFormat, class S>
FL_DEVICE void wide_expand(uint32_t (&a)[4][4], const unsigned char* stage, int row, int half) {
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
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        uint32_t four[4];
        unpack_e2m1_arranged(n == 0 ? codes.x : codes.y, four);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          if (kFormat == kWeightMxfp4) four[j] = mul_bf16x2(four[j], kE2m1Bias);
          pairs[4 * n + j] = mul_bf16x2(four[j], scale);
        }
      }
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

// The sums of a segment to those of the segments before it.
template <int kCols>
FL_DEVICE void fold_segment(float (&total)[kCols / 8][4], float (&acc)[kCols / 8][4], bool first) {
#pragma unroll
  for (int i = 0; i < kCols / 2; ++i) {
    float &to = total[i / 4][i % 4], &from = acc[i / 4][i % 4];
    to = first ? from : to + from, from = 0.0f;
  }
}

// A block's share of the sums of one segment, or of all of them in order. Waits for the kernel before once the first weights
// are on their way.
template <int kFormat, class S, int kCols, int kThreads, bool kAll, class Row, class Rows>
FL_DEVICE void wide_multiply(float (&total)[kCols / 8][4], const Weight& w, int cols, int segment, Row row, Rows x,
                             unsigned char* shared) {
  using R = Round<kFormat>;
  constexpr bool kScaled = kFormat == kWeightFp8Block;
  constexpr int kBuffer = Columns<kCols>::kBytes;
  unsigned char* ring = shared + 2 * kBuffer;
  int own = warp_idx() * kTileRows, end = kAll ? kSegments : segment + 1;
  Cursor<kFormat> ahead(cols, segment, end), here = ahead;
  auto fetch = [&](int slot) {
    if (ahead.valid()) {
      wide_fetch<kFormat, S, kThreads>(ring + slot * S::kBytes, w, cols, ahead.segment, ahead.round, row);
      ahead.next();
    }
    copies_commit();
  };
#pragma unroll 1
  for (int i = 0; i < S::kStages - 1; ++i) fetch(i);
  pdl_wait();
  Cursor<kFormat> soon = here;  // What `held` has, then what it gets next.
  WideActivations<kFormat, kCols, kThreads> held;
  auto load = [&]() {
    if (soon.valid()) held.load(x, cols, soon.segment, soon.round);
  };
  load();
  held.store(shared);
  if (soon.valid()) soon.next();
  load();
  float acc[kCols / 8][4] = {};
  int slot = 0, into = S::kStages - 1, buffer = 0;
  bool first = true;
#pragma unroll 1
  while (here.valid()) {
    copies_wait<S::kStages - 2>();
    columns_written();
    __syncthreads();
    const unsigned char* stage = ring + slot * S::kBytes;
    const unsigned char* columns = shared + buffer * kBuffer;
    bool both = kFormat != kWeightBf16 || R::element(here.segment, here.round, 2) < cols;
    float part[kScaled ? kCols / 8 : 1][4];
    uint32_t a[2][4][4];
    wide_expand<kFormat, S>(a[0], stage, own, 0);
    if constexpr (kScaled) {
      group_multiply<kCols>(part, a[0], columns, 0, false);
    } else {
      group_multiply<kCols>(acc, a[0], columns, 0, true);
    }
    fetch(into);
    if (soon.valid()) {
      held.store(shared + (1 - buffer) * kBuffer);
      soon.next();
      load();
    }
    if (both) {
      wide_expand<kFormat, S>(a[1], stage, own, 1);
      if constexpr (kScaled) {
        group_multiply<kCols>(part, a[1], columns, 1, true);
      } else {
        group_multiply<kCols>(acc, a[1], columns, 1, true);
      }
    }
    if constexpr (kScaled) {
      group_wait<kCols>(part);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float scale = *(const float*)(stage + S::kScales + (own + lane_idx() / 4 + 8 * i) * R::kScaleBytes);
#pragma unroll
        for (int n = 0; n < kCols / 8; ++n) {
          acc[n][2 * i] = fmaf(scale, part[n][2 * i], acc[n][2 * i]);
          acc[n][2 * i + 1] = fmaf(scale, part[n][2 * i + 1], acc[n][2 * i + 1]);
        }
      }
    } else {
      group_wait<kCols>(acc);
    }
    bool ended = here.next();
    if (kAll && ended) fold_segment<kCols>(total, acc, first), first = false;
    into = slot, slot = slot + 1 == S::kStages ? 0 : slot + 1, buffer = 1 - buffer;
  }
  if (!kAll) fold_segment<kCols>(total, acc, true);
  // Segments without steps add zero.
  if (kAll && here.steps < kSegments) fold_segment<kCols>(total, acc, first);
}
