// Kernels of linear that do not wait for what they read, for the mutant `pdl-as-order` alone: launched programmatically they
// begin while their producer still writes. No step that is proved has one.
#if defined(__CUDACC__)
#define FL_UNWAITED
#define FL_TWIN(name) unwaited_##name
#include "linear.cu"
#endif
