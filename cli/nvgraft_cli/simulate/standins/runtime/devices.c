/* Versions, devices, the last error, memory. */

EXPORT int cudaDriverGetVersion(int *version) {
  NEED_POINTER(version);
  *version = 0; /* the answer without a driver */
  return load() == LOADED ? result(driver.cuDriverGetVersion(version)) : SUCCESS;
}

EXPORT int cudaRuntimeGetVersion(int *version) {
  NEED_POINTER(version);
  *version = runtime_version();
  return SUCCESS;
}

EXPORT int cudaGetLastError(void) {
  int error = last_error;
  last_error = SUCCESS;
  return error;
}

EXPORT int cudaPeekAtLastError(void) { return last_error; }

EXPORT int cudaGetDeviceCount(int *count) {
  NEED_POINTER(count);
  *count = 0;
  NEED_DRIVER();
  return result(driver.cuDeviceGetCount(count));
}

/* Return SUCCESS for the number of a device. */
static int is_device(int number) {
  int count = 0;
  int error = start();
  if (!error)
    error = driver.cuDeviceGetCount(&count);
  return error ? error : number >= 0 && number < count ? SUCCESS : INVALID_DEVICE;
}

EXPORT int cudaGetDevice(int *number) {
  NEED_POINTER(number);
  NEED_DRIVER();
  *number = device;
  return SUCCESS;
}

EXPORT int cudaSetDevice(int number) {
  int error = is_device(number);
  if (!error)
    device = number;
  return result(error);
}

EXPORT int cudaInitDevice(int number, unsigned device_flags, unsigned flags) {
  (void)device_flags, (void)flags;
  return result(is_device(number));
}

EXPORT int cudaDeviceGetAttribute(int *value, int attribute, int number) {
  NEED_DRIVER();
  return result(driver.cuDeviceGetAttribute(value, attribute, number));
}

EXPORT int cudaDeviceGetPCIBusId(char *text, int length, int number) {
  NEED_DRIVER();
  return result(driver.cuDeviceGetPCIBusId(text, length, number));
}

EXPORT int cudaDeviceGetByPCIBusId(int *number, const char *text) {
  NEED_DRIVER();
  return result(driver.cuDeviceGetByPCIBusId(number, text));
}

EXPORT int cudaDeviceCanAccessPeer(int *can, int number, int peer) {
  NEED_DRIVER();
  return result(driver.cuDeviceCanAccessPeer(can, number, peer));
}

EXPORT int cudaDeviceGetP2PAttribute(int *value, int attribute, int number, int peer) {
  NEED_DRIVER();
  return result(driver.cuDeviceGetP2PAttribute(value, attribute, number, peer));
}

EXPORT int cudaGetDeviceFlags(unsigned *flags) {
  int active;
  NEED_POINTER(flags);
  NEED_DRIVER();
  return result(driver.cuDevicePrimaryCtxGetState(device, flags, &active));
}

EXPORT int cudaSetDeviceFlags(unsigned flags) {
  NEED_DRIVER();
  return result(driver.cuDevicePrimaryCtxSetFlags_v2(device, flags));
}

EXPORT int cudaDeviceReset(void) {
  NEED_DRIVER();
  return result(driver.cuDevicePrimaryCtxReset_v2(device));
}

EXPORT int cudaDeviceSynchronize(void) {
  NEED_CONTEXT();
  return result(driver.cuCtxSynchronize());
}

EXPORT int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  NEED_CONTEXT();
  return result(driver.cuCtxGetStreamPriorityRange(least, greatest));
}

EXPORT int cudaDeviceGetLimit(size_t *value, int limit) {
  NEED_CONTEXT();
  return result(driver.cuCtxGetLimit(value, limit));
}

EXPORT int cudaDeviceSetLimit(int limit, size_t value) {
  NEED_CONTEXT();
  return result(driver.cuCtxSetLimit(limit, value));
}

EXPORT int cudaMemGetInfo(size_t *free_bytes, size_t *total) {
  NEED_CONTEXT();
  return result(driver.cuMemGetInfo_v2(free_bytes, total));
}

/* Freeing NULL is how programs make the context. No other pointer is one of a device. */
EXPORT int cudaFree(void *pointer) {
  NEED_CONTEXT();
  return result(pointer ? INVALID_VALUE : SUCCESS);
}

/* The first members of cudaPointerAttributes. */
struct pointer_attributes {
  int type, device;
  void *device_pointer, *host_pointer;
};

EXPORT int cudaPointerGetAttributes(struct pointer_attributes *attributes, void *pointer) {
  enum { UNREGISTERED = 0, INVALID_DEVICE_ID = -2 };
  NEED_POINTER(attributes);
  NEED_DRIVER();
  *attributes = (struct pointer_attributes){UNREGISTERED, INVALID_DEVICE_ID, NULL, pointer};
  return SUCCESS;
}

/* Find a function of the driver; until CUDA 11.8 there was no status. */
static int
entry_point(const char *name, void **function, int version, uint64_t flags, int *status) {
  int found;
  NEED_POINTER(name && function);
  NEED_DRIVER();
  return result(
      driver.cuGetProcAddress_v2(name, function, version, flags, status ? status : &found)
  );
}

EXPORT int
cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags, int *status) {
  int version = runtime_version();
  return entry_point(name, function, version, flags, version < 12000 ? NULL : status);
}

EXPORT int cudaGetDriverEntryPointByVersion(
    const char *name, void **function, unsigned version, unsigned long long flags, int *status
) {
  return entry_point(name, function, (int)version, flags, status);
}

/* The variants for programs in which each thread has a default stream of its own. */
#define SAME_AS(function) \
  EXPORT __typeof__(function) function##_ptsz __attribute__((alias(#function)))
SAME_AS(cudaGetDriverEntryPoint);
SAME_AS(cudaGetDriverEntryPointByVersion);
