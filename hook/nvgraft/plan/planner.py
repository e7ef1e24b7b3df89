"""Make the plan: a pure function from Request, Inventory and Target.

The planner works in the reference's order of mounts (reference behaviour 6.5). This order is
visible in mountinfo, and it decides which of several faults is named. The container is read only
through :class:`Target`, nothing is changed, and a live host and its snapshot give the same plan.
"""

from __future__ import annotations

from nvgraft.base import paths
from nvgraft.base.errors import Refusal
from nvgraft.base.finding import Finding
from nvgraft.container.target import BINARIES_DIRECTORY, OnVolume, Target
from nvgraft.formats.ldcache import loader_flags
from nvgraft.formats.tree import PathError
from nvgraft.host.components import (
    NO_LIBRARY,
    Component,
    DeviceNode,
    Firmware,
    Inventory,
    ProcEntry,
    Socket,
    device_file_minor,
    mig_access_path,
)
from nvgraft.plan.actions import (
    Injection,
    MountedLibrary,
    PlanHost,
    PlanTarget,
    UpdateLoaderCache,
    Why,
)
from nvgraft.plan.compat import compat_directory
from nvgraft.plan.device_selection import Selection, check_mig_request, select_devices
from nvgraft.plan.layout import TMPFS_MODE, Layout
from nvgraft.plan.soname_links import soname_links
from nvgraft_specs import catalogue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from typing import TypeVar

    from nvgraft.plan.settings import Settings
    from nvgraft.request.request import Request
    from nvgraft_specs.catalogue import CatalogueRow

    _Part = TypeVar("_Part")

# Options per kind of mount, as mountinfo shows them (reference behaviour 6.4).
_FILE_OPTIONS = ("nodev", "nosuid", "ro")
_DEVICE_OPTIONS = ("noexec", "nosuid", "ro")
_SOCKET_OPTIONS = ("nodev", "noexec", "nosuid", "rw")
_PROC_OPTIONS = ("nodev", "noexec", "nosuid", "ro")
_CAPS_OPTIONS = ("noexec", "nosuid", "rw")

PROC_DIRECTORY = "/proc/driver/nvidia"
_PROFILE_DIRECTORY = "/etc/nvidia/nvidia-application-profiles-rc.d"
_PROFILE_NAME = "10-container.conf"
_CAPS_DIRECTORY = "/dev/nvidia-caps"

#: What every loader cache step looks at in /etc.
_LOADER_FILES = ("ld.so.cache", "ld.so.cache~", "ld.so.conf")


def read_in_order(
    read: Callable[[], Inventory],
    request: Request,
    driver_version: str,
    target: Target,
    settings: Settings,
) -> Inventory:
    """Return the inventory that ``read`` reads.

    :raises Refusal: in the reference's order: a fault of the container comes before one of the
        driver's files, and after NVML's.
    """
    try:
        return read()
    except Refusal as refusal:
        if refusal.stage != "initialization":
            _compat(request, driver_version, target, settings)
        raise


def _compat(
    request: Request, driver_version: str, target: Target, settings: Settings
) -> tuple[str | None, list[Finding]]:
    compute = any("compute" in catalogue.LIBRARY_CLASSES[name] for name in request.capabilities)
    return compat_directory(target, driver_version, settings.cuda_compat, compute=compute)


