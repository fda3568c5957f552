// The emulator's scheduler: fibers, one block (or cluster of blocks) at a time.
//
// On x86-64 a switch is a dozen instructions; elsewhere it is ucontext's, which asks the kernel twice each time.
#include "emu.h"

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#include <map>
#include <memory>
#include <vector>

#if defined(__x86_64__)
// Saves the callee's registers on this stack, its pointer in *from, and goes on where `to` was saved.
extern "C" void flashlane_emu_switch(void** from, void* to);
asm(R"(
.text
.type flashlane_emu_switch, @function
flashlane_emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size flashlane_emu_switch, .-flashlane_emu_switch
)");
#endif

namespace emu {
namespace {

#if defined(__x86_64__)
struct Context {
  void* stack_pointer = nullptr;

  void start(unsigned char* stack, size_t bytes, void (*entry)()) {
    // Six registers and the address to return to, so that the entry finds the stack as after a call.
    void** top = (void**)(((uintptr_t)stack + bytes) & ~(uintptr_t)15) - 8;
    for (int i = 0; i < 6; ++i) top[i] = nullptr;
    top[6] = (void*)entry;
    stack_pointer = top;
  }
  void switch_to(Context& other) { flashlane_emu_switch(&stack_pointer, other.stack_pointer); }
};
#else
struct Context {
  ucontext_t context;

