"""`nvgraft inventory`: what is said about the cache, and what is done to it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from documents import read_document
from machines import Machine
from nvgraft.base.errors import Refusal
from nvgraft.host import kept_inventory
from nvgraft.request.config import Config
from nvgraft.system import kept
from nvgraft_cli.inventory import command, refresh
from nvgraft_cli.shell import main


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    found = Machine(tmp_path)
    monkeypatch.setattr(command, "permission_problem", lambda: "")
    monkeypatch.setattr(refresh, "hook_config", lambda _path: Config(**found.settings))
    with found.running():
        found.tick()
        yield found


def run(*words: str) -> int:
    return main.main(["inventory", *words])


def test_nothing_is_cached_at_first(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    """Said, and the exit code tells it too."""
    assert run("show") == 1
    said = capsys.readouterr().out
    assert "state      the next hook reads the host anew: no inventory is kept" in said
    assert machine.queries == 0


def test_refresh_and_show(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    """What was found is told in a line, and then in detail."""
    assert run("refresh") == 0
    assert capsys.readouterr().out == "driver 535.1, gpus 1, mig devices 1, libraries 2\n"
    assert run("show") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "state      the next hook uses it"
    assert (
        lines[1]
        == f"file       {kept.DIRECTORY}/{kept_inventory.name_of(Config(**machine.settings))}"
    )
    assert Path(lines[1].split()[1]).is_file()
    assert lines[3] == f"driver     535.1, CUDA 12.2, in {machine.root}"
    assert lines[-2:] == [
        "GPU        GPU-a at 00000000:01:00.0, Test GPU, MIG enabled",
        "           MIG-1, GPU instance 1, compute instance 0",
    ]
    assert machine.origin() == "from the kept inventory"


def test_show_for_machines(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    """Names and values, no sentences to take apart."""
    assert run("show", "--format", "json") == 1
    assert read_document(capsys.readouterr().out)["cached"] is None
    run("refresh", "--format", "json")
    assert read_document(capsys.readouterr().out) == {
        "schema": "nvgraft.refresh/1",
        "driver": "535.1",
        "gpus": 1,
        "mig_devices": 1,
        "libraries": 2,
    }
    assert run("show", "--format", "json") == 0
    shown = read_document(capsys.readouterr().out)
    assert (shown["used"], shown["reason"], shown["cached"]["driver_version"]) == (
        True,
        None,
        "535.1",
    )
    assert shown["cached"]["gpus"][0]["mig_devices"] == [
        {"compute_instance": 0, "gpu_instance": 1, "uuid": "MIG-1"}
    ]
    assert shown["cached"]["libraries"] == [
        "/usr/lib/libnvidia-ml.so.535.1",
        "/usr/lib/libcuda.so.535.1",
    ]
    assert "/etc/ld.so.cache" in shown["cached"]["checked"]


def test_what_is_stale_is_shown_with_the_reason(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first thing that differs, and what was cached before."""
    run("refresh")
    machine.tick()
    machine.library("usr/lib/libcuda.so.535.1", "libcuda.so.1")
    capsys.readouterr()
    assert run("show") == 1
    lines = capsys.readouterr().out.splitlines()
    assert (
        lines[0]
        == f"state      the next hook reads the host anew: changed: {machine.root}/usr/lib/libcuda.so.535.1"
    )
    assert any(line.startswith("GPU ") for line in lines)


