/* A stand-in for libcuda.so.1 on simulated hosts: the public driver API, as far as it asks and does
 * not compute.
 *
 * Names, numbers and structures are those of NVIDIA's public headers (cuda.h, cudaTypedefs.h).
 * Which functions answer and which ones refuse is said in functions.def. What the library needs of
 * its container is what the driver's library needs: device nodes that it may open, and a kernel
 * module of its version in /proc. The GPUs are those of the host document (driver.h).
 */
#include "cuda/libcuda.h"

#include "cuda/visible.c"

#include "cuda/initialise.c"

#include "cuda/devices.c"

#include "cuda/contexts.c"

#include "cuda/streams.c"

#include "cuda/functions.c"
