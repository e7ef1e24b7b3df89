"""Plan for a case, which is one host and one container, with the hook's own code.

Host and container are read from documents and files, or are this machine. Commands that explain,
compare or check ask a :class:`Case` for what they need.
"""

from collections.abc import Sequence
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING

from nvgraft.base.errors import Refusal
from nvgraft.base.finding import Finding
from nvgraft.container.offline_target import OfflineTarget
from nvgraft.container.target import on_volume
from nvgraft.formats.tree import Bounds, OutOfBounds, PathError, Tree
from nvgraft.plan.actions import Bind, Plan, UpdateLoaderCache
from nvgraft.plan.planner import make_plan, read_in_order
from nvgraft.request.decision import Decision, decide
from nvgraft.request.request import ImexChannels, Request, check_request
from nvgraft_cli.case.bundle import ContainerSide
from nvgraft_cli.case.edits import Edited, Origin
from nvgraft_cli.case.handover import ChainLink, Handover
from nvgraft_cli.case.hosts import HostSide
from nvgraft_cli.case.planned_tree import PlannedTree
from nvgraft_cli.case.rewritten import GPU_NODE, IN_CONFIG, calls_hook, edits_in, taken_edits
from nvgraft_cli.shell import logs
from nvgraft_cli.shell.arguments import CDI_MODES
from nvgraft_specs import names

if TYPE_CHECKING:
    from nvgraft_cli.case.started import HostSpecifications, Started

_OF_PLUGIN = Origin(maker="the device plugin's specification")

#: The finding of every plan for a host that was recorded from the files of a driver.
NO_GPUS = Finding(
    "gpus-not-recorded",
    "warning",
    "this host was recorded from the files of a driver: the plan has the driver's files, and does"
    " not answer which GPUs, MIG devices, IMEX channels and device nodes the container gets, nor"
    " what it requires of their brand and arch",
    "record it with the GPUs of a host: nvgraft snapshot --root DIR --gpus HOST",
)

_TWICE = Finding(
    "given-twice",
    "warning",
    "the engine applies CDI edits, and the hook is called for this container as well",
    "let the device plugin use one strategy: cdi-cri with a runtime that adds nothing, or envvar",
)


class CacheOnVolume(Refusal):
    """The loader cache of the container is on a volume, where the hook writes nothing."""


