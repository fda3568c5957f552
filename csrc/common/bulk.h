// Copies from global to shared memory by the copy engine. One thread asks for a run of bytes, and a barrier of phases.h ends its
// phase only when they are there.
#pragma once

#include "phases.h"

// After `barrier_init`, by the same thread: lets the copy engine see the barriers.
FL_DEVICE void barriers_made() {
#if defined(__CUDA_ARCH__)
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// An arrival that also holds the phase until `bytes` have been copied.
FL_DEVICE void barrier_expect(uint64_t* barrier, int bytes) {
#if defined(__CUDA_ARCH__)
  uint32_t address = (uint32_t)__cvta_generic_to_shared(barrier);
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address), "r"(bytes) : "memory");
#elif defined(FL_EMULATED)
  EmulatedBarrier& b = *(EmulatedBarrier*)barrier;
  b.bytes += (uint32_t)bytes, --b.pending;
  b.step();
#endif
}

// Copies `bytes` that the barrier expects: a multiple of 16, between addresses that are.
FL_DEVICE void copy_bulk(void* to, const void* from, int bytes, uint64_t* barrier) {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   (uint32_t)__cvta_generic_to_shared(to)),
               "l"(from), "r"(bytes), "r"((uint32_t)__cvta_generic_to_shared(barrier))
               : "memory");
#elif defined(FL_EMULATED)
  memcpy(to, from, (size_t)bytes);
  EmulatedBarrier& b = *(EmulatedBarrier*)barrier;
  b.bytes -= (uint32_t)bytes;
  b.step();
#endif
}
