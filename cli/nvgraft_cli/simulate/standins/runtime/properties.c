/* cudaGetDeviceProperties, whose structure has a layout for each of three symbol versions.
 *
 * CUDA 11 (728 bytes) and CUDA 12 in its old function, CUDA 12 (1032 bytes,
 * cudaGetDeviceProperties_v2), CUDA 13 (1008 bytes). */

enum kind { BYTES, INT, SIZE };

/* What a member is filled from, if not from attributes. */
enum { ZERO = 0, NAME = -1, UUID = -2, TOTAL_MEMORY = -3 };

static const struct property {
  enum kind kind;
  unsigned count;
  unsigned from, to; /* the first and the last layout that have it */
  int attributes[3]; /* cudaDeviceAttr of each element */
} properties[] = {
#define PROPERTY(name, kind, count, from, to, ...) {kind, count, from, to, {__VA_ARGS__}},
#include "runtime/device_prop.def"
#undef PROPERTY
};

/* Fill one member at its place. What the driver does not know stays 0. */
static void fill(const struct property *property, char *place, int number) {
  static const size_t sizes[] = {1, sizeof(int), sizeof(size_t)};
  memset(place, 0, property->count * sizes[property->kind]);
  switch (property->attributes[0]) {
  case ZERO:
    return;
  case NAME:
    driver.cuDeviceGetName(place, (int)property->count, number);
    return;
  case UUID:
    driver.cuDeviceGetUuid_v2(place, number);
    return;
  case TOTAL_MEMORY:
    driver.cuDeviceTotalMem_v2((size_t *)place, number);
    return;
  }
  for (unsigned i = 0; i < property->count; i++) {
    int value = 0;
    driver.cuDeviceGetAttribute(&value, property->attributes[i], number);
    if (property->kind == SIZE)
      ((size_t *)place)[i] = (size_t)value;
    else
      ((int *)place)[i] = value;
  }
}

static int properties_in(unsigned layout, char *structure, int number) {
  static const size_t alignments[] = {1, sizeof(int), sizeof(size_t)};
  size_t offset = 0;
  NEED_POINTER(structure);
  int error = is_device(number);
  if (error)
    return result(error);
  for (unsigned i = 0; i < sizeof properties / sizeof *properties; i++) {
    const struct property *property = &properties[i];
    size_t size = alignments[property->kind];
    if (layout < property->from || layout > property->to)
      continue;
    offset = (offset + size - 1) / size * size;
    fill(property, structure + offset, number);
    offset += property->count * size;
  }
  return SUCCESS;
}

/* Each version is a symbol of its own. The default one is for programs that look the name up at run
 * time. */
#define VERSION(function, name) __asm__(".symver " #function ", " name)
EXPORT int properties_11(void *structure, int number) {
  return properties_in(11, structure, number);
}
EXPORT int properties_12_old(void *structure, int number) {
  return properties_in(11, structure, number);
}
EXPORT int properties_13(void *structure, int number) {
  return properties_in(runtime_version() < 13000 ? 11 : 13, structure, number);
}
VERSION(properties_11, "cudaGetDeviceProperties@libcudart.so.11.0");
VERSION(properties_12_old, "cudaGetDeviceProperties@libcudart.so.12");
VERSION(properties_13, "cudaGetDeviceProperties@@libcudart.so.13");
EXPORT int cudaGetDeviceProperties_v2(void *structure, int number) {
  return properties_in(12, structure, number);
}
