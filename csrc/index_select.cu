// index_select: the k best rows by index_logits' scores, which stay in shared memory: what topk would choose from the
// logits of the same reader, bit for bit, in one launch and with no buffer.
//
// Bytes: 256, 132 or 68 a row read; nothing is written but the choice.
// Notes: (1) a cluster of eight blocks takes a token; each scores an eighth of its rows, as index_logits.cu does, by four
// warpgroups, and the cluster then chooses as topk.cu does; (2) with no more than k visible rows no key is read; (3) eight
// multiprocessors a token are few: an H200 took 12.2 us for one token with 2,048 rows in fp8 and 194 us for 64 with 32,768,
// where the two operations take 11.8 and 126, so the model appends those.
#include "index_select.h"

#include "common/choose.h"
#include "common/index_score.h"
#include "common/pdl.h"

namespace {

constexpr int kGroups = kChoiceThreads / kGroupThreads;
// Tiles of keys on their way, by format, and the bytes of the warpgroups' rings, where the choice is made afterwards.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr int kDepths[] = {0, 1, 3, 6};
constexpr int kWorkBytes = 107520;
#else
constexpr int kDepths[] = {0, 1, 1, 2};
constexpr int kWorkBytes = 66048;
#endif
template <int kFormat>
using Keys = Tiles<kFormat, kDepths[kFormat]>;

struct Head {
  Query query;
  Signals signals[kGroups];
};
constexpr int kHeadBytes = 17152;
static_assert(sizeof(Head) <= kHeadBytes && sizeof(Choice) <= kWorkBytes, "as src/cuda/ops/index_select.rs has it");

template <int kFormat>
FL_DEVICE void score_segment(const IndexScores& p, int64_t t, const Segment& segment, int visible, Head& head, uint8_t* rings,
                             float* scores) {
  static_assert(kGroups * Keys<kFormat>::kRingBytes <= kWorkBytes, "a ring for each warpgroup");
  int group = warp_idx() / 4, end = tiles_of(segment.first + segment.count), first = segment.first / kGroupRows + group;
  QueryPart<kFormat, kChoiceWarps> part(p, t);
  Keys<kFormat> tiles(p, 0, (int)t, first, kGroups, (end - first + kGroups - 1) / kGroups, rings + group * Keys<kFormat>::kRingBytes,
                      head.signals[group]);
  __syncthreads();
  tiles.start();
  part.write(head.query);
  __syncthreads();
  tiles.score(first, end, visible, head.query, scores - segment.first);
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
  int part = tiles_of((visible + kBlocks - 1) / kBlocks) * kGroupRows, first = min(visible, rank * part);
  Segment segment{scores, first, min(part, visible - first), true};
  if (kSimple) {
    for (int i = threadIdx.x; i < segment.count; i += kChoiceThreads) scores[i] = score_row(p.scores, t, first + i);
  } else if (segment.count > 0) {
    switch (p.scores.format) {
      case kIndexBf16: score_segment<kIndexBf16>(p.scores, t, segment, visible, head, work, scores); break;
      case kIndexFp8: score_segment<kIndexFp8>(p.scores, t, segment, visible, head, work, scores); break;
      default: score_segment<kIndexFp4>(p.scores, t, segment, visible, head, work, scores);
    }
  }
  __syncthreads();
  prepare(choice);
  __syncthreads();
  choose<kBlocks>(segment, visible, rank, p.k, selected, choice);
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
