// Pooling of tokens into compressed rows, a thread a channel: the state, the softmax, the norm and the rotation.
#pragma once

#include "compress.h"
#include "kernel.h"
#include "pdl.h"
#include "reduce.h"
#include "rows.h"

constexpr int kC4Ring = 16;

FL_DEVICE int c4_state_slot(int position) { return position / kBlockTokens % 2 * 8 + position % 8; }

// The tokens of one request. `index` of a token is its place in the step; a position that does not follow its
// predecessor's is treated as padding, so that no index leaves the step.
struct RequestTokens {
  const int32_t* position;
  int per_request;
  int first;

  FL_DEVICE RequestTokens(const CompressParams& p, int request)
      : position(p.position + (int64_t)request * p.per_request), per_request(p.per_request), first(position[0]) {}

  FL_DEVICE bool valid(int index) const {
    return index >= 0 && index < per_request && first >= 0 && position[index] == first + index;
  }
};

// What a row needs once it is pooled, on its way before that: the angle of this thread's channel, and the row's place.
template <int kWidth>
struct RowEnd {
  static constexpr int kFirstRotated = kWidth - kRopeDim;
  float2 angle;
  int64_t slot;

  // The row of the token at `index`, whose first token has `position`.
  FL_DEVICE RowEnd(const CompressParams& p, int64_t request, int index, int position) : angle{1.0f, 0.0f} {
    int channel = threadIdx.x;
    if (channel >= kFirstRotated) angle = *rope_angles(p.rope, position, p.max_positions, (channel - kFirstRotated) / 2);
    slot = p.row_slot[request * p.per_request + index];
  }

  // Normed and rotated value of this thread's channel.
  FL_DEVICE float norm_and_rotate(float pooled, float gain, float eps, float* scratch) const {
    float scale = 1.0f / sqrtf(block_sum<kWidth>(pooled * pooled, scratch) / (float)kWidth + eps);
    float value = pooled * scale * gain;
    float other = __shfl_xor_sync(kFullMask, value, 1);
    if ((int)threadIdx.x < kFirstRotated) return value;
    return threadIdx.x % 2 == 0 ? value * angle.x - other * angle.y : other * angle.y + value * angle.x;
  }
};

// Projections of a token: `column` of kv and of gate with its `ape`.
struct Candidate {
  float kv, gate;
};

template <int kWidth>
FL_DEVICE Candidate c4_candidate(const CompressParams& p, const RequestTokens& tokens, int64_t request, const float* state,
                                 int position, int half) {
  int column = half * kWidth + threadIdx.x;
  // No branch around the loads, so that all of a row's are under way at once.
  bool in_step = position >= tokens.first;
  const float* row = in_step ? p.kvg + (request * p.per_request + position - tokens.first) * (4 * kWidth)
                             : state + (int64_t)c4_state_slot(position) * (4 * kWidth);
  float ape = in_step ? p.ape[position % 4 * 2 * kWidth + column] : 0.0f;
  return {row[column], row[2 * kWidth + column] + ape};
}

// Ratio 4: the eight candidates of the row that the token at `position` completes, in order of position.
template <int kWidth>
FL_DEVICE float c4_pool(const CompressParams& p, const RequestTokens& tokens, int64_t request, const float* state,
                        int position) {
  Candidate all[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) all[i] = c4_candidate<kWidth>(p, tokens, request, state, max(0, position - 7 + i), i / 4);
  float largest = -INFINITY, sum = 0.0f, pooled = 0.0f;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (position - 7 + i < 0) all[i] = {0.0f, -INFINITY};
    largest = fmaxf(largest, all[i].gate);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float weight = expf(all[i].gate - largest);
    sum += weight;
    pooled = fmaf(weight, all[i].kv, pooled);
  }
  return pooled / sum;
}

// What a token gives its state: this thread's channel in both halves.
struct Given {
  float kv[2], gate[2];

  template <int kWidth>
  FL_DEVICE void load(const CompressParams& p, int64_t request, int index) {
    const float* row = p.kvg + (request * p.per_request + index) * (4 * kWidth) + threadIdx.x;
#pragma unroll
    for (int half = 0; half < 2; ++half) kv[half] = row[half * kWidth], gate[half] = row[(2 + half) * kWidth];
  }
  template <int kWidth>
  FL_DEVICE void store(const CompressParams& p, float* state, int position) const {
    const float* ape = p.ape + position % 4 * 2 * kWidth + threadIdx.x;
    float* slot = state + (int64_t)c4_state_slot(position) * (4 * kWidth) + threadIdx.x;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      slot[half * kWidth] = kv[half];
      slot[(2 + half) * kWidth] = gate[half] + ape[half * kWidth];
    }
  }
};

