"""What a CDI specification of a host holds: files, device nodes and links that `nvidia-ctk cdi generate` looks for (reference
behaviour 10.3), found on a live or a recorded host.

It is another selection than a container's: everything of the driver, whatever a container asks for, from the driver's
directories rather than from the loader cache. How it is written down is :mod:`nvgraft_cli.cdi.spec`'s business.
"""

import glob
import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from nvgraft.components import Host
from nvgraft.errors import Refusal
from nvgraft.gpus import Gpu, MigDevice
from nvgraft.inventory import read_mig_minors
from nvgraft.ldcache import ARCHITECTURES
from nvgraft.tree import MAX_LINKS, Node, PathError

#: Where libraries are looked for before the loader cache is.
_LIBRARY_DIRECTORIES = (
    "/",
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
    "/lib64",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/lib/x86_64-linux-gnu/nvidia/current",
    "/lib/aarch64-linux-gnu/nvidia/current",
)

#: Libraries of EGL platforms: they have versions of their own.
_EGL_LIBRARIES = ("gbm", "wayland", "wayland2", "xcb", "xlib")

#: Parts of Xorg's module path below a library directory, and such directories beside the driver's own.
_XORG_MODULES = ("modules/drivers", "modules/extensions", "modules/updates/drivers", "modules/updates/extensions")
_XORG_DIRECTORIES = ("/usr/lib/xorg", "/usr/lib64/xorg", "/usr/X11R6/lib", "/usr/X11R6/lib64")

_BINARIES = (
    "nvidia-xconfig",
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-imex",
    "nvidia-imex-ctl",
)

#: Files below one of the configuration directories -> where they are mounted, wherever the host has them.
_CONFIG_DIRECTORIES = ("/etc", "/usr/local/share", "/usr/share")
_SHARED_CONFIGS = (
    "glvnd/egl_vendor.d/10_nvidia.json",
    "egl/egl_external_platform.d/15_nvidia_gbm.json",
    "egl/egl_external_platform.d/10_nvidia_wayland.json",
    "egl/egl_external_platform.d/09_nvidia_wayland2.json",
    "egl/egl_external_platform.d/20_nvidia_xcb.json",
    "egl/egl_external_platform.d/20_nvidia_xlib.json",
    "nvidia/nvoptix.bin",
    "X11/xorg.conf.d/10-nvidia.conf",
    "X11/xorg.conf.d/nvidia-drm-outputclass.conf",
)
_VULKAN_CONFIGS = ("icd.d/nvidia_icd.json", "icd.d/nvidia_layers.json", "implicit_layer.d/nvidia_layers.json")
_VULKAN_MACHINES = ("x86_64", "aarch64")

_SERVICE_SOCKETS = ("nvidia-persistenced/socket", "nvidia-fabricmanager/socket")
_MPS_DIRECTORY = "/tmp/nvidia-mps"  # noqa: S108 - the driver's own default

_CONTROL_NODES = ("/dev/nvidia-modeset", "/dev/nvidia-uvm-tools", "/dev/nvidia-uvm", "/dev/nvidiactl")

_FILE_OPTIONS = ("ro", "nosuid", "nodev", "rbind", "rprivate")
_SOCKET_OPTIONS = ("nosuid", "nodev", "rbind", "rprivate", "noexec")

#: How a library's file name goes on after ".so" when it has a version.
_VERSIONED = re.compile(r"\.so\..*\..*")


class Facts(NamedTuple):
    """What is no file of the driver root: the kernel's release, and PCI address -> names of its DRM nodes."""

    kernel: str
    drm: Mapping[str, Sequence[str]]


class DeviceNode(NamedTuple):
    """A device node, the same in the container as on the host."""

    path: str
    node: Node


class Mount(NamedTuple):
    """A bind mount; ``source`` has the driver root."""

    source: str
    target: str
    options: tuple[str, ...]


@dataclass
class Contents:
    """What is put into a container, in the order in which it was found. A hook is its name and its arguments."""

    env: list[str] = field(default_factory=list)
    nodes: list[DeviceNode] = field(default_factory=list)
    mounts: list[Mount] = field(default_factory=list)
    hooks: list[tuple[str, ...]] = field(default_factory=list)

    def add_links(self, links: Iterable[str]) -> None:
        """Have links made, each ``TARGET::LINK``; a repeated one once."""
        arguments = [word for link in dict.fromkeys(links) for word in ("--link", link)]
        if arguments:
            self.hooks.append(("create-symlinks", *arguments))


