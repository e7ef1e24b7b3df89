/* nvmlDeviceGetFieldValues: one number a field, which mostly other functions have as well. */

/* The numbers of nvml.h. Where a kind of field goes by link, _L0 is the first of its row. */
enum {
  FI_ECC_CURRENT = 1,
  FI_ECC_PENDING = 2,
  FI_ECC_SBE_VOL_TOTAL = 3,
  FI_ECC_DBE_VOL_TOTAL = 4,
  FI_ECC_SBE_AGG_TOTAL = 5,
  FI_ECC_DBE_AGG_TOTAL = 6,
  FI_ECC_SBE_VOL_L1 = 7,
  FI_ECC_SBE_VOL_DEV = 11,
  FI_ECC_DBE_VOL_DEV = 12,
  FI_ECC_SBE_AGG_DEV = 22,
  FI_ECC_DBE_AGG_DEV = 23,
  FI_ECC_DBE_AGG_CBU = 28,
  FI_RETIRED_SBE = 29,
  FI_RETIRED_PENDING = 31,
  FI_NVLINK_CRC_FLIT_L0 = 32,
  FI_NVLINK_RECOVERY_TOTAL = 59,
  FI_MEMORY_TEMP = 82,
  FI_NVLINK_SPEED_L0 = 84,
  FI_NVLINK_SPEED_L5 = 89,
  FI_NVLINK_SPEED_COMMON = 90,
  FI_NVLINK_COUNT = 91,
  FI_RETIRED_PENDING_SBE = 92,
  FI_RETIRED_PENDING_DBE = 93,
  FI_PCIE_REPLAY = 94,
  FI_PCIE_REPLAY_ROLLOVER = 95,
  FI_NVLINK_CRC_FLIT_L6 = 96,
  FI_NVLINK_RECOVERY_L11 = 119,
  FI_NVLINK_SPEED_L6 = 132,
  FI_NVLINK_SPEED_L11 = 137,
  FI_REMAPPED_COR = 142,
  FI_REMAPPED_FAILURE = 145,
  FI_NVSWITCH_CONNECTED_COUNT = 147,
  FI_NVLINK_ECC_DATA_L0 = 148,
  FI_NVLINK_ERROR_DL_CRC = 163,
  FI_NVLINK_GET_SPEED = 164,
  FI_NVLINK_GET_STATE = 165,
  FI_NVLINK_GET_VERSION = 166,
  FI_PCIE_CORRECTABLE_ERRORS = 173,
  FI_PCIE_LANE_ERROR = 183,
  FI_POWER_AVERAGE = 185,
  FI_POWER_INSTANT = 186,
  FI_POWER_MIN_LIMIT = 187,
  FI_POWER_MAX_LIMIT = 188,
  FI_POWER_DEFAULT_LIMIT = 189,
  FI_POWER_CURRENT_LIMIT = 190,
  FI_POWER_REQUESTED_LIMIT = 192,
  FI_RECOVERY_ACTION = 230,
};

/* Of power there are also the module's and the memory's. */
enum { POWER_SCOPE_GPU = 0 };

static int in_row(unsigned id, unsigned first, unsigned last) { return id >= first && id <= last; }

static int64_t link_speed(const struct sim_nvlink *link) {
  return link ? link->speed_mb_s : SIM_UNKNOWN;
}

static int64_t links_to_switches(const struct sim_gpu *gpu) {
  int64_t count = 0;
  for (unsigned i = 0; i < gpu->nvlink_count; i++)
    count += gpu->nvlinks[i].end == SIM_LINK_SWITCH;
  return count;
}

/* Return a counter of errors that do not happen, if the GPU has what could err. */
static int64_t no_errors(int possible) { return possible ? 0 : SIM_UNKNOWN; }

static int64_t read_ecc_field(const struct sim_gpu *gpu, unsigned id) {
  if (id == FI_ECC_CURRENT)
    return gpu->ecc_mode;
  if (id == FI_ECC_PENDING)
    return known(gpu->ecc_pending, gpu->ecc_mode);
  if (!has_ecc(gpu))
    return SIM_UNKNOWN;
  switch (id) {
  case FI_ECC_SBE_VOL_TOTAL:
  case FI_ECC_SBE_VOL_DEV:
    return (int64_t)ecc_errors(gpu, CORRECTED, VOLATILE);
  case FI_ECC_DBE_VOL_TOTAL:
  case FI_ECC_DBE_VOL_DEV:
    return (int64_t)ecc_errors(gpu, UNCORRECTED, VOLATILE);
  case FI_ECC_SBE_AGG_TOTAL:
  case FI_ECC_SBE_AGG_DEV:
    return (int64_t)ecc_errors(gpu, CORRECTED, AGGREGATE);
  case FI_ECC_DBE_AGG_TOTAL:
  case FI_ECC_DBE_AGG_DEV:
    return (int64_t)ecc_errors(gpu, UNCORRECTED, AGGREGATE);
  default:
    return 0;
  }
}