// Every row and state of one request at ratio 4; `store(value, slot)` gets each finished row, a channel a thread.
template <int kWidth, class Store>
FL_DEVICE void c4_compress(const CompressParams& p, float* scratch, Store store) {
  int64_t request = blockIdx.x / p.splits;
  int split = blockIdx.x % p.splits;
  float gain = gain_at(p.norm, threadIdx.x);
  // At decode the token that is there, on its way before its position is known.
  if (threadIdx.x < 8 * kWidth / 32) prefetch(p.ape + 32 * threadIdx.x);
  pdl_wait();
  Given given;
  given.load<kWidth>(p, request, min(split, p.per_request - 1));
  RequestTokens tokens(p, (int)request);
  int32_t state_index = p.state_slot[request];
  if (state_index < 0 || state_index >= p.state_slots) return;
  float* state = p.state + (int64_t)state_index * kC4Ring * 4 * kWidth;

  for (int i = (3 - tokens.first % 4) + 4 * split; tokens.valid(i); i += 4 * p.splits) {
    int position = tokens.first + i;
    RowEnd<kWidth> end(p, request, i, position - 3);
    float pooled = c4_pool<kWidth>(p, tokens, request, state, position);
    store(end.norm_and_rotate(pooled, gain, p.eps, scratch), end.slot);
  }
  // Rows read the states of older tokens, which the writes below may replace.
  __syncthreads();
  for (int i = split; tokens.valid(i); i += p.splits) {
    int position = tokens.first + i;
    bool replaced = position % kBlockTokens + 8 < kBlockTokens && tokens.valid(i + 8);
    if (replaced) continue;
    if (i != split) given.load<kWidth>(p, request, i);
    given.store<kWidth>(p, state, position);
  }
}

// The running softmax of a channel.
struct Online {
  float largest, sum, acc;

  FL_DEVICE void add(float kv, float gate) {
    float next = fmaxf(largest, gate);
    float keep = expf(largest - next), weight = expf(gate - next);
    sum = fmaf(sum, keep, weight);
    acc = fmaf(acc, keep, weight * kv);
    largest = next;
  }
};

// The same at ratio 128: token by token, so that a prefill leaves the bits that decoding would.
template <int kWidth, class Store>
FL_DEVICE void c128_compress(const CompressParams& p, float* scratch, Store store) {
  int64_t request = blockIdx.x / p.splits;
  int channel = threadIdx.x;
  pdl_wait();
  RequestTokens tokens(p, (int)request);
  int32_t state_index = p.state_slot[request];
  if (!tokens.valid(0) || state_index < 0 || state_index >= p.state_slots) return;
  float* state = p.state + (int64_t)state_index * 2 * 3 * kWidth;

  // Segment s holds the positions of one row of 128; a block takes every `splits`-th.
  for (int s = blockIdx.x % p.splits;; s += p.splits) {
    int start = max((tokens.first / 128 + s) * 128, tokens.first);
    if (!tokens.valid(start - tokens.first)) break;
    Online online{-INFINITY, 0.0f, 0.0f};
    if (start % 128 != 0) {
      const float* before = state + (int64_t)((start - 1) % 2) * 3 * kWidth;
      online = {before[channel], before[kWidth + channel], before[2 * kWidth + channel]};
    }
    for (int i = start - tokens.first; tokens.valid(i) && (tokens.first + i) / 128 == start / 128; ++i) {
      int position = tokens.first + i;
      const float* row = p.kvg + (request * p.per_request + i) * (2 * kWidth);
      online.add(row[channel], row[kWidth + channel] + p.ape[position % 128 * kWidth + channel]);
      if (!tokens.valid(i + 2)) {
        float* after = state + (int64_t)(position % 2) * 3 * kWidth;
        after[channel] = online.largest;
        after[kWidth + channel] = online.sum;
        after[2 * kWidth + channel] = online.acc;
      }
      if (position % 128 == 127) {
        RowEnd<kWidth> end(p, request, i, position - 127);
        store(end.norm_and_rotate(online.acc / online.sum, gain_at(p.norm, channel), p.eps, scratch), end.slot);
      }
    }
  }
}
