/* Parameters of the topk kernel. */
#pragma once
#include "common/weight.h"

typedef struct {
  const int32_t *position; /* [T] */
  const float *logits;     /* [T][width] */
  int32_t *selected;       /* [T][k] */
  int32_t width;
  int32_t k;
} TopKParams;
