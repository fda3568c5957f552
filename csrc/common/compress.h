/* Parameters of the compressing kernels, shared by `compress` and `index_store`. */
#pragma once
#include "weight.h"

typedef struct {
  const int32_t *position;   /* [R * P] */
  const float *kvg;          /* [R * P][kv | gate] */
  const float *ape;          /* [ratio][c width] */
  Gain norm;                 /* [width] */
  const float *rope;         /* [max_positions][32][2] */
  const int32_t *state_slot; /* [R] */
  const int64_t *row_slot;   /* [R * P] page * page_rows + row */
  float *state;              /* [state_slots][StateLayout] */
  uint8_t *pool;
  int32_t per_request; /* P */
  int32_t state_slots;
  int32_t pages;
  int32_t page_rows;
  int32_t format;
  int32_t trained;
  int32_t max_positions;
  /* Blocks that share a request's rows; more than one only if its tokens begin a 256-token block. */
  int32_t splits;
  float eps;
  int32_t pad;
} CompressParams;
