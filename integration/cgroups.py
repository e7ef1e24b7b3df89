"""Cgroups for tests: their mounts, and device programs on cgroup v2 as a runtime attaches them."""

import os
import struct
from pathlib import Path

from nvgraft.apply import bpf
from nvgraft.plan.actions import AllowDevice, Why
from nvgraft.system import syscalls


def device(major: int, minor: int, access: str = "rw") -> AllowDevice:
    """Return the permission to open a device."""
    return AllowDevice(major, minor, Why("", "test", "test"), access)


ZERO = device(1, 5)
DENY_ALL = struct.pack("<BBhiBBhi", 0xB7, 0, 0, 0, 0x95, 0, 0, 0)
ALLOW_ALL = struct.pack("<BBhiBBhi", 0xB7, 0, 0, 1, 0x95, 0, 0, 0)
#: The program of a runtime: everything is denied but /dev/zero.
FILTER = bpf.allow_code((ZERO,)) + DENY_ALL

_PROG_ATTACH, _LINK_CREATE, _CGROUP_DEVICE = 8, 28, 6
ALLOW_MULTI = 2


def hierarchy(version: int) -> Path:
    """Return the first mount of this machine that holds device rules of ``version``."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split(" ")
        if fields[-3] == ("cgroup" if version == 1 else "cgroup2") and (
            version == 2 or "devices" in fields[-1].split(",")
        ):
            return Path(fields[4])
    raise AssertionError(f"no cgroup v{version}")


def attributes(layout: str, *values: int) -> bytearray:
    """Return a ``union bpf_attr`` of packed ``values``."""
    return bytearray(struct.pack(layout, *values).ljust(128, b"\0"))


def attach(cgroup_fd: int, code: bytes, flags: int = ALLOW_MULTI) -> None:
    """Attach the device program ``code`` to a cgroup v2."""
    program = bpf.load(code)
    syscalls.bpf(_PROG_ATTACH, attributes("=IIII", cgroup_fd, program, _CGROUP_DEVICE, flags))
    os.close(program)


def attach_link(cgroup_fd: int, code: bytes) -> int:
    """Attach the device program ``code`` by a BPF link, which lasts as long as the returned
    descriptor.
    """
    program = bpf.load(code)
    link = syscalls.bpf(_LINK_CREATE, attributes("=IIII", program, cgroup_fd, _CGROUP_DEVICE, 0))
    os.close(program)
    return link
