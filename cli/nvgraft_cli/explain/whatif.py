"""Compute beforehand what a container gets with other capabilities, devices and modes.

Each combination is planned as the hook plans it, and judged as doctor judges it. A switch whose
combinations would take too long is left out; equal results are stored once.
"""

import math
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from nvgraft.base.errors import Refusal
from nvgraft.formats.tree import Bounds, OutOfBounds
from nvgraft.plan.actions import (
    Action,
    AllowDevice,
    Bind,
    Injection,
    Plan,
    Tmpfs,
    WriteFile,
)
from nvgraft.plan.planner import profile_of
from nvgraft.request.config import capability_names
from nvgraft_cli.case.hosts import HostSide
from nvgraft_cli.case.planning import Case
from nvgraft_cli.doctor.examination import (
    CHECKS,
    CHECKS_WITHOUT_CONTAINER,
    DEVICE_CHECKS,
    Result,
    examine,
)
from nvgraft_cli.doctor.patient import Patient
from nvgraft_cli.doctor.verdict import Verdict, container_verdict
from nvgraft_cli.explain.directories import path_of
from nvgraft_cli.explain.edit_steps import tells_edits
from nvgraft_cli.explain.steps import driver_proofs
from nvgraft_cli.prove.proof import Proof
from nvgraft_cli.shell.arguments import CDI_MODES
from nvgraft_specs import names

if TYPE_CHECKING:
    from nvgraft_cli.pods.handover import PodOnNode

#: The part of the time for all switches that those of mode and devices may take, so that there is
#: time for capabilities.
_PART = 0.4

#: Why a switch is left out where the image takes the time.
_NO_TIME = "to search this image more often would take too long"
#: How many letters of a list of devices a position of the switch shows.
_LABEL = 24
#: How many combinations tell how long one takes.
_RECENT = 16

#: Capabilities in the order in which they get a switch.
_CAPABILITIES = ("utility", "compute", "video", "graphics", "display", "compat32", "ngx")

#: The id of a check -> its place among all, in which the first error counts.
_PLACES = {identifier: place for place, identifier in enumerate(CHECKS)}

#: Modes in which a container can be started on any host.
_MODES = ("hook", "legacy", "jit-cdi", "cdi")


class Combination(NamedTuple):
    """A mode, a value of NVIDIA_VISIBLE_DEVICES (None: as it is) and capabilities."""

    mode: str
    devices: str | None
    capabilities: frozenset[str]


class Choice(NamedTuple):
    """One position of the switch for devices, with the value of NVIDIA_VISIBLE_DEVICES.

    None leaves the variable as it is.
    """

    label: str
    value: str | None


@dataclass(frozen=True, slots=True)
class WhatIfResult:
    """What a container gets.

    :ivar verdict: of doctor.
    :ivar mounts: numbers of :attr:`WhatIf.mounts`; ``paths`` of :attr:`WhatIf.paths`.
    :ivar proofs: numbers of :attr:`WhatIf.proofs`.
    """

    decision: str
    verdict: Verdict
    mounts: frozenset[int]
    paths: frozenset[int]
    proofs: tuple[int, ...]


@dataclass(slots=True)
class WhatIf:
    """The results of all combinations. The first result is that of the container as it is.

    :ivar asked: mode, devices and capabilities of the container as it is.
    :ivar capabilities: those that have a switch.
    :ivar devices: the positions of the switch for devices; one position is no switch. So ``modes``.
    :ivar heeding: the modes in which capabilities count: CDI edits bring all of the driver.
    :ivar left_out: sentences about switches that there are not.
    :ivar combinations: mode, devices and capabilities -> the number of their result.
    :ivar mounts: each mount of any result once; ``paths`` each path that one makes or changes.
    :ivar union: a plan with the actions of all results.
    """

    asked: Combination
    capabilities: list[str] = field(default_factory=list)
    devices: list[Choice] = field(default_factory=list)
    modes: list[str] = field(default_factory=list)
    heeding: frozenset[str] = frozenset()
    left_out: list[str] = field(default_factory=list)
    combinations: dict[Combination, int] = field(default_factory=dict)
    results: list[WhatIfResult] = field(default_factory=list)
    mounts: list[Bind | Tmpfs] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    proofs: list[Proof] = field(default_factory=list)
    union: Plan = field(default_factory=lambda: Plan("inject", ""))

    @property
    def table(self) -> list[int]:
        """The results by mode, in it by devices, and in it by capabilities: bit N is number N."""
        fixed = self.asked.capabilities - set(self.capabilities)
        sets = [
            fixed | {name for bit, name in enumerate(self.capabilities) if number >> bit & 1}
            for number in range(1 << len(self.capabilities))
        ]
        return [
            self.combinations[Combination(mode, device.value, chosen)]
            for mode in self.modes
            for device in self.devices
            for chosen in sets
        ]


