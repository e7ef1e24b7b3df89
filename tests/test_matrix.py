"""``nvgraft matrix``: each cell is the plan of its pair, also if pairs are spread or grouped."""

import csv
import json
import os
from pathlib import Path

import pytest

from bundles import EVERYTHING, make_bundle
from nvgraft_cli.matrix import compute as matrices
from nvgraft_cli.shell.main import main
from nvgraft_specs import gallery
from nvgraft_specs.models.matrix import Matrix
from planned import plan_bundle

Captured = pytest.CaptureFixture[str]

ENVIRONMENTS = (
    EVERYTHING,
    (),
    ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_REQUIRE_CUDA=cuda>=12.8"),
    ("NVIDIA_VISIBLE_DEVICES=7",),
)


@pytest.fixture
def bundles(tmp_path: Path) -> list[str]:
    return [
        str(make_bundle(tmp_path / f"bundles/c{number}", *env))
        for number, env in enumerate(ENVIRONMENTS)
    ]


def copy_host(source: str, path: Path, **changes: object) -> str:
    """Write a gallery host with other members to ``path``."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(json.loads(Path(gallery.path(source)).read_text()) | changes))
    return str(path)


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_cell_is_the_plan_of_its_pair(
    bundles: list[str], jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each cell equals the plan of its pair, in one process and in two, also with more containers
    than one task takes.
    """
    monkeypatch.setattr(matrices, "_SLICE", 3)
    matrix = matrices.compute(gallery.names(), bundles, None, jobs)
    assert matrix.bundles == bundles
    assert [row.names for row in matrix.hosts] == [[name] for name in gallery.names()]
    outcomes = {"inject": "runs", "skip": "skipped", "refuse": "refused"}
    occurring = set()
    for row in matrix.hosts:
        for bundle, cell in zip(bundles, row.cells, strict=True):
            plan, _ = plan_bundle(bundle, row.names[0], None)
            assert (cell.outcome, cell.reason) == (
                outcomes[plan.decision],
                "" if plan.decision == "inject" else plan.reason,
            )
            assert cell.mounts == sum(action.op == "mount" for action in plan.actions)
            assert [warning.message for warning in cell.warnings] == [
                f.message for f in plan.findings if f.level == "warning"
            ]
            occurring.add(cell.outcome)
    assert occurring == set(outcomes.values())


