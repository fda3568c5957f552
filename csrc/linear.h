/* Parameters of the linear kernels. */
#pragma once
#include "common/weight.h"

typedef struct {
  const uint16_t *x; /* [rows][groups * depth] */
  Weight weight;     /* [weight_rows][depth] */
  void *out;         /* [rows][columns], bf16 or f32 */
  int32_t rows;
  int32_t depth;
  int32_t weight_rows;
  int32_t groups;
  int32_t out_f32;
  int32_t swiglu;
  float limit;
  int32_t pad;
} LinearParams;