  void start(unsigned char* stack, size_t bytes, void (*entry)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = bytes;
    context.uc_link = nullptr;
    makecontext(&context, entry, 0);
  }
  void switch_to(Context& other) { swapcontext(&context, &other.context); }
};
#endif

constexpr size_t kStackBytes = 64 << 10;
constexpr size_t kMaxDynamicShared = 256 << 10;
constexpr uint8_t kPoison = 0xff;

enum class State { kReady, kBarrier, kClusterBarrier, kMeeting, kDone };

struct Warp {
  uint64_t brought[32];
  uint64_t taken[32];
  unsigned arrived = 0;
  unsigned wanted = 0;
};

struct Fiber {
  Context context;
  std::unique_ptr<unsigned char[]> stack{new unsigned char[kStackBytes]};
  State state = State::kDone;
  Thread thread{};
};

// A cluster of `size` blocks, mostly of one; its fibers are those of its first block, then of the next.
struct Block {
  void (*kernel)(const void*) = nullptr;
  const void* params = nullptr;
  unsigned size = 1, threads = 0;
  uint3 dim{}, grid{};
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::vector<std::pair<const void*, uint16_t>> barriers;
  Context scheduler{};
  size_t current = 0;
  uint64_t random = 0;
};

Block block;
constexpr unsigned kMaxCluster = 8;
alignas(64) unsigned char dynamic[kMaxCluster][kMaxDynamicShared];

std::map<void (*)(const void*), unsigned>& clusters() {
  static std::map<void (*)(const void*), unsigned> all;
  return all;
}

uint64_t draw() {
  uint64_t x = block.random += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

Fiber& current() { return block.fibers[block.current]; }

void leave(State state) {
  Fiber& fiber = current();
  fiber.state = state;
  fiber.context.switch_to(block.scheduler);
}

void enter() {
  block.kernel(block.params);
  leave(State::kDone);
}

void prepare(Fiber& fiber, size_t index, uint3 first) {
  unsigned flat = (unsigned)(index % block.threads), rank = (unsigned)(index / block.threads);
  fiber.thread.block = {first.x + rank, first.y, first.z};
  fiber.thread.rank = rank;
  fiber.thread.idx = {flat % block.dim.x, flat / block.dim.x % block.dim.y, flat / (block.dim.x * block.dim.y)};
  fiber.thread.lane = flat % 32;
  fiber.thread.warp = rank * ((block.threads + 31) / 32) + flat / 32;
  fiber.state = State::kReady;
  fiber.context.start(fiber.stack.get(), kStackBytes, enter);
}

// Lets fibers begin .. end - 1 go if all that are not done wait at such a barrier. True if that was anyone.
bool let_go(State barrier, size_t begin, size_t end) {
  bool any = false, all = true;
  for (size_t i = begin; i < end; ++i) all &= block.fibers[i].state == barrier || block.fibers[i].state == State::kDone;
  for (size_t i = begin; all && i < end; ++i) {
    if (block.fibers[i].state != barrier) continue;
    block.fibers[i].state = State::kReady;
    any = true;
  }
  return any;
}

// Lets go whoever waits for nothing more. True if that was anyone.
bool release() {
  bool any = let_go(State::kClusterBarrier, 0, block.fibers.size());
  for (unsigned rank = 0; rank < block.size; ++rank) {
    any |= let_go(State::kBarrier, (size_t)rank * block.threads, (size_t)(rank + 1) * block.threads);
  }
  for (size_t w = 0; w < block.warps.size(); ++w) {
    Warp& warp = block.warps[w];
    if (warp.arrived == 0 || warp.arrived != warp.wanted) continue;
    memcpy(warp.taken, warp.brought, sizeof warp.taken);
    size_t per_block = (block.threads + 31) / 32, first = w / per_block * block.threads, lanes = w % per_block * 32;
    for (size_t i = lanes; i < std::min<size_t>(lanes + 32, block.threads); ++i) {
      if (!(warp.arrived >> (i % 32) & 1)) continue;
      block.fibers[first + i].state = State::kReady;
      any = true;
    }
    warp.arrived = 0;
  }
  return any;
}

// Runs the fibers of one cluster to the end. False on a deadlock.
bool run_block() {
  size_t held = draw() % (2 * block.warps.size());  // This warp runs only when no other can; half of the time it is none.
  std::vector<size_t> ready;
  for (;;) {
    ready.clear();
    bool live = false, others = false;
    for (size_t i = 0; i < block.fibers.size(); ++i) {
      live |= block.fibers[i].state != State::kDone;
      if (block.fibers[i].state != State::kReady) continue;
      ready.push_back(i);
      others |= block.fibers[i].thread.warp != held;
    }
    if (!live) return true;
    if (ready.empty()) {
      if (!release()) return false;
      continue;
    }
    if (others) std::erase_if(ready, [held](size_t i) { return block.fibers[i].thread.warp == held; });
    // A run of fibers in a drawn order; the next round sees who became ready.
    for (size_t n = ready.size(); n > 0; --n) {
      std::swap(ready[n - 1], ready[draw() % n]);
      block.current = ready[n - 1];
      block.scheduler.switch_to(current().context);
    }
    if (draw() % 4 == 0) held = draw() % (2 * block.warps.size());
    // Warps whose threads have all met may go on while others still run.
    bool waiting = false;
    for (Warp& w : block.warps) waiting |= w.arrived != 0 && w.arrived == w.wanted;
    if (waiting) release();
  }
}

// What became of the barriers that the cluster made.
bool barriers_whole() {
  return std::all_of(block.barriers.begin(), block.barriers.end(),
                     [](const auto& barrier) { return memcmp(barrier.first, &barrier.second, sizeof barrier.second) == 0; });
}

}  // namespace

const Thread& self() { return current().thread; }
const uint3& block_idx() { return current().thread.block; }
const uint3& block_dim() { return block.dim; }
const uint3& grid_dim() { return block.grid; }
unsigned char* dynamic_shared() { return dynamic[current().thread.rank]; }
const void* peer_shared(const void* own, unsigned rank) {
  return dynamic[rank] + ((const unsigned char*)own - dynamic_shared());
}
unsigned cluster_size() { return block.size; }

bool run_in_clusters(void (*kernel)(const void*), unsigned size) {
  clusters()[kernel] = size;
  return true;
}

void made_barrier(const void* barrier, uint16_t arrivals) { block.barriers.emplace_back(barrier, arrivals); }

void barrier() { leave(State::kBarrier); }
void cluster_barrier() { leave(State::kClusterBarrier); }

const uint64_t* meet(unsigned mask, uint64_t value) {
  const Thread& thread = current().thread;
  Warp& warp = block.warps[thread.warp];
  warp.brought[thread.lane] = value;
  warp.arrived |= 1u << thread.lane;
  warp.wanted = mask;
  leave(State::kMeeting);
  return block.warps[thread.warp].taken;
}

}  // namespace emu

extern "C" unsigned char __start_emu_shared[], __stop_emu_shared[];

// 0, or 1 for a deadlock, 2 for a launch that no device takes, 3 for a barrier that was written over.
extern "C" int flashlane_emu_launch(void (*kernel)(const void*), const void* params, const unsigned grid[3],
                                    const unsigned dim[3], unsigned shared, uint64_t seed) {
  using namespace emu;
  size_t threads = (size_t)dim[0] * dim[1] * dim[2], blocks = (size_t)grid[0] * grid[1] * grid[2];
  if (threads == 0 || threads > 1024 || blocks == 0 || shared > kMaxDynamicShared) return 2;
  auto clustered = clusters().find(kernel);
  block.size = clustered == clusters().end() ? 1 : clustered->second;
  if (block.size > kMaxCluster || grid[0] % block.size != 0) return 2;
  block.threads = (unsigned)threads;
  block.kernel = kernel;
  block.params = params;
  block.dim = {dim[0], dim[1], dim[2]};
  block.grid = {grid[0], grid[1], grid[2]};
  block.random = seed;
  block.fibers.resize(threads * block.size);
  block.warps.assign((threads + 31) / 32 * block.size, Warp{});
  std::vector<size_t> order(blocks / block.size);
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  for (size_t n = order.size(); n > 1; --n) std::swap(order[n - 1], order[draw() % n]);
  unsigned across = grid[0] / block.size;
  for (size_t flat : order) {
    uint3 first{(unsigned)(flat % across) * block.size, (unsigned)(flat / across % grid[1]), (unsigned)(flat / across / grid[1])};
    memset(__start_emu_shared, kPoison, (size_t)(__stop_emu_shared - __start_emu_shared));
    for (unsigned rank = 0; rank < block.size; ++rank) memset(dynamic[rank], kPoison, shared);
    for (size_t i = 0; i < block.fibers.size(); ++i) prepare(block.fibers[i], i, first);
    block.barriers.clear();
    if (!run_block()) return 1;
    if (!barriers_whole()) return 3;
  }
  return 0;
}
