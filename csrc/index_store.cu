// index_store: four tokens (and the four before them) pooled into one index key: state update, softmax pooling, norm,
// rotation, Hadamard, rounding to bf16, fp8 or fp4, and page store, in one launch.
//
// Bytes a decoded token: 2 KiB of projections, at every fourth token 16 KiB of state, and a row of 256, 132 or 68 bytes.
// Notes: (1) a thread owns a channel and a block a request; (2) the finished row passes through shared memory to one warp,
// which holds four neighbouring channels a lane: the Hadamard butterflies are then shuffles and each scale group a set of
// lanes; (3) prefill rows are split over `splits` blocks; (4) 64-bit page offsets, slots checked.
#include "index_store.h"

#include "common/index_row.h"
#include "common/kv_row.h"
#include "common/pool.h"

constexpr int kThreads = kIndexDim;

namespace {

FL_DEVICE void store_key(const CompressParams& p, float value, int64_t slot, float* row) {
  row[threadIdx.x] = value;
  __syncthreads();
  if (warp_idx() == 0 && slot_valid(slot, p.pages, p.page_rows)) {
    float4 four = ((const float4*)row)[lane_idx()];
    float v[4] = {four.x, four.y, four.z, four.w};
    hadamard_128(v);
    KvPlace place(slot, p.page_rows);
    uint8_t* page = p.pool + place.page * index_page_bytes(p.format, p.page_rows);
    int in_page = place.row, code_bytes = index_code_bytes(p.format);
    index_encode(v, page + in_page * code_bytes, page + p.page_rows * code_bytes + in_page * 4, p.format);
  }
  __syncthreads();
}

}  // namespace

FL_KERNEL(kThreads, index_store, CompressParams) {
  __shared__ __align__(16) float scratch[kThreads / kWarp];
  __shared__ __align__(16) float row[kIndexDim];
  float* out = row;
  c4_compress<kIndexDim>(p, scratch, [&p, out](float value, int64_t slot) { store_key(p, value, slot, out); });
}
