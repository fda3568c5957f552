// As slow_linear.cu.
#if defined(__CUDACC__)
#define FL_SLOW
#define FL_TWIN(name) slow_##name
#include "attention_wide.cu"
#endif
