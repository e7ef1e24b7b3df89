"""The stand-in for the queries of the CUDA runtime (``standins/cudart.c``).

It is no part of a driver, so no simulated host has it. A demonstration mounts it into its container
and preloads it there, outside of the hook.
"""

import os

from nvgraft_cli.simulate import stubs
from nvgraft_cli.simulate.standins import build

#: File name and SONAME.
NAME = "libnvgraft-cudart.so.1"


def library() -> bytes:
    """Compile the library for this machine.

    :raises nvgraft_cli.simulate.standins.build.CannotCompile: there is no compiler, or it failed.
    """
    machine = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}[os.uname().machine]
    compiler = build.Compiler("", lambda soname: stubs.shared_object(64, machine, soname, (), None))
    versions = build.SOURCES / "runtime/versions.map"
    return compiler.library(build.SOURCES / "cudart.c", NAME, versions=versions)
