// topk: the k largest of a row's visible logits, exact, ties to the smaller index, written in ascending index order.
//
// Bytes: 4 a visible logit, read once; all that follows stays in registers and shared memory.
// Notes: (1) `topk` gives a row to one block, `topk_cluster` to eight, which read each other's shared memory; the launch
// chooses by the shape; (2) how the choice is made: common/choose.h; (3) with no more than k visible rows nothing is read;
// (4) rows too long for a cluster go to topk_long.cu.
#include "topk.h"

#include "common/choose.h"
#include "common/pdl.h"

static_assert(sizeof(Choice) == 37076, "as src/cuda/ops/topk.rs has it");

namespace {

template <int kBlocks>
FL_DEVICE void choose_row(const TopKParams& p, Choice& s) {
  int64_t t = blockIdx.x / kBlocks;
  int32_t position = p.position[t];
  prepare(s);
  __syncthreads();
  int rank = (int)(blockIdx.x % kBlocks), n = visible_rows(position, p.width);
  int32_t* selected = p.selected + t * p.k;
  if (n <= p.k) {
    if (rank == 0) take_all(n, p.k, selected);
    return;
  }
  int part = ((n + kBlocks - 1) / kBlocks + 3) / 4 * 4, first = min(n, rank * part);
  Segment segment{p.logits + t * p.width + first, first, min(part, n - first), p.width % 4 == 0};
  choose<kBlocks>(segment, n, rank, p.k, selected, s);
}

}  // namespace

FL_KERNEL(kChoiceThreads, topk, TopKParams) {
  __shared__ __align__(16) Choice s;
  pdl_wait();
  choose_row<1>(p, s);
}

FL_KERNEL_CLUSTER(kChoiceThreads, 1, kClusterBlocks, topk_cluster, TopKParams) {
  FL_DYNAMIC_SHARED(shared);
  pdl_wait();
  choose_row<kClusterBlocks>(p, *(Choice*)shared);
}
