/* The driver behind the runtime: loaded, checked and started at the first question. */

/* The cudaError_t values that are returned here; most errors are the driver's own, which have the
 * same numbers. */
enum {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  INITIALIZATION_ERROR = 3,
  INSUFFICIENT_DRIVER = 35,
  INVALID_DEVICE = 101,
  NOT_SUPPORTED = 801,
};

enum { DEVICE_LIMIT = 64 };

/* The functions of the driver API that are called here: its symbol, and the types of its arguments.
 */
#define DRIVER_FUNCTIONS(F) \
  F(cuInit, (unsigned)) \
  F(cuDriverGetVersion, (int *)) \
  F(cuGetProcAddress_v2, (const char *, void **, int, uint64_t, int *)) \
  F(cuDeviceGetCount, (int *)) \
  F(cuDeviceGetName, (char *, int, int)) \
  F(cuDeviceGetUuid_v2, (void *, int)) \
  F(cuDeviceTotalMem_v2, (size_t *, int)) \
  F(cuDeviceGetAttribute, (int *, int, int)) \
  F(cuDeviceGetPCIBusId, (char *, int, int)) \
  F(cuDeviceGetByPCIBusId, (int *, const char *)) \
  F(cuDeviceCanAccessPeer, (int *, int, int)) \
  F(cuDeviceGetP2PAttribute, (int *, int, int, int)) \
  F(cuDevicePrimaryCtxRetain, (void **, int)) \
  F(cuDevicePrimaryCtxReset_v2, (int)) \
  F(cuDevicePrimaryCtxGetState, (int, unsigned *, int *)) \
  F(cuDevicePrimaryCtxSetFlags_v2, (int, unsigned)) \
  F(cuCtxGetCurrent, (void **)) \
  F(cuCtxSetCurrent, (void *)) \
  F(cuCtxSynchronize, (void)) \
  F(cuCtxGetStreamPriorityRange, (int *, int *)) \
  F(cuCtxGetLimit, (size_t *, int)) \
  F(cuCtxSetLimit, (int, size_t)) \
  F(cuMemGetInfo_v2, (size_t *, size_t *)) \
  F(cuStreamCreateWithPriority, (void **, unsigned, int)) \
  F(cuStreamDestroy_v2, (void *)) \
  F(cuStreamQuery, (void *)) \
  F(cuStreamSynchronize, (void *)) \
  F(cuStreamGetPriority, (void *, int *)) \
  F(cuStreamGetFlags, (void *, unsigned *)) \
  F(cuStreamGetId, (void *, unsigned long long *)) \
  F(cuStreamIsCapturing, (void *, int *)) \
  F(cuThreadExchangeStreamCaptureMode, (int *)) \
  F(cuEventCreate, (void **, unsigned)) \
  F(cuEventDestroy_v2, (void *)) \
  F(cuEventQuery, (void *)) \
  F(cuEventSynchronize, (void *))

static struct {
#define MEMBER(function, arguments) int(*function) arguments;
  DRIVER_FUNCTIONS(MEMBER)
#undef MEMBER
} driver;

enum state { NOT_LOADED, LOADED, FOREIGN };
static enum state state;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Of each thread: its device and its last error. */
static __thread int device;
static __thread int last_error;

/* Keep the error of a function, and return it. */
static int result(int error) {
  if (error)
    last_error = error;
  return error;
}

static int find_runtime(struct dl_phdr_info *info, size_t size, void *path) {
  (void)size;
  const char *name = strrchr(info->dlpi_name, '/');
  if (strncmp(name ? name + 1 : info->dlpi_name, "libcudart.so.", 13))
    return 0;
  snprintf(path, 4096, "%s", info->dlpi_name);
  return 1;
}

/* Return the version that the name of a runtime's file says: 11070 of libcudart.so.11.7.99, which
 * toolkits have, and 11000 of libcudart.so.11.0, which is a SONAME. */
static int version_of_name(const char *path) {
  const char *name = strrchr(path, '/');
  const char *digit = (name ? name + 1 : path) + strlen("libcudart.so.");
  int numbers[3] = {0}, count = 0;
  for (; count < 3 && *digit >= '0' && *digit <= '9'; count++, digit += *digit == '.')
    for (; *digit >= '0' && *digit <= '9' && numbers[count] < 1000; digit++)
      numbers[count] = numbers[count] * 10 + *digit - '0';
  return numbers[0] * 1000 + (count == 3 ? numbers[1] * 10 : 0);
}

