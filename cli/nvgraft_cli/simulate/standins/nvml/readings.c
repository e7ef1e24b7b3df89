/* What a GPU is doing, and the limits of that: memory, processes, clocks, power, temperature. */

static const u64 MIB = 1 << 20;

/* Answer whether something is switched on. */
#define put_state put

static int64_t known(int64_t value, int64_t otherwise) {
  return value == SIM_UNKNOWN ? otherwise : value;
}

/* ---- memory */

struct mib {
  int64_t total, reserved, used;
};

static int read_memory(struct device *device, struct mib *mib) {
  const struct sim_gpu *gpu = device->gpu;
  const struct sim_mig_device *mig = device->mig;
  mib->total = mig ? mig->memory_mib : gpu->memory_mib;
  mib->reserved = known(mig ? mig->memory_reserved_mib : gpu->memory_reserved_mib, 0);
  mib->used = mig ? 0 : known(now(&gpu->memory_used_mib), 0);
  return mib->total == SIM_UNKNOWN ? NOT_SUPPORTED : SUCCESS;
}

/* In the first version what the driver reserves counts as used. */
NVML nvmlDeviceGetMemoryInfo(struct device *device, struct memory *memory) {
  struct mib mib;
  int code;
  NEED_DEVICE(device);
  NEED(memory);
  code = read_memory(device, &mib);
  if (code == SUCCESS)
    *memory = (struct memory){mib.total * MIB, (mib.total - mib.reserved - mib.used) * MIB,
                              (mib.reserved + mib.used) * MIB};
  return code;
}

NVML nvmlDeviceGetMemoryInfo_v2(struct device *device, struct memory_v2 *memory) {
  struct mib mib;
  int code;
  NEED_DEVICE(device);
  NEED(memory);
  if (memory->version != STRUCT_VERSION(struct memory_v2, 2))
    return VERSION_MISMATCH;
  code = read_memory(device, &mib);
  if (code == SUCCESS) {
    memory->total = mib.total * MIB;
    memory->reserved = mib.reserved * MIB;
    memory->free = (mib.total - mib.reserved - mib.used) * MIB;
    memory->used = mib.used * MIB;
  }
  return code;
}

/* Return the memory slices of a MIG device's GPU instance, or SIM_UNKNOWN. */
static int64_t memory_slices(const struct device *device) {
  for (unsigned i = 0; i < device->gpu->gpu_instance_count; i++)
    if (device->gpu->gpu_instances[i].id == device->mig->gpu_instance)
      return device->gpu->gpu_instances[i].size;
  return SIM_UNKNOWN;
}

/* A MIG device has the part of it that its GPU instance has of the memory slices. */
NVML nvmlDeviceGetBAR1MemoryInfo(struct device *device, struct memory *memory) {
  enum { SLICES = 8 };
  int64_t mib, slices = SLICES;
  NEED_DEVICE(device);
  NEED(memory);
  mib = device->gpu->bar1_mib;
  if (device->mig)
    slices = memory_slices(device);
  if (mib == SIM_UNKNOWN || slices == SIM_UNKNOWN)
    return NOT_SUPPORTED;
  mib = mib * slices / SLICES;
  *memory = (struct memory){mib * MIB, mib * MIB, 0};
  return SUCCESS;
}

NVML nvmlDeviceGetMemoryBusWidth(struct device *device, unsigned *bits) {
  NEED_GPU(device);
  return put(bits, device->gpu->memory_bus_bits);
}

/* ---- processes: there are none */

static int no_processes(struct device *device, unsigned *count) {
  NEED_DEVICE(device);
  return put(count, 0);
}

#define NO_PROCESSES(name) \
  NVML name(struct device *device, unsigned *count, void *processes) { \
    (void)processes; \
    return no_processes(device, count); \
  }

NO_PROCESSES(nvmlDeviceGetComputeRunningProcesses)
NO_PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2)
NO_PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3)
NO_PROCESSES(nvmlDeviceGetEncoderSessions)
NO_PROCESSES(nvmlDeviceGetFBCSessions)

