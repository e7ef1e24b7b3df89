/* How GPUs, CPUs and NVSwitches are connected. */

/* ---- PCIe and NUMA */

static size_t host_index(const struct device *device) {
  return (size_t)(device->gpu - simulated.gpus);
}

/* nvmlGpuTopologyLevel_t */
enum {
  LEVEL_BOARD = 0,
  LEVEL_ONE_SWITCH = 10,
  LEVEL_SWITCHES = 20,
  LEVEL_HOST_BRIDGE = 30,
  LEVEL_NUMA_NODE = 40,
  LEVEL_SYSTEM = 50,
};

/* Return the level between two GPUs, or SIM_UNKNOWN. */
static int64_t level_between(const struct device *one, const struct device *other) {
  return one->gpu->topology ? one->gpu->topology[host_index(other)] : SIM_UNKNOWN;
}

NVML nvmlDeviceGetTopologyCommonAncestor(struct device *one, struct device *other,
                                         unsigned *level) {
  NEED_GPU(one);
  NEED_GPU(other);
  return put(level, level_between(one, other));
}

NVML nvmlDeviceOnSameBoard(struct device *one, struct device *other, unsigned *same) {
  NEED_GPU(one);
  NEED_GPU(other);
  return put(same, one == other);
}

/* Write the GPUs for which a condition holds, by NVML's rule for lists: *count is the room before,
 * the number of GPUs after. Without a list only the number is asked for. */