def test_a_container_is_closed_after_its_last_host(
    bundles: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any number of containers leaves no more files open than those of one slice."""
    monkeypatch.setattr(matrices, "_SLICE", 2)
    plan_slice, opened = matrices._plan_slice, []

    def counted(task: tuple[int, int]) -> object:
        part = plan_slice(task)
        opened.append(len(os.listdir("/proc/self/fd")))
        return part

    monkeypatch.setattr(matrices, "_plan_slice", counted)
    before = len(os.listdir("/proc/self/fd"))
    matrices.compute(["eks-t4", "mig-h100"], bundles[:1] * 8, None, 1)
    assert before < opened[0] == opened[-1]
    assert len(os.listdir("/proc/self/fd")) == before


def test_hosts_with_equal_documents_are_planned_once(bundles: list[str], tmp_path: Path) -> None:
    """Hosts whose documents differ only in the name share a row; another UUID of a GPU makes
    another row.
    """
    nvml = json.loads(Path(gallery.path("eks-t4")).read_text())["nvml"]
    nvml["gpus"][0]["uuid"] = "GPU-11111111-2222-3333-4444-555555555555"
    names = [
        copy_host("eks-t4", tmp_path / "hosts/a.json", name="a"),
        copy_host("eks-t4", tmp_path / "hosts/b.json", name="b", nvml=nvml),
        copy_host("eks-t4", tmp_path / "hosts/c.json", name="c"),
    ]
    assert [row.names for row in matrices.compute(names, bundles, None, 1).hosts] == [
        [names[0], names[2]],
        [names[1]],
    ]


def test_text_says_where_it_runs_and_why_not(bundles: list[str], capsys: Captured) -> None:
    """Text output groups hosts with equal results; the exit code is 1, because a container is
    refused.
    """
    assert main(["matrix", "eks-t4", "mig-h100", "--bundles", *bundles]) == 1
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith("2 hosts x 4 containers: ")
    assert f"\n{bundles[0]}\n  runs     on all 2 hosts\n" in out
    assert f"\n{bundles[1]}\n  skipped  on all 2 hosts\n           not a GPU container: " in out
    assert (
        "\n  runs     on 1 host: mig-h100\n"
        "  refused  on 1 host: eks-t4\n"
        "           nvgraft: requirement error: "
    ) in out
    assert "\x1b" not in out


def test_nothing_refused_is_exit_0(bundles: list[str], capsys: Captured) -> None:
    """Without a refusal the exit code is 0; a container that asks for no GPU is not refused."""
    assert main(["matrix", "eks-t4", "--bundles", *bundles[:2]]) == 0
    assert "1 host x 2 containers: 1 runs, 1 skipped, 0 refused, " in capsys.readouterr().out


def test_directories_are_replaced_by_their_content(
    bundles: list[str], tmp_path: Path, capsys: Captured
) -> None:
    """A directory stands for its snapshots, recognised by suffix, or its bundles, recognised by
    config.json.
    """
    hosts = [copy_host("eks-t4", tmp_path / f"hosts/{name}.json", name=name) for name in ("a", "b")]
    (tmp_path / "hosts/notes.txt").touch()
    (tmp_path / "bundles/empty").mkdir()
    words = ["matrix", str(tmp_path / "hosts"), "--bundles", str(tmp_path / "bundles")]
    assert main([*words, "--format", "json"]) == 1
    matrix = Matrix.model_validate_json(capsys.readouterr().out)
    assert matrix.bundles == bundles
    assert [row.names for row in matrix.hosts] == [hosts]


def test_csv_has_a_line_for_each_pair(bundles: list[str], tmp_path: Path, capsys: Captured) -> None:
    """CSV output has a line for each host and container, also for grouped hosts."""
    hosts = [copy_host("eks-t4", tmp_path / f"hosts/{name}.json", name=name) for name in ("a", "b")]
    main(["matrix", *hosts, "--bundles", *bundles, "--format", "csv"])
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [(row["host"], row["container"]) for row in rows] == [
        (host, bundle) for host in hosts for bundle in bundles
    ]
    assert [row["outcome"] for row in rows[:4]] == ["runs", "skipped", "refused", "refused"]
    assert rows[0]["driver"] == json.loads(Path(hosts[0]).read_text())["nvml"]["driver_version"]


@pytest.mark.parametrize("form", ["text", "csv"])
def test_escape_sequences_are_shown_as_text(tmp_path: Path, capsys: Captured, form: str) -> None:
    """Escape sequences in a bundle's path are printed as text."""
    bundle = make_bundle(tmp_path / "web\x1b[31m", *EVERYTHING)
    assert main(["matrix", "eks-t4", "--bundles", str(bundle), "--format", form]) == 1
    assert "\x1b" not in capsys.readouterr().out


def test_a_formula_is_quoted_in_csv(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text that starts with = is quoted in CSV, because a spreadsheet would evaluate it."""
    make_bundle(tmp_path / "=1+1", *EVERYTHING)
    monkeypatch.chdir(tmp_path)
    assert main(["matrix", "eks-t4", "--bundles", "=1+1", "--format", "csv"]) == 0
    assert ",'=1+1," in capsys.readouterr().out


def test_a_bad_input_is_one_line(bundles: list[str], tmp_path: Path, capsys: Captured) -> None:
    """A bad host, a bundle without a rootfs or an empty directory gives exit code 2, one line, and
    nothing on stdout.
    """
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "empty").mkdir()
    lost = make_bundle(tmp_path / "lost", *EVERYTHING, root="none")
    for hosts, containers, words in (
        ([str(tmp_path / "bad.json")], bundles, "bad.json: not JSON"),
        (["eks-t4"], [*bundles, str(tmp_path / "none")], "none: no such file or directory"),
        (["eks-t4"], [*bundles, str(lost)], "lost/none: no such directory"),
        ([str(tmp_path / "empty")], bundles, "there is no nvgraft.host/1 document"),
        (["eks-t4"], [str(tmp_path / "empty")], "there is no OCI bundle"),
    ):
        assert main(["matrix", *hosts, "--bundles", *containers, "--jobs", "2"]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("nvgraft matrix: ")
        assert words in err
        assert err.count("\n") == 1


def test_a_config_json_that_the_hook_refuses_is_a_refusal(tmp_path: Path, capsys: Captured) -> None:
    """A config.json that the hook refuses is refused on every host, and the other containers are
    planned.
    """
    bad = make_bundle(tmp_path / "bad", *EVERYTHING)
    (bad / "config.json").unlink()
    (bad / "config.json").mkdir()
    good = make_bundle(tmp_path / "good", *EVERYTHING)
    assert main(["matrix", "eks-t4", "--bundles", str(bad), str(good), "--format", "json"]) == 1
    cells = Matrix.model_validate_json(capsys.readouterr().out).hosts[0].cells
    assert [cell.outcome for cell in cells] == ["refused", "runs"]
    assert "could not decode OCI spec" in cells[0].reason


@pytest.mark.parametrize("text", ["0", "-1", "x"])
def test_a_bad_number_of_jobs_is_a_usage_error(
    bundles: list[str], text: str, capsys: Captured
) -> None:
    """A bad number of jobs exits with 2 and the usage."""
    with pytest.raises(SystemExit) as caught:
        main(["matrix", "eks-t4", "--bundles", *bundles, f"--jobs={text}"])
    assert caught.value.code == 2
    assert "--jobs" in capsys.readouterr().err


def test_repeated_options_name_more(tmp_path: Path, capsys: Captured) -> None:
    """A second --containers or --host adds to the first."""
    bundles = [str(make_bundle(tmp_path / name)) for name in ("a", "b")]
    words = ["--host", "eks-t4", "--host", "mig-h100", "--format", "json"]
    words += [word for bundle in bundles for word in ("--containers", bundle)]
    assert main(["matrix", *words]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["bundles"] == bundles
    assert [row["names"] for row in document["hosts"]] == [["eks-t4"], ["mig-h100"]]


def test_hosts_are_named_by_an_option_too(tmp_path: Path, capsys: Captured) -> None:
    """--host names hosts as the arguments do; without any there is one line."""
    bundle = str(make_bundle(tmp_path / "b"))
    printed = []
    for words in (["eks-t4", "mig-h100"], ["eks-t4", "--host", "mig-h100"]):
        assert main(["matrix", *words, "--containers", bundle]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    assert main(["matrix", "--containers", bundle]) == 2
    assert capsys.readouterr().err.startswith("nvgraft matrix: HOST is missing | ")
