"""What the page of ``nvgraft explain --html`` is made of: switches, picture and timeline."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import combinations, pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from bundles import EVERYTHING, make_bundle
from nvgraft.formats.tree import Bounds
from nvgraft.plan.actions import Bind, Tmpfs, Why
from nvgraft_cli.case import planning
from nvgraft_cli.case.bundle import open_container
from nvgraft_cli.case.hosts import open_host
from nvgraft_cli.case.planning import Case
from nvgraft_cli.doctor.examination import examine
from nvgraft_cli.doctor.patient import Patient
from nvgraft_cli.doctor.verdict import container_verdict
from nvgraft_cli.explain import command
from nvgraft_cli.explain import whatif as whatif_module
from nvgraft_cli.explain.directories import before_and_after
from nvgraft_cli.explain.picture import NARROW, WIDE, draw, source_of
from nvgraft_cli.explain.steps import driver_proofs
from nvgraft_cli.explain.telling import tell
from nvgraft_cli.explain.timeline import Lane, timeline
from nvgraft_cli.explain.whatif import Combination, WhatIf, compute
from nvgraft_cli.pods.opening import opened_case_of_pod
from nvgraft_cli.shell.main import main
from nvgraft_cli.shell.parser import parse
from nvgraft_specs import names

#: Enough for every switch on the slowest machine.
ENDLESS = 600.0
#: An image with CUDA's libraries and without those of X11.
TRAINING = Path(__file__).parent.parent / "docs/examples/training"
VISIBLE, CAPABILITIES = names.VISIBLE_DEVICES, names.DRIVER_CAPABILITIES


def case_of(
    place: Path, *env: str, host: str = "runfile-a10x2", mode: str = "hook", **changes: Any
) -> Case:
    bundle = make_bundle(place, *env, **changes)
    return Case(open_host(host, None), open_container(str(bundle)), mode)


def pairs(mounts: list[Bind | Tmpfs] | tuple[Any, ...]) -> set[tuple[str, str]]:
    return {(source_of(one), one.target) for one in mounts if isinstance(one, Bind | Tmpfs)}


def combination(mode: str, devices: str | None, *capabilities: str) -> Combination:
    return Combination(mode, devices, frozenset(capabilities))


@pytest.fixture(scope="module")
def whatif(tmp_path_factory: pytest.TempPathFactory) -> WhatIf:
    """The results of all switches for a container that asks for everything."""
    return compute(case_of(tmp_path_factory.mktemp("b") / "b", *EVERYTHING), budget=ENDLESS)


@pytest.mark.parametrize(
    ("mode", "devices", "capabilities"),
    [
        ("hook", "1", "utility"),
        ("hook", "none", "utility,compute"),
        ("legacy", "all", "graphics,compute"),
        ("jit-cdi", "0", "utility"),
    ],
)
def test_a_switch_tells_what_a_plan_tells(
    whatif: WhatIf, mode: str, devices: str, capabilities: str, tmp_path: Path
) -> None:
    """The result of a combination has the mounts of a plan for a container that asks for it."""
    fixed = whatif.asked.capabilities - set(whatif.capabilities)
    asked = combination(mode, None if devices == "all" else devices, *capabilities.split(","))
    asked = asked._replace(capabilities=asked.capabilities | fixed)
    result = whatif.results[whatif.combinations[asked]]
    env = f"{VISIBLE}={devices}", f"{CAPABILITIES}={','.join(asked.capabilities)}"
    plan = case_of(tmp_path / "b", *env, mode=mode).outcome[0]
    assert plan.decision == result.decision
    mounts = [whatif.mounts[number] for number in result.mounts]
    assert pairs(mounts) == pairs(plan.actions)


@pytest.mark.parametrize(
    ("host", "container", "mode"),
    [("mig-h100", TRAINING, "hook"), ("debian-compat32", TRAINING, "legacy"), ("eks-t4", "", "")],
)
def test_results_that_follow_from_others_are_those_of_a_plan(
    host: str, container: Path | str, mode: str, tmp_path: Path
) -> None:
    """What is composed of other plans and judged by their checks is what a container of its own
    gets: with each mode, each position of the devices and many sets of capabilities.
    """
    path = str(container or make_bundle(tmp_path / "b", "NVIDIA_DRIVER_CAPABILITIES=graphics"))
    side = open_host(host, None)
    made = compute(Case(side, open_container(path), mode or "hook"), budget=ENDLESS)
    some = [
        one
        for one in made.combinations
        if one.mode in made.heeding or one.capabilities == made.asked.capabilities
    ]
    for one in some[::11]:
        env = [f"{CAPABILITIES}={','.join(sorted(one.capabilities))}"]
        env += [f"{VISIBLE}={one.devices}"] if one.devices is not None else []
        with closing(open_container(path, env)) as given:
            case = Case(side, given, one.mode)
            plan, _ = case.outcome
            patient = Patient(side, case.given, [], case=case)
            result = made.results[made.combinations[one]]
            mounts = [made.mounts[number] for number in result.mounts]
            assert pairs(mounts) == pairs(plan.actions), one
            assert result.verdict == container_verdict(patient, examine(patient)), one
            found = [proof.sentence() for proof in driver_proofs(patient.proofs, plan)]
        assert [made.proofs[number].sentence() for number in result.proofs] == found, one


def test_what_is_the_same_is_found_out_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 520 combinations that a hook answers few are planned: another mode and other devices
    change the same in each. What loads is searched once for files that two capabilities bring.
    """
    counted: Counter[str] = Counter()

    def counting(module: ModuleType, name: str) -> None:
        function = getattr(module, name)

        def counted_one(*args: Any, **options: Any) -> Any:
            counted[name] += 1
            return function(*args, **options)

        monkeypatch.setattr(module, name, counted_one)

    counting(planning, "make_plan")
    counting(whatif_module, "driver_proofs")
    made = compute(case_of(tmp_path / "b", *EVERYTHING), budget=ENDLESS)
    by_hook = [one for one in made.combinations if one.mode in made.heeding]
    sets = {one.capabilities for one in by_hook}
    assert len(by_hook) >= 8 * len(sets)
    assert counted["make_plan"] < 2 * len(sets)
    assert counted["driver_proofs"] < len(sets)