NVML nvmlDeviceGetRunningProcessDetailList(struct device *device, struct process_list_v1 *list) {
  NEED_DEVICE(device);
  NEED(list);
  if (list->version != STRUCT_VERSION(struct process_list_v1, 1))
    return VERSION_MISMATCH;
  return put(&list->count, 0);
}

/* The last argument of the first function, a time, and the samples are not looked at. */
NVML nvmlDeviceGetProcessUtilization(struct device *device, void *samples, unsigned *count,
                                     u64 since) {
  (void)samples;
  (void)since;
  return no_processes(device, count);
}

NVML nvmlDeviceGetEncoderStats(struct device *device, unsigned *sessions, unsigned *frames,
                               unsigned *latency) {
  NEED_DEVICE(device);
  NEED(sessions && frames && latency);
  *sessions = *frames = *latency = 0;
  return SUCCESS;
}

NVML nvmlDeviceGetFBCStats(struct device *device, unsigned stats[3]) {
  NEED_DEVICE(device);
  NEED(stats);
  stats[0] = stats[1] = stats[2] = 0;
  return SUCCESS;
}

/* ---- utilisation: not measured for a GPU in MIG mode */

NVML nvmlDeviceGetUtilizationRates(struct device *device, struct utilization *utilization) {
  int code;
  NEED_GPU(device);
  NEED(utilization);
  if (device->gpu->mig_mode == 1)
    return NOT_SUPPORTED;
  code = put(&utilization->gpu, now(&device->gpu->gpu_percent));
  return code ? code : put(&utilization->memory, known(now(&device->gpu->memory_percent), 0));
}

static int put_sampled(unsigned *percent, unsigned *period_us, struct device *device,
                       int64_t value) {
  if (device->gpu->mig_mode == 1)
    return NOT_SUPPORTED;
  return period_us && put(period_us, 167000) ? INVALID_ARGUMENT : put(percent, value);
}

NVML nvmlDeviceGetEncoderUtilization(struct device *device, unsigned *percent,
                                     unsigned *period_us) {
  NEED_GPU(device);
  return put_sampled(percent, period_us, device, now(&device->gpu->encoder_percent));
}

NVML nvmlDeviceGetDecoderUtilization(struct device *device, unsigned *percent,
                                     unsigned *period_us) {
  NEED_GPU(device);
  return put_sampled(percent, period_us, device, now(&device->gpu->decoder_percent));
}

NVML nvmlDeviceGetDynamicPstatesInfo(struct device *device, struct dynamic_states *states) {
  int64_t percent;
  NEED_GPU(device);
  NEED(states);
  percent = now(&device->gpu->gpu_percent);
  if (percent == SIM_UNKNOWN || device->gpu->mig_mode == 1)
    return NOT_SUPPORTED;
  memset(states, 0, sizeof *states);
  states->utilization[0].present = 1;
  states->utilization[0].percent = (unsigned)percent;
  return SUCCESS;
}

/* ---- clocks */

enum { CLOCK_GRAPHICS, CLOCK_SM, CLOCK_MEMORY, CLOCK_VIDEO, CLOCK_COUNT };

static int64_t max_clock(const struct sim_gpu *gpu, unsigned type) {
  const int64_t clocks[CLOCK_COUNT] = {gpu->graphics_max_mhz, gpu->sm_max_mhz,
                                       gpu->memory_max_mhz, gpu->video_max_mhz};
  return clocks[type];
}

NVML nvmlDeviceGetClockInfo(struct device *device, unsigned type, unsigned *mhz) {
  const struct sim_gpu *gpu;
  NEED_GPU(device);
  gpu = device->gpu;
  switch (type) {
  case CLOCK_GRAPHICS:
    return put(mhz, now(&gpu->graphics_mhz));
  case CLOCK_SM:
    return put(mhz, now(&gpu->sm_mhz));
  case CLOCK_MEMORY:
    return put(mhz, now(&gpu->memory_mhz));
  case CLOCK_VIDEO:
    return put(mhz, now(&gpu->video_mhz));
  default:
    return INVALID_ARGUMENT;
  }
}

