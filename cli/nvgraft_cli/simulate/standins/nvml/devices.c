/* Which devices there are, and what identifies them. */

NVML nvmlDeviceGetCount_v2(unsigned *count) {
  NEED_INIT();
  return put(count, gpu_count);
}

NVML nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

/* No GPU is excluded by the driver, and there is no S-class unit around the GPUs. */
#define NONE(name) \
  NVML name(unsigned *count) { \
    NEED_INIT(); \
    return put(count, 0); \
  }

NONE(nvmlGetExcludedDeviceCount)
NONE(nvmlGetBlacklistDeviceCount)
NONE(nvmlUnitGetCount)

NVML nvmlDeviceGetHandleByIndex_v2(unsigned index, struct device **device) {
  int code;
  NEED_INIT();
  NEED(device);
  if (index >= gpu_count)
    return INVALID_ARGUMENT;
  code = usable(&gpus[index]);
  if (code == SUCCESS)
    *device = &gpus[index];
  return code;
}

NVML nvmlDeviceGetHandleByIndex(unsigned index, struct device **device) {
  return nvmlDeviceGetHandleByIndex_v2(index, device);
}

NVML nvmlDeviceGetHandleByUUID(const char *uuid, struct device **device) {
  NEED_INIT();
  NEED(uuid && device);
  for (unsigned i = 0; i < gpu_count; i++)
    if (!strcmp(gpus[i].gpu->uuid, uuid))
      return nvmlDeviceGetHandleByIndex_v2(i, device);
  for (unsigned i = 0; i < mig_count; i++)
    if (!strcmp(migs[i].mig->uuid, uuid)) {
      *device = &migs[i];
      return usable(*device);
    }
  return NOT_FOUND;
}

NVML nvmlDeviceGetHandleBySerial(const char *serial, struct device **device) {
  NEED_INIT();
  NEED(serial && device);
  for (unsigned i = 0; i < gpu_count; i++)
    if (gpus[i].gpu->serial && !strcmp(gpus[i].gpu->serial, serial))
      return nvmlDeviceGetHandleByIndex_v2(i, device);
  return NOT_FOUND;
}

static unsigned hex_digit(char c) {
  if (c >= '0' && c <= '9')
    return (unsigned)(c - '0');
  if (c >= 'a' && c <= 'f')
    return (unsigned)(c - 'a' + 10);
  if (c >= 'A' && c <= 'F')
    return (unsigned)(c - 'A' + 10);
  return 16;
}

/* Read a PCI address, [DOMAIN:]BUS:DEVICE[.0] in hex digits; return whether it is one. */
static int read_bus_id(const char *text, struct sim_pci *pci) {
  unsigned parts[3] = {0, 0, 0}, count = 0, digits = 0;
  for (;; text++) {
    unsigned digit = hex_digit(*text);
    if (digit < 16 && digits < 8) {
      parts[count] = parts[count] << 4 | digit;
      digits++;
    } else if (*text == ':' && digits && count < 2) {
      count++;
      digits = 0;
    } else {
      break;
    }
  }
  if (!digits || !count || (*text && strcmp(text, ".0")))
    return 0;
  pci->domain = count == 2 ? parts[0] : 0;
  pci->bus = parts[count - 1];
  pci->device = parts[count];
  return 1;
}

static int same_address(const struct sim_pci *one, const struct sim_pci *other) {
  return one->domain == other->domain && one->bus == other->bus && one->device == other->device;
}

NVML nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, struct device **device) {
  struct sim_pci pci;
  NEED_INIT();
  NEED(bus_id && device);
  if (!read_bus_id(bus_id, &pci))
    return INVALID_ARGUMENT;
  for (unsigned i = 0; i < gpu_count; i++)
    if (same_address(&gpus[i].gpu->pci, &pci))
      return nvmlDeviceGetHandleByIndex_v2(i, device);
  return NOT_FOUND;
}

NVML nvmlDeviceGetHandleByPciBusId(const char *bus_id, struct device **device) {
  return nvmlDeviceGetHandleByPciBusId_v2(bus_id, device);
}

NVML nvmlDeviceGetIndex(struct device *device, unsigned *index) {
  NEED_DEVICE(device);
  if (!device->mig)
    return put(index, device - gpus);
  for (unsigned i = 0, of_gpu = 0; i < mig_count; i++)
    if (migs[i].gpu == device->gpu) {
      if (&migs[i] == device)
        return put(index, of_gpu);
      of_gpu++;
    }
  return NOT_FOUND;
}

NVML nvmlDeviceGetMinorNumber(struct device *device, unsigned *minor) {
  NEED_GPU(device);
  return put(minor, device->gpu->minor);
}

NVML nvmlDeviceGetUUID(struct device *device, char *uuid, unsigned size) {
  NEED_DEVICE(device);
  return put_text(uuid, size, device->mig ? device->mig->uuid : device->gpu->uuid);
}

NVML nvmlDeviceGetName(struct device *device, char *name, unsigned size) {
  NEED_DEVICE(device);
  return put_text(name, size, device->mig ? device->mig->name : device->gpu->name);
}

NVML nvmlDeviceGetBrand(struct device *device, unsigned *brand) {
  NEED_DEVICE(device);
  return put(brand, device->gpu->brand);
}