def test_equal_results_are_stored_once(whatif: WhatIf) -> None:
    """Different results are different, and every mount, path and proof is one of a result."""
    assert len(whatif.results) < len(whatif.combinations) / 2
    assert not [one for one, other in combinations(whatif.results, 2) if one == other]
    used = frozenset[int]().union(*(result.mounts for result in whatif.results))
    assert used == set(range(len(whatif.mounts)))
    every = len(whatif.modes) * len(whatif.devices) << len(whatif.capabilities)
    assert len(whatif.table) == every


def test_a_capability_without_effect_has_no_switch(whatif: WhatIf) -> None:
    """A host without 32-bit libraries has no switch for them, and the page says so."""
    assert "compat32" not in whatif.capabilities
    assert "Without effect here: compat32." in whatif.left_out


def test_capabilities_have_no_switch_where_edits_bring_all(whatif: WhatIf) -> None:
    """In the modes of CDI edits a container gets the same with all capabilities as with none."""
    assert whatif.heeding == {"hook", "legacy"}
    for mode in ("jit-cdi", "cdi"):
        every = {
            number
            for one, number in whatif.combinations.items()
            if one.mode == mode and one.devices == "0"
        }
        assert len(every) == 1


@contextmanager
def pod_case(place: Path, **variables: str) -> Iterator[Case]:
    """Open the case of the training example in a pod on a node of eight GPUs."""
    pod = place / "pod.json"
    container = {
        "name": "c",
        "image": "x",
        "resources": {"limits": {"nvidia.com/gpu": 1}},
        "env": [{"name": name, "value": value} for name, value in variables.items()],
    }
    spec = {"runtimeClassName": "nvidia", "containers": [container]}
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}
    pod.write_text(json.dumps(document))
    words = ["explain", "--pod", str(pod), "--host", "h100-580", "--container", str(TRAINING)]
    with opened_case_of_pod(parse(words)) as (case, _):
        yield case


