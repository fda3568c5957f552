// Kernels of hyper that let their dependents begin and then take their time, for the mutant `pdl-as-order` alone: what does
// not wait for them overtakes them.
#if defined(__CUDACC__)
#define FL_SLOW
#define FL_TWIN(name) slow_##name
#include "hyper.cu"
#endif
