/* The simulated driver as data: what the stand-ins of a simulated host answer from.
 *
 * build.py compiles each stand-in with one more file, made from the host document by data.py and included before the
 * source: it defines the two objects that this header declares at its end. Nothing here is logic.
 *
 * Rules for all fields:
 *   - a number that is not known is SIM_UNKNOWN, a text that is not known is NULL: answer "not supported", never a guess;
 *   - indices of GPUs are those of simulated.gpus, NVML's index order of the host; a container may see fewer;
 *   - units stand in the name: _mib, _bytes, _mhz, _mw (milliwatts), _c (degrees Celsius), _mb_s (10^6 bytes a second).
 */
#ifndef NVGRAFT_DRIVER_H
#define NVGRAFT_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#define SIM_UNKNOWN ((int64_t)-1)
/* More GPUs than this are refused when the data is made. */
#define SIM_GPU_LIMIT 64

/* A value that moves: values[t / step_s % count], where t is the time of day in seconds (time(NULL)), so that all containers of
 * a host agree. A constant has count 1; count 0: not known. No element is SIM_UNKNOWN. */
struct sim_series {
  const int64_t *values;
  unsigned count, step_s;
};

/* One answer of cuDeviceGetAttribute. The rows of a device are sorted by id, a CUdevice_attribute. */
struct sim_attribute {
  int id, value;
};

/* The PCI address of a device; the function is always 0. */
struct sim_pci {
  unsigned domain, bus, device;
};

/* The kinds of the far end of a link: nvmlIntNvLinkDeviceType_t. */
enum sim_link_end { SIM_LINK_GPU = 0, SIM_LINK_CPU = 1, SIM_LINK_SWITCH = 2 };

/* One active NVLink of a GPU. */
struct sim_nvlink {
  unsigned link;               /* its number, from 0 */
  enum sim_link_end end;
  int gpu;                     /* index of the GPU at the far end; -1 unless end is SIM_LINK_GPU */
  struct sim_pci remote;       /* address of the far end */
  int64_t version;             /* nvmlNvlinkVersion_t: 2 is 2.0 (V100), 4 is 3.0, 6 is 4.0, 7 is 5.0 */
  int64_t speed_mb_s;          /* one direction */
};

/* A row of nvmlDeviceGetGpuInstanceProfileInfo (gi) or nvmlGpuInstanceGetComputeInstanceProfileInfo (ci). */
struct sim_gi_profile {
  unsigned number;             /* NVML_GPU_INSTANCE_PROFILE_*, the argument of the query */
  unsigned id;                 /* the id that the answer has and nvidia-smi prints (19 for 1g) */
  const char *name;            /* "1g.10gb", as in nvidia-smi mig -lgip after "MIG " */
  unsigned slices;             /* of compute: the 1 of 1g */
  unsigned instances;          /* at most so many on one GPU */
  unsigned sm_count;
  unsigned copy_engines, decoders, encoders, jpegs, ofas;
  int64_t memory_mib;
  unsigned placement_size;     /* memory slices */
  const unsigned *starts;      /* possible placements */
  unsigned start_count;
};

struct sim_ci_profile {
  unsigned gi_number;          /* of the GPU instance profile in which it is offered */
  unsigned number;             /* NVML_COMPUTE_INSTANCE_PROFILE_* */
  unsigned id;
  const char *name;            /* "1c.3g.40gb", or the GPU instance's own name for the whole of it */
  unsigned slices, instances, sm_count;
};

/* A GPU instance that exists. A placement counts in memory slices. */
struct sim_gpu_instance {
  unsigned id;                 /* NVML's GPU instance id */
  int profile;                 /* index in gi_profiles of the GPU; -1: not known */
  int64_t start, size;         /* placement */
};

/* A MIG device: a compute instance, with the GPU instance that it belongs to. */
struct sim_mig_device {
  const char *uuid;
  const char *name;            /* as NVML and CUDA say it: "NVIDIA H100 80GB HBM3 MIG 1g.10gb" */
  const char *profile_name;    /* "1g.10gb", "1c.3g.40gb" */
  unsigned gpu_instance, compute_instance;   /* ids */
  int gi_profile, ci_profile;  /* indices in the GPU's profile lists; -1: not known */
  int64_t start, size;         /* placement of the compute instance in its GPU instance, in compute slices */
  int64_t gi_slices, ci_slices;
  int64_t memory_mib, memory_reserved_mib, sm_count;
  int64_t copy_engines, decoders, encoders, jpegs, ofas;
  /* The nodes /dev/nvidia-caps/nvidia-capN of the two instances: a container may use the device if it can open both. */
  int64_t gi_capability, ci_capability;
  const struct sim_attribute *attributes;
  unsigned attribute_count;
};

struct sim_gpu {
  unsigned minor;              /* of its node /dev/nvidiaN, which may differ from its index */
  const char *uuid;            /* "GPU-..." */
  const char *name;            /* "NVIDIA H100 80GB HBM3" */
  struct sim_pci pci;
  int64_t pci_device_id;       /* device << 16 | vendor (0x10de), as nvmlPciInfo_t has it */
  int64_t pci_subsystem_id;    /* subsystem << 16 | its vendor */
  int64_t brand;               /* nvmlBrandType_t */
  int64_t architecture;        /* nvmlDeviceArchitecture_t: 5 Volta, 6 Turing, 7 Ampere, 8 Ada, 9 Hopper, 10 Blackwell */
  int compute_major, compute_minor;
  const char *serial, *board_part_number, *vbios;

