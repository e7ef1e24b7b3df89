/* Which devices a process sees: those whose nodes it may open, and that CUDA_VISIBLE_DEVICES names.
 *
 * Sources: CUDA C++ Programming Guide, "Device Enumeration and Properties" of its environment
 * variables; MIG User Guide, "CUDA Device Enumeration"; and what PyTorch found of the driver
 * (torch/cuda/__init__.py, _parse_visible_devices): a repeated identifier leaves nothing, a number
 * may be followed by other characters, and all identifiers are of the kind of the first. */

/* A device that may be chosen. */
struct choice {
  const struct sim_gpu *gpu;
  const struct sim_mig_device *mig;
};

/* Fill found with the MIG devices of a GPU that the process may use, or with the GPU itself if it
 * is not in MIG mode. Return how many. */
static unsigned devices_of(const struct sim_gpu *gpu, struct choice *found) {
  unsigned count = 0;
  if (sim_failures.gpus[gpu - simulated.gpus].lost || open_gpu_node(gpu))
    return 0;
  if (gpu->mig_mode != 1) {
    found[0] = (struct choice){gpu, NULL};
    return 1;
  }
  for (unsigned i = 0; i < gpu->mig_device_count; i++)
    if (!open_mig_nodes(&gpu->mig_devices[i]))
      found[count++] = (struct choice){gpu, &gpu->mig_devices[i]};
  return count;
}

static int comes_before(const struct sim_gpu *a, const struct sim_gpu *b) {
  if (a->pci.domain != b->pci.domain)
    return a->pci.domain < b->pci.domain;
  return a->pci.bus != b->pci.bus ? a->pci.bus < b->pci.bus : a->pci.device < b->pci.device;
}

static int64_t speed(const struct sim_gpu *gpu) { return gpu->sm_count * gpu->sm_max_mhz; }

/* Order GPUs as CUDA_DEVICE_ORDER says: by PCI address, or (the default) the fastest one first and
 * the others as they stand. */
static void put_in_order(const struct sim_gpu **gpus, unsigned count) {
  const char *order = getenv("CUDA_DEVICE_ORDER");
  if (order && !strcmp(order, "PCI_BUS_ID")) {
    for (unsigned end = 1; end < count; end++)
      for (unsigned i = end; i > 0 && comes_before(gpus[i], gpus[i - 1]); i--) {
        const struct sim_gpu *later = gpus[i - 1];
        gpus[i - 1] = gpus[i];
        gpus[i] = later;
      }
    return;
  }
  unsigned fastest = 0;
  for (unsigned i = 1; i < count; i++)
    if (speed(gpus[i]) > speed(gpus[fastest]))
      fastest = i;
  for (; fastest > 0; fastest--) {
    const struct sim_gpu *first = gpus[fastest];
    gpus[fastest] = gpus[fastest - 1];
    gpus[fastest - 1] = first;
  }
}

/* The kinds of identifiers in CUDA_VISIBLE_DEVICES. */
enum kind { BY_NUMBER, BY_GPU_UUID, BY_MIG_UUID };

static enum kind kind_of(const char *word) {
  return !strncmp(word, "GPU-", 4) ? BY_GPU_UUID : !strncmp(word, "MIG-", 4) ? BY_MIG_UUID : BY_NUMBER;
}

/* Return whether a word is MIG-GPU-UUID/GPU instance/compute instance, as drivers before 470 name a
 * MIG device, and names this one. The UUID of the GPU may be abbreviated. */
static int is_old_name(const char *word, size_t length, const struct choice *choice) {
  char text[96], end[32];
  if (length >= sizeof text || strncmp(word, "MIG-GPU-", 8))
    return 0;
  memcpy(text, word, length);
  text[length] = 0;
  char *instances = strchr(text, '/');
  if (!instances)
    return 0;
  snprintf(end, sizeof end, "/%u/%u", choice->mig->gpu_instance, choice->mig->compute_instance);
  return !strcmp(instances, end) && !strncmp(choice->gpu->uuid, text + 4, (size_t)(instances - text) - 4);
}

