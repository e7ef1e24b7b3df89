"""The host snapshot ``nvgraft.host/1``: everything about one GPU host that discovery looks at.

Only the document. What it means for a container is decided by the engine, and how it is made real by
``nvgraft_cli.simulate.command``.
"""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from . import ONLY_SUCH_NAMES, PLAIN_PATH, Open, parse, read_bytes

SCHEMA = "nvgraft.host/1"

#: Longer than the kernel's limit is no path; and what implies its parents takes memory for each.
PATH_LIMIT = 4096

AbsolutePath = Annotated[str, StringConstraints(pattern=r"^/[^\x00]*$", max_length=PATH_LIMIT)]
Mode = Annotated[str, StringConstraints(pattern=r"^[0-7]{3,5}$")]
Line = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]+$")]
Word = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x20\x7f]+$")]
Count = Annotated[int, Field(ge=0)]
#: What numbers device nodes; MIG's instances have nodes too.
Minor = Annotated[int, Field(ge=0, lt=1 << 20)]
Number32 = Annotated[int, Field(ge=0, le=0xFFFFFFFF)]


class Elf(Open):
    """What the headers and the dynamic section of an ELF file say. A key that is absent was not recorded, null means none."""

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
        description="library -> its versions without which this file is not loaded (DT_VERNEED, weak ones left out)",
    )
    versions_defined: list[str] | None = Field(
        default=None, description="DT_VERDEF; empty for a file without versions"
    )


class _Inode(Open):
    mode: Mode = Field(description="permission bits, octal")
    uid: Count | None = None
    gid: Count | None = None


class RegularFile(_Inode):
    """A regular file: its text where it is a small one under /proc, its ELF facts where it is an ELF file."""

    type: Literal["file"]
    size: Count | None = Field(default=None, description="bytes")
    content: str | None = None
    elf: Elf | None = None
    elf_fault: Line | None = Field(
        default=None, description="why there are no ELF facts of a file that was asked for them"
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
    """A symbolic link; it has no mode of its own."""

    type: Literal["symlink"]
    target: Annotated[str, StringConstraints(min_length=1, max_length=PATH_LIMIT)]
    uid: Count | None = None
    gid: Count | None = None


Entry = Annotated[RegularFile | Directory | Device | Ipc | Symlink, Field(discriminator="type")]


class PciAddress(Open):
    """Where a GPU sits, as NVML reports it (the function is always 0)."""

    domain: Number32
    bus: Annotated[int, Field(ge=0, le=0xFF)]
    device: Annotated[int, Field(ge=0, le=0x1F)]


class MigDevice(Open):
    """One MIG device of a GPU."""

    uuid: Word
    gpu_instance: Minor
    compute_instance: Minor


class Gpu(Open):
    """One GPU; ``minor`` is the number of its device node, which need not be its NVML index."""

    minor: Minor
    uuid: Word
    pci: PciAddress
    brand: int = Field(description="NVML's brand number")
    compute_capability: Annotated[str, StringConstraints(pattern=r"^[0-9]+\.[0-9]+$")]
    mig: Literal["unsupported", "disabled", "enabled"]
    model: Line
    mig_devices: list[MigDevice]


class Nvml(Open):
    """What NVML says about the host; GPUs in its index order."""

    driver_version: Word
    cuda_version: Annotated[str, StringConstraints(pattern=r"^[0-9]+\.[0-9]+$")]
    gpus: list[Gpu]


class Cdi(Open):
    """What only a CDI specification needs. Where it is there, the files that such a specification has were recorded as well."""

    kernel: str = Field(
        description="release of the kernel; firmware may lie in a directory of that name"
    )
    drm: dict[Word, list[Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z]+$")]]] = Field(
        description="PCI address of a GPU -> names of its nodes in /dev/dri"
    )


class Host(Open):
    """One GPU host."""

    version: Literal["nvgraft.host/1"] = Field(default="nvgraft.host/1", alias="schema")
    name: Line
    description: str | None = None
    machine: str | None = Field(
        default=None, description="as uname -m says; absent: that of the 64-bit libraries"
    )
    root: Annotated[str, StringConstraints(pattern=PLAIN_PATH, max_length=PATH_LIMIT)] = Field(
        description="driver root; `files` and `ld_so_cache` are relative to it, except /dev and /proc"
    )
    ld_so_cache: list[tuple[str, str, str]] = Field(
        description="SONAME, flags as `ldconfig -p` prints them, path; in cache order"
    )
    nvml: Nvml
    char_majors: dict[Word, Number32] = Field(
        description="NVIDIA's lines of /proc/devices", json_schema_extra=ONLY_SUCH_NAMES
    )
    files: dict[AbsolutePath, Entry] = Field(json_schema_extra=ONLY_SUCH_NAMES)
    isa_level: Annotated[str, StringConstraints(pattern=r"^x86-64-v[1-9]$")] | None = Field(
        default=None,
        description="level of the processor, by which a loader chooses among glibc-hwcaps subdirectories",
    )
    cdi: Cdi | None = None


def parse_host(raw: bytes, path: str) -> Host:
    """Turn the text of a host snapshot into its model; a missing ``schema`` means nvgraft.host/1.

    :param path: named in errors.
    :raises DocumentError: one line with path, cause and fix.
    """
    return parse(Host, SCHEMA, raw, path, default_schema=SCHEMA)


def load_host(path: str) -> Host:
    """Read the host snapshot at ``path``.

    :raises DocumentError: one line with path, cause and fix.
    """
    return parse_host(read_bytes(path), path)