/* Return the version of NVIDIA's runtime in this process, 0 without one. Since CUDA 12 it answers
 * without a driver. That of an older one is known from the name of its file, and 11.8, the last
 * CUDA 11, from a function that came with it. */
static int runtime_version(void) {
  static int known;
  int version = __atomic_load_n(&known, __ATOMIC_RELAXED);
  char path[4096], real[4096];
  if (version || !dl_iterate_phdr(find_runtime, path))
    return version;
  void *library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
  int (*ask)(int *) = library ? (int (*)(int *))dlsym(library, "cudaRuntimeGetVersion") : NULL;
  if (!ask || ask(&version) || !version) {
    version = version_of_name(realpath(path, real) ? real : path);
    if (version == 11000 && library && dlsym(library, "cudaLaunchKernelExC"))
      version = 11080;
  }
  __atomic_store_n(&known, version, __ATOMIC_RELAXED);
  return version;
}

/* The stand-in libcuda.so.1 asks whether code is that of a libcudart whose functions are replaced
 * here. */
EXPORT int nvgraft_replaces(const void *code) {
  Dl_info object;
  return dladdr(code, &object) && object.dli_fname && strstr(object.dli_fname, "/libcudart.so.");
}

/* Load libcuda.so.1 as the runtime does: by its name. A library that is not nvgraft's is left
 * alone. */
static enum state load(void) {
  pthread_mutex_lock(&lock);
  if (state == NOT_LOADED) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library && dlsym(library, "cuInit")) {
      state = dlsym(library, "nvgraft_standin") ? LOADED : FOREIGN;
#define RESOLVE(function, arguments) driver.function = (int(*) arguments)dlsym(library, #function);
      if (state == LOADED) {
        DRIVER_FUNCTIONS(RESOLVE)
      }
#undef RESOLVE
    }
  }
  enum state now = state;
  pthread_mutex_unlock(&lock);
  if (now == FOREIGN)
    fprintf(
        stderr, "nvgraft: the preloaded CUDA runtime is a stand-in for simulated hosts, and "
                "libcuda.so.1 is not one"
                " | remove it from LD_PRELOAD\n"
    );
  return now;
}

/* Start the driver. Return what every function that needs it fails with, or SUCCESS. */
static int start(void) {
  int version = 0;
  switch (load()) {
  case NOT_LOADED:
    return INSUFFICIENT_DRIVER;
  case FOREIGN:
    return INITIALIZATION_ERROR;
  case LOADED:
    break;
  }
  int error = driver.cuDriverGetVersion(&version);
  if (error)
    return error;
  /* A newer minor version than the driver's works, a newer major version does not. */
  return version / 1000 < runtime_version() / 1000 ? INSUFFICIENT_DRIVER : driver.cuInit(0);
}

#define NEED_DRIVER() \
  do { \
    int error = start(); \
    if (error) \
      return result(error); \
  } while (0)

/* Make the primary context of the thread's device current. */
static int use_context(void) {
  static void *contexts[DEVICE_LIMIT];
  void *now = NULL;
  int error = start();
  if (!error)
    error = driver.cuCtxGetCurrent(&now);
  if (error)
    return error;
  pthread_mutex_lock(&lock);
  int active = 0;
  unsigned flags;
  if (contexts[device] && !driver.cuDevicePrimaryCtxGetState(device, &flags, &active) && !active)
    contexts[device] = NULL;
  if (!contexts[device])
    error = driver.cuDevicePrimaryCtxRetain(&contexts[device], device);
  void *wanted = contexts[device];
  pthread_mutex_unlock(&lock);
  return error || now == wanted ? error : driver.cuCtxSetCurrent(wanted);
}

#define NEED_CONTEXT() \
  do { \
    int error = use_context(); \
    if (error) \
      return result(error); \
  } while (0)

#define NEED_POINTER(pointer) \
  do { \
    if (!(pointer)) \
      return result(INVALID_VALUE); \
  } while (0)
