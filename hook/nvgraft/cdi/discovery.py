"""Find what a CDI specification of a host contains, as `nvidia-ctk cdi generate` does.

A specification contains more than a plan: all files of the driver, for every container, from the
driver's directories instead of the loader cache. :mod:`nvgraft.cdi.specification` turns it into
edits.

Source: reference behaviour 10.3.
"""

from __future__ import annotations

from nvgraft.base import paths
from nvgraft.base._os import os
from nvgraft.base.errors import Refusal
from nvgraft.base.values import Value
from nvgraft.cdi.edits import CdiMount, links_step
from nvgraft.host.graphics_files import FileFinder
from nvgraft.host.inventory import read_mig_minors
from nvgraft_specs import graphics_files as table
from nvgraft_specs import names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from nvgraft.formats.tree import Tree
    from nvgraft.host.components import Host, Libraries
    from nvgraft.host.gpus import Gpu, MigDevice
    from nvgraft.host.graphics_files import CharDevice

_BINARIES = (
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

CONTROL_NODES = (
    "/dev/nvidia-modeset",
    "/dev/nvidia-uvm-tools",
    "/dev/nvidia-uvm",
    "/dev/nvidiactl",
)

#: Features of the reference's generator (nvcdi-feature-flags of config.toml).
EXPLICIT_LIBRARIES = "enable-explicit-driver-libraries"
NO_SOCKETS = "disable-ipc-discoverer"

#: The libraries of EXPLICIT_LIBRARIES.
_EXPLICIT = (
    "libEGL.so",
    "libGL.so",
    "libGLESv1_CM.so",
    "libGLESv2.so",
    "libGLX.so",
    "libGLdispatch.so",
    "libOpenCL.so",
    "libOpenGL.so",
    "libnvidia-api.so",
    "libnvidia-egl-xcb.so",
    "libnvidia-egl-xlib.so",
)

_VOID = f"{names.VISIBLE_DEVICES}={names.VOID}"

_SOCKET_OPTIONS = ("nosuid", "nodev", "rbind", "rprivate", "noexec")


class CdiFacts(Value):
    """Facts that are not files of the driver root: the kernel's release, and the names of the DRM
    nodes of each PCI address.
    """

    def __init__(self, kernel: str, drm: Mapping[str, Sequence[str]]) -> None:
        self.kernel = kernel
        self.drm = drm


class Contents(Value):
    """What a container gets, in the order of discovery.

    :param steps: what hooks do, each as a sub-command of nvidia-cdi-hook and its arguments.
    """

    def __init__(
        self,
        *,
        env: Iterable[str] = (),
        nodes: Iterable[CharDevice] = (),
        mounts: Iterable[CdiMount] = (),
        steps: Iterable[tuple[str, ...]] = (),
    ) -> None:
        self.env = tuple(env)
        self.nodes = tuple(nodes)
        self.mounts = tuple(mounts)
        self.steps = tuple(steps)

    def __add__(self, other: Contents) -> Contents:
        return Contents(
            env=self.env + other.env,
            nodes=self.nodes + other.nodes,
            mounts=self.mounts + other.mounts,
            steps=self.steps + other.steps,
        )

    def without_steps(self, disabled: Collection[str]) -> Contents:
        """Return these contents without the steps of these names; "all" stands for every name."""
        kept = [step for step in self.steps if not {step[0], names.ALL} & set(disabled)]
        return Contents(env=self.env, nodes=self.nodes, mounts=self.mounts, steps=kept)


class FoundDevice(Value):
    """A GPU, or with ``mig_index`` one of its MIG devices, and what it needs; ``absent`` are device
    nodes that it needs and the host lacks.
    """

    def __init__(
        self,
        gpu_index: int,
        mig_index: int | None,
        uuid: str,
        contents: Contents,
        absent: tuple[str, ...] = (),
    ) -> None:
        self.gpu_index = gpu_index
        self.mig_index = mig_index
        self.uuid = uuid
        self.contents = contents
        self.absent = absent


class Discovered(Value):
    """The devices of a host, what each of them needs (``common``), and a line for each device that
    is left out.
    """

    def __init__(
        self, common: Contents, devices: Iterable[FoundDevice], missing: Iterable[str] = ()
    ) -> None:
        self.common = common
        self.devices = tuple(devices)
        self.missing = tuple(missing)


def live_facts(host: Host) -> CdiFacts:
    """Return the facts of this machine."""
    from nvgraft.host.live import drm_names

    drm = {}
    for gpu in host.report.gpus:
        address = _pci_address(gpu)
        drm[address] = drm_names(address)
    return CdiFacts(os.uname().release, drm)


def recorded_facts(document: Mapping[str, Any]) -> CdiFacts | None:
    """Return the facts of a checked ``nvgraft.host/1`` document, or None if it has none."""
    facts = document.get("cdi")
    return None if facts is None else CdiFacts(facts["kernel"], facts["drm"])


def cache_step(libraries: Iterable[str]) -> list[tuple[str, ...]]:
    """Return the step that enters the libraries' directories in the loader cache, as a list of one;
    without libraries it is empty.
    """
    folders = dict.fromkeys(
        paths.dirname(path)
        for path in libraries
        if (name := paths.basename(path)).startswith("lib") and ".so" in name[4:]
    )
    words = [word for folder in folders for word in ("--folder", folder)]
    return [("update-ldcache", *words)] if words else []


def library_links(tree: Tree, path: str, known: str | None = None) -> Iterator[str]:
    """Yield the links to a library at a resolved path, as ``TARGET::LINK``.

    These are links that programs need, also where the host lacks them, and the SONAME and .so links
    that the host has.

    :param known: the library's SONAME, if it is known; otherwise the library is read.
    """
    directory, name = paths.split(path)
    if name.count(".") < 2:
        return
    stem, _, rest = name.partition(".so")
    if rest.startswith(".") and "." in rest[1:]:
        if stem in {"libcuda", "libnvidia-opticalflow"}:
            yield f"{stem}.so.1::{directory}/{stem}.so"
        elif stem == "libGLX_nvidia":
            yield f"{name}::{directory}/libGLX_indirect.so.0"
    try:
        soname = known or tree.elf(path, sections=False).soname or name
    except (ValueError, OSError):
        return  # not a library, or its facts are not recorded
    if soname != name and _is_link(tree, f"{directory}/{soname}"):
        yield f"{name}::{directory}/{soname}"
    stem, so, rest = soname.rpartition(".so")
    link = stem + so
    if rest and _is_link(tree, f"{directory}/{link}"):
        yield f"{soname}::{directory}/{link}"


def _is_link(tree: Tree, path: str) -> bool:
    try:
        node = tree.lstat(path)
    except OSError:
        return False
    return node is not None and node.type == "symlink"


def discover(
    host: Host, search_path: str, facts: CdiFacts | None, finder: FileFinder | None = None
) -> Discovered:
    """Return the content of a CDI specification of ``host``.

    :param search_path: the directories of binaries, separated by ``:``.
    :param facts: None if they are not recorded.
    :param finder: finds files in the driver root; None if ``host`` has its loader cache, which a
        host from the kept inventory lacks.
    :raises Refusal: stage ``detection``, when the libraries of the driver's version are missing.
    """
    discovery = Discovery(host, search_path, facts, finder)
    common = discovery.common()
    devices = discovery.devices()
    missing = [
        f"{device.uuid} is left out: this host has no device node {', '.join(device.absent)}"
        for device in devices
        if device.absent
    ]
    return Discovered(common, [device for device in devices if not device.absent], missing)


def _pci_address(gpu: Gpu) -> str:
    """Return the address as in /sys: a PCI domain has four digits where they suffice."""
    return gpu.bus_id.removeprefix("0000")


class InstalledDriver:
    """Finds the files of a driver of one version, and the steps that make them usable.

    :param root: the driver root, as the host sees it.
    :param search_path: the directories of binaries, separated by ``:``.
    :param kernel: the kernel's release, or "".
    :param features: EXPLICIT_LIBRARIES, NO_SOCKETS.
    :param libraries: the host's libraries, if they were selected: their SONAMEs are not read again.
    """

    def __init__(
        self,
        finder: FileFinder,
        root: str,
        version: str,
        search_path: str,
        kernel: str,
        features: Collection[str] = (),
        libraries: Libraries | None = None,
    ) -> None:
        self._finder = finder
        self._root = root.rstrip("/")
        self._version = version
        self._search_path = search_path
        self._kernel = kernel
        self._features = features
        selected = libraries.wide if libraries is not None else ()
        self._sonames = {library.path: library.soname for library in selected}

    def contents(self) -> Contents:
        """Return all files but those of graphics.

        :raises Refusal: see :func:`discover`.
        """
        directories = self._driver_directories()
        libraries = self._libraries(directories)
        return Contents(
            env=[f"{names.LIBCUDA_DIR}={':'.join(directories)}"],
            mounts=[
                *map(self._mount, libraries),
                *(() if NO_SOCKETS in self._features else self._sockets()),
                *self._firmware(),
                *self._binaries(_BINARIES),
            ],
            steps=[
                *links_step(self._library_links(libraries)),
                ("enable-cuda-compat", f"--host-driver-version={self._version}"),
                *cache_step(libraries),
                ("disable-device-node-modification",),
            ],
        )

    def graphics(self) -> tuple[list[CdiMount], list[str]]:
        """Return the files of graphics, and links to them as ``TARGET::LINK``."""
        files, links = self._finder.graphics_files(self._version)
        mounts = [self._mount(mount.path, mount.target) for mount in files]
        return [*mounts, *self._binaries([table.XORG_BINARY])], links

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

    def _libraries(self, directories: Sequence[str]) -> list[str]:
        files = [
            *self._finder.matching(
                [*directories, *(f"{directory}/vdpau" for directory in directories)],
                f"*.so.{self._version}",
            ),
            *self._finder.matching(directories, "libnvidia-nvvm70.so.*"),
        ]
        if EXPLICIT_LIBRARIES in self._features:
            files += [path for name in _EXPLICIT for path in self._finder.libraries(name)]
        return list(dict.fromkeys(self._finder.find(path)[0] for path in files))

    def _library_links(self, libraries: Iterable[str]) -> Iterator[str]:
        for path in libraries:
            yield from library_links(self._finder.tree, path, self._sonames.get(path))

    # ---- services and firmware

    def _sockets(self) -> Iterator[CdiMount]:
        for name in _SERVICE_SOCKETS:
            for path in self._finder.first(("/run", "/var/run"), name):
                yield self._mount(path, options=_SOCKET_OPTIONS)
        if self._finder.find(_MPS_DIRECTORY)[1] is not None:
            yield self._mount(_MPS_DIRECTORY, options=_SOCKET_OPTIONS)

    def _firmware(self) -> Iterator[CdiMount]:
        directories = [
            path
            for top in ("/lib/firmware/updates", "/lib/firmware")
            for path in (f"{top}/{self._kernel}" if self._kernel else top, top)
        ]
        return map(
            self._mount, self._finder.matching(directories, f"nvidia/{self._version}/gsp*.bin")
        )

    def _binaries(self, programs: Iterable[str]) -> Iterator[CdiMount]:
        directories = self._search_path.split(":")
        for name in programs:
            yield from map(self._mount, self._finder.first(directories, name, executable=True))


class Discovery:
    """Finds what devices of one host need. For the parameters see :func:`discover`.

    :param features: EXPLICIT_LIBRARIES, NO_SOCKETS.
    :param proc_tree: the tree with /proc; None if the driver root has it.
    """

    def __init__(
        self,
        host: Host,
        search_path: str,
        facts: CdiFacts | None,
        finder: FileFinder | None = None,
        features: Collection[str] = (),
        proc_tree: Tree | None = None,
    ) -> None:
        self._host = host
        self._proc_tree = proc_tree or host.tree
        self._finder = finder or FileFinder(host.tree, host.machine, lambda: host.entries)
        self._facts = facts
        self._files = InstalledDriver(
            self._finder,
            host.root,
            host.report.driver_version,
            search_path,
            facts.kernel if facts is not None else "",
            features,
            host.libraries,
        )
        self._minors: dict[str, int] | None = None

    def common(self) -> Contents:
        """Return what every device needs.

        :raises Refusal: see :func:`discover`.
        """
        contents = self._files.contents()
        graphics, links = self._files.graphics()
        return Contents(
            env=[*contents.env, _VOID],
            nodes=self._finder.char_devices(CONTROL_NODES),
            mounts=[*graphics, *contents.mounts],
            steps=[*links_step(links), *contents.steps, ("update-application-profile",)],
        )

    # ---- devices

    def devices(self) -> list[FoundDevice]:
        """Return the GPUs without MIG, and the MIG devices."""
        gpus = self._host.report.gpus
        found = [self.gpu(index) for index, gpu in enumerate(gpus) if gpu.mig != "enabled"]
        found += [
            self.mig_device(index, mig_index)
            for index, gpu in enumerate(gpus)
            for mig_index in range(len(gpu.mig_devices) if gpu.mig == "enabled" else 0)
        ]
        return found

    def gpu(self, index: int) -> FoundDevice:
        """Return a whole GPU by NVML's index."""
        gpu = self._host.report.gpus[index]
        return self._device(index, None, gpu.uuid, gpu, (), self._drm_nodes(gpu))

    def mig_device(self, index: int, mig_index: int) -> FoundDevice:
        """Return a MIG device of a GPU."""
        gpu = self._host.report.gpus[index]
        device = gpu.mig_devices[mig_index]
        needed = _capability_nodes(gpu, device, self._mig_minors())
        return self._device(index, mig_index, device.uuid, gpu, needed, ())

    def _mig_minors(self) -> dict[str, int]:
        if self._minors is None:
            self._minors = dict(read_mig_minors(self._proc_tree))
        return self._minors

    def _device(
        self,
        index: int,
        mig_index: int | None,
        uuid: str,
        gpu: Gpu,
        needed: Iterable[str],
        optional: Iterable[str],
    ) -> FoundDevice:
        required = [f"/dev/nvidia{gpu.minor}", *needed]
        nodes = self._finder.char_devices([*required, *optional])
        present = {node.path for node in nodes}
        links = [
            link
            for kind in ("card", "render")
            for link in self._finder.drm_links(present, f"pci-{_pci_address(gpu)}-{kind}")
        ]
        contents = Contents(nodes=nodes, steps=links_step(links))
        absent = tuple([path for path in required if path not in present])
        return FoundDevice(index, mig_index, uuid, contents, absent)

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
