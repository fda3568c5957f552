/* Parameters of the index_query kernel. */
#pragma once
#include "common/weight.h"

typedef struct {
  const int32_t *position; /* [T] */
  const uint16_t *q;       /* [T][heads][128] */
  const float *rope;       /* [max_positions][32][2] */
  uint8_t *codes;          /* [T][heads][code bytes] */
  uint8_t *scales;         /* [T][heads][4], null for bf16 */
  int32_t rows;            /* T * heads */
  int32_t heads;
  int32_t format;
  int32_t max_positions;
} IndexQueryParams;
