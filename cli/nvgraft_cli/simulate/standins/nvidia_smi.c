/* nvidia-smi of a simulated host: -L, the table, --query-gpu, --version and --help, through the NVML that the loader finds.
 *
 * Words, layout (that of driver 550) and exit codes are those of NVIDIA's program, which exits with the nvmlReturn_t of what failed. Lines
 * that tell whose program this is stand at the end of the table, and on stderr where programs read standard output.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "driver.h"
#include "start.h"

enum {
  INVALID_ARGUMENT = 2,
  NOT_FOUND = 6,
  DRIVER_NOT_LOADED = 9,
  LIBRARY_NOT_FOUND = 12,
  FUNCTION_NOT_FOUND = 13,
  VERSION_MISMATCH = 18,
};

#define MARK "This is nvgraft's nvidia-smi: the GPUs of host \"%s\" are simulated."
#define LINE "+-----------------------------------------------------------------------------------------+"
#define MIG_LINE "+------------------+----------------------------------+-----------+-----------------------+"

typedef void *handle;

/* The beginning of nvmlPciInfo_t, as nvml.h has laid it out since CUDA 9. */
struct pci_info {
  char bus_id_legacy[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};

static void *nvml;

static int missing(void) { return FUNCTION_NOT_FOUND; }

/* Return a function of NVML, or one that fails. */
static void *find(const char *name) {
  void *found = dlsym(nvml, name);
  return found ? found : (void *)missing;
}

#define ASK(name, ...) ((int (*)())find(name))(__VA_ARGS__)

static const char *error_text(int code) {
  const char *(*text)(int) = (const char *(*)(int))dlsym(nvml, "nvmlErrorString");
  return text ? text(code) : "Unknown Error";
}

static int mark(void) { return fprintf(stderr, MARK "\n", simulated.host); }

/* One GPU that was asked for. */
struct gpu {
  unsigned index;
  handle device;
};

static struct gpu gpus[SIM_GPU_LIMIT];
static unsigned gpu_count, all_count;

/* What a question about a GPU is answered with, as text; "[N/A]" in csv and "N/A" in the table if it is not supported. */
static char text[200];

static const char *number(int code, const char *format, double value) {
  if (code)
    return NULL;
  snprintf(text, sizeof text, format, value);
  return text;
}

static const char *words(int code, unsigned value, const char *const *names, unsigned count) {
  return code || value >= count ? NULL : names[value];
}

static const char *const ENABLED[] = {"Disabled", "Enabled"};
static const char *const ON[] = {"Off", "On"};
static const char *const COMPUTE[] = {"Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process"};
static const char *const SHORT_COMPUTE[] = {"Default", "E. Thread", "Prohibited", "E. Process"};

static const char *of_string(handle d, const char *name) {
  return ASK(name, d, text, (unsigned)sizeof text) ? NULL : text;
}

static const char *of_unsigned(handle d, const char *name, const char *format, double factor) {
  unsigned value = 0;
  int code = ASK(name, d, &value);
  return number(code, format, value * factor);
}

static const char *of_mode(handle d, const char *name, int pending) {
  unsigned modes[2] = {0, 0};
  int code = ASK(name, d, &modes[0], &modes[1]);
  return words(code, modes[pending], ENABLED, 2);
}

static const char *of_clock(handle d, const char *name, unsigned clock) {
  unsigned value = 0;
  int code = ASK(name, d, clock, &value);
  return number(code, "%.0f", value);
}

static const char *of_temperature(handle d, unsigned sensor) {
  unsigned value = 0;
  int code = ASK("nvmlDeviceGetTemperature", d, sensor, &value);
  return number(code, "%.0f", value);
}

static const char *of_utilization(handle d, int memory) {
  unsigned rates[2] = {0, 0};
  int code = ASK("nvmlDeviceGetUtilizationRates", d, rates);
  return number(code, "%.0f", rates[memory]);
}

/* which: total, free, used, of nvmlMemory_t. */
static const char *of_memory(handle d, int which) {
  unsigned long long sizes[3] = {0, 0, 0};
  int code = ASK("nvmlDeviceGetMemoryInfo", d, sizes);
  return number(code, "%.0f", (double)(sizes[which] >> 20));
}

static const char *of_reserved_memory(handle d) {
  struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
  } memory = {.version = sizeof memory | 2 << 24}; /* nvmlMemory_v2_t */
  int code = ASK("nvmlDeviceGetMemoryInfo_v2", d, &memory);
  return number(code, "%.0f", (double)(memory.reserved >> 20));
}

