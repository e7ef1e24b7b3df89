/* What every stand-in does before it answers: recognise a real driver, and open device nodes.
 *
 * Only functions that glibc 2.17 has are used, in the versions of that release: stat() is not
 * among them when a stand-in is built with glibc 2.33 or newer, access() is.
 */
#ifndef NVGRAFT_ACCESS_H
#define NVGRAFT_ACCESS_H

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"

#define EXPORT __attribute__((visibility("default")))

/* Programs that must not take a stand-in for a driver look for this symbol. */
EXPORT const char nvgraft_standin[] = "nvgraft stand-in, not an NVIDIA driver";

/* Return whether the kernel has a real nvidia module. Containers see the host's /proc/modules, and
 * /sys where it is mounted; either is enough. */
static int real_module_is_loaded(void) {
  char line[256];
  int found = access("/sys/module/nvidia", F_OK) == 0;
  FILE *modules = found ? NULL : fopen("/proc/modules", "re");
  while (modules && !found && fgets(line, sizeof line, modules))
    found = strncmp(line, "nvidia ", 7) == 0;
  if (modules)
    fclose(modules);
  return found;
}

/* Return whether the stand-in must refuse because of a real driver. The first refusal of a process
 * is explained in one line on stderr. */
static int refuses_beside_driver(const char *library) {
  enum { NOT_LOOKED, ALONE, REFUSED };
  static int state;
  int known = __atomic_load_n(&state, __ATOMIC_RELAXED);
  if (known == NOT_LOOKED) {
    known = real_module_is_loaded() ? REFUSED : ALONE;
    if (__atomic_exchange_n(&state, known, __ATOMIC_RELAXED) == NOT_LOOKED && known == REFUSED)
      fprintf(stderr,
              "nvgraft: this %s is a stand-in of the simulated host %s, and the nvidia kernel"
              " module is loaded | use the driver's own library\n",
              library, simulated.host);
  }
  return known == REFUSED;
}

/* Open a device node of the driver and close it again. Return 0 if the process may use it, else the
 * errno. There is no driver behind a simulated node: ENXIO and ENODEV come after all checks of
 * permissions and of the device cgroup. */
static int open_node(const char *path, int flags) {
  int descriptor = open(path, flags | O_CLOEXEC);
  if (descriptor < 0)
    return errno == ENXIO || errno == ENODEV ? 0 : errno;
  close(descriptor);
  return 0;
}

#define DXG "/dev/dxg"

/* Return 0 if the process may use the node without which there is no driver, else the errno. */
static int open_control_node(void) {
  return open_node(simulated.has_dxg ? DXG : "/dev/nvidiactl", O_RDWR);
}

/* Return 0 if the process may use the node of a GPU, else the errno. */
static int open_gpu_node(const struct sim_gpu *gpu) {
  char path[32];
  if (simulated.has_dxg)
    return open_node(DXG, O_RDWR);
  snprintf(path, sizeof path, "/dev/nvidia%u", gpu->minor);
  return open_node(path, O_RDWR);
}

/* Return 0 if the process may use a MIG device, else the errno: the nodes of both of its instances
 * can be opened. An instance whose node is not known is not guarded. */
static int open_mig_nodes(const struct sim_mig_device *mig) {
  const int64_t capabilities[] = {mig->gi_capability, mig->ci_capability};
  for (unsigned i = 0; i < 2; i++) {
    char path[64];
    int error;
    if (capabilities[i] == SIM_UNKNOWN)
      continue;
    snprintf(path, sizeof path, "/dev/nvidia-caps/nvidia-cap%lld", (long long)capabilities[i]);
    error = open_node(path, O_RDONLY);
    if (error)
      return error;
  }
  return 0;
}

#endif