class GpuDevice(NamedTuple):
    """A GPU, or with ``mig_index`` a MIG device of it, with what a container needs for it beside the rest."""

    gpu_index: int
    mig_index: int | None
    uuid: str
    contents: Contents


class Discovered(NamedTuple):
    """What a host offers: for every container, for each device, and what could not be told."""

    common: Contents
    devices: list[GpuDevice]
    missing: list[str]


def live_facts(host: Host) -> Facts:
    """Return the facts of this machine."""
    drm = {}
    for gpu in host.report.gpus:
        address = _pci_address(gpu)
        try:
            drm[address] = sorted(os.listdir(f"/sys/bus/pci/devices/{address}/drm"))
        except OSError:
            drm[address] = []  # no DRM driver, or a simulated GPU
    return Facts(os.uname().release, drm)


def recorded_facts(document: Mapping[str, Any]) -> Facts | None:
    """Return the facts of a checked ``nvgraft.host/1`` document; None where it was written without them."""
    facts = document.get("cdi")
    return None if facts is None else Facts(facts["kernel"], facts["drm"])


def discover(host: Host, search_path: str, facts: Facts | None) -> Discovered:
    """Return what a CDI specification of ``host`` holds.

    :param search_path: where binaries are looked for, ``:`` between directories.
    :param facts: None: they are not recorded, and neither is what only a CDI specification needs.
    :raises Refusal: stage ``detection``: the libraries of the driver's version are not there.
    """
    return _Discovery(host, search_path, facts).discover()


def _pci_address(gpu: Gpu) -> str:
    """Return the address as /sys writes it: a PCI domain of four digits at least."""
    return gpu.bus_id.removeprefix("0000")


