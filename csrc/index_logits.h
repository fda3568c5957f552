/* Parameters of the index_logits kernels. */
#pragma once
#include "common/index_scores.h"
#include "common/weight.h"

typedef struct {
  IndexScores scores;
  float *logits; /* [T][width * page_rows] */
  int32_t tokens;
  int32_t pad;
} IndexLogitsParams;
