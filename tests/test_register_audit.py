"""What is wrong with a hook that somebody has registered: each violation is named, and a good entry has none."""

from pathlib import Path
from typing import Any

import pytest

from nvgraft.system.launch import DEADLINE
from nvgraft_cli.install.install import CannotInstall
from nvgraft_cli.install.launcher import Target, build
from nvgraft_cli.register import audit, installation
from nvgraft_cli.register.audit import problems


@pytest.fixture(autouse=True)
def _owned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything passes for root's but what has ``foreign`` in its name."""

    def owned(path: str) -> None:
        if "foreign" in path:
            raise CannotInstall(f"{path}: owned by user 1000 | chown root {path}")

    monkeypatch.setattr(audit, "owned_by_root", owned)


def program(directory: Path, first_line: str | bytes, name: str = "nvgraft-hook") -> Path:
    path = directory / name
    path.write_bytes(
        first_line if isinstance(first_line, bytes) else f"{first_line}\nimport sys\n".encode()
    )
    path.chmod(0o755)
    return path


@pytest.fixture
def entry(tmp_path: Path) -> dict[str, Any]:
    """What ``nvgraft register`` writes, for a hook as ``./dev install`` writes it."""
    return installation.hook_entry(str(program(tmp_path, "#!/usr/bin/python3 -ISB")))


def about(entry: dict[str, Any], stage: str = "prestart") -> list[tuple[str, str]]:
    """Member and text of each problem; every one has a fix."""
    found = problems(entry, stage)
    assert all(problem.fix for problem in found)
    return [(problem.member, problem.text) for problem in found]


@pytest.mark.parametrize("stage", ["prestart", "createRuntime"])
def test_our_own_registration_has_no_problem(entry: dict[str, Any], stage: str) -> None:
    """At both stages at which the hook is outside of the container."""
    assert about(entry, stage) == []


@pytest.mark.parametrize(
    "stage", ["createContainer", "startContainer", "poststart", "poststop", ""]
)
def test_other_stages(entry: dict[str, Any], stage: str) -> None:
    """A hook there is given the container's environment, or stands in it."""
    assert [member for member, _ in about(entry, stage)] == ["stage"]


@pytest.mark.parametrize("env", [None, [], "PATH=/bin", ["PATH"], [7]])
def test_no_environment(entry: dict[str, Any], env: object) -> None:
    """The runtime's, or the container's, is inherited then."""
    entry["env"] = env
    assert [member for member, _ in about(entry)] == ["env"]
    del entry["env"]
    assert [member for member, _ in about(entry)] == ["env"]


@pytest.mark.parametrize(
    "name",
    [
        "LD_PRELOAD",
        "LD_AUDIT",
        "LD_LIBRARY_PATH",
        "GLIBC_TUNABLES",
        "GCONV_PATH",
        "PYTHONPATH",
        "PYTHONHOME",
    ],
)
def test_variables_that_bring_code(entry: dict[str, Any], name: str) -> None:
    """Each by its name."""
    entry["env"].append(f"{name}=/x")
    ((member, text),) = about(entry)
    assert (member, text.split()[0]) == ("env", name)


@pytest.mark.parametrize("timeout", [None, 0, -1, True, "120", 1.5, 30, DEADLINE])
def test_no_time_limit_or_one_that_is_too_short(entry: dict[str, Any], timeout: object) -> None:
    """Without one a hook may hang for ever; one shorter than the hook's own has the runtime kill it in the middle."""
    entry["timeout"] = timeout
    assert [member for member, _ in about(entry)] == ["timeout"]


@pytest.mark.parametrize("args", [None, [], ["nvgraft-hook"], ["prestart"], "prestart"])
def test_arguments_that_start_nothing(entry: dict[str, Any], args: object) -> None:
    """The first one is the program's name."""
    entry["args"] = args
    assert [member for member, _ in about(entry)] == ["args"]


@pytest.mark.parametrize("path", [None, "", "nvgraft-hook", "bin/nvgraft-hook", 7])
def test_a_path_that_is_not_absolute(entry: dict[str, Any], path: object) -> None:
    """Whoever starts the hook decides what it is."""
    entry["path"] = path
    assert [member for member, _ in about(entry)] == ["path"]


def test_a_program_that_is_missing_foreign_or_not_executable(
    entry: dict[str, Any], tmp_path: Path
) -> None:
    """Each is said of the program."""
    good = Path(entry["path"])
    for change, text in (
        (
            {"path": "/nonexistent/nvgraft-hook"},
            "/nonexistent/nvgraft-hook: No such file or directory",
        ),
        (
            {"path": str(program(tmp_path, "#!/usr/bin/python3 -ISB", "foreign"))},
            f"{tmp_path}/foreign: owned by user 1000",
        ),
    ):
        assert about({**entry, **change}) == [("path", text)]
    good.chmod(0o644)
    assert about(entry) == [("path", f"{good}: not executable")]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("#!/usr/bin/python3", ["without -I, -S, -B"]),
        ("#!/opt/venv/bin/python3.11 -I", ["without -S, -B"]),
        ("#!/usr/bin/python3 -I -S", ["without -B"]),
        ("#!/usr/bin/env python3", ["searches the interpreter in PATH"]),
        ("#!/usr/bin/env -S python3 -ISB", ["searches the interpreter in PATH"]),
        ("#!python3 -ISB", ["searches the interpreter in PATH"]),
        ("#!", ["searches the interpreter in PATH"]),
        ("#!/bin/sh", ["a script of /bin/sh"]),
        ("#!/home/foreign/python3 -ISB", ["owned by user 1000"]),
        ("#!/home/foreign/python3", ["without -I, -S, -B", "owned by user 1000"]),
    ],
)
def test_interpreters(entry: dict[str, Any], tmp_path: Path, line: str, words: list[str]) -> None:
    """pip's scripts, scripts of env and shell scripts run what others plant; a foreign interpreter is the plant."""
    program(tmp_path, line)
    found = about(entry)
    assert len(found) == len(words)
    assert all(word in text for (_, text), word in zip(found, words, strict=True))


def test_the_static_launcher_is_looked_through(entry: dict[str, Any], tmp_path: Path) -> None:
    """What it starts has to be as good; another binary is somebody else's business."""
    script = program(tmp_path, "#!/usr/bin/python3 -ISB", "script")
    for target, expected in (
        (Target("/usr/bin/python3", str(script)), []),
        (
            Target("/home/foreign/python3", str(script)),
            ["/home/foreign/python3: owned by user 1000"],
        ),
        (Target("/usr/bin/python3", "/nonexistent"), ["/nonexistent: No such file or directory"]),
    ):
        program(tmp_path, build(target, "x86_64", b"code -ISB\0"))
        assert [text for _, text in about(entry)] == expected
    program(tmp_path, b"\x7fELF and so on")
    assert about(entry) == []


def test_everything_is_said_at_once() -> None:
    """An entry that is wrong in every way."""
    assert [member for member, _ in about({"path": "x"}, "createContainer")] == [
        "stage",
        "env",
        "timeout",
        "args",
        "path",
    ]
