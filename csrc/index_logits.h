/* Parameters of the index_logits kernels. */
#pragma once
#include "common/pages.h"
#include "common/weight.h"

typedef struct {
  const int32_t *position; /* [T] */
  const uint8_t *codes;    /* [T][heads][code bytes] */
  const uint8_t *scales;   /* [T][heads][4], null for bf16 */
  const float *weights;    /* [T][heads] */
  PagedRows keys;
  float *logits; /* [T][width * page_rows] */
  int32_t per_request;
  int32_t heads;
  int32_t format;
  float scale;
  int32_t tokens;
  int32_t pad;
} IndexLogitsParams;
