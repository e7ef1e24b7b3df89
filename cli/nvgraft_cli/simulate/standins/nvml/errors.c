/* ECC and what the driver does about errors: page retirement (before Ampere), row remapping. */

enum { CORRECTED, UNCORRECTED };
enum { VOLATILE, AGGREGATE };
enum { LOCATION_MEMORY = 2, LOCATION_COUNT = 8 };

static int has_ecc(const struct sim_gpu *gpu) { return gpu->ecc_mode == 1; }

/* Return the errors of a kind since the driver was loaded or, aggregate, since the board was made.
 * Failures on purpose are errors of the device memory. */
static u64 ecc_errors(const struct sim_gpu *gpu, unsigned kind, unsigned counter) {
  const volatile struct sim_gpu_failure *failure = &sim_failures.gpus[gpu - simulated.gpus];
  int64_t recorded, on_purpose;
  if (kind == CORRECTED) {
    recorded = counter == VOLATILE ? gpu->ecc_corrected : gpu->ecc_corrected_total;
    on_purpose = (int64_t)failure->ecc_corrected;
  } else {
    recorded = counter == VOLATILE ? gpu->ecc_uncorrected : gpu->ecc_uncorrected_total;
    on_purpose = (int64_t)failure->ecc_uncorrected;
  }
  return (u64)(known(recorded, 0) + on_purpose);
}

NVML nvmlDeviceGetEccMode(struct device *device, unsigned *current, unsigned *pending) {
  int code;
  NEED_DEVICE(device);
  code = put_state(current, device->gpu->ecc_mode);
  return code ? code : put_state(pending, known(device->gpu->ecc_pending, device->gpu->ecc_mode));
}

NVML nvmlDeviceGetDefaultEccMode(struct device *device, unsigned *state) {
  NEED_DEVICE(device);
  return put_state(state, device->gpu->ecc_mode == SIM_UNKNOWN ? SIM_UNKNOWN : 1);
}

NVML nvmlDeviceGetTotalEccErrors(struct device *device, unsigned kind, unsigned counter,
                                 u64 *count) {
  NEED_DEVICE(device);
  NEED(count && kind <= UNCORRECTED && counter <= AGGREGATE);
  if (!has_ecc(device->gpu))
    return NOT_SUPPORTED;
  *count = ecc_errors(device->gpu, kind, counter);
  return SUCCESS;
}

NVML nvmlDeviceGetMemoryErrorCounter(struct device *device, unsigned kind, unsigned counter,
                                     unsigned location, u64 *count) {
  NEED_DEVICE(device);
  NEED(count && kind <= UNCORRECTED && counter <= AGGREGATE && location < LOCATION_COUNT);
  if (!has_ecc(device->gpu))
    return NOT_SUPPORTED;
  *count = location == LOCATION_MEMORY ? ecc_errors(device->gpu, kind, counter) : 0;
  return SUCCESS;
}

NVML nvmlDeviceGetDetailedEccErrors(struct device *device, unsigned kind, unsigned counter,
                                    struct ecc_counts *counts) {
  NEED(counts);
  memset(counts, 0, sizeof *counts);
  return nvmlDeviceGetTotalEccErrors(device, kind, counter, &counts->memory);
}

NVML nvmlDeviceGetSramEccErrorStatus(struct device *device, struct sram_ecc_v1 *status) {
  NEED_DEVICE(device);
  NEED(status);
  if (status->version != STRUCT_VERSION(struct sram_ecc_v1, 1))
    return VERSION_MISMATCH;
  if (!has_ecc(device->gpu))
    return NOT_SUPPORTED;
  memset(status->counts, 0, sizeof status->counts);
  status->threshold_exceeded = 0;
  return SUCCESS;
}

/* ---- pages and rows */

static int retires_pages(const struct sim_gpu *gpu) {
  int64_t architecture = architecture_of(gpu);
  return has_ecc(gpu) && architecture != SIM_UNKNOWN && architecture < AMPERE;
}

static int remaps_rows(const struct sim_gpu *gpu) {
  return has_ecc(gpu) && architecture_of(gpu) >= AMPERE;
}

NVML nvmlDeviceGetRetiredPages(struct device *device, unsigned cause, unsigned *count,
                               u64 *addresses) {
  (void)addresses;
  NEED_GPU(device);
  NEED(cause <= 1);
  return retires_pages(device->gpu) ? put(count, 0) : NOT_SUPPORTED;
}

NVML nvmlDeviceGetRetiredPages_v2(struct device *device, unsigned cause, unsigned *count,
                                  u64 *addresses, u64 *timestamps) {
  (void)timestamps;
  return nvmlDeviceGetRetiredPages(device, cause, count, addresses);
}

NVML nvmlDeviceGetRetiredPagesPendingStatus(struct device *device, unsigned *pending) {
  NEED_GPU(device);
  return retires_pages(device->gpu) ? put(pending, 0) : NOT_SUPPORTED;
}

NVML nvmlDeviceGetRemappedRows(struct device *device, unsigned *corrected, unsigned *uncorrected,
                               unsigned *pending, unsigned *failed) {
  NEED_GPU(device);
  NEED(corrected && uncorrected && pending && failed);
  if (!remaps_rows(device->gpu))
    return NOT_SUPPORTED;
  *corrected = *uncorrected = *pending = *failed = 0;
  return SUCCESS;
}