class Case:
    """One container on one host. Each part is computed when it is first asked for."""

    def __init__(
        self,
        host: HostSide,
        container: ContainerSide,
        mode: str = "hook",
        handover: Handover | None = None,
        *,
        cdi: Sequence[str] = (),
        edits_known: bool = False,
        specifications: "HostSpecifications | None" = None,
    ) -> None:
        """Put the container on the host.

        :param mode: how it is started: ``hook`` if the engine calls the hook itself, ``runtime``
            through nvgraft-runtime, or a mode of that program.
        :param handover: what the engine has made of a pod's container, which is ``container``.
        :param cdi: files with CDI specifications in the place of the host's own.
        :param edits_known: whether CDI edits that config.json has already are what the container
            gets, not what the hook or the runtime would add to it.
        :param specifications: those of ``cdi``, where another case of the host has read them.
        """
        self.handover = handover
        self.host = host
        self.container = container
        self._given = container
        self._mode = mode
        self._remarks: tuple[Finding, ...] = ()
        self._not_called: Decision | None = None
        self._edits: tuple[Edited, ...] = ()
        self._edited_before: str | None = None
        self._cdi = tuple(cdi)
        if specifications is not None:
            self.specifications = specifications
        self._edits_known = edits_known
        #: What nvgraft-runtime does with the container; None if it is not called.
        self.started: Started | None = None
        container.bound(Bounds(*host.config.image_limits))
        if handover is not None:
            self._take_over(handover)
        elif (not edits_known or not self._reads_edits()) and mode != "hook":
            self._start(container)

    def _reads_edits(self) -> bool:
        """Take CDI edits of config.json for what the container gets, and tell whether there are
        any; not if the hook is called too, and adds something.
        """
        try:
            if not self.edited_before:
                return False
            if calls_hook(self._given) and self._decision_of_hook.request is not None:
                return False
            rest, edits = taken_edits(self._given, self.host)
        except Refusal:
            return False  # it is raised where the container or the host is used
        if not edits.mounts and not edits.nodes:
            return False
        from nvgraft_cli.case.edits_plan import edits_request

        self.container = rest
        self._edits = (Edited(edits, IN_CONFIG),)
        nodes = [node.path for node in edits.nodes]
        gpus = [path for path in nodes if GPU_NODE.fullmatch(path)]
        request = edits_request(gpus or nodes, "the device nodes in config.json")
        self._not_called = Decision("inject", "its mounts and hooks are read", request=request)
        return True

    @cached_property
    def specifications(self) -> "HostSpecifications":
        """The CDI specifications by which the case answers."""
        from nvgraft_cli.case.started import HostSpecifications

        return HostSpecifications(self.host, self._cdi)

    @property
    def looks_up_devices(self) -> bool:
        """Whether the container's devices are looked up in CDI specifications."""
        return self.started is not None and bool(self.started.names)

    @property
    def reads_annotations(self) -> bool:
        """Whether CDI names in annotations would count: mode auto becomes cdi by them."""
        chooses = self._mode == "runtime" and self.host.config.runtime_mode == "auto"
        return self.started is not None and (chooses or self.started.mode == "cdi")

    @property
    def acting_mode(self) -> str:
        """The mode in which nvgraft-runtime acts; "hook" if it is not called, and "" if CDI edits
        are in config.json already.
        """
        if self.started is not None:
            return self.started.mode
        return "" if self.reads_config else "hook"

    @property
    def reads_config(self) -> bool:
        """Whether the edits that config.json has already are what the container gets."""
        return bool(self._edits) and self._edits[0].origin == IN_CONFIG

    @property
    def origins(self) -> tuple[Origin, ...]:
        """Where the container's CDI edits come from."""
        return tuple(dict.fromkeys(part.origin for part in self._edits))

    def _take_over(self, handover: Handover) -> None:
        """Go on where the engine has ended: with its CDI edits, and the runtime that it calls."""
        if handover.refusal is not None:
            line = handover.refusal.line()
            self._not_called = Decision("refuse", line, refusal=handover.refusal)
            return
        edited = self._given.with_env(handover.env) if handover.edits else self._given
        if handover.bypass:
            self._not_called = Decision("skip", handover.bypass)
        elif self._mode != "hook":
            self._start(edited)
        else:
            self.container = edited
        if not handover.edits or (self._not_called and self._not_called.refusal):
            return
        from nvgraft_cli.case.edits_plan import edits_request

        by_hook = self._not_called is None and self.decision.request is not None
        if by_hook or self._edits:
            self._remarks += (_TWICE,)
        self.container = self._given
        self._edits = (*(Edited(part, _OF_PLUGIN) for part in handover.edits), *self._edits)
        request = edits_request(handover.ids, "CDI devices of Allocate's answer")
        reason = "the engine applies the CDI edits of the device plugin's specification"
        self._not_called = Decision("inject", reason, request=request)

    def _start(self, container: ContainerSide) -> None:
        """Start the container through nvgraft-runtime."""
        from nvgraft_cli.case.started import start

        started = self.started = start(container, self.host, self._mode, self.specifications)
        if started.refusal is not None:
            refusal = started.refusal
            self._not_called = Decision("refuse", refusal.line(), refusal=refusal)
            return
        self.container, self._remarks = started.container, started.remarks
        self._edits = started.edits
        if started.edits:
            from nvgraft_cli.case.edits_plan import requested

            request = requested(container, self.host.config, started.names)
            self._not_called = Decision("inject", started.left_out, request=request)
        elif started.left_out:
            self._not_called = Decision("skip", started.left_out)

    @property
    def by_edits(self) -> bool:
        """Whether CDI edits take the place of the hook for this container."""
        return bool(self._edits) or self._mode in CDI_MODES

    @property
    def edited_before(self) -> str:
        """What tells that config.json has CDI edits already, or "".

        :raises nvgraft.base.errors.Refusal: config.json is not an OCI configuration.
        """
        if self._edited_before is None:
            self._edited_before = edits_in(self._given)
        return self._edited_before

    @property
    def given(self) -> ContainerSide:
        """The container before the runtime has changed its config.json."""
        return self._given

    @property
    def before_runtime(self) -> bool:
        """Whether a pod's container gets nothing, since it comes to no runtime that adds it."""
        handover = self.handover
        return handover is not None and (
            handover.refusal is not None or bool(handover.bypass and not handover.edits)
        )

    @property
    def chain(self) -> tuple[ChainLink, ...]:
        """The steps from a pod to the call of the hook; none for a container of no pod."""
        if self.handover is None:
            return ()
        if self.started is None or self.started.refusal is not None:
            return self.handover.chain
        return (
            *self.handover.chain,
            ChainLink("runtime", "mode", self.started.remarks[0].message),
            ChainLink("hook", "hook", self.started.log.hook_line),
        )

    @property
    def hook_called(self) -> bool:
        """Whether the runtime calls the hook for this container."""
        return self._not_called is None

    @property
    def mode(self) -> str:
        """How the container is started."""
        return self._mode

    def with_env(self, env: Sequence[str]) -> "Case":
        """Return the case of the container with ``NAME=VALUE`` entries added."""
        handover = None if self.handover is None else self.handover.with_env(env)
        container = self._given.with_env(env) if handover is None else handover.container
        return Case(
            self.host,
            container,
            self._mode,
            handover,
            cdi=self._cdi,
            edits_known=self._edits_known,
        )

    def with_plan(self, plan: Plan) -> "Case":
        """Return the case with its plan, where the caller knows it already."""
        case = copy(self)
        case.outcome = plan, None
        vars(case).pop("planned_tree", None)
        return case

    def in_mode(self, mode: str, env: Sequence[str]) -> "Case":
        """Return the case of the container, of no pod, started in another way, with ``NAME=VALUE``
        entries added.
        """
        assert self.handover is None
        given = self._given
        given = given.with_env(env) if env else given.rewritten(given.data)
        return Case(
            self.host,
            given,
            mode,
            cdi=self._cdi,
            edits_known=self._edits_known,
            specifications=self.specifications,
        )

    @property
    def decision(self) -> Decision:
        """The hook's decision, which depends on config.json and config.toml alone."""
        return self._not_called or self._decision_of_hook

    @cached_property
    def _decision_of_hook(self) -> Decision:
        decision = decide(self.container.data, self.host.config, self.container.directory)
        gates = self.opened_gates
        if decision.verdict == "skip" and gates and self.started is not None:
            which = " and ".join(f"{name}={names.GATE_OPEN}" for name in gates)
            decision.reason += f", which the runtime adds because of {which}"
        logs.debug("decided", verdict=decision.verdict, reason=decision.reason)
        return decision

    @property
    def opened_gates(self) -> list[str]:
        """The variables, such as NVIDIA_GDS, for which the runtime in mode legacy makes the hook
        skip the container.
        """
        given = self._given.spec.env
        if self.acting_mode != "legacy" or given.get(names.VISIBLE_DEVICES) == names.VOID:
            return []
        return [name for name in names.GATED_DEVICES if given.get(name) == names.GATE_OPEN]

    @property
    def target(self) -> OfflineTarget:
        """The container as the planner sees it.

        :raises nvgraft_cli.shell.errors.InputError: the rootfs is missing or unreadable.
        :raises Refusal: a symbolic link leads out of the rootfs.
        """
        return self.container.target(
            self.host.facts.machine, module=not self.host.config.simulated_host
        )

    @cached_property
    def outcome(self) -> tuple[Plan, Refusal | None]:
        """The plan, and the hook's error if the plan is to refuse the container."""
        try:
            plan, refused = self._plan(), None
        except Refusal as refusal:
            if isinstance(refusal, OutOfBounds):
                self._given.beyond = refusal
            plan, refused = Plan("refuse", refusal.reference_line()), refusal
        if refused is None and self.edited_before:
            plan.reason = f"{self.edited_before}; {plan.reason}"
        return _with_remarks(plan, self._remarks), refused

    @cached_property
    def planned_tree(self) -> PlannedTree:
        """The container's file system after the plan.

        :raises nvgraft_cli.shell.errors.InputError: its rootfs is missing or unreadable.
        """
        return self.planned_on(self.container.rootfs)

    def planned_on(self, image: Tree) -> PlannedTree:
        """Return ``image``, a view of the container's files, after the plan."""
        plan = self.outcome[0]
        host = self.host.facts if plan.decision == "inject" else None
        return PlannedTree(
            image,
            plan,
            host,
            rebuilt=self.host.config.ldcache_mode == "ldconfig",
            volumes=self.container.volumes,
            starts_here=self.host.starts_here,
        )

    def _plan(self) -> Plan:
        decision = self.decision
        if decision.refusal is not None:
            raise decision.refusal
        if decision.request is None:
            return Plan("skip", decision.reason)
        if not self._edits:
            check_request(decision.request)
        if self._given.beyond is not None:
            raise self._given.beyond
        target = self.target  # the reference looks at the container before the driver's files
        if self._edits:
            from nvgraft_cli.case.edits_plan import plan_edits

            uid, groups = self._given.user
            edited = plan_edits(self._edits, self.host, decision, target, (uid, groups[0]))
            self._check_cache(edited, target)
            return edited
        request, settings = decision.request, self.host.settings
        if not self.host.gpus_known:
            request = _of_files(request)
        version = self.host.facts.report.driver_version
        inventory = read_in_order(lambda: self.host.inventory, request, version, target, settings)
        plan = make_plan(request, inventory, target, settings)
        self._check_cache(plan, target)
        if not self.host.gpus_known:
            if decision.request.devices:
                plan.reason = f"the container asks for {', '.join(decision.request.devices)}"
            plan.request = decision.request
            plan.findings = (NO_GPUS, *(note for note in plan.findings if note.id != "no-gpu"))
        logs.debug("planned", actions=len(plan.actions), libraries_in=plan.target.libs_dir)
        planned = {action.source for action in plan.actions if isinstance(action, Bind)}
        for component in (*inventory.files.libraries, *inventory.files.binaries):
            if component.path not in planned:
                reason = f"not planned; it is for {component.row.component_class}"
                logs.debug("skipped", name=component.path, reason=reason)
        return plan

    def _check_cache(self, plan: Plan, target: OfflineTarget) -> None:
        """Refuse a plan whose loader cache would be on a volume, or in the place of a directory, as
        the hook does after its mounts.

        :raises Refusal: stage ``ldcache``.
        """
        config = self.host.config
        if config.ldcache_mode != "native" or not any(
            isinstance(action, UpdateLoaderCache) for action in plan.actions
        ):
            return
        try:
            etc = target.tree.resolve("/etc")
        except PathError:
            return  # the hook names the cause
        path = f"{etc.rstrip('/')}/ld.so.cache"
        volume = target.volume(path)
        node = target.tree.lstat(path)
        text = f"process {config.cli_ldconfig.removeprefix('@')} failed with error code: 1"
        hint = "the loader cache was not written: "
        if volume is not None:
            raise CacheOnVolume("ldcache", text, hint + on_volume("/etc/ld.so.cache", volume))
        if node is not None and node.type not in {"file", "symlink"}:
            raise Refusal("ldcache", text, f"{hint}{path}: not a regular file")


def _of_files(request: Request) -> Request:
    """Return the request for the driver's files alone."""
    files = copy(request)
    files.devices = ()
    files.mig_config = files.mig_monitor = ""
    files.imex_channels = ImexChannels()
    return files


def _with_remarks(plan: Plan, remarks: tuple[Finding, ...]) -> Plan:
    """Return the plan with the remarks of nvgraft-runtime before its own findings."""
    if not remarks:
        return plan
    remarked = copy(plan)
    remarked.findings = (*remarks, *plan.findings)
    return remarked
