"""Failures on purpose of a simulated host: what ``--fail`` names, and how it comes about.

A failure of the driver is a number in ``struct sim_failures``, which each stand-in library has in
its file. It is changed there, in place: a container has the library mounted, and nothing else of
the simulation. A failure of the node is a file that is taken away.
"""

import contextlib
import os
import re
import signal
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from nvgraft_cli.simulate.standins import data
from nvgraft_specs.models import simulated
from nvgraft_specs.models.host import Host
from nvgraft_specs.models.host_gpus import GPU_LIMIT, PciAddress

MAGIC = b"nvgraft-failures"

#: struct sim_failures of driver.h: the magic, six fields, six reserved, and the GPUs.
_HEAD = struct.Struct("<16s12I")
_GPU = struct.Struct("<2I4Q")
_SIZE = _HEAD.size + GPU_LIMIT * _GPU.size
_NVML_UNKNOWN, _NVML_MISMATCH = 999, 18
_CUDA_FABRIC, _CUDA_MISMATCH = 802, 803
#: Seconds for which nvmlInit of a host that hangs does not answer, unless the failure says it.
_HANG_S = 3600
#: Milliseconds that the driver needs for each GPU that is initialised anew, and at most.
_SLOW_MS, _SLOWEST_MS = 1500, 20_000
#: The Xid of a GPU that has fallen off the bus.
_XID_LOST = 79
_XID_LIMIT = 1000
#: Errors that a GPU with ``ecc`` has counted.
_ECC_CORRECTED, _ECC_UNCORRECTED = 14, 2

#: What can fail; `nvgraft simulate --help` says what each is. Those of one GPU take @GPU.
KINDS = (
    "nvml-init",
    "nvml-hang",
    "driver-mismatch",
    "lost",
    "xid",
    "ecc",
    "missing-node",
    "missing-library",
    "no-uvm",
    "slow-start",
    "fabric-manager-down",
)
_OF_A_GPU = frozenset(("lost", "xid", "ecc", "missing-node"))
_WITH_VALUE = frozenset(("nvml-init", "nvml-hang", "slow-start", "xid"))
#: Failures that only the stand-in libraries can show.
_IN_LIBRARIES = frozenset(
    ("nvml-init", "nvml-hang", "lost", "xid", "ecc", "slow-start", "fabric-manager-down")
)
_NUMBER = re.compile(r"[0-9]{1,6}")
_FORM = re.compile(rf"([a-z-]+)(?:=({_NUMBER.pattern}))?(?:@([!-~]{{1,80}}))?")

_KERNEL_LOG = "/dev/kmsg"
PROC_VERSION = "/proc/driver/nvidia/version"
#: The name of fabric manager's process, as the kernel shows it (15 bytes).
FABRIC_MANAGER = "nv-fabricmanage"


class UnknownFailure(ValueError):
    """A failure that there is not, or that the host cannot have: cause and fix, in one line."""


class HostFailure(NamedTuple):
    """One failure. ``gpu`` is the index of the GPU that has it, 0 for one of the whole host."""

    kind: str
    value: int | None = None
    gpu: int = 0


def parse(text: str, host: Host) -> HostFailure:
    """Return the failure that a text such as ``xid=31@1`` names.

    :raises UnknownFailure: there is no such failure, or the host cannot have it.
    """
    found = _FORM.fullmatch(text)
    name, _, number = text.partition("@")[0].partition("=")
    if name in _WITH_VALUE and number and _NUMBER.fullmatch(number) is None:
        raise UnknownFailure(f"{name}={number}: not a number of at most six digits | change it")
    if found is None or found.group(1) not in KINDS:
        raise UnknownFailure(f"there is no failure {text!r} | name one of {', '.join(KINDS)}")
    kind, value, gpu = found.groups()
    if value is not None and kind not in _WITH_VALUE:
        raise UnknownFailure(f"{kind} takes no value | write {kind}{'@' + gpu if gpu else ''}")
    if kind == "xid" and not 0 < int(value or 0) < _XID_LIMIT:
        raise UnknownFailure("xid needs the number of an Xid | write xid=79@0, for example")
    if gpu is not None and kind not in _OF_A_GPU:
        raise UnknownFailure(f"{kind} is a failure of the whole host | leave out @{gpu}")
    index = _index(gpu or "0", host) if kind in _OF_A_GPU else 0
    _check_possible(kind, index, host)
    return HostFailure(kind, None if value is None else int(value), index)