def compute(case: Case, pod: "PodOnNode | None" = None, *, budget: float) -> WhatIf:
    """Return what the container gets as it is, and with each combination of switches.

    :param pod: the pod of the container, if it has one.
    :param budget: seconds by the clock on the wall; a switch that would take longer is left out.
    """
    try:
        devices = case.given.spec.env.get(names.VISIBLE_DEVICES)
        capabilities = _asked(case)
    except Refusal:  # config.json cannot be read: every result is this refusal
        devices, capabilities = None, frozenset(names.DEFAULT_CAPABILITIES)
    made = _Computation(case, pod, capabilities, budget)
    made.switch_modes()
    made.switch_devices(_devices(case.host), devices)
    for name in _CAPABILITIES:
        made.switch_capability(name)
    return made.finished()


def _asked(case: Case) -> frozenset[str]:
    """Return the capabilities that a container asks for."""
    request = case.decision.request
    if request is not None and not case.by_edits:
        return frozenset(request.capabilities)
    named = set(capability_names(case.container.spec.env.get(names.DRIVER_CAPABILITIES, "")))
    if names.ALL in named:
        return frozenset(names.CAPABILITIES)
    return frozenset(named & set(names.CAPABILITIES) or names.DEFAULT_CAPABILITIES)


def _devices(host: HostSide) -> Iterator[list[Choice]]:
    """Yield the positions of the switch for devices: none, each one, and all; then fewer.

    Where there is no time for each one there is the first of each GPU, or the first of all.
    """
    gpus = []
    for index, gpu in enumerate(host.inventory.report.gpus):
        gpus.append(
            [
                Choice(f"MIG {index}:{number}", f"{index}:{number}")
                for number in range(len(gpu.mig_devices))
            ]
            or [Choice(f"GPU {index}", str(index))]
        )
    each = [choice for gpu in gpus for choice in gpu]
    tried = []
    for some in (each, [gpu[0] for gpu in gpus], each[:1]):
        if some not in tried:
            tried.append(some)
            yield [Choice("none", names.NONE), *some, Choice("all", names.ALL)]


