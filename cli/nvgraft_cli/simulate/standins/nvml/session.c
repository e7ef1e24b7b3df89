/* nvmlInit and nvmlShutdown, the system's answers, and what every other function begins with. */

#include <time.h>

#define NVML EXPORT int

/* What an nvmlDevice_t points to: a GPU, or a MIG device of it. */
struct device {
  const struct sim_gpu *gpu;
  const struct sim_mig_device *mig; /* NULL: the whole GPU */
};

enum { MIG_LIMIT = 8 };

/* The GPUs and MIG devices that the process may use, in the host's order: filled by nvmlInit when no
 * other one is in force. A handle is an address here, valid until the last nvmlShutdown. */
static struct device gpus[SIM_GPU_LIMIT], migs[SIM_GPU_LIMIT * MIG_LIMIT];
static unsigned gpu_count, mig_count, init_count;
static volatile char session_lock;

static const char *const error_strings[] = {
  "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions",
  "Already Initialized", "Not Found", "Insufficient Size", "Insufficient External Power",
  "Driver Not Loaded", "Timeout", "Interrupt Request Issue", "NVML Shared Library Not Found",
  "Function Not Found", "Corrupted infoROM", "GPU is lost", "GPU requires reset",
  "GPU access blocked by the operating system", "Driver/library version mismatch",
  "In use by another client", "Insufficient Memory", "No data",
  "The requested vGPU operation is not available on target device, because ECC is enabled",
  "Insufficient Resources", "Frequency Not Supported", "Argument version mismatch", "Deprecated",
  "Not Ready", "GPU Not Found", "Invalid State",
};

/* Return 0 if a question may be answered, else the code for it. */
static int ready(void) {
  if (refuses_beside_driver("libnvidia-ml.so.1"))
    return DRIVER_NOT_LOADED;
  return __atomic_load_n(&init_count, __ATOMIC_ACQUIRE) ? SUCCESS : UNINITIALIZED;
}

#define NEED_INIT() \
  do { \
    int not_ready = ready(); \
    if (not_ready) \
      return not_ready; \
  } while (0)

/* Return 0 if a handle is one of ours, and its GPU still answers. */
static int usable(const struct device *device) {
  int not_ready = ready();
  if (not_ready)
    return not_ready;
  if (!(device >= gpus && device < gpus + gpu_count) &&
      !(device >= migs && device < migs + mig_count))
    return INVALID_ARGUMENT;
  return sim_failures.gpus[device->gpu - simulated.gpus].lost ? GPU_IS_LOST : SUCCESS;
}

/* Go on with a handle of a GPU or a MIG device. Of one that the caller kept or invented NVML says
 * "invalid argument". */
#define NEED_DEVICE(device) \
  do { \
    int not_usable = usable(device); \
    if (not_usable) \
      return not_usable; \
  } while (0)

/* Go on with a handle of a whole GPU: a MIG device has no such property. */
#define NEED_GPU(device) \
  do { \
    NEED_DEVICE(device); \
    if ((device)->mig) \
      return NOT_SUPPORTED; \
  } while (0)

#define NEED(pointer) \
  do { \
    if (!(pointer)) \
      return INVALID_ARGUMENT; \
  } while (0)

/* Answer a number; one that the host document does not have is not supported. */
static int put(unsigned *out, int64_t value) {
  NEED(out);
  if (value == SIM_UNKNOWN)
    return NOT_SUPPORTED;
  *out = (unsigned)value;
  return SUCCESS;
}

static int put_text(char *out, unsigned size, const char *text) {
  NEED(out);
  if (!text)
    return NOT_SUPPORTED;
  if (strlen(text) + 1 > size)
    return INSUFFICIENT_SIZE;
  strcpy(out, text);
  return SUCCESS;
}

/* Return the present value of a series, or SIM_UNKNOWN. */
static int64_t now(const struct sim_series *series) {
  unsigned step = series->step_s ? series->step_s : 1;
  if (!series->count)
    return SIM_UNKNOWN;
  return series->values[(uint64_t)time(NULL) / step % series->count];
}

static void wait_ms(unsigned milliseconds) {
  struct timespec left = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
  while (nanosleep(&left, &left) && errno == EINTR)
    ;
}

