"""``./dev bench`` measures what it says. No test checks a time, because machines differ."""

import subprocess
from pathlib import Path

import pytest

from bench import chart, hosts
from bench.cases import Case, Outcome, Times
from bench.measure import QUICK_SIZES
from bench.node import REFERENCE, Hook, Node, Sample, find_reference, start
from bench.phases import ORDER, PHASES
from bench.report import Curve, Edits, Limited, Row, markdown_table, spread
from harness import CHECKOUT, Installed
from nvgraft_specs import gallery

NODE = pytest.mark.requires("root", "gcc", "busybox", "overlayfs", "x86_64")


@NODE
def test_a_short_run_shows_every_table(installed: Installed) -> None:
    """Each start, phase, curve and offline plan has a line with figures.

    Each start also has a line for the ratios to another installation.
    """
    done = subprocess.run(
        [CHECKOUT / "dev", "bench", "--quick", "--beside", installed.prefix],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    starts = [
        f"{name}, {cached}"
        for name in ("no GPU", "1 GPU", "2 GPUs", "8 GPUs")
        for cached in ("cached", "not cached")
    ]
    curves = [
        "GPUs, cached",
        "GPUs, not cached",
        "loader cache of the image",
        "loader cache of the host",
        "names in the library directory of the image",
        "mounts on the host",
    ]
    assert all(
        sum(line.startswith(f"{name} ") and "(" in line for line in lines) == 2 for name in starts
    )
    assert all(any(line.startswith(f"{phase} ") for line in lines) for phase in ORDER)
    assert all(
        sum(line.startswith(name) for line in lines) == len(QUICK_SIZES["GPUs"]) for name in curves
    )
    assert any(line.startswith("2 GPUs, mode jit-cdi ") for line in lines)
    assert any(line.startswith("plan from a loaded snapshot") for line in lines)
    for name in ("program start to first ListAndWatch", "Allocate", "resident memory", "growth"):
        assert any(line.startswith(name) and line[-1].isdigit() for line in lines)


def test_every_phase_has_its_place_in_the_order() -> None:
    """Every measured phase is also shown."""
    assert {phase for names in PHASES.values() for phase in names.values()} <= set(ORDER)


@pytest.mark.parametrize("gpus", [1, 8, 64])
def test_a_host_has_as_many_gpus_as_wanted(gpus: int) -> None:
    """Every GPU of a host made for the bench has its node and its /proc directory, and none is left
    of the model's.
    """
    document = hosts.document(Path(gallery.path(hosts.MODEL)).parent, gpus, entries=3)
    assert [gpu["minor"] for gpu in document["nvml"]["gpus"]] == list(range(gpus))
    assert {path for path in document["files"] if path.removeprefix("/dev/nvidia").isdecimal()} == {
        f"/dev/nvidia{n}" for n in range(gpus)
    }
    assert sum(path.endswith("/information") for path in document["files"]) == gpus
    assert sum(row[0].startswith("libbench") for row in document["ld_so_cache"]) == 3


def orders_of_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> list[list[str]]:
    """Return the programs that four rounds of two cases start, by round."""
    node = Node("/opt/new", "/opt/old", [Case("one"), Case("two")], str(tmp_path), seed)
    started: list[str] = []
    sample = Sample(0, 1_000_000, 0.001, "")

    def run(case: Case, hook: Hook) -> Sample:
        started.append(f"{case.name} {hook.command[0]}")
        return sample

    def start_bare(command: list[str], stdin: str, directory: str) -> Sample:
        started.append(command[0])
        return sample

    monkeypatch.setattr(node, "_run", run)
    monkeypatch.setattr("bench.node.start", start_bare)
    node.round()  # the first round has starts that only prepare
    rounds = []
    for _ in range(4):
        started.clear()
        node.round()
        rounds.append(list(started))
    return rounds


def test_the_order_of_programs_is_another_one_in_each_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No program always follows the same one, and the seed gives the same order again."""
    monkeypatch.setattr("bench.node.find_reference", lambda: ("/opt/nvidia/hook", "/opt/nvidia"))
    first, again, other = (
        orders_of_rounds(tmp_path / str(number), monkeypatch, seed)
        for number, seed in enumerate((1, 1, 2))
    )
    assert first == again != other
    assert len({tuple(order) for order in first}) == 4
    assert len({frozenset(order) for order in first}) == 1
    assert len(first[0]) == 2 * 4


def test_the_reference_is_found_wherever_path_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference hook is started by its path and finds the CLI beside it; the hook alone is not
    the reference.
    """
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in REFERENCE:
        assert find_reference() is None
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    reference = find_reference()
    assert reference is not None
    program, path = reference
    assert program == f"{tmp_path}/nvidia-container-runtime-hook"
    assert path.startswith(f"{tmp_path}:")


def test_a_program_that_cannot_be_run_ends_the_bench_with_one_line(tmp_path: Path) -> None:
    """There is no traceback: the line names the program and the reason."""
    with pytest.raises(SystemExit, match=r"bench: cannot run /none: No such file or directory$"):
        start(["/none"], "", str(tmp_path))


def outcome(seconds: list[float], reference: list[float]) -> Outcome:
    phases = [dict.fromkeys(ORDER, 1_000_000) for _ in seconds]
    bare = [0.01] * len(seconds)
    return Outcome.begun("a start")._replace(
        hook=Times(seconds, seconds),
        bare=Times(bare, bare),
        reference=Times(reference, reference),
        phases=phases,
    )


def test_a_ratio_is_taken_within_a_round() -> None:
    """A round in which the machine was twice as slow changes the times but not the ratios."""
    slow = Outcome.begun("a start")._replace(
        hook=Times([0.03, 0.06], [0.02, 0.02]),
        bare=Times([0.01, 0.02], [0.01, 0.01]),
        beside=Times([0.04, 0.08], [0.02, 0.04]),
        reference=Times([0.02, 0.04], []),
    )
    assert Row(slow, "").cells()[2:4] == ["3.00 (3.00-3.00)", "1.50 (1.50-1.50)"]
    assert Row(slow, "").beside_cells()[2:] == ["0.750 (0.750-0.750)", "0.750 (0.550-0.950)"]


def test_the_stand_in_is_used_only_without_the_reference() -> None:
    """The reference's own time counts where it was measured; otherwise a multiple of the bare
    start, and ldconfig's part.
    """
    assert Row(outcome([0.03, 0.03], [0.06, 0.06]), "").cells()[3] == "0.50 (0.50-0.50)"
    assert Row(outcome([0.046, 0.046], []), "").cells()[3] == "2.00 (2.00-2.00)"
    assert Row(outcome([0.046, 0.046], []), "", extra=0.023).cells()[3] == "1.00 (1.00-1.00)"


def test_starts_by_edits_are_compared_as_wholes() -> None:
    """Runtime and hooks of a round together are compared with those of the reference."""
    ours, theirs = [(0.01, 0.02, 0.03, 1)] * 2, [(0.02, 0.04, 0.12, 6)] * 2
    cells = Edits("x", ours, theirs).cells()
    assert cells[:2] == ["x", "1"]
    assert [cell.split()[0] for cell in cells[2:]] == ["10.0", "20.0", "0.50", "1.0x", "0.25"]
    assert Edits("x", ours).cells()[-3:] == ["", "", ""]


def test_a_limit_is_exceeded_by_the_median() -> None:
    """One slow round does not fail the bench; what has no limit never does."""
    assert not Limited("x", [1.0, 2.0, 90.0], 2).exceeded
    assert Limited("x", [1.0, 3.0, 90.0], 2).exceeded
    assert not Limited("x", [90.0]).exceeded
    assert Limited("x", [90.0], 1000).cells() == ["x", "90.00", "1,000"]


def test_the_spread_is_of_the_inner_eight_tenths() -> None:
    """One outlier in eleven rounds moves neither the median nor the percentiles far."""
    assert spread([float(value) for value in range(10)] + [1000.0]) == (5.0, 1.0, 9.0)


def test_charts_are_drawn_to_one_scale() -> None:
    """Bars and curves keep the ratios of their figures."""
    bars = chart.text_bars(
        {"one": {"imports": 1.0, "plan": 4.0, "none": 0.0}}, width=8
    ).splitlines()
    assert [line.count("#") for line in bars[1:]] == [2, 8]
    drawn = chart.svg_curves(
        [
            (
                "GPUs",
                Curve(
                    "GPUs", [(1, outcome([0.01] * 2, [])), (2, outcome([0.02] * 2, []))]
                ).milliseconds(),
            )
        ]
    )
    heights = [
        float(point.partition(",")[2])
        for point in drawn.partition('points="')[2].partition('"')[0].split()
    ]
    bottom = float(drawn.partition("V")[2].partition("H")[0])
    assert bottom - heights[1] == pytest.approx(2 * (bottom - heights[0]))
    assert "<rect" in chart.svg_bars(
        {"a <start>": {"plan": 1.0}}
    ) and "a &lt;start&gt;" in chart.svg_bars({"a <start>": {"plan": 1.0}})


def test_a_table_is_valid_markdown() -> None:
    """Heading, rule and lines have the same columns."""
    table = markdown_table(["start", "ms"], [["a", "1"]]).splitlines()
    assert table == ["| start | ms |", "| --- | ---: |", "| a | 1 |"]


def test_a_case_asks_for_everything_by_default() -> None:
    """The start that is compared with the reference has all GPUs, all capabilities and a kept
    inventory.
    """
    assert (
        Case("all").variables == ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all")
        and Case("all").cached
    )
