"""Checks of an installation before an engine is told to run it as root."""

import os
from pathlib import Path

import pytest

from nvgraft_cli.install.install import CannotInstall
from nvgraft_cli.register import installation
from nvgraft_cli.register.change import CannotRegister
from nvgraft_cli.shell import installed
from nvgraft_cli.shell.main import main

LAUNCHER = '#!{python} -ISB\nimport sys\n\nsys.path.insert(0, "{prefix}/lib/nvgraft/hook")\n'


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation in which every path appears as root's."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "lib/nvgraft/hook/nvgraft").mkdir(parents=True)
    (tmp_path / "lib/nvgraft/hook/nvgraft/hook.py").touch()
    for name in ("nvgraft-hook", "nvgraft-runtime"):
        (tmp_path / "bin" / name).write_text(
            LAUNCHER.format(python="/usr/bin/python3", prefix=tmp_path)
        )
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setattr(installation, "owned_by_root", lambda path: None)
    return tmp_path


@pytest.mark.parametrize(
    "foreign",
    [
        "{}/bin/nvgraft-hook",
        "/usr/bin/python3",
        "{}/lib/nvgraft/hook",
        "{}/lib/nvgraft/hook/nvgraft",
        "{}/lib/nvgraft/hook/nvgraft/hook.py",
    ],
)
def test_all_files_that_run_must_be_roots(
    foreign: str, prefix: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher, its interpreter and every file of its directory must be root's, with all
    parents.
    """
    foreign = foreign.format(prefix)

    def owned(path: str) -> None:
        if path == foreign:
            raise CannotInstall(f"{path}: owned by user 1000")

    installation.check(str(prefix), ("nvgraft-hook",))
    monkeypatch.setattr(installation, "owned_by_root", owned)
    with pytest.raises(CannotRegister, match=f"{foreign}: owned by user 1000"):
        installation.check(str(prefix), ("nvgraft-hook",))


@pytest.mark.parametrize(
    "text",
    [
        "#!/usr/bin/python3\nimport nvgraft\n",
        "#!/usr/bin/env -S python3 -ISB\n",
        "#!/usr/bin/python3 -ISB\n",
        "\x7fELF\xff",
    ],
)
def test_only_the_installers_launcher_is_registered(text: str, prefix: Path) -> None:
    """Only a launcher of the installer is registered; pip's console scripts run what PYTHONPATH
    names.
    """
    (prefix / "bin/nvgraft-hook").write_text(text)
    with pytest.raises(CannotRegister, match=r"not a launcher of \./dev install"):
        installation.check(str(prefix), ("nvgraft-hook",))


def test_a_missing_program_is_named(prefix: Path) -> None:
    """A missing program is refused with its path."""
    (prefix / "bin/nvgraft-runtime").unlink()
    with pytest.raises(CannotRegister, match="bin/nvgraft-runtime: no such program"):
        installation.check(str(prefix), ("nvgraft-hook", "nvgraft-runtime"))


def test_a_program_that_cannot_be_executed_is_refused(
    prefix: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program without execute permission, which no engine could start, is refused."""
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(CannotRegister, match="not executable"):
        installation.check(str(prefix), ("nvgraft-hook",))


@pytest.mark.parametrize("prefix_text", ["usr/local", "/usr/../x", "/usr/lo\ncal"])
def test_unusable_prefixes_are_refused(prefix_text: str) -> None:
    """A prefix that is relative or not normal is refused: an engine would look it up elsewhere."""
    with pytest.raises(CannotRegister, match="not an absolute path"):
        installation.check(prefix_text, ("nvgraft-hook",))


@pytest.mark.parametrize(
    ("engine", "names"),
    [
        ("podman", ["nvgraft-hook"]),
        ("docker", ["nvgraft-runtime", "nvgraft-hook"]),
        ("containerd", ["nvgraft-runtime", "nvgraft-hook"]),
    ],
)
def test_register_checks_the_programs_first(
    engine: str,
    names: list[str],
    prefix: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The programs that containers will run are checked first, also with --dry-run."""
    checked: list[str] = []
    monkeypatch.setattr(installation, "_check_launcher", lambda path, _prefix: checked.append(path))
    assert (
        main(
            [
                "register",
                engine,
                "--prefix",
                str(prefix),
                "--file",
                f"{tmp_path}/x.json",
                "--dry-run",
            ]
        )
        == 0
    )
    assert checked == [f"{prefix}/bin/{name}" for name in names]
    assert str(prefix) in capsys.readouterr().out


def test_the_default_prefix_is_the_installations_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed command registers its own prefix; a checkout, which must not be registered,
    stands for /usr/local.
    """
    assert installed.default_prefix() == "/usr/local"
    monkeypatch.setattr(
        installed, "__file__", "/opt/gpu/lib/nvgraft/cli/nvgraft_cli/shell/installed.py"
    )
    assert installed.default_prefix() == "/opt/gpu"