def _index(gpu: str, host: Host) -> int:
    gpus = host.nvml.gpus
    if gpu.isdecimal() and int(gpu) < len(gpus):
        return int(gpu)
    for index, one in enumerate(gpus):
        if one.uuid == gpu:
            return index
    there = f"0 to {len(gpus) - 1}" if gpus else "it has none"
    raise UnknownFailure(
        f"the host has no GPU {gpu} | name a GPU by its index ({there}) or its UUID"
    )


def _check_possible(kind: str, index: int, host: Host) -> None:
    if kind == "ecc" and simulated.values_of(host.nvml.gpus[index]).get("ecc") is None:
        model = host.nvml.gpus[index].model
        raise UnknownFailure(
            f"GPU {index}, {model}, has no ECC | choose a GPU with ECC, or state ecc in its values"
        )
    if kind == "fabric-manager-down" and not data.has_fabric(host):
        raise UnknownFailure(
            "the host has no NVSwitches, which need fabric manager | choose a host with NVSwitches"
        )
    wanted = {
        "missing-node": f"/dev/nvidia{host.nvml.gpus[index].minor}" if host.nvml.gpus else "",
        "no-uvm": "/dev/nvidia-uvm",
        "driver-mismatch": PROC_VERSION,
    }.get(kind)
    if wanted is not None and wanted not in host.files:
        raise UnknownFailure(f"the host has no {wanted} | choose a host that has it")
    if kind == "missing-library" and not list(_libraries(host, data.CUDA)):
        raise UnknownFailure("the host has no libcuda.so.1 | choose a host that has it")


def record(failures: Sequence[HostFailure], host: Host, before: bytes = b"") -> bytes:
    """Return the bytes of ``struct sim_failures`` with these failures.

    :param before: the bytes of failures that the host has already.
    """
    fields = list(_HEAD.unpack_from(before)) if before else [MAGIC, *[0] * 12]
    gpus = [
        list(_GPU.unpack_from(before, _HEAD.size + number * _GPU.size)) if before else [0] * 6
        for number in range(GPU_LIMIT)
    ]
    for kind, value, index in failures:
        gpu = gpus[index]
        if kind == "nvml-init":
            fields[1] = _NVML_UNKNOWN if value is None else value
        elif kind == "nvml-hang":
            fields[3] = _HANG_S if value is None else value
        elif kind == "driver-mismatch":
            fields[1:3] = _NVML_MISMATCH, _CUDA_MISMATCH
        elif kind == "slow-start":
            needed = _SLOW_MS * len(host.nvml.gpus) if value is None else value * 1000
            fields[4] = min(needed, _SLOWEST_MS)
            fields[5] = 1
        elif kind == "fabric-manager-down":
            fields[2], fields[6] = _CUDA_FABRIC, 1
        elif kind == "ecc":
            gpu[2:4] = _ECC_CORRECTED, _ECC_UNCORRECTED
        elif kind in {"lost", "xid"}:
            gpu[1] = value or _XID_LOST
            gpu[0] |= int(gpu[1] == _XID_LOST)
    return _HEAD.pack(*fields) + b"".join(_GPU.pack(*gpu) for gpu in gpus)


def apply(failures: Sequence[HostFailure], host: Host) -> None:
    """Make failures come about on the simulated host that is the current root.

    :raises UnknownFailure: the stand-in libraries have to show one, and there are none.
    :raises OSError: a file cannot be changed.
    """
    kinds = {failure.kind for failure in failures}
    changed = 0
    for path in _libraries(host, data.NVML, data.CUDA):
        changed += _rewrite_record(path, lambda before: record(failures, host, before))
    if not changed and kinds & _IN_LIBRARIES:
        raise UnknownFailure(
            f"{min(kinds & _IN_LIBRARIES)} needs stand-in libraries, and this simulated host has"
            " none | install a C compiler (gcc), simulate a host of this machine's architecture,"
            " and leave out --no-nvml"
        )
    for failure in failures:
        _change_node(failure, host)