static int64_t read_nvlink_field(const struct sim_gpu *gpu, unsigned id, unsigned scope) {
  const struct sim_nvlink *link;
  if (id == FI_NVLINK_COUNT)
    return gpu->nvlink_count;
  if (id == FI_NVSWITCH_CONNECTED_COUNT)
    return links_to_switches(gpu);
  if (!gpu->nvlink_count)
    return SIM_UNKNOWN;
  if (id == FI_NVLINK_SPEED_COMMON)
    return link_speed(&gpu->nvlinks[0]);
  if (in_row(id, FI_NVLINK_SPEED_L0, FI_NVLINK_SPEED_L5))
    return link_speed(find_link(gpu, id - FI_NVLINK_SPEED_L0));
  if (in_row(id, FI_NVLINK_SPEED_L6, FI_NVLINK_SPEED_L11))
    return link_speed(find_link(gpu, 6 + id - FI_NVLINK_SPEED_L6));
  link = find_link(gpu, scope);
  switch (id) {
  case FI_NVLINK_GET_SPEED:
    return link_speed(link);
  case FI_NVLINK_GET_STATE:
    return scope < LINK_LIMIT ? link != NULL : SIM_UNKNOWN;
  case FI_NVLINK_GET_VERSION:
    return link ? (int64_t)link->version : SIM_UNKNOWN;
  default:
    return 0; /* counters of errors */
  }
}

static int is_nvlink_field(unsigned id) {
  return in_row(id, FI_NVLINK_CRC_FLIT_L0, FI_NVLINK_RECOVERY_TOTAL) ||
         in_row(id, FI_NVLINK_SPEED_L0, FI_NVLINK_COUNT) ||
         in_row(id, FI_NVLINK_CRC_FLIT_L6, FI_NVLINK_RECOVERY_L11) ||
         in_row(id, FI_NVLINK_SPEED_L6, FI_NVLINK_SPEED_L11) ||
         in_row(id, FI_NVSWITCH_CONNECTED_COUNT, FI_NVLINK_GET_VERSION);
}

static int64_t read_field(const struct sim_gpu *gpu, unsigned id, unsigned scope) {
  if (in_row(id, FI_ECC_CURRENT, FI_ECC_DBE_AGG_CBU))
    return read_ecc_field(gpu, id);
  if (is_nvlink_field(id))
    return read_nvlink_field(gpu, id, scope);
  if (in_row(id, FI_RETIRED_SBE, FI_RETIRED_PENDING) ||
      in_row(id, FI_RETIRED_PENDING_SBE, FI_RETIRED_PENDING_DBE))
    return no_errors(retires_pages(gpu));
  if (in_row(id, FI_REMAPPED_COR, FI_REMAPPED_FAILURE))
    return no_errors(remaps_rows(gpu));
  if (in_row(id, FI_PCIE_REPLAY, FI_PCIE_REPLAY_ROLLOVER) ||
      in_row(id, FI_PCIE_CORRECTABLE_ERRORS, FI_PCIE_LANE_ERROR))
    return no_errors(gpu->pcie_gen != SIM_UNKNOWN);
  if (in_row(id, FI_POWER_AVERAGE, FI_POWER_REQUESTED_LIMIT) && scope != POWER_SCOPE_GPU)
    return SIM_UNKNOWN;
  switch (id) {
  case FI_MEMORY_TEMP:
    return now(&gpu->memory_temperature_c);
  case FI_POWER_AVERAGE:
  case FI_POWER_INSTANT:
    return now(&gpu->power_mw);
  case FI_POWER_MIN_LIMIT:
    return gpu->power_min_mw;
  case FI_POWER_MAX_LIMIT:
    return gpu->power_max_mw;
  case FI_POWER_DEFAULT_LIMIT:
    return gpu->power_default_mw;
  case FI_POWER_CURRENT_LIMIT:
  case FI_POWER_REQUESTED_LIMIT:
    return gpu->power_limit_mw;
  case FI_RECOVERY_ACTION:
    return 0; /* none */
  default:
    return SIM_UNKNOWN;
  }
}

/* Return whether nvml.h gives a field 64 bits: the counters of ECC and NVLink errors. */
static int is_large(unsigned id) {
  return in_row(id, FI_ECC_SBE_VOL_TOTAL, FI_ECC_DBE_AGG_CBU) ||
         in_row(id, FI_NVLINK_CRC_FLIT_L0, FI_NVLINK_RECOVERY_TOTAL) ||
         in_row(id, FI_NVLINK_CRC_FLIT_L6, FI_NVLINK_RECOVERY_L11) ||
         in_row(id, FI_NVLINK_ECC_DATA_L0, FI_NVLINK_ERROR_DL_CRC);
}

NVML nvmlDeviceGetFieldValues(struct device *device, int count, struct field *fields) {
  NEED_GPU(device);
  NEED(fields && count > 0);
  for (int i = 0; i < count; i++) {
    struct field *field = &fields[i];
    int64_t value = read_field(device->gpu, field->id, field->scope);
    field->timestamp_us = (long long)time(NULL) * 1000000;
    field->latency_us = 0;
    field->result = value == SIM_UNKNOWN ? NOT_SUPPORTED : SUCCESS;
    field->type = is_large(field->id) ? VALUE_U64 : VALUE_UNSIGNED;
    field->value.large = value == SIM_UNKNOWN ? 0 : (u64)value;
  }
  return SUCCESS;
}
