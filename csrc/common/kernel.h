// What every kernel file includes: CUDA under nvcc, the emulator elsewhere.
#pragma once

#include "hd.h"

// Sources compiled a second time with a fault in them (unwaited_*.cu, slow_*.cu) name their kernels apart.
#if !defined(FL_TWIN)
#define FL_TWIN(name) name
#endif

#if defined(__CUDACC__)
// Heads a kernel of at most `threads` threads a block, whose parameters are the struct `p`.
#define FL_KERNEL(threads, name, Params) FL_KERNEL_BLOCKS(threads, 1, name, Params)
// The same, with registers for at least `blocks` blocks on a multiprocessor.
#define FL_KERNEL_BLOCKS(threads, blocks, name, Params) \
  extern "C" __global__ void __launch_bounds__(threads, blocks) FL_TWIN(name)(const __grid_constant__ Params p)
// The same in clusters of `cluster` neighbouring blocks along x, which reach each other's shared memory (common/cluster.h).
#define FL_KERNEL_CLUSTER(threads, blocks, cluster, name, Params)                              \
  extern "C" __global__ void __cluster_dims__(cluster, 1, 1) __launch_bounds__(threads, blocks) \
      FL_TWIN(name)(const __grid_constant__ Params p)
#define FL_DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]
#else
#include "../emu/emu.h"
#endif

#define FL_DEVICE __device__ __forceinline__
#if defined(__CUDACC__)
#define FL_RARE __device__ __noinline__
#else
#define FL_RARE
#endif

constexpr int kWarp = 32;
constexpr unsigned kFullMask = 0xffffffffu;
constexpr int kHeadDim = 512;
constexpr int kRopeDim = 64;
constexpr int kNopeDim = kHeadDim - kRopeDim;
constexpr int kIndexDim = 128;
constexpr int kWindow = 128;
constexpr int kBlockTokens = 256;

FL_DEVICE int lane_idx() { return threadIdx.x % kWarp; }
FL_DEVICE int warp_idx() { return threadIdx.x / kWarp; }
