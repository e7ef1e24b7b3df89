/* Devices and what they are. */

#define MIB 1048576ull

EXPORT int cuDeviceGetCount(int *count) {
  NEED_INIT();
  NEED_POINTER(count);
  *count = (int)device_count;
  return SUCCESS;
}

EXPORT int cuDeviceGet(int *device, int ordinal) {
  NEED_DEVICE(ordinal);
  NEED_POINTER(device);
  *device = ordinal;
  return SUCCESS;
}

EXPORT int cuDeviceGetName(char *name, int length, int device) {
  NEED_DEVICE(device);
  NEED_POINTER(name);
  if (length <= 0)
    return INVALID_VALUE;
  const struct device *asked = &devices[device];
  /* The rest is filled with zeros: bindings return it whole. */
  strncpy(name, asked->mig ? asked->mig->name : asked->gpu->name, (size_t)length);
  name[length - 1] = 0;
  return SUCCESS;
}

/* Read the UUID in "GPU-..." or "MIG-...". */
static int read_uuid(const char *text, unsigned char *uuid) {
  unsigned digits = 0;
  while (!strncmp(text, "GPU-", 4) || !strncmp(text, "MIG-", 4))
    text += 4;
  memset(uuid, 0, 16);
  for (; *text && digits < 32; text++) {
    if (*text == '-')
      continue;
    int digit = *text >= '0' && *text <= '9'                 ? *text - '0'
                : (*text | 32) >= 'a' && (*text | 32) <= 'f' ? (*text | 32) - 'a' + 10
                                                             : -1;
    if (digit < 0)
      return UNKNOWN;
    uuid[digits / 2] = (unsigned char)(uuid[digits / 2] << 4 | digit);
    digits++;
  }
  return digits == 32 ? SUCCESS : UNKNOWN;
}

EXPORT int cuDeviceGetUuid(unsigned char *uuid, int device) {
  NEED_DEVICE(device);
  NEED_POINTER(uuid);
  return read_uuid(devices[device].gpu->uuid, uuid);
}

/* The second version names the MIG device where there is one. */
EXPORT int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
  NEED_DEVICE(device);
  NEED_POINTER(uuid);
  const struct device *asked = &devices[device];
  return read_uuid(asked->mig ? asked->mig->uuid : asked->gpu->uuid, uuid);
}

/* Find how much memory of a device programs can use, and how much of it is free. */
static int memory_of(int device, size_t *total, size_t *free_bytes) {
  const struct device *asked = &devices[device];
  int64_t all = asked->mig ? asked->mig->memory_mib : asked->gpu->memory_mib;
  int64_t reserved = asked->mig ? asked->mig->memory_reserved_mib : asked->gpu->memory_reserved_mib;
  const struct sim_series *series = &asked->gpu->memory_used_mib;
  int64_t used = 0;
  if (all == SIM_UNKNOWN)
    return NOT_SUPPORTED;
  if (reserved != SIM_UNKNOWN)
    all -= reserved;
  if (!asked->mig && series->count)
    used =
        series
            ->values[(uint64_t)time(NULL) / (series->step_s ? series->step_s : 1) % series->count];
  *total = (size_t)(all * MIB);
  *free_bytes = used < all ? (size_t)((all - used) * MIB) : 0;
  return SUCCESS;
}

EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int device) {
  size_t unused;
  NEED_DEVICE(device);
  NEED_POINTER(bytes);
  return memory_of(device, bytes, &unused);
}

/* An attribute that the document has no value for is one that the driver does not know. */
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device) {
  NEED_DEVICE(device);
  NEED_POINTER(value);
  const struct device *asked = &devices[device];
  const struct sim_attribute *rows = asked->mig ? asked->mig->attributes : asked->gpu->attributes;
  unsigned count = asked->mig ? asked->mig->attribute_count : asked->gpu->attribute_count;
  for (unsigned i = 0; i < count; i++)
    if (rows[i].id == attribute) {
      *value = rows[i].value;
      return SUCCESS;
    }
  return INVALID_VALUE;
}