static const char *of_power_limits(handle d, int highest) {
  unsigned limits[2] = {0, 0};
  int code = ASK("nvmlDeviceGetPowerManagementLimitConstraints", d, &limits[0], &limits[1]);
  return number(code, "%.2f", limits[highest] / 1000.0);
}

static const char *of_ecc_errors(handle d, unsigned uncorrected, unsigned aggregate) {
  unsigned long long count = 0;
  int code = ASK("nvmlDeviceGetTotalEccErrors", d, uncorrected, aggregate, &count);
  return number(code, "%.0f", (double)count);
}

static const char *of_pci(handle d, char what) {
  struct pci_info pci;
  memset(&pci, 0, sizeof pci);
  if (ASK("nvmlDeviceGetPciInfo_v3", d, &pci))
    return NULL;
  switch (what) {
  case 'i': snprintf(text, sizeof text, "%s", pci.bus_id); break;
  case 'd': snprintf(text, sizeof text, "0x%04X", pci.domain); break;
  case 'b': snprintf(text, sizeof text, "0x%02X", pci.bus); break;
  case 's': snprintf(text, sizeof text, "0x%02X", pci.device); break;
  case 'p': snprintf(text, sizeof text, "0x%08X", pci.device_id); break;
  case 'u': snprintf(text, sizeof text, "0x%08X", pci.subsystem_id); break;
  }
  return text;
}

static const char *of_capability(handle d) {
  int major = 0, minor = 0;
  if (ASK("nvmlDeviceGetCudaComputeCapability", d, &major, &minor))
    return NULL;
  snprintf(text, sizeof text, "%d.%d", major, minor);
  return text;
}

static const char *of_driver(const char *name) { return ASK(name, text, (unsigned)sizeof text) ? NULL : text; }

static const char *of_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  struct tm *local = localtime(&now.tv_sec);
  size_t length = strftime(text, sizeof text, "%Y/%m/%d %H:%M:%S", local);
  snprintf(text + length, sizeof text - length, ".%03ld", now.tv_nsec / 1000000);
  return text;
}

/* The fields of --query-gpu: their names with aliases, unit and answer. */
struct field {
  const char *names; /* the first is printed */
  const char *unit;
};

static const struct field FIELDS[] = {
  {"timestamp", ""},
  {"driver_version", ""},
  {"count", ""},
  {"name gpu_name", ""},
  {"serial gpu_serial", ""},
  {"uuid gpu_uuid", ""},
  {"pci.bus_id gpu_bus_id", ""},
  {"pci.domain", ""},
  {"pci.bus", ""},
  {"pci.device", ""},
  {"pci.device_id", ""},
  {"pci.sub_device_id", ""},
  {"index", ""},
  {"persistence_mode", ""},
  {"display_active", ""},
  {"vbios_version", ""},
  {"compute_mode", ""},
  {"compute_cap", ""},
  {"pstate", ""},
  {"fan.speed", "%"},
  {"memory.total", "MiB"},
  {"memory.reserved", "MiB"},
  {"memory.used", "MiB"},
  {"memory.free", "MiB"},
  {"utilization.gpu", "%"},
  {"utilization.memory", "%"},
  {"temperature.gpu", ""},
  {"power.management", ""},
  {"power.draw", "W"},
  {"power.limit", "W"},
  {"enforced.power.limit", "W"},
  {"power.default_limit", "W"},
  {"power.min_limit", "W"},
  {"power.max_limit", "W"},
  {"clocks.current.graphics clocks.gr", "MHz"},
  {"clocks.current.sm clocks.sm", "MHz"},
  {"clocks.current.memory clocks.mem", "MHz"},
  {"clocks.current.video clocks.video", "MHz"},
  {"clocks.max.graphics clocks.max.gr", "MHz"},
  {"clocks.max.sm", "MHz"},
  {"clocks.max.memory clocks.max.mem", "MHz"},
  {"ecc.mode.current", ""},
  {"ecc.mode.pending", ""},
  {"ecc.errors.corrected.volatile.total", ""},
  {"ecc.errors.uncorrected.volatile.total", ""},
  {"ecc.errors.corrected.aggregate.total", ""},
  {"ecc.errors.uncorrected.aggregate.total", ""},
  {"mig.mode.current", ""},
  {"mig.mode.pending", ""},
  {"pcie.link.gen.current", ""},
  {"pcie.link.gen.gpucurrent", ""},
  {"pcie.link.gen.max", ""},
  {"pcie.link.width.current", ""},
  {"pcie.link.width.max", ""},
};

