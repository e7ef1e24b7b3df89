"""The stand-ins that answer on a simulated host: NVML, CUDA and nvidia-smi.

They are compiled from the host's document, and kept for the next start of the same host.
"""

import base64
import os
import re
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple

from nvgraft.system import keep, kept
from nvgraft_cli.simulate import stubs
from nvgraft_cli.simulate.standins import build, data, entry_points
from nvgraft_specs.models.host import Host, RegularFile

#: This machine's name of an architecture -> that of ELF files.
MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
SMI = "nvidia-smi"

_INTERPRETERS = {
    "x86_64": "/lib64/ld-linux-x86-64.so.2",
    "aarch64": "/lib/ld-linux-aarch64.so.1",
}
#: The kind of the documents that have what was compiled.
_KIND = "standins"


class _StandIn(NamedTuple):
    """What is compiled, with the facts of the host's own file.

    :ivar name: its SONAME, or the program's name.
    :ivar interp: the interpreter of a program; "" for a library.
    """

    name: str
    source: str
    needed: Sequence[str]
    exports: build.Exports | None = None
    interp: str = ""

    def compile(self, compiler: build.Compiler) -> bytes:
        """Return the file.

        :raises CannotCompile: the compiler failed.
        """
        source = build.SOURCES / self.source
        if self.interp:
            return compiler.program(source, self.interp, self.needed)
        return compiler.library(source, self.name, self.needed, self.exports)


def stand_ins(host: Host) -> dict[str, bytes]:
    """Return the stand-ins of a host: SONAME, or nvidia-smi -> content. A host without a driver has
    none.

    :raises CannotCompile: there is no compiler, it failed, or they would not answer here.
    """
    if machine_of(host) is None:
        return {}
    _refuse_another_machine(host)
    _refuse_beside_driver()
    machine = MACHINES[os.uname().machine]
    compiler = build.Compiler(
        data.c_source(host),
        lambda soname: stubs.shared_object(64, machine, soname, (), None),
    )
    wanted = _wanted(host)
    key = [*kept.code(build.__file__, stubs.__file__), compiler.fingerprint, repr(wanted)]
    made = _unpacked(kept.read(_KIND, key))
    if made is None:
        with ThreadPoolExecutor() as pool:  # which wait for compilers
            contents = pool.map(lambda one: one.compile(compiler), wanted)
            made = {one.name: content for one, content in zip(wanted, contents, strict=True)}
        keep.write(_KIND, key, _packed(made))
    return made


def _wanted(host: Host) -> list[_StandIn]:
    """Return what is compiled for a host, first what takes longest."""
    needed = {
        soname: entry.elf.needed
        for path, entry in host.files.items()
        if (soname := data.library_of(path, host)) and isinstance(entry, RegularFile) and entry.elf
    }
    branch = data.branch(host.nvml.driver_version)
    nvml = build.Exports(
        entry_points.read(entry_points.NVML, branch), otherwise="nvml_not_supported"
    )
    recorded = [
        entry.elf
        for path, entry in host.files.items()
        if isinstance(entry, RegularFile) and entry.elf and os.path.basename(path) == SMI
    ]
    interp = next((elf.interp for elf in recorded if elf.interp), _INTERPRETERS[os.uname().machine])
    return [
        _StandIn(data.CUDA, "cuda.c", needed.get(data.CUDA, ())),
        _StandIn(data.NVML, "nvml.c", needed.get(data.NVML, ()), nvml),
        _StandIn(SMI, "nvidia_smi.c", recorded[0].needed if recorded else (), interp=interp),
    ]


def _packed(made: dict[str, bytes]) -> dict[str, str]:
    """Return files as a document has them."""
    return {name: base64.b64encode(zlib.compress(file)).decode() for name, file in made.items()}


def _unpacked(document: Any) -> dict[str, bytes] | None:
    """Return the files of a document of :func:`_packed`; None for none."""
    if document is None:
        return None
    return {name: zlib.decompress(base64.b64decode(text)) for name, text in document.items()}


def machine_of(host: Host) -> str | None:
    """Return the ELF machine of the host's 64-bit driver."""
    elves = (
        entry.elf for entry in host.files.values() if isinstance(entry, RegularFile) and entry.elf
    )
    return next(
        (elf.machine for elf in elves if elf.bits == 64 and elf.machine in MACHINES.values()), None
    )


def _refuse_another_machine(host: Host) -> None:
    """Refuse to compile stand-ins for a driver of another architecture.

    :raises CannotCompile: this machine's compiler makes no files for it.
    """
    own = os.uname().machine
    if machine_of(host) != MACHINES.get(own):
        raise build.CannotCompile(
            f"the host's driver is for {machine_of(host)}, this machine is {own}: the hook reads"
            " the GPUs from the snapshot, NVML has no functions"
        )


def _refuse_beside_driver() -> None:
    """Refuse to compile stand-ins on a machine with a real driver, beside which they do not answer.

    :raises CannotCompile: the nvidia kernel module is loaded.
    """
    modules = ""
    with suppress(FileNotFoundError), open("/proc/modules", encoding="ascii") as file:
        modules = file.read()
    if os.path.exists("/sys/module/nvidia") or re.search(r"^nvidia ", modules, re.MULTILINE):
        raise build.CannotCompile(
            "the nvidia kernel module is loaded, and stand-ins do not answer beside it: the hook"
            " reads the GPUs from the snapshot, NVML has no functions"
        )
