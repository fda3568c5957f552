// The emulator's scheduler: fibers, one block at a time; of a cluster each block up to where all of it waits for the others.
//
// On x86-64 a switch is a dozen instructions; elsewhere it is ucontext's, which asks the kernel twice each time.
#include "emu.h"

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#include <memory>
#include <utility>
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

extern "C" unsigned char __start_emu_shared[], __stop_emu_shared[];

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

enum class State { kReady, kBarrier, kMeeting, kCluster, kDone };
enum class Outcome { kDone, kCluster, kDeadlock };

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

using Kernel = void (*)(const void*);

struct Block {
  uint3 idx{};
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  size_t current = 0;
  bool done = false;
  // Its shared memory while another block of the cluster runs.
  std::vector<unsigned char> static_copy, dynamic_copy;
};

struct Launch {
  Kernel kernel = nullptr;
  const void* params = nullptr;
  uint3 dim{}, grid{};
  size_t shared = 0;
  Context scheduler{};
  uint64_t random = 0;
};

Launch launch;
std::vector<Block> cluster;  // Never shrinks: its fibers keep their stacks.
size_t active = 0;
alignas(64) unsigned char dynamic[kMaxDynamicShared];

Block& block() { return cluster[active]; }

std::vector<std::pair<Kernel, unsigned>>& clustered() {
  static std::vector<std::pair<Kernel, unsigned>> all;
  return all;
}

uint64_t draw() {
  uint64_t x = launch.random += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

Fiber& current() { return block().fibers[block().current]; }

void leave(State state) {
  Fiber& fiber = current();
  fiber.state = state;
  fiber.context.switch_to(launch.scheduler);
}

void enter() {
  launch.kernel(launch.params);
  leave(State::kDone);
}

void prepare(Fiber& fiber, size_t index) {
  unsigned flat = (unsigned)index;
  const uint3& dim = launch.dim;
  fiber.thread.idx = {flat % dim.x, flat / dim.x % dim.y, flat / (dim.x * dim.y)};
  fiber.thread.lane = flat % 32;
  fiber.thread.warp = flat / 32;
  fiber.state = State::kReady;
  fiber.context.start(fiber.stack.get(), kStackBytes, enter);
}

// Lets go whoever waits for nothing more. True if that was anyone.
bool release() {
  bool any = false, all_at_barrier = true;
  for (Fiber& f : block().fibers) all_at_barrier &= f.state == State::kBarrier || f.state == State::kDone;
  for (Fiber& f : block().fibers) {
    if (f.state != State::kBarrier || !all_at_barrier) continue;
    f.state = State::kReady;
    any = true;
  }
  for (size_t w = 0; w < block().warps.size(); ++w) {
    Warp& warp = block().warps[w];
    if (warp.arrived == 0 || warp.arrived != warp.wanted) continue;
    memcpy(warp.taken, warp.brought, sizeof warp.taken);
    for (size_t i = 32 * w; i < std::min(32 * (w + 1), block().fibers.size()); ++i) {
      if (!(warp.arrived >> (i % 32) & 1)) continue;
      block().fibers[i].state = State::kReady;
      any = true;
    }
    warp.arrived = 0;
  }
  return any;
}

// Runs the fibers of one block to the end, or to where all of them wait for the cluster.
Outcome run_block() {
  size_t held = draw() % (2 * block().warps.size());  // This warp runs only when no other can; half of the time it is none.
  std::vector<size_t> ready;
  for (;;) {
    ready.clear();
    bool live = false, others = false, at_cluster = true;
    for (size_t i = 0; i < block().fibers.size(); ++i) {
      State state = block().fibers[i].state;
      live |= state != State::kDone;
      at_cluster &= state == State::kDone || state == State::kCluster;
      if (state != State::kReady) continue;
      ready.push_back(i);
      others |= i / 32 != held;
    }
    if (!live) return Outcome::kDone;
    if (at_cluster) return Outcome::kCluster;
    if (ready.empty()) {
      if (!release()) return Outcome::kDeadlock;
      continue;
    }
    if (others) std::erase_if(ready, [held](size_t i) { return i / 32 == held; });
    // A run of fibers in a drawn order; the next round sees who became ready.
    for (size_t n = ready.size(); n > 0; --n) {
      std::swap(ready[n - 1], ready[draw() % n]);
      block().current = ready[n - 1];
      launch.scheduler.switch_to(current().context);
    }
    if (draw() % 4 == 0) held = draw() % (2 * block().warps.size());
    // Warps whose threads have all met may go on while others still run.
    bool waiting = false;
    for (Warp& w : block().warps) waiting |= w.arrived != 0 && w.arrived == w.wanted;
    if (waiting) release();
  }
}

size_t static_bytes() { return (size_t)(__stop_emu_shared - __start_emu_shared); }

// Runs the blocks of one cluster to the end, from one meeting of all to the next each in turn. False on a deadlock.
bool run_cluster(size_t size) {
  std::vector<size_t> order;
  for (;;) {
    order.clear();
    for (size_t i = 0; i < size; ++i) {
      if (!cluster[i].done) order.push_back(i);
    }
    if (order.empty()) return true;
    for (size_t n = order.size(); n > 0; --n) {
      std::swap(order[n - 1], order[draw() % n]);
      active = order[n - 1];
      if (size > 1) {
        memcpy(__start_emu_shared, block().static_copy.data(), static_bytes());
        memcpy(dynamic, block().dynamic_copy.data(), launch.shared);
      }
      for (Fiber& f : block().fibers) f.state = f.state == State::kCluster ? State::kReady : f.state;
      Outcome outcome = run_block();
      if (outcome == Outcome::kDeadlock) return false;
      block().done = outcome == Outcome::kDone;
      if (size > 1) {
        memcpy(block().static_copy.data(), __start_emu_shared, static_bytes());
        memcpy(block().dynamic_copy.data(), dynamic, launch.shared);
      }
    }
  }
}

void start(Block& b, uint3 idx, size_t threads, bool alone) {
  b.idx = idx;
  b.done = false;
  b.fibers.resize(threads);
  b.warps.assign((threads + 31) / 32, Warp{});
  for (size_t i = 0; i < threads; ++i) prepare(b.fibers[i], i);
  if (alone) {
    memset(__start_emu_shared, kPoison, static_bytes());
    memset(dynamic, kPoison, launch.shared);
  } else {
    b.static_copy.assign(static_bytes(), kPoison);
    b.dynamic_copy.assign(launch.shared, kPoison);
  }
}

}  // namespace