NVML nvmlDeviceGetMaxClockInfo(struct device *device, unsigned type, unsigned *mhz) {
  NEED_GPU(device);
  if (type >= CLOCK_COUNT)
    return INVALID_ARGUMENT;
  return put(mhz, max_clock(device->gpu, type));
}

NVML nvmlDeviceGetMaxCustomerBoostClock(struct device *device, unsigned type, unsigned *mhz) {
  return nvmlDeviceGetMaxClockInfo(device, type, mhz);
}

NVML nvmlDeviceGetClock(struct device *device, unsigned type, unsigned which, unsigned *mhz) {
  enum { CURRENT, TARGET, DEFAULT, BOOST };
  if (which == CURRENT)
    return nvmlDeviceGetClockInfo(device, type, mhz);
  if (which == BOOST)
    return nvmlDeviceGetMaxClockInfo(device, type, mhz);
  NEED_GPU(device);
  return which == TARGET || which == DEFAULT ? NOT_SUPPORTED : INVALID_ARGUMENT;
}

/* The only clock that a program could choose is the highest. */
static int put_one(unsigned *count, unsigned *list, int64_t value) {
  NEED(count);
  if (value == SIM_UNKNOWN)
    return NOT_SUPPORTED;
  if (*count < 1 || !list) {
    *count = 1;
    return INSUFFICIENT_SIZE;
  }
  *count = 1;
  return put(list, value);
}

NVML nvmlDeviceGetSupportedMemoryClocks(struct device *device, unsigned *count, unsigned *mhz) {
  NEED_GPU(device);
  return put_one(count, mhz, device->gpu->memory_max_mhz);
}

NVML nvmlDeviceGetSupportedGraphicsClocks(struct device *device, unsigned memory_mhz,
                                          unsigned *count, unsigned *mhz) {
  NEED_GPU(device);
  if ((int64_t)memory_mhz != device->gpu->memory_max_mhz)
    return NOT_FOUND;
  return put_one(count, mhz, device->gpu->graphics_max_mhz);
}

NVML nvmlDeviceGetPerformanceState(struct device *device, unsigned *state) {
  NEED_GPU(device);
  return put(state, device->gpu->performance_state);
}

NVML nvmlDeviceGetPowerState(struct device *device, unsigned *state) {
  return nvmlDeviceGetPerformanceState(device, state);
}

static const u64 CLOCKS_IDLE = 1, CLOCKS_ALL_REASONS = 0x1ff;

static int put_clock_reasons(struct device *device, u64 *reasons) {
  int64_t percent;
  NEED_GPU(device);
  NEED(reasons);
  percent = now(&device->gpu->gpu_percent);
  if (percent == SIM_UNKNOWN)
    return NOT_SUPPORTED;
  *reasons = percent ? 0 : CLOCKS_IDLE;
  return SUCCESS;
}

static int put_all_clock_reasons(struct device *device, u64 *reasons) {
  int code = put_clock_reasons(device, reasons);
  if (code == SUCCESS)
    *reasons = CLOCKS_ALL_REASONS;
  return code;
}

NVML nvmlDeviceGetCurrentClocksThrottleReasons(struct device *device, u64 *reasons) {
  return put_clock_reasons(device, reasons);
}

NVML nvmlDeviceGetCurrentClocksEventReasons(struct device *device, u64 *reasons) {
  return put_clock_reasons(device, reasons);
}

NVML nvmlDeviceGetSupportedClocksThrottleReasons(struct device *device, u64 *reasons) {
  return put_all_clock_reasons(device, reasons);
}

NVML nvmlDeviceGetSupportedClocksEventReasons(struct device *device, u64 *reasons) {
  return put_all_clock_reasons(device, reasons);
}

