// Blocks of a cluster: their ranks, their barrier, and reads of each other's dynamic shared memory.
#pragma once

#include "kernel.h"

FL_DEVICE int cluster_rank() {
#if defined(__CUDA_ARCH__)
  uint32_t rank;
  asm("mov.u32 %0, %cluster_ctarank;" : "=r"(rank));
  return (int)rank;
#elif defined(FL_EMULATED)
  return (int)emu::self().rank;
#else
  return 0;
#endif
}

// What `own` is in block `rank`. Valid between two cluster barriers: after the first it is there, until the second it stays.
template <class T>
FL_DEVICE const T* cluster_peer(const T* own, int rank) {
#if defined(__CUDA_ARCH__)
  uint64_t address;
  asm("mapa.u64 %0, %1, %2;" : "=l"(address) : "l"(own), "r"(rank));
  return (const T*)address;
#elif defined(FL_EMULATED)
  return (const T*)emu::peer_shared(own, (unsigned)rank);
#else
  return own;
#endif
}

// A barrier of every thread of every block of the cluster, in two halves: what was written before an arrival is seen after
// the wait.
FL_DEVICE void cluster_arrive() {
#if defined(__CUDA_ARCH__)
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
FL_DEVICE void cluster_wait() {
#if defined(__CUDA_ARCH__)
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#elif defined(FL_EMULATED)
  emu::cluster_barrier();
#endif
}
FL_DEVICE void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}
