// rmsnorm with the barriers of its block-wide sum taken out: what the emulator must find.
#include "emu.h"

#define __syncthreads() ((void)0)
// Names of their own, so that the linker keeps these apart from the whole ones.
#define block_sum block_sum_without_barriers
#undef FL_KERNEL
#define FL_KERNEL(threads, name, Params)                                  \
  static void planted(const Params& p);                                   \
  extern "C" void flashlane_emu_planted(const void* params) {             \
    planted(*static_cast<const Params*>(params));                         \
  }                                                                       \
  static void planted(const Params& p)
#include "../rmsnorm.cu"