class _Discovery:
    def __init__(self, host: Host, search_path: str, facts: Facts | None) -> None:
        self._host = host
        self._tree = host.tree
        self._root = host.root.rstrip("/")
        self._version = host.report.driver_version
        self._search_path = search_path
        self._facts = facts
        self._missing: list[str] = []
        self._dirs: list[str] = []

    def discover(self) -> Discovered:
        common = Contents()
        self._dirs = self._driver_directories()
        common.nodes = self._nodes(_CONTROL_NODES)
        self._graphics(common)
        self._libraries(common)
        self._sockets(common)
        self._firmware(common)
        for name in _BINARIES:
            common.mounts += map(self._mount, self._first(self._search_path.split(":"), name, executable=True))
        common.env += [f"NVIDIA_CTK_LIBCUDA_DIR={':'.join(self._dirs)}", "NVIDIA_VISIBLE_DEVICES=void"]
        common.hooks.append(("update-application-profile",))
        return Discovered(common, list(self._devices()), self._missing)

    # ---- files

    def _find(self, path: str) -> tuple[str, Node | None]:
        """Return what ``path`` leads to; what cannot be reached, or may not be seen, is not there."""
        try:
            return self._tree.find(path)
        except (PathError, OSError):
            return path, None

    def _files(self, directories: Iterable[str], pattern: str) -> Iterator[str]:
        """Yield the files below ``directories`` that match, as they are called there; links are not followed in their names."""
        for directory in dict.fromkeys(directories):
            parent, _, name = f"{directory.rstrip('/')}/{pattern}".rpartition("/")
            names = [name] if "*" not in name else self._names(parent, name)
            for found in names:
                path = f"{parent}/{found}"
                node = self._find(path)[1]
                if node is not None and node.type != "dir":
                    yield path

    def _names(self, directory: str, pattern: str) -> list[str]:
        resolved, node = self._find(directory) if directory else ("/", Node("dir"))
        if node is None or node.type != "dir":
            return []
        try:
            return [name for name in self._tree.listdir(resolved) if fnmatchcase(name, pattern)]
        except OSError:
            return []

    def _first(self, directories: Iterable[str], name: str, *, executable: bool = False) -> list[str]:
        """Return the first of the files, if there is one."""
        for path in self._files(directories, name):
            node = self._find(path)[1]
            if not executable or (node is not None and node.mode & 0o111):
                return [path]
        return []

    def _mount(self, path: str, target: str | None = None, options: tuple[str, ...] = _FILE_OPTIONS) -> Mount:
        return Mount(self._root + path, target or path, options)

    # ---- libraries

    def _located(self, pattern: str) -> list[str]:
        """Return the libraries that match, links followed: those of the well-known directories, or else those of the loader cache."""
        found = [self._find(path)[0] for path in self._files(_LIBRARY_DIRECTORIES, pattern)]
        if not found:
            wide = ARCHITECTURES.get(self._host.machine, (None,))[0]
            steps = (step for entry in self._host.entries if entry.architecture == wide for step in self._chain(entry.path))
            found = [self._find(step)[0] for step in steps if fnmatchcase(posixpath.basename(step), pattern)]
        return list(dict.fromkeys(found))

    def _chain(self, path: str) -> list[str]:
        """Return ``path`` and, where it is a link, each file that it leads to on the way."""
        chain: list[str] = []
        for _ in range(MAX_LINKS):
            try:
                node = self._tree.lstat(self._tree.resolve(path, follow_last=False))
            except (PathError, OSError):
                return []
            if node is None:
                return []
            chain.append(path)
            if node.type != "symlink":
                return chain
            path = posixpath.normpath(posixpath.join(posixpath.dirname(path), node.target))
        return []

    def _driver_directories(self) -> list[str]:
        version = glob.escape(self._version)
        known = self._located(f"libcuda.so.{version}") or self._located(f"libnvidia-ml.so.{version}")
        found = self._located(f"lib*.so.{version}") if known else []
        if not found:
            where = self._root or "/"
            raise Refusal(
                "detection",
                f"libcuda.so.{self._version}: not found below {where}",
                "the files of the running driver are not there, or not in the loader cache: install them, or run ldconfig",
            )
        return list(dict.fromkeys(map(posixpath.dirname, found)))

    def _libraries(self, common: Contents) -> None:
        version = glob.escape(self._version)
        directories = [*self._dirs, *(f"{directory}/vdpau" for directory in self._dirs)]
        files = [*self._files(directories, f"*.so.{version}"), *self._files(self._dirs, "libnvidia-nvvm70.so.*")]
        libraries = list(dict.fromkeys(self._find(path)[0] for path in files))
        common.mounts += map(self._mount, libraries)
        common.add_links(link for path in libraries for link in self._library_links(path))
        common.hooks.append(("enable-cuda-compat", f"--host-driver-version={self._version}"))
        folders = dict.fromkeys(posixpath.dirname(path) for path in libraries if fnmatchcase(posixpath.basename(path), "lib?*.so*"))
        if folders:
            common.hooks.append(("update-ldcache", *(word for folder in folders for word in ("--folder", folder))))
        common.hooks.append(("disable-device-node-modification",))

    def _library_links(self, path: str) -> Iterator[str]:
        """Yield the links beside a library: those that programs need and no host may have, and SONAME and .so ones of the host."""
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
            return  # no library after all, or its facts are not recorded
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

    # ---- graphics

    def _graphics(self, common: Contents) -> None:
        version = glob.escape(self._version)
        egl = [path for name in _EGL_LIBRARIES for path in self._located(f"libnvidia-egl-{name}.so.*.*")]
        allocator = self._located(f"libnvidia-allocator.so.{version}")  # mounted with the other libraries, if at all
        vulkan = self._located(f"libnvidia-vulkan-producer.so.{version}")
        modules = self._xorg_directories()
        driver = self._first(modules, "nvidia_drv.so")
        server = self._first(modules, f"libglxserver_nvidia.so.{self._version}")
        common.mounts += map(self._mount, [*egl, *vulkan, *driver, *server])
        links = [f"../libnvidia-allocator.so.1::{posixpath.dirname(path)}/gbm/nvidia-drm_gbm.so" for path in allocator]
        links += [f"{posixpath.basename(path)}::{path.removesuffix('.' + self._version)}" for path in (*vulkan, *server)]
        common.add_links(links)
        for name in _SHARED_CONFIGS:
            common.mounts += (self._mount(path, f"/usr/share/{name}") for path in self._first(_CONFIG_DIRECTORIES, name))
        name = "OpenCL/vendors/nvidia.icd"
        common.mounts += (self._mount(path, f"/etc/{name}") for path in self._first(_CONFIG_DIRECTORIES, name))
        machine = [f"icd.d/nvidia_icd.{self._host.machine}.json"] if self._host.machine in _VULKAN_MACHINES else []
        for name in (*_VULKAN_CONFIGS, *machine):
            name = f"vulkan/{name}"
            # Some drivers have it at the top of their root.
            common.mounts += (self._mount(path, f"/etc/{name}") for path in self._first((*_CONFIG_DIRECTORIES, "/"), name))

    def _xorg_directories(self) -> list[str]:
        directories = []
        for directory in self._dirs:
            directories += [f"{directory}/nvidia/xorg", *(f"{directory}/xorg/{part}" for part in _XORG_MODULES)]
        return directories + [f"{directory}/{part}" for directory in _XORG_DIRECTORIES for part in _XORG_MODULES]

    # ---- services and firmware

    def _sockets(self, common: Contents) -> None:
        for name in _SERVICE_SOCKETS:
            common.mounts += (self._mount(path, options=_SOCKET_OPTIONS) for path in self._first(("/run", "/var/run"), name))
        if self._find(_MPS_DIRECTORY)[1] is not None:
            common.mounts.append(self._mount(_MPS_DIRECTORY, options=_SOCKET_OPTIONS))

    def _firmware(self, common: Contents) -> None:
        kernel = self._facts.kernel if self._facts is not None else ""
        directories = [path for top in ("/lib/firmware/updates", "/lib/firmware") for path in (f"{top}/{kernel}" if kernel else top, top)]
        common.mounts += map(self._mount, self._files(directories, f"nvidia/{self._version}/gsp*.bin"))

    # ---- devices

    def _nodes(self, paths: Iterable[str]) -> list[DeviceNode]:
        found = ((path, self._find(path)[1]) for path in paths)
        return [DeviceNode(path, node) for path, node in found if node is not None and node.type == "char"]

    def _devices(self) -> Iterator[GpuDevice]:
        gpus = self._host.report.gpus
        for index, gpu in enumerate(gpus):
            if gpu.mig != "enabled":
                yield from self._device(index, None, gpu.uuid, gpu, (), self._drm_nodes(gpu))
        minors = dict(read_mig_minors(self._tree)) if any(gpu.mig_devices for gpu in gpus) else {}
        for index, gpu in enumerate(gpus):
            for mig_index, device in enumerate(gpu.mig_devices if gpu.mig == "enabled" else ()):
                yield from self._device(index, mig_index, device.uuid, gpu, _capability_nodes(gpu, device, minors), ())

    def _device(
        self, index: int, mig_index: int | None, uuid: str, gpu: Gpu, needed: Iterable[str], optional: Iterable[str]
    ) -> Iterator[GpuDevice]:
        """Yield the device, if all nodes are there that it does not work without."""
        nodes = [f"/dev/nvidia{gpu.minor}", *needed]
        contents = Contents(nodes=self._nodes([*nodes, *optional]))
        found = {node.path for node in contents.nodes}
        absent = [path for path in nodes if path not in found]
        if absent:
            self._missing.append(f"{uuid} is left out: this host has no device node {', '.join(absent)}")
            return
        contents.add_links(self._drm_links(gpu, found))
        yield GpuDevice(index, mig_index, uuid, contents)

    def _drm_nodes(self, gpu: Gpu) -> list[str]:
        names = self._facts.drm.get(_pci_address(gpu), ()) if self._facts is not None else ()
        return [f"/dev/dri/{name}" for name in names]

    def _drm_links(self, gpu: Gpu, nodes: set[str]) -> Iterator[str]:
        """Yield the links by which programs find the DRM nodes of a PCI address."""
        if not any(path.startswith("/dev/dri/") for path in nodes):
            return
        for kind in ("card", "render"):
            path = f"/dev/dri/by-path/pci-{_pci_address(gpu)}-{kind}"
            try:
                node = self._tree.lstat(path)
            except OSError:
                continue
            if node is not None and posixpath.normpath(posixpath.join(posixpath.dirname(path), node.target)) in nodes:
                yield f"{node.target}::{path}"


def _capability_nodes(gpu: Gpu, device: MigDevice, minors: Mapping[str, int]) -> list[str]:
    """Return the nodes that open a MIG device's GPU instance and compute instance to a container."""
    instance = f"gpu{gpu.minor}/gi{device.gpu_instance}"
    rows = (f"{instance}/access", f"{instance}/ci{device.compute_instance}/access")
    return [f"/dev/nvidia-caps/nvidia-cap{minors[row]}" if row in minors else f"for {row}" for row in rows]
