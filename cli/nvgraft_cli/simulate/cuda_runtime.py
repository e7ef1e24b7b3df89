"""Stand-ins that an image has, not a host: for the queries of the CUDA runtime, a program that uses
CUDA, and what images bring by mistake.

The runtime (``standins/cudart.c``) is not part of a driver. A demonstration puts it into its
container and preloads it there, outside of the hook.
"""

import os

from nvgraft_cli.simulate import stubs
from nvgraft_cli.simulate.standins import build
from nvgraft_specs import names


def library() -> bytes:
    """Compile the library for this machine.

    :raises nvgraft_cli.simulate.standins.build.CannotCompile: there is no compiler, or it failed.
    """
    versions = build.SOURCES / "runtime/versions.map"
    return _compiler().library(build.SOURCES / "cudart.c", names.STANDIN_RUNTIME, versions=versions)


def program(interpreter: str) -> bytes:
    """Compile ``cuda-check``, a program that asks CUDA for its GPUs.

    :param interpreter: the path of the dynamic loader in the image.
    :raises nvgraft_cli.simulate.standins.build.CannotCompile: there is no compiler, or it failed.
    """
    return _compiler().program(build.SOURCES / "cuda_check.c", interpreter)


def stub() -> bytes:
    """Compile a libcuda.so.1 as CUDA's toolkit has it for linking alone: all calls fail with 34.

    :raises nvgraft_cli.simulate.standins.build.CannotCompile: there is no compiler, or it failed.
    """
    return _compiler().library(build.SOURCES / "stub.c", "libcuda.so.1")


def other_driver(error: int = 0) -> tuple[str, bytes]:
    """Compile a libcuda.so.1 that is of no node's version, without GPUs; return its version too.

    :param error: with which cuInit fails; 0: with 803, as soon as it has compared versions.
    :raises nvgraft_cli.simulate.standins.build.CannotCompile: there is no compiler, or it failed.
    """
    version = "580.0.0"
    fields = f'.host = "image", .version = "{version}", .cuda = 13000'
    data = f"""\
#include "driver.h"
static const struct sim_driver simulated = {{{fields}}};
static const volatile struct sim_failures sim_failures = {{.cuda_init = {error}}};
"""
    return version, _compiler(data).library(build.SOURCES / "cuda.c", "libcuda.so.1")


def _compiler(data: str = "") -> build.Compiler:
    machine = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}[os.uname().machine]
    return build.Compiler(data, lambda soname: stubs.shared_object(64, machine, soname, (), None))
