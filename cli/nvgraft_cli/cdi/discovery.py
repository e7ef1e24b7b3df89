"""Find what a CDI specification of a host contains, as `nvidia-ctk cdi generate` does.

Source: reference behaviour 10.3. A specification contains more than a plan: all files of the
driver, for every container, from the driver's directories instead of the loader cache. The document
is written by :mod:`nvgraft_cli.cdi.spec`.
"""

import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from nvgraft.base.errors import Refusal
from nvgraft.host.components import Host
from nvgraft.host.gpus import Gpu, MigDevice
from nvgraft.host.graphics_files import CharDevice, FileFinder
from nvgraft.host.inventory import read_mig_minors
from nvgraft.host.live import drm_names
from nvgraft_specs import graphics_files as table

_BINARIES = (
    table.XORG_BINARY,
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-imex",
    "nvidia-imex-ctl",
)

_SERVICE_SOCKETS = ("nvidia-persistenced/socket", "nvidia-fabricmanager/socket")
_MPS_DIRECTORY = "/tmp/nvidia-mps"  # noqa: S108 - the driver's own default

_CONTROL_NODES = (
    "/dev/nvidia-modeset",
    "/dev/nvidia-uvm-tools",
    "/dev/nvidia-uvm",
    "/dev/nvidiactl",
)

_SOCKET_OPTIONS = ("nosuid", "nodev", "rbind", "rprivate", "noexec")

#: The rest of a library's file name, from ".so" on, if it has a version.
_VERSIONED = re.compile(r"\.so\..*\..*")


class CdiFacts(NamedTuple):
    """Facts that are not files of the driver root.

    :ivar kernel: the kernel's release.
    :ivar drm: the names of the DRM nodes of each PCI address.
    """

    kernel: str
    drm: Mapping[str, Sequence[str]]


class CdiMount(NamedTuple):
    """A bind mount; ``source`` includes the driver root."""

    source: str
    target: str
    options: tuple[str, ...]


@dataclass
class Contents:
    """The edits of a container, in the order of discovery. A hook is its name and its arguments."""

    env: list[str] = field(default_factory=list)
    nodes: list[CharDevice] = field(default_factory=list)
    mounts: list[CdiMount] = field(default_factory=list)
    hooks: list[tuple[str, ...]] = field(default_factory=list)

    def add_links(self, links: Iterable[str]) -> None:
        """Add the hook that creates links, each given as ``TARGET::LINK``; repeated ones once."""
        arguments = [word for link in dict.fromkeys(links) for word in ("--link", link)]
        if arguments:
            self.hooks.append(("create-symlinks", *arguments))


class CdiDevice(NamedTuple):
    """A GPU, or with ``mig_index`` one of its MIG devices, and the edits that it needs."""

    gpu_index: int
    mig_index: int | None
    uuid: str
    contents: Contents


class Discovered(NamedTuple):
    """The content of a host's specification.

    :ivar common: the edits for every device.
    :ivar missing: one line for each device that is left out.
    """

    common: Contents
    devices: list[CdiDevice]
    missing: list[str]


def live_facts(host: Host) -> CdiFacts:
    """Return the facts of this machine."""
    drm = {}
    for gpu in host.report.gpus:
        address = _pci_address(gpu)
        drm[address] = drm_names(address)
    return CdiFacts(os.uname().release, drm)


def recorded_facts(document: Mapping[str, Any]) -> CdiFacts | None:
    """Return the facts of a checked ``nvgraft.host/1`` document, or None if it has none."""
    facts = document.get("cdi")
    return None if facts is None else CdiFacts(facts["kernel"], facts["drm"])


def discover(host: Host, search_path: str, facts: CdiFacts | None) -> Discovered:
    """Return the content of a CDI specification of ``host``.

    :param search_path: the directories of binaries, separated by ``:``.
    :param facts: None if they are not recorded.
    :raises Refusal: stage ``detection``, when the libraries of the driver's version are missing.
    """
    return _Discovery(host, search_path, facts).discover()


def _pci_address(gpu: Gpu) -> str:
    """Return the address as in /sys: a PCI domain has four digits where they suffice."""
    return gpu.bus_id.removeprefix("0000")