#define IS(name) (!strncmp(field, name, sizeof name - 1) && (field[sizeof name - 1] == ' ' || !field[sizeof name - 1]))

static const char *answer(const char *field, const struct gpu *gpu) {
  handle d = gpu->device;
  if (IS("timestamp")) return of_now();
  if (IS("driver_version")) return of_driver("nvmlSystemGetDriverVersion");
  if (IS("count")) return number(0, "%.0f", all_count);
  if (IS("name")) return of_string(d, "nvmlDeviceGetName");
  if (IS("serial")) return of_string(d, "nvmlDeviceGetSerial");
  if (IS("uuid")) return of_string(d, "nvmlDeviceGetUUID");
  if (IS("pci.bus_id")) return of_pci(d, 'i');
  if (IS("pci.domain")) return of_pci(d, 'd');
  if (IS("pci.bus")) return of_pci(d, 'b');
  if (IS("pci.device")) return of_pci(d, 's');
  if (IS("pci.device_id")) return of_pci(d, 'p');
  if (IS("pci.sub_device_id")) return of_pci(d, 'u');
  if (IS("index")) return number(0, "%.0f", gpu->index);
  if (IS("persistence_mode") || IS("display_active") || IS("power.management") || IS("compute_mode")) {
    unsigned value = 0;
    int code = IS("persistence_mode") ? ASK("nvmlDeviceGetPersistenceMode", d, &value)
             : IS("display_active")   ? ASK("nvmlDeviceGetDisplayActive", d, &value)
             : IS("power.management") ? ASK("nvmlDeviceGetPowerManagementMode", d, &value)
                                      : ASK("nvmlDeviceGetComputeMode", d, &value);
    return IS("compute_mode") ? words(code, value, COMPUTE, 4) : words(code, value, ENABLED, 2);
  }
  if (IS("vbios_version")) return of_string(d, "nvmlDeviceGetVbiosVersion");
  if (IS("compute_cap")) return of_capability(d);
  if (IS("pstate")) return of_unsigned(d, "nvmlDeviceGetPerformanceState", "P%.0f", 1);
  if (IS("fan.speed")) return of_unsigned(d, "nvmlDeviceGetFanSpeed", "%.0f", 1);
  if (IS("memory.total")) return of_memory(d, 0);
  if (IS("memory.reserved")) return of_reserved_memory(d);
  if (IS("memory.free")) return of_memory(d, 1);
  if (IS("memory.used")) return of_memory(d, 2);
  if (IS("utilization.gpu")) return of_utilization(d, 0);
  if (IS("utilization.memory")) return of_utilization(d, 1);
  if (IS("temperature.gpu")) return of_temperature(d, 0);
  if (IS("power.draw")) return of_unsigned(d, "nvmlDeviceGetPowerUsage", "%.2f", 0.001);
  if (IS("power.limit")) return of_unsigned(d, "nvmlDeviceGetPowerManagementLimit", "%.2f", 0.001);
  if (IS("enforced.power.limit")) return of_unsigned(d, "nvmlDeviceGetEnforcedPowerLimit", "%.2f", 0.001);
  if (IS("power.default_limit")) return of_unsigned(d, "nvmlDeviceGetPowerManagementDefaultLimit", "%.2f", 0.001);
  if (IS("power.min_limit")) return of_power_limits(d, 0);
  if (IS("power.max_limit")) return of_power_limits(d, 1);
  if (IS("clocks.current.graphics")) return of_clock(d, "nvmlDeviceGetClockInfo", 0);
  if (IS("clocks.current.sm")) return of_clock(d, "nvmlDeviceGetClockInfo", 1);
  if (IS("clocks.current.memory")) return of_clock(d, "nvmlDeviceGetClockInfo", 2);
  if (IS("clocks.current.video")) return of_clock(d, "nvmlDeviceGetClockInfo", 3);
  if (IS("clocks.max.graphics")) return of_clock(d, "nvmlDeviceGetMaxClockInfo", 0);
  if (IS("clocks.max.sm")) return of_clock(d, "nvmlDeviceGetMaxClockInfo", 1);
  if (IS("clocks.max.memory")) return of_clock(d, "nvmlDeviceGetMaxClockInfo", 2);
  if (IS("ecc.mode.current")) return of_mode(d, "nvmlDeviceGetEccMode", 0);
  if (IS("ecc.mode.pending")) return of_mode(d, "nvmlDeviceGetEccMode", 1);
  if (IS("ecc.errors.corrected.volatile.total")) return of_ecc_errors(d, 0, 0);
  if (IS("ecc.errors.uncorrected.volatile.total")) return of_ecc_errors(d, 1, 0);
  if (IS("ecc.errors.corrected.aggregate.total")) return of_ecc_errors(d, 0, 1);
  if (IS("ecc.errors.uncorrected.aggregate.total")) return of_ecc_errors(d, 1, 1);
  if (IS("mig.mode.current")) return of_mode(d, "nvmlDeviceGetMigMode", 0);
  if (IS("mig.mode.pending")) return of_mode(d, "nvmlDeviceGetMigMode", 1);
  if (IS("pcie.link.gen.current") || IS("pcie.link.gen.gpucurrent")) return of_unsigned(d, "nvmlDeviceGetCurrPcieLinkGeneration", "%.0f", 1);
  if (IS("pcie.link.gen.max")) return of_unsigned(d, "nvmlDeviceGetMaxPcieLinkGeneration", "%.0f", 1);
  if (IS("pcie.link.width.current")) return of_unsigned(d, "nvmlDeviceGetCurrPcieLinkWidth", "%.0f", 1);
  if (IS("pcie.link.width.max")) return of_unsigned(d, "nvmlDeviceGetMaxPcieLinkWidth", "%.0f", 1);
  return NULL;
}

