/* MIG: GPU instances, the compute instances in them, and the MIG devices that programs use. */

NVML nvmlDeviceGetMigMode(struct device *device, unsigned *current, unsigned *pending) {
  int code;
  NEED_GPU(device);
  code = put_state(current, device->gpu->mig_mode);
  return code ? code : put_state(pending, known(device->gpu->mig_pending, device->gpu->mig_mode));
}

NVML nvmlDeviceGetMaxMigDeviceCount(struct device *device, unsigned *count) {
  NEED_DEVICE(device);
  return put(count, device->mig || device->gpu->mig_mode == SIM_UNKNOWN ? 0 : 7);
}

NVML nvmlDeviceGetMigDeviceHandleByIndex(struct device *device, unsigned index,
                                         struct device **mig) {
  NEED_GPU(device);
  NEED(mig);
  if (device->gpu->mig_mode == SIM_UNKNOWN)
    return NOT_SUPPORTED;
  for (unsigned i = 0; i < mig_count; i++)
    if (migs[i].gpu == device->gpu && index-- == 0) {
      *mig = &migs[i];
      return SUCCESS;
    }
  return NOT_FOUND;
}

NVML nvmlDeviceIsMigDeviceHandle(struct device *device, unsigned *is_mig) {
  NEED_DEVICE(device);
  return put(is_mig, device->mig != NULL);
}

/* Go on with a handle of a MIG device. */
#define NEED_MIG(device) \
  do { \
    NEED_DEVICE(device); \
    if (!(device)->mig) \
      return INVALID_ARGUMENT; \
  } while (0)

static struct device *find_gpu(const struct sim_gpu *gpu) {
  for (unsigned i = 0; i < gpu_count; i++)
    if (gpus[i].gpu == gpu)
      return &gpus[i];
  return NULL;
}

NVML nvmlDeviceGetDeviceHandleFromMigDeviceHandle(struct device *mig, struct device **device) {
  NEED_MIG(mig);
  NEED(device);
  *device = find_gpu(mig->gpu);
  return SUCCESS;
}

NVML nvmlDeviceGetGpuInstanceId(struct device *device, unsigned *id) {
  NEED_MIG(device);
  return put(id, device->mig->gpu_instance);
}

NVML nvmlDeviceGetComputeInstanceId(struct device *device, unsigned *id) {
  NEED_MIG(device);
  return put(id, device->mig->compute_instance);
}

NVML nvmlDeviceGetAttributes_v2(struct device *device, struct attributes *attributes) {
  const struct sim_mig_device *mig;
  NEED_MIG(device);
  NEED(attributes);
  mig = device->mig;
  if (mig->memory_mib == SIM_UNKNOWN || mig->sm_count == SIM_UNKNOWN)
    return NOT_SUPPORTED;
  *attributes = (struct attributes){
    .sms = (unsigned)mig->sm_count,
    .copy_engines = (unsigned)known(mig->copy_engines, 0),
    .decoders = (unsigned)known(mig->decoders, 0),
    .encoders = (unsigned)known(mig->encoders, 0),
    .jpegs = (unsigned)known(mig->jpegs, 0),
    .ofas = (unsigned)known(mig->ofas, 0),
    .gi_slices = (unsigned)known(mig->gi_slices, 0),
    .ci_slices = (unsigned)known(mig->ci_slices, 0),
    .memory_mib = (u64)mig->memory_mib,
  };
  return SUCCESS;
}

NVML nvmlDeviceGetAttributes(struct device *device, struct attributes *attributes) {
  return nvmlDeviceGetAttributes_v2(device, attributes);
}

/* ---- profiles of GPU instances */

static const struct sim_gi_profile *gi_profile(const struct sim_gpu *gpu, unsigned number) {
  for (unsigned i = 0; i < gpu->gi_profile_count; i++)
    if (gpu->gi_profiles[i].number == number)
      return &gpu->gi_profiles[i];
  return NULL;
}

static const struct sim_gi_profile *gi_profile_by_id(const struct sim_gpu *gpu, unsigned id) {
  for (unsigned i = 0; i < gpu->gi_profile_count; i++)
    if (gpu->gi_profiles[i].id == id)
      return &gpu->gi_profiles[i];
  return NULL;
}

NVML nvmlDeviceGetGpuInstanceProfileInfo(struct device *device, unsigned number,
                                         struct gi_profile *info) {
  const struct sim_gi_profile *profile;
  NEED_GPU(device);
  NEED(info);
  profile = gi_profile(device->gpu, number);
  if (!profile)
    return NOT_SUPPORTED;
  *info = (struct gi_profile){
    .id = profile->id,
    .slices = profile->slices,
    .instances = profile->instances,
    .sms = profile->sm_count,
    .copy_engines = profile->copy_engines,
    .decoders = profile->decoders,
    .encoders = profile->encoders,
    .jpegs = profile->jpegs,
    .ofas = profile->ofas,
    .memory_mib = (u64)profile->memory_mib,
  };
  return SUCCESS;
}

