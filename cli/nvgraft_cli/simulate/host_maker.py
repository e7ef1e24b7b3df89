"""Make a host snapshot real: its files, device nodes, /proc entries, loader cache, NVML and
config.toml.

Everything is written to absolute paths of the current root: call this only inside
:mod:`nvgraft_cli.simulate.sandbox`.
"""

import json
import os
import re
import stat
import subprocess
from collections.abc import Mapping

from nvgraft.system import syscalls
from nvgraft_cli.simulate import ldcache_writer, sandbox, stubs
from nvgraft_cli.simulate.answering import MACHINES, SMI, machine_of
from nvgraft_cli.simulate.standins import data
from nvgraft_specs.models.host import Device, Directory, Elf, Entry, Host, Ipc, RegularFile, Symlink

CONFIG_DIRECTORY = "/etc/nvidia-container-runtime"
SNAPSHOT = f"{CONFIG_DIRECTORY}/nvgraft-host.json"

_PCI_DEVICES = "/sys/bus/pci/devices"
_SYS_DEVICES = "/sys/devices"
_UNCOVERED_SYS = "/run/nvgraft-sys"
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
#: One row of `ldconfig -p`: SONAME, libc and architecture, optional OS ABI and hardware
#: capabilities, path.
_LISTING = re.compile(r"^\t(\S+) \((libc6(?:,[\w-]+)?)((?:, [^)]*)?)\) => (.+)$", re.MULTILINE)
#: Libraries of a driver on this machine, which the simulated host must not have.
_DRIVER_LIBRARY = re.compile(r"^lib(cuda\.so|cudadebugger|nvidia-|nvcuvid|nvoptix)|_nvidia\.so")


def make(host: Host, snapshot: bytes, libraries: Mapping[str, bytes]) -> list[str]:
    """Make ``host`` real in the current root.

    :param snapshot: the text of the document, which the hook reads if there is no stand-in NVML,
        or no GPU of which one could tell.
    :param libraries: the stand-ins that answer: SONAME, or nvidia-smi -> content.
    :returns: notes for the user.
    :raises OSError: a file or mount could not be made; the message names it.
    :raises ValueError: the document has a file that cannot be made (an unknown ELF machine).
    """
    root = host.root.rstrip("/")
    _proc(host)
    _sys_devices(host, root)
    notes = _drm(host)
    for path, entry in sorted(host.files.items(), key=lambda item: (item[0].count("/"), item[0])):
        real = _real_path(root, path)
        if real is not None:
            _place(real, entry, _content(path, entry, host, libraries))
    _loader_cache(host, root)
    if root:
        # The driver container of the GPU operator mounts the host's /dev and /proc in its root.
        for name in ("dev", "proc"):
            os.makedirs(f"{root}/{name}", exist_ok=True)
            syscalls.mount(f"/{name}", f"{root}/{name}", None, syscalls.MS_BIND | syscalls.MS_REC)
    os.makedirs(CONFIG_DIRECTORY, exist_ok=True)
    from_document = not libraries or host.without_gpus
    _write(
        f"{CONFIG_DIRECTORY}/config.toml",
        config_toml(host.root, SNAPSHOT if from_document else None).encode(),
        0o644,
    )
    if from_document:
        _write(SNAPSHOT, snapshot, 0o644)
    return notes


def config_toml(root: str, snapshot: str | None) -> str:
    """Return the config.toml of a simulated host: ``simulated-host``, and values that are not
    defaults.

    :param snapshot: the file from which the hook reads the GPUs; None if there is a stand-in NVML.
    """
    lines = ["[nvgraft]", "simulated-host = true"]
    lines += [f"host-snapshot = {json.dumps(snapshot)}"] if snapshot else []
    lines += ["", "[nvidia-container-cli]", 'ldconfig = "@/sbin/ldconfig"', "load-kmods = false"]
    lines += [f"root = {json.dumps(root)}"] if root != "/" else []
    lines += ["", "[nvidia-container-runtime]", 'mode = "legacy"', ""]
    return "\n".join(lines)