def test_a_damaged_document_is_shown_as_such(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    """No traceback."""
    kept.write(kept_inventory.KIND, kept_inventory._key(Config(**machine.settings)), {"made": "x"})
    assert run("show") == 1
    assert "the kept inventory is damaged" in capsys.readouterr().out


def test_refresh_asks_whatever_is_cached(machine: Machine) -> None:
    """NVML may know what cannot be seen."""
    run("refresh")
    asked = machine.queries
    machine.uuids["gpu0"] = "GPU-unseen"
    assert run("refresh") == 0
    assert machine.queries == asked + 1
    state, _ = kept_inventory.state(Config(**machine.settings))
    assert state is not None
    assert state.report.gpus[0].uuid == "GPU-unseen"


@pytest.mark.parametrize("broken", ["driver", "loader cache", "library"])
def test_a_host_that_cannot_be_read_has_nothing_cached(
    machine: Machine, broken: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The hook's own error; what was cached could hide it from the hook."""
    run("refresh")
    kept.write("other", 1, 1)
    path = {
        "driver": "proc/driver/nvidia/version",
        "loader cache": "etc/ld.so.cache",
        "library": "usr/lib/libcuda.so.535.1",
    }[broken]
    machine.remove(path)
    assert run("refresh") == 1
    assert capsys.readouterr().err.startswith("nvgraft: ")
    assert kept_inventory.state(Config(**machine.settings)) == (None, "no inventory is kept")
    assert kept.read("other", 1) == 1


class Clock:
    """The module ``time`` on a machine whose driver was installed just now: time passes in sleep() alone.

    :param installing: whether another file of the driver is written during every sleep.
    """

    def __init__(self, machine: Machine, installing: bool) -> None:
        self.machine = machine
        self.installing = installing
        self.slept = 0.0
        self.started = self.install()

    def install(self) -> int:
        """Write a library; return the time of the change."""
        path = "usr/lib/libcuda.so.535.1"
        self.machine.library(path, "libcuda.so.1")
        return self.machine.place(path).stat().st_ctime_ns

    def time_ns(self) -> int:
        return self.started + round(self.slept * 1e9)

    def monotonic(self) -> float:
        return self.slept

    def sleep(self, seconds: float) -> None:
        self.slept += seconds
        if self.installing:
            self.started = self.install() - round(self.slept * 1e9)


@pytest.mark.parametrize("installing", [False, True])
def test_refresh_waits_until_files_are_settled(
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    installing: bool,
) -> None:
    """Refresh waits until no file of the driver is newer than 50 ms, for two seconds at most."""
    clock = Clock(machine, installing)
    monkeypatch.setattr(kept_inventory, "SETTLED", 50_000_000)
    for module in (kept_inventory, refresh):
        monkeypatch.setattr(module, "time", clock)
    assert run("refresh") == int(installing)
    if installing:
        assert clock.slept == pytest.approx(2.0, abs=0.06)
        assert "not kept: files of the driver have changed just now" in capsys.readouterr().err
    else:
        assert clock.slept == pytest.approx(0.05)


def test_what_cannot_be_kept_is_said(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A read-only /run."""
    monkeypatch.setattr(kept, "DIRECTORY", "/proc/none/cache")
    assert run("refresh") == 1
    assert "/proc/none/cache cannot be written" in capsys.readouterr().err


def test_drop(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    """Everything, and once."""
    run("refresh")
    kept.write("config", 1, 1)
    capsys.readouterr()
    assert run("drop") == 0
    assert capsys.readouterr().out == f"dropped 2 files of {kept.DIRECTORY}\n"
    assert run("drop") == 0
    assert capsys.readouterr().out == "nothing was kept\n"


def test_a_config_toml_that_the_hook_refuses(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its own error."""

    def refuse(_path: str) -> Config:
        raise Refusal("", "bad config.toml", "correct it")

    monkeypatch.setattr(refresh, "hook_config", refuse)
    assert run("show") == 1
    assert "bad config.toml | correct it" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["inventory", "show"], ["inventory", "drop"], ["watch"]])
def test_only_root_is_answered(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """To another user it would seem as if nothing were cached."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main.main(words) == 2
    assert "run the command as root" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["inventory"],
        ["inventory", "show", "--format", "x"],
        ["watch", "--check", "-1"],
        ["watch", "--ask", "x"],
    ],
)
def test_bad_usage(words: list[str]) -> None:
    """Exit code 2, as for every command."""
    with pytest.raises(SystemExit) as ended:
        main.main(words)
    assert ended.value.code == 2


@pytest.mark.parametrize(
    "words",
    [
        ["inventory"],
        ["inventory", "show"],
        ["inventory", "refresh"],
        ["inventory", "drop"],
        ["watch"],
    ],
)
def test_help_has_examples(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Each command and each action."""
    with pytest.raises(SystemExit):
        main.main([*words, "--help"])
    assert "examples:\n  sudo nvgraft " in capsys.readouterr().out


def test_a_refresh_is_made_in_the_hooks_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What NVML would heed and a hook does not inherit is no part of the question that is cached; other variables stay."""
    for name in ("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "NVML_STUB"):
        monkeypatch.setenv(name, "/x")
    monkeypatch.setenv("NVPL_X", "stays")
    before = kept_inventory.name_of(Config())
    refresh.become_like_the_hook()
    assert kept_inventory.name_of(Config()) != before
    assert not {"CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "NVML_STUB"} & set(os.environ)
    assert os.environ["NVPL_X"] == "stays"
