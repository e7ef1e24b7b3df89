/* Streams and events: made, asked and waited for by the driver. */

EXPORT int cudaStreamCreateWithPriority(void **stream, unsigned flags, int priority) {
  NEED_CONTEXT();
  return result(driver.cuStreamCreateWithPriority(stream, flags, priority));
}

EXPORT int cudaStreamCreateWithFlags(void **stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

EXPORT int cudaStreamCreate(void **stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }

EXPORT int cudaStreamDestroy(void *stream) {
  NEED_CONTEXT();
  return result(driver.cuStreamDestroy_v2(stream));
}

EXPORT int cudaStreamQuery(void *stream) {
  NEED_CONTEXT();
  return result(driver.cuStreamQuery(stream));
}

EXPORT int cudaStreamSynchronize(void *stream) {
  NEED_CONTEXT();
  return result(driver.cuStreamSynchronize(stream));
}

EXPORT int cudaStreamGetPriority(void *stream, int *priority) {
  NEED_CONTEXT();
  return result(driver.cuStreamGetPriority(stream, priority));
}

EXPORT int cudaStreamGetFlags(void *stream, unsigned *flags) {
  NEED_CONTEXT();
  return result(driver.cuStreamGetFlags(stream, flags));
}

EXPORT int cudaStreamGetId(void *stream, unsigned long long *id) {
  NEED_CONTEXT();
  return result(driver.cuStreamGetId(stream, id));
}

/* Nothing is captured; what the functions with more arguments would write has no meaning then. */
EXPORT int cudaStreamIsCapturing(void *stream, int *status) {
  NEED_CONTEXT();
  return result(driver.cuStreamIsCapturing(stream, status));
}

EXPORT int cudaStreamGetCaptureInfo(void *stream, int *status) {
  return cudaStreamIsCapturing(stream, status);
}
EXPORT int cudaStreamGetCaptureInfo_v2(void *stream, int *status) {
  return cudaStreamIsCapturing(stream, status);
}
EXPORT int cudaStreamGetCaptureInfo_v3(void *stream, int *status) {
  return cudaStreamIsCapturing(stream, status);
}

EXPORT int cudaThreadExchangeStreamCaptureMode(int *mode) {
  NEED_DRIVER();
  return result(driver.cuThreadExchangeStreamCaptureMode(mode));
}

EXPORT int cudaEventCreateWithFlags(void **event, unsigned flags) {
  NEED_CONTEXT();
  return result(driver.cuEventCreate(event, flags));
}

EXPORT int cudaEventCreate(void **event) { return cudaEventCreateWithFlags(event, 0); }

EXPORT int cudaEventDestroy(void *event) {
  NEED_CONTEXT();
  return result(driver.cuEventDestroy_v2(event));
}

EXPORT int cudaEventQuery(void *event) {
  NEED_CONTEXT();
  return result(driver.cuEventQuery(event));
}

EXPORT int cudaEventSynchronize(void *event) {
  NEED_CONTEXT();
  return result(driver.cuEventSynchronize(event));
}

SAME_AS(cudaStreamQuery);
SAME_AS(cudaStreamSynchronize);
SAME_AS(cudaStreamGetPriority);
SAME_AS(cudaStreamGetFlags);
SAME_AS(cudaStreamGetId);
SAME_AS(cudaStreamIsCapturing);
SAME_AS(cudaStreamGetCaptureInfo);
SAME_AS(cudaStreamGetCaptureInfo_v2);
SAME_AS(cudaStreamGetCaptureInfo_v3);
