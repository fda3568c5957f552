/* Parameters of the canary kernel. */
#pragma once
#include <stdint.h>

typedef struct {
  const uint32_t *store;
  const uint64_t *spans; /* [count, 2]: first word in the store; its place in the page << 32 | words */
  uint64_t *out;         /* [count] */
  int64_t words;         /* of the store */
} CanaryParams;
