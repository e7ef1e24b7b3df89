/* Every other public name of the runtime: what is missing here would fall into NVIDIA's library,
 * and end in an error that misleads. */

static int refuse(const char *name, char *told) {
  NEED_DRIVER();
  if (!__atomic_test_and_set(told, __ATOMIC_RELAXED))
    fprintf(
        stderr,
        "nvgraft: %s: a simulated GPU computes nothing (error 801) | run this on a node with a "
        "GPU\n",
        name
    );
  return result(NOT_SUPPORTED);
}

#define ANSWERS(symbol)
#define REFUSES(symbol) \
  EXPORT int symbol(void) { \
    static char told; \
    return refuse(#symbol, &told); \
  }
#include "runtime/functions.def"
