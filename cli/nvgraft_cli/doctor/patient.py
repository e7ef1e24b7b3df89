"""The facts that checks read about a host and a container, also where a part of them is broken."""

import re
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from nvgraft.base.errors import Refusal
from nvgraft.cdi import platform
from nvgraft.formats.ldcache import SIZE_LIMIT
from nvgraft.formats.ldcache_entries import CacheEntry, parse
from nvgraft.formats.tree import Node, PathError, Tree
from nvgraft.host.gpus import Gpu
from nvgraft.host.places import open_driver_root
from nvgraft.host.snapshot import SnapshotTree
from nvgraft.plan.actions import (
    AllowDevice,
    Bind,
    Injection,
    MountedLibrary,
    Plan,
    UpdateLoaderCache,
)
from nvgraft_cli.case.bundle import ContainerSide
from nvgraft_cli.case.hosts import HostSide
from nvgraft_cli.case.planned_tree import PlannedTree
from nvgraft_cli.case.planning import Case
from nvgraft_cli.doctor.cuda_devices import (
    VARIABLE,
    CudaDevice,
    CudaDevices,
    find_devices,
    open_devices,
)
from nvgraft_cli.prove.opened import CaseProofs, needed_capabilities
from nvgraft_cli.prove.proof import Proof
from nvgraft_cli.prove.start.architecture import foreign_program
from nvgraft_cli.prove.start.program import (
    StartedProgram,
    missing_loader,
    missing_program,
    started_program,
)
from nvgraft_cli.prove.start.start_failure import StartFailure
from nvgraft_specs import brands, names

if TYPE_CHECKING:
    from nvgraft_cli.doctor.machine import Machine
    from nvgraft_cli.pods.handover import PodOnNode

#: Bytes of a file of the node that is read whole.
TEXT_LIMIT = 1 << 20


class NotChecked(Exception):
    """A check cannot be made; the text says why."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One problem: what was seen, its cause, and how to fix it.

    :ivar sentence: how CUDA fails because of it in a container that starts; "" if it does not.
    :ivar breaks: what of the driver's programs fails because of it in a container that starts; ""
        for nothing, or for what ``sentence`` says.
    :ivar stops: whether the container does not start because of it.
    :ivar of_host: whether it is about the host, although its check is about containers too.
    :ivar phrase: what users see, if it is not the phrase of the failure.
    """

    message: str
    cause: str
    fix: str
    level: str = "error"
    sentence: str = ""
    breaks: str = ""
    stops: bool = False
    of_host: bool = False
    phrase: str = ""


GPU_NODE = re.compile(r"/dev/nvidia\d+")
#: The node of all GPUs of WSL2, and those of a Tegra board's GPU, of either kernel module.
WSL_NODE = "/dev/dxg"
TEGRA_NODES = ("/dev/nvhost-gpu", "/dev/nvgpu/igpu0/ctrl")

Check = Callable[["Patient"], Iterator[Diagnosis]]