static void put_profile_name(char *name, const char *profile) {
  snprintf(name, TEXT_NAME, "MIG %s", profile);
}

NVML nvmlDeviceGetGpuInstanceProfileInfoV(struct device *device, unsigned number, void *out) {
  struct gi_profile_v2 *v2 = out;
  struct gi_profile_v3 *v3 = out;
  struct gi_profile info;
  int code;
  NEED(out);
  code = nvmlDeviceGetGpuInstanceProfileInfo(device, number, &info);
  if (code)
    return code;
  if (v2->version == STRUCT_VERSION(struct gi_profile_v2, 2)) {
    *v2 = (struct gi_profile_v2){
      v2->version, info.id, info.p2p, info.slices, info.instances, info.sms, info.copy_engines,
      info.decoders, info.encoders, info.jpegs, info.ofas, info.memory_mib, "",
    };
    put_profile_name(v2->name, gi_profile(device->gpu, number)->name);
    return SUCCESS;
  }
  if (v3->version == STRUCT_VERSION(struct gi_profile_v3, 3)) {
    *v3 = (struct gi_profile_v3){
      v3->version, info.id, info.slices, info.instances, info.sms, info.copy_engines,
      info.decoders, info.encoders, info.jpegs, info.ofas, info.memory_mib, "", 0,
    };
    put_profile_name(v3->name, gi_profile(device->gpu, number)->name);
    return SUCCESS;
  }
  return VERSION_MISMATCH;
}

NVML nvmlDeviceGetGpuInstanceProfileInfoByIdV(struct device *device, unsigned id, void *out) {
  const struct sim_gi_profile *profile;
  NEED_GPU(device);
  profile = gi_profile_by_id(device->gpu, id);
  return profile ? nvmlDeviceGetGpuInstanceProfileInfoV(device, profile->number, out)
                 : NOT_SUPPORTED;
}

/* ---- what exists: for users who may configure or monitor MIG, like the driver */

enum { CAPABILITY_CONFIG = 1, CAPABILITY_MONITOR = 2 };

static int may_see_instances(void) {
  return !open_node("/dev/nvidia-caps/nvidia-cap1", O_RDONLY) ||
         !open_node("/dev/nvidia-caps/nvidia-cap2", O_RDONLY);
}

/* Go on with a GPU that has MIG, switched on or not, whose instances the process may see. */
#define NEED_MIG_GPU(device) \
  do { \
    NEED_GPU(device); \
    if ((device)->gpu->mig_mode == SIM_UNKNOWN) \
      return NOT_SUPPORTED; \
    if (!may_see_instances()) \
      return NO_PERMISSION; \
  } while (0)

#define NEED_INSTANCES(device) \
  do { \
    NEED_MIG_GPU(device); \
    if ((device)->gpu->mig_mode != 1) \
      return NOT_SUPPORTED; \
  } while (0)

static int overlaps(const struct sim_gpu_instance *instance, unsigned start, unsigned size) {
  return instance->start != SIM_UNKNOWN && instance->size != SIM_UNKNOWN &&
         start < instance->start + instance->size && instance->start < start + size;
}

static int is_free(const struct sim_gpu *gpu, unsigned start, unsigned size) {
  for (unsigned i = 0; i < gpu->gpu_instance_count; i++)
    if (overlaps(&gpu->gpu_instances[i], start, size))
      return 0;
  return 1;
}

NVML nvmlDeviceGetGpuInstanceRemainingCapacity(struct device *device, unsigned profile_id,
                                               unsigned *count) {
  const struct sim_gi_profile *profile;
  unsigned end = 0, possible = 0;
  NEED_MIG_GPU(device);
  profile = gi_profile_by_id(device->gpu, profile_id);
  if (!profile)
    return NOT_SUPPORTED;
  for (unsigned i = 0; i < profile->start_count && device->gpu->mig_mode == 1; i++)
    if (profile->starts[i] >= end &&
        is_free(device->gpu, profile->starts[i], profile->placement_size)) {
      end = profile->starts[i] + profile->placement_size;
      possible++;
    }
  return put(count, possible < profile->instances ? possible : profile->instances);
}

NVML nvmlDeviceGetGpuInstancePossiblePlacements_v2(struct device *device, unsigned profile_id,
                                                   struct placement *placements,
                                                   unsigned *count) {
  const struct sim_gi_profile *profile;
  unsigned room;
  NEED_MIG_GPU(device);
  NEED(count);
  profile = gi_profile_by_id(device->gpu, profile_id);
  if (!profile)
    return NOT_SUPPORTED;
  room = placements ? *count : 0;
  *count = profile->start_count;
  for (unsigned i = 0; i < profile->start_count && i < room; i++)
    placements[i] = (struct placement){profile->starts[i], profile->placement_size};
  return placements && profile->start_count > room ? INSUFFICIENT_SIZE : SUCCESS;
}

