// How tiles of a query's rows become parts, and parts the whole; and how that is stored. Both kernels of `attention` add in this
// order, so a row's bits do not tell which of them ran.
#pragma once

#include "../attention.h"
#include "mma.h"
#include "rows.h"

// The largest score counts as at least this, so that differences stay finite where nothing is seen.
constexpr float kFloor = -1e30f;

// exp(x) within a few roundings of x.
FL_DEVICE float quick_exp(float x) {
#if defined(__CUDA_ARCH__)
  return __expf(x);
#else
  return expf(x);
#endif
}

// Some rows, and later ones, as one: sums at `first` and sums at `other`.
struct Fold {
  float largest, keep, add;

  FL_DEVICE Fold(float first, float other) {
    largest = fmaxf(first, other);
    keep = quick_exp(first - largest), add = quick_exp(other - largest);
  }
  FL_DEVICE float sum(float first, float other) const { return fmaf(add, other, first * keep); }
};

// The denominator over some rows of a head, at its largest score. A part starts with the sink or, after the first, with -inf,
// which adds nothing.
struct Denominator {
  float largest, sum;

  FL_DEVICE explicit Denominator(float sink) : largest(fmaxf(sink, kFloor)), sum(quick_exp(sink - largest)) {}
  FL_DEVICE Denominator(float largest, float sum) : largest(largest), sum(sum) {}
  FL_DEVICE Fold fold(const Denominator& other) {
    Fold fold(largest, other.largest);
    largest = fold.largest, sum = fold.sum(sum, other.sum);
    return fold;
  }
};

// Parts into which a token's tiles are cut, and the tiles of one, by their number alone.
constexpr int kParts = 2;
FL_DEVICE int tiles_of_part(int tiles) { return (tiles + kParts - 1) / kParts; }

// Divided by the denominator, the last 64 dims turned back, and stored: `kCount` neighbouring dims of a head.
template <int kCount>
FL_DEVICE void store_dims(const AttentionParams& p, float (&v)[kCount], float sum, int64_t t, int head, int dim, int position) {
  float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
#pragma unroll
  for (int n = 0; n < kCount; ++n) v[n] *= inverse;
  if (dim >= kNopeDim && position >= 0) rotate_pairs(v, p.rope, position, p.max_positions, (dim - kNopeDim) / 2, -1.0f);
  uint32_t* out = (uint32_t*)(p.out + (t * p.heads + head) * kHeadDim + dim);
#pragma unroll
  for (int n = 0; n < kCount / 2; ++n) out[n] = pack_bf16(v[2 * n], v[2 * n + 1]);
}
