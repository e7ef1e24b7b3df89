/* A stand-in for libnvidia-ml.so.1 on simulated hosts: the entry points that container tools call, answered from a text
 * file (the one named by NVGRAFT_NVML_CONF, else /etc/nvgraft-nvml.conf), which is read at nvmlInit. One record a line:
 *
 *   driver VERSION
 *   cuda NUMBER                                         as nvmlSystemGetCudaDriverVersion: 12020 is 12.2
 *   gpu MINOR UUID DOMAIN:BUS:DEVICE BRAND MAJOR.MINOR MIG NAME      numbers of the PCI address in hex; MIG: unsupported,
 *                                                                    disabled or enabled; in NVML's index order
 *   mig UUID GPU_INSTANCE COMPUTE_INSTANCE              a MIG device of the gpu line above it
 *   init CODE                                           nvmlInit fails with this nvmlReturn_t
 *   hang SECONDS                                        nvmlInit takes this long
 *
 * Anything else is ignored. Not thread safe.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ENTRY __attribute__((visibility("default")))
#define CONF "/etc/nvgraft-nvml.conf"

enum {
  SUCCESS = 0,
  UNINITIALIZED = 1,
  INVALID_ARGUMENT = 2,
  NOT_SUPPORTED = 3,
  NOT_FOUND = 6,
  INSUFFICIENT_SIZE = 7,
  DRIVER_NOT_LOADED = 9,
};

/* What a nvmlDevice_t points to: a GPU (parent is NULL) or a MIG device. */
struct device {
  struct device *parent;
  char uuid[96], name[96], mig_mode[16];
  unsigned minor, domain, bus, slot;
  int brand, major_capability, minor_capability;
  unsigned gpu_instance, compute_instance;
};

/* nvmlPciInfo_t, as nvml.h has laid it out since CUDA 9. */
struct pci_info {
  char bus_id_legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};

static struct device gpus[64], migs[512];
static unsigned gpu_count, mig_count, init_count;
static int init_result, hang_seconds, cuda_version;
static char driver_version[80];

static const char *const error_strings[] = {
  "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions", "Already Initialized",
  "Not Found", "Insufficient Size", "Insufficient External Power", "Driver Not Loaded", "Timeout", "Interrupt Request Issue",
  "NVML Shared Library Not Found", "Function Not Found", "Corrupted infoROM", "GPU is lost", "GPU requires reset",
  "The operating system has blocked the request", "Driver/library version mismatch", "In use by another client",
  "Insufficient Memory", "No data",
};

static void read_line(const char *line) {
  struct device d;
  int name_at = 0;
  memset(&d, 0, sizeof d);
  if (sscanf(line, "driver %79s", driver_version) == 1 || sscanf(line, "cuda %d", &cuda_version) == 1 ||
      sscanf(line, "init %d", &init_result) == 1 || sscanf(line, "hang %d", &hang_seconds) == 1)
    return;
  if (gpu_count < sizeof gpus / sizeof *gpus &&
      sscanf(line, "gpu %u %95s %x:%x:%x %d %d.%d %15s %n", &d.minor, d.uuid, &d.domain, &d.bus, &d.slot, &d.brand,
             &d.major_capability, &d.minor_capability, d.mig_mode, &name_at) == 9 && name_at) {
    snprintf(d.name, sizeof d.name, "%s", line + name_at);
    gpus[gpu_count++] = d;
  } else if (gpu_count && mig_count < sizeof migs / sizeof *migs &&
             sscanf(line, "mig %95s %u %u", d.uuid, &d.gpu_instance, &d.compute_instance) == 3) {
    d.parent = &gpus[gpu_count - 1];
    snprintf(d.name, sizeof d.name, "%.91s MIG", d.parent->name);
    migs[mig_count++] = d;
  }
}

