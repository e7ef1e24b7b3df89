"""What the checks look at: a host, a container, both, and what can be told of them although something is broken."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from nvgraft.base.errors import Refusal
from nvgraft.formats.ldcache import SIZE_LIMIT, CacheEntry, parse
from nvgraft.formats.tree import Node, PathError, Tree
from nvgraft.host.live import open_driver_root
from nvgraft.host.snapshot import SnapshotTree
from nvgraft.plan.actions import AllowDevice, Bind, Plan
from nvgraft_cli.case.bundle import ContainerSide
from nvgraft_cli.case.hosts import HostSide
from nvgraft_cli.case.planned_tree import PlannedTree
from nvgraft_cli.case.planning import Case
from nvgraft_cli.doctor.machine import Machine, this_machine


class NotChecked(Exception):
    """A check cannot be made; the text says what is lacking."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: what was seen, why that is so, and what to do."""

    message: str
    cause: str
    fix: str
    level: str = "error"


Check = Callable[["Patient"], Iterator[Finding]]


class Patient:
    """A host and a container, as far as they were given; what is missing raises :class:`NotChecked` when it is asked for."""

    def __init__(
        self,
        host: HostSide,
        container: ContainerSide | None,
        cdi: list[str],
        machine: Machine | None = None,
    ) -> None:
        self.host = host
        self._container = container
        self.cdi = cdi
        self._machine = machine

    @cached_property
    def machine(self) -> Machine:
        """The host, where it is this machine: what no snapshot records."""
        if self.host.document is not None:
            raise NotChecked("only on the node itself, not from a snapshot")
        return self._machine or this_machine()

    @property
    def has_container(self) -> bool:
        """Whether a container was given."""
        return self._container is not None

    @property
    def container(self) -> ContainerSide:
        """The container."""
        if self._container is None:
            raise NotChecked("no container was given (--bundle)")
        return self._container

    @property
    def rootfs(self) -> Tree:
        """The files of the image."""
        if not self.container.rootfs_known:
            raise NotChecked("a config.json alone has no files")
        return self.container.rootfs

    @cached_property
    def config_json(self) -> dict[str, Any]:
        """config.json whole: checks look at members that the hook does not read."""
        self.container.spec  # noqa: B018 - refuses what the hook refuses
        document: dict[str, Any] = json.loads(self.container.data)
        return document

    def member(self, *path: str) -> Any:
        """Return a member of config.json, None where it, or one on the way, is absent or of another type."""
        value: Any = self.config_json
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        return value

    def rows(self, *path: str) -> list[dict[str, Any]]:
        """Return the objects of a list in config.json; none where it is absent or of another type."""
        value = self.member(*path)
        return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []

    @property
    def by_podman(self) -> bool:
        """Whether config.json tells that podman wrote it."""
        return bool(self.member("annotations", "io.container.manager") == "libpod")

    @cached_property
    def case(self) -> Case:
        """The container on the host."""
        return Case(self.host, self.container)

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
    def injected(self) -> Plan:
        """The plan of a container that gets something."""
        if self.plan.decision != "inject":
            raise NotChecked(f"the container gets nothing: {self.plan.reason}")
        return self.plan

    @cached_property
    def planned(self) -> PlannedTree:
        """The container's file system as it will be."""
        _ = self.rootfs
        _ = self.injected
        return self.case.planned_tree

    @cached_property
    def host_tree(self) -> Tree:
        """The host's files below its driver root, whatever NVML says."""
        try:
            return self.host.host.tree
        except Refusal:
            try:
                return open_driver_root(self.host.config)
            except OSError as error:
                raise NotChecked(f"the driver root cannot be opened: {error.strerror}") from error

    @property
    def driver_answers(self) -> bool:
        """Whether NVML was found, and had no error."""
        try:
            self.host.host  # noqa: B018 - asked, and kept
        except Refusal:
            return False
        return True

    @cached_property
    def entries(self) -> list[CacheEntry]:
        """The host's loader cache."""
        if self.driver_answers and self.host.host.refusal is None:
            return list(self.host.host.entries)
        path = self.host.config.cli_ldcache or "/etc/ld.so.cache"
        try:
            return parse(self.host_tree.read(self.host_tree.resolve(path), SIZE_LIMIT))
        except (OSError, ValueError, PathError) as error:
            raise NotChecked(f"the host's loader cache cannot be read: {error}") from error

    def host_text(self, path: str) -> str | None:
        """Return a small text file of the host's /proc; None where there is none.

        :raises NotChecked: when a snapshot does not record it.
        """
        try:
            return self.host_tree.read(path, 1 << 16).decode("utf-8", "replace")
        except FileNotFoundError as error:
            if self.host.document is not None:  # there the driver has answered
                raise NotChecked(f"{path} is not recorded in the snapshot") from error
            return None
        except OSError as error:
            raise NotChecked(f"{path}: {error.strerror or error}") from error

    def on_host(self, path: str) -> Node | None:
        """Return what the host has at ``path``, links followed.

        :raises NotChecked: when a snapshot does not record it: absent and not recorded look the same there.
        """
        try:
            node = self.host_tree.find(path)[1]
        except (PathError, OSError) as error:
            raise NotChecked(f"{path} cannot be looked at: {error}") from error
        if node is None and isinstance(self.host_tree, SnapshotTree):
            raise NotChecked(f"{path} is not recorded in the snapshot")
        return node

    def in_image(self, *paths: str) -> str | None:
        """Return the first of ``paths`` that the image has."""
        for path in paths:
            try:
                if self.rootfs.find(path)[1] is not None:
                    return path
            except (PathError, OSError):
                continue
        return None

    def image_libraries(self) -> Iterator[tuple[str, Node]]:
        """Yield the files of the directories in which images keep libraries."""
        seen = set()
        for directory in LIBRARY_DIRECTORIES:
            try:
                resolved = self.rootfs.resolve(directory)
                names = self.rootfs.listdir(resolved) if resolved not in seen else []
            except (PathError, OSError):
                continue
            seen.add(resolved)
            for name in names:
                node = self.rootfs.lstat(f"{resolved}/{name}")
                if node is not None:
                    yield f"{resolved}/{name}", node

    def binds(self) -> list[Bind]:
        """Return the mounts of the plan."""
        return [action for action in self.injected.actions if isinstance(action, Bind)]

    @property
    def rules(self) -> list[AllowDevice]:
        """The device rules of the plan."""
        return [action for action in self.injected.actions if isinstance(action, AllowDevice)]

    @property
    def devices_allowed(self) -> bool:
        """Whether config.json itself, without the hook, lets the container open every device node that is mounted."""
        return all(self._allowed(action.rdev) for action in self.binds() if action.rdev)

    def _allowed(self, number: tuple[int, int]) -> bool:
        access: set[str] = set()
        for rule in self.rows("linux", "resources", "devices"):  # a later rule wins
            if rule.get("type", "a") not in (
                "a",
                "c",
                "u",
            ):  # a tuple: what strangers write need not be hashable
                continue
            if all(
                rule.get(name) in (None, -1, have)
                for name, have in zip(("major", "minor"), number, strict=True)
            ):
                letters = set(str(rule.get("access") or "rwm"))
                access = access | letters if rule.get("allow") else access - letters
        return access >= {"r", "w"}


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
