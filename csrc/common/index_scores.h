/* What index_logits and index_select score: queries of T tokens, and the keys that they see. Plain C. */
#pragma once

#include "pages.h"

typedef struct {
  const int32_t *position; /* [T] */
  const uint8_t *codes;    /* [T][heads][code bytes] */
  const uint8_t *scales;   /* [T][heads][4], null for bf16 */
  const float *weights;    /* [T][heads] */
  PagedRows keys;
  int32_t per_request;
  int32_t heads;
  int32_t format;
  float scale;
} IndexScores;