/* Return the word for the number that a function answers; N/A if it is not supported. */
static const char *word(handle d, const char *name, const char *const *names, unsigned count) {
  unsigned value = 0;
  int code = ASK(name, d, &value);
  const char *found = words(code, value, names, count);
  return found ? found : "N/A";
}

/* Return the answer to a field that exists, or N/A, for the table. */
static const char *shown(const char *field, const struct gpu *gpu, char *buffer, size_t size, const char *suffix) {
  const char *value = answer(field, gpu);
  snprintf(buffer, size, "%s%s", value ? value : "N/A", value ? suffix : "");
  return buffer;
}

static const struct field *field_of(const char *name) {
  for (unsigned i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++) {
    const char *at = FIELDS[i].names;
    for (size_t length; *at; at += length + (at[length] == ' ')) {
      length = strcspn(at, " ");
      if (strlen(name) == length && !strncmp(at, name, length))
        return &FIELDS[i];
    }
  }
  return NULL;
}

static const struct field *asked[64];
static unsigned asked_count;

/* Find the fields of a list, in which an empty item counts as none; return 0, or an exit code. */
static int read_fields(char *list) {
  for (char *rest = list, *name; (name = strsep(&rest, ","));) {
    if (!*name)
      continue;
    const struct field *field = field_of(name);
    if (!field || asked_count == sizeof asked / sizeof *asked) {
      printf("Field \"%s\" is not a valid field to query.\n\n", name);
      mark();
      return INVALID_ARGUMENT;
    }
    asked[asked_count++] = field;
  }
  return 0;
}

static int query(int header, int units) {
  if (!gpu_count) {
    puts("No devices were found");
    return NOT_FOUND;
  }
  for (unsigned i = 0; header && i < asked_count; i++) {
    printf("%s%.*s", i ? ", " : "", (int)strcspn(asked[i]->names, " "), asked[i]->names);
    if (units && *asked[i]->unit)
      printf(" [%s]", asked[i]->unit);
  }
  if (header)
    putchar('\n');
  for (unsigned g = 0; g < gpu_count; g++) {
    for (unsigned i = 0; i < asked_count; i++) {
      const char *value = answer(asked[i]->names, &gpus[g]);
      printf("%s%s", i ? ", " : "", value ? value : "[N/A]");
      if (value && units && *asked[i]->unit)
        printf(" %s", asked[i]->unit);
    }
    putchar('\n');
  }
  fflush(stdout);
  mark();
  return 0;
}

