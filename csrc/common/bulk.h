// Bulk copies from global to shared memory by the copy engine: one thread asks for a run of bytes, a barrier in shared memory
// counts them in, and every thread may wait for it.
//
// A barrier is for one thread's `bulk_expect` a phase, and its phases alternate in parity from 0. Addresses and sizes are
// multiples of 16 bytes. The emulator copies at once: between the request and the use of its bytes a block barrier must stand.
#pragma once

#include "kernel.h"

// One thread; then a block barrier.
FL_DEVICE void bulk_init(uint64_t* barriers, int count) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  for (int i = 0; i < count; ++i) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"((uint32_t)__cvta_generic_to_shared(barriers + i)) : "memory");
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Opens a phase that ends when so many bytes have come. Before the copies.
FL_DEVICE void bulk_expect(uint64_t* barrier, int bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  uint32_t address = (uint32_t)__cvta_generic_to_shared(barrier);
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address), "r"(bytes) : "memory");
#endif
}

FL_DEVICE void bulk_copy(void* to, const void* from, int bytes, uint64_t* barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  uint32_t address = (uint32_t)__cvta_generic_to_shared(to), at = (uint32_t)__cvta_generic_to_shared(barrier);
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(address),
               "l"(from), "r"(bytes), "r"(at)
               : "memory");
#elif !defined(__CUDACC__)
  memcpy(to, from, (size_t)bytes);
#endif
}

FL_DEVICE void bulk_wait(uint64_t* barrier, int parity) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  uint32_t address = (uint32_t)__cvta_generic_to_shared(barrier), done;
  do {
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(address), "r"(parity)
        : "memory");
  } while (!done);
#endif
}