def _proc(host: Host) -> None:
    """Replace /proc/driver by one of our own, and add the driver's lines to /proc/devices."""
    syscalls.mount(
        "tmpfs",
        "/proc/driver",
        "tmpfs",
        syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC,
        "mode=0555",
    )
    if not host.char_majors:
        return
    with open("/proc/devices", encoding="ascii") as file:
        own = [
            line
            for line in file.read().splitlines()
            if not line.strip().partition(" ")[2].startswith("nvidia")
        ]
    # The first line is the heading "Character devices:".
    own[1:1] = [f"{major:3d} {name}" for name, major in host.char_majors.items()]
    _write("/run/nvgraft-devices", ("\n".join(own) + "\n").encode(), 0o444)
    syscalls.mount("/run/nvgraft-devices", "/proc/devices", None, syscalls.MS_BIND)
    # The kernel lets a user namespace mount a procfs only if one exists that no mount covers.
    os.mkdir("/run/nvgraft-proc")
    syscalls.mount(
        "proc",
        "/run/nvgraft-proc",
        "proc",
        syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC,
    )
    os.unlink("/run/nvgraft-devices")


def _sys_devices(host: Host, root: str) -> None:
    """Let /sys/devices take the host's entries beside this machine's, if it has any there."""
    if root or not any(path.startswith(f"{_SYS_DEVICES}/") for path in host.files):
        return
    own = "/run/nvgraft-sys-devices"
    os.mkdir(own)
    syscalls.mount(_SYS_DEVICES, own, None, syscalls.MS_BIND | syscalls.MS_REC)
    _cover(_SYS_DEVICES)
    for name in os.listdir(own):
        os.mkdir(f"{_SYS_DEVICES}/{name}")
        syscalls.mount(
            f"{own}/{name}", f"{_SYS_DEVICES}/{name}", None, syscalls.MS_BIND | syscalls.MS_REC
        )
    syscalls.umount2(own, syscalls.MNT_DETACH)
    os.rmdir(own)


def _cover(directory: str) -> None:
    """Mount an empty directory over one of sysfs, whose entries the caller makes.

    The kernel lets a user namespace mount a sysfs only if one exists that no mount covers: so there
    is another one.
    """
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
    syscalls.mount("tmpfs", directory, "tmpfs", flags, "mode=0755")
    if not os.path.isdir(_UNCOVERED_SYS):
        os.mkdir(_UNCOVERED_SYS)
        syscalls.mount("sysfs", _UNCOVERED_SYS, "sysfs", flags)


def _drm(host: Host) -> list[str]:
    """Show the GPUs' DRM nodes in sysfs beside this machine's PCI devices; return notes for the
    user.
    """
    devices = (
        {}
        if host.cdi is None
        else {
            address: nodes
            for address, nodes in host.cdi.drm.items()
            if _PCI_ADDRESS.fullmatch(address)
        }
    )
    if not any(devices.values()):
        return []
    if not os.path.isdir(_PCI_DEVICES):
        return [
            (
                f"there is no {_PCI_DEVICES}: the simulated host cannot show which GPU has"
                " which DRM node"
            )
        ]
    own = {name: os.readlink(f"{_PCI_DEVICES}/{name}") for name in os.listdir(_PCI_DEVICES)}
    _cover(_PCI_DEVICES)
    for name, target in own.items():
        if name not in devices:
            os.symlink(target, f"{_PCI_DEVICES}/{name}")
    for address, nodes in devices.items():
        for name in nodes:
            os.makedirs(f"{_PCI_DEVICES}/{address}/drm/{name}")
    return []


def _real_path(root: str, path: str) -> str | None:
    """Return the real path of a ``path`` of the document; None for a path that is not made here."""
    if path == "/dev" or path.startswith("/dev/"):
        return path
    if path == "/proc" or path.startswith("/proc/"):
        return path if path.startswith("/proc/driver/") else None
    if not root and path.startswith("/sys/") and not path.startswith(f"{_SYS_DEVICES}/"):
        return None
    return None if path == "/etc/ld.so.cache" else root + path


