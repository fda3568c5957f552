/* Parameters of the fill kernel. */
#pragma once
#include <stdint.h>

enum FillKind {
  kFillF32 = 0,   /* mean + scale * u, u uniform in (-1, 1) */
  kFillBf16 = 1,  /* the same, rounded */
  kFillE4m3 = 2,  /* codes of 0.25 to 3.75, either sign */
  kFillBytes = 3, /* any byte: two e2m1 codes */
  kFillByte = 4   /* the same byte everywhere */
};

typedef struct {
  void *out;
  int64_t count; /* elements: 4, 2 or 1 bytes each */
  uint64_t seed;
  float mean;
  float scale;
  int32_t kind;
  int32_t byte;
} FillParams;
