/* Parameters of the attention kernel. */
#pragma once
#include "common/pages.h"
#include "common/weight.h"

/* Which compressed rows a query sees. */
enum CompressedRows { kCompressedNone = 0, kCompressedSelected = 1, kCompressedAll = 2 };

typedef struct {
  const int32_t *position; /* [T] */
  const uint16_t *q;       /* [T][heads][512] */
  PagedRows window;
  PagedRows compressed;
  const int32_t *selected; /* [T][k] */
  const float *sink;       /* [heads] */
  const float *rope;       /* [max_positions][32][2] */
  uint16_t *out;           /* [T][heads][512] */
  int32_t per_request;
  int32_t heads;
  int32_t source;
  int32_t k;
  int32_t format;
  int32_t max_positions;
  float scale;
  int32_t pad;
} AttentionParams;