@pytest.mark.parametrize(
    ("capabilities", "level", "trouble"),
    [("compute,utility", "good", ""), ("compute,graphics", "mend", "libGLX_nvidia.so.0")],
)
def test_what_programs_ask_for_decides(
    capabilities: str, level: str, trouble: str, tmp_path: Path
) -> None:
    """CDI edits bring a graphics library that does not load in this image: that is a failure only
    where graphics is asked for, in the badge as in both sentences.
    """
    with pod_case(tmp_path, NVIDIA_DRIVER_CAPABILITIES=capabilities) as case:
        verdict = compute(case, budget=0).results[0].verdict
        headline = tell(case).headline
    assert verdict.level == level
    for sentence in (verdict.sentence, headline):
        assert re.findall(r"(\S+) does not load", sentence) == [trouble] * bool(trouble)


@pytest.mark.parametrize(
    ("env", "level", "short"),
    [
        (EVERYTHING, "bad", "CUDA does not load"),
        ((), "plain", "No GPU"),
        ((f"{VISIBLE}=none",), "plain", "No GPU"),
        ((f"{VISIBLE}=7",), "bad", "Does not start"),
    ],
)
def test_a_badge_says_what_the_sentence_says(
    env: tuple[str, ...], level: str, short: str, tmp_path: Path
) -> None:
    """The badge is good only where the container gets the GPUs that it asks for."""
    verdict = compute(case_of(tmp_path / "b", *env), budget=0).results[0].verdict
    assert (verdict.level, verdict.short) == (level, short)


