// index_logits: the score of every visible index key, sum_h scale w_h relu(q_h . key), keys read through a page table in
// bf16, fp8 or fp4. Two readers: `simple`, one thread a row, and `fast`, on matrix instructions.
//
// Bytes: 256, 132 or 68 a row read and 4 written; 64 heads make 16 kFLOP a row, so that memory bounds bf16 and fp8, and the
// matrix unit fp4. At 64 x 262,144 rows on an H200 3.9 TB/s in bf16, 3.0 in fp8 and 1.4 in fp4: 88, 67 and 31 % of what reads
// alone reach there.
// Notes on `fast`: (1) a block is a warpgroup and scores tiles of 64 rows; the tiles of all tokens stand in one line that is
// cut evenly among a grid as large as the device holds, from the positions as they are on the device; (2) rows are the
// left operand, in registers, by way of shared memory, in which some tiles are on their way while one is multiplied; the 64
// heads are the columns, in shared memory as exact bf16; (3) relu, weights and the sum over heads
// stay in registers; the sum has one order: by head in a lane, then over the four lanes of a row; (4) scales of fp4 are
// inside the elements, of fp8 outside: the keys' on the sum, the query's on the weights, powers of two; (5) a row on a
// masked page scores -inf; columns past the visible rows are not written.
#include "index_logits.h"

#include "common/index_score.h"
#include "common/order.h"
#include "common/pdl.h"

constexpr int kGroups = 2;
constexpr int kThreads = kGroups * kGroupThreads;
constexpr int kSimpleThreads = 256;

