/* Parameters of the expert kernels. */
#pragma once
#include "common/weight.h"

typedef struct {
  const uint16_t *x;    /* [T][hidden] */
  const int32_t *ids;   /* [T][k] */
  const float *weights; /* [T][k] */
  Weight weight;        /* [experts][2 width][hidden] */
  uint16_t *h;          /* [T][k][width] */
  int32_t rows;         /* T */
  int32_t experts;
  int32_t k;
  int32_t hidden;
  int32_t width;
  float limit;
  int32_t items;  /* of the block's table: a bound for any ids */
  int32_t tokens; /* that one block serves */
} ExpertsUpParams;

typedef struct {
  const uint16_t *h;      /* [T][k][width] */
  const int32_t *ids;     /* [T][k] */
  Weight weight;          /* [experts][hidden][width] */
  const uint16_t *shared; /* [T][hidden] */
  uint16_t *y;            /* [T][hidden] */
  int32_t rows;           /* T */
  int32_t experts;
  int32_t k;
  int32_t hidden;
  int32_t width;
  int32_t items;  /* of the block's table: a bound for any ids */
  int32_t tokens; /* that one block serves */
  int32_t pad;
} ExpertsDownParams;
