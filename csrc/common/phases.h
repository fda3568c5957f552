// Barriers in shared memory on which some warps of a block wait for others, while the others go on.
//
// A phase of a barrier ends when so many threads as it was made for have arrived; phases alternate in parity from 0. A whole warp
// waits, and every lane arrives: behind one lane's arrival for all, racecheck does not see what the others did. A barrier's memory
// holds nothing else until the kernel ends: its word may still change when all have passed it.
#pragma once

#include "kernel.h"

#if defined(FL_EMULATED)
struct EmulatedBarrier {
  uint16_t arrivals, pending;
  uint32_t phase : 1, bytes : 31;  // Bytes are of copies under way (bulk.h).

  void step() {
    if (pending == 0 && bytes == 0) pending = arrivals, phase ^= 1;
  }
};
#endif

// One thread; then a block barrier.
FL_DEVICE void barrier_init(uint64_t* barriers, int count, int threads) {
  for (int i = 0; i < count; ++i) {
#if defined(__CUDA_ARCH__)
    uint32_t address = (uint32_t)__cvta_generic_to_shared(barriers + i);
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address), "r"(threads) : "memory");
#elif defined(FL_EMULATED)
    *(EmulatedBarrier*)(barriers + i) = {(uint16_t)threads, (uint16_t)threads, 0, 0};
    emu::made_barrier(barriers + i, (uint16_t)threads);
#endif
  }
}

FL_DEVICE void barrier_arrive(uint64_t* barrier) {
#if defined(__CUDA_ARCH__)
  uint32_t address = (uint32_t)__cvta_generic_to_shared(barrier);
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address) : "memory");
#elif defined(FL_EMULATED)
  EmulatedBarrier& b = *(EmulatedBarrier*)barrier;
  --b.pending;
  b.step();
#endif
}

// A warp waits for the end of the barrier's phase of this parity; the one before the first counts as ended.
FL_DEVICE void barrier_wait(uint64_t* barrier, int parity) {
#if defined(__CUDA_ARCH__)
  uint32_t address = (uint32_t)__cvta_generic_to_shared(barrier), done;
  do {
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(address), "r"(parity)
        : "memory");
  } while (!done);
#elif defined(FL_EMULATED)
  while (emu::meet(kFullMask, ((EmulatedBarrier*)barrier)->phase != (uint32_t)parity)[0] == 0) {
  }
#endif
}

// A place in a ring of `count` slots, and the parity of its phase.
struct Place {
  int slot = 0, parity = 0;

  FL_DEVICE void next(int count) {
    if (++slot == count) slot = 0, parity ^= 1;
  }
};