static int read_conf(void) {
  const char *path = getenv("NVGRAFT_NVML_CONF");
  FILE *file = fopen(path && *path ? path : CONF, "re");
  char line[512];
  gpu_count = mig_count = 0;
  init_result = hang_seconds = cuda_version = 0;
  driver_version[0] = 0;
  if (!file)
    return DRIVER_NOT_LOADED;
  while (fgets(line, sizeof line, file)) {
    line[strcspn(line, "\n")] = 0;
    read_line(line);
  }
  fclose(file);
  for (unsigned left = hang_seconds > 0 ? (unsigned)hang_seconds : 0; left;)
    left = sleep(left);
  return init_result;
}

static int copy(char *buffer, unsigned size, const char *text) {
  if (!buffer)
    return INVALID_ARGUMENT;
  if (strlen(text) + 1 > size)
    return INSUFFICIENT_SIZE;
  strcpy(buffer, text);
  return SUCCESS;
}

#define NEED_INIT() \
  do { \
    if (!init_count) \
      return UNINITIALIZED; \
  } while (0)

/* A handle that some caller kept or invented is an invalid argument, not a crash. */
#define NEED_DEVICE(d) \
  do { \
    NEED_INIT(); \
    if (!((d) >= gpus && (d) < gpus + gpu_count) && !((d) >= migs && (d) < migs + mig_count)) \
      return INVALID_ARGUMENT; \
  } while (0)

#define NEED_MIG(d) \
  do { \
    NEED_DEVICE(d); \
    if (!(d)->parent) \
      return INVALID_ARGUMENT; \
  } while (0)

ENTRY int nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  int result = init_count ? SUCCESS : read_conf();
  if (result == SUCCESS)
    init_count++;
  return result;
}

ENTRY int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

ENTRY int nvmlShutdown(void) {
  NEED_INIT();
  init_count--;
  return SUCCESS;
}

ENTRY const char *nvmlErrorString(int result) {
  return result >= 0 && result < (int)(sizeof error_strings / sizeof *error_strings) ? error_strings[result] : "Unknown Error";
}

ENTRY int nvmlSystemGetDriverVersion(char *buffer, unsigned size) {
  NEED_INIT();
  return copy(buffer, size, driver_version);
}

ENTRY int nvmlSystemGetNVMLVersion(char *buffer, unsigned size) {
  char text[96];
  NEED_INIT();
  snprintf(text, sizeof text, "%d.%s", cuda_version / 1000, driver_version);
  return copy(buffer, size, text);
}

ENTRY int nvmlSystemGetCudaDriverVersion(int *version) {
  NEED_INIT();
  *version = cuda_version;
  return SUCCESS;
}

ENTRY int nvmlSystemGetCudaDriverVersion_v2(int *version) { return nvmlSystemGetCudaDriverVersion(version); }

ENTRY int nvmlDeviceGetCount_v2(unsigned *count) {
  NEED_INIT();
  *count = gpu_count;
  return SUCCESS;
}

ENTRY int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct device **device) {
  NEED_INIT();
  if (index >= gpu_count)
    return INVALID_ARGUMENT;
  *device = &gpus[index];
  return SUCCESS;
}

ENTRY int nvmlDeviceGetHandleByUUID(const char *uuid, struct device **device) {
  NEED_INIT();
  for (unsigned i = 0; i < gpu_count + mig_count; i++) {
    struct device *d = i < gpu_count ? &gpus[i] : &migs[i - gpu_count];
    if (!strcmp(d->uuid, uuid)) {
      *device = d;
      return SUCCESS;
    }
  }
  return NOT_FOUND;
}

ENTRY int nvmlDeviceGetIndex(struct device *device, unsigned *index) {
  NEED_DEVICE(device);
  if (device->parent)
    return INVALID_ARGUMENT;
  *index = (unsigned)(device - gpus);
  return SUCCESS;
}

ENTRY int nvmlDeviceGetMinorNumber(struct device *device, unsigned *minor) {
  NEED_DEVICE(device);
  if (device->parent)
    return INVALID_ARGUMENT;
  *minor = device->minor;
  return SUCCESS;
}

