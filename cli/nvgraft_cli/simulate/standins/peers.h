/* Which GPUs reach each other's memory: what CUDA and NVML say of a pair comes from here. */
#ifndef NVGRAFT_PEERS_H
#define NVGRAFT_PEERS_H

#include <string.h>

#include "driver.h"

/* Return the number of NVLinks between two GPUs, or to switches from both. */
static unsigned links_between(const struct sim_gpu *one, const struct sim_gpu *other) {
  unsigned count = 0;
  for (unsigned i = 0; i < one->nvlink_count; i++)
    count += one->nvlinks[i].end == SIM_LINK_SWITCH
                 ? other->nvlink_count > 0
                 : one->nvlinks[i].gpu == other - simulated.gpus;
  return count;
}

/* Return whether two GPUs are boards of a kind that reach each other over PCIe. The driver allows
 * it between two of one model, on two CPUs too (two L4: NVIDIA/cuda-samples, issue 284), and never
 * between GeForce cards. */
static int are_pcie_peers(const struct sim_gpu *one, const struct sim_gpu *other) {
  enum { BRAND_GEFORCE = 5 };
  return one != other && one->brand != BRAND_GEFORCE && !strcmp(one->name, other->name);
}

/* Return whether one GPU may read and write another's memory. In MIG mode none does. */
static int are_peers(const struct sim_gpu *one, const struct sim_gpu *other) {
  if (one == other || one->mig_mode == 1 || other->mig_mode == 1)
    return 0;
  return links_between(one, other) || are_pcie_peers(one, other);
}

#endif
