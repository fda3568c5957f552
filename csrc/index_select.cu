// index_select: the k best rows by index_logits' scores, which stay in shared memory: what topk would choose from the
// logits of the same reader, bit for bit, in one launch and with no buffer.
//
// Bytes: 256, 132 or 68 a row read; nothing is written but the choice.
// Notes: (1) a cluster of eight, four or two blocks takes a token, as many as the device holds for all; each scores a part of
// its rows, as index_logits.cu does, by four warpgroups, and the cluster then chooses as topk.cu does, from few rows the first
// block alone; (2) with no more than k visible rows no key is read; (3) it pays where rows are few: on an H200 in fp8 10.8 us
// for eight tokens with 2,048 rows and 15.8 for 64, where the two operations take 12.4 and 17.7, and 30.8 for 64 with 8,192,
// where they take 32.6; but 15.3 for one with 8,192 and 30.8 with 32,768, where they take 12.5 and 15.5, for a cluster's
// multiprocessors are few, and (an earlier build of both) 60 for 64 of all lengths up to 20,000, where they take 38, for a
// long token has no more of them than a short one. The model appends the two operations, between which instruments read and change scores.
#include "index_select.h"

#include "common/choose.h"
#include "common/index_score.h"
#include "common/pdl.h"

namespace {

constexpr int kGroups = kChoiceThreads / kGroupThreads;
// Tiles of keys on their way, by format; bytes of the warpgroups' rings, where the choice is made afterwards; rows among which
// one block chooses alone.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr int kDepths[] = {0, 1, 3, 6};
constexpr int kWorkBytes = 107520;
constexpr int kAlone = 8192;
#else
constexpr int kDepths[] = {0, 1, 1, 2};
constexpr int kWorkBytes = 66048;
constexpr int kAlone = 4096;
#endif
template <int kFormat>
using Keys = Tiles<kFormat, kDepths[kFormat]>;

struct Head {
  Query query;
  Signals signals[kGroups];
};
constexpr int kHeadBytes = 17152;
static_assert(sizeof(Head) <= kHeadBytes && sizeof(Choice) <= kWorkBytes, "as src/cuda/ops/index_select.rs has it");

// Scores rows first .. first + count - 1 into `scores`, by row.
template <int kFormat>
FL_DEVICE void score_segment(const IndexScores& p, int64_t t, int first, int count, int visible, Head& head, uint8_t* rings,
                             float* scores) {
  static_assert(kGroups * Keys<kFormat>::kRingBytes <= kWorkBytes, "a ring for each warpgroup");
  int group = warp_idx() / 4, tile = first / kGroupRows + group, end = tiles_of(first + count);
  QueryPart<kFormat, kChoiceWarps> query(p, t);
  Keys<kFormat> tiles(p, 0, (int)t, tile, kGroups, (end - tile + kGroups - 1) / kGroups, rings + group * Keys<kFormat>::kRingBytes,
                      head.signals[group]);
  __syncthreads();
  tiles.start();
  query.write(head.query);
  __syncthreads();
  cluster_wait();
  tiles.score(tile, end, visible, head.query, scores);
  tiles.meet_until(end - first / kGroupRows);
}

template <bool kSimple, int kBlocks>
FL_DEVICE void select(const IndexSelectParams& p, unsigned char* shared) {
  Head& head = *(Head*)shared;
  uint8_t* work = shared + kHeadBytes;
  Choice& choice = *(Choice*)work;
  float* scores = (float*)(work + kWorkBytes);
  if (!kSimple && threadIdx.x == kWarp) make_signals(head.signals, kGroups);
  pdl_wait();
  int64_t t = blockIdx.x / kBlocks;
  int rank = (int)(blockIdx.x % kBlocks), visible = visible_keys(p.scores, t);
  int32_t* selected = p.selected + t * p.k;
  if (visible <= p.k) {
    if (rank == 0) take_all(visible, p.k, selected);
    return;
  }
  cluster_arrive();  // Others may write to this block's memory.
  int part = tiles_of((visible + kBlocks - 1) / kBlocks) * kGroupRows, first = min(visible, rank * part);
  int count = min(part, visible - first);
  bool alone = visible <= kAlone;
  float* to = alone ? (float*)cluster_peer(scores, 0) : scores - first;
  if (kSimple || count == 0) {
    cluster_wait();
    for (int i = threadIdx.x; i < count; i += kChoiceThreads) to[first + i] = score_row(p.scores, t, first + i);
  } else {
    switch (p.scores.format) {
      case kIndexBf16: score_segment<kIndexBf16>(p.scores, t, first, count, visible, head, work, to); break;
      case kIndexFp8: score_segment<kIndexFp8>(p.scores, t, first, count, visible, head, work, to); break;
      default: score_segment<kIndexFp4>(p.scores, t, first, count, visible, head, work, to);
    }
  }
  if (alone) {
    cluster_sync();
    if (rank > 0) return;
  } else {
    __syncthreads();
  }
  prepare(choice);
  __syncthreads();
  if (alone) {
    choose<1>(Segment{scores, 0, visible, true}, visible, 0, p.k, selected, choice);
  } else {
    choose<kBlocks>(Segment{scores, first, count, true}, visible, rank, p.k, selected, choice);
  }
}

}  // namespace

FL_KERNEL_CLUSTER(kChoiceThreads, 1, 2, index_select_fast_2, IndexSelectParams) {
  FL_DYNAMIC_SHARED(shared);
  select<false, 2>(p, shared);
}

FL_KERNEL_CLUSTER(kChoiceThreads, 1, 4, index_select_fast_4, IndexSelectParams) {
  FL_DYNAMIC_SHARED(shared);
  select<false, 4>(p, shared);
}

FL_KERNEL_CLUSTER(kChoiceThreads, 1, 8, index_select_fast_8, IndexSelectParams) {
  FL_DYNAMIC_SHARED(shared);
  select<false, 8>(p, shared);
}

FL_KERNEL_CLUSTER(kChoiceThreads, 1, 8, index_select_simple, IndexSelectParams) {
  FL_DYNAMIC_SHARED(shared);
  select<true, 8>(p, shared);
}