static int put_gpus(int (*holds)(const struct device *gpu, const void *against),
                    const void *against, unsigned *count, struct device **list) {
  unsigned room, found = 0;
  NEED(count);
  room = list ? *count : 0;
  for (unsigned i = 0; i < gpu_count; i++)
    if (holds(&gpus[i], against)) {
      if (found < room)
        list[found] = &gpus[i];
      found++;
    }
  *count = found;
  return list && found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

struct neighbourhood {
  const struct device *device;
  unsigned level;
};

static int is_neighbour(const struct device *gpu, const void *against) {
  const struct neighbourhood *wanted = against;
  return gpu != wanted->device && level_between(wanted->device, gpu) == (int64_t)wanted->level;
}

NVML nvmlDeviceGetTopologyNearestGpus(struct device *device, unsigned level, unsigned *count,
                                      struct device **list) {
  const struct neighbourhood wanted = {device, level};
  NEED_GPU(device);
  if (!device->gpu->topology)
    return NOT_SUPPORTED;
  return put_gpus(is_neighbour, &wanted, count, list);
}

/* Take the next range of a list as /sys writes it, "0-31,64-95"; return 0 at its end. */
static int next_range(const char **text, unsigned *first, unsigned *last) {
  const char *at = *text;
  unsigned *number = first;
  if (!at || *at < '0' || *at > '9')
    return 0;
  *first = 0;
  for (; (*at >= '0' && *at <= '9') || (*at == '-' && number == first); at++) {
    if (*at == '-') {
      number = last;
      *last = 0;
    } else {
      *number = *number * 10 + (unsigned)(*at - '0');
    }
  }
  if (number == first)
    *last = *first;
  *text = *at == ',' ? at + 1 : "";
  return 1;
}

static int is_near_cpu(const struct device *gpu, const void *against) {
  const unsigned *cpu = against;
  const char *cpus = gpu->gpu->cpus;
  unsigned first, last;
  while (next_range(&cpus, &first, &last))
    if (*cpu >= first && *cpu <= last)
      return 1;
  return 0;
}

NVML nvmlSystemGetTopologyGpuSet(unsigned cpu, unsigned *count, struct device **list) {
  NEED_INIT();
  return put_gpus(is_near_cpu, &cpu, count, list);
}

enum { LONG_BITS = 8 * sizeof(unsigned long) };

static void set_bits(unsigned words, unsigned long *set, unsigned first, unsigned last) {
  for (unsigned bit = first; bit <= last && bit < words * LONG_BITS; bit++)
    set[bit / LONG_BITS] |= 1UL << bit % LONG_BITS;
}

NVML nvmlDeviceGetCpuAffinity(struct device *device, unsigned words, unsigned long *set) {
  const char *cpus;
  unsigned first, last;
  NEED_DEVICE(device);
  NEED(words && set);
  cpus = device->gpu->cpus;
  if (!cpus)
    return NOT_SUPPORTED;
  memset(set, 0, words * sizeof *set);
  while (next_range(&cpus, &first, &last))
    set_bits(words, set, first, last);
  return SUCCESS;
}

NVML nvmlDeviceGetCpuAffinityWithinScope(struct device *device, unsigned words,
                                         unsigned long *set, unsigned scope) {
  return scope > 1 ? INVALID_ARGUMENT : nvmlDeviceGetCpuAffinity(device, words, set);
}

NVML nvmlDeviceGetMemoryAffinity(struct device *device, unsigned words, unsigned long *set,
                                 unsigned scope) {
  int64_t node;
  NEED_DEVICE(device);
  NEED(words && set && scope <= 1);
  node = device->gpu->numa_node;
  if (node == SIM_UNKNOWN)
    return NOT_SUPPORTED;
  memset(set, 0, words * sizeof *set);
  set_bits(words, set, (unsigned)node, (unsigned)node);
  return SUCCESS;
}

/* ---- NVLink */

enum { LINK_LIMIT = 18 };

/* Find an active link by its number; NULL: it is not active. */
static const struct sim_nvlink *find_link(const struct sim_gpu *gpu, unsigned number) {
  for (unsigned i = 0; i < gpu->nvlink_count; i++)
    if (gpu->nvlinks[i].link == number)
      return &gpu->nvlinks[i];
  return NULL;
}

/* Go on with an active link of a GPU. */
#define NEED_LINK(device, number, link) \
  do { \
    NEED_GPU(device); \
    if ((number) >= LINK_LIMIT) \
      return INVALID_ARGUMENT; \
    (link) = find_link((device)->gpu, number); \
    if (!(link)) \
      return NOT_SUPPORTED; \
  } while (0)

NVML nvmlDeviceGetP2PStatus(struct device *one, struct device *other, unsigned what,
                            unsigned *status) {
  enum { READ, WRITE, NVLINK, ATOMICS, PCI };
  enum { STATUS_OK = 0, STATUS_CHIPSET_NOT_SUPPORTED = 1, STATUS_NOT_SUPPORTED = 5 };
  int peers, links;
  NEED_GPU(one);
  NEED_GPU(other);
  NEED(what <= PCI);
  peers = are_peers(one->gpu, other->gpu);
  links = peers && links_between(one->gpu, other->gpu);
  if (what == NVLINK || (what == ATOMICS && peers))
    return put(status, links ? STATUS_OK : STATUS_NOT_SUPPORTED);
  if (what == PCI)
    peers = peers && are_pcie_peers(one->gpu, other->gpu);
  return put(status, peers ? STATUS_OK : STATUS_CHIPSET_NOT_SUPPORTED);
}

NVML nvmlDeviceGetNvLinkState(struct device *device, unsigned number, unsigned *state) {
  NEED_GPU(device);
  if (number >= LINK_LIMIT)
    return INVALID_ARGUMENT;
  if (!device->gpu->nvlink_count)
    return NOT_SUPPORTED;
  return put_state(state, find_link(device->gpu, number) != NULL);
}

NVML nvmlDeviceGetNvLinkVersion(struct device *device, unsigned number, unsigned *version) {
  const struct sim_nvlink *link;
  NEED_LINK(device, number, link);
  return put(version, link->version);
}

NVML nvmlDeviceGetNvLinkCapability(struct device *device, unsigned number, unsigned capability,
                                   unsigned *has) {
  enum { P2P, SYSTEM_MEMORY, P2P_ATOMICS, SYSTEM_ATOMICS, SLI_BRIDGE, VALID };
  const struct sim_nvlink *link;
  NEED_LINK(device, number, link);
  NEED(capability <= VALID);
  return put(has, capability != SLI_BRIDGE);
}

NVML nvmlDeviceGetNvLinkRemotePciInfo(struct device *device, unsigned number,
                                      struct pci_info *info) {
  const struct sim_nvlink *link;
  NEED_LINK(device, number, link);
  NEED(info);
  put_address(&link->remote, info);
  info->pci_device_id = info->pci_subsystem_id = 0;
  if (link->end == SIM_LINK_GPU && link->gpu >= 0)
    info->pci_device_id = (unsigned)device_id(&simulated.gpus[link->gpu]);
  return SUCCESS;
}

NVML nvmlDeviceGetNvLinkRemotePciInfo_v2(struct device *device, unsigned number,
                                         struct pci_info *info) {
  int code = nvmlDeviceGetNvLinkRemotePciInfo(device, number, info);
  if (code == SUCCESS)
    put_bus_id(&find_link(device->gpu, number)->remote, info->bus_id);
  return code;
}

NVML nvmlDeviceGetNvLinkRemoteDeviceType(struct device *device, unsigned number, unsigned *type) {
  const struct sim_nvlink *link;
  NEED_LINK(device, number, link);
  return put(type, link->end);
}

NVML nvmlDeviceGetNvLinkErrorCounter(struct device *device, unsigned number, unsigned counter,
                                     u64 *count) {
  const struct sim_nvlink *link;
  NEED_LINK(device, number, link);
  NEED(count && counter <= 4);
  *count = 0;
  return SUCCESS;
}

/* ---- the fabric of NVSwitches, of which GPUs know since Hopper */

static int read_fabric(struct device *device, struct fabric_info *info) {
  enum { IN_PROGRESS = 2, COMPLETED = 3 };
  if (!simulated.has_fabric || architecture_of(device->gpu) < HOPPER)
    return NOT_SUPPORTED;
  memset(info, 0, sizeof *info);
  info->state = sim_failures.fabric_down ? IN_PROGRESS : COMPLETED;
  return SUCCESS;
}

NVML nvmlDeviceGetGpuFabricInfo(struct device *device, struct fabric_info *info) {
  NEED_GPU(device);
  NEED(info);
  return read_fabric(device, info);
}

NVML nvmlDeviceGetGpuFabricInfoV(struct device *device, struct fabric_info_v3 *info) {
  int code;
  NEED_GPU(device);
  NEED(info);
  if (info->version != STRUCT_VERSION(struct fabric_info_v2, 2) &&
      info->version != STRUCT_VERSION(struct fabric_info_v3, 3))
    return VERSION_MISMATCH;
  code = read_fabric(device, &info->info);
  if (code == SUCCESS)
    info->health_mask = 0;
  if (code == SUCCESS && info->version == STRUCT_VERSION(struct fabric_info_v3, 3))
    info->health_summary = 0;
  return code;
}