NVML nvmlDeviceGetViolationStatus(struct device *device, unsigned policy,
                                  struct violation_time *time_ns) {
  (void)policy;
  NEED_GPU(device);
  NEED(time_ns);
  time_ns->reference = (u64)time(NULL) * 1000000000;
  time_ns->violation = 0;
  return SUCCESS;
}

/* ---- power, in milliwatts */

NVML nvmlDeviceGetPowerUsage(struct device *device, unsigned *mw) {
  NEED_GPU(device);
  return put(mw, now(&device->gpu->power_mw));
}

NVML nvmlDeviceGetEnforcedPowerLimit(struct device *device, unsigned *mw) {
  NEED_GPU(device);
  return put(mw, device->gpu->power_limit_mw);
}

NVML nvmlDeviceGetPowerManagementLimit(struct device *device, unsigned *mw) {
  return nvmlDeviceGetEnforcedPowerLimit(device, mw);
}

NVML nvmlDeviceGetPowerManagementDefaultLimit(struct device *device, unsigned *mw) {
  NEED_GPU(device);
  return put(mw, device->gpu->power_default_mw);
}

NVML nvmlDeviceGetPowerManagementLimitConstraints(struct device *device, unsigned *min_mw,
                                                  unsigned *max_mw) {
  int code;
  NEED_GPU(device);
  code = put(min_mw, device->gpu->power_min_mw);
  return code ? code : put(max_mw, device->gpu->power_max_mw);
}

NVML nvmlDeviceGetPowerManagementMode(struct device *device, unsigned *state) {
  NEED_GPU(device);
  return put_state(state, device->gpu->power_limit_mw == SIM_UNKNOWN ? SIM_UNKNOWN : 1);
}

/* ---- temperature and fans */

NVML nvmlDeviceGetTemperature(struct device *device, unsigned sensor, unsigned *celsius) {
  NEED_GPU(device);
  return sensor ? INVALID_ARGUMENT : put(celsius, now(&device->gpu->temperature_c));
}

NVML nvmlDeviceGetTemperatureV(struct device *device, struct temperature_v1 *temperature) {
  NEED_GPU(device);
  NEED(temperature);
  if (temperature->version != STRUCT_VERSION(struct temperature_v1, 1))
    return VERSION_MISMATCH;
  return nvmlDeviceGetTemperature(device, temperature->sensor, (unsigned *)&temperature->celsius);
}

NVML nvmlDeviceGetTemperatureThreshold(struct device *device, unsigned which, unsigned *celsius) {
  enum { SHUTDOWN, SLOWDOWN, MEMORY_MAX, GPU_MAX };
  NEED_GPU(device);
  switch (which) {
  case SHUTDOWN:
    return put(celsius, device->gpu->shutdown_c);
  case SLOWDOWN:
    return put(celsius, device->gpu->slowdown_c);
  case GPU_MAX:
    return put(celsius, device->gpu->temperature_max_c);
  default:
    return NOT_SUPPORTED;
  }
}

NVML nvmlDeviceGetNumFans(struct device *device, unsigned *count) {
  NEED_GPU(device);
  return put(count, device->gpu->fan_count);
}

NVML nvmlDeviceGetFanSpeed_v2(struct device *device, unsigned fan, unsigned *percent) {
  NEED_GPU(device);
  if (device->gpu->fan_count <= 0)
    return NOT_SUPPORTED;
  return fan < device->gpu->fan_count ? put(percent, now(&device->gpu->fan_percent))
                                      : INVALID_ARGUMENT;
}

NVML nvmlDeviceGetFanSpeed(struct device *device, unsigned *percent) {
  return nvmlDeviceGetFanSpeed_v2(device, 0, percent);
}

NVML nvmlDeviceGetTargetFanSpeed(struct device *device, unsigned fan, unsigned *percent) {
  return nvmlDeviceGetFanSpeed_v2(device, fan, percent);
}

/* ---- PCIe */

NVML nvmlDeviceGetMaxPcieLinkGeneration(struct device *device, unsigned *generation) {
  NEED_GPU(device);
  return put(generation, device->gpu->pcie_max_gen);
}