namespace {

// Tiles of keys on their way, by format: with two blocks a multiprocessor has over 128 KB of them.
constexpr int kDepths[] = {0, 2, 4, 8};
template <int kFormat>
using Keys = Tiles<kFormat, kDepths[kFormat]>;

constexpr int larger(int a, int b) { return a > b ? a : b; }
constexpr int kRingBytes =
    larger(Keys<kIndexBf16>::kRingBytes, larger(Keys<kIndexFp8>::kRingBytes, Keys<kIndexFp4>::kRingBytes));

struct Shared {
  uint8_t rings[kGroups][kRingBytes];
  Query query;
  Signals signals[kGroups];
  int token, tile;
  int scratch[kThreads / kWarp];
};
static_assert(sizeof(Shared) == 88568, "as src/cuda/ops/index_logits.rs has it");

FL_DEVICE int tiles_of_token(const IndexLogitsParams& p, int t) {
  return t < p.tokens ? tiles_of(visible_keys(p.scores, t)) : 0;
}

// Cuts the line of all tokens' tiles; how many tiles are this block's, and in `s` where they begin.
FL_DEVICE int find_part(const IndexLogitsParams& p, Shared& s) {
  int total, mine = tiles_of_token(p, threadIdx.x), from = block_exclusive_sum<kThreads>(mine, total, s.scratch);
  int line = total;
  for (int start = kThreads; start < p.tokens; start += kThreads) {
    int others;
    block_exclusive_sum<kThreads>(tiles_of_token(p, start + (int)threadIdx.x), others, s.scratch);
    line += others;
  }
  int part = (line + (int)gridDim.x - 1) / (int)gridDim.x, first = (int)blockIdx.x * part, left = min(part, line - first);
  if (left <= 0) return 0;
  for (int start = 0;;) {
    if (from <= first && first < from + mine) s.token = start + (int)threadIdx.x, s.tile = first - from;
    int before = total;
    start += kThreads;
    if (before > first || start >= p.tokens) break;
    mine = tiles_of_token(p, start + (int)threadIdx.x);
    from = before + block_exclusive_sum<kThreads>(mine, total, s.scratch);
    total += before;
  }
  __syncthreads();
  return left;
}

// Brings bytes into the second-level cache, a line a thread of the grid.
FL_DEVICE void prefetch(const void* from, int64_t bytes) {
#if defined(__CUDA_ARCH__)
  int64_t at = ((int64_t)blockIdx.x * kThreads + threadIdx.x) * 128;
  if (at < bytes) asm volatile("prefetch.global.L2 [%0];" ::"l"((const char*)from + at));
#endif
}

// A lone token's tiles are dealt out one by one, so that page ids can be looked up before its length is known.
template <int kFormat>
FL_DEVICE void score_one(const IndexLogitsParams& p, Shared& s) {
  int group = warp_idx() / 4, first = (int)(blockIdx.x + group * gridDim.x), stride = (int)(kGroups * gridDim.x);
  QueryPart<kFormat, kThreads / kWarp> part(p.scores, 0);
  Keys<kFormat> tiles(p.scores, 0, 0, first, stride, p.scores.keys.width, s.rings[group], s.signals[group]);
  __syncthreads();
  tiles.start();
  part.write(s.query);
  __syncthreads();
  int visible = visible_keys(p.scores, 0);
  tiles.score(first, tiles_of(visible), visible, s.query, p.logits);
}

template <int kFormat>
FL_DEVICE void score_part(const IndexLogitsParams& p, Shared& s) {
  int64_t heads = (int64_t)p.tokens * p.scores.heads;
  prefetch(p.scores.keys.table, (int64_t)((uint32_t)p.tokens / (uint32_t)p.scores.per_request) * p.scores.keys.width * 4);
  prefetch(p.scores.codes, heads * IndexShare<kFormat>::kCodeBytes);
  prefetch(p.scores.scales, heads * IndexShare<kFormat>::kScaleBytes);
  prefetch(p.scores.weights, heads * 4);
  int left = find_part(p, s), group = warp_idx() / 4;
  if (left == 0) return;
  // The warpgroup's next tile of token `t`, which may lie beyond it.
  int tile = s.tile + group, count = (left - group + kGroups - 1) / kGroups;
  Keys<kFormat> tiles(p.scores, p.tokens, s.token, tile, kGroups, count, s.rings[group], s.signals[group]);
  tiles.start();
  for (int t = s.token, begin = s.tile; left > 0 && t < p.tokens; ++t, begin = 0) {
    int visible = visible_keys(p.scores, t), all = tiles_of(visible), end = min(all, begin + left);
    if (begin < end) {
      QueryPart<kFormat, kThreads / kWarp> part(p.scores, t);
      __syncthreads();  // The query before it is done with.
      part.write(s.query);
      __syncthreads();
      float* logits = p.logits + t * (int64_t)p.scores.keys.width * p.scores.keys.page_rows;
      tile = tiles.score(tile, end, visible, s.query, logits);
      left -= end - begin;
    }
    tile -= all;
  }
}

template <int kFormat>
FL_DEVICE void score_all(const IndexLogitsParams& p, Shared& s) {
  if (p.tokens == 1) {
    score_one<kFormat>(p, s);
  } else {
    score_part<kFormat>(p, s);
  }
}

}  // namespace

FL_KERNEL_BLOCKS(kThreads, 2, index_logits_fast, IndexLogitsParams) {
  FL_DYNAMIC_SHARED(shared);
  Shared& s = *(Shared*)shared;
  if (threadIdx.x == kWarp) make_signals(s.signals, kGroups);  // The first warp looks up pages meanwhile.
  pdl_wait();
  switch (p.scores.format) {
    case kIndexBf16: return score_all<kIndexBf16>(p, s);
    case kIndexFp8: return score_all<kIndexFp8>(p, s);
    default: return score_all<kIndexFp4>(p, s);
  }
}

FL_KERNEL(kSimpleThreads, index_logits_simple, IndexLogitsParams) {
  pdl_wait();
  int64_t t = blockIdx.y;
  int visible = visible_keys(p.scores, t);
  float* logits = p.logits + t * (int64_t)p.scores.keys.width * p.scores.keys.page_rows;
  for (int row = blockIdx.x * kSimpleThreads + threadIdx.x; row < visible; row += gridDim.x * kSimpleThreads) {
    logits[row] = score_row(p.scores, t, row);
  }
}
