/* Every public name of the driver API, and the search among them.
 *
 * A function that computes is exported and refuses: a program without it would say that the driver
 * is too old, which misleads. */

static int refuse(const char *name, char *told) {
  NEED_INIT();
  if (!__atomic_test_and_set(told, __ATOMIC_RELAXED))
    fprintf(
        stderr,
        "nvgraft: %s: a simulated GPU computes nothing (error 801) | run this on a node with a "
        "GPU\n",
        name
    );
  return NOT_SUPPORTED;
}

#define ANSWERS(symbol, name, since, streams)
#define REFUSES(symbol, name, since, streams) \
  EXPORT int symbol(void) { \
    static char told; \
    return refuse(#symbol, &told); \
  }
#include "cuda/functions.def"
#undef ANSWERS
#undef REFUSES

EXPORT int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags);
EXPORT int
cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status);

/* Which default stream a function uses: one for all threads, or one for each. */
enum streams { LEGACY, PER_THREAD };

static const struct function {
  const char *name;
  int since; /* the CUDA version with which this variant came: 11040 is 11.4 */
  enum streams streams;
  void *address;
} functions[] = {
#define ANSWERS(symbol, name, since, streams) {#name, since, streams, (void *)symbol},
#define REFUSES ANSWERS
#include "cuda/functions.def"
#undef ANSWERS
#undef REFUSES
};

/* The values of CUdriverProcAddressQueryResult. */
enum { SYMBOL_FOUND, SYMBOL_NOT_FOUND, VERSION_NOT_SUFFICIENT };

/* Find the newest variant of a function that both the caller's version and the driver's have. */
static int look_up(const char *name, int version, uint64_t flags, void **address) {
  enum { PER_THREAD_DEFAULT_STREAM = 2 };
  /* A program that cannot ask for functions does not find out that the driver is too old for it. */
  int limit =
      strcmp(name, "cuGetProcAddress") && version > simulated.cuda ? simulated.cuda : version;
  const struct function *best = NULL;
  int known = 0;
  for (unsigned i = 0; i < sizeof functions / sizeof *functions; i++) {
    const struct function *row = &functions[i];
    if (strcmp(row->name, name))
      continue;
    known = 1;
    if (row->since > limit || (row->streams == PER_THREAD && !(flags & PER_THREAD_DEFAULT_STREAM)))
      continue;
    if (!best || row->streams > best->streams ||
        (row->streams == best->streams && row->since > best->since))
      best = row;
  }
  *address = best ? best->address : NULL;
  return best ? SYMBOL_FOUND : known ? VERSION_NOT_SUFFICIENT : SYMBOL_NOT_FOUND;
}

EXPORT int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
  if (refuses_beside_driver(LIBRARY))
    return NOT_INITIALIZED;
  NEED_POINTER(name && function);
  return look_up(name, version, flags, function) == SYMBOL_FOUND ? SUCCESS : NOT_FOUND;
}

EXPORT int
cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
  if (refuses_beside_driver(LIBRARY))
    return NOT_INITIALIZED;
  NEED_POINTER(name && function);
  int found = look_up(name, version, flags, function);
  if (status)
    *status = found;
  return SUCCESS;
}
