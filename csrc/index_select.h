/* Parameters of the index_select kernels. */
#pragma once
#include "common/index_scores.h"
#include "common/weight.h"

typedef struct {
  IndexScores scores;
  int32_t *selected; /* [T][k] */
  int32_t k;
  int32_t pad;
} IndexSelectParams;