/* Call visit for each MIG device of a GPU. */
static unsigned each_mig(const struct gpu *gpu, void (*visit)(const struct gpu *, unsigned, handle)) {
  unsigned limit = 0, count = 0;
  handle mig;
  if (ASK("nvmlDeviceGetMaxMigDeviceCount", gpu->device, &limit))
    return 0;
  for (unsigned i = 0; i < limit; i++)
    if (!ASK("nvmlDeviceGetMigDeviceHandleByIndex", gpu->device, i, &mig)) {
      if (visit)
        visit(gpu, i, mig);
      count++;
    }
  return count;
}

/* Return the profile of a MIG device: its name says it last. */
static const char *profile_of(handle mig) {
  static char name[200];
  if (ASK("nvmlDeviceGetName", mig, name, (unsigned)sizeof name))
    return "";
  char *found = strstr(name, " MIG ");
  return found ? found + 5 : "";
}

static void list_mig(const struct gpu *gpu, unsigned index, handle mig) {
  char uuid[100] = "";
  (void)gpu;
  ASK("nvmlDeviceGetUUID", mig, uuid, (unsigned)sizeof uuid);
  printf("  MIG %-11s Device %2u: (UUID: %s)\n", profile_of(mig), index, uuid);
}

static int list(void) {
  char name[100], uuid[100];
  int result = 0;
  if (!all_count)
    puts("No devices found.");
  for (unsigned i = 0; i < all_count; i++) {
    struct gpu gpu = {i, NULL};
    int code = ASK("nvmlDeviceGetHandleByIndex_v2", i, &gpu.device);
    if (code) {
      printf("Unable to determine the device handle for gpu %u: %s%s\n\n\n", i, error_text(code),
             code == 15 ? ".  Reboot the system to recover this GPU" : "");
      result = code;
      continue;
    }
    printf("GPU %u: %s (UUID: %s)\n", i, shown("name", &gpu, name, sizeof name, ""), shown("uuid", &gpu, uuid, sizeof uuid, ""));
    each_mig(&gpu, list_mig);
  }
  fflush(stdout);
  mark();
  return result;
}

static void table_row(const struct gpu *gpu) {
  char a[100], b[100], c[100], d[100], e[100];
  unsigned mig = 0, pending = 0;
  int no_mig = ASK("nvmlDeviceGetMigMode", gpu->device, &mig, &pending);
  shown("name", gpu, a, sizeof a, "");
  printf("| %3u  %-30.30s %-3s |", gpu->index, a, word(gpu->device, "nvmlDeviceGetPersistenceMode", ON, 2));
  shown("pci.bus_id", gpu, a, sizeof a, "");
  printf("%19s %-3s |", a, word(gpu->device, "nvmlDeviceGetDisplayActive", ON, 2));
  shown("ecc.mode.current", gpu, a, sizeof a, "");
  if (!strcmp(a, "Enabled"))
    strcpy(a, "On");
  else if (!strcmp(a, "Disabled"))
    strcpy(a, "Off");
  if (!strcmp(a, "On") && (no_mig || !mig))
    shown("ecc.errors.uncorrected.volatile.total", gpu, a, sizeof a, "");
  printf("%21s |\n", a);
  unsigned draw = 0, limit = 0;
  int no_draw = ASK("nvmlDeviceGetPowerUsage", gpu->device, &draw);
  int no_limit = ASK("nvmlDeviceGetEnforcedPowerLimit", gpu->device, &limit);
  snprintf(d, sizeof d, no_draw ? "N/A" : "%.0fW", draw / 1000.0);
  snprintf(e, sizeof e, no_limit ? "N/A" : "%.0fW", limit / 1000.0);
  printf("| %3s%6s%6s%16s / %5s |", shown("fan.speed", gpu, a, sizeof a, "%"), shown("temperature.gpu", gpu, b, sizeof b, "C"),
         shown("pstate", gpu, c, sizeof c, ""), d, e);
  printf("%11s / %9s |", shown("memory.used", gpu, a, sizeof a, "MiB"), shown("memory.total", gpu, b, sizeof b, "MiB"));
  if (!no_mig && mig)
    strcpy(a, "N/A");
  else
    shown("utilization.gpu", gpu, a, sizeof a, "%");
  printf("%8s %12s |\n", a, word(gpu->device, "nvmlDeviceGetComputeMode", SHORT_COMPUTE, 4));
  printf("|                                         |                        |%21s |\n", no_mig ? "N/A" : ENABLED[mig != 0]);
  puts("+-----------------------------------------+------------------------+----------------------+");
}