class _Computation:
    def __init__(
        self, case: Case, pod: "PodOnNode | None", capabilities: frozenset[str], budget: float
    ) -> None:
        self._case = case
        self._pod = pod
        self._budget = budget
        self._began = time.monotonic()
        self._seconds: list[float] = []  # of each combination
        self._without_effect: list[str] = []  # capabilities
        self._actions: dict[Action, int] = {}
        self._every: list[Action] = []  # by their numbers
        self._mount: dict[int, int] = {}
        self._path: dict[int, int] = {}
        self._shared = _SharedFacts({}, [])
        self._without_reason: dict[Hashable, int] = {}
        self._links: dict[tuple[str, str], None] = {}
        self._paths: dict[str, int] = {}
        self._judged: dict[Hashable, int] = {}
        self._results: dict[WhatIfResult, int] = {}
        self._proved: dict[Hashable, tuple[list[Proof], tuple[int, ...]]] = {}
        self._found: dict[Combination, int] = {}
        #: Files -> the patient of the first plan with them.
        self._with_files: dict[Hashable, Patient] = {}
        #: Files and capabilities -> the first plan with them.
        self._examined: dict[Hashable, _PlannedCombination] = {}
        #: Mode and devices of the first plan that gives a container the driver.
        self._usual: tuple[str, str | None] | None = None
        #: Capabilities -> the plan with the usual mode and devices.
        self._with_usual: dict[frozenset[str], _PlannedCombination] = {}
        #: Application profile, mode and devices -> plans with the usual ones and with these.
        self._exchanged: dict[
            tuple[str, str, str | None], tuple[_PlannedCombination, _PlannedCombination]
        ] = {}
        asked = Combination(case.mode, None, capabilities)
        self._whatif = WhatIf(asked)
        self._whatif.modes = [asked.mode]
        self._whatif.heeding = frozenset(() if tells_edits(case) else (asked.mode,))
        self._whatif.devices = [Choice("as asked", asked.devices)]
        self._add([asked], "")

    def finished(self) -> WhatIf:
        """Return the results. The image may be read again for what the page shows of them."""
        self._bound(math.inf)
        if self._without_effect:
            words = ", ".join(self._without_effect)
            self._whatif.left_out.append(f"Without effect here: {words}.")
        self._whatif.union = Plan("inject", "", tuple(self._actions), tuple(self._links))
        self._whatif.paths = list(self._paths)
        self._forget_others()
        return self._whatif

    def _forget_others(self) -> None:
        """Leave out results that belong to no combination, and their mounts and proofs."""
        made = self._whatif
        used = list(dict.fromkeys(made.combinations.values()))
        results = [made.results[number] for number in used]
        place = {number: new for new, number in enumerate(used)}
        made.combinations = {one: place[number] for one, number in made.combinations.items()}
        mounts = _numbered(number for result in results for number in result.mounts)
        proofs = _numbered(number for result in results for number in result.proofs)
        made.mounts = [made.mounts[number] for number in mounts]
        made.proofs = [made.proofs[number] for number in proofs]
        made.results = [
            replace(
                result,
                mounts=frozenset(map(mounts.__getitem__, result.mounts)),
                proofs=tuple(map(proofs.__getitem__, result.proofs)),
            )
            for result in results
        ]

    def switch_modes(self) -> None:
        """Add a switch for the mode, if there is time for it."""
        if self._case.handover is not None:
            self._whatif.left_out.append("The mode is left out: the pod's runtime class has one.")
            return
        asked = self._whatif.asked.mode
        others = [mode for mode in _MODES if mode != asked]
        if self._add(
            [one._replace(mode=mode) for mode in others for one in self._all()],
            "The mode is left out",
        ):
            self._whatif.modes = list(dict.fromkeys((*_MODES, asked)))
            self._whatif.heeding |= {mode for mode in others if mode not in CDI_MODES}

    def switch_devices(self, lists: Iterator[list[Choice]], asked: str | None) -> None:
        """Add a switch for devices, if there is time for it.

        :param lists: of positions, fewer in each, of which the first is taken for which there is
            time.
        :param asked: what the container asks for.
        """
        number = 0
        for devices in lists:
            number = number or len(devices)
            others = [choice for choice in devices if choice.value != asked]
            combinations = [
                one._replace(devices=choice.value) for choice in others for one in self._all()
            ]
            if self._add(combinations, "", _PART):
                break
        else:
            words = "to plan a container for each would take too long"
            self._whatif.left_out.append(f"The {number} choices of devices are left out: {words}.")
            return
        if len(devices) < number:
            words = "to plan a container for each would take too long"
            left = number - len(devices)
            self._whatif.left_out.append(f"{left} choices of devices are left out: {words}.")
        if len(others) == len(devices):
            words = "not set" if asked is None else asked or "empty"
            if len(words) > _LABEL:
                words = f"{words[:_LABEL]}…"
            self._whatif.devices = [Choice(f"as asked: {words}", None), *devices]
        else:  # the container as it is has this position
            self._whatif.devices = [
                Choice(choice.label, None) if choice.value == asked else choice
                for choice in devices
            ]

    def switch_capability(self, name: str) -> None:
        """Add a switch for a capability that makes a difference, if there is time for it."""
        if not self._whatif.heeding:
            return
        if self._left() <= 0:
            self._leave_out(f"{name} is left out", "there is no time for it")
            return
        try:
            self._bound(self._left())
            heeding = [mode for mode in self._whatif.modes if mode in self._whatif.heeding]
            modes = [mode for mode in heeding if self._makes_a_difference(name, mode)]
        except OutOfBounds:
            self._leave_out(f"{name} is left out", _NO_TIME)
            return
        if not modes:
            self._without_effect.append(name)
            return
        before = dict(self._whatif.combinations)
        flipped = {one: one._replace(capabilities=one.capabilities ^ {name}) for one in self._all()}
        if self._add([flipped[one] for one in before if one.mode in modes], f"{name} is left out"):
            self._whatif.capabilities.append(name)
            self._whatif.combinations |= {
                flipped[one]: number for one, number in before.items() if one.mode not in modes
            }

    def _makes_a_difference(self, name: str, mode: str) -> bool:
        """Tell whether a capability changes what a container gets that asks for devices."""
        devices = None if self._whatif.asked.devices == names.ALL else names.ALL
        usual = self._with_usual.get(self._whatif.asked.capabilities)
        if usual is not None and usual.injection.request.devices:
            devices = usual.one.devices  # so that more follows from plans that are made anyhow
        one = frozenset({"compute" if name == "utility" else "utility"})
        for others in (one, frozenset(names.CAPABILITIES) - {name}):
            results = [
                self._result(Combination(mode, devices, chosen))
                for chosen in (others, others | {name})
            ]
            if results[0] != results[1]:
                return True
        return False

    def _all(self) -> list[Combination]:
        return list(self._whatif.combinations)

    def _changed(self, one: Combination) -> Case:
        """Return the case of the container that asks for a combination."""
        asked = self._whatif.asked
        if one == asked:
            return self._case
        env = []
        if one.devices is not None:
            env.append(f"{names.VISIBLE_DEVICES}={one.devices}")
        if one.capabilities != asked.capabilities:
            env.append(f"{names.DRIVER_CAPABILITIES}={','.join(sorted(one.capabilities))}")
        if one.mode != asked.mode:
            return self._case.in_mode(one.mode, env)
        return self._case.with_env(env) if env else self._case

    def _add(self, combinations: list[Combination], left_out: str, part: float = 1) -> bool:
        """Compute combinations, all of them or none.

        :param left_out: the sentence if it would take too long; "" for none.
        :param part: of the budget, for all that has been computed until then.
        """
        found: dict[Combination, int] = {}
        for number, one in enumerate(combinations):
            began = time.monotonic()
            left = self._left(part)
            # The first ones take longer: they read what the others find in memory.
            recent = self._seconds[-_RECENT:]
            if recent and left < _median(recent) * (len(combinations) - number):
                words = f"to plan {len(combinations)} more containers would take too long"
                self._leave_out(left_out, words)
                return False
            if recent:  # no combination may take more time of the image than is left
                self._bound(left)
            try:
                found[one] = self._result(one)
            except OutOfBounds:
                self._leave_out(left_out, _NO_TIME)
                return False
            self._seconds.append(time.monotonic() - began)
        self._whatif.combinations |= found
        return True

    def _left(self, part: float = 1) -> float:
        """Return the seconds that are left of a part of the budget."""
        return self._budget * part - (time.monotonic() - self._began)

    def _leave_out(self, what: str, why: str) -> None:
        if what:
            self._whatif.left_out.append(f"{what}: {why}.")

    def _bound(self, left: float) -> None:
        """Limit the seconds that may be spent on the image from now on."""
        counted, directories, libraries, seconds = self._case.host.config.image_limits
        self._case.given.bound(Bounds(counted, directories, libraries, min(seconds, left)))

    def _result(self, one: Combination) -> int:
        """Return the number of the result of a combination."""
        if one not in self._found:
            self._found[one] = self._judge(self._composed(one) or self._plan(one))
        return self._found[one]

    def _plan(self, one: Combination) -> "_PlannedCombination":
        """Plan a combination."""
        case = self._changed(one)
        plan, refusal = case.outcome
        if isinstance(refusal, OutOfBounds) and self._seconds:
            raise refusal
        numbers = frozenset(map(self._number, plan.actions))
        for link in plan.links:
            self._links.setdefault(link)
        edited = (one.mode, one.capabilities) if case.by_edits else ()
        patient = Patient(case.host, case.given, [], case=case, pod=self._pod)
        planned = _PlannedCombination(one, plan, numbers, self._shared, edited, lambda: patient)
        if isinstance(plan, Injection) and not case.by_edits:
            self._remember(planned, profile_of(plan.request.capabilities))
        return planned

    def _remember(self, planned: "_PlannedCombination", profile: str) -> None:
        """Keep a plan that gives a container the driver, for combinations that follow from it."""
        mode, devices, capabilities = planned.one
        self._usual = self._usual or (mode, devices)
        if self._usual == (mode, devices):
            self._with_usual[capabilities] = planned
        elif usual := self._with_usual.get(capabilities):
            self._exchanged.setdefault((profile, mode, devices), (usual, planned))

    def _composed(self, one: Combination) -> "_PlannedCombination | None":
        """Return the plan of a combination that follows from other plans, or None.

        Another mode and other devices change the same whatever the capabilities are, apart from
        the application profile: nvgraft-runtime adds files where the hook adds a profile.
        """
        files = self._with_usual.get(one.capabilities)
        if files is None:
            return None
        profile = profile_of(files.injection.request.capabilities)
        usual, other = self._exchanged.get((profile, one.mode, one.devices), (files, files))
        if other is files:
            return self._in_another_mode(one, profile)
        if usual.plan.links != other.plan.links:
            return None
        plan = copy(files.injection)
        plan.reason = other.plan.reason
        plan.request = copy(files.injection.request)
        plan.request.devices = other.injection.request.devices
        plan.request.devices_from = other.injection.request.devices_from
        numbers = files.exchanged(usual, other)

        def patient() -> Patient:
            # Its config.json is that of the other capabilities: checks of devices do not read them.
            made = self._patient(other.patient.case, plan, numbers)
            made.openable_devices = other.patient.openable_devices
            return made

        return _PlannedCombination(one, plan, numbers, self._shared, files.edited, patient, other)

    def _in_another_mode(self, one: Combination, profile: str) -> "_PlannedCombination | None":
        """Return the plan of a combination that follows from that of the usual mode, or None.

        A mode in which the hook is called changes the same whatever the devices are.
        """
        assert self._usual is not None
        mode, devices = self._usual
        try:
            usual, other = self._exchanged[profile, one.mode, devices]
            _, files = self._exchanged[profile, mode, one.devices]
        except KeyError:
            return None
        told = [(each.injection.reason, each.injection.request) for each in (usual, other)]
        if (
            files.one.capabilities != one.capabilities
            or told[0] != told[1]
            or usual.plan.links != other.plan.links
            or not (usual.injection.request.devices and files.injection.request.devices)
        ):
            return None
        plan = copy(files.injection)
        numbers = files.exchanged(usual, other)

        def patient() -> Patient:
            return self._patient(self._changed(one), plan, numbers)

        planned = _PlannedCombination(one, plan, numbers, self._shared, files.edited, patient)
        self._remember(planned, profile)
        return planned

    def _patient(self, case: Case, plan: Plan, numbers: frozenset[int]) -> Patient:
        """Return what doctor examines of a composed plan, which gets its actions now."""
        plan.actions = tuple(map(self._every.__getitem__, sorted(numbers)))
        case = case.with_plan(plan)
        return Patient(case.host, case.given, [], case=case, pod=self._pod)

    def _judge(self, planned: "_PlannedCombination") -> int:
        """Return the number of the result of a planned combination."""
        plan, numbers = planned.plan, planned.numbers
        # What doctor judges by: the plan, and in a mode with CDI edits what is asked for.
        asked = plan.request if isinstance(plan, Injection) else None
        key = (plan.decision, plan.reason, asked, numbers, plan.links, planned.edited)
        if key not in self._judged:
            if isinstance(plan, Injection):
                first = self._with_files.setdefault(planned.files, planned.patient)
                if first is not planned.patient:
                    planned.patient = first.with_plan_of(planned.patient)
            proofs = self._proofs(planned)
            self._judged[key] = self._stored(plan, self._verdict(planned), numbers, proofs)
        return self._judged[key]

    def _verdict(self, planned: "_PlannedCombination") -> Verdict:
        try:
            if planned.plan.decision != "inject":
                return container_verdict(planned.patient, planned.results)
            # With equal files and capabilities only the checks of devices are made again.
            files = planned.files, planned.one.capabilities
            first = self._examined.setdefault(files, planned)
            if first is planned:
                return container_verdict(planned.patient, planned.results)
            devices = planned.devices
            if devices.found_of_devices is None:
                results = examine(planned.patient, first.results_of_files)
                devices.found_of_devices = [
                    result
                    for result in results
                    if result.findings and result.failure.id in DEVICE_CHECKS
                ]
            found = [*first.found_of_files, *devices.found_of_devices]
            return container_verdict(planned.patient, sorted(found, key=_place))
        except OutOfBounds as refusal:
            if self._seconds:
                raise
            words = f"This container was not judged: {refusal.text}."
            return Verdict("plain", "Not checked", words)

    def _stored(
        self, plan: Plan, verdict: Verdict, numbers: frozenset[int], proofs: tuple[int, ...]
    ) -> int:
        """Store a result, unless there is an equal one; return its number."""
        paths = [self._paths.setdefault(path, len(self._paths)) for path, _ in plan.links]
        paths += [self._path[number] for number in numbers if number in self._path]
        mounts = frozenset(self._mount[number] for number in numbers if number in self._mount)
        result = WhatIfResult(plan.decision, verdict, mounts, frozenset(paths), proofs)
        number = self._results.setdefault(result, len(self._results))
        if number == len(self._whatif.results):
            self._whatif.results.append(result)
        return number

    def _number(self, action: Action) -> int:
        """Return the number of an action, the same for equal ones."""
        number = self._actions.setdefault(action, len(self._actions))
        if number == len(self._every):
            self._every.append(action)
            if isinstance(action, Bind | Tmpfs):
                self._mount[number] = len(self._whatif.mounts)
                self._whatif.mounts.append(action)
            path = path_of(action)
            if path:
                self._path[number] = self._paths.setdefault(path, len(self._paths))
            no_file = isinstance(action, AllowDevice | WriteFile)
            if not no_file and not path.startswith(("/dev/", "/proc/")):
                facts = [fact for fact in vars(action).items() if fact[0] != "why"]
                self._shared.files[number] = self._without_reason.setdefault(
                    (action.op, *facts), number
                )
        return number

    def _proofs(self, planned: "_PlannedCombination") -> tuple[int, ...]:
        """Return the numbers of what programs find. Device nodes make no difference to it."""
        if planned.files not in self._proved:
            proofs = driver_proofs(planned.patient.proofs, planned.plan)
            self._proved[planned.files] = proofs, tuple(map(self._proof_number, proofs))
        proofs, numbers = self._proved[planned.files]
        planned.patient.proofs.know(proofs)
        return numbers

    def _proof_number(self, proof: Proof) -> int:
        """Return the number of a proof, the same for equal ones."""
        if proof not in self._whatif.proofs:
            self._whatif.proofs.append(proof)
        return self._whatif.proofs.index(proof)


