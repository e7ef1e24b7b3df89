"""The safety report at its small size: the measuring modules, and the report itself."""

from pathlib import Path

import pytest

from safety import __main__ as report
from safety import mutants
from safety.figures import Figure

MODULES = report.modules()
#: The other modules have test modules of their own.
MEASURED_HERE = ("mutants", "race", "resolver")


@pytest.mark.requires("root", "gcc", "ldconfig", "busybox")
@pytest.mark.parametrize("name", MEASURED_HERE)
def test_every_figure_is_ok(name: str) -> None:
    """``./dev safety --size small`` reports figures of this module, and all of them are ok."""
    figures = MODULES[name][1]("small", report.DEFAULT_SEED)
    assert figures
    assert [figure for figure in figures if not figure.ok] == []


def test_the_report_knows_every_module_that_measures() -> None:
    """A module in the package is found without registration, and has a title that is a sentence."""
    assert {*MEASURED_HERE, "engines", "faults", "historic", "kills"} <= set(MODULES)
    assert [title for title, _ in MODULES.values() if not title.endswith(".")] == []


def test_every_mutant_still_applies() -> None:
    """Each mutant's text occurs in the code, and no two mutants make the same program."""
    changes = {mutants.mutated(mutant) for mutant in mutants.MUTANTS}
    assert len(changes) == len(mutants.MUTANTS)


def test_a_mutant_that_no_test_notices_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant that no test notices is reported; one whose text is not in the code is an error."""
    harmless = mutants.Mutant("harmless", "_PAUSE", "0.01", "0.011", ("tests/test_lock.py",))
    (line,) = mutants.survivors([harmless])
    assert line == "harmless: survived tests/test_lock.py"
    with pytest.raises(mutants.DoesNotApply, match=r"moved: _PAUSE has its code 0 times"):
        mutants.survivors([harmless._replace(name="moved", old="no such code")])


def test_the_report_names_wrong_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report has a table for each module; a wrong or missing figure gives exit code 1."""

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


def test_writing_one_module_replaces_only_its_part(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """--write with one module keeps the other modules' figures: a full size takes an hour."""
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
def test_bad_arguments_are_refused(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unknown module or size is refused before any module runs."""
    monkeypatch.setattr(report, "modules", lambda: {"good": ("Good.", lambda size, seed: [])})
    with pytest.raises(SystemExit) as ended:
        report.main(arguments)
    assert ended.value.code == 2
    assert "./dev safety: error:" in capsys.readouterr().err