class _Discovery:
    def __init__(self, host: Host, search_path: str, facts: CdiFacts | None) -> None:
        self._host = host
        self._tree = host.tree
        self._finder = FileFinder(host.tree, host.machine, lambda: host.entries)
        self._root = host.root.rstrip("/")
        self._version = host.report.driver_version
        self._search_path = search_path
        self._facts = facts
        self._missing: list[str] = []
        self._dirs: list[str] = []

    def discover(self) -> Discovered:
        common = Contents()
        self._dirs = self._driver_directories()
        common.nodes = self._finder.char_devices(_CONTROL_NODES)
        mounts, links = self._finder.graphics_files(self._version)
        common.mounts += (self._mount(mount.path, mount.target) for mount in mounts)
        common.add_links(links)
        self._libraries(common)
        self._sockets(common)
        self._firmware(common)
        for name in _BINARIES:
            common.mounts += map(
                self._mount, self._finder.first(self._search_path.split(":"), name, executable=True)
            )
        common.env += [
            f"NVIDIA_CTK_LIBCUDA_DIR={':'.join(self._dirs)}",
            "NVIDIA_VISIBLE_DEVICES=void",
        ]
        common.hooks.append(("update-application-profile",))
        return Discovered(common, list(self._devices()), self._missing)

    def _mount(
        self, path: str, target: str | None = None, options: tuple[str, ...] = table.OPTIONS
    ) -> CdiMount:
        return CdiMount(self._root + path, target or path, options)

    # ---- libraries

    def _driver_directories(self) -> list[str]:
        directories = self._finder.library_directories(self._version)
        if not directories:
            raise Refusal(
                "detection",
                f"libcuda.so.{self._version}: not found below {self._root or '/'}",
                "install the files of the running driver, or run ldconfig: the usual directories "
                "and the loader cache do not have them",
            )
        return directories

    def _libraries(self, common: Contents) -> None:
        directories = [*self._dirs, *(f"{directory}/vdpau" for directory in self._dirs)]
        files = [
            *self._finder.matching(directories, f"*.so.{self._version}"),
            *self._finder.matching(self._dirs, "libnvidia-nvvm70.so.*"),
        ]
        libraries = list(dict.fromkeys(self._finder.find(path)[0] for path in files))
        common.mounts += map(self._mount, libraries)
        common.add_links(link for path in libraries for link in self._library_links(path))
        common.hooks.append(("enable-cuda-compat", f"--host-driver-version={self._version}"))
        folders = dict.fromkeys(
            posixpath.dirname(path)
            for path in libraries
            if fnmatchcase(posixpath.basename(path), "lib?*.so*")
        )
        if folders:
            common.hooks.append(
                ("update-ldcache", *(word for folder in folders for word in ("--folder", folder)))
            )
        common.hooks.append(("disable-device-node-modification",))

    def _library_links(self, path: str) -> Iterator[str]:
        """Yield the links to a library, as ``TARGET::LINK``.

        These are links that programs need, also where the host lacks them, and the SONAME and .so
        links that the host has.
        """
        directory, name = posixpath.split(path)
        stem, so, _ = name.partition(".so")
        if not _VERSIONED.fullmatch(name.removeprefix(stem)):
            return
        if stem in {"libcuda", "libnvidia-opticalflow"}:
            yield f"{stem}.so.1::{directory}/{stem}.so"
        elif stem == "libGLX_nvidia":
            yield f"{name}::{directory}/libGLX_indirect.so.0"
        try:
            soname = self._tree.elf(path, sections=False).soname or name
        except (ValueError, OSError):
            return  # not a library, or its facts are not recorded
        if soname != name and self._is_link(f"{directory}/{soname}"):
            yield f"{name}::{directory}/{soname}"
        stem, so, rest = soname.rpartition(".so")
        link = stem + so
        if rest and self._is_link(f"{directory}/{link}"):
            yield f"{soname}::{directory}/{link}"

    def _is_link(self, path: str) -> bool:
        try:
            node = self._tree.lstat(path)
        except OSError:
            return False
        return node is not None and node.type == "symlink"

    # ---- services and firmware

    def _sockets(self, common: Contents) -> None:
        for name in _SERVICE_SOCKETS:
            common.mounts += (
                self._mount(path, options=_SOCKET_OPTIONS)
                for path in self._finder.first(("/run", "/var/run"), name)
            )
        if self._finder.find(_MPS_DIRECTORY)[1] is not None:
            common.mounts.append(self._mount(_MPS_DIRECTORY, options=_SOCKET_OPTIONS))

    def _firmware(self, common: Contents) -> None:
        kernel = self._facts.kernel if self._facts is not None else ""
        directories = [
            path
            for top in ("/lib/firmware/updates", "/lib/firmware")
            for path in (f"{top}/{kernel}" if kernel else top, top)
        ]
        common.mounts += map(
            self._mount, self._finder.matching(directories, f"nvidia/{self._version}/gsp*.bin")
        )

    # ---- devices

    def _devices(self) -> Iterator[CdiDevice]:
        gpus = self._host.report.gpus
        for index, gpu in enumerate(gpus):
            if gpu.mig != "enabled":
                yield from self._device(index, None, gpu.uuid, gpu, (), self._drm_nodes(gpu))
        minors = dict(read_mig_minors(self._tree)) if any(gpu.mig_devices for gpu in gpus) else {}
        for index, gpu in enumerate(gpus):
            for mig_index, device in enumerate(gpu.mig_devices if gpu.mig == "enabled" else ()):
                yield from self._device(
                    index, mig_index, device.uuid, gpu, _capability_nodes(gpu, device, minors), ()
                )

    def _device(
        self,
        index: int,
        mig_index: int | None,
        uuid: str,
        gpu: Gpu,
        needed: Iterable[str],
        optional: Iterable[str],
    ) -> Iterator[CdiDevice]:
        """Yield the device if the host has all nodes that it needs."""
        nodes = [f"/dev/nvidia{gpu.minor}", *needed]
        contents = Contents(nodes=self._finder.char_devices([*nodes, *optional]))
        present = {node.path for node in contents.nodes}
        absent = [path for path in nodes if path not in present]
        if absent:
            self._missing.append(
                f"{uuid} is left out: this host has no device node {', '.join(absent)}"
            )
            return
        contents.add_links(
            link
            for kind in ("card", "render")
            for link in self._finder.drm_links(present, f"pci-{_pci_address(gpu)}-{kind}")
        )
        yield CdiDevice(index, mig_index, uuid, contents)

    def _drm_nodes(self, gpu: Gpu) -> list[str]:
        names = self._facts.drm.get(_pci_address(gpu), ()) if self._facts is not None else ()
        return [f"/dev/dri/{name}" for name in names]


def _capability_nodes(gpu: Gpu, device: MigDevice, minors: Mapping[str, int]) -> list[str]:
    """Return the capability nodes of a MIG device's GPU instance and compute instance."""
    instance = f"gpu{gpu.minor}/gi{device.gpu_instance}"
    rows = (f"{instance}/access", f"{instance}/ci{device.compute_instance}/access")
    return [
        f"/dev/nvidia-caps/nvidia-cap{minors[row]}" if row in minors else f"for {row}"
        for row in rows
    ]
