/* Streams and events that can be made, asked and waited for. Nothing is ever pending in a stream,
 * and no event can be recorded. */

#define STREAM_MAGIC 0x6e767374u
#define EVENT_MAGIC 0x6e766576u

/* What a CUstream or CUevent points to. */
struct object {
  unsigned magic; /* 0 after its end */
  unsigned flags;
  int priority;
  unsigned long long id;
  struct context *context;
};

/* NULL and two small numbers stand for the default streams. */
static int is_stream(const struct object *stream) {
  return (uintptr_t)stream <= 2 || stream->magic == STREAM_MAGIC;
}

static int is_default(const struct object *stream) { return (uintptr_t)stream <= 2; }

#define NEED_STREAM(stream) \
  do { \
    NEED_CONTEXT(current()); \
    if (!is_stream(stream)) \
      return INVALID_HANDLE; \
  } while (0)

#define NEED_EVENT(event) \
  do { \
    NEED_CONTEXT(current()); \
    if (!(event) || (event)->magic != EVENT_MAGIC) \
      return INVALID_HANDLE; \
  } while (0)

static int make_object(struct object **object, unsigned magic, unsigned flags, int priority) {
  static unsigned long long made = 2;
  NEED_CONTEXT(current());
  NEED_POINTER(object);
  *object = malloc(sizeof **object);
  if (!*object)
    return OUT_OF_MEMORY;
  **object = (struct object){
      magic, flags, priority, __atomic_add_fetch(&made, 1, __ATOMIC_RELAXED), current()
  };
  return SUCCESS;
}

EXPORT int cuStreamCreate(struct object **stream, unsigned flags) {
  return make_object(stream, STREAM_MAGIC, flags, 0);
}

EXPORT int cuStreamCreateWithPriority(struct object **stream, unsigned flags, int priority) {
  return make_object(stream, STREAM_MAGIC, flags, priority > 0 ? 0 : priority < -5 ? -5 : priority);
}

EXPORT int cuStreamDestroy_v2(struct object *stream) {
  NEED_STREAM(stream);
  if (is_default(stream))
    return INVALID_HANDLE;
  stream->magic = 0;
  free(stream);
  return SUCCESS;
}

EXPORT int cuStreamQuery(struct object *stream) {
  NEED_STREAM(stream);
  return SUCCESS;
}

EXPORT int cuStreamSynchronize(struct object *stream) { return cuStreamQuery(stream); }

EXPORT int cuStreamGetPriority(struct object *stream, int *priority) {
  NEED_STREAM(stream);
  NEED_POINTER(priority);
  *priority = is_default(stream) ? 0 : stream->priority;
  return SUCCESS;
}

EXPORT int cuStreamGetFlags(struct object *stream, unsigned *flags) {
  NEED_STREAM(stream);
  NEED_POINTER(flags);
  *flags = is_default(stream) ? 0 : stream->flags;
  return SUCCESS;
}

EXPORT int cuStreamGetId(struct object *stream, unsigned long long *id) {
  NEED_STREAM(stream);
  NEED_POINTER(id);
  *id = is_default(stream) ? (uintptr_t)stream : stream->id;
  return SUCCESS;
}

EXPORT int cuStreamGetCtx(struct object *stream, struct context **context) {
  NEED_STREAM(stream);
  NEED_POINTER(context);
  *context = is_default(stream) ? current() : stream->context;
  return SUCCESS;
}

EXPORT int cuStreamGetCtx_v2(struct object *stream, struct context **context, void **green) {
  NEED_POINTER(green);
  *green = NULL;
  return cuStreamGetCtx(stream, context);
}

EXPORT int cuStreamIsCapturing(struct object *stream, int *status) {
  NEED_STREAM(stream);
  NEED_POINTER(status);
  *status = 0; /* CU_STREAM_CAPTURE_STATUS_NONE: what else the caller asks for has no meaning then
                  and stays as it is */
  return SUCCESS;
}

EXPORT int cuStreamGetCaptureInfo(struct object *stream, int *status, unsigned long long *id) {
  (void)id;
  return cuStreamIsCapturing(stream, status);
}

EXPORT int cuStreamGetCaptureInfo_v2(
    struct object *stream, int *status, unsigned long long *id, void **graph, void **nodes,
    size_t *count
) {
  (void)id, (void)graph, (void)nodes, (void)count;
  return cuStreamIsCapturing(stream, status);
}

EXPORT int cuStreamGetCaptureInfo_v3(
    struct object *stream, int *status, unsigned long long *id, void **graph, void **nodes,
    void **edges, size_t *count
) {
  (void)id, (void)graph, (void)nodes, (void)edges, (void)count;
  return cuStreamIsCapturing(stream, status);
}

EXPORT int cuThreadExchangeStreamCaptureMode(int *mode) {
  static __thread int now;
  NEED_INIT();
  NEED_POINTER(mode);
  int before = now;
  now = *mode;
  *mode = before;
  return SUCCESS;
}

EXPORT int cuEventCreate(struct object **event, unsigned flags) {
  return make_object(event, EVENT_MAGIC, flags, 0);
}

EXPORT int cuEventDestroy_v2(struct object *event) {
  NEED_EVENT(event);
  event->magic = 0;
  free(event);
  return SUCCESS;
}

/* An event that was never recorded counts as done. */
EXPORT int cuEventQuery(struct object *event) {
  NEED_EVENT(event);
  return SUCCESS;
}

EXPORT int cuEventSynchronize(struct object *event) { return cuEventQuery(event); }

/* Nothing is logged, so a callback is never called. */
EXPORT int cuLogsRegisterCallback(void *function, void *data, void **handle) {
  (void)function, (void)data;
  NEED_INIT();
  NEED_POINTER(handle);
  *handle = &devices;
  return SUCCESS;
}

EXPORT int cuLogsUnregisterCallback(void *handle) {
  NEED_INIT();
  return handle == &devices ? SUCCESS : INVALID_VALUE;
}

/* The variants for programs in which each thread has a default stream of its own: nothing differs
 * where nothing is pending. */
#define SAME_AS(function) \
  EXPORT __typeof__(function) function##_ptsz __attribute__((alias(#function)))
SAME_AS(cuStreamQuery);
SAME_AS(cuStreamSynchronize);
SAME_AS(cuStreamGetPriority);
SAME_AS(cuStreamGetFlags);
SAME_AS(cuStreamGetId);
SAME_AS(cuStreamGetCtx);
SAME_AS(cuStreamGetCtx_v2);
SAME_AS(cuStreamIsCapturing);
SAME_AS(cuStreamGetCaptureInfo);
SAME_AS(cuStreamGetCaptureInfo_v2);
SAME_AS(cuStreamGetCaptureInfo_v3);
