/* Parameters of the query kernel. */
#pragma once
#include "common/weight.h"

typedef struct {
  const int32_t *position; /* [T] */
  const uint16_t *q;       /* [T][heads][512] */
  const float *rope;       /* [max_positions][32][2] */
  uint16_t *out;           /* [T][heads][512] */
  int32_t rows;            /* T * heads */
  int32_t heads;
  int32_t max_positions;
  float eps;
} QueryParams;