EXPORT int cuDeviceComputeCapability(int *major, int *minor, int device) {
  NEED_DEVICE(device);
  NEED_POINTER(major && minor);
  *major = devices[device].gpu->compute_major;
  *minor = devices[device].gpu->compute_minor;
  return SUCCESS;
}

EXPORT int cuDeviceGetPCIBusId(char *text, int length, int device) {
  NEED_DEVICE(device);
  NEED_POINTER(text);
  const struct sim_pci *pci = &devices[device].gpu->pci;
  int needed = snprintf(
      text, length > 0 ? (size_t)length : 0, "%04x:%02x:%02x.0", pci->domain, pci->bus, pci->device
  );
  return needed < length ? SUCCESS : INVALID_VALUE;
}

EXPORT int cuDeviceGetByPCIBusId(int *device, const char *text) {
  NEED_INIT();
  NEED_POINTER(device && text);
  for (unsigned i = 0; i < device_count; i++) {
    const struct sim_pci *pci = &devices[i].gpu->pci;
    char full[32], without_function[32];
    snprintf(full, sizeof full, "%04x:%02x:%02x.0", pci->domain, pci->bus, pci->device);
    snprintf(
        without_function, sizeof without_function, "%04x:%02x:%02x", pci->domain, pci->bus,
        pci->device
    );
    const char *without_domain = strchr(full, ':') + 1;
    if (!strcasecmp(text, full) || !strcasecmp(text, without_function) ||
        (!pci->domain && !strcasecmp(text, without_domain))) {
      *device = (int)i;
      return SUCCESS;
    }
  }
  return INVALID_VALUE;
}

static int reaches(const struct device *from, const struct device *to) {
  return !from->mig && !to->mig && are_peers(from->gpu, to->gpu);
}

EXPORT int cuDeviceCanAccessPeer(int *can, int device, int peer) {
  NEED_DEVICE(device);
  NEED_DEVICE(peer);
  NEED_POINTER(can);
  *can = reaches(&devices[device], &devices[peer]);
  return SUCCESS;
}

EXPORT int cuDeviceGetP2PAttribute(int *value, int attribute, int device, int peer) {
  enum {
    PERFORMANCE_RANK = 1,
    ACCESS_SUPPORTED = 2,
    NATIVE_ATOMIC_SUPPORTED = 3,
    CUDA_ARRAY_ACCESS_SUPPORTED = 4
  };
  NEED_DEVICE(device);
  NEED_DEVICE(peer);
  NEED_POINTER(value);
  if (device == peer)
    return INVALID_DEVICE;
  int access = reaches(&devices[device], &devices[peer]);
  int direct = access && links_between(devices[device].gpu, devices[peer].gpu);
  switch (attribute) {
  case PERFORMANCE_RANK:
    *value = access && !direct;
    return SUCCESS;
  case ACCESS_SUPPORTED:
  case CUDA_ARRAY_ACCESS_SUPPORTED:
    *value = access;
    return SUCCESS;
  case NATIVE_ATOMIC_SUPPORTED:
    *value = direct;
    return SUCCESS;
  }
  return INVALID_VALUE;
}

/* A LUID identifies a device for Windows; elsewhere the driver answers so too. */
EXPORT int cuDeviceGetLuid(char *luid, unsigned *mask, int device) {
  (void)luid, (void)mask;
  NEED_DEVICE(device);
  return NOT_SUPPORTED;
}

EXPORT int cuDeviceGetExecAffinitySupport(int *supported, int type, int device) {
  (void)type;
  NEED_DEVICE(device);
  NEED_POINTER(supported);
  *supported = 0;
  return SUCCESS;
}

EXPORT int cuModuleGetLoadingMode(int *mode) {
  enum { EAGER = 1, LAZY = 2 };
  const char *wanted = getenv("CUDA_MODULE_LOADING");
  NEED_INIT();
  NEED_POINTER(mode);
  *mode = wanted && !strcmp(wanted, "EAGER") ? EAGER : LAZY;
  return SUCCESS;
}

/* No pointer is one of a device. */
EXPORT int cuPointerGetAttribute(void *value, int attribute, uint64_t pointer) {
  (void)value, (void)attribute, (void)pointer;
  NEED_INIT();
  return INVALID_VALUE;
}
