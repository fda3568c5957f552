/* A weight matrix, or a stack of them, as it lies on the device. Plain C: the Rust side is generated from it. */
#pragma once

#include <stdint.h>

enum WeightFormat {
  kWeightF32 = 0,
  kWeightBf16 = 1,
  /* e4m3 with an f32 scale per 128x128 block. */
  kWeightFp8Block = 2,
  /* e2m1, sixteen to two words as common/convert.h has it, with an e4m3 scale per 16 and one f32 a matrix. */
  kWeightNvfp4 = 3,
  /* e2m1, likewise, with a ue8m0 scale per 32. */
  kWeightMxfp4 = 4
};

/* Row-major [stack][rows][cols] and [stack][rows][cols / group] (blocks of the fp8 format: [ceil(rows/128)][ceil(cols/128)]). */
typedef struct {
  const void *codes;
  const void *scales;
  const float *global;
  int32_t format;
  int32_t pad;
} Weight;

/* A vector of gains, bf16 or f32. */
typedef struct {
  const void *data;
  int32_t is_f32;
  int32_t pad;
} Gain;
