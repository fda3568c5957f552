// Programmatic dependent launch. Every kernel waits first, on every path, and only then lets its dependents begin: they
// wait too, so letting them in early moves no access of theirs.
#pragma once

#include "kernel.h"

// No global memory access of a kernel may stand before this.
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
