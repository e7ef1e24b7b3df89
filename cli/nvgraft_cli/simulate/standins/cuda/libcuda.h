/* What the parts of the stand-in libcuda.so.1 share. */
#ifndef NVGRAFT_LIBCUDA_H
#define NVGRAFT_LIBCUDA_H

#include <pthread.h>
#include <stdlib.h>

#include "access.h"
#include "peers.h"

#define LIBRARY "libcuda.so.1"

/* The CUresult values that are returned here. */
enum {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NOT_INITIALIZED = 3,
  NO_DEVICE = 100,
  INVALID_DEVICE = 101,
  INVALID_CONTEXT = 201,
  PRIMARY_CONTEXT_ACTIVE = 708,
  INVALID_HANDLE = 400,
  NOT_FOUND = 500,
  NOT_SUPPORTED = 801,
  SYSTEM_DRIVER_MISMATCH = 803,
  UNKNOWN = 999,
};

/* What a CUcontext points to. Contexts are kept after their end, so that a handle of an ended one
 * is recognised. */
struct context {
  unsigned magic;
  int device;
  unsigned flags;
  unsigned references; /* 0: ended, or a primary context that nobody has retained */
  unsigned long long id;
  size_t limits[8]; /* by CUlimit */
};

/* A device of this process, in the order of its ordinals: a GPU, or a MIG device of it. */
struct device {
  const struct sim_gpu *gpu;
  const struct sim_mig_device *mig; /* NULL: the whole GPU */
  struct context primary;
};

static struct device devices[SIM_GPU_LIMIT];
static unsigned device_count;
/* Guards what follows a successful cuInit: contexts and their numbers. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Return SUCCESS if this process has called cuInit with success, and else what its call is answered
 * with. */
static int initialised(void);

#define NEED_INIT() \
  do { \
    int state = initialised(); \
    if (state) \
      return state; \
  } while (0)

#define NEED_POINTER(pointer) \
  do { \
    if (!(pointer)) \
      return INVALID_VALUE; \
  } while (0)

#define NEED_DEVICE(device) \
  do { \
    NEED_INIT(); \
    if ((device) < 0 || (unsigned)(device) >= device_count) \
      return INVALID_DEVICE; \
  } while (0)

#endif
