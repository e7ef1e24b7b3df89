"""The document ``nvgraft.host/1``, a host snapshot: all facts of a GPU host that discovery reads.

The engine plans from it, and ``nvgraft_cli.simulate`` simulates the host.
"""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from nvgraft_specs.documents import read_bytes
from nvgraft_specs.models import ONLY_SUCH_NAMES, PLAIN_PATH, Open, parse, simulated
from nvgraft_specs.models.host_gpus import Line, Number32, Nvml, Topology, Word

SCHEMA = "nvgraft.host/1"

#: The kernel's limit. The parents of a path are added to the tree, and each takes memory.
PATH_LIMIT = 4096

AbsolutePath = Annotated[str, StringConstraints(pattern=r"^/[^\x00]*$", max_length=PATH_LIMIT)]
Mode = Annotated[str, StringConstraints(pattern=r"^[0-7]{3,5}$")]
Count = Annotated[int, Field(ge=0)]


class Elf(Open):
    """Facts of the headers and the dynamic section of an ELF file.

    An absent key was not recorded; null means that the file has none.
    """

    bits: Literal[32, 64]
    machine: Annotated[str, StringConstraints(pattern=r"^EM_[0-9A-Z_]+$")]
    soname: str | None
    needed: list[str]
    abi_tag: tuple[Number32, Number32, Number32] | None = Field(
        description="version in .note.ABI-tag, for Linux"
    )
    interp: str | None = None
    rpath: str | None = Field(default=None, description="DT_RPATH as it stands")
    runpath: str | None = Field(default=None, description="DT_RUNPATH as it stands")
    flags_1: Number32 | None = Field(default=None, description="DT_FLAGS_1")
    versions_needed: dict[str, list[str]] | None = Field(
        default=None,
        description="library -> the versions of it that this file needs to load (DT_VERNEED without"
        " weak ones)",
    )
    versions_defined: list[str] | None = Field(
        default=None, description="DT_VERDEF; empty for a file without versions"
    )


class _Inode(Open):
    mode: Mode = Field(description="permission bits, octal")
    uid: Count | None = None
    gid: Count | None = None


class RegularFile(_Inode):
    """A regular file. `content` is recorded of small files in /proc, `elf` of ELF files."""

    type: Literal["file"]
    size: Count | None = Field(default=None, description="in bytes")
    content: str | None = None
    elf: Elf | None = None
    elf_fault: Line | None = Field(
        default=None, description="why ELF facts could not be read when the host was recorded"
    )


class Directory(_Inode):
    """A directory."""

    type: Literal["dir"]


class Device(_Inode):
    """A device node."""

    type: Literal["char", "block"]
    rdev: tuple[Number32, Number32] = Field(description="major and minor number")


class Ipc(_Inode):
    """A socket or a named pipe."""

    type: Literal["socket", "fifo"]


class Symlink(Open):
    """A symbolic link, which has no mode."""

    type: Literal["symlink"]
    target: Annotated[str, StringConstraints(min_length=1, max_length=PATH_LIMIT)]
    uid: Count | None = None
    gid: Count | None = None


Entry = Annotated[RegularFile | Directory | Device | Ipc | Symlink, Field(discriminator="type")]


class Cdi(Open):
    """Facts that only a CDI specification needs.

    If they are recorded, the files of a specification are recorded as well.
    """

    kernel: str = Field(
        description="the kernel's release; firmware may be in a directory of that name"
    )
    drm: dict[Word, list[Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z]+$")]]] = Field(
        description="PCI address of a GPU -> the names of its nodes in /dev/dri"
    )


class Host(Open):
    """One GPU host."""

    version: Literal["nvgraft.host/1"] = Field(default="nvgraft.host/1", alias="schema")
    name: Line
    description: str | None = None
    machine: str | None = Field(
        default=None, description="as uname -m prints it; default: that of the 64-bit libraries"
    )
    root: Annotated[str, StringConstraints(pattern=PLAIN_PATH, max_length=PATH_LIMIT)] = Field(
        description="driver root; `files` and `ld_so_cache` are relative to it, except /dev and"
        " /proc"
    )
    ld_so_cache: list[tuple[str, str, str]] = Field(
        description="SONAME, flags as `ldconfig -p` prints them, path; in cache order"
    )
    nvml: Nvml
    char_majors: dict[Word, Number32] = Field(
        description="the lines of NVIDIA's drivers in /proc/devices",
        json_schema_extra=ONLY_SUCH_NAMES,
    )
    files: dict[AbsolutePath, Entry] = Field(json_schema_extra=ONLY_SUCH_NAMES)
    isa_level: Annotated[str, StringConstraints(pattern=r"^x86-64-v[1-9]$")] | None = Field(
        default=None,
        description="level of the processor, by which a loader chooses glibc-hwcaps subdirectories",
    )
    cdi: Cdi | None = None
    without_gpus: bool = Field(
        default=False,
        description="recorded from the files of a driver alone: its GPUs, device nodes and /proc"
        " are not known",
    )
    made_from: Line | None = Field(
        default=None,
        description="the line from which `nvgraft simulate --make` has made the document",
    )
    topology: Topology | None = None
    failures: list[Word] | None = Field(
        default=None,
        max_length=64,
        description="failures on purpose of the simulated host, as `nvgraft simulate --fail` names"
        " them",
    )


def parse_host(raw: bytes, path: str) -> Host:
    """Parse the text of a host snapshot. A missing ``schema`` means nvgraft.host/1.

    :param path: the path to name in errors.
    :raises DocumentError: when it is not a valid snapshot.
    """
    host = parse(Host, SCHEMA, raw, path, default_schema=SCHEMA)
    simulated.check(host.nvml.gpus, host.topology, path)
    return host


def load_host(path: str) -> Host:
    """Read the host snapshot at ``path``.

    :raises DocumentError: when it cannot be read, or is not a valid snapshot.
    """
    return parse_host(read_bytes(path), path)
