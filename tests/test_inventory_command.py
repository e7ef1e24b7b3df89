"""`nvgraft inventory`: what it prints about the kept inventory, and what it changes."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from documents import read_document
from machines import Machine
from nvgraft.base.errors import Refusal
from nvgraft.host import keep_inventory, kept_inventory
from nvgraft.request.config import Config
from nvgraft.system import keep, kept
from nvgraft_cli.inventory import command, refresh
from nvgraft_cli.shell import main


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    monkeypatch.setattr(command, "require_root", lambda: None)
    monkeypatch.setattr(refresh, "hook_config", lambda _path: Config(**machine.settings))
    with machine.running():
        machine.tick()
        yield machine


def run(*words: str) -> int:
    return main.main(["inventory", *words])


def test_no_inventory_is_kept_at_first(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a kept inventory show says so and exits with 1, without a query of NVML."""
    assert run("show") == 1
    output = capsys.readouterr().out
    assert "state      the next hook reads the host anew: no inventory is kept" in output
    assert machine.queries == 0


def test_refresh_and_show(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    """refresh prints a summary of the inventory, and show prints it in detail."""
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


def test_show_as_json(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON output has names and values instead of sentences."""
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
    document = read_document(capsys.readouterr().out)
    assert (document["used"], document["reason"], document["cached"]["driver_version"]) == (
        True,
        None,
        "535.1",
    )
    assert document["cached"]["gpus"][0]["mig_devices"] == [
        {"compute_instance": 0, "gpu_instance": 1, "uuid": "MIG-1"}
    ]
    assert document["cached"]["libraries"] == [
        "/usr/lib/libnvidia-ml.so.535.1",
        "/usr/lib/libcuda.so.535.1",
    ]
    assert "/etc/ld.so.cache" in document["cached"]["checked"]


def test_a_stale_inventory_is_shown_with_the_reason(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stale inventory is shown with the first difference from the host."""
    run("refresh")
    machine.tick()
    machine.library("usr/lib/libcuda.so.535.1", "libcuda.so.1")
    capsys.readouterr()
    assert run("show") == 1
    lines = capsys.readouterr().out.splitlines()
    assert (
        lines[0] == "state      the next hook reads the host anew: changed:"
        f" {machine.root}/usr/lib/libcuda.so.535.1"
    )
    assert any(line.startswith("GPU ") for line in lines)


def test_a_damaged_inventory_is_reported(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    """A damaged inventory is reported without a traceback."""
    keep.write(kept_inventory.KIND, kept_inventory._key(Config(**machine.settings)), {"made": "x"})
    assert run("show") == 1
    assert "the kept inventory is damaged" in capsys.readouterr().out


def test_refresh_always_queries_nvml(machine: Machine) -> None:
    """refresh queries NVML even if the kept inventory seems valid, because not every change is
    visible in files.
    """
    run("refresh")
    queries = machine.queries
    machine.uuids["gpu0"] = "GPU-unseen"
    assert run("refresh") == 0
    assert machine.queries == queries + 1
    state, _ = kept_inventory.state(Config(**machine.settings))
    assert state is not None
    assert state.report.gpus[0].uuid == "GPU-unseen"


@pytest.mark.parametrize("broken", ["driver", "loader cache", "library"])
def test_a_failed_refresh_removes_the_inventory(
    machine: Machine, broken: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A failed refresh prints the hook's own error and removes the kept inventory, which could hide
    the fault from the hook.
    """
    run("refresh")
    keep.write("other", 1, 1)
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
    """A replacement for ``time`` on a machine whose driver was installed just now; time passes only
    in sleep().

    :param installing: whether another file of the driver is written during every sleep.
    """

    def __init__(self, machine: Machine, installing: bool) -> None:
        self.machine = machine
        self.installing = installing
        self.slept = 0.0
        self.started = self.install()

    def install(self) -> int:
        """Write a library and return the time of the change."""
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
    """refresh waits until no file of the driver is newer than 50 ms, for two seconds at most."""
    clock = Clock(machine, installing)
    monkeypatch.setattr(keep_inventory, "SETTLED", 50_000_000)
    for module in (kept_inventory, refresh):
        monkeypatch.setattr(module, "time", clock)
    assert run("refresh") == int(installing)
    if installing:
        assert clock.slept == pytest.approx(2.0, abs=0.06)
        assert "not kept: files of the driver have changed just now" in capsys.readouterr().err
    else:
        assert clock.slept == pytest.approx(0.05)


def test_an_inventory_that_cannot_be_kept_is_reported(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If the directory cannot be written to, as with a read-only /run, refresh says so and exits
    with 1.
    """
    monkeypatch.setattr(kept, "DIRECTORY", "/proc/none/cache")
    assert run("refresh") == 1
    assert "/proc/none/cache cannot be written" in capsys.readouterr().err


def test_drop_removes_everything(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    """drop removes all kept files; a second drop says that there is nothing."""
    run("refresh")
    keep.write("config", 1, 1)
    capsys.readouterr()
    assert run("drop") == 0
    assert capsys.readouterr().out == f"dropped 2 files of {kept.DIRECTORY}\n"
    assert run("drop") == 0
    assert capsys.readouterr().out == "nothing was kept\n"
    assert run("drop", "--format", "json") == 0
    assert read_document(capsys.readouterr().out)["dropped"] == 0


def test_a_bad_config_toml_gives_the_hooks_error(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A config.toml that the hook refuses gives the hook's own error."""

    def refuse(_path: str) -> Config:
        raise Refusal("", "bad config.toml", "correct it")

    monkeypatch.setattr(refresh, "hook_config", refuse)
    assert run("show") == 1
    assert "bad config.toml | correct it" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["inventory", "show"], ["inventory", "drop"], ["watch"]])
def test_the_commands_need_root(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another user than root is refused: the kept files would seem to be missing."""
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
def test_bad_usage_exits_with_2(words: list[str]) -> None:
    """Bad usage exits with 2."""
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
    """The help of each command and action has examples."""
    with pytest.raises(SystemExit):
        main.main([*words, "--help"])
    assert "examples:\n  sudo nvgraft " in capsys.readouterr().out


def test_a_refresh_has_the_hooks_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables that NVML would read and a hook does not inherit are removed before a refresh;
    others stay.
    """
    for name in ("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "NVML_STUB"):
        monkeypatch.setenv(name, "/x")
    monkeypatch.setenv("NVPL_X", "stays")
    before = kept_inventory.name_of(Config())
    refresh.become_like_the_hook()
    assert kept_inventory.name_of(Config()) != before
    assert not {"CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "NVML_STUB"} & set(os.environ)
    assert os.environ["NVPL_X"] == "stays"
