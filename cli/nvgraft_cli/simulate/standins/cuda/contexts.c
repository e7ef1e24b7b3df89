/* Contexts: each thread has a stack of them, and each device one primary context for all who retain
 * it. */

#define CONTEXT_MAGIC 0x6e766378u
#define STACK_LIMIT 64

static __thread struct context *stack[STACK_LIMIT];
static __thread unsigned depth;
static unsigned long long contexts_made;

static const size_t default_limits[] = {1024, 1 << 20, 8 << 20, 2, 2048, 64, 0, 0};

/* Make a context live, for a first user. The caller holds the lock. */
static void begin(struct context *context, int device, unsigned flags) {
  *context = (struct context){
      .magic = CONTEXT_MAGIC,
      .device = device,
      .flags = flags,
      .references = 1,
      .id = ++contexts_made
  };
  memcpy(context->limits, default_limits, sizeof context->limits);
}

static struct context *current(void) { return depth ? stack[depth - 1] : NULL; }

static int is_live(const struct context *context) {
  return context && context->magic == CONTEXT_MAGIC &&
         __atomic_load_n(&context->references, __ATOMIC_RELAXED);
}

#define NEED_CONTEXT(context) \
  do { \
    NEED_INIT(); \
    if (!is_live(context)) \
      return INVALID_CONTEXT; \
  } while (0)

EXPORT int cuDevicePrimaryCtxRetain(struct context **context, int device) {
  NEED_DEVICE(device);
  NEED_POINTER(context);
  struct context *primary = &devices[device].primary;
  pthread_mutex_lock(&lock);
  if (primary->references)
    primary->references++;
  else
    begin(primary, device, primary->flags);
  pthread_mutex_unlock(&lock);
  *context = primary;
  return SUCCESS;
}

EXPORT int cuDevicePrimaryCtxRelease_v2(int device) {
  int result = SUCCESS;
  NEED_DEVICE(device);
  pthread_mutex_lock(&lock);
  if (devices[device].primary.references)
    devices[device].primary.references--;
  else
    result = INVALID_CONTEXT;
  pthread_mutex_unlock(&lock);
  return result;
}

EXPORT int cuDevicePrimaryCtxRelease(int device) { return cuDevicePrimaryCtxRelease_v2(device); }

EXPORT int cuDevicePrimaryCtxReset_v2(int device) {
  NEED_DEVICE(device);
  pthread_mutex_lock(&lock);
  devices[device].primary.references = 0;
  pthread_mutex_unlock(&lock);
  return SUCCESS;
}

EXPORT int cuDevicePrimaryCtxReset(int device) { return cuDevicePrimaryCtxReset_v2(device); }

EXPORT int cuDevicePrimaryCtxSetFlags_v2(int device, unsigned flags) {
  NEED_DEVICE(device);
  pthread_mutex_lock(&lock);
  devices[device].primary.flags = flags;
  pthread_mutex_unlock(&lock);
  return SUCCESS;
}

/* Before CUDA 11 an active context kept its flags. */
EXPORT int cuDevicePrimaryCtxSetFlags(int device, unsigned flags) {
  NEED_DEVICE(device);
  return is_live(&devices[device].primary) ? PRIMARY_CONTEXT_ACTIVE
                                           : cuDevicePrimaryCtxSetFlags_v2(device, flags);
}

EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
  NEED_DEVICE(device);
  NEED_POINTER(flags && active);
  pthread_mutex_lock(&lock);
  *flags = devices[device].primary.flags;
  *active = devices[device].primary.references > 0;
  pthread_mutex_unlock(&lock);
  return SUCCESS;
}

EXPORT int cuCtxPushCurrent_v2(struct context *context) {
  NEED_CONTEXT(context);
  if (depth == STACK_LIMIT)
    return OUT_OF_MEMORY;
  stack[depth++] = context;
  return SUCCESS;
}

EXPORT int cuCtxPopCurrent_v2(struct context **context) {
  NEED_INIT();
  if (!depth)
    return INVALID_CONTEXT;
  depth--;
  if (context)
    *context = stack[depth];
  return SUCCESS;
}

