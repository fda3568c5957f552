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

constexpr int kThreads = kGroupThreads;
constexpr int kSimpleThreads = 256;

namespace {

// Tiles of keys on their way, per format. Elsewhere there is less shared memory for as many blocks.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr int kDepths[] = {0, 1, 3, 4};
#else
constexpr int kDepths[] = {0, 1, 1, 2};
#endif
template <int kFormat>
using Keys = Tiles<kFormat, kDepths[kFormat]>;

constexpr int larger(int a, int b) { return a > b ? a : b; }
constexpr int kRingBytes =
    larger(Keys<kIndexBf16>::kRingBytes, larger(Keys<kIndexFp8>::kRingBytes, Keys<kIndexFp4>::kRingBytes));

struct Shared {
  Query query;
  uint8_t ring[kRingBytes];
  int token, tile;
  int scratch[kThreads / kWarp];
};

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

template <int kFormat>
FL_DEVICE void score_part(const IndexLogitsParams& p, Shared& s) {
  int left = find_part(p, s);
  if (left == 0) return;
  for (int t = s.token, tile = s.tile; left > 0 && t < p.tokens; ++t, tile = 0) {
    int visible = visible_keys(p.scores, t), end = min(tiles_of(visible), tile + left);
    if (tile >= end) continue;
    Keys<kFormat> tiles(p.scores, t, tile, end, 1, visible, s.ring);
    stage_query<kFormat, kThreads / kWarp>(p.scores, t, s.query);
    __syncthreads();
    tiles.score(s.query, p.logits + t * (int64_t)p.scores.keys.width * p.scores.keys.page_rows);
    left -= end - tile;
    __syncthreads();
  }
}

}  // namespace

FL_KERNEL_BLOCKS(kThreads, 4, index_logits_fast, IndexLogitsParams) {
  __shared__ __align__(128) Shared s;
  pdl_wait();
  switch (p.scores.format) {
    case kIndexBf16: return score_part<kIndexBf16>(p, s);
    case kIndexFp8: return score_part<kIndexFp8>(p, s);
    default: return score_part<kIndexFp4>(p, s);
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
