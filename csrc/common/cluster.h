// Blocks of a cluster: a barrier over all of them, and each other's shared memory.
#pragma once

#include "kernel.h"

// What was written before it by any thread of the cluster, to any block's shared memory, is seen by all after it.
FL_DEVICE void cluster_barrier() {
#if defined(__CUDA_ARCH__)
  asm volatile("barrier.cluster.arrive.aligned;\n barrier.cluster.wait.aligned;" ::: "memory");
#elif defined(FL_EMULATED)
  emu::cluster_barrier();
#endif
}

// Where the shared variable `own` lies in block `rank` of the cluster.
template <class T>
FL_DEVICE T* cluster_peer(T* own, int rank) {
#if defined(__CUDA_ARCH__)
  T* peer;
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(peer) : "l"(own), "r"(rank));
  return peer;
#elif defined(FL_EMULATED)
  return (T*)emu::peer(own, (unsigned)rank);
#else
  return own;
#endif
}
