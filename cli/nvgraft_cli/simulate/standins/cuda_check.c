/* cuda-check [-o FILE] [VERSION]: a program that uses CUDA as one that was built with the toolkit of VERSION (13.0) does, up to its first
 * look at the GPUs. It says what it sees and which libcuda.so.1 it has, or fails with CUDA's error. With -o it writes the GPUs to a file, too.
 *
 * The order of the steps is that of the CUDA runtime: load libcuda.so.1, compare versions, initialise, count. */
#include "start.h"

#include <dlfcn.h>
#include <stdio.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void *cuda;

/* Print the file of libcuda.so.1 that is in this process's memory. */
static void tell_library(void) {
  char line[4096 + 128], *path;
  FILE *maps = fopen("/proc/self/maps", "r");
  while (maps && fgets(line, sizeof line, maps))
    if ((path = strchr(line, '/')) && strstr(path, "/libcuda.so")) {
      printf("its libcuda.so.1: %s", path);
      break;
    }
  if (maps)
    fclose(maps);
}

static int fail(int code, const char *text) {
  if (!text) {
    int (*describe)(int, const char **) = (int (*)(int, const char **))dlsym(cuda, "cuGetErrorString");
    if (!describe || describe(code, &text))
      text = code == 34 ? "the library that was loaded is a stub for linking" : "unknown";
  }
  printf("CUDA error %d: %s\n", code, text);
  return 1;
}

/* Return 1000 * major + 10 * minor, as cuDriverGetVersion does. */
static int version_of(const char *text) {
  char *rest;
  unsigned long major = strtoul(text, &rest, 10);
  unsigned long minor = *rest == '.' ? strtoul(rest + 1, NULL, 10) : 0;
  return (int)(1000 * major + 10 * minor);
}

int main(int argc, char **argv) {
  const char *path = NULL;
  if (argc > 2 && !strcmp(argv[1], "-o")) {
    path = argv[2];
    argv += 2;
    argc -= 2;
  }
  cuda = dlopen("libcuda.so.1", RTLD_NOW);
  if (!cuda) {
    printf("cuda-check: %s\n", dlerror());
    return 1;
  }
  int (*init)(unsigned) = (int (*)(unsigned))dlsym(cuda, "cuInit");
  int (*driver_version)(int *) = (int (*)(int *))dlsym(cuda, "cuDriverGetVersion");
  int (*count_devices)(int *) = (int (*)(int *))dlsym(cuda, "cuDeviceGetCount");
  int (*get_device)(int *, int) = (int (*)(int *, int))dlsym(cuda, "cuDeviceGet");
  int (*get_name)(char *, int, int) = (int (*)(char *, int, int))dlsym(cuda, "cuDeviceGetName");
  int version = 0, count = 0, code, device;
  char name[256];
  FILE *file = NULL;
  if (!init || !driver_version || !count_devices || !get_device || !get_name) {
    printf("cuda-check: libcuda.so.1 has no driver API\n");
    return 1;
  }
  if ((code = driver_version(&version)))
    return fail(code, NULL);
  if (argc > 1 && version < version_of(argv[1]))
    return fail(35, "CUDA driver version is insufficient for CUDA runtime version");
  if ((code = init(0)) || (code = count_devices(&count)))
    return fail(code, NULL);
  if (path && !(file = fopen(path, "w"))) {
    printf("cuda-check: %s: %s\n", path, strerror(errno));
    return 1;
  }
  for (int i = 0; i < count; i++) {
    if ((code = get_device(&device, i)) || (code = get_name(name, sizeof name, device)))
      return fail(code, NULL);
    printf("CUDA device %d: %s\n", i, name);
    if (file)
      fprintf(file, "%s\n", name);
  }
  tell_library();
  return count == 0;
}
