/* Parameters of the embed kernel. */
#pragma once
#include "common/weight.h"

typedef struct {
  const int32_t *position; /* [T] */
  const int32_t *token;    /* [T] */
  Gain weight;             /* [vocab][hidden] */
  uint16_t *out;           /* [T][streams][hidden] */
  int32_t vocab;
  int32_t hidden;
  int32_t streams;
  int32_t pad;
} EmbedParams;
