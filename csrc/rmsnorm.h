/* Parameters of the rmsnorm kernel. */
#pragma once
#include "common/weight.h"

typedef struct {
  const uint16_t *x; /* [rows][width] */
  uint16_t *out;     /* [rows][width] */
  Gain weight;       /* [width] */
  int32_t width;
  float eps;
} RmsNormParams;
