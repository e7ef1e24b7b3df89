/* The stand-in for libnvidia-ml.so.1: NVML over the simulated driver (driver.h).
 *
 * Names, numbers and structures are those of NVIDIA's public nvml.h. What programs ask is answered
 * here; build.py gives every other name of the simulated branch to nvml_not_supported().
 */
#include "access.h"
#include "peers.h"

#include "nvml/abi.h"

#include "nvml/session.c"

#include "nvml/devices.c"
#include "nvml/readings.c"
#include "nvml/errors.c"
#include "nvml/topology.c"
#include "nvml/fields.c"
#include "nvml/mig.c"
#include "nvml/events.c"
#include "nvml/export_table.c"
