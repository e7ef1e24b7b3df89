/* Structures and numbers of nvml.h that the answers need. The names are ours where nvml.h has long
 * ones; sizes and offsets are those of nvml.h. */

enum {
  SUCCESS = 0,
  UNINITIALIZED = 1,
  INVALID_ARGUMENT = 2,
  NOT_SUPPORTED = 3,
  NO_PERMISSION = 4,
  NOT_FOUND = 6,
  INSUFFICIENT_SIZE = 7,
  DRIVER_NOT_LOADED = 9,
  TIMEOUT = 10,
  GPU_IS_LOST = 15,
  VERSION_MISMATCH = 25,
  UNKNOWN_ERROR = 999,
};

typedef unsigned long long u64;

/* The first member of a versioned structure: its size, and the version in the highest byte. */
#define STRUCT_VERSION(type, version) ((unsigned)(sizeof(type) | (version) << 24))

enum { TEXT_SHORT = 16, TEXT_BUS_ID = 32, TEXT_NAME = 96 };

struct pci_info {
  char bus_id_legacy[TEXT_SHORT];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[TEXT_BUS_ID];
};

struct pci_info_ext {
  unsigned version;
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id, base_class, sub_class;
  char bus_id[TEXT_BUS_ID];
};

struct memory {
  u64 total, free, used;
};

struct memory_v2 {
  unsigned version;
  u64 total, reserved, free, used;
};

struct utilization {
  unsigned gpu, memory;
};

struct temperature_v1 {
  unsigned version;
  int sensor, celsius;
};

struct ecc_counts {
  u64 l1, l2, memory, registers;
};

struct sram_ecc_v1 {
  unsigned version;
  u64 counts[11]; /* aggregate: parity, SEC-DED, corrected; volatile: the same; five buckets */
  unsigned threshold_exceeded;
};

struct row_histogram {
  unsigned max, high, partial, low, none;
};

struct violation_time {
  u64 reference, violation;
};

struct dynamic_states {
  unsigned flags;
  struct {
    unsigned present, percent, increase, decrease;
  } utilization[8];
};

struct process_list_v1 {
  unsigned version, mode, count;
  void *processes;
};

struct branch_info_v1 {
  unsigned version;
  char branch[80];
};

struct fabric_info {
  unsigned char cluster_uuid[16];
  int status;
  unsigned clique;
  unsigned char state;
};

struct fabric_info_v2 {
  unsigned version;
  struct fabric_info info;
  unsigned health_mask;
};

struct fabric_info_v3 {
  unsigned version;
  struct fabric_info info;
  unsigned health_mask;
  unsigned char health_summary;
};

struct conf_compute_state {
  unsigned environment, feature, tools_mode;
};

struct event {
  struct device *device;
  u64 type, data;
  unsigned gpu_instance, compute_instance;
};

struct attributes {
  unsigned sms, copy_engines, decoders, encoders, jpegs, ofas, gi_slices, ci_slices;
  u64 memory_mib;
};

struct placement {
  unsigned start, size;
};

struct gi_profile {
  unsigned id, p2p, slices, instances, sms, copy_engines, decoders, encoders, jpegs, ofas;
  u64 memory_mib;
};

struct gi_profile_v2 {
  unsigned version, id, p2p, slices, instances, sms, copy_engines, decoders, encoders, jpegs, ofas;
  u64 memory_mib;
  char name[TEXT_NAME];
};

struct gi_profile_v3 {
  unsigned version, id, slices, instances, sms, copy_engines, decoders, encoders, jpegs, ofas;
  u64 memory_mib;
  char name[TEXT_NAME];
  unsigned capabilities;
};

struct gi_info {
  struct device *device;
  unsigned id, profile;
  struct placement placement;
};

struct ci_profile {
  unsigned id, slices, instances, sms, copy_engines, decoders, encoders, jpegs, ofas;
};

struct ci_profile_v2 {
  unsigned version;
  struct ci_profile profile;
  char name[TEXT_NAME];
};

struct ci_profile_v3 {
  unsigned version;
  struct ci_profile profile;
  char name[TEXT_NAME];
  unsigned capabilities;
};

struct ci_info {
  struct device *device;
  void *gpu_instance;
  unsigned id, profile;
  struct placement placement;
};

enum { VALUE_DOUBLE, VALUE_UNSIGNED, VALUE_UNSIGNED_LONG, VALUE_U64 };

struct field {
  unsigned id, scope;
  long long timestamp_us, latency_us;
  int type, result;
  union {
    double number;
    unsigned small;
    u64 large;
  } value;
};
