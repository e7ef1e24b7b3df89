/* A stand-in for the libcuda.so.1 that CUDA's toolkit has for linking alone (lib64/stubs): each
 * function fails with 34 (CUDA_ERROR_STUB_LIBRARY). */
#define EXPORT __attribute__((visibility("default")))

/* The stand-in for the CUDA runtime calls libraries with this symbol alone. */
EXPORT const char nvgraft_standin[] = "nvgraft stand-in, not CUDA's stub";

#define ANSWERS(symbol, name, since, streams) \
  EXPORT int symbol(void) { return 34; }
#define REFUSES ANSWERS
#include "cuda/functions.def"
