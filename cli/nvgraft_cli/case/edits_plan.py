"""Plan what CDI edits give a container: what the runtime adds, and then what the hooks of the edits
make, offline.

Nobody applies such a plan. The runtime carries out the edits, and nvgraft-cdi-hook makes a plan of
its own for the steps, with the same code.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from nvgraft.base.errors import Refusal
from nvgraft.base.finding import Finding
from nvgraft.cdi.edits import CdiEdits, CdiHook, CdiMount, CdiNode
from nvgraft.container.offline_target import OfflineTarget
from nvgraft.formats.ldcache import loader_flags
from nvgraft.formats.tree import PathError
from nvgraft.host.components import Host
from nvgraft.host.snapshot import SnapshotTree
from nvgraft.plan.actions import (
    Action,
    Bind,
    Injection,
    MountedLibrary,
    Plan,
    PlanHost,
    PlanTarget,
    Tmpfs,
    UpdateLoaderCache,
    Why,
    WriteFile,
)
from nvgraft.plan.edit_actions import AddGroup, AllowNode, RunHook, SetVariable
from nvgraft.plan.hook_steps import PARAMS, TEXT_LIMIT, StepPlanner
from nvgraft.plan.layout import Layout
from nvgraft.plan.placed_actions import ChangeMode, PlaceFile
from nvgraft.plan.soname_links import soname_links
from nvgraft.request.config import Config
from nvgraft.request.decision import Decision
from nvgraft.request.hook_steps import HookStep, UnknownStep, parse_steps
from nvgraft.request.request import Request, Skip, requested_devices
from nvgraft_cli.case.bundle import ContainerSide
from nvgraft_cli.case.driver import library_version
from nvgraft_cli.case.edits import Edited, Origin, Unmountable
from nvgraft_cli.case.hosts import HostSide
from nvgraft_cli.case.planned_tree import PlannedTree
from nvgraft_specs import catalogue, cdi_hooks, names
from nvgraft_specs.graphics_files import NODE_ACCESS

#: The programs whose steps are known.
_PROGRAMS = frozenset({cdi_hooks.PROGRAM, cdi_hooks.REFERENCE_PROGRAM, cdi_hooks.CTK_PROGRAM})

#: Options of a mount that a plan names.
_SHOWN = ("nodev", "noexec", "nosuid", "ro")

#: What CDI edits give whatever is requested: the driver's 64-bit files.
_CAPABILITIES = tuple(name for name in names.CAPABILITIES if name != "compat32")


class EditedContainer(Injection):
    """A plan of CDI edits, which it has in the order in which they are applied."""

    def __init__(self, plan: Injection, edits: Iterable[CdiEdits]) -> None:
        vars(self).update(vars(plan))
        self.edits = tuple(edits)


def requested(container: ContainerSide, config: Config, names: Sequence[str] = ()) -> Request:
    """Return what a container asks for. CDI edits know no capabilities and check no requirement.

    :param names: the devices that are looked up in specifications.
    """
    annotated = annotated_devices(container, config)
    if names and set(names) == {name for found in annotated.values() for name in found}:
        return edits_request(names, f"annotation {', '.join(annotated)}")
    asked = requested_devices(container.spec, config)
    if isinstance(asked, Skip):
        return edits_request(names, "CDI names")
    return edits_request(asked.ids, asked.source)


def annotated_devices(container: ContainerSide, config: Config) -> dict[str, tuple[str, ...]]:
    """Return the CDI names that each annotation with one of config.toml's prefixes has."""
    annotations = container.member("annotations")
    return {
        key: tuple(value.split(","))
        for key, value in sorted(annotations.items() if isinstance(annotations, dict) else ())
        if key.startswith(config.runtime_cdi_annotation_prefixes) and isinstance(value, str)
    }


def edits_request(ids: Sequence[str], source: str) -> Request:
    """Return the request of a container that gets devices by CDI edits.

    :param source: where the ids come from.
    """
    return Request(
        tuple(ids),
        _CAPABILITIES,
        devices_from=source,
        capabilities_from="CDI edits know no capabilities: all of the driver",
    )


