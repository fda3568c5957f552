// Programmatic dependent launch. Every kernel waits on every path, and only then lets its dependents begin: they wait too, so
// letting them in early moves no access of theirs but early ones.
#pragma once

#include "kernel.h"

// No global memory access of a kernel may stand before this but reads of weights, which the proof takes as early.
FL_DEVICE void pdl_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#if !defined(FL_UNWAITED)
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  asm volatile("griddepcontrol.launch_dependents;");
#if defined(FL_SLOW)
  for (int i = 0; i < 200; ++i) __nanosleep(1000);
#endif
#endif
}