ENTRY int nvmlDeviceGetUUID(struct device *device, char *buffer, unsigned size) {
  NEED_DEVICE(device);
  return copy(buffer, size, device->uuid);
}

ENTRY int nvmlDeviceGetName(struct device *device, char *buffer, unsigned size) {
  NEED_DEVICE(device);
  return copy(buffer, size, device->name);
}

ENTRY int nvmlDeviceGetBrand(struct device *device, int *brand) {
  NEED_DEVICE(device);
  *brand = (device->parent ? device->parent : device)->brand;
  return SUCCESS;
}

ENTRY int nvmlDeviceGetCudaComputeCapability(struct device *device, int *major, int *minor) {
  NEED_DEVICE(device);
  struct device *gpu = device->parent ? device->parent : device;
  *major = gpu->major_capability;
  *minor = gpu->minor_capability;
  return SUCCESS;
}

/* The entry point without a version knows the fields up to the device id and writes no others; nvidia-container-cli looks up this one. */
ENTRY int nvmlDeviceGetPciInfo(struct device *device, struct pci_info *info) {
  NEED_DEVICE(device);
  struct device *gpu = device->parent ? device->parent : device;
  info->domain = gpu->domain;
  info->bus = gpu->bus;
  info->device = gpu->slot;
  info->pci_device_id = 0x000010de; /* the vendor; which model it is does not matter here */
  snprintf(info->bus_id_legacy, sizeof info->bus_id_legacy, "%04X:%02X:%02X.0", gpu->domain & 0xffff, gpu->bus & 0xff, gpu->slot & 0xff);
  return SUCCESS;
}

ENTRY int nvmlDeviceGetPciInfo_v3(struct device *device, struct pci_info *info) {
  int result = nvmlDeviceGetPciInfo(device, info);
  if (result)
    return result;
  struct device *gpu = device->parent ? device->parent : device;
  info->pci_subsystem_id = 0;
  snprintf(info->bus_id, sizeof info->bus_id, "%08X:%02X:%02X.0", gpu->domain, gpu->bus, gpu->slot);
  return SUCCESS;
}

ENTRY int nvmlDeviceGetMigMode(struct device *device, unsigned *current, unsigned *pending) {
  NEED_DEVICE(device);
  if (device->parent || !strcmp(device->mig_mode, "unsupported"))
    return NOT_SUPPORTED;
  *current = *pending = !strcmp(device->mig_mode, "enabled");
  return SUCCESS;
}

ENTRY int nvmlDeviceGetMaxMigDeviceCount(struct device *device, unsigned *count) {
  NEED_DEVICE(device);
  *count = device->parent || !strcmp(device->mig_mode, "unsupported") ? 0 : 7;
  return SUCCESS;
}

ENTRY int nvmlDeviceGetMigDeviceHandleByIndex(struct device *device, unsigned index, struct device **mig) {
  NEED_DEVICE(device);
  for (unsigned i = 0; i < mig_count; i++)
    if (migs[i].parent == device && index-- == 0) {
      *mig = &migs[i];
      return SUCCESS;
    }
  return NOT_FOUND;
}

ENTRY int nvmlDeviceIsMigDeviceHandle(struct device *device, unsigned *is_mig) {
  NEED_DEVICE(device);
  *is_mig = device->parent != NULL;
  return SUCCESS;
}

ENTRY int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(struct device *mig, struct device **device) {
  NEED_MIG(mig);
  *device = mig->parent;
  return SUCCESS;
}

ENTRY int nvmlDeviceGetGpuInstanceId(struct device *mig, unsigned *id) {
  NEED_MIG(mig);
  *id = mig->gpu_instance;
  return SUCCESS;
}

ENTRY int nvmlDeviceGetComputeInstanceId(struct device *mig, unsigned *id) {
  NEED_MIG(mig);
  *id = mig->compute_instance;
  return SUCCESS;
}
