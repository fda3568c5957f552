/* Parameters of the rope_store kernel. */
#pragma once
#include "common/weight.h"

typedef struct {
  const int32_t *position; /* [T] */
  const uint16_t *kv;      /* [T][512] */
  Gain norm;               /* [512] */
  const float *rope;       /* [max_positions][32][2] */
  const int64_t *slot;     /* [T] page * 64 + row */
  uint8_t *pool;
  int32_t rows; /* T */
  int32_t pages;
  int32_t format;
  int32_t trained;
  int32_t max_positions;
  float eps;
} RopeStoreParams;