NVML nvmlDeviceGetGpuMaxPcieLinkGeneration(struct device *device, unsigned *generation) {
  return nvmlDeviceGetMaxPcieLinkGeneration(device, generation);
}

NVML nvmlDeviceGetMaxPcieLinkWidth(struct device *device, unsigned *width) {
  NEED_GPU(device);
  return put(width, device->gpu->pcie_max_width);
}

NVML nvmlDeviceGetCurrPcieLinkGeneration(struct device *device, unsigned *generation) {
  NEED_GPU(device);
  return put(generation, device->gpu->pcie_gen);
}

NVML nvmlDeviceGetCurrPcieLinkWidth(struct device *device, unsigned *width) {
  NEED_GPU(device);
  return put(width, device->gpu->pcie_width);
}

/* The speed of a lane in Mbit/s, as nvml.h counts it. */
static int64_t lane_speed(int64_t generation) {
  static const int64_t speeds[] = {SIM_UNKNOWN, 2500, 5000, 8000, 16000, 32000, 64000};
  const int64_t count = sizeof speeds / sizeof *speeds;
  return generation > 0 && generation < count ? speeds[generation] : SIM_UNKNOWN;
}

NVML nvmlDeviceGetPcieSpeed(struct device *device, unsigned *mbit_s) {
  NEED_GPU(device);
  return put(mbit_s, lane_speed(device->gpu->pcie_gen));
}

NVML nvmlDeviceGetPcieThroughput(struct device *device, unsigned counter, unsigned *kb_s) {
  NEED_GPU(device);
  return counter > 1 ? INVALID_ARGUMENT
                     : put(kb_s, device->gpu->pcie_gen == SIM_UNKNOWN ? SIM_UNKNOWN : 0);
}

NVML nvmlDeviceGetPcieReplayCounter(struct device *device, unsigned *count) {
  NEED_GPU(device);
  return put(count, device->gpu->pcie_gen == SIM_UNKNOWN ? SIM_UNKNOWN : 0);
}

/* ---- modes */

NVML nvmlDeviceGetPersistenceMode(struct device *device, unsigned *state) {
  NEED_GPU(device);
  return put_state(state, sim_failures.no_persistence ? 0 : device->gpu->persistence_mode);
}

NVML nvmlDeviceGetComputeMode(struct device *device, unsigned *mode) {
  NEED_GPU(device);
  return put(mode, known(device->gpu->compute_mode, 0));
}

NVML nvmlDeviceGetDisplayMode(struct device *device, unsigned *state) {
  NEED_GPU(device);
  return put_state(state, known(device->gpu->display_attached, 0));
}

NVML nvmlDeviceGetDisplayActive(struct device *device, unsigned *state) {
  NEED_GPU(device);
  return put_state(state, known(device->gpu->display_active, 0));
}

NVML nvmlDeviceGetAccountingMode(struct device *device, unsigned *state) {
  NEED_DEVICE(device);
  return put_state(state, 0);
}

NVML nvmlDeviceGetAccountingBufferSize(struct device *device, unsigned *count) {
  NEED_DEVICE(device);
  return put(count, 4000);
}

NVML nvmlDeviceGetAccountingPids(struct device *device, unsigned *count, unsigned *pids) {
  (void)pids;
  return no_processes(device, count);
}

/* The GPU is not passed to a virtual machine. */
NVML nvmlDeviceGetVirtualizationMode(struct device *device, unsigned *mode) {
  NEED_DEVICE(device);
  return put(mode, 0);
}

NVML nvmlDeviceGetAPIRestriction(struct device *device, unsigned api, unsigned *state) {
  NEED_GPU(device);
  NEED(state);
  return api > 1 ? INVALID_ARGUMENT : NOT_SUPPORTED;
}

/* ---- confidential computing is off */

NVML nvmlSystemGetConfComputeState(struct conf_compute_state *state) {
  NEED_INIT();
  NEED(state);
  memset(state, 0, sizeof *state);
  return SUCCESS;
}