def make_plan(
    request: Request, inventory: Inventory, target: Target, settings: Settings
) -> Injection:
    """Decide what a container gets.

    :raises Refusal: in the reference's words, for the first fault in the reference's order.
    """
    # As in the reference, a fault of the compat directory is refused before the devices are
    # checked.
    compat, remarks = _compat(request, inventory.report.driver_version, target, settings)
    selection = select_devices(request.devices, inventory.report.gpus)
    check_mig_request("mig-config", request.mig_config, selection)
    check_mig_request("mig-monitor", request.mig_monitor, selection)
    _check_requirements(request, inventory, selection)
    planner = _Planner(request, inventory, target, settings, selection)
    planner.driver()
    for index in selection.gpus:
        planner.gpu(index)
    planner.mig()
    planner.imex()
    planner.loader_cache(compat)
    planner.findings.extend(remarks)
    planner.remarks()
    return Injection(
        "the container asks for " + (", ".join(request.devices) or "driver files without devices"),
        PlanHost(
            name=inventory.host_name,
            root=inventory.root.rstrip("/") or "/",
            driver_version=inventory.report.driver_version,
            cuda_version=inventory.report.cuda_version,
        ),
        request,
        PlanTarget(
            rootfs=target.rootfs,
            libs_dir=target.libs_dir,
            libs32_dir=target.libs32_dir,
            bins_dir=BINARIES_DIRECTORY,
            uid=target.uid,
            gid=target.gid,
        ),
        tuple(planner.layout.actions),
        tuple(sorted(planner.links.items())),
        tuple(planner.findings),
    )


def _check_requirements(request: Request, inventory: Inventory, selection: Selection) -> None:
    if not request.requirements:
        return
    from nvgraft.request.requirements import check
    from nvgraft_specs import brands

    chosen = [*selection.gpus, *(selected.gpu for selected in selection.migs)]
    report = inventory.report
    gpus = [report.gpus[index] for index in chosen]
    devices = [(gpu.arch, brands.name(gpu.brand)) for gpu in gpus]
    check(request.requirements, report.driver_version, report.cuda_version, devices)


