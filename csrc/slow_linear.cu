// Kernels of linear that let their dependents begin and then take their time, to see them overtaken by what does not wait for
// them. No step that is proved has one.
#if defined(__CUDACC__)
#define FL_SLOW
#define FL_TWIN(name) slow_##name
#include "linear.cu"
#endif