def plan_edits(
    edited: Sequence[Edited],
    host: HostSide,
    decision: Decision,
    target: OfflineTarget,
    user: tuple[int, int],
) -> EditedContainer:
    """Return the plan of edits, in the order in which a runtime carries them out.

    :param decision: with the request.
    :param user: uid and gid of the container's process, which own nodes that name no owner.
    :raises Refusal: the runtime could not start the container, or a hook would fail.
    """
    facts = host.facts
    assert decision.request is not None
    planner = _EditPlanner(facts, target, user)
    for part in edited:
        planner.add(part)
    actions = planner.actions
    steps, unknown = _steps(hook for part in edited for hook in part.edits.hooks)
    findings = planner.findings + unknown
    if planner.not_recorded:
        count, first = len(planner.not_recorded), planner.not_recorded[0]
        message = f"the document of the host lacks {count} files of the edits, such as {first}"
        hint = "record the host again with nvgraft snapshot: they are left out here"
        findings.append(Finding("cdi-not-recorded", "info", message, hint))
    if steps:
        before = PlannedTree(target.tree, Plan("inject", "", tuple(actions)), facts)
        after = target.later(before, _mount_points(actions))
        made = StepPlanner(after, _params(facts)).plan(steps)
        findings += made.findings
        libraries = tuple(_libraries(actions, facts))
        actions += _in_documents(made.actions, before, libraries, findings)
    links = _soname_links(target, actions, facts, findings)
    report = facts.report
    plan = Injection(
        decision.reason,
        PlanHost(
            name=facts.name,
            root=facts.root,
            driver_version=report.driver_version,
            cuda_version=report.cuda_version,
        ),
        decision.request,
        PlanTarget(
            rootfs=target.rootfs,
            libs_dir=planner.library_directory,
            libs32_dir="",
            bins_dir="/usr/bin",
            uid=0,
            gid=0,
        ),
        tuple(actions),
        links,
        tuple(findings),
    )
    return EditedContainer(plan, (part.edits for part in edited))


def _soname_links(
    target: OfflineTarget, actions: Sequence[Action], host: Host, findings: list[Finding]
) -> tuple[tuple[str, str], ...]:
    """Return the SONAME links that the step for the loader cache makes, for which edits have no
    link of their own.
    """
    tree = PlannedTree(target.tree, Plan("inject", "", tuple(actions)), host)
    links: dict[str, str] = {}
    for action in actions:
        if isinstance(action, UpdateLoaderCache):
            found, notes = soname_links(tree, action.libraries)
            links |= found
            findings += notes
    return tuple(sorted(links.items()))


def _mount_points(actions: Iterable[Action]) -> Iterator[str]:
    """Yield where a runtime mounts something: it makes device nodes instead."""
    for action in actions:
        if isinstance(action, Tmpfs) or (isinstance(action, Bind) and action.kind != "device"):
            yield action.target


class _RuntimeLayout(Layout):
    """Where a runtime makes mount points: on volumes, too, which it has mounted before."""

    def check_volume(self, path: str) -> None:
        if self._target.is_read_only(path):
            volume = self._target.volume(path)
            raise Refusal(
                "",
                f'error mounting to rootfs at "{path}": read-only file system',
                f"mount the volume {volume} elsewhere, or make it writable: the runtime makes a"
                " mount point there",
            )