class Patient:
    """The host and the container to check.

    A property whose facts are missing raises :class:`NotChecked`.
    """

    def __init__(
        self,
        host: HostSide,
        container: ContainerSide | None,
        cdi: list[str],
        machine: "Machine | None" = None,
        *,
        case: Case | None = None,
        pod: "PodOnNode | None" = None,
    ) -> None:
        self.host = host
        self._container = container
        self.cdi = cdi
        self._machine = machine
        self._case = case
        self._pod = pod

    @cached_property
    def machine(self) -> "Machine":
        """The facts about this machine that no snapshot records."""
        if self.host.document is not None:
            raise NotChecked("this can be checked on the node only, not from a snapshot")
        from nvgraft_cli.doctor.machine import this_machine

        return self._machine or this_machine()

    @property
    def has_container(self) -> bool:
        """Whether a container was given."""
        return self._container is not None

    @property
    def container(self) -> ContainerSide:
        """The container."""
        if self._container is None:
            raise NotChecked("no container was given (--container)")
        return self._container

    @property
    def rootfs(self) -> Tree:
        """The files of the image."""
        if not self.container.rootfs_known:
            raise NotChecked("a config.json alone does not show the image's files")
        return self.container.rootfs

    def member(self, *path: str) -> Any:
        """Return the member of config.json at ``path``, as the container does."""
        return self.container.member(*path)

    def objects(self, *path: str) -> list[dict[str, Any]]:
        """Return the objects of the list at ``path`` in config.json; none if it is not a list."""
        items = self.member(*path)
        if not isinstance(items, list):
            return []
        return [item for item in items if isinstance(item, dict)]

    @property
    def by_podman(self) -> bool:
        """Whether config.json says that podman wrote it."""
        return bool(self.member("annotations", "io.container.manager") == "libpod")

    @cached_property
    def case(self) -> Case:
        """The container on the host."""
        return self._case or Case(self.host, self.container)

    @property
    def has_pod(self) -> bool:
        """Whether a pod was given."""
        return self._pod is not None

    @property
    def pod(self) -> "PodOnNode":
        """The pod of the container, on its node."""
        assert self._pod is not None
        return self._pod

    @property
    def by_edits(self) -> bool:
        """Whether a container was given that gets CDI edits in the place of the hook."""
        return self.has_container and self.case.by_edits

    def check_hook_acts(self) -> None:
        """Check that the hook, not CDI edits, gives the container its GPUs.

        :raises NotChecked: CDI edits do.
        """
        if self.by_edits:
            raise NotChecked("in this mode the engine's runtime adds CDI edits, and calls no hook")

    @cached_property
    def capabilities(self) -> set[str]:
        """The capabilities that the programs of the container need."""
        return needed_capabilities(self.case, self.injected.request)

    @cached_property
    def refusal(self) -> Refusal | None:
        """Why the hook would refuse the container; None when it would not."""
        return self.case.outcome[1]

    @cached_property
    def plan(self) -> Plan:
        """The plan of a container that starts."""
        plan, refusal = self.case.outcome
        if refusal is not None:
            raise NotChecked(f"the container would be refused: {refusal.text}")
        return plan

    @property
    def injected(self) -> Injection:
        """The plan of a container that gets driver files."""
        if not isinstance(self.plan, Injection):
            raise NotChecked(f"the container gets nothing: {self.plan.reason}")
        return self.plan

    @cached_property
    def planned(self) -> PlannedTree:
        """The container's file system after the plan is applied."""
        _ = self.rootfs
        _ = self.injected
        return self.case.planned_tree

    @cached_property
    def started(self) -> StartedProgram:
        """The container's program, with what starts it."""
        _ = self.rootfs
        return started_program(self.case.planned_tree, self.container)

    @cached_property
    def foreign_program(self) -> tuple[str, str] | None:
        """The path and the architecture of the container's program if the host does not run it."""
        started, machine = self.started, self.host.facts.machine
        return foreign_program(self.case.planned_tree, started, machine)

    @cached_property
    def missing_program(self) -> StartFailure | None:
        """Why the container's program does not start, None if it does as far as its loader."""
        _ = self.rootfs, self.plan
        return missing_program(self.case.planned_tree, self.container)

    @cached_property
    def missing_loader(self) -> str:
        """The kernel's words for a program of the container whose loader is not there, or ""."""
        return missing_loader(self.planned, self.container, self.started)

    @cached_property
    def proofs(self) -> CaseProofs:
        """What loads in the container."""
        return CaseProofs(self.case)

    def proof(self, name: str) -> Proof:
        """Return what ``nvgraft prove`` says of a library or program of the container; it is asked
        once.

        :raises NotChecked: the host does not run the container's program, so it opens nothing.
        """
        _ = self.planned
        if self.foreign_program is not None:
            path, architecture = self.foreign_program
            raise NotChecked(f"{path} of the image is for {architecture}, so it does not start")
        return self.proofs.proof(name)

    @property
    def program(self) -> str:
        """The path of the program that the container runs, or ""."""
        _ = self.planned
        return self.started.path

    @property
    def environment(self) -> dict[str, str]:
        """The variables of the program that the container runs, as far as its files are known."""
        if not self.container.rootfs_known:
            return dict(self.container.spec.env)
        _ = self.planned
        return self.started.environment

    def with_plan_of(self, given: "Patient") -> "Patient":
        """Return another patient that has the driver files of this one: what was found out about
        them is known.

        :param given: the other patient.
        """
        other = copy(self)
        other._case, other._container = given._case, given._container
        for fact in ("case", "plan", "refusal", "capabilities", "cuda_devices"):
            vars(other).pop(fact, None)
        other.openable_devices = given.openable_devices
        return other

    @cached_property
    def cuda_devices(self) -> CudaDevices:
        """The devices that CUDA finds in a container that gets driver files."""
        given, closed = self.openable_devices
        return find_devices(given, closed, self.environment.get(VARIABLE))

    @cached_property
    def openable_devices(self) -> tuple[list[CudaDevice], list[Gpu]]:
        """The devices that a container with driver files may open, and its GPUs in MIG mode without
        any.
        """
        nodes = {
            (bind.target, bind.rdev) for bind in self.binds() if bind.rdev and bind.kind == "device"
        }
        for device in self.objects("linux", "devices"):
            major, minor = device.get("major"), device.get("minor")
            if isinstance(major, int) and isinstance(minor, int):
                nodes.add((str(device.get("path")), (major, minor)))
        paths = {path for path, _ in nodes} | {bind.target for bind in self.binds()}
        gpus = {rdev for path, rdev in nodes if GPU_NODE.fullmatch(path)}
        closed: list[Gpu] = []
        if gpus:
            given, closed = open_devices(
                self.host.inventory, gpus, paths, capabilities_open=self.by_edits
            )
        elif WSL_NODE in paths:
            given = [CudaDevice(gpu) for gpu in self.host.facts.report.gpus]
        else:
            given = [CudaDevice(None)] * any(path in paths for path in TEGRA_NODES)
        return given, closed

    @cached_property
    def host_tree(self) -> Tree:
        """The host's files below its driver root, also where NVML fails."""
        try:
            return self.host.facts.tree
        except Refusal:
            try:
                return open_driver_root(self.host.config)
            except OSError as error:
                raise NotChecked(f"the driver root cannot be opened: {error.strerror}") from error

    @property
    def platform(self) -> str:
        """The kind of the host, see :mod:`nvgraft.cdi.platform`."""
        try:
            return self.host.platform
        except OSError as error:
            raise NotChecked(f"the driver root cannot be opened: {error.strerror}") from error

    def host_has(self, row: str) -> bool:
        """Tell whether the host has a library or a program of the catalogue for containers.

        It counts as there where the host cannot be read, and in the driver store of WSL2.
        """
        if not self.host_answers or self.platform == platform.WSL:
            return True
        files = self.host.inventory.files
        return any(found.row.name == row for found in (*files.libraries, *files.binaries))

    @property
    def way_to_gpus(self) -> str:
        """The instruction to ask for GPUs in a container that asks for none."""
        way = f"set {names.VISIBLE_DEVICES}=all (docker -e, or ENV in the image)"
        by_hook = self.case.acting_mode in {"hook", "legacy"}
        if by_hook and self.platform in {platform.WSL, platform.TEGRA}:
            way += (
                ", and start the container with nvgraft-runtime (docker --runtime=nvidia) in mode"
                " auto: the hook does not serve this host"
            )
        return way

    def check_gpus_known(self) -> None:
        """Check that the host's GPUs are known.

        :raises NotChecked: the host was recorded from the files of a driver.
        """
        if not self.host.gpus_known:
            raise NotChecked("the document of the host has no GPUs")

    @property
    def consumer_gpus(self) -> list[str]:
        """The models of GPUs for which CUDA has no forward compatibility."""
        return [
            gpu.model
            for gpu in self.host.facts.report.gpus
            if not brands.has_forward_compatibility(gpu.brand, gpu.model)
        ]

    @property
    def host_answers(self) -> bool:
        """Whether the host's driver can be planned for."""
        return self.driver_answers and self.host.facts.refusal is None

    @property
    def driver_answers(self) -> bool:
        """Whether NVML was found and answered without an error."""
        try:
            self.host.facts  # noqa: B018 - read once and kept
        except Refusal:
            return False
        return True

    @cached_property
    def entries(self) -> list[CacheEntry]:
        """The host's loader cache.

        That of this machine is read here: a kept inventory does without it.
        """
        if self.host.document is not None:
            return list(self.host.facts.entries)
        path = self.host.config.cli_ldcache or "/etc/ld.so.cache"
        try:
            return parse(self.host_tree.read(self.host_tree.resolve(path), SIZE_LIMIT))
        except (OSError, ValueError, PathError) as error:
            raise NotChecked(f"the host's loader cache cannot be read: {error}") from error

    def host_text(self, path: str) -> str | None:
        """Return a small text file of the host's /proc, or None if it does not exist.

        :raises NotChecked: when a snapshot does not record it.
        """
        try:
            return self.host_tree.read(path, 1 << 16).decode("utf-8", "replace")
        except FileNotFoundError as error:
            # In a snapshot the driver has answered: the file exists and was not recorded.
            if self.host.document is not None:
                raise NotChecked(f"the snapshot does not record {path}") from error
            return None
        except OSError as error:
            raise NotChecked(f"{path}: {error.strerror or error}") from error

    def on_host(self, path: str) -> Node | None:
        """Return the host's file at ``path``, symbolic links followed, or None if there is none.

        :raises NotChecked: when a snapshot has no such file: it may exist and not be recorded.
        """
        try:
            node = self.host_tree.find(path)[1]
        except (PathError, OSError) as error:
            raise NotChecked(f"{path} cannot be looked up: {error}") from error
        if node is None and isinstance(self.host_tree, SnapshotTree):
            raise NotChecked(f"the snapshot does not record {path}")
        return node

    def in_image(self, *paths: str) -> str | None:
        """Return the first of ``paths`` that exists in the image."""
        return next(filter(self.rootfs.is_there, paths), None)

    def image_libraries(self, prefixes: tuple[str, ...]) -> Iterator[tuple[str, Node]]:
        """Yield path and node of each file whose name has one of ``prefixes``, in the directories
        where images keep libraries.
        """
        seen = set()
        for directory in LIBRARY_DIRECTORIES:
            try:
                resolved = self.rootfs.resolve(directory)
                names = self.rootfs.listdir(resolved) if resolved not in seen else []
            except (PathError, OSError):
                continue
            seen.add(resolved)
            for name in names:
                if not name.startswith(prefixes):
                    continue
                self.rootfs.count_library(f"{resolved}/{name}")
                node = self.rootfs.lstat(f"{resolved}/{name}")
                if node is not None:
                    yield f"{resolved}/{name}", node

    def binds(self) -> list[Bind]:
        """Return the mounts of the plan."""
        return [action for action in self.injected.actions if isinstance(action, Bind)]

    @property
    def mounted_libraries(self) -> list[MountedLibrary]:
        """The libraries of the driver that the plan mounts."""
        return [
            library
            for action in self.injected.actions
            if isinstance(action, UpdateLoaderCache)
            for library in action.libraries
        ]

    @property
    def rules(self) -> list[AllowDevice]:
        """The device rules of the plan."""
        return [action for action in self.injected.actions if isinstance(action, AllowDevice)]

    @property
    def devices_allowed(self) -> bool:
        """Whether config.json alone, without the hook, allows every mounted device node."""
        return all(self._allowed(action.rdev) for action in self.binds() if action.rdev)

    def _allowed(self, rdev: tuple[int, int]) -> bool:
        major, minor = rdev
        access: set[str] = set()
        for rule in self.objects("linux", "resources", "devices"):  # a later rule wins
            # Compared with tuples, not sets: a foreign value need not be hashable.
            if (
                rule.get("type", "a") in ("a", "c", "u")
                and rule.get("major") in (None, -1, major)
                and rule.get("minor") in (None, -1, minor)
            ):
                letters = set(str(rule.get("access") or "rwm"))
                access = access | letters if rule.get("allow") else access - letters
        return access >= {"r", "w"}


#: Where images keep libraries.
LIBRARY_DIRECTORIES = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/i386-linux-gnu",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
    "/lib",
    "/usr/local/lib",
    "/usr/local/nvidia/lib64",
)