static void table_mig(const struct gpu *gpu, unsigned index, handle mig) {
  unsigned gi = 0, ci = 0;
  struct {
    unsigned sms, copies, decoders, encoders, jpegs, ofas, gi_slices, ci_slices;
    unsigned long long memory_mb;
  } has;
  char used[40], total[40];
  struct gpu device = {index, mig};
  memset(&has, 0, sizeof has);
  ASK("nvmlDeviceGetGpuInstanceId", mig, &gi);
  ASK("nvmlDeviceGetComputeInstanceId", mig, &ci);
  ASK("nvmlDeviceGetAttributes_v2", mig, &has);
  shown("memory.used", &device, used, sizeof used, "MiB");
  shown("memory.total", &device, total, sizeof total, "MiB");
  printf("| %2u   %2u  %2u  %2u  |%19s / %8s    |%3u      0 |%3u %3u  %3u  %3u  %3u |\n", gpu->index, gi, ci, index, used, total, has.sms,
         has.copies, has.encoders, has.decoders, has.ofas, has.jpegs);
  unsigned long long bar1[3] = {0, 0, 0}; /* total, free, used */
  int no_bar1 = ASK("nvmlDeviceGetBAR1MemoryInfo", mig, bar1);
  snprintf(used, sizeof used, no_bar1 ? "N/A" : "%lluMiB", bar1[2] >> 20);
  snprintf(total, sizeof total, no_bar1 ? "N/A" : "%lluMiB", bar1[0] >> 20);
  printf("|                  |%21s / %8s  |           |                       |\n" MIG_LINE "\n", used, total);
}

static int table(void) {
  char driver[40] = "N/A", date[60], cuda[24];
  int version = 0;
  unsigned mode, pending, in_mig_mode = 0, devices = 0;
  time_t now = time(NULL);
  if (!gpu_count) {
    puts("No devices were found");
    return NOT_FOUND;
  }
  ASK("nvmlSystemGetDriverVersion", driver, (unsigned)sizeof driver);
  ASK("nvmlSystemGetCudaDriverVersion_v2", &version);
  snprintf(cuda, sizeof cuda, "%d.%d", version / 1000, version % 1000 / 10);
  strftime(date, sizeof date, "%a %b %e %H:%M:%S %Y", localtime(&now));
  // Since 610 the driver's version is called that of its kernel module, as in public output of 610.43.02.
  printf(atoi(simulated.version) < 610 ? "%s       \n" LINE "\n| NVIDIA-SMI %-23sDriver Version: %-15sCUDA Version: %-9s|\n"
                                       : "%s       \n" LINE "\n| NVIDIA-SMI %-23sKMD Version: %-14sCUDA UMD Version: %-9s|\n",
         date, simulated.version, driver, cuda);
  puts("|-----------------------------------------+------------------------+----------------------+\n"
       "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |\n"
       "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |\n"
       "|                                         |                        |               MIG M. |\n"
       "|=========================================+========================+======================|");
  for (unsigned i = 0; i < gpu_count; i++) {
    table_row(&gpus[i]);
    if (!ASK("nvmlDeviceGetMigMode", gpus[i].device, &mode, &pending))
      in_mig_mode |= mode;
  }
  if (in_mig_mode) {
    puts("\n" LINE "\n"
         "| MIG devices:                                                                            |\n" MIG_LINE "\n"
         "| GPU  GI  CI  MIG |                     Memory-Usage |        Vol|      Shared           |\n"
         "|      ID  ID  Dev |                       BAR1-Usage | SM     Unc| CE ENC DEC OFA JPG    |\n"
         "|                  |                                  |        ECC|                       |\n"
         "|==================+==================================+===========+=======================|");
    for (unsigned i = 0; i < gpu_count; i++)
      devices += each_mig(&gpus[i], table_mig);
    if (!devices)
      puts("|  No MIG devices found                                                                   |\n" LINE);
  }
  puts("                                                                                         \n" LINE "\n"
       "| Processes:                                                                              |\n"
       "|  GPU   GI   CI        PID   Type   Process name                              GPU Memory |\n"
       "|        ID   ID                                                               Usage      |\n"
       "|=========================================================================================|\n"
       "|  No running processes found                                                             |\n" LINE);
  printf(MARK "\n", simulated.host);
  return 0;
}