class _EditPlanner:
    """Plans edits one after the other on one container."""

    def __init__(self, host: Host, target: OfflineTarget, user: tuple[int, int]) -> None:
        self._host = host
        self._user = user
        self._root = host.root.rstrip("/")
        self._layout = _RuntimeLayout(target, cgroups=True, root=host.root)
        self._after: list[Action] = []
        self.findings: list[Finding] = []
        self._groups: set[int] = set()
        self._rules: set[tuple[str, int, int, str]] = set()
        self.library_directory = "/usr/lib"
        #: Sources of mounts that the document of the host does not have.
        self.not_recorded: list[str] = []

    def _may_be_there(self, path: str) -> bool:
        """Tell whether the document of a recorded host may lack a file that the host has: not a
        library of another driver version.
        """
        if not isinstance(self._host.tree, SnapshotTree):
            return False
        return library_version(path) in (None, self._host.report.driver_version)

    @property
    def actions(self) -> list[Action]:
        """What was planned: variables and groups first, files and devices, hooks last."""
        return [*self._layout.actions, *self._after]

    def add(self, edited: Edited) -> None:
        """Plan edits of devices, or those that they share."""
        edits, origin = edited
        for variable in edits.env:
            name, _, value = variable.partition("=")
            self._layout.actions.append(SetVariable(name, value, Why("", name, f"of {origin}")))
        for gid in edits.gids:
            if gid and gid not in self._groups:
                self._groups.add(gid)
                why = Why("", "additionalGids", f"the group of a device node, of {origin}")
                self._layout.actions.append(AddGroup(gid, why))
        for node in edits.nodes:
            self._add_node(node, origin)
        for mount in edits.mounts:
            self._add_mount(mount, origin)
        for host_name, name in edits.net_devices:
            self._leave_out(f"the network interface {host_name} as {name}", origin)
        if edits.intel_rdt is not None:
            self._leave_out("linux.intelRdt", origin)
        for hook in edits.hooks:
            why = Why("", hook.stage, f"of {origin}")
            self._after.append(
                RunHook(hook.stage, hook.path, hook.args, hook.env, hook.timeout, why)
            )

    def _add_node(self, node: CdiNode, origin: Origin) -> None:
        why = Why("", node.path, f"a device node of {origin}")
        rdev = (node.major, node.minor)
        source = node.host_path or node.path
        found = self._host.tree.lstat(source) or self._host.tree.lstat(node.path)
        if found is not None and found.rdev is not None and not node.major:
            rdev = found.rdev
        kind = node.type if node.type in _KINDS else "c"
        mode = 0o666 if node.mode is None else node.mode & 0o7777
        uid = self._user[0] if node.uid is None else node.uid
        gid = self._user[1] if node.gid is None else node.gid
        path = self._layout.resolve(node.path)
        self._layout.placeholder(path, mode, why, accept=_KINDS[kind], rdev=rdev)
        self._layout.node(source, path, kind, rdev, mode, (uid, gid), why)
        rule = (kind, *rdev, node.permissions or NODE_ACCESS)
        if kind != "p" and rule not in self._rules:
            self._rules.add(rule)
            self._layout.actions.append(AllowNode(*rule, why))

    def _add_mount(self, mount: CdiMount, origin: Origin) -> None:
        why = Why(_capability(mount.target), mount.target, f"a mount of {origin}")
        options = tuple(option for option in _SHOWN if option in mount.options)
        options = options if "ro" in options else (*options, "rw")
        if mount.type not in ("", "bind", "none") and not {"bind", "rbind"} & {*mount.options}:
            self._add_file_system(mount, options, why, origin)
            return
        path = mount.source
        if self._root and path.startswith(self._root + "/"):
            path = path.removeprefix(self._root)
        try:
            resolved, node = self._host.tree.find(path)
        except PathError as error:
            raise Unmountable(f"{mount.source}: {error.text}", _stale(origin)) from error
        if node is None:
            if self._may_be_there(path):
                self.not_recorded.append(mount.source)
                return
            cause = f'"{mount.source}": no such file or directory'
            raise Unmountable(cause, _stale(origin))
        target = self._layout.resolve(mount.target)
        if node.type == "dir":
            self._layout.directory(target, 0o755, why)
            self._layout.bind_directory(
                "driver", resolved, mount.target, target, options, node.mode, why
            )
            return
        kind = "socket" if node.type == "socket" else "file"
        self._layout.placeholder(target, node.mode, why, accept=kind)
        self._layout.bind(kind, "driver", resolved, target, options, node.mode, why, size=node.size)
        if os.path.basename(target).startswith("libcuda.so."):
            self.library_directory = os.path.dirname(target)

    def _add_file_system(
        self, mount: CdiMount, options: tuple[str, ...], why: Why, origin: Origin
    ) -> None:
        """Plan a mount that is not a bind: a tmpfs, or one that a plan does not show."""
        target = self._layout.resolve(mount.target)
        self._layout.directory(target, 0o755, why)
        if mount.type == "tmpfs":
            data = dict(option.partition("=")[::2] for option in mount.options)
            mode = data.get("mode", "")
            octal = int(mode, 8) if mode and not mode.strip("01234567") else _TMPFS_MODE
            self._layout.actions.append(Tmpfs(target, options, octal & 0o7777, why))
            return
        self._leave_out(f"a mount of the type {mount.type} on {mount.target}", origin)

    def _leave_out(self, what: str, origin: Origin) -> None:
        message = f"{what} is of {origin}, and not among the actions of a plan"
        hint = "look at it there"
        self.findings.append(Finding("cdi-edit-not-shown", "info", message, hint))


