/* cuInit, versions, and the names of errors. */
#include <time.h>

/* The process that has called cuInit with success: CUDA does not work in its children. 0: none has.
 */
static pid_t owner;

static int initialised(void) {
  if (refuses_beside_driver(LIBRARY))
    return NOT_INITIALIZED;
  return __atomic_load_n(&owner, __ATOMIC_ACQUIRE) == getpid() ? SUCCESS : NOT_INITIALIZED;
}

/* Return whether the kernel module has this library's version, by the text that each container has
 * in /proc. Without one: yes. */
static int module_has_this_version(void) {
  char line[512], *rest;
  int found = 0, any = 0;
  FILE *file = fopen("/proc/driver/nvidia/version", "re");
  if (!file)
    return 1;
  while (!any && fgets(line, sizeof line, file))
    if (!strncmp(line, "NVRM version:", 13)) {
      any = 1;
      for (char *word = strtok_r(line, " \t\n", &rest); word; word = strtok_r(NULL, " \t\n", &rest))
        found |= !strcmp(word, simulated.version);
    }
  fclose(file);
  return found || !any;
}

static void wait_ms(uint32_t milliseconds) {
  struct timespec left = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
  while (nanosleep(&left, &left) && errno == EINTR)
    ;
}

static int start(void) {
  wait_ms(sim_failures.init_delay_ms);
  if (open_control_node())
    return NO_DEVICE;
  if (sim_failures.cuda_init)
    return (int)sim_failures.cuda_init;
  if (!module_has_this_version())
    return SYSTEM_DRIVER_MISMATCH;
  if (!simulated.has_dxg && open_node("/dev/nvidia-uvm", O_RDWR))
    return UNKNOWN;
  device_count = find_devices();
  return device_count ? SUCCESS : NO_DEVICE;
}

EXPORT int cuInit(unsigned flags) {
  int result = SUCCESS;
  if (refuses_beside_driver(LIBRARY))
    return NOT_INITIALIZED;
  if (flags)
    return INVALID_VALUE;
  pthread_mutex_lock(&lock);
  if (!owner) {
    result = start();
    if (!result)
      __atomic_store_n(&owner, getpid(), __ATOMIC_RELEASE);
  } else if (owner != getpid()) {
    result = NOT_INITIALIZED;
  }
  pthread_mutex_unlock(&lock);
  return result;
}

EXPORT int cuDriverGetVersion(int *version) {
  if (refuses_beside_driver(LIBRARY))
    return NOT_INITIALIZED;
  NEED_POINTER(version);
  *version = simulated.cuda;
  return SUCCESS;
}

static const struct {
  int number;
  const char *name, *text;
} errors[] = {
#define ERROR(number, name, text) {number, #name, text},
#include "cuda/errors.def"
#undef ERROR
};

/* Return the row of an error, or the number of rows for an unknown one. */
static unsigned row_of(int error) {
  unsigned row = 0;
  while (row < sizeof errors / sizeof *errors && errors[row].number != error)
    row++;
  return row;
}

EXPORT int cuGetErrorName(int error, const char **name) {
  NEED_POINTER(name);
  unsigned row = row_of(error);
  *name = row < sizeof errors / sizeof *errors ? errors[row].name : NULL;
  return *name ? SUCCESS : INVALID_VALUE;
}

EXPORT int cuGetErrorString(int error, const char **text) {
  NEED_POINTER(text);
  unsigned row = row_of(error);
  *text = row < sizeof errors / sizeof *errors ? errors[row].text : NULL;
  return *text ? SUCCESS : INVALID_VALUE;
}

/* In the stand-in for the CUDA runtime, where it is preloaded: return whether code belongs to a
 * runtime whose functions are replaced, so that its failure does not matter. */
extern int nvgraft_replaces(const void *code) __attribute__((weak, visibility("default")));

/* Private tables of NVIDIA's libraries are not imitated. The CUDA runtime, which asks for them at
 * its start, fails then. */
EXPORT int cuGetExportTable(const void **table, const void *id) {
  static char told;
  (void)id;
  NEED_POINTER(table);
  *table = NULL;
  int matters = !nvgraft_replaces || !nvgraft_replaces(__builtin_return_address(0));
  if (matters && !__atomic_test_and_set(&told, __ATOMIC_RELAXED))
    fprintf(
        stderr, "nvgraft: cuGetExportTable: a simulated driver has no private interface, so that"
                " NVIDIA's CUDA runtime ends in error 500 or 103"
                " | see nvgraft explain-error 'CUDA error 103'\n"
    );
  return NOT_FOUND;
}
