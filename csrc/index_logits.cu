// index_logits: the score of every visible index key, sum_h scale w_h relu(q_h . key), keys read through a page table in
// bf16, fp8 or fp4. Two readers: `simple`, one thread a row, and `fast`, on matrix instructions.
//
// Bytes: 256, 132 or 68 a row read and 4 written; 64 heads make 16 kFLOP a row, so that memory bounds bf16 and fp8, and
// unpacking fp4. At 64 x 262,144 rows on an H200 4.2 TB/s in bf16, 4.0 in fp8 and 2.0 in fp4: 95, 91 and 44 % of what reads
// alone reach there.
// Notes on `fast`: (1) a warpgroup scores tiles of 64 rows, a page each; the tiles of all tokens stand in one line that is
// cut evenly among a grid as large as the device holds, from the positions as they are on the device, and a lone token's
// are dealt out one by one; (2) the copy engine brings pages to shared memory, two tiles ahead, also those of the
// block's next token: no more, for what all blocks ask for at once queues, so that some begin late, and they end late: with
// four tiles ahead fp8 took 15 % longer for 8 x 32,768 rows and 14 % for 64 x 2,048; (3) rows are the left operand,
// in registers; the 64 heads are the columns, in shared memory; e4m3 is f16 there, all else bf16, which is exact. The fp8
// instructions of sm_90a are not used: they took 572 us where these take 589, but their sums were up to 11 times as far off
// as rounding to f32 in every step allows; (4) relu, weights and the sum over heads stay in registers; the sum has one
// order: by head in a lane, then over the four lanes of a row; (5) scales of fp4 are inside the elements, of fp8 outside:
// the keys' on the sum, the query's on the weights, powers of two; (6) a row on a masked page scores -inf; columns past the
// visible rows are not written.
#include "index_logits.h"

#include "common/index_score.h"
#include "common/order.h"
#include "common/pdl.h"

constexpr int kGroups = 2;
constexpr int kThreads = kGroups * kGroupThreads;
constexpr int kSimpleThreads = 256;

namespace {

// Tiles of keys on their way to a warpgroup: 35 KB of fp4, 68 of fp8 and 132 of bf16 in a multiprocessor of sm_90.
constexpr int kDepth = 2;
template <int kFormat>
using Keys = Tiles<kFormat, kDepth>;

constexpr int larger(int a, int b) { return a > b ? a : b; }
constexpr int kRingBytes =
    larger(Keys<kIndexBf16>::kRingBytes, larger(Keys<kIndexFp8>::kRingBytes, Keys<kIndexFp4>::kRingBytes));

struct Shared {
  uint8_t rings[kGroups][kRingBytes];
  Query query;
  Signals signals[kGroups];
};
static_assert(sizeof(Shared) == 82896, "as src/cuda/ops/index_logits.rs has it");

// A block's part of the line of all tokens' tiles: where it begins, and of how many tiles it is.
struct Part {
  int token, tile, count;
};

// Each warp by itself: a lane adds up the tiles of some tokens.
FL_DEVICE Part find_part(const IndexLogitsParams& p) {
  int each = (p.tokens + kWarp - 1) / kWarp, begin = lane_idx() * each, sum = 0, line;
#pragma unroll 4
  for (int t = begin; t < min(begin + each, p.tokens); ++t) sum += tiles_of(visible_keys(p.scores, t));
  int from = warp_exclusive_sum(sum, line), share = (line + (int)gridDim.x - 1) / (int)gridDim.x;
  int first = (int)blockIdx.x * share, count = min(share, line - first);
  if (count <= 0) return Part{0, 0, 0};
  int lane = __ffs((int)__ballot_sync(kFullMask, from <= first && first < from + sum)) - 1;
  int token = lane * each, tile = first - __shfl_sync(kFullMask, from, lane);
  for (int others; token < p.tokens && (others = tiles_of(visible_keys(p.scores, token))) <= tile; ++token) tile -= others;
  return Part{token, tile, count};
}

// A lone token's tiles are dealt out one by one, so that page ids can be looked up before its length is known.
template <int kFormat>
FL_DEVICE void score_one(const IndexLogitsParams& p, Shared& s) {
  int group = warp_idx() / 4, first = (int)(blockIdx.x + group * gridDim.x), stride = (int)(kGroups * gridDim.x);
  QueryPart<kFormat, kThreads / kWarp> query(p.scores, 0);
  Keys<kFormat> tiles(p.scores, 0, 0, first, stride, p.scores.keys.width, s.rings[group], s.signals[group]);
  __syncthreads();
  tiles.start();
  query.write(s.query);
  __syncthreads();
  int visible = visible_keys(p.scores, 0);
  tiles.score(first, tiles_of(visible), visible, s.query, p.logits);
}

template <int kFormat>
FL_DEVICE void score_part(const IndexLogitsParams& p, Shared& s) {
  Part part = find_part(p);
  if (part.count == 0) return;
  int group = warp_idx() / 4, count = (part.count - group + kGroups - 1) / kGroups;
  // The warpgroup's next tile of token `t`, which may lie beyond it; and the block's first of that token.
  int t = part.token, tile = part.tile + group, begin = part.tile;
  QueryPart<kFormat, kThreads / kWarp> query(p.scores, t);
  Keys<kFormat> tiles(p.scores, p.tokens, t, tile, kGroups, count, s.rings[group], s.signals[group]);
  __syncthreads();
  tiles.start();
  for (int left = part.count;;) {
    query.write(s.query);
    __syncthreads();
    int visible = visible_keys(p.scores, t), all = tiles_of(visible), end = min(all, begin + left);
    float* logits = p.logits + t * (int64_t)p.scores.keys.width * p.scores.keys.page_rows;
    tile = tiles.score(tile, end, visible, s.query, logits) - all;
    left -= end - begin, begin = 0;
    do {
      ++t;
    } while (t < p.tokens && visible_keys(p.scores, t) == 0);
    if (left <= 0 || t >= p.tokens) return;
    query = QueryPart<kFormat, kThreads / kWarp>(p.scores, t);
    __syncthreads();  // The query before it is done with.
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