/* Return the code for a process that may not open the control node (decision 0062). */
static int control_node_code(int error) {
  switch (error) {
  case 0:
    return SUCCESS;
  case EACCES:
    return NO_PERMISSION;
  case EPERM: /* the device cgroup */
    return UNKNOWN_ERROR;
  default:
    return DRIVER_NOT_LOADED;
  }
}

static void look_for_devices(void) {
  gpu_count = mig_count = 0;
  for (unsigned i = 0; i < simulated.gpu_count; i++) {
    const struct sim_gpu *gpu = &simulated.gpus[i];
    if (open_gpu_node(gpu))
      continue;
    gpus[gpu_count++] = (struct device){gpu, NULL};
    for (unsigned j = 0; gpu->mig_mode == 1 && j < gpu->mig_device_count && j < MIG_LIMIT; j++)
      if (!open_mig_nodes(&gpu->mig_devices[j]))
        migs[mig_count++] = (struct device){gpu, &gpu->mig_devices[j]};
  }
}

static int start_session(void) {
  int code;
  wait_ms(sim_failures.init_delay_ms);
  for (unsigned left = sim_failures.nvml_hang_s; left; left--)
    wait_ms(1000);
  code = sim_failures.nvml_init ? (int)sim_failures.nvml_init
                                : control_node_code(open_control_node());
  if (code == SUCCESS)
    look_for_devices();
  return code;
}

NVML nvmlInitWithFlags(unsigned flags) {
  int code = SUCCESS;
  (void)flags; /* that no GPU is there is not an error, with and without NVML_INIT_FLAG_NO_GPUS */
  if (refuses_beside_driver("libnvidia-ml.so.1"))
    return DRIVER_NOT_LOADED;
  while (__atomic_test_and_set(&session_lock, __ATOMIC_ACQUIRE))
    wait_ms(1);
  if (!init_count)
    code = start_session();
  if (code == SUCCESS)
    __atomic_add_fetch(&init_count, 1, __ATOMIC_RELEASE);
  __atomic_clear(&session_lock, __ATOMIC_RELEASE);
  return code;
}

NVML nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

NVML nvmlInit(void) { return nvmlInitWithFlags(0); }

NVML nvmlShutdown(void) {
  NEED_INIT();
  __atomic_sub_fetch(&init_count, 1, __ATOMIC_RELEASE);
  return SUCCESS;
}

EXPORT const char *nvmlErrorString(int code) {
  const int count = sizeof error_strings / sizeof *error_strings;
  return code >= 0 && code < count ? error_strings[code] : "Unknown Error";
}

/* What every entry point of the branch that has no answer is linked to. */
int nvml_not_supported(void) {
  NEED_INIT();
  return NOT_SUPPORTED;
}

NVML nvmlSystemGetDriverVersion(char *version, unsigned size) {
  NEED_INIT();
  return put_text(version, size, simulated.version);
}

NVML nvmlSystemGetNVMLVersion(char *version, unsigned size) {
  char text[96];
  NEED_INIT();
  snprintf(text, sizeof text, "%d.%s", simulated.cuda / 1000, simulated.version);
  return put_text(version, size, text);
}

NVML nvmlSystemGetCudaDriverVersion(int *version) {
  NEED_INIT();
  NEED(version);
  *version = simulated.cuda;
  return SUCCESS;
}

NVML nvmlSystemGetCudaDriverVersion_v2(int *version) {
  return nvmlSystemGetCudaDriverVersion(version);
}

NVML nvmlSystemGetDriverBranch(struct branch_info_v1 *info, unsigned size) {
  NEED_INIT();
  NEED(info);
  if (info->version != STRUCT_VERSION(struct branch_info_v1, 1))
    return VERSION_MISMATCH;
  if (size < sizeof info->branch)
    return INSUFFICIENT_SIZE;
  snprintf(info->branch, sizeof info->branch, "r%d", simulated.branch);
  return SUCCESS;
}

NVML nvmlSystemGetProcessName(unsigned pid, char *name, unsigned size) {
  char path[32], line[256] = "";
  FILE *file;
  size_t length;
  NEED_INIT();
  snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
  file = fopen(path, "re");
  if (!file)
    return NOT_FOUND;
  length = fread(line, 1, sizeof line - 1, file);
  fclose(file);
  line[length] = 0;
  return put_text(name, size, line);
}