def _place(result: Result) -> int:
    """Return the place of a check among all."""
    return _PLACES[result.failure.id]


def _median(seconds: list[float]) -> float:
    """Return the median. To load :mod:`statistics` takes longer than some plans."""
    return sorted(seconds)[len(seconds) // 2]


def _numbered(used: Iterable[int]) -> dict[int, int]:
    """Return the new number of each number that is used, in their order."""
    return {number: new for new, number in enumerate(sorted(set(used)))}


class _SharedFacts(NamedTuple):
    """What is the same for all combinations.

    :ivar files: actions that a loader's search sees -> the first one that differs in its reason
        alone.
    :ivar of_host: the results of checks that do not look at the container, once they were made.
    """

    files: dict[int, int]
    of_host: list[Result]


class _PlannedCombination:
    """A combination with its plan.

    :ivar numbers: of its actions.
    :ivar edited: what is asked for, if CDI edits answer it.
    :ivar devices: the combination that has the same devices: of another one if it is composed.
    :ivar found_of_devices: the results of checks of devices that have found something, once these
        were made.
    """

    def __init__(
        self,
        one: Combination,
        plan: Plan,
        numbers: frozenset[int],
        shared: _SharedFacts,
        edited: Hashable,
        patient: Callable[[], Patient],
        devices: "_PlannedCombination | None" = None,
    ) -> None:
        self.one = one
        self.devices = devices or self
        self.found_of_devices: list[Result] | None = None
        self.plan = plan
        self.numbers = numbers
        self.edited = edited
        self._shared = shared
        self._make_patient = patient

    @property
    def injection(self) -> Injection:
        """The plan, where it gives the container the driver."""
        assert isinstance(self.plan, Injection)
        return self.plan

    def exchanged(
        self, usual: "_PlannedCombination", other: "_PlannedCombination"
    ) -> frozenset[int]:
        """Return the numbers of its actions with those of ``other`` for those of ``usual``."""
        return self.numbers - (usual.numbers - other.numbers) | (other.numbers - usual.numbers)

    @cached_property
    def files(self) -> Hashable:
        """What makes a difference to loaders: not device nodes, nor the reasons of files."""
        files = self._shared.files
        seen = frozenset(files[number] for number in self.numbers if number in files)
        return seen, self.plan.links, self.edited

    @cached_property
    def patient(self) -> Patient:
        """What doctor examines."""
        return self._make_patient()

    @cached_property
    def results(self) -> list[Result]:
        """The results of all checks; none where the refusal alone counts."""
        if self.plan.decision == "refuse":
            return []
        of_host = self._shared.of_host
        results = examine(self.patient, of_host)
        if not of_host:
            of_host += (
                result for result in results if result.failure.id in CHECKS_WITHOUT_CONTAINER
            )
        return results

    @cached_property
    def found_of_files(self) -> list[Result]:
        """Those of :attr:`results_of_files` that have found something."""
        return [result for result in self.results_of_files if result.findings]

    @cached_property
    def results_of_files(self) -> list[Result]:
        """The results that stay the same with other devices."""
        return [result for result in self.results if result.failure.id not in DEVICE_CHECKS]