/* Return the only choice whose UUID begins with a word; NULL if there is none or more than one. */
static const struct choice *
by_uuid(const struct choice *choices, unsigned count, const char *word, size_t length, enum kind kind) {
  const struct choice *found = NULL;
  for (unsigned i = 0; i < count; i++) {
    if (kind == BY_MIG_UUID) {
      if (!choices[i].mig || (strncmp(choices[i].mig->uuid, word, length) && !is_old_name(word, length, &choices[i])))
        continue;
      /* The UUID of a GPU in MIG mode stands for its first MIG device. */
    } else if (strncmp(choices[i].gpu->uuid, word, length) || (i > 0 && choices[i - 1].gpu == choices[i].gpu)) {
      continue;
    }
    if (found)
      return NULL;
    found = &choices[i];
  }
  return found;
}

/* Return the first choice of the GPU with a number; NULL for a word that does not begin with the
 * number of one. */
static const struct choice *
by_number(const struct choice *choices, unsigned count, const char *word) {
  unsigned number = 0, digits = 0;
  for (word += *word == '+'; *word >= '0' && *word <= '9' && digits <= 6; word++, digits++)
    number = number * 10 + (unsigned)(*word - '0');
  if (!digits || digits > 6)
    return NULL;
  for (unsigned i = 0; i < count; i++)
    if ((i == 0 || choices[i - 1].gpu != choices[i].gpu) && number-- == 0)
      return &choices[i];
  return NULL;
}

/* Keep of choices what CUDA_VISIBLE_DEVICES names, in its order. The first identifier says of which
 * kind all are. The list ends at the first one that names none, and naming a device twice leaves
 * none. Return how many remain. */
static unsigned keep_named(const char *names, struct choice *choices, unsigned count) {
  struct choice kept[SIM_GPU_LIMIT];
  unsigned kept_count = 0;
  names += strspn(names, " \t");
  enum kind kind = kind_of(names);
  while (kept_count < SIM_GPU_LIMIT) {
    names += strspn(names, " \t");
    size_t length = strcspn(names, ", \t");
    const struct choice *found = NULL;
    if (kind_of(names) == kind)
      found = kind == BY_NUMBER ? by_number(choices, count, names) : by_uuid(choices, count, names, length, kind);
    if (!found)
      break;
    for (unsigned i = 0; i < kept_count; i++)
      if (kept[i].gpu == found->gpu && kept[i].mig == found->mig)
        return 0;
    kept[kept_count++] = *found;
    names += strcspn(names, ",");
    if (*names++ != ',')
      break;
  }
  memcpy(choices, kept, kept_count * sizeof *kept);
  return kept_count;
}

/* Fill devices with what this process sees; return how many there are. */
static unsigned find_devices(void) {
  static struct choice choices[SIM_GPU_LIMIT * 8];
  const struct sim_gpu *gpus[SIM_GPU_LIMIT];
  const char *names = getenv("CUDA_VISIBLE_DEVICES");
  unsigned count = 0, kept = 0;
  for (unsigned i = 0; i < simulated.gpu_count; i++)
    gpus[i] = &simulated.gpus[i];
  put_in_order(gpus, simulated.gpu_count);
  for (unsigned i = 0; i < simulated.gpu_count; i++)
    count += devices_of(gpus[i], &choices[count]);
  if (names)
    count = keep_named(names, choices, count);
  /* A process sees one MIG device at most, and none beside it. */
  for (unsigned i = 0; i < count && !kept; i++)
    if (choices[i].mig) {
      choices[0] = choices[i];
      kept = 1;
    }
  count = kept ? 1 : count;
  for (unsigned i = 0; i < count; i++)
    devices[i] = (struct device){.gpu = choices[i].gpu, .mig = choices[i].mig};
  return count;
}
