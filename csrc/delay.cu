// delay: keeps a stream busy and touches no memory. It makes a race loud: what should have waited for its stream has not.
#include "delay.h"

#include "common/pdl.h"

constexpr int64_t kLongestDelay = 100 * 1000 * 1000;

FL_KERNEL(32, delay, DelayParams) {
  pdl_wait();
#if defined(__CUDA_ARCH__)
  int64_t limit = p.nanoseconds < kLongestDelay ? p.nanoseconds : kLongestDelay;
  int64_t start, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  do {
    __nanosleep(200);
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - start < limit);
#else
  (void)p;
#endif
}