class _Planner:
    """One plan that is being made: the steps of the reference, each of which adds to the layout."""

    def __init__(
        self,
        request: Request,
        inventory: Inventory,
        target: Target,
        settings: Settings,
        selection: Selection,
    ) -> None:
        self.request = request
        self.inventory = inventory
        self.target = target
        self.settings = settings
        self.selection = selection
        self.layout = Layout(target, cgroups=settings.cgroups, root=inventory.root)
        self.links: dict[str, str] = {}
        self.findings: list[Finding] = []
        self._libraries: list[MountedLibrary] = []
        capabilities = request.capabilities
        self.library_classes = _switched_on(capabilities, catalogue.LIBRARY_CLASSES)
        self.binary_classes = _switched_on(capabilities, catalogue.BINARY_CLASSES)
        self.compute = "compute" in self.library_classes
        self.profile = profile_of(capabilities)

    # ---- the reference's steps, in its order

    def driver(self) -> None:
        """Plan everything that does not depend on the selected devices."""
        self._proc_tmpfs()
        if self.profile:
            self._application_profile()
        self._binaries()
        self._all_libraries()
        files = self.inventory.files
        for firmware in files.firmware:
            self._optional("firmware", firmware.target, self._firmware, firmware)
        for socket in files.sockets:
            if socket.component_class in self.library_classes:
                self._optional("socket", socket.path, self._socket, socket)
        if files.mps is not None and self.compute:
            self._optional("mps", files.mps.path, self._socket, files.mps)
        for node in self.inventory.devices.control:
            self._control(node)

    def gpu(self, index: int) -> None:
        """Plan a GPU's node and its /proc directory."""
        device = self.inventory.devices.gpus[index]
        gpu = device.gpu
        self._device(
            device.node, Why("device", f"GPU {index}", f"NVML: {gpu.uuid}, minor {gpu.minor}")
        )
        if device.proc_directory is None:
            path = f"{PROC_DIRECTORY}/gpus/{gpu.bus_id[4:]}"
            raise Refusal(
                "mount",
                f"stat failed: {path}: no such file or directory",
                "NVML reports this GPU, but the kernel module does not: reboot",
            )
        why = Why("device", f"GPU {index}", f"PCI address {gpu.bus_id}")
        self._proc("dir", device.proc_directory, why)

    def mig(self) -> None:
        """Plan access to MIG devices, or to the administration of MIG."""
        requests = (("config", self.request.mig_config), ("monitor", self.request.mig_monitor))
        administered = [name for name, value in requests if "all" in value.lower().split(",")]
        if not administered:
            for selected in self.selection.migs:
                gpu, device = self.inventory.report.gpus[selected.gpu], selected.device
                why = Why(
                    "device",
                    f"MIG {device.uuid}",
                    f"GPU instance {device.gpu_instance}, compute instance"
                    f" {device.compute_instance}",
                )
                for compute in (False, True):
                    self._mig_access(mig_access_path(gpu, device, compute=compute), why)
            return
        gpus = [self.inventory.report.gpus[index] for index in self.selection.gpus]
        capable = [gpu for gpu in gpus if gpu.mig != "unsupported"]
        if not capable:
            return
        for name in administered:
            self._mig_administration(name, [gpu.minor for gpu in capable])

    def imex(self) -> None:
        """Plan the requested IMEX channels."""
        nodes = {node.rdev[1]: node for node in self.inventory.devices.imex_channels}
        for channel in self.request.imex_channels.ids():
            path = f"/dev/nvidia-caps-imex-channels/channel{channel}"
            if channel not in nodes:
                raise Refusal(
                    "mount",
                    f"stat failed: {path}: no such file or directory",
                    "create the channel on the host (nvidia-modprobe), or do not request it",
                )
            self._device(
                nodes[channel], Why("device", f"IMEX channel {channel}", "NVIDIA_IMEX_CHANNELS")
            )

    def loader_cache(self, compat: str | None) -> None:
        """Plan the loader cache step. Libraries in the image's directory ``compat`` come first."""
        directories = [] if compat is None else [compat]
        for directory in (self.target.libs_dir, self.target.libs32_dir):
            try:
                resolved = self.target.tree.resolve(directory)
            except (PathError, OnVolume):
                # No library is mounted there, or it would have been refused: the directory is not
                # needed.
                continue
            if resolved not in directories:
                directories.append(resolved)
        self._check_written(directories)
        why = Why("", "loader cache", "the loader finds libraries through /etc/ld.so.cache")
        loadable = [library for library in self._libraries if library.soname]
        self.layout.actions.append(UpdateLoaderCache(tuple(directories), why, tuple(loadable)))
        links, findings = soname_links(self.target.tree, self._libraries)
        self.links.update(links)
        self.findings.extend(findings)
        if self._libraries and self.target.has_musl_alone():
            self._warn(
                "musl",
                "the image uses musl, which does not read /etc/ld.so.cache, and the"
                " driver's libraries need glibc",
                "use an image with glibc (Debian, Ubuntu, Red Hat); musl only searches the"
                " directories of LD_LIBRARY_PATH",
            )

    def _check_written(self, directories: Iterable[str]) -> None:
        """Refuse an image in which the loader cache step would write into a mount of the driver,
        that is, to the host, or wait for a FUSE volume.
        """
        for directory in directories:
            self.layout.check_visible("", directory)
        try:
            etc = self.target.tree.resolve("/etc")
        except PathError:
            return  # the loader cache step reports that there is no /etc
        self.layout.check_visible("", etc)
        for name in _LOADER_FILES:
            self.target.demand(f"{etc}/{name}")

    def remarks(self) -> None:
        """Add the findings about this host."""
        report, files = self.inventory.report, self.inventory.files
        if not report.gpus:
            self._warn(
                "no-gpu",
                "NVML reports no GPU: the container gets driver files and control devices only",
                "run nvidia-smi -L on the host",
            )
        if not files.libraries:
            version = report.driver_version
            self._warn(
                "no-libraries",
                f"no library in the loader cache ends in the driver version {version}: no"
                " library is mounted",
                "the libraries on this host belong to another driver version: reinstall the"
                " driver, and run ldconfig",
            )
        enabled = set(self.library_classes) | set(self.binary_classes)
        absent = [row.name for row in files.missing if row.component_class in enabled]
        if absent and files.libraries:
            self.findings.append(
                Finding(
                    "not-on-host",
                    "info",
                    "not on this host: " + ", ".join(absent),
                    "some driver versions and packages do not have them",
                )
            )

    # ---- parts

    def _proc(self, kind: str, entry: ProcEntry, why: Why) -> None:
        """Plan the bind of an entry of the driver's /proc directory on its own path in the planned
        tmpfs.
        """
        if kind == "dir":
            self.layout.directory(entry.path, entry.mode, why)
        else:
            self.layout.placeholder(entry.path, entry.mode, why)
        self.layout.bind(kind, "proc", entry.path, entry.path, _PROC_OPTIONS, entry.mode, why)

    def _optional(self, kind: str, path: str, step: Callable[[_Part], None], part: _Part) -> None:
        """Run a step whose target may be on a volume: then it is skipped. Hostile links are still
        refused (SECURITY R18).
        """
        rewind = self.layout.checkpoint()
        try:
            step(part)
        except OnVolume as refusal:
            rewind()
            self._warn(f"{kind}-skipped", f"{path} is left out: {refusal.text}", refusal.hint)

    def _warn(self, id: str, message: str, hint: str) -> None:
        self.findings.append(Finding(id, "warning", message, hint))

    def _proc_tmpfs(self) -> None:
        node = self.target.proc_driver()
        why = Why(
            "",
            PROC_DIRECTORY,
            "the container sees its own devices in the driver's /proc directory",
        )
        if node is None:
            if not self.settings.simulated:
                raise Refusal(
                    "mount",
                    f"mount operation failed: {self.target.rootfs}{PROC_DIRECTORY}: no such"
                    " file or directory",
                    "load the nvidia kernel module on the host, or mount a procfs at /proc"
                    " in config.json: one of both is missing",
                )
            simulated = Why(
                "", PROC_DIRECTORY, "simulated-host: no kernel module provides this directory"
            )
            self.layout.mount_tmpfs("/proc/driver", "/proc/driver", simulated)
            self.layout.make_directory(PROC_DIRECTORY, TMPFS_MODE, simulated)
        self.layout.mount_tmpfs(PROC_DIRECTORY, PROC_DIRECTORY, why)
        for entry in self.inventory.proc_files:
            content = entry.content or ""
            if entry.path.endswith("/params"):
                # The driver's libraries must not try to make device nodes in a container.
                content = content.replace("ModifyDeviceFiles: 1", "ModifyDeviceFiles: 0", 1)
            self.layout.write_file(
                entry.path,
                entry.mode,
                content,
                Why("", paths.basename(entry.path), f"copied from {entry.path}"),
            )

    def _application_profile(self) -> None:
        why = Why(self.profile, "application profile", "EGL must offer only the container's GPUs")
        path = self.layout.resolve(_PROFILE_DIRECTORY)
        self.layout.directory(path, TMPFS_MODE, why)
        self.layout.mount_tmpfs(_PROFILE_DIRECTORY, path, why)
        mask = 0
        for index in self.selection.gpus:
            mask |= 1 << self.inventory.report.gpus[index].minor
        if self.selection.gpus:
            content = (
                '{ "profiles": [{"name": "_container_", "settings": ["EGLVisibleDGPUDevices", '
                f'{mask & (1 << 64) - 1:#x}]}}], "rules": [{{"pattern": [], "profile":'
                ' "_container_"}]}'
            )
            self.layout.write_file(f"{path}/{_PROFILE_NAME}", TMPFS_MODE, content, why)

    def _binaries(self) -> None:
        if not self.inventory.files.binaries:
            return
        directory = self.layout.directory_for_mounts(BINARIES_DIRECTORY)
        for component, row in _matching(
            self.inventory.files.binaries, catalogue.BINARIES, self.binary_classes
        ):
            self._component(
                component,
                f"{directory}/{component.name}",
                Why(self.binary_classes[row.component_class], row.name, component.found),
            )

    def _all_libraries(self) -> None:
        wide, narrow = loader_flags(self.inventory.machine)
        self._library_directory(self.inventory.files.libraries, self.target.libs_dir, wide)
        if "compat32" in self.request.capabilities:
            libraries32 = self.inventory.files.libraries32
            self._library_directory(libraries32, self.target.libs32_dir, narrow)
        for library in self._libraries:
            for prefix, name, link_target in catalogue.LIBRARY_LINKS:
                if library.name.startswith(prefix):
                    why = Why("", prefix, f"programs open {name} by this name")
                    path = f"{library.directory}/{name}"
                    self.layout.symlink(path, link_target or library.name, why)

    def _library_directory(
        self, components: Sequence[Component], requested: str, flags: int
    ) -> None:
        if not components:
            return
        directory = self.layout.directory_for_mounts(requested)
        chosen = list(_matching(components, catalogue.LIBRARIES, self.library_classes))
        if chosen and self.target.volume(f"{directory}/") is None:
            # One listing, which soname_links() needs anyway, answers for all names that are not
            # there. On a volume it waits until something is known to be mounted there.
            self.target.tree.listdir(directory)
        for component, row in chosen:
            soname = component.name if component.soname is None else component.soname
            library = MountedLibrary(directory, component.name, soname, flags)
            why = Why(self.library_classes[row.component_class], row.name, component.found)
            self._component(component, library.path, why)
            self._libraries.append(library)
            if component.soname == NO_LIBRARY:
                self._warn(
                    "library-damaged",
                    f"{component.path} is not a library that a loader accepts",
                    "reinstall the driver: programs in the container cannot load this library",
                )

    def _component(self, component: Component | Firmware, target: str, why: Why) -> None:
        self.layout.placeholder(target, component.mode, why)
        self.layout.bind(
            "file",
            "driver",
            component.path,
            target,
            _FILE_OPTIONS,
            component.mode,
            why,
            size=component.size,
        )

    def _firmware(self, firmware: Firmware) -> None:
        why = Why("", "GSP firmware", firmware.found)
        self._component(firmware, self.layout.resolve(firmware.target), why)

    def _socket(self, component: Socket) -> None:
        why = Why(component.component_class, component.well_known, component.found)
        target = self.layout.resolve(component.path)
        if component.kind == "dir":
            self.layout.directory(target, component.mode, why)
            self.layout.bind_directory(
                "driver",
                component.path,
                component.path,
                target,
                _SOCKET_OPTIONS,
                component.mode,
                why,
            )
        else:
            self.layout.placeholder(target, component.mode, why, accept=component.kind)
            self.layout.bind(
                component.kind,
                "driver",
                component.path,
                target,
                _SOCKET_OPTIONS,
                component.mode,
                why,
            )

    def _control(self, device: DeviceNode) -> None:
        modeset = device.path.endswith("-modeset")
        if modeset and "display" not in self.request.capabilities:
            return
        if not self.compute and device.rdev[0] != catalogue.NVIDIA_MAJOR:
            return
        capability = ""
        if modeset:
            capability = "display"
        elif device.rdev[0] != catalogue.NVIDIA_MAJOR:
            capability = "compute"
        self._device(device, Why(capability, paths.basename(device.path), "control device"))

    def _device(self, device: DeviceNode, why: Why) -> None:
        if self.settings.devbind:
            self._bind_device(device, why)
        self.layout.allow_device(device.rdev, why)

    def _bind_device(self, device: DeviceNode, why: Why) -> None:
        if device.node is None:
            hint = (
                "the host lacks the node: load the nvidia modules and run nvidia-modprobe, or"
                " set load-kmods = true; on a Jetson or WSL2, which have no such node, start the"
                " container with nvgraft-runtime in mode auto"
            )
            raise Refusal("mount", f"stat failed: {device.path}: no such file or directory", hint)
        if device.node.type != "char" or device.node.rdev != device.rdev:
            have = (
                device.node.type if device.node.rdev is None else "{}:{}".format(*device.node.rdev)
            )
            raise Refusal(
                "mount",
                f"invalid device node: {device.path}",
                f"it is {have} and should be {device.rdev[0]}:{device.rdev[1]}: remove it"
                " on the host",
            )
        target = self.layout.resolve(device.path)
        self.layout.placeholder(target, device.node.mode, why, accept="char", rdev=device.rdev)
        self.layout.bind(
            "device",
            "dev",
            device.path,
            target,
            _DEVICE_OPTIONS,
            device.node.mode,
            why,
            device.rdev,
        )

    def _mig_access(self, path: str, why: Why) -> None:
        entry = self._access_file(path)
        if entry is None:
            raise Refusal(
                "mount",
                f"stat failed: {path}: no such file or directory",
                "NVML reports this MIG device, but the kernel module does not: reboot",
            )
        self._proc("file", entry, why)
        if self.inventory.mig.major is None:
            return  # this driver grants access to MIG by files in /proc alone
        node = self._cap_node(entry)
        self._device(node, why)

    def _cap_node(self, entry: ProcEntry) -> DeviceNode:
        minor = device_file_minor(entry)
        node = next((node for node in self.inventory.mig.nodes if node.rdev[1] == minor), None)
        if node is None:
            raise Refusal(
                "mount",
                f"stat failed: {entry.path}: no DeviceFileMinor in it",
                "the versions of the kernel module and of the driver's libraries differ: reboot",
            )
        return node

    def _mig_administration(self, name: str, minors: Sequence[int]) -> None:
        why = Why("device", f"MIG {name}", f"NVIDIA_MIG_{name.upper()}_DEVICES=all")
        mig = self.inventory.mig
        if mig.proc_directory is None:
            raise Refusal(
                "mount",
                f"stat failed: {PROC_DIRECTORY}/capabilities: no such file or directory",
                "the kernel module has no MIG capabilities: load the module of a driver"
                " that supports MIG",
            )
        self._proc("dir", mig.proc_directory, why)
        if mig.major is None:
            return
        if mig.dev_directory is None:
            raise Refusal(
                "mount",
                f"stat failed: {_CAPS_DIRECTORY}: no such file or directory",
                "run nvidia-modprobe on the host to make the nodes",
            )
        target = self.layout.resolve(_CAPS_DIRECTORY)
        mode = mig.dev_directory.mode
        self.layout.directory(target, mode, why)
        self.layout.bind_directory(
            "dev", _CAPS_DIRECTORY, _CAPS_DIRECTORY, target, _CAPS_OPTIONS, mode, why
        )
        access = self._access_file(f"{PROC_DIRECTORY}/capabilities/mig/{name}")
        if access is not None:
            self.layout.allow_device((mig.major, self._cap_node(access).rdev[1]), why)
        for minor in minors:
            for capability, cap_minor in mig.minors:
                if capability.startswith(f"gpu{minor}/"):
                    self.layout.allow_device((mig.major, cap_minor), why)

    def _access_file(self, path: str) -> ProcEntry | None:
        return next((file for file in self.inventory.mig.access_files if file.path == path), None)