def clear(host: Host) -> None:
    """Take back all failures that stand in the libraries of the simulated host that is the current
    root, as a driver that is loaded anew.

    :raises OSError: a file cannot be changed.
    """
    for path in _libraries(host, data.NVML, data.CUDA):
        _rewrite_record(path, lambda _before: record((), host))


def change_cuda(host: Host, old: int, new: int) -> None:
    """Let cuInit, if it ends with ``old``, end with ``new``, on the simulated host that is the
    current root; 0: as its node and module are.

    :raises OSError: a file cannot be changed.
    """

    def change(before: bytes) -> bytes:
        fields = list(_HEAD.unpack_from(before))
        fields[2] = new if fields[2] == old else fields[2]
        return _HEAD.pack(*fields) + before[_HEAD.size :]

    for path in _libraries(host, data.CUDA):
        _rewrite_record(path, change)


def _libraries(host: Host, *sonames: str) -> Iterator[str]:
    """Yield the paths of the stand-ins with these SONAMEs, on the simulated host."""
    root = host.root.rstrip("/")
    for path in host.files:
        if data.library_of(path, host) in sonames:
            yield root + path


def _rewrite_record(path: str, change: Callable[[bytes], bytes]) -> bool:
    """Change the failures in a stand-in library; return False if the file has none of them.

    The file stays the same one, so that bind mounts and running programs see the change.

    :param change: returns the new bytes for the present ones.
    """
    with contextlib.suppress(FileNotFoundError), open(path, "r+b") as file:
        content = file.read()
        place = content.find(MAGIC)
        if place >= 0:
            os.pwrite(file.fileno(), change(content[place : place + _SIZE]), place)
            return True
    return False


def _change_node(failure: HostFailure, host: Host) -> None:
    """Take away what the node lacks with a failure, or change it."""
    kind = failure.kind
    if kind in {"lost", "xid"}:
        _log_xid(failure.value or _XID_LOST, host.nvml.gpus[failure.gpu].pci)
    elif kind == "missing-node":
        _remove(f"/dev/nvidia{host.nvml.gpus[failure.gpu].minor}")
    elif kind == "missing-library":
        for path in _libraries(host, data.CUDA):
            _remove(path)
    elif kind == "no-uvm":
        for path in ("/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"):
            _remove(path)
        _rewrite("/proc/devices", r"^ *[0-9]+ nvidia-uvm\n", "")
    elif kind == "driver-mismatch":
        version = host.nvml.driver_version
        _rewrite(PROC_VERSION, rf"\b{re.escape(version)}\b", _other_version(version))
    elif kind == "slow-start":
        for path in host.files:
            if path.endswith("/nvidia-persistenced/socket"):
                _remove(host.root.rstrip("/") + path)
    elif kind == "fabric-manager-down":
        for path in host.files:
            if path.endswith("/nvidia-fabricmanager/socket"):
                _remove(host.root.rstrip("/") + path)
        _end_fabric_manager()


def _log_xid(number: int, pci: PciAddress) -> None:
    """Add the driver's message to the kernel's log, of which a simulated host has its own."""
    address = f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}"
    with open(_KERNEL_LOG, "a", encoding="ascii") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(
            f"3,0,0,-;NVRM: Xid (PCI:{address}): {number}, pid='<unknown>', name=<unknown>\n"
        )


def _other_version(version: str) -> str:
    """Return a version of the same driver branch that is not ``version``."""
    branch, _, rest = version.partition(".")
    minor = re.match(r"[0-9]+", rest)
    earlier = max(int(minor.group()) - 1, 0) if minor else 0
    other = f"{branch}.{earlier:02d}"
    return other if other != version else f"{branch}.{earlier + 1:02d}"


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _rewrite(path: str, pattern: str, replacement: str) -> None:
    """Replace text in a file, in place: other mounts show the same file."""
    with open(path, "r+", encoding="utf-8", errors="surrogateescape") as file:
        text = re.sub(pattern, replacement, file.read(), flags=re.MULTILINE)
        file.seek(0)
        file.write(text)
        file.truncate()


def _end_fabric_manager() -> None:
    for process in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{process}/comm", encoding="utf-8") as file:
            if file.read().strip() == FABRIC_MANAGER:
                os.kill(int(process), signal.SIGKILL)