static int print_version(void) {
  char version[60];
  int cuda = 0;
  printf("NVIDIA-SMI version  : %s\n", simulated.version);
  snprintf(version, sizeof version, "%s", simulated.version);
  char *dot = strchr(version, '.');
  if (dot && (dot = strchr(dot + 1, '.')))
    *dot = 0;
  printf("NVML version        : %s\n", version);
  printf("DRIVER version      : %s\n", ASK("nvmlSystemGetDriverVersion", version, (unsigned)sizeof version) ? "N/A" : version);
  ASK("nvmlSystemGetCudaDriverVersion_v2", &cuda);
  printf("CUDA Version        : %d.%d\n" MARK "\n", cuda / 1000, cuda % 1000 / 10, simulated.host);
  return 0;
}

static int help(void) {
  printf("NVIDIA System Management Interface -- v%s, of a simulated host\n\n"
         "nvidia-smi [OPTION1 [ARG1]] [OPTION2 [ARG2]] ...\n\n"
         "    (without options)           Table of the GPUs and their MIG devices.\n"
         "    -h,   --help                Print usage information and exit.\n"
         "          --version             Print version information and exit.\n"
         "    -L,   --list-gpus           Display a list of GPUs, and of their MIG devices.\n"
         "    -i,   --id=                 GPUs by index, UUID or PCI address, separated by commas.\n"
         "          --query-gpu=          Fields of each GPU, separated by commas; --help-query-gpu lists them.\n"
         "          --format=             csv, and noheader, nounits, separated by commas.\n\n" MARK "\n",
         simulated.version, simulated.host);
  return 0;
}

static int help_query(void) {
  puts("List of valid properties to query for the switch \"--query-gpu\":\n");
  for (unsigned i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++) {
    const char *other = strchr(FIELDS[i].names, ' ');
    printf("\"%.*s\"", (int)strcspn(FIELDS[i].names, " "), FIELDS[i].names);
    if (other)
      printf(" or \"%s\"", other + 1);
    puts("\n");
  }
  printf(MARK "\n", simulated.host);
  return 0;
}

static int fail(int code) {
  if (code == LIBRARY_NOT_FOUND)
    puts("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the NVIDIA Display Driver is properly "
         "installed and present in your system.\nPlease also try adding directory that contains libnvidia-ml.so to your system PATH.");
  else if (code == DRIVER_NOT_LOADED)
    puts("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is "
         "installed and running.\n");
  else
    printf("Failed to initialize NVML: %s\n", code == FUNCTION_NOT_FOUND ? "Function Not Found" : error_text(code));
  fflush(stdout);
  mark();
  return code > 255 ? 255 : code;
}

/* Load and start NVML; return 0, or what fails. Its version has to be that of this program, as NVIDIA's program asks. */
static int start(void) {
  char version[100];
  nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  if (!nvml)
    return LIBRARY_NOT_FOUND;
  int code = ASK("nvmlInit_v2");
  if (!code && !ASK("nvmlSystemGetNVMLVersion", version, (unsigned)sizeof version) && !strstr(version, simulated.version))
    return VERSION_MISMATCH;
  return code;
}

/* Return whether an item of -i names a GPU. */
static int is_named(const char *item, const struct gpu *gpu) {
  char index[20], uuid[100], bus_id[100];
  snprintf(index, sizeof index, "%u", gpu->index);
  shown("uuid", gpu, uuid, sizeof uuid, "");
  shown("pci.bus_id", gpu, bus_id, sizeof bus_id, "");
  return !strcmp(item, index) || !strcmp(item, uuid) || !strcasecmp(item, bus_id) || (strlen(bus_id) > 4 && !strcasecmp(item, bus_id + 4));
}

