// Runs kernel sources on the CPU, unmodified: each CUDA thread is a fiber, a block at a time, in an order drawn from a seed.
//
// A fiber runs until it meets another thread (a barrier, a shuffle, a vote), and which runs next is drawn; some seeds hold
// a warp back for as long as any other can run. So a missing barrier shows as a wrong answer under some seed. Threads that
// wait at different places for ever are a deadlock and an error, and so is what was written over a barrier. What it does not show: timing, memory models weaker than
// sequential consistency, and instructions written in assembly, for which the sources give a plain path.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include <algorithm>

#define FL_EMULATED 1
#define __device__
#define __align__(n) __attribute__((aligned(n)))
#define __forceinline__ inline
#define __shared__ static __attribute__((section("emu_shared")))
#define FL_KERNEL_BLOCKS(threads, blocks, name, Params) FL_KERNEL(threads, name, Params)
#define FL_KERNEL(threads, name, Params)                          \
  static void name(const Params& p);                              \
  extern "C" void flashlane_emu_##name(const void* params) {      \
    name(*static_cast<const Params*>(params));                    \
  }                                                               \
  static void name(const Params& p)
#define FL_KERNEL_CLUSTER(threads, blocks, cluster, name, Params)                                 \
  extern "C" void flashlane_emu_##name(const void* params);                                       \
  static const bool name##_clusters = emu::run_in_clusters(flashlane_emu_##name, cluster);        \
  FL_KERNEL(threads, name, Params)
#define FL_DYNAMIC_SHARED(name) unsigned char* name = emu::dynamic_shared()

struct uint3 {
  unsigned x, y, z;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};

using std::max;
using std::min;

namespace emu {

struct Thread {
  uint3 idx, block;
  // Of the block in its cluster; of the warp among those of the cluster.
  unsigned lane, warp, rank;
};

const Thread& self();
const uint3& block_idx();
const uint3& block_dim();
const uint3& grid_dim();
unsigned char* dynamic_shared();
// The same address in the dynamic shared memory of another block of the cluster.
const void* peer_shared(const void* own, unsigned rank);
unsigned cluster_size();

// Blocks of this kernel run in clusters of `size` along x. Their shared memory is all dynamic: static memory is one for all.
bool run_in_clusters(void (*kernel)(const void*), unsigned size);

// Waits for every live thread of the block, or of the cluster.
void barrier();
void cluster_barrier();
// Waits for every thread of `mask` in this warp; `value` is what this thread brings, the result is what all brought.
const uint64_t* meet(unsigned mask, uint64_t value);

// A barrier of common/phases.h, which begins with the arrivals that end a phase: it must still do so when the block ends.
void made_barrier(const void* barrier, uint16_t arrivals);

template <class T>
uint64_t pack(T value) {
  static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(T));
  return bits;
}

template <class T>
T unpack(uint64_t bits) {
  T value;
  memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace emu

#define threadIdx (emu::self().idx)
#define blockIdx (emu::block_idx())
#define blockDim (emu::block_dim())
#define gridDim (emu::grid_dim())

inline void __syncthreads() { emu::barrier(); }
inline void __syncwarp(unsigned mask = 0xffffffffu) { emu::meet(mask, 0); }
inline void __threadfence() {}

template <class T>
T __shfl_sync(unsigned mask, T value, int source) {
  return emu::unpack<T>(emu::meet(mask, emu::pack(value))[source & 31]);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits) {
  return emu::unpack<T>(emu::meet(mask, emu::pack(value))[(emu::self().lane ^ bits) & 31]);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta) {
  unsigned lane = emu::self().lane;
  return emu::unpack<T>(emu::meet(mask, emu::pack(value))[lane < delta ? lane : lane - delta]);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  const uint64_t* all = emu::meet(mask, predicate != 0);
  unsigned votes = 0;
  for (int i = 0; i < 32; ++i) votes |= (mask >> i & 1u) && all[i] ? 1u << i : 0u;
  return votes;
}
inline unsigned __match_any_sync(unsigned mask, int value) {
  const uint64_t* all = emu::meet(mask, emu::pack(value));
  unsigned same = 0;
  for (int i = 0; i < 32; ++i) same |= (mask >> i & 1u) && emu::unpack<int>(all[i]) == value ? 1u << i : 0u;
  return same;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz((unsigned)x); }

template <class T>
T atomicAdd(T* address, T value) {
  T old = *address;
  *address = (T)(old + value);
  return old;
}
template <class T>
T atomicMax(T* address, T value) {
  T old = *address;
  *address = value > old ? value : old;
  return old;
}
template <class T>
T atomicOr(T* address, T value) {
  T old = *address;
  *address = old | value;
  return old;
}
