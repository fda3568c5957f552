/* Parameters of the sample kernels. */
#pragma once
#include <stdint.h>

typedef struct {
  const float *logits; /* [samples][vocab] */
  const float *temperature;
  const float *top_p;
  const float *min_p;
  const int32_t *top_k;
  const uint64_t *seed;
  const int32_t *position;
  int32_t *token;
  int32_t *status;
  const int32_t *slot; /* [requests] */
  int32_t *carry;      /* [slots][2], the token at position p in cell p % 2 */
  int32_t vocab;
  int32_t per_request; /* samples of a request */
  int32_t slots;
  int32_t run; /* ids of a warp, a multiple of 128 */
} SampleParams;
