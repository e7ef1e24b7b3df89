/* A stand-in for the queries of the CUDA runtime (libcudart), over the public driver API of
 * libcuda.so.1.
 *
 * The runtime starts with private tables of NVIDIA's driver, which a simulated driver does not
 * have. In a container on a simulated host this library is preloaded (LD_PRELOAD), so that programs
 * that link libcudart dynamically find its functions here first. NVIDIA's libcudart stays loaded:
 * it keeps the registration of kernels and the texts of errors. Queries are answered, and whatever
 * computes fails with 801. Everything that stands between a container and its driver is real: the
 * search for libcuda.so.1, nodes, cgroup, version.
 *
 * Source: the documentation and headers of the CUDA runtime API; runtime/functions.def and
 * runtime/device_prop.def name them.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

#include "runtime/driver.c"

#include "runtime/devices.c"

#include "runtime/properties.c"

#include "runtime/streams.c"

#include "runtime/functions.c"