def _content(path: str, entry: Entry, host: Host, libraries: Mapping[str, bytes]) -> bytes | None:
    """Return the bytes of a regular file, or None if this machine's own file may stay there.

    :param libraries: content of those libraries that answer, by SONAME, and of nvidia-smi.
    """
    if not isinstance(entry, RegularFile):
        return b""
    name = os.path.basename(path)
    is_smi = name == SMI and (entry.elf is None or entry.elf.bits == 64)
    if libraries and (stand_in := SMI if is_smi else data.library_of(path, host)):
        return libraries[stand_in]
    if entry.content is not None:
        return entry.content.encode()
    runs = int(entry.mode, 8) & 0o111
    # ldconfig must be this machine's own, which fits its loader.
    if runs and name.startswith("ldconfig"):
        return None
    if entry.elf:
        return _elf(name, entry.elf, bool(runs))
    if runs and not re.search(r"\.so(\.|$)", name):
        return stubs.executable(
            machine_of(host) or MACHINES.get(os.uname().machine, "EM_X86_64"),
            f"nvgraft simulated {name}",
        )
    return None


def _elf(name: str, elf: Elf, runs: bool) -> bytes:
    loading = stubs.Loading(
        elf.rpath,
        elf.runpath,
        elf.flags_1 or 0,
        elf.versions_needed or {},
        elf.versions_defined or (),
    )
    if runs and elf.soname is None and elf.machine in MACHINES.values():
        return stubs.executable(
            elf.machine, f"nvgraft simulated {name}", elf.needed, elf.abi_tag, elf.interp, loading
        )
    return stubs.shared_object(
        elf.bits, elf.machine, elf.soname, elf.needed, elf.abi_tag, elf.interp, loading
    )


def _place(path: str, entry: Entry, content: bytes | None) -> None:
    if isinstance(entry, Directory):
        if not os.path.isdir(path):
            os.makedirs(path)
            os.chmod(path, int(entry.mode, 8))
        return
    if os.path.lexists(path):
        # A directory of this machine stays where the host has a link (/bin -> usr/bin), and so does
        # a file whose content does not matter.
        if content is None or (os.path.isdir(path) and not os.path.islink(path)):
            return
        os.unlink(path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if isinstance(entry, Symlink):
        os.symlink(entry.target, path)
    elif isinstance(entry, RegularFile):
        _write(path, content or b"", int(entry.mode, 8))
        if entry.content is None and entry.size is not None and entry.size > len(content or b""):
            os.truncate(path, entry.size)  # the recorded size, as a hole
    elif isinstance(entry, Device):
        sandbox.make_node(
            path,
            stat.S_IFCHR if entry.type == "char" else stat.S_IFBLK,
            int(entry.mode, 8),
            entry.rdev,
        )
    elif isinstance(entry, Ipc):
        sandbox.make_node(
            path, stat.S_IFSOCK if entry.type == "socket" else stat.S_IFIFO, int(entry.mode, 8)
        )
    if entry.uid is not None and entry.gid is not None:
        os.lchown(path, entry.uid, entry.gid)


def _loader_cache(host: Host, root: str) -> None:
    """Write the driver root's loader cache; with root "/" it keeps the libraries of this
    machine.
    """
    rows = list(host.ld_so_cache)
    if not root and os.access("/sbin/ldconfig", os.X_OK):
        listing = subprocess.run(
            ["/sbin/ldconfig", "-p"], capture_output=True, check=True, env={"LC_ALL": "C"}
        ).stdout
        rows += own_rows(
            listing.decode("utf-8", "surrogateescape"),
            {(soname, flags) for soname, flags, _ in rows},
        )
    os.makedirs(f"{root}/etc", exist_ok=True)
    _write(f"{root}/etc/ld.so.cache", ldcache_writer.cache(rows), 0o644)


def own_rows(listing: str, taken: set[tuple[str, str]]) -> list[tuple[str, str, str]]:
    """Return the rows of this machine's loader cache that a simulated host keeps.

    These are all rows but those of a driver of this machine, those in ``taken`` (SONAME and flags),
    and variants for newer processors, whose baseline variant has a row too.

    :param listing: output of `ldconfig -p`.
    """
    rows = []
    for soname, flags, more, path in _LISTING.findall(listing):
        if (
            (soname, flags) not in taken
            and "hwcap" not in more
            and not _DRIVER_LIBRARY.search(soname)
        ):
            rows.append((soname, flags, path))
    return rows


def _write(path: str, content: bytes, mode: int) -> None:
    with open(path, "wb") as file:
        file.write(content)
    os.chmod(path, mode)
