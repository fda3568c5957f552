// compress: tokens pooled into one key/value row per 4 or 128 of them; state update, softmax pooling, norm, rotation,
// rounding and page store in one launch.
//
// Bytes a decoded token: ratio 4 reads 8 KiB of projections and, at every fourth token, 64 KiB of state; ratio 128 reads
// 4 KiB and 6 KiB of state and writes 6 KiB. A row adds 584 or 1,024 bytes. At decode the launch is the cost.
// Notes: (1) a thread owns a channel, a block a request, so softmax and state need no exchange; only norm, rotation and
// store cross channels; (2) ratio 128 updates token by token in prefill too: decoding continues with the same bits;
// (3) at ratio 4 what a row needs is read at once, gains before the wait and the block's first token before its position is known;
// a block's rows are independent, so a prefill block is split over `splits` thread blocks; (4) 64-bit page
// and state offsets; slots outside their bounds are skipped.
#include "compress.h"

#include "common/kv_row.h"
#include "common/pool.h"

constexpr int kThreads = kHeadDim;

namespace {

// Hands the row, a channel a thread, to the first warp, 16 channels a lane.
FL_DEVICE void store_row(const CompressParams& p, float value, int64_t slot, float* row) {
  row[threadIdx.x] = value;
  __syncthreads();
  if (warp_idx() == 0 && slot_valid(slot, p.pages, p.page_rows)) {
    float v[16];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float4 four = ((const float4*)row)[lane_idx() * 4 + i];
      v[4 * i] = four.x, v[4 * i + 1] = four.y, v[4 * i + 2] = four.z, v[4 * i + 3] = four.w;
    }
    kv_store(v, p.pool, slot, p.page_rows, p.format, p.trained != 0);
  }
  __syncthreads();
}

}  // namespace

FL_KERNEL(kThreads, compress_c4, CompressParams) {
  __shared__ __align__(16) float scratch[kThreads / kWarp];
  __shared__ __align__(16) float row[kHeadDim];
  float* out = row;
  c4_compress<kHeadDim>(p, scratch, [&p, out](float value, int64_t slot) { store_row(p, value, slot, out); });
}

FL_KERNEL(kThreads, compress_c128, CompressParams) {
  __shared__ __align__(16) float scratch[kThreads / kWarp];
  __shared__ __align__(16) float row[kHeadDim];
  float* out = row;
  c128_compress<kHeadDim>(p, scratch, [&p, out](float value, int64_t slot) { store_row(p, value, slot, out); });
}
