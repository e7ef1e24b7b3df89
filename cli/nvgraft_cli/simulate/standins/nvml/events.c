/* Events: only a failure on purpose makes one, an Xid of a GPU. */

enum { EVENT_SET_LIMIT = 16 };
static const u64 EVENT_XID = 8, EVENTS_SUPPORTED = 0x1f; /* ECC, P-state, Xid, clock */

struct event_set {
  int used;
  u64 types[SIM_GPU_LIMIT];       /* registered, by the GPU's index */
  unsigned reported[SIM_GPU_LIMIT]; /* the Xid that was told already */
};

static struct event_set event_sets[EVENT_SET_LIMIT];

static int is_event_set(const struct event_set *set) {
  return set >= event_sets && set < event_sets + EVENT_SET_LIMIT && set->used;
}

NVML nvmlEventSetCreate(struct event_set **set) {
  NEED_INIT();
  NEED(set);
  for (unsigned i = 0; i < EVENT_SET_LIMIT; i++)
    if (!__atomic_exchange_n(&event_sets[i].used, 1, __ATOMIC_ACQ_REL)) {
      *set = &event_sets[i];
      return SUCCESS;
    }
  return UNKNOWN_ERROR;
}

NVML nvmlEventSetFree(struct event_set *set) {
  NEED_INIT();
  NEED(is_event_set(set));
  memset(set, 0, sizeof *set);
  return SUCCESS;
}

NVML nvmlDeviceGetSupportedEventTypes(struct device *device, u64 *types) {
  NEED_DEVICE(device);
  NEED(types);
  *types = EVENTS_SUPPORTED;
  return SUCCESS;
}

NVML nvmlDeviceRegisterEvents(struct device *device, u64 types, struct event_set *set) {
  NEED_DEVICE(device);
  NEED(is_event_set(set));
  if (types & ~EVENTS_SUPPORTED)
    return NOT_SUPPORTED;
  set->types[device->gpu - simulated.gpus] |= types;
  return SUCCESS;
}

/* Take the next event of a set; return whether there is one. */
static int next_event(struct event_set *set, struct event *event) {
  for (unsigned i = 0; i < gpu_count; i++) {
    size_t place = (size_t)(gpus[i].gpu - simulated.gpus);
    unsigned xid = sim_failures.gpus[place].xid;
    if (!(set->types[place] & EVENT_XID) || set->reported[place] == xid)
      continue;
    set->reported[place] = xid;
    *event = (struct event){&gpus[i], EVENT_XID, xid, ~0u, ~0u};
    if (xid)
      return 1;
  }
  return 0;
}

NVML nvmlEventSetWait_v2(struct event_set *set, struct event *event, unsigned timeout_ms) {
  enum { STEP_MS = 100 };
  NEED_INIT();
  NEED(is_event_set(set) && event);
  while (!next_event(set, event)) {
    unsigned step = timeout_ms < STEP_MS ? timeout_ms : STEP_MS;
    if (!step)
      return TIMEOUT;
    wait_ms(step);
    timeout_ms -= step;
  }
  return SUCCESS;
}

NVML nvmlEventSetWait(struct event_set *set, struct event *event, unsigned timeout_ms) {
  struct event found;
  int code = nvmlEventSetWait_v2(set, &found, timeout_ms);
  if (code == SUCCESS)
    memcpy(event, &found, offsetof(struct event, gpu_instance));
  return code;
}
