"""Bad input on every command line: one line with the path, the cause and a fix, and exit code 2."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bundles import make_bundle
from documents import read_document
from nvgraft_cli.shell import main as cli
from nvgraft_specs.documents import SIZE_LIMIT

Captured = pytest.CaptureFixture[str]


def directory(path: Path) -> None:
    path.mkdir()


def fifo(path: Path) -> None:
    os.mkfifo(path)


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def bound_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(SIZE_LIMIT + 1)


def text(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


#: Kind of bad input -> function that makes it.
KINDS: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: None,
    "directory": directory,
    "fifo": fifo,
    "loop": loop,
    "socket": bound_socket,
    "huge": huge,
    "empty": text(b""),
    "blank": text(b" \n"),
    "no-json": text(b"this is no json\n"),
    "binary": text(bytes(range(256)) * 8),
    "truncated": text(b'{"schema": "nvgraft.host/1", "name": "x", '),
    "array": text(b"[]"),
    "other-schema": text(b'{"schema": "nvgraft.story/1"}'),
    "future-host": text(b'{"schema": "nvgraft.host/9"}'),
    "future-plan": text(b'{"schema": "nvgraft.plan/9"}'),
    "no-members": text(b'{"schema": "nvgraft.host/1"}'),
    "no-utf8": text(b'{"schema": "nvgraft.host/1", "name": "\xff"}'),
    "deep": text(b"[" * 100_000),
    "digits": text(b'{"schema": ' + b"9" * 20_000 + b"}"),
    "nan": text(b'{"schema": NaN}'),
}

#: Command lines that name a file, by what the file should be: a host, a container, a config.toml or
#: something else. {bad} is the bad input.
HOSTS = {
    "plan": ("plan", "--bundle", "{bundle}", "--host", "{bad}"),
    "explain": ("explain", "--bundle", "{bundle}", "--host", "{bad}"),
    "why": ("why", "nvidia-smi", "--bundle", "{bundle}", "--host", "{bad}"),
    "doctor": ("doctor", "--host", "{bad}"),
    "prove": ("prove", "--bundle", "{bundle}", "--host", "{bad}"),
    "matrix": ("matrix", "{bad}", "--bundles", "{bundle}"),
    "snapshot": ("snapshot", "--root", "{driver}", "--gpus", "{bad}"),
    "cdi": ("cdi", "generate", "--host", "{bad}"),
    "simulate": ("simulate", "{bad}", "--", "true"),
    "diff": ("diff", "eks-t4", "{bad}", "--bundle", "{bundle}"),
}
CONTAINERS = {
    "plan": ("plan", "--host", "eks-t4", "--bundle", "{bad}"),
    "explain": ("explain", "--host", "eks-t4", "--bundle", "{bad}"),
    "why": ("why", "nvidia-smi", "--host", "eks-t4", "--bundle", "{bad}"),
    "doctor": ("doctor", "--host", "eks-t4", "--bundle", "{bad}"),
    "prove": ("prove", "--host", "eks-t4", "--bundle", "{bad}"),
    "matrix": ("matrix", "eks-t4", "--bundles", "{bad}"),
    "diff": ("diff", "eks-t4", "mig-h100", "--bundle", "{bad}"),
}
CONFIGS = {
    **{
        name: (*words, "--host", "eks-t4", "--config", "{bad}")
        for name, words in {
            "plan": ("plan", "--bundle", "{bundle}"),
            "explain": ("explain", "--bundle", "{bundle}"),
            "why": ("why", "nvidia-smi", "--bundle", "{bundle}"),
            "doctor": ("doctor", "--bundle", "{bundle}"),
            "prove": ("prove", "--bundle", "{bundle}"),
            "cdi": ("cdi", "generate"),
        }.items()
    },
    "matrix": ("matrix", "eks-t4", "--bundles", "{bundle}", "--config", "{bad}"),
    "diff": ("diff", "eks-t4", "mig-h100", "--bundle", "{bundle}", "--config", "{bad}"),
    "snapshot": ("snapshot", "--config", "{bad}"),
    "inventory": ("inventory", "show", "--config", "{bad}"),
    "watch": ("watch", "--config", "{bad}"),
}
OTHERS = {
    "doctor --cdi": ("doctor", "--host", "eks-t4", "--cdi", "{bad}"),
    "snapshot --root": ("snapshot", "--root", "{bad}"),
}

#: Kinds that are not a config.toml either. An empty file is one.
NO_CONFIGS = [kind for kind in KINDS if kind not in {"empty", "blank"}]
#: Kinds that cannot be read as any file.
NO_FILES = ["missing", "fifo", "loop", "socket"]
#: Kinds that are not a container. A config.json that the hook refuses is one: the answer is that
#: the container does not start.
NO_CONTAINERS = [*NO_FILES, "directory", "huge", "empty", "blank", "no-json", "binary"]


def cases() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    for table, kinds in ((HOSTS, list(KINDS)), (CONTAINERS, NO_CONTAINERS), (CONFIGS, NO_CONFIGS)):
        for name, words in table.items():
            # The last option names the place: diff reads documents of several kinds, and matrix
            # looks for hosts in directories.
            yield from (
                (f"{name} {words[-2] if words[-1] == '{bad}' else ''}", kind, words)
                for kind in kinds
            )
    yield from (
        ("doctor --cdi", kind, OTHERS["doctor --cdi"])
        for kind in ("missing", "directory", "loop", "socket", "huge")
    )
    yield from (("snapshot --root", kind, OTHERS["snapshot --root"]) for kind in KINDS)


CASES = list(cases())


@pytest.fixture
def made(tmp_path: Path) -> dict[str, str]:
    """Make a bundle, and a driver that is not installed; return their paths."""
    driver = tmp_path / "driver/usr/lib64"
    driver.mkdir(parents=True)
    (driver / "libcuda.so.550.1").write_bytes(b"")
    return {
        "bundle": str(make_bundle(tmp_path / "b", "NVIDIA_VISIBLE_DEVICES=all")),
        "driver": str(tmp_path / "driver"),
    }


@pytest.mark.parametrize(
    ("command", "kind", "words"),
    CASES,
    ids=[f"{command.strip()}-{kind}" for command, kind, _ in CASES],
)
def test_one_line_with_the_path_and_exit_2(
    command: str,
    kind: str,
    words: tuple[str, ...],
    made: dict[str, str],
    tmp_path: Path,
    capsys: Captured,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bad input gives one line without a traceback or Python's advice, and nothing on stdout."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)  # some commands first ask to be run as root
    bad = tmp_path / "bad"
    KINDS[kind](bad)
    assert cli.main([word.format(bad=bad, **made) for word in words]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"nvgraft {words[0]}: ")
    assert str(bad) in err
    cause_and_fix = err.partition(str(bad))[2]
    assert "|" in cause_and_fix or cause_and_fix.count(": ") > 1, "the line has no fix"
    assert "sys." not in err


@pytest.mark.parametrize("engine", ["docker", "containerd", "podman"])
@pytest.mark.parametrize("kind", ["directory", "fifo", "loop", "socket", "huge", "binary"])
@pytest.mark.parametrize("command", ["register", "unregister"])
def test_a_bad_configuration_file_of_an_engine_is_refused(
    command: str, kind: str, engine: str, tmp_path: Path, capsys: Captured
) -> None:
    """A bad configuration file of an engine is refused with path, cause and fix.

    The exit code is 1, as for every change that is refused.
    """
    bad = tmp_path / "bad"
    KINDS[kind](bad)
    assert cli.main([command, engine, "--file", str(bad), "--dry-run"]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"nvgraft {command}: {bad}: ")
    assert " | " in err


@pytest.mark.parametrize("config", [b"", b"{", b"[]", b'{"process": 1}', b"\xff", b"[" * 100_000])
def test_diff_of_hosts_reports_an_unreadable_container(
    config: bytes, tmp_path: Path, capsys: Captured
) -> None:
    """An unreadable container is trouble (exit 2), although both hosts would refuse it alike."""
    bundle = make_bundle(tmp_path / "b")
    (bundle / "config.json").write_bytes(config)
    assert cli.main(["diff", "eks-t4", "mig-h100", "--bundle", str(bundle)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"nvgraft diff: {bundle}: could not ")
    assert " | " in err


def test_a_config_json_by_any_name(tmp_path: Path, capsys: Captured) -> None:
    """A file that begins as JSON is read as a config.json, whatever its name is."""
    other = tmp_path / "container.txt"
    (make_bundle(tmp_path / "b", "NVIDIA_VISIBLE_DEVICES=all") / "config.json").rename(other)
    assert cli.main(["plan", "--bundle", str(other), "--host", "eks-t4", "--format", "json"]) == 0
    assert read_document(capsys.readouterr().out)["decision"] == "inject"


@pytest.mark.requires("bash")
def test_a_pipe_of_the_shell_is_read_to_its_end(tmp_path: Path) -> None:
    """`nvgraft diff A <(nvgraft plan ...)` waits for a slow writer."""
    bundle = make_bundle(tmp_path / "b", "NVIDIA_VISIBLE_DEVICES=all")
    nvgraft = f"{sys.executable} -m nvgraft_cli.shell.main"
    plan = f"{nvgraft} plan --bundle {bundle} --host eks-t4 --format json"
    command = ["bash", "-c", f"{nvgraft} diff --format json <({plan}) <(sleep 0.3; {plan})"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": ":".join(sys.path)},
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["equal"]