/* Find the GPUs that ids names, or all; return 0, or the nvmlReturn_t of one that does not answer. */
static int select_gpus(const char *ids) {
  for (unsigned i = 0; i < all_count && i < SIM_GPU_LIMIT; i++) {
    struct gpu gpu = {i, NULL};
    int code = ASK("nvmlDeviceGetHandleByIndex_v2", i, &gpu.device), named = !ids;
    if (code) {
      printf("Unable to determine the device handle for GPU%u: %s%s\n\n\n", i, error_text(code),
             code == 15 ? ".  Reboot the system to recover this GPU" : "");
      fflush(stdout);
      mark();
      return code;
    }
    char copy[1000], *rest = copy, *item;
    snprintf(copy, sizeof copy, "%s", ids ? ids : "");
    while (ids && (item = strsep(&rest, ",")))
      named |= is_named(item, &gpu);
    if (named)
      gpus[gpu_count++] = gpu;
  }
  return 0;
}

/* Return the value of --name=VALUE, or of --name VALUE in the next argument; NULL if arg is another option. */
static char *value_of(const char *name, const char *letter, char **argv, int *at) {
  char *arg = argv[*at];
  size_t length = strlen(name);
  if (!strncmp(arg, name, length) && arg[length] == '=')
    return arg + length + 1;
  if (!strcmp(arg, name) || (letter && !strcmp(arg, letter)))
    return argv[*at + 1] ? argv[++*at] : "";
  return NULL;
}

static int usage(const char *format, const char *word, int code) {
  printf(format, word);
  fflush(stdout);
  mark();
  return code;
}

int main(int argc, char **argv) {
  char *fields = NULL, *format = NULL, *format_option = NULL, *ids = NULL;
  int wants_list = 0, wants_version = 0, header = 1, units = 1, code;
  for (int i = 1; i < argc; i++)
    if (!strcmp(argv[i], "-h") || !strcmp(argv[i], "--help"))
      return help();
    else if (!strcmp(argv[i], "--help-query-gpu"))
      return help_query();
  code = start();
  if (code)
    return fail(code);
  for (int i = 1; i < argc; i++) {
    char *value, *argument = argv[i];
    if (!strcmp(argv[i], "-L") || !strcmp(argv[i], "--list-gpus"))
      wants_list = 1;
    else if (!strcmp(argv[i], "--version"))
      wants_version = 1;
    else if ((value = value_of("--query-gpu", NULL, argv, &i)))
      fields = value;
    else if ((value = value_of("--format", NULL, argv, &i))) {
      format = value;
      format_option = argument;
    } else if ((value = value_of("--id", "-i", argv, &i)))
      ids = value;
    else
      return usage("ERROR: Option %s is not recognized. Please run 'nvidia-smi -h'.\n\n", argv[i], 255);
  }
  if (format && !fields)
    return usage("ERROR: Option %s is not recognized. Please run 'nvidia-smi -h'.\n\n", format_option, 255);
  if (fields && !format)
    return usage("%s switch is missing. Please run 'nvidia-smi -h' for help.\n\n", "\"--format=\"", INVALID_ARGUMENT);
  if (fields && (code = read_fields(fields)))
    return code;
  int csv = 0;
  for (char *item; format && (item = strsep(&format, ","));) {
    if (!strcmp(item, "csv"))
      csv = 1;
    else if (!strcmp(item, "noheader"))
      header = 0;
    else if (!strcmp(item, "nounits"))
      units = 0;
    else if (*item)
      return usage("Format modifier is not %s.\n", "recognized", INVALID_ARGUMENT);
  }
  if (fields && !csv)
    return usage("Format modifier --format=%s is mandatory.\n", "csv", INVALID_ARGUMENT);
  if (ids && wants_list)
    return usage("ERROR: Option %s is not valid for this command. Please run 'nvidia-smi -h' for help.\n\n", "-i", INVALID_ARGUMENT);
  if (wants_version)
    return print_version();
  ASK("nvmlDeviceGetCount_v2", &all_count);
  if (wants_list)
    return list();
  if ((code = select_gpus(ids)))
    return code;
  return fields ? query(header, units) : table();
}
