/* Parameters of the hyper-connection kernels. */
#pragma once
#include "common/weight.h"

typedef struct {
  const int32_t *position; /* [T] */
  const uint16_t *streams; /* [T][n][hidden] */
  const float *mix;        /* [(2 + n) n][n hidden] */
  const float *base;       /* [(2 + n) n] */
  const float *scale;      /* [3] */
  Gain norm;               /* [hidden] */
  uint16_t *out;           /* [T][hidden] */
  float *post;             /* [T][n] */
  float *comb;             /* [T][n][n] */
  int32_t n;
  int32_t hidden;
  int32_t sinkhorn_iters;
  float eps;
  float hc_eps;
  int32_t rows;        /* T */
  int32_t per_cluster; /* tokens of a cluster, at most 8 */
  int32_t pad;
} HyperPreParams;

typedef struct {
  const int32_t *position; /* [T] */
  const uint16_t *streams; /* [T][n][hidden] */
  const uint16_t *y;       /* [T][hidden] */
  const float *post;       /* [T][n] */
  const float *comb;       /* [T][n][n] */
  uint16_t *out;           /* [T][n][hidden] */
  int32_t n;
  int32_t hidden;
} HyperPostParams;

typedef struct {
  const uint16_t *streams; /* [T][n][hidden] */
  const int32_t *rows;     /* [samples] */
  const float *mix;        /* [n][n hidden] */
  const float *base;       /* [n] */
  const float *scale;      /* [1] */
  Gain norm;               /* [hidden] */
  uint16_t *out;           /* [samples][hidden] */
  int32_t tokens;          /* T */
  int32_t n;
  int32_t hidden;
  float eps;
  float hc_eps;
  int32_t pad;
} HyperHeadParams;