@pytest.mark.parametrize(("processor_time", "left"), [(2.0, 2.2), (0.5, 1.0)])
def test_the_time_before_the_switches_counts(
    processor_time: float, left: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that took two seconds until its switches are computed has less time for them, and
    still less on a busy machine, where it gets the processor for a part of the time.
    """
    wall, used = iter([100.0, 100.0, 102.0, 102.0]), iter([7.0, 7.0 + processor_time])
    budgets = []

    def computed(*words: Any, budget: float) -> WhatIf:
        budgets.append(budget)
        return compute(*words, budget=0)

    clocks = SimpleNamespace(monotonic=lambda: next(wall), process_time=lambda: next(used))
    monkeypatch.setattr(command, "time", clocks)
    monkeypatch.setattr(whatif_module, "compute", computed)
    bundle = make_bundle(tmp_path / "b", *EVERYTHING)
    words = ["explain", "--bundle", str(bundle), "--host", "eks-t4"]
    assert main([*words, "--html", str(tmp_path / "page.html")]) == 0
    assert budgets == [pytest.approx(left)]


def test_the_devices_of_a_container_are_a_position(tmp_path: Path) -> None:
    """What is asked for, if it is no other position, is one of its own, cut to a label."""
    asked = "0," * 20 + "1"
    made = compute(case_of(tmp_path / "b", f"{VISIBLE}={asked}"), budget=ENDLESS)
    labels = [choice.label for choice in made.devices]
    assert labels == ["as asked: " + asked[:24] + "…", "none", "GPU 0", "GPU 1", "all"]


def test_without_time_there_are_no_switches(tmp_path: Path) -> None:
    """What there is no time for is left out and named, and the image can still be read."""
    files = [f"usr/lib/lib{number}.so" for number in range(40)]
    case = case_of(tmp_path / "b", *EVERYTHING, files=("etc/debian_version", *files))
    made = compute(case, budget=0)
    assert (len(made.modes), len(made.devices), made.capabilities) == (1, 1, [])
    told = " ".join(made.left_out)
    for name in ("The mode is", "The 4 choices of devices are", "utility is", "video is"):
        assert f"{name} left out" in told
    assert [result.decision for result in made.results] == ["inject"]
    before, after = before_and_after(case, case.outcome[0], made.union)
    assert (before.path, after.path) == ("/", "/")


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let each combination take a second; return the seconds that the image may take, as set."""
    seconds = 0.0

    def result(self: Any, one: Combination) -> int:
        nonlocal seconds
        seconds += 1
        return plain(self, one)

    def bounds(*limits: Any) -> Bounds:
        allowed.append(limits[3])
        return Bounds(*limits)

    allowed: list[float] = []
    plain = whatif_module._Computation._result
    monkeypatch.setattr(whatif_module._Computation, "_result", result)
    monkeypatch.setattr(whatif_module, "Bounds", bounds)
    monkeypatch.setattr(whatif_module, "time", SimpleNamespace(monotonic=lambda: seconds))
    return allowed


def test_many_devices_have_a_shorter_switch(tmp_path: Path, slow: list[float]) -> None:
    """Where each MIG device would take too long there is the first one of each GPU."""
    made = compute(case_of(tmp_path / "b", *EVERYTHING, host="mig-h100"), budget=50)
    assert len(made.modes) == 4
    assert [choice.label for choice in made.devices] == ["none", "MIG 0:0", "GPU 1", "all"]
    assert made.left_out[0].startswith("2 choices of devices are left out: ")


def test_what_was_left_out_leaves_nothing_behind(tmp_path: Path, slow: list[float]) -> None:
    """Mounts of results without a switch are not kept, and the image may be read for the page."""
    case = case_of(tmp_path / "b", *EVERYTHING, host="mig-h100")
    made = compute(case, budget=50)
    assert "display is left out" in " ".join(made.left_out)
    used = frozenset[int]().union(*(result.mounts for result in made.results))
    assert used == set(range(len(made.mounts)))
    assert len(made.results) == len(set(made.combinations.values()))
    assert min(slow) < slow[-1] == case.host.config.image_limits[3]


@pytest.mark.parametrize("form", [WIDE, NARROW], ids=lambda form: str(form.name))
@pytest.mark.parametrize("host", ["runfile-a10x2", "debian-a100x8", "operator-driver-root"])
def test_boxes_have_their_places(host: str, form: Any, tmp_path: Path) -> None:
    """Every mount has one line, boxes of a column do not overlap, and lines end at boxes."""
    plan = case_of(tmp_path / "b", *EVERYTHING, host=host).outcome[0]
    mounts = [action for action in plan.actions if isinstance(action, Bind | Tmpfs)]
    picture = draw(mounts, frozenset(range(len(mounts))), form)
    assert sorted(number for line in picture.lines for number in line.mounts) == list(
        range(len(mounts))
    )
    for column in range(3):
        boxes = [box for box in picture.boxes if box.column == column]
        assert boxes
        for above, below in pairwise(boxes):
            assert above.y + above.height < below.y
        assert boxes[-1].y + boxes[-1].height <= picture.height
    for line in picture.lines:
        assert line.path.count("M") == sum(box >= 0 for box in line.boxes) - 1


@pytest.mark.parametrize("name", ["a" * 4000, "\u4e16" * 300, "<b>&\"'\u202e"])
def test_the_names_of_a_picture_are_cut(name: str) -> None:
    """A long directory is cut to the width of its box; a deceiving one is escaped."""
    why = Why("utility", "a row", "a way")
    mounts = [Bind("file", "driver", f"/{name}/x", f"/{name}/y", ("ro",), 0o755, why)]
    picture = draw(mounts, frozenset({0}), NARROW)
    for box in picture.boxes:
        assert len(box.below) <= NARROW.letters
        assert "\u202e" not in box.below


def states(lanes: tuple[Lane, ...]) -> dict[str, str]:
    return {f"{lane.who}: {one.task}": one.state for lane in lanes for one in lane.moments}


def test_a_start_ends_with_the_program(tmp_path: Path) -> None:
    """All moments of a start with a plan are reached, with what is done in them."""
    lanes = timeline(case_of(tmp_path / "b", *EVERYTHING))
    assert [lane.who for lane in lanes] == ["Engine", "Runtime", "Hook", "Runtime", "Container"]
    assert set(states(lanes).values()) == {"reached"}
    amounts = {one.task: one.amounts for one in lanes[2].moments}
    assert amounts["attach the mounts"] == "49 mounts"
    assert amounts["allow the devices"] == "6 device rules"
    assert amounts["look at the host and the container"] == "2 GPUs, 28 libraries"


def test_a_pod_without_a_runtime_class_gets_nothing_added(tmp_path: Path) -> None:
    """Where the engine calls runc the start ends for the driver, and goes on for the program."""
    pod = tmp_path / "pod.yaml"
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "x"},
        "spec": {
            "containers": [
                {"name": "c", "image": "x", "resources": {"limits": {"nvidia.com/gpu": 1}}}
            ]
        },
    }
    pod.write_text(json.dumps(document))
    page = tmp_path / "page.html"
    words = ["explain", "--pod", str(pod), "--host", "h100-580", "--html", str(page)]
    assert main(words) == 0
    text = page.read_text()
    text = text[text.index('<section id="start"') :]
    text = text[: text.index("</section>")]
    assert [line.split("<")[0] for line in text.split("<h3>")[1:]] == [
        "Engine",
        "Runtime",
        "Container",
    ]
    assert 'class="moment end"><strong>write config.json</strong>' in text
    assert 'class="moment reached"><strong>start the program</strong>' in text


