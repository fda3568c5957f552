/* Parameters of the delay kernel. */
#pragma once
#include <stdint.h>

typedef struct {
  int64_t nanoseconds; /* at most kLongestDelay */
} DelayParams;
