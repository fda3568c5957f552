/* Parameters of the router kernel. */
#pragma once
#include "common/weight.h"

typedef struct {
  const int32_t *position; /* [T] */
  const float *logits;     /* [T][experts] */
  const float *bias;       /* [experts]; null: hash routing */
  const int32_t *table;    /* [vocab][k] */
  const int32_t *token;    /* [T] */
  int32_t *ids;            /* [T][k] */
  float *weights;          /* [T][k] */
  int32_t experts;
  int32_t k;
  int32_t vocab;
  float factor;
} RouterParams;