const Thread& self() { return current().thread; }
const uint3& block_idx() { return block().idx; }
const uint3& block_dim() { return launch.dim; }
const uint3& grid_dim() { return launch.grid; }
unsigned char* dynamic_shared() { return dynamic; }

void barrier() { leave(State::kBarrier); }
void cluster_barrier() { leave(State::kCluster); }

Clustered::Clustered(void (*kernel)(const void*), unsigned blocks) { clustered().emplace_back(kernel, blocks); }

void* peer(void* own, unsigned rank) {
  unsigned char* p = (unsigned char*)own;
  if (rank == active) return own;
  if (p >= __start_emu_shared && p < __stop_emu_shared) return cluster[rank].static_copy.data() + (p - __start_emu_shared);
  return cluster[rank].dynamic_copy.data() + (p - dynamic);
}

const uint64_t* meet(unsigned mask, uint64_t value) {
  const Thread& thread = current().thread;
  Warp& warp = block().warps[thread.warp];
  warp.brought[thread.lane] = value;
  warp.arrived |= 1u << thread.lane;
  warp.wanted = mask;
  leave(State::kMeeting);
  return block().warps[thread.warp].taken;
}

}  // namespace emu

// 0, or 1 for a deadlock, or 2 for a launch that no device takes.
extern "C" int flashlane_emu_launch(void (*kernel)(const void*), const void* params, const unsigned grid[3],
                                    const unsigned dim[3], unsigned shared, uint64_t seed) {
  using namespace emu;
  size_t threads = (size_t)dim[0] * dim[1] * dim[2], blocks = (size_t)grid[0] * grid[1] * grid[2], size = 1;
  for (auto [entry, count] : clustered()) size = entry == kernel ? count : size;
  if (threads == 0 || threads > 1024 || blocks == 0 || shared > kMaxDynamicShared || grid[0] % size != 0) return 2;
  launch.kernel = kernel;
  launch.params = params;
  launch.dim = {dim[0], dim[1], dim[2]};
  launch.grid = {grid[0], grid[1], grid[2]};
  launch.shared = shared;
  launch.random = seed;
  if (cluster.size() < size) cluster.resize(size);
  std::vector<size_t> order(blocks / size);
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  for (size_t n = order.size(); n > 1; --n) std::swap(order[n - 1], order[draw() % n]);
  for (size_t group : order) {
    for (size_t i = 0; i < size; ++i) {
      size_t flat = group * size + i, x = flat % grid[0], y = flat / grid[0] % grid[1], z = flat / grid[0] / grid[1];
      start(cluster[i], {(unsigned)x, (unsigned)y, (unsigned)z}, threads, size == 1);
    }
    if (!run_cluster(size)) return 1;
  }
  return 0;
}
