// As unwaited_hyper.cu.
#if defined(__CUDACC__)
#define FL_UNWAITED
#define FL_TWIN(name) unwaited_##name
#include "compress.cu"
#endif