#: The mode of a mount point that runc makes, which a tmpfs without one gets.
_TMPFS_MODE = 0o755

#: Type of a device node -> its name in a tree.
_KINDS = {"c": "char", "b": "block", "p": "fifo"}


def _stale(origin: Origin) -> str:
    """Return the hint for a mount whose source the host lacks."""
    if not origin.file:
        return f"{origin} names a file that the host lacks: create the container again"
    return (
        f"{origin.file} is older than the driver: write it again (nvgraft cdi generate --output"
        f" {origin.file}, or nvidia-ctk cdi generate --output={origin.file})"
    )


def _capability(target: str) -> str:
    """Return the capability under which the hook would mount a file, for people to compare."""
    name = os.path.basename(target)
    rows = [row for row in catalogue.LIBRARIES if name.startswith(row.name)]
    rows += [row for row in catalogue.BINARIES if name == row.name]
    if not rows:
        return ""
    kind = rows[0].component_class
    tables = (catalogue.LIBRARY_CLASSES, catalogue.BINARY_CLASSES)
    return next(
        (
            capability
            for table in tables
            for capability, classes in table.items()
            if kind in classes
        ),
        "",
    )


def _params(host: Host) -> str:
    try:
        return host.tree.read(PARAMS, TEXT_LIMIT).decode("utf-8", "surrogateescape")
    except OSError:
        return ""


def _steps(hooks: Iterable[CdiHook]) -> tuple[list[HookStep], list[Finding]]:
    """Return the steps of hooks whose program is known, and a finding for each other hook."""
    steps: list[HookStep] = []
    findings = []
    for hook in hooks:
        words = list(hook.args[1:])
        if words[:1] == [cdi_hooks.CTK_WORD]:
            del words[0]
        while words[:1] == [cdi_hooks.CONFIG_OPTION]:
            del words[:2]
        known = os.path.basename(hook.path) in _PROGRAMS and words
        parsed = parse_steps(words) if known else [UnknownStep(" ".join(hook.args) or hook.path)]
        for step in parsed:
            if isinstance(step, UnknownStep):
                message = f"what the hook {hook.path} ({step.name}) does is not known"
                hint = "ask the one who wrote the specification"
                findings.append(Finding("cdi-hook-unknown", "info", message, hint))
            else:
                steps.append(step)
    return steps, findings


def _libraries(actions: Iterable[Action], host: Host) -> Iterator[MountedLibrary]:
    """Yield the libraries that the edits mount."""
    wide, narrow = loader_flags(host.machine)
    for action in actions:
        if not isinstance(action, Bind) or action.kind != "file" or ".so" not in action.target:
            continue
        try:
            facts = host.tree.elf(action.path, sections=False)
        except (OSError, ValueError):
            continue
        directory, name = os.path.split(action.target)
        flags = wide if facts.bits == 64 else narrow
        yield MountedLibrary(directory, name, facts.soname or name, flags)


def _resolved(tree: PlannedTree, directories: Iterable[str]) -> Iterator[str]:
    """Yield the paths to which directories of the loader's configuration lead."""
    for directory in directories:
        with suppress(PathError):
            yield tree.resolve(directory)


def _in_documents(
    actions: Iterable[Action],
    tree: PlannedTree,
    libraries: Sequence[MountedLibrary],
    findings: list[Finding],
) -> Iterator[Action]:
    """Yield what a hook makes as actions that a plan's document has.

    :param tree: the container with the mounts of the edits.
    :param libraries: those of the driver in it. The step for the loader cache enters those in the
        directories of the image's configuration alone, to which it adds its own where that has the
        line for it.
    """
    for action in actions:
        if isinstance(action, PlaceFile):
            yield WriteFile(action.path, action.mode, action.content, action.why)
        elif isinstance(action, ChangeMode):
            message = f"a hook sets the mode of {action.path} to {action.mode:04o}"
            findings.append(Finding("cdi-hook-mode", "info", message, "nothing to do"))
        elif isinstance(action, UpdateLoaderCache):
            listed = {*action.directories, *_resolved(tree, action.directories)}
            entered = tuple(item for item in libraries if item.directory in listed)
            yield UpdateLoaderCache(action.directories, action.why, entered, action.searched)
        else:
            yield action
