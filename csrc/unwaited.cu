// unwaited: kernels that do not wait for what they read, for the mutant `pdl-as-order` alone: launched programmatically they
// begin while their producer still writes. No step that is proved has one.
#if defined(__CUDACC__)
#define FL_UNWAITED
#define linear_8 unwaited_linear_8
#define linear_32 unwaited_linear_32
#include "linear.cu"
#endif
