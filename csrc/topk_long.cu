// topk of rows that are too long for a cluster: one block a row, exact, in the order and with the ties of topk.cu.
//
// Bytes: 4 a visible logit from memory; the later passes come from the second-level cache as far as it holds the row.
// Notes: (1) three radix passes of 11, 11 and 10 bits over an order-preserving key find the k-th key exactly, a fourth pass
// writes; (2) counts are integers, so the order of the atomic additions cannot show; (3) the last pass keeps index order by
// a block-wide prefix sum of (greater, equal) pairs.
#include "common/chosen.h"
#include "common/order.h"
#include "common/pdl.h"
#include "topk.h"

constexpr int kThreads = 1024;
constexpr int kDigitBits = 11;
constexpr int kDigits = 1 << kDigitBits;
constexpr int kRun = 8;  // Keys of a thread in one stride.

namespace {

// Narrows the threshold by the digit at `shift`; `mask` says which bits of `key` are known, `wanted` how many rows with
// those bits are still to be taken.
struct Threshold {
  uint32_t key, mask, wanted;
};

FL_DEVICE void narrow(const float* row, int n, int shift, Threshold& threshold, uint32_t* histogram, uint32_t* scratch,
                           uint32_t* found) {
  for (int i = threadIdx.x; i < kDigits; i += kThreads) histogram[i] = 0;
  __syncthreads();
  for (int start = 0; start < n; start += kThreads * kRun) {
    float x[kRun];
#pragma unroll
    for (int j = 0; j < kRun; ++j) {
      int i = start + j * kThreads + threadIdx.x;
      x[j] = i < n ? row[i] : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < kRun; ++j) {
      uint32_t key = order_key(x[j]);
      bool counts = start + j * kThreads + (int)threadIdx.x < n && (key & threshold.mask) == threshold.key;
      if (counts) atomicAdd(&histogram[key >> shift & (kDigits - 1)], 1u);
    }
  }
  __syncthreads();
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
  for (int start = 0; start < n; start += kThreads * kRun) {
    int first = start + threadIdx.x * kRun;
    uint32_t keys[kRun], packed = 0, total;
#pragma unroll
    for (int j = 0; j < kRun; ++j) {
      bool inside = first + j < n;
      keys[j] = inside ? order_key(row[first + j]) : 0;
      packed += inside && keys[j] > threshold.key ? 1u : 0u;
      packed += inside && keys[j] == threshold.key ? 1u << 16 : 0u;
    }
    uint32_t before = block_exclusive_sum<kThreads>(packed, total, scratch);
    uint32_t above = greater + (before & 0xffffu), ties = equal + (before >> 16);
#pragma unroll
    for (int j = 0; j < kRun; ++j) {
      if (first + j >= n) break;
      bool is_tie = keys[j] == threshold.key, is_above = keys[j] > threshold.key;
      if (is_above || (is_tie && ties < threshold.wanted)) selected[above + min(ties, threshold.wanted)] = first + j;
      above += is_above;
      ties += is_tie;
    }
    greater += total & 0xffffu;
    equal += total >> 16;
  }
}

}  // namespace

FL_KERNEL(kThreads, topk_long, TopKParams) {
  __shared__ uint32_t histogram[kDigits];
  __shared__ uint32_t scratch[kThreads / kWarp];
  __shared__ uint32_t found[2];
  pdl_wait();
  int64_t t = blockIdx.x;
  int n = visible_rows(p.position[t], p.width);
  int32_t* selected = p.selected + t * p.k;
  if (n <= p.k) return take_all(n, p.k, selected);
  const float* row = p.logits + t * p.width;
  Threshold threshold{0, 0, (uint32_t)p.k};
  narrow(row, n, 21, threshold, histogram, scratch, found);
  narrow(row, n, 10, threshold, histogram, scratch, found);
  // The last ten bits; the eleventh is known and repeats.
  narrow(row, n, 0, threshold, histogram, scratch, found);
  write_selected(row, n, threshold, selected, scratch);
}