def test_a_start_without_the_driver_goes_on(tmp_path: Path) -> None:
    """Where nothing is asked for the hook ends, and the program is started."""
    lanes = timeline(case_of(tmp_path / "b"))
    found = states(lanes)
    assert found["Hook: decide what is asked for"] == "end"
    assert found["Hook: make the plan"] == "beyond"
    assert found["Container: start the program"] == "reached"


def test_a_program_that_is_not_there_is_the_end(tmp_path: Path) -> None:
    """The hook's work is done, and the last moment tells why the program does not start."""
    case = case_of(tmp_path / "b", *EVERYTHING, process={"args": ["nothing"], "env": EVERYTHING})
    lanes = timeline(case)
    assert states(lanes)["Hook: write the loader cache"] == "reached"
    assert (lanes[-1].moments[0].state, lanes[-1].moments[0].amounts) == (
        "end",
        'exec: "nothing": executable file not found in $PATH',
    )


@pytest.mark.parametrize(
    ("devices", "mode", "end"),
    [
        ("7", "hook", "Hook: make the plan"),
        ("7", "jit-cdi", "Runtime: apply the CDI edits"),
        ("0,,x", "legacy", "Hook: make the plan"),
    ],
)
def test_a_refused_start_ends_where_it_is_refused(
    devices: str, mode: str, end: str, tmp_path: Path
) -> None:
    """After a refusal nothing is reached, and the moment of the refusal tells it."""
    case = case_of(tmp_path / "b", f"{VISIBLE}={devices}", mode=mode)
    lanes = timeline(case)
    found = states(lanes)
    assert found[end] == "end"
    assert found["Container: start the program"] == "beyond"
    (told,) = [one.amounts for lane in lanes for one in lane.moments if one.state == "end"]
    assert told == case.outcome[0].reason


def test_cdi_edits_have_a_timeline_of_their_own(tmp_path: Path) -> None:
    """In mode jit-cdi the runtime mounts, and the hooks of the edits make links and cache."""
    lanes = timeline(case_of(tmp_path / "b", *EVERYTHING, mode="jit-cdi"))
    tasks = [one.task for lane in lanes for one in lane.moments]
    assert tasks == [
        "write config.json",
        "apply the CDI edits",
        "make the container",
        "run the hooks of the edits",
        "change the root",
        "start the program",
    ]
    assert "mounts" in lanes[1].moments[1].amounts
    assert json.dumps(lanes[2].moments[0].amounts).startswith('"1 hook, ')
