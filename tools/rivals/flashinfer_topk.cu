// FlashInfer's top-k as a C function, so that its headers alone are needed: built as tools/rivals/README.md says.
#include <flashinfer/math.cuh>
#include <flashinfer/topk.cuh>

using flashinfer::sampling::RadixRowState;
using flashinfer::sampling::TopKDispatch;
using flashinfer::sampling::TopKTieBreak;

// `scores` f32 `[rows, width]`; `ids` i32 and `values` f32 `[rows, k]`; `states` 1 MiB of zeros. Returns a `cudaError_t`.
extern "C" int flashinfer_topk(float* scores, int* ids, float* values, unsigned rows, unsigned k, unsigned width, void* states,
                               int deterministic, void* stream) {
  return TopKDispatch<float, int>(scores, ids, values, rows, k, width, static_cast<RadixRowState*>(states), false,
                                  deterministic != 0, TopKTieBreak::None, static_cast<cudaStream_t>(stream));
}
