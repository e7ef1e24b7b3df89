"""Problems of a registered hook: each one is named, and a good entry has none."""

from pathlib import Path
from typing import Any

import pytest

from nvgraft.system.launch import DEADLINE
from nvgraft_cli.install.install import CannotInstall
from nvgraft_cli.install.launcher import LaunchedScript, build
from nvgraft_cli.register import audit, installation
from nvgraft_cli.register.audit import problems


@pytest.fixture(autouse=True)
def _owned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every path root's, except those with ``foreign`` in their names."""

    def owned(path: str) -> None:
        if "foreign" in path:
            raise CannotInstall(f"{path}: owned by user 1000", f"chown root {path}")

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
    """The entry that ``nvgraft register`` writes for a hook of ``./dev install``."""
    return installation.hook_entry(str(program(tmp_path, "#!/usr/bin/python3 -ISB")))


def about(entry: dict[str, Any], stage: str = "prestart") -> list[tuple[str, str]]:
    """Return member and text of each problem; every one has a fix."""
    named = problems(entry, stage)
    assert all(problem.fix for problem in named)
    return [(problem.member, problem.text) for problem in named]


@pytest.mark.parametrize("stage", ["prestart", "createRuntime"])
def test_nvgrafts_registration_has_no_problem(entry: dict[str, Any], stage: str) -> None:
    """nvgraft's entry has no problem at both stages in which a hook runs outside of the
    container.
    """
    assert about(entry, stage) == []


@pytest.mark.parametrize(
    "stage", ["createContainer", "startContainer", "poststart", "poststop", ""]
)
def test_other_stages_are_a_problem(entry: dict[str, Any], stage: str) -> None:
    """At other stages a hook has the container's environment, or runs inside it."""
    assert [member for member, _ in about(entry, stage)] == ["stage"]


@pytest.mark.parametrize("env", [None, [], "PATH=/bin", ["PATH"], [7]])
def test_a_missing_environment_is_a_problem(entry: dict[str, Any], env: object) -> None:
    """Without an environment of its own a hook inherits the runtime's or the container's."""
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
def test_variables_that_load_code_are_problems(entry: dict[str, Any], name: str) -> None:
    """Each variable that loads code is named."""
    entry["env"].append(f"{name}=/x")
    ((member, text),) = about(entry)
    assert (member, text.split()[0]) == ("env", name)


@pytest.mark.parametrize("timeout", [None, 0, -1, True, "120", 1.5, 30, DEADLINE])
def test_a_missing_or_short_timeout_is_a_problem(entry: dict[str, Any], timeout: object) -> None:
    """Without a timeout a hook may never end; with one shorter than the hook's own the runtime
    kills it during its work.
    """
    entry["timeout"] = timeout
    assert [member for member, _ in about(entry)] == ["timeout"]


@pytest.mark.parametrize("args", [None, [], ["nvgraft-hook"], ["prestart"], "prestart"])
def test_arguments_without_prestart_are_a_problem(entry: dict[str, Any], args: object) -> None:
    """Arguments must be the program's name and then prestart."""
    entry["args"] = args
    assert [member for member, _ in about(entry)] == ["args"]


@pytest.mark.parametrize("path", [None, "", "nvgraft-hook", "bin/nvgraft-hook", 7])
def test_a_relative_path_is_a_problem(entry: dict[str, Any], path: object) -> None:
    """With a relative path the caller decides which program runs."""
    entry["path"] = path
    assert [member for member, _ in about(entry)] == ["path"]


def test_an_unusable_program_is_a_problem(entry: dict[str, Any], tmp_path: Path) -> None:
    """A program that is missing, belongs to another user or is not executable is named."""
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
def test_unsafe_interpreters_are_problems(
    entry: dict[str, Any], tmp_path: Path, line: str, words: list[str]
) -> None:
    """Scripts of pip, env or a shell, and interpreters of another user, run code that others can
    change.
    """
    program(tmp_path, line)
    named = about(entry)
    assert len(named) == len(words)
    assert all(word in text for (_, text), word in zip(named, words, strict=True))


def test_the_target_of_the_static_launcher_is_checked(
    entry: dict[str, Any], tmp_path: Path
) -> None:
    """The interpreter and the script of the static launcher are checked; other binaries are
    accepted.
    """
    script = program(tmp_path, "#!/usr/bin/python3 -ISB", "script")
    missing = str(tmp_path / "missing")
    for target, expected in (
        (LaunchedScript("/usr/bin/python3", str(script)), []),
        (
            LaunchedScript("/home/foreign/python3", str(script)),
            ["/home/foreign/python3: owned by user 1000"],
        ),
        (
            LaunchedScript("/usr/bin/python3", missing),
            [f"{missing}: No such file or directory"],
        ),
    ):
        program(tmp_path, build(target, "x86_64", b"code -ISB\0"))
        assert [text for _, text in about(entry)] == expected
    program(tmp_path, b"\x7fELF and so on")
    assert about(entry) == []


def test_all_problems_of_an_entry_are_named() -> None:
    """All problems of an entry are named together."""
    assert [member for member, _ in about({"path": "x"}, "createContainer")] == [
        "stage",
        "env",
        "timeout",
        "args",
        "path",
    ]