NVML nvmlDeviceGetGpuInstancePossiblePlacements(struct device *device, unsigned profile_id,
                                                struct placement *placements, unsigned *count) {
  return nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, profile_id, placements, count);
}

/* An nvmlGpuInstance_t and an nvmlComputeInstance_t point to the record in the data. */
typedef const struct sim_gpu_instance *gpu_instance;
typedef const struct sim_mig_device *compute_instance;

static struct device *gpu_of_instance(gpu_instance instance) {
  for (unsigned i = 0; i < gpu_count; i++) {
    const struct sim_gpu *gpu = gpus[i].gpu;
    if (gpu->gpu_instance_count && instance >= gpu->gpu_instances &&
        instance < gpu->gpu_instances + gpu->gpu_instance_count)
      return &gpus[i];
  }
  return NULL;
}

static struct device *gpu_of_compute(compute_instance instance) {
  for (unsigned i = 0; i < gpu_count; i++) {
    const struct sim_gpu *gpu = gpus[i].gpu;
    if (gpu->mig_device_count && instance >= gpu->mig_devices &&
        instance < gpu->mig_devices + gpu->mig_device_count)
      return &gpus[i];
  }
  return NULL;
}

static const struct sim_gi_profile *profile_of(gpu_instance instance) {
  return instance->profile < 0 ? NULL
                               : &gpu_of_instance(instance)->gpu->gi_profiles[instance->profile];
}

NVML nvmlDeviceGetGpuInstances(struct device *device, unsigned profile_id, gpu_instance *instances,
                               unsigned *count) {
  unsigned found = 0;
  NEED_INSTANCES(device);
  NEED(instances && count);
  for (unsigned i = 0; i < device->gpu->gpu_instance_count; i++) {
    gpu_instance instance = &device->gpu->gpu_instances[i];
    const struct sim_gi_profile *profile = profile_of(instance);
    if (profile && profile->id == profile_id)
      instances[found++] = instance;
  }
  return put(count, found);
}

NVML nvmlDeviceGetGpuInstanceById(struct device *device, unsigned id, gpu_instance *instance) {
  NEED_INSTANCES(device);
  NEED(instance);
  for (unsigned i = 0; i < device->gpu->gpu_instance_count; i++)
    if (device->gpu->gpu_instances[i].id == id) {
      *instance = &device->gpu->gpu_instances[i];
      return SUCCESS;
    }
  return NOT_FOUND;
}

static int put_placement(struct placement *placement, int64_t start, int64_t size) {
  int code = put(&placement->start, start);
  return code ? code : put(&placement->size, size);
}

NVML nvmlGpuInstanceGetInfo(gpu_instance instance, struct gi_info *info) {
  struct device *device;
  const struct sim_gi_profile *profile;
  NEED_INIT();
  device = gpu_of_instance(instance);
  NEED(device && info);
  profile = profile_of(instance);
  if (!profile)
    return NOT_SUPPORTED;
  info->device = device;
  info->id = instance->id;
  info->profile = profile->id;
  return put_placement(&info->placement, instance->start, instance->size);
}

/* ---- compute instances */

static const struct sim_ci_profile *ci_profile(gpu_instance instance, unsigned number) {
  const struct sim_gpu *gpu = gpu_of_instance(instance)->gpu;
  const struct sim_gi_profile *of = profile_of(instance);
  for (unsigned i = 0; of && i < gpu->ci_profile_count; i++)
    if (gpu->ci_profiles[i].gi_number == of->number && gpu->ci_profiles[i].number == number)
      return &gpu->ci_profiles[i];
  return NULL;
}

static const struct sim_ci_profile *ci_profile_by_id(gpu_instance instance, unsigned id) {
  const struct sim_gpu *gpu = gpu_of_instance(instance)->gpu;
  const struct sim_gi_profile *of = profile_of(instance);
  for (unsigned i = 0; of && i < gpu->ci_profile_count; i++)
    if (gpu->ci_profiles[i].gi_number == of->number && gpu->ci_profiles[i].id == id)
      return &gpu->ci_profiles[i];
  return NULL;
}

