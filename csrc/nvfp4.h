/* Parameters of the nvfp4 kernels: NVFP4 and MXFP4 blocks to wider types and back. */
#pragma once
#include <stdint.h>

typedef struct {
  const uint8_t *codes;  /* [elements / 2] */
  const uint8_t *scales; /* [elements / 16] e4m3, or [elements / 32] ue8m0 */
  void *out;             /* [elements] bf16, or e4m3 */
  int64_t elements;
  float scale2; /* NVFP4's second level; 1 for MXFP4 */
  /* e4m3 output: what a value is multiplied by before it is rounded. */
  float out_scale;
  int32_t mxfp4;
  int32_t pad;
} Fp4DequantizeParams;

typedef struct {
  const void *x;   /* [elements] bf16 or f32 */
  uint8_t *codes;  /* [elements / 2] */
  uint8_t *scales; /* [elements / 16] e4m3, or [elements / 32] ue8m0 */
  int64_t elements;
  float scale2;
  int32_t mxfp4;
  int32_t is_f32;
  int32_t pad;
} Fp4QuantizeParams;