  int64_t sm_count, cores;     /* multiprocessors; CUDA cores of all of them */
  int64_t memory_mib;          /* as nvidia-smi prints it */
  int64_t memory_reserved_mib; /* by the driver and its firmware, part of memory_mib */
  int64_t bar1_mib;
  int64_t memory_bus_bits;
  struct sim_series memory_used_mib;         /* by programs; free is memory - reserved - used */

  int64_t graphics_max_mhz, sm_max_mhz, memory_max_mhz, video_max_mhz;
  struct sim_series graphics_mhz, sm_mhz, memory_mhz, video_mhz;   /* current */

  int64_t power_default_mw, power_limit_mw, power_min_mw, power_max_mw;
  struct sim_series power_mw;
  struct sim_series temperature_c, memory_temperature_c;
  int64_t slowdown_c, shutdown_c, temperature_max_c;
  int64_t fan_count;           /* 0: passively cooled, nvidia-smi prints N/A */
  struct sim_series fan_percent;
  struct sim_series gpu_percent, memory_percent, encoder_percent, decoder_percent;   /* utilisation */
  int64_t performance_state;   /* 0 for P0 */

  int64_t ecc_mode, ecc_pending;             /* 0 disabled, 1 enabled, SIM_UNKNOWN: no ECC */
  int64_t ecc_corrected, ecc_uncorrected;    /* volatile counters, all locations; failures add to them */
  int64_t ecc_corrected_total, ecc_uncorrected_total;              /* aggregate counters */
  int64_t persistence_mode;    /* 0 disabled, 1 enabled */
  int64_t compute_mode;        /* 0 default, 1 exclusive thread (gone), 2 prohibited, 3 exclusive process */
  int64_t display_active, display_attached;  /* 0 or 1 */

  int64_t pcie_max_gen, pcie_max_width, pcie_gen, pcie_width;      /* highest of GPU and host; current */
  int64_t numa_node;           /* -1 as SIM_UNKNOWN: none */
  const char *cpus;            /* cpus of that node as in /sys: "0-31,64-95" */

  const struct sim_nvlink *nvlinks;
  unsigned nvlink_count;
  /* The nvmlGpuTopologyLevel_t to each GPU: 0 itself or one board, 10 one switch, 20 several, 30 host bridge, 40 one NUMA node,
   * 50 another. simulated.gpu_count numbers; NULL: not known. */
  const int *topology;

  int64_t mig_mode, mig_pending;             /* 0 disabled, 1 enabled, SIM_UNKNOWN: not capable of it */
  const struct sim_gi_profile *gi_profiles;
  unsigned gi_profile_count;
  const struct sim_ci_profile *ci_profiles;
  unsigned ci_profile_count;
  const struct sim_gpu_instance *gpu_instances;
  unsigned gpu_instance_count;
  const struct sim_mig_device *mig_devices;
  unsigned mig_device_count;

  const struct sim_attribute *attributes;
  unsigned attribute_count;
};

struct sim_driver {
  const char *host;            /* name of the host document, for messages of the stand-ins */
  const char *version;         /* of the user-space driver: "570.172.08" */
  int branch;                  /* 570 */
  int cuda;                    /* 12080 is CUDA 12.8 */
  /* The fabric of NVSwitches or an NVLink domain: without its manager CUDA does not start (802). */
  int has_fabric;              /* 0 or 1 */
  int has_dxg;                 /* 0 or 1: WSL2, where /dev/dxg is the one node of all GPUs */
  const struct sim_gpu *gpus;
  unsigned gpu_count;
};

/* Failures on purpose of one GPU. */
struct sim_gpu_failure {
  uint32_t lost;               /* 1: fallen off the bus; NVML 15 for each question about it, CUDA does not count it */
  uint32_t xid;                /* the last Xid, as an event of nvmlEventSetWait; 0: none */
  uint64_t ecc_corrected;      /* added to the counters of the GPU, volatile and aggregate */
  uint64_t ecc_uncorrected;
  uint64_t reserved[2];
};

/* Failures on purpose of the host. The object has no pointers, so that its bytes are those of the file: failures.py changes them in
 * the library files of a running host, in place, where each bind mount shows them and each process that has the library loaded reads
 * them. Read the fields whenever they are needed, and keep no copy. failures.py writes the same layout, little-endian. */
struct sim_failures {
  char magic[16];              /* "nvgraft-failures", once in each file */
  uint32_t nvml_init;          /* nvmlReturn_t with which nvmlInit fails; 0: none (9 not loaded, 18 mismatch, 999 unknown) */
  uint32_t cuda_init;          /* CUresult with which cuInit fails; 0: none (802 fabric, 803 mismatch, 999 unknown) */
  uint32_t nvml_hang_s;        /* nvmlInit takes so long before it answers; 0: no delay */
  uint32_t init_delay_ms;      /* nvmlInit and cuInit take so long: a GPU without persistence mode is initialised each time */
  uint32_t no_persistence;     /* 1: the persistence mode of all GPUs is off, whatever the document says */
  uint32_t fabric_down;        /* 1: the fabric manager does not run: fabric state "in progress" */
  uint32_t reserved[6];
  struct sim_gpu_failure gpus[SIM_GPU_LIMIT];                      /* by index */
};

/* The data file defines this, and sim_failures, a const volatile struct sim_failures in read-only memory. */
static const struct sim_driver simulated;

#endif
