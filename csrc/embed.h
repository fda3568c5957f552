/* Parameters of the embed kernel. */
#pragma once
#include "common/weight.h"

typedef struct {
  const int32_t *position; /* [T] */
  const int32_t *token;    /* [T]; -1: the carried one */
  const int32_t *slot;     /* [requests] */
  const int32_t *carry;    /* [slots][2], the token at position p in cell p % 2 */
  Gain weight;             /* [vocab][hidden] */
  uint16_t *out;           /* [T][streams][hidden] */
  int32_t *ids;            /* [T] */
  int32_t vocab;
  int32_t hidden;
  int32_t streams;
  int32_t per_request;
  int32_t slots;
  int32_t pad;
} EmbedParams;
