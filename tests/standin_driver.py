"""A stand-in libcuda.so.1 of a made-up host, for tests without root and without device nodes.

Functions of the C library by which it looks at the machine are replaced by others that know a
made-up list of nodes and another directory for /.
"""

from pathlib import Path

from nvgraft_cli.simulate import stubs
from nvgraft_cli.simulate.standins import build, data
from nvgraft_specs import gallery
from nvgraft_specs.models.host import Host, load_host
from nvgraft_specs.models.host_gpus import Gpu, MigDevice, Topology

#: NODES is a list of PATH=ERRNO; a node that is not in it does not exist. FILES is a directory that
#: stands for /.
SOURCE = """
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int open_in_list(const char *path, int flags) {
  const char *nodes = getenv("NODES");
  size_t length = strlen(path);
  for (const char *at = nodes; at && *at; at = strchr(at, ' ') ? strchr(at, ' ') + 1 : "")
    if (!strncmp(at, path, length) && at[length] == '=') {
      errno = atoi(at + length + 1);
      return errno ? -1 : dup(2);
    }
  errno = ENOENT;
  return -1;
}

static const char *moved(const char *path, char *place) {
  snprintf(place, 4096, "%s%s", getenv("FILES"), path);
  return place;
}

static FILE *fopen_moved(const char *path, const char *mode) {
  char place[4096];
  return fopen(moved(path, place), mode);
}

static int access_moved(const char *path, int mode) {
  char place[4096];
  return access(moved(path, place), mode);
}

#define open open_in_list
#define fopen fopen_moved
#define access access_moved
#include "cuda.c"
"""

#: The nodes of every container with GPUs, without a driver behind (ENXIO).
ALL_NODES = dict.fromkeys(("/dev/nvidiactl", "/dev/nvidia-uvm"), 6)


def variables(nodes: dict[str, int], files: str = "/nonexistent") -> dict[str, str]:
    """Return the environment by which a stand-in knows its nodes, and what stands for /."""
    return {"NODES": " ".join(f"{name}={error}" for name, error in nodes.items()), "FILES": files}


def uuid(kind: str, number: int) -> str:
    """Return the UUID of a GPU or MIG device, which begins with its number."""
    return f"{kind}-{number:08x}-1111-2222-3333-444444444444"


def gpu(number: int, **changes: object) -> Gpu:
    """Return an H100 with its minor number, PCI bus and name made from ``number``."""
    first = load_host(gallery.path("mig-h100")).nvml.gpus[0]
    changes = {
        "minor": number,
        "uuid": uuid("GPU", number),
        "pci": first.pci.model_copy(update={"bus": 0x10 + number}),
        "model": f"GPU {number}",
        "mig": "disabled",
        "mig_devices": [],
        "profile": "h100-sxm",
    } | changes
    return first.model_copy(update=changes)


def mig_gpu(number: int, count: int) -> Gpu:
    """Return a GPU in MIG mode with ``count`` MIG devices."""
    devices = [
        MigDevice(uuid=uuid("MIG", number * 16 + place), gpu_instance=place, compute_instance=0)
        for place in range(1, count + 1)
    ]
    return gpu(number, mig="enabled", mig_devices=devices)


def library(
    directory: Path, gpus: list[Gpu], topology: Topology | None = None, **changes: object
) -> str:
    """Compile the stand-in of a host with these GPUs; return its path."""
    found = load_host(gallery.path("mig-h100"))
    nvml = found.nvml.model_copy(update={"gpus": gpus} | changes)
    host = Host.model_construct(**{**dict(found), "nvml": nvml, "topology": topology})
    (directory / "test.c").write_text(SOURCE)
    compiler = build.Compiler(
        data.c_source(host), lambda soname: stubs.shared_object(64, "EM_X86_64", soname, (), None)
    )
    path = directory / "libcuda.so.1"
    path.write_bytes(compiler.library(directory / "test.c", "libcuda.so.1"))
    return str(path)
