"""A recorded host: a document ``nvgraft.host/1`` as a :class:`Host`, which leads to the same
decisions as the live one.

``nvgraft_specs.models.host`` has parsed and checked the document. Only :func:`load_report` checks a
document itself, as far as it is used: a simulated host's copy.
"""

from __future__ import annotations

import errno

from nvgraft.base import files, jsontext
from nvgraft.base._os import os
from nvgraft.base.errors import Refusal
from nvgraft.formats.elf import ElfFacts, NoFacts
from nvgraft.formats.ldcache_entries import entry_from_listing
from nvgraft.formats.tree import Node, Tree
from nvgraft.host.components import Host
from nvgraft.host.gpus import MINORS, DriverReport, Gpu, MigDevice, bus_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: The search path for binaries of a recorded host, whose own environment is unknown.
OFFLINE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

#: Bytes of a simulated host's document; one with 64 GPUs and all their MIG devices has about 400
#: KiB.
_LIMIT = 8 << 20

_NOT_RECORDED = "not recorded in the host snapshot"


class FactsNotRecorded(ValueError):
    """A file whose ELF facts a snapshot does not record."""

    def __init__(self) -> None:
        super().__init__(f"its ELF facts are {_NOT_RECORDED}")


#: Members that belong to some types of entries. In a newer document other types may have members of
#: these names.
_OF_TYPES = {
    "target": ("symlink",),
    "rdev": ("char", "block"),
    "size": ("file",),
    "content": ("file",),
    "elf": ("file",),
    "elf_fault": ("file",),
}


def _member(entry: dict[str, Any], name: str) -> Any:
    return entry.get(name) if entry["type"] in _OF_TYPES[name] else None


class SnapshotTree(Tree):
    """The ``files`` of a host document. A directory that only appears in the path of a file counts
    as recorded.
    """

    def __init__(self, files: dict[str, dict[str, Any]]) -> None:
        self._plain = set()
        self._files = files
        self._nodes: dict[str, Node | None] = {}
        self._names: dict[str, set[str]] = {"/": set()}
        for path in files:
            child = path
            while child != "/":
                parent, _, name = child.rpartition("/")
                names = self._names.setdefault(parent or "/", set())
                if name in names:
                    break
                names.add(name)
                child = parent or "/"

    def lstat(self, path: str) -> Node | None:
        if path not in self._nodes:
            self._nodes[path] = self._node(path)
        return self._nodes[path]

    def _node(self, path: str) -> Node | None:
        entry = self._files.get(path)
        if entry is None:
            return Node("dir", 0o755) if path in self._names else None
        rdev = _member(entry, "rdev")
        return Node(
            entry["type"],
            0o777 if entry["type"] == "symlink" else int(entry["mode"], 8),
            entry.get("uid") or 0,
            entry.get("gid") or 0,
            _member(entry, "target") or "",
            (rdev[0], rdev[1]) if rdev else None,
            _member(entry, "size") or 0,
        )

    def listdir(self, path: str) -> list[str]:
        return sorted(self._names.get(path, ()))

    def read(self, path: str, limit: int) -> bytes:
        entry = self._files.get(path)
        if entry is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        content: str | None = _member(entry, "content")
        if content is None:
            raise OSError(errno.EIO, _NOT_RECORDED, path)
        return content.encode("utf-8", "surrogateescape")

    def elf_record(self, path: str) -> dict[str, Any]:
        """Return the recorded facts of the ELF file at a resolved ``path``; a newer document may
        have more keys.

        :raises OSError: there is no such file.
        :raises NoFacts: it is not an ELF file.
        :raises FactsNotRecorded: its facts are not recorded.
        """
        entry = self._files.get(path)
        if entry is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        facts: dict[str, Any] | None = _member(entry, "elf")
        if facts is None:
            fault = _member(entry, "elf_fault")
            raise NoFacts(fault) if fault else FactsNotRecorded
        return facts

    def elf(self, path: str, *, sections: bool) -> ElfFacts:
        facts = self.elf_record(path)
        tag = facts["abi_tag"]
        return ElfFacts(
            facts["bits"],
            facts["machine"],
            facts["soname"],
            tuple(facts["needed"]),
            (tag[0], tag[1], tag[2]) if tag else None,
            facts.get("interp"),
        )


def driver_report(document: dict[str, Any]) -> DriverReport:
    """Return NVML's answers on the recorded host.

    :raises KeyError, TypeError, ValueError: the document lacks them. :func:`load_report` raises a
        Refusal instead.
    """
    nvml = document["nvml"]
    gpus = []
    for gpu in nvml["gpus"]:
        pci = gpu["pci"]
        migs = tuple(
            MigDevice(
                mig["uuid"],
                mig["gpu_instance"],
                mig["compute_instance"],
                mig.get("profile") or "",
            )
            for mig in gpu["mig_devices"]
        )
        address = bus_id(pci["domain"], pci["bus"], pci["device"])
        if not 0 <= gpu["minor"] < MINORS:
            raise ValueError(f"no minor number: {gpu['minor']}")
        gpus.append(
            Gpu(
                gpu["minor"],
                gpu["uuid"],
                address,
                gpu["brand"],
                gpu["compute_capability"],
                gpu["mig"],
                gpu["model"],
                migs,
            )
        )
    return DriverReport(nvml["driver_version"], nvml["cuda_version"], tuple(gpus))


def snapshot_host(document: dict[str, Any]) -> Host:
    """Return the recorded host of a checked document."""
    files = document["files"]
    rows = document["ld_so_cache"]
    entries = [
        entry
        for soname, flags, path in rows
        if (entry := entry_from_listing(soname, flags, path)) is not None
    ]
    machine = document.get("machine") or _machine(files)
    return Host(
        name=document["name"],
        root=document["root"],
        tree=SnapshotTree(files),
        entries=entries,
        report=driver_report(document),
        majors=dict(document["char_majors"]),
        machine=machine,
    )


def _machine(files: dict[str, dict[str, Any]]) -> str:
    """Return the machine of a snapshot that does not name it, from its 64-bit libraries."""
    names = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64", "EM_PPC64": "ppc64le"}
    for entry in files.values():
        facts = _member(entry, "elf")
        if facts and facts["bits"] == 64 and facts["machine"] in names:
            return names[facts["machine"]]
    return "x86_64"


def load_report(path: str) -> DriverReport:
    """Read the GPU part of a simulated host's snapshot. Root must own the file, and only root may
    write to it.

    :raises Refusal: the file is missing, others can write to it, or it is not a ``nvgraft.host/1``
        document.
    """
    hint = (
        "point host-snapshot in config.toml at a nvgraft.host/1 document that only root can write"
    )
    try:
        fd = files.open_file(path)
        try:
            status = os.fstat(fd)
            if status.st_uid != 0 or status.st_mode & 0o022:
                raise Refusal(
                    "initialization",
                    f"host snapshot {path} can be written by others than root",
                    hint,
                )
            data = files.read_fd(fd, _LIMIT)
        finally:
            os.close(fd)
    except OSError as error:
        raise Refusal(
            "initialization", f"host snapshot {path}: {files.reason(error)}", hint
        ) from error
    try:
        return driver_report(jsontext.loads(data, _LIMIT))  # type: ignore[arg-type]
    except jsontext.JsonError as error:
        raise Refusal(
            "initialization", f"host snapshot {path}: {error.text}", f"{error.hint}: {hint}"
        ) from error
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise Refusal(
            "initialization", f"host snapshot {path}: {type(error).__name__}: {error}", hint
        ) from error
