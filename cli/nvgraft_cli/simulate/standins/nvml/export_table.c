/* nvmlInternalGetExportTable: the table of functions without names that nvidia-smi asks for.
 *
 * What is known of it is what NVIDIA's mock NVML (k8s-test-infra, Apache-2.0) publishes, and what
 * nvidia-smi of the branches 470, 535 and 550 was seen to ask, and to print for each answer. Slots
 * are counted in pointers from the start; the first holds the size in bytes.
 */

enum {
  SLOT_COUNT = 384,
  SLOT_READ_ADDRESS = 12,
  SLOT_PATH = 23,
  SLOT_CAN_BE_MONITORED = 72,
  SLOT_ADDRESS_BY_INDEX = 75,
  SLOT_HANDLE_BY_INDEX = 81,
  SLOT_ENFORCED_POWER_LIMIT = 108,
  SLOT_PROCESSES_FIRST = 213,
  SLOT_PROCESSES_LAST = 215,
  SLOT_HOST_MAX_PCIE_GENERATION = 230,
};

static const unsigned char table_uuid[16] = {
  0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e, 0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4,
};

static void *export_table[SLOT_COUNT];

/* Every slot without an entry below. An error for a question about a device lets nvidia-smi print
 * N/A; an error for any other one ends it. */
static int slot_unknown(struct device *device) {
  return usable(device) == INVALID_ARGUMENT ? SUCCESS : NOT_SUPPORTED;
}

/* The path between two GPUs, named by their PCI addresses, in the numbers that `nvidia-smi topo -m`
 * prints as PIX, PXB, PHB, NODE and SYS. It finds the NVLinks itself, and prints a number without
 * meaning as "Unknown"; an error ends it. */
static int slot_path(const char *one, const char *other, unsigned *path) {
  enum { PIX, PXB, PHB, NODE, SYS };
  struct device *from, *to;
  int code;
  NEED(path);
  code = nvmlDeviceGetHandleByPciBusId_v2(one, &from);
  code = code ? code : nvmlDeviceGetHandleByPciBusId_v2(other, &to);
  if (code)
    return code;
  switch (level_between(from, to)) {
  case LEVEL_BOARD:
  case LEVEL_ONE_SWITCH:
    return put(path, PIX);
  case LEVEL_SWITCHES:
    return put(path, PXB);
  case LEVEL_HOST_BRIDGE:
    return put(path, PHB);
  case LEVEL_NUMA_NODE:
    return put(path, NODE);
  case LEVEL_SYSTEM:
    return put(path, SYS);
  default:
    *path = ~0u;
    return SUCCESS;
  }
}

/* What `nvidia-smi dmon` and `pmon` ask of each GPU before they begin: they take no other one. */
static int slot_can_be_monitored(struct device *device, unsigned *yes) {
  NEED_GPU(device);
  return put(yes, 1);
}

/* What `nvidia-smi -i ADDRESS` asks before it takes the GPUs of that address: the numbers that the
 * text means, and those of the GPU with an index. The text is of a whole device, function 0. */
static int slot_read_address(const char *text, unsigned *domain, unsigned *bus, unsigned *device,
                             unsigned *function) {
  struct sim_pci pci;
  NEED_INIT();
  NEED(text && domain && bus && device && function);
  if (!read_bus_id(text, &pci))
    return INVALID_ARGUMENT;
  *domain = pci.domain;
  *bus = pci.bus;
  *device = pci.device;
  *function = 0;
  return SUCCESS;
}

static int slot_address_by_index(unsigned index, unsigned *domain, unsigned *bus,
                                 unsigned *device) {
  NEED_INIT();
  NEED(index < gpu_count && domain && bus && device);
  *domain = gpus[index].gpu->pci.domain;
  *bus = gpus[index].gpu->pci.bus;
  *device = gpus[index].gpu->pci.device;
  return SUCCESS;
}

NVML nvmlInternalGetExportTable(void ***table, const unsigned char *uuid) {
  if (refuses_beside_driver("libnvidia-ml.so.1"))
    return DRIVER_NOT_LOADED;
  NEED(table && uuid);
  if (memcmp(uuid, table_uuid, sizeof table_uuid))
    return NOT_SUPPORTED;
  for (unsigned i = 1; i < SLOT_COUNT; i++)
    export_table[i] = slot_unknown;
  export_table[0] = (void *)sizeof export_table;
  export_table[SLOT_READ_ADDRESS] = slot_read_address;
  export_table[SLOT_PATH] = slot_path;
  export_table[SLOT_CAN_BE_MONITORED] = slot_can_be_monitored;
  export_table[SLOT_ADDRESS_BY_INDEX] = slot_address_by_index;
  export_table[SLOT_HANDLE_BY_INDEX] = nvmlDeviceGetHandleByIndex_v2;
  export_table[SLOT_ENFORCED_POWER_LIMIT] = nvmlDeviceGetEnforcedPowerLimit;
  for (unsigned i = SLOT_PROCESSES_FIRST; i <= SLOT_PROCESSES_LAST; i++)
    export_table[i] = no_processes;
  export_table[SLOT_HOST_MAX_PCIE_GENERATION] = nvmlDeviceGetMaxPcieLinkGeneration;
  *table = export_table;
  return SUCCESS;
}