/* Compute instances share the engines of their GPU instance. */
NVML nvmlGpuInstanceGetComputeInstanceProfileInfo(gpu_instance instance, unsigned number,
                                                  unsigned engines, struct ci_profile *info) {
  const struct sim_ci_profile *profile;
  const struct sim_gi_profile *of;
  NEED_INIT();
  NEED(gpu_of_instance(instance) && info && engines == 0);
  profile = ci_profile(instance, number);
  of = profile_of(instance);
  if (!profile)
    return NOT_SUPPORTED;
  *info = (struct ci_profile){
    profile->id, profile->slices, profile->instances, profile->sm_count, of->copy_engines,
    of->decoders, of->encoders, of->jpegs, of->ofas,
  };
  return SUCCESS;
}

NVML nvmlGpuInstanceGetComputeInstanceProfileInfoV(gpu_instance instance, unsigned number,
                                                   unsigned engines, struct ci_profile_v3 *out) {
  int v3;
  int code;
  NEED(out);
  v3 = out->version == STRUCT_VERSION(struct ci_profile_v3, 3);
  if (!v3 && out->version != STRUCT_VERSION(struct ci_profile_v2, 2))
    return VERSION_MISMATCH;
  code = nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, number, engines, &out->profile);
  if (code)
    return code;
  put_profile_name(out->name, ci_profile(instance, number)->name);
  if (v3)
    out->capabilities = 0;
  return SUCCESS;
}

static int belongs_to(compute_instance compute, gpu_instance instance) {
  return compute->gpu_instance == instance->id;
}

NVML nvmlGpuInstanceGetComputeInstanceRemainingCapacity(gpu_instance instance,
                                                        unsigned profile_id, unsigned *count) {
  const struct sim_ci_profile *profile;
  const struct sim_gpu *gpu;
  int64_t left;
  NEED_INIT();
  NEED(gpu_of_instance(instance));
  gpu = gpu_of_instance(instance)->gpu;
  profile = ci_profile_by_id(instance, profile_id);
  if (!profile || !profile->slices)
    return NOT_SUPPORTED;
  left = profile_of(instance)->slices;
  for (unsigned i = 0; i < gpu->mig_device_count; i++)
    if (belongs_to(&gpu->mig_devices[i], instance))
      left -= known(gpu->mig_devices[i].ci_slices, 0);
  return put(count, left > 0 ? left / profile->slices : 0);
}

static const struct sim_ci_profile *profile_of_compute(const struct sim_gpu *gpu,
                                                       compute_instance compute) {
  return compute->ci_profile < 0 ? NULL : &gpu->ci_profiles[compute->ci_profile];
}

NVML nvmlGpuInstanceGetComputeInstances(gpu_instance instance, unsigned profile_id,
                                        compute_instance *instances, unsigned *count) {
  const struct sim_gpu *gpu;
  unsigned found = 0;
  NEED_INIT();
  NEED(gpu_of_instance(instance) && instances && count);
  gpu = gpu_of_instance(instance)->gpu;
  for (unsigned i = 0; i < gpu->mig_device_count; i++) {
    compute_instance compute = &gpu->mig_devices[i];
    const struct sim_ci_profile *profile = profile_of_compute(gpu, compute);
    if (belongs_to(compute, instance) && profile && profile->id == profile_id)
      instances[found++] = compute;
  }
  return put(count, found);
}

NVML nvmlGpuInstanceGetComputeInstanceById(gpu_instance instance, unsigned id,
                                           compute_instance *compute) {
  const struct sim_gpu *gpu;
  NEED_INIT();
  NEED(gpu_of_instance(instance) && compute);
  gpu = gpu_of_instance(instance)->gpu;
  for (unsigned i = 0; i < gpu->mig_device_count; i++)
    if (belongs_to(&gpu->mig_devices[i], instance) &&
        gpu->mig_devices[i].compute_instance == id) {
      *compute = &gpu->mig_devices[i];
      return SUCCESS;
    }
  return NOT_FOUND;
}

NVML nvmlComputeInstanceGetInfo_v2(compute_instance compute, struct ci_info *info) {
  struct device *device;
  const struct sim_ci_profile *profile;
  NEED_INIT();
  device = gpu_of_compute(compute);
  NEED(device && info);
  profile = profile_of_compute(device->gpu, compute);
  if (!profile)
    return NOT_SUPPORTED;
  info->device = device;
  info->gpu_instance = NULL;
  for (unsigned i = 0; i < device->gpu->gpu_instance_count; i++)
    if (belongs_to(compute, &device->gpu->gpu_instances[i]))
      info->gpu_instance = (void *)&device->gpu->gpu_instances[i];
  info->id = compute->compute_instance;
  info->profile = profile->id;
  return put_placement(&info->placement, compute->start, compute->size);
}

/* The first version of the structure has no placement. */
NVML nvmlComputeInstanceGetInfo(compute_instance compute, struct ci_info *info) {
  struct ci_info full;
  int code;
  NEED(info);
  code = nvmlComputeInstanceGetInfo_v2(compute, &full);
  memcpy(info, &full, offsetof(struct ci_info, placement));
  return code;
}