EXPORT int cuCtxSetCurrent(struct context *context) {
  NEED_INIT();
  if (!context) {
    depth -= depth > 0;
    return SUCCESS;
  }
  NEED_CONTEXT(context);
  if (depth)
    depth--;
  return cuCtxPushCurrent_v2(context);
}

EXPORT int cuCtxGetCurrent(struct context **context) {
  NEED_INIT();
  NEED_POINTER(context);
  *context = current();
  return SUCCESS;
}

EXPORT int cuCtxCreate_v2(struct context **context, unsigned flags, int device) {
  NEED_DEVICE(device);
  NEED_POINTER(context);
  struct context *made = malloc(sizeof *made);
  if (!made)
    return OUT_OF_MEMORY;
  pthread_mutex_lock(&lock);
  begin(made, device, flags);
  pthread_mutex_unlock(&lock);
  *context = made;
  return cuCtxPushCurrent_v2(made);
}

EXPORT int cuCtxCreate_v3(
    struct context **context, const void *affinities, int count, unsigned flags, int device
) {
  (void)affinities, (void)count;
  return cuCtxCreate_v2(context, flags, device);
}

EXPORT int
cuCtxCreate_v4(struct context **context, const void *parameters, unsigned flags, int device) {
  (void)parameters;
  return cuCtxCreate_v2(context, flags, device);
}

EXPORT int cuCtxDestroy_v2(struct context *context) {
  NEED_CONTEXT(context);
  for (unsigned i = 0; i < device_count; i++)
    if (context == &devices[i].primary)
      return INVALID_CONTEXT;
  __atomic_store_n(&context->references, 0, __ATOMIC_RELAXED);
  if (current() == context)
    depth--;
  return SUCCESS;
}

/* Functions of one context: the current one, or in their second version the one given. */
static int device_of(int *device, struct context *context) {
  NEED_CONTEXT(context);
  NEED_POINTER(device);
  *device = context->device;
  return SUCCESS;
}

EXPORT int cuCtxGetDevice(int *device) { return device_of(device, current()); }

EXPORT int cuCtxGetDevice_v2(int *device, struct context *context) {
  return device_of(device, context ? context : current());
}

/* Nothing is ever pending. */
EXPORT int cuCtxSynchronize(void) {
  NEED_CONTEXT(current());
  return SUCCESS;
}

EXPORT int cuCtxSynchronize_v2(struct context *context) {
  NEED_CONTEXT(context ? context : current());
  return SUCCESS;
}

EXPORT int cuCtxGetFlags(unsigned *flags) {
  NEED_CONTEXT(current());
  NEED_POINTER(flags);
  *flags = current()->flags;
  return SUCCESS;
}

EXPORT int cuCtxSetFlags(unsigned flags) {
  NEED_CONTEXT(current());
  current()->flags = flags;
  return SUCCESS;
}

EXPORT int cuCtxGetId(struct context *context, unsigned long long *id) {
  if (!context)
    context = current();
  NEED_CONTEXT(context);
  NEED_POINTER(id);
  *id = context->id;
  return SUCCESS;
}

EXPORT int cuCtxGetApiVersion(struct context *context, unsigned *version) {
  NEED_CONTEXT(context ? context : current());
  NEED_POINTER(version);
  *version = 3020;
  return SUCCESS;
}

EXPORT int cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  NEED_CONTEXT(current());
  if (least)
    *least = 0;
  if (greatest)
    *greatest = -5;
  return SUCCESS;
}

EXPORT int cuCtxGetLimit(size_t *value, int limit) {
  NEED_CONTEXT(current());
  NEED_POINTER(
      value && limit >= 0 && limit < (int)(sizeof default_limits / sizeof *default_limits)
  );
  *value = current()->limits[limit];
  return SUCCESS;
}

EXPORT int cuCtxSetLimit(int limit, size_t value) {
  NEED_CONTEXT(current());
  NEED_POINTER(limit >= 0 && limit < (int)(sizeof default_limits / sizeof *default_limits));
  current()->limits[limit] = value;
  return SUCCESS;
}

EXPORT int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
  NEED_CONTEXT(current());
  NEED_POINTER(free_bytes && total);
  return memory_of(current()->device, total, free_bytes);
}
