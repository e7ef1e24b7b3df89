"""The safety report at size small: every module that measures, and the report itself."""

from pathlib import Path

import pytest

from safety import __main__ as report
from safety import mutants
from safety.figures import Figure

MODULES = report.modules()
#: The other modules have tests of their own.
MEASURED_HERE = ("mutants", "race", "resolver")


@pytest.mark.requires("root", "gcc", "ldconfig", "busybox")
@pytest.mark.parametrize("name", MEASURED_HERE)
def test_the_figures_are_as_they_have_to_be(name: str) -> None:
    """The figures that ``./dev safety --size small`` reports of this module are right."""
    figures = MODULES[name][1]("small", report.DEFAULT_SEED)
    assert figures
    assert [figure for figure in figures if not figure.ok] == []


def test_the_report_knows_every_module_that_measures() -> None:
    """A new module that measures is found, with a title."""
    assert {*MEASURED_HERE, "engines", "faults", "historic", "kills"} <= set(MODULES)
    assert all(title.endswith(".") for title, _ in MODULES.values()), [
        title for title, _ in MODULES.values()
    ]


def test_every_mutant_still_applies() -> None:
    """Each measure is where its mutant expects it, and each mutant is another program."""
    changes = {mutants.mutated(mutant) for mutant in mutants.MUTANTS}
    assert len(changes) == len(mutants.MUTANTS)


def test_a_mutant_that_nobody_notices_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A removal that no test notices survives; one whose text has moved is an error."""
    harmless = mutants.Mutant(
        "harmless",
        "_PAUSE",
        "0.01",
        "0.011",
        ("tests/test_lock.py",),
    )
    (line,) = mutants.survivors([harmless])
    assert line == "harmless: survived tests/test_lock.py"
    with pytest.raises(mutants.DoesNotApply, match=r"moved: _PAUSE has its code 0 times"):
        mutants.survivors([harmless._replace(name="moved", old="no such code")])


def test_the_report_says_what_is_not_as_it_has_to_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """There is a table for each module, with how it was made; the exit code is 1 when a figure is
    wrong or missing.
    """

    def broken(size: str, seed: int) -> list[Figure]:
        raise AssertionError(f"no {size} result with {seed}")

    known = {
        "good": ("Good.", lambda size, seed: [Figure("escapes", f"0 of {size} {seed}", "0", True)]),
        "bad": ("Bad.", lambda size, seed: [Figure("escapes", "1 | 2", "0", False)]),
        "broken": ("Broken.", broken),
    }
    monkeypatch.setattr(report, "modules", lambda: known)
    assert report.main(["--size", "small", "--seed", "7", "good"]) == 0
    assert "| escapes | 0 of small 7 | 0 | ok |" in capsys.readouterr().out
    assert report.main(["--seed", "7"]) == 1
    out, err = capsys.readouterr()
    assert "| escapes | 1 \\| 2 | 0 | NOT OK |" in out
    assert "| broken | no small result with 7 | a result | NOT OK |" in out
    assert "./dev safety --size small --seed 7 --write bad" in out
    assert "2 not as it has to be: escapes, broken" in err


def test_a_part_that_is_measured_again_takes_the_place_of_the_old_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A new measurement of one module leaves the others' figures as they were; full size takes an
    hour.
    """
    answer = "1"
    known = {
        name: (f"{name}.", lambda size, seed: [Figure("escapes", answer, "0", True)])
        for name in ("kills", "race")
    }
    monkeypatch.setattr(report, "modules", lambda: known)
    monkeypatch.setattr(report, "REPORT", tmp_path / "docs" / "report.md")
    (tmp_path / "docs").mkdir()
    report.main(["--write"])
    answer = "2"
    report.main(["--write", "--size", "full", "kills"])
    parts = report.REPORT.read_text().split("\n## ")
    assert [part.split("\n")[0] for part in parts] == ["# Safety figures", "kills", "race"]
    assert "| escapes | 2 | 0 | ok |" in parts[1] and "--size full" in parts[1]
    assert "| escapes | 1 | 0 | ok |" in parts[2] and "--size small" in parts[2]
    whole = report.REPORT.read_text()
    assert report.merged(whole, {}) == whole


@pytest.mark.parametrize("arguments", [["nothing"], ["--size", "huge"]])
def test_bad_arguments_are_said(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unknown module or size is refused before anything is measured."""
    monkeypatch.setattr(report, "modules", lambda: {"good": ("Good.", lambda size, seed: [])})
    with pytest.raises(SystemExit) as ended:
        report.main(arguments)
    assert ended.value.code == 2
    assert "./dev safety: error:" in capsys.readouterr().err
