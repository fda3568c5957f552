// As slow_hyper.cu.
#if defined(__CUDACC__)
#define FL_SLOW
#define FL_TWIN(name) slow_##name
#include "linear.cu"
#endif