def profile_of(capabilities: Collection[str]) -> str:
    """Return the capability for which a container gets an application profile, or "".

    The profile is the one file that depends on both the capabilities and the devices.
    """
    return next((name for name in ("display", "graphics") if name in capabilities), "")


def _switched_on(
    capabilities: Iterable[str], classes: Mapping[str, tuple[str, ...]]
) -> dict[str, str]:
    """Return the classes that ``capabilities`` switch on, each with the capability to name.

    Several capabilities may switch a class on. The one with the name of the class says most.
    """
    switched: dict[str, str] = {}
    for capability in capabilities:
        for name in classes.get(capability, ()):
            if name == capability or name not in switched:
                switched[name] = capability
    return switched


def _matching(
    components: Iterable[Component], table: Iterable[CatalogueRow], classes: Collection[str]
) -> Iterator[tuple[Component, CatalogueRow]]:
    """Yield the components whose name starts with the name of a row of an enabled class, with that
    row.

    At most one row of a table matches a name. It is not always the row that the component was
    found by, because that may have named a link to it.
    """
    for component in components:
        name = component.name
        row: CatalogueRow | None = component.row
        if not name.startswith(component.row.name):
            row = next((other for other in table if name.startswith(other.name)), None)
        if row is not None and row.component_class in classes:
            yield component, row
