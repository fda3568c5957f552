// topk: the k largest of a row's visible logits, exact, ties to the smaller index, written in ascending index order.
//
// Bytes: 4 a visible logit, once from memory; later passes come from the second-level cache (1 MiB a row of 262,144).
// Notes: (1) one block a row: three radix passes of 11, 11 and 10 bits over an order-preserving key find the k-th key
// exactly, a fourth pass writes; (2) counts are integers, so the order of the atomic additions cannot show; (3) the last
// pass keeps index order by a block-wide prefix sum of (greater, equal) pairs; (4) with no more than k visible rows nothing
// is read; (5) a row of 262,144 through one SM is the slow case: several blocks a row with their histograms exchanged is
// the next step.
#include "topk.h"

#include "common/order.h"
#include "common/pdl.h"

constexpr int kThreads = 1024;
constexpr int kDigitBits = 11;
constexpr int kDigits = 1 << kDigitBits;
constexpr int kPerThread = 8;
// Loads of a thread before the first is used.
constexpr int kInFlight = 8;

namespace {

struct Threshold {
  uint32_t key;    // The k-th largest key, as far as it is known.
  uint32_t mask;   // Which of its bits are.
  uint32_t wanted;  // How many rows with those bits are still to be taken.
};

// Narrows the threshold by the digit at `shift`.
FL_DEVICE void narrow(const float* row, int n, int shift, Threshold& threshold, uint32_t* histogram, uint32_t* scratch,
                      uint32_t* found) {
  for (int i = threadIdx.x; i < kDigits; i += kThreads) histogram[i] = 0;
  __syncthreads();
  for (int start = 0; start < n; start += kThreads * kInFlight) {
    float x[kInFlight];
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      int i = start + j * kThreads + threadIdx.x;
      x[j] = i < n ? row[i] : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      uint32_t key = order_key(x[j]);
      bool counts = start + j * kThreads + (int)threadIdx.x < n && (key & threshold.mask) == threshold.key;
      if (counts) atomicAdd(&histogram[key >> shift & (kDigits - 1)], 1u);
    }
  }
  __syncthreads();
  // Thread i holds the digits 2i and 2i + 1 counted from the largest.
  static_assert(kDigits == 2 * kThreads, "two digits a thread");
  int high = kDigits - 1 - 2 * (int)threadIdx.x;
  uint32_t counts[2] = {histogram[high], histogram[high - 1]}, total;
  uint32_t above = block_exclusive_sum<kThreads>(counts[0] + counts[1], total, scratch);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (above < threshold.wanted && above + counts[i] >= threshold.wanted) {
      found[0] = (uint32_t)(high - i);
      found[1] = threshold.wanted - above;
    }
    above += counts[i];
  }
  __syncthreads();
  threshold.key |= found[0] << shift;
  threshold.mask |= (uint32_t)(kDigits - 1) << shift;
  threshold.wanted = found[1];
  __syncthreads();
}

// Writes the rows above the threshold and the first `wanted` at it.
FL_DEVICE void write_selected(const float* row, int n, const Threshold& threshold, int32_t* selected, uint32_t* scratch) {
  uint32_t greater = 0, equal = 0;
  for (int start = 0; start < n; start += kThreads * kPerThread) {
    int first = start + threadIdx.x * kPerThread;
    uint32_t keys[kPerThread], packed = 0, total;
#pragma unroll
    for (int j = 0; j < kPerThread; ++j) {
      bool inside = first + j < n;
      keys[j] = inside ? order_key(row[first + j]) : 0;
      packed += inside && keys[j] > threshold.key ? 1u : 0u;
      packed += inside && keys[j] == threshold.key ? 1u << 16 : 0u;
    }
    uint32_t before = block_exclusive_sum<kThreads>(packed, total, scratch);
    uint32_t above = greater + (before & 0xffffu), ties = equal + (before >> 16);
#pragma unroll
    for (int j = 0; j < kPerThread; ++j) {
      if (first + j >= n) break;
      bool is_tie = keys[j] == threshold.key, is_above = keys[j] > threshold.key;
      uint32_t taken_ties = ties < threshold.wanted ? ties : threshold.wanted;
      if (is_above || (is_tie && ties < threshold.wanted)) selected[above + taken_ties] = first + j;
      above += is_above;
      ties += is_tie;
    }
    greater += total & 0xffffu;
    equal += total >> 16;
  }
}

}  // namespace

FL_KERNEL(kThreads, topk, TopKParams) {
  __shared__ uint32_t histogram[kDigits];
  __shared__ uint32_t scratch[kThreads / kWarp];
  __shared__ uint32_t found[2];
  pdl_wait();
  int64_t t = blockIdx.x;
  int32_t position = p.position[t];
  int n = position < 0 ? 0 : (int)(((int64_t)position + 1) / 4);
  if (n > p.width) n = p.width;
  int32_t* selected = p.selected + t * p.k;
  if (n <= p.k) {
    for (int i = threadIdx.x; i < p.k; i += kThreads) selected[i] = i < n ? i : -1;
    return;
  }
  const float* row = p.logits + t * p.width;
  Threshold threshold{0, 0, (uint32_t)p.k};
  narrow(row, n, 21, threshold, histogram, scratch, found);
  narrow(row, n, 10, threshold, histogram, scratch, found);
  // The last ten bits; the eleventh is known and repeats.
  narrow(row, n, 0, threshold, histogram, scratch, found);
  write_selected(row, n, threshold, selected, scratch);
}
