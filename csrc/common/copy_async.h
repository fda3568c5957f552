// Copies from global to shared memory that a thread issues now and waits for later, by itself and for itself alone.
#pragma once

#include "kernel.h"

// 16 or 4 bytes, or zeros where there are none to read.
template <int kBytes>
FL_DEVICE void copy_async(void* to, const void* from, bool valid) {
  static_assert(kBytes == 16 || kBytes == 4, "what the instruction takes, by way of the second-level cache and the first");
#if defined(__CUDA_ARCH__)
  uint32_t address = (uint32_t)__cvta_generic_to_shared(to);
  if (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(valid ? 16 : 0) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(address), "l"(from), "r"(valid ? 4 : 0) : "memory");
  }
#else
  if (valid) {
    memcpy(to, from, kBytes);
  } else {
    memset(to, 0, kBytes);
  }
#endif
}

// Closes a group of copies, which may be empty.
FL_DEVICE void close_copies() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most `kOpen` of the last groups are still under way.
template <int kOpen>
FL_DEVICE void wait_copies() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.wait_group %0;" ::"n"(kOpen) : "memory");
#endif
}