/* nvmlDeviceArchitecture_t */
enum { KEPLER = 2, MAXWELL, PASCAL, VOLTA, TURING, AMPERE, ADA, HOPPER, BLACKWELL };

/* Return the architecture of a GPU: the compute capability tells it where no profile does. */
static int64_t architecture_of(const struct sim_gpu *gpu) {
  if (gpu->architecture != SIM_UNKNOWN)
    return gpu->architecture;
  switch (gpu->compute_major) {
  case 3:
    return KEPLER;
  case 5:
    return MAXWELL;
  case 6:
    return PASCAL;
  case 7:
    return gpu->compute_minor < 5 ? VOLTA : TURING;
  case 8:
    return gpu->compute_minor < 9 ? AMPERE : ADA;
  case 9:
    return HOPPER;
  case 10:
  case 11:
  case 12:
    return BLACKWELL;
  default:
    return SIM_UNKNOWN;
  }
}

NVML nvmlDeviceGetArchitecture(struct device *device, unsigned *architecture) {
  NEED_DEVICE(device);
  return put(architecture, architecture_of(device->gpu));
}

NVML nvmlDeviceGetCudaComputeCapability(struct device *device, int *major, int *minor) {
  NEED_DEVICE(device);
  NEED(major && minor);
  *major = device->gpu->compute_major;
  *minor = device->gpu->compute_minor;
  return SUCCESS;
}

NVML nvmlDeviceGetSerial(struct device *device, char *serial, unsigned size) {
  NEED_GPU(device);
  return put_text(serial, size, device->gpu->serial);
}

NVML nvmlDeviceGetBoardPartNumber(struct device *device, char *number, unsigned size) {
  NEED_GPU(device);
  return put_text(number, size, device->gpu->board_part_number);
}

NVML nvmlDeviceGetVbiosVersion(struct device *device, char *version, unsigned size) {
  NEED_DEVICE(device);
  return put_text(version, size, device->gpu->vbios);
}

NVML nvmlDeviceGetNumGpuCores(struct device *device, unsigned *cores) {
  NEED_GPU(device);
  return put(cores, device->gpu->cores);
}

/* A board is named after the address of its GPU, as the driver does. */
NVML nvmlDeviceGetBoardId(struct device *device, unsigned *id) {
  const struct sim_pci *pci;
  NEED_GPU(device);
  pci = &device->gpu->pci;
  return put(id, (int64_t)(pci->domain << 16 | pci->bus << 8 | pci->device << 3));
}

NVML nvmlDeviceGetMultiGpuBoard(struct device *device, unsigned *several) {
  NEED_GPU(device);
  return put(several, 0);
}

/* Fill what each version of the structure has. */
static void put_address(const struct sim_pci *pci, struct pci_info *info) {
  info->domain = pci->domain;
  info->bus = pci->bus;
  info->device = pci->device;
  snprintf(info->bus_id_legacy, sizeof info->bus_id_legacy, "%04X:%02X:%02X.0",
           pci->domain & 0xffff, pci->bus & 0xff, pci->device & 0xff);
}

static int64_t device_id(const struct sim_gpu *gpu) {
  /* The vendor alone, where the document does not say which model it is. */
  return gpu->pci_device_id == SIM_UNKNOWN ? 0x10de : gpu->pci_device_id;
}

/* The function without a version fills the members up to the device id. Programs pass shorter
 * structures to it. */
NVML nvmlDeviceGetPciInfo(struct device *device, struct pci_info *info) {
  NEED_DEVICE(device);
  NEED(info);
  put_address(&device->gpu->pci, info);
  info->pci_device_id = (unsigned)device_id(device->gpu);
  return SUCCESS;
}

NVML nvmlDeviceGetPciInfo_v2(struct device *device, struct pci_info *info) {
  int code = nvmlDeviceGetPciInfo(device, info);
  if (code == SUCCESS) {
    int64_t id = device->gpu->pci_subsystem_id;
    info->pci_subsystem_id = id == SIM_UNKNOWN ? 0 : (unsigned)id;
  }
  return code;
}

static void put_bus_id(const struct sim_pci *pci, char *bus_id) {
  snprintf(bus_id, TEXT_BUS_ID, "%08X:%02X:%02X.0", pci->domain, pci->bus & 0xff,
           pci->device & 0xff);
}

NVML nvmlDeviceGetPciInfo_v3(struct device *device, struct pci_info *info) {
  int code = nvmlDeviceGetPciInfo_v2(device, info);
  if (code == SUCCESS)
    put_bus_id(&device->gpu->pci, info->bus_id);
  return code;
}

NVML nvmlDeviceGetPciInfoExt(struct device *device, struct pci_info_ext *info) {
  struct pci_info pci;
  int code;
  NEED_DEVICE(device);
  NEED(info);
  if (info->version != STRUCT_VERSION(struct pci_info_ext, 1))
    return VERSION_MISMATCH;
  code = nvmlDeviceGetPciInfo_v3(device, &pci);
  info->domain = pci.domain;
  info->bus = pci.bus;
  info->device = pci.device;
  info->pci_device_id = pci.pci_device_id;
  info->pci_subsystem_id = pci.pci_subsystem_id;
  info->base_class = 3; /* a display controller, */
  info->sub_class = device->gpu->display_attached == 1 ? 0 : 2; /* VGA or 3D */
  memcpy(info->bus_id, pci.bus_id, sizeof info->bus_id);
  return code;
}
