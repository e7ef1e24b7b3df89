"""``./dev install`` for real: its files, their owner, and a start in a hostile environment."""

import importlib.util
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import CHECKOUT, Installed
from nvgraft_cli.install.install import CDI_HOOK, NAMES
from nvgraft_cli.shell.commands import GROUPS

pytestmark = pytest.mark.requires("root")


def dev_install(*arguments: str, umask: int = 0o022) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [CHECKOUT / "dev", "install", *arguments], capture_output=True, text=True, umask=umask
    )


def below(directory: Path) -> list[Path]:
    return [directory, *directory.rglob("*")]


def test_what_root_makes_in_a_users_checkout_is_the_users(tmp_path: Path) -> None:
    """After ``sudo ./dev demo`` the user can go on without sudo; nothing outside of the checkout
    changes its owner.
    """
    checkout = tmp_path / "checkout"
    (checkout / ".cache").mkdir(parents=True)
    shutil.copy(CHECKOUT / "dev", checkout)
    (tmp_path / "outside").touch()
    (checkout / ".cache/link").symlink_to(tmp_path / "outside")
    (checkout / ".cache/last.log").touch()
    os.chown(checkout, 1234, 1234)
    subprocess.run([checkout / "dev", "help"], check=True, stdout=subprocess.DEVNULL)
    assert {(path.lstat().st_uid, path.lstat().st_gid) for path in below(checkout)} == {
        (1234, 1234)
    }
    assert (tmp_path / "outside").stat().st_uid == 0


def test_everything_belongs_to_root_and_is_readable_by_all(installed: Installed) -> None:
    """Nobody but root can change what the hook loads, and every user can run the CLI."""
    for path in below(installed.prefix):
        info = path.lstat()
        executable = path.is_dir() or path.parent == installed.prefix / "bin"
        executable = executable or path == installed.prefix / "lib/nvgraft" / CDI_HOOK
        mode = 0o777 if path.is_symlink() else 0o755 if executable else 0o644
        assert (info.st_uid, info.st_gid, stat.S_IMODE(info.st_mode)) == (0, 0, mode), path


def test_the_users_umask_has_no_say(
    tmp_path_factory: pytest.TempPathFactory, installed: Installed
) -> None:
    """Root's umask of 077 does not make an installation that other users cannot run."""
    prefix = installed.prefix / "strict"
    done = dev_install(f"PREFIX={prefix}", umask=0o077)
    assert done.returncode == 0, done.stderr
    try:
        assert {oct(stat.S_IMODE(path.stat().st_mode)) for path in below(prefix)} == {
            "0o755",
            "0o644",
        }
    finally:
        subprocess.run(["rm", "-rf", prefix], check=True)


def test_the_hook_is_launched_isolated_with_one_directory(installed: Installed) -> None:
    """The launchers of hook and runtime name an absolute interpreter with -I, -S and -B, and put
    one directory before the module path.
    """
    for name in ("nvgraft-hook", "nvgraft-runtime"):
        lines = (installed.prefix / "bin" / name).read_text().splitlines()
        assert lines[0] == "#!/usr/bin/python3 -ISB"
        assert [line for line in lines if "sys.path" in line] == [
            f'sys.path.insert(0, "{installed.library}")'
        ]


def test_the_hooks_directory_has_no_foreign_code(installed: Installed) -> None:
    """Only the engine, its tables, python-prctl, pynvml and yaml can be imported by a process that
    configures containers.
    """
    names = {path.name.split(".")[0] for path in installed.library.iterdir()}
    assert names == {
        "nvgraft",
        "nvgraft_specs",
        "prctl",
        "_prctl",
        "pynvml",
        "yaml",
        "__pycache__",
        "bytecode",
    }


def test_the_templates_of_pages_are_compiled(installed: Installed) -> None:
    """No page has to wait for jinja2's compiler."""
    package = installed.prefix / "lib/nvgraft/cli/nvgraft_cli"
    templates = {
        str(path.relative_to(package)).replace("/", ".").removesuffix(".j2")
        for path in package.rglob("*.j2")
    }
    assert {path.name for path in (package / "html/compiled").iterdir()} == templates != set()


def test_every_path_that_users_rely_on_is_there(installed: Installed) -> None:
    """Registrations name the programs; ``nvgraft explain`` links to the documents; man and the
    shells find their pages.
    """
    paths = [*installed.prefix.glob("bin/*"), *installed.prefix.glob("lib/nvgraft/*")]
    paths += installed.prefix.glob("lib/systemd/system/*")
    paths += [path for path in installed.prefix.glob("share/*/**/*") if path.is_file()]
    commands = [name for group in GROUPS.values() for name, (module, _) in group.items() if module]
    assert sorted(str(path.relative_to(installed.prefix)) for path in paths) == [
        "bin/nvgraft",
        "bin/nvgraft-cdi-hook",
        "bin/nvgraft-hook",
        "bin/nvgraft-runtime",
        "bin/nvidia-cdi-hook",
        "bin/nvidia-container-cli",
        "bin/nvidia-container-runtime",
        "bin/nvidia-container-runtime-hook",
        "bin/nvidia-ctk",
        "lib/nvgraft/cli",
        "lib/nvgraft/docs",
        "lib/nvgraft/hook",
        "lib/nvgraft/nvgraft-cdi-hook",
        "lib/systemd/system/nvgraft-cdi-refresh.service",
        "share/bash-completion/completions/nvgraft",
        "share/fish/vendor_completions.d/nvgraft.fish",
        *sorted(
            f"share/man/man1/nvgraft{end}.1" for end in ("", *(f"-{name}" for name in commands))
        ),
        "share/zsh/site-functions/_nvgraft",
    ]


def test_byte_code_is_there_and_fresh(installed: Installed) -> None:
    """Each module of the hook has byte code of its present source, so no start compiles (and -B
    would not keep it).
    """
    for source in (path for path in below(installed.library) if path.suffix == ".py"):
        header = Path(importlib.util.cache_from_source(str(source))).read_bytes()[:16]
        info = source.stat()
        assert header[:4] == importlib.util.MAGIC_NUMBER, source
        assert int.from_bytes(header[4:8], "little") == 0, source
        assert int.from_bytes(header[8:12], "little") == int(info.st_mtime), source
        assert int.from_bytes(header[12:16], "little") == info.st_size, source


def test_both_commands_start_without_the_checkout(installed: Installed, tmp_path: Path) -> None:
    """The commands need only their own prefix; poststart and poststop do nothing and succeed."""
    for command in (["poststart"], ["poststop"]):
        done = subprocess.run(
            [installed.hook, *command],
            capture_output=True,
            text=True,
            env={},
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = subprocess.run(
        [installed.cli, "--help"], capture_output=True, text=True, env={}, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "plan" in done.stdout


def test_planted_modules_do_not_run(installed: Installed, tmp_path: Path) -> None:
    """Python's variables, the working directory and the user's directory cannot put code into the
    hook.
    """
    canary = tmp_path / "canary"
    for name in ("json", "os", "ctypes", "prctl", "sitecustomize", "usercustomize", "encodings"):
        (tmp_path / f"{name}.py").write_text(f"open({str(canary)!r}, 'w')")
    user_site = tmp_path / f".local/lib/python3.{sys.version_info.minor}/site-packages"
    user_site.mkdir(parents=True)
    (user_site / "planted.pth").write_text(
        f"import pathlib; pathlib.Path({str(canary)!r}).touch()\n"
    )
    environment = {
        "PYTHONPATH": str(tmp_path),
        "PYTHONHOME": str(tmp_path),
        "HOME": str(tmp_path),
        "PYTHONSTARTUP": str(tmp_path / "os.py"),
    }
    done = subprocess.run(
        [installed.hook, "poststop"],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    assert not canary.exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["PREFIX=relative"], "PREFIX=relative: not an absolute path"),
        (["PREFIX=/tmp/nvgraft"], "/tmp: group or others may write to it"),
        (["PREFIX=/opt/x", "PYTHON=/nowhere/python3"], "PYTHON=/nowhere/python3: no such program"),
    ],
)
def test_unsafe_places_are_refused(arguments: list[str], complaint: str) -> None:
    """Nothing is installed where others could replace the hook's code, and one line says why."""
    done = dev_install(*arguments)
    assert done.returncode == 1
    assert complaint in done.stderr.splitlines()[-1]
    assert not Path("/tmp/nvgraft").exists()
    assert not Path("/opt/x").exists()


STALE = "lib/nvgraft/hook/nvgraft/stale.py"


@pytest.fixture(scope="module")
def installed_twice(installed: Installed) -> Iterator[Path]:
    """A prefix that was installed, got a module of an older release, and was installed again."""
    prefix = installed.prefix / "twice"
    try:
        first = dev_install(f"PREFIX={prefix}", "--names")
        (prefix / STALE).touch()
        second = dev_install(f"PREFIX={prefix}", "--names")
        assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
        yield prefix
    finally:
        subprocess.run(["rm", "-rf", prefix], check=True)


def test_installing_again_replaces_what_was_there(installed_twice: Path) -> None:
    """A module of an older release does not survive, and no draft of the installer's stays
    behind.
    """
    assert not (installed_twice / STALE).exists()
    names = sorted(NAMES)
    assert sorted(
        str(path.relative_to(installed_twice)) for path in installed_twice.glob("*/*")
    ) == [
        "bin/nvgraft",
        "bin/nvgraft-cdi-hook",
        "bin/nvgraft-hook",
        "bin/nvgraft-runtime",
        *(f"bin/{name}" for name in names),
        "lib/nvgraft",
        "lib/systemd",
        *(f"share/{name}" for name in ("bash-completion", "fish", "man", "zsh")),
    ]
    assert not list((installed_twice / "share").rglob(".*"))
    left = sorted(path.name for path in (installed_twice / "lib").iterdir())
    assert left == ["nvgraft", "systemd"]
    (unit,) = (installed_twice / "lib/systemd/system").iterdir()
    assert f"\nExecStart={installed_twice}/bin/nvgraft cdi refresh --watch" in unit.read_text()


@pytest.mark.requires("gcc")
def test_the_static_launcher_keeps_the_callers_variables_out(
    installed: Installed, tmp_path: Path
) -> None:
    """With --launcher the hook is a program that is assembled here; the script behind it never gets
    LD_PRELOAD.

    Without it the same variable reaches the interpreter, and the hook can only refuse.
    """
    prefix = installed.prefix / "static"

    def said(hook: Path) -> str:
        return subprocess.run(
            [hook, "prestart"],
            input="",
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={"LD_PRELOAD": "/nonexistent.so"},
        ).stderr

    try:
        done = dev_install(f"PREFIX={prefix}", "--launcher")
        assert done.returncode == 0, done.stderr
        assert (prefix / "bin/nvgraft-hook").read_bytes()[:4] == b"\x7fELF"
        first = (prefix / "lib/nvgraft/nvgraft-hook").read_text().splitlines()[0]
        assert first == "#!/usr/bin/python3 -ISB"
        assert "could not decode container state: EOF" in said(prefix / "bin/nvgraft-hook")
        assert "environment variable LD_PRELOAD is set for the hook" in said(installed.hook)
    finally:
        subprocess.run(["rm", "-rf", prefix], check=True)


def test_without_an_assembler_nothing_is_installed(installed: Installed, tmp_path: Path) -> None:
    """--launcher is refused in one line before anything is written."""
    for name in ("sh", "dirname", "id", "stat", "rm", "find", "chown", "sed", "sha256sum", "cat"):
        (tmp_path / name).symlink_to(shutil.which(name) or "")
    prefix = installed.prefix / "static"
    done = subprocess.run(
        [CHECKOUT / "dev", "install", f"PREFIX={prefix}", "--launcher"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "no program as and no objcopy to assemble" in done.stderr.splitlines()[-1]
    assert "apt-get install binutils" in done.stderr.splitlines()[-1]
    assert not prefix.exists()


def test_without_an_assembler_the_cdi_hook_is_for_our_own_edits(
    installed: Installed, tmp_path: Path
) -> None:
    """Without binutils nvgraft-cdi-hook is a script, which is safe where the hook has an ``env``:
    the installer says so, and leaves out the names that foreign specifications start.
    """
    for directory in ("/usr/sbin", "/usr/bin"):
        for program in Path(directory).iterdir():
            if (
                not program.name.endswith(("as", "objcopy"))
                and not (tmp_path / program.name).exists()
            ):
                (tmp_path / program.name).symlink_to(program)
    prefix = installed.prefix / "script"
    try:
        done = subprocess.run(
            [CHECKOUT / "dev", "install", f"PREFIX={prefix}", "--names"],
            env={"PATH": str(tmp_path)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        said = done.stderr.splitlines()[-1]
        assert "nvgraft-cdi-hook has no static first program: there is no program as" in said
        assert "apt-get install binutils" in said
        first = (prefix / "bin/nvgraft-cdi-hook").read_text().splitlines()[0]
        assert first == "#!/usr/bin/python3 -ISB"
        assert (prefix / "bin/nvidia-container-runtime").is_symlink()
        assert not (prefix / "bin/nvidia-cdi-hook").is_symlink()
    finally:
        subprocess.run(["rm", "-rf", prefix], check=True)


def test_the_original_names_start_our_programs(installed_twice: Path) -> None:
    """With --names the original programs' names are links, also when installed again; a foreign
    program is not replaced.
    """
    for name in ("nvidia-container-runtime-hook", "nvidia-container-runtime"):
        done = subprocess.run(
            [installed_twice / "bin" / name, "-version"], capture_output=True, text=True
        )
        assert done.stdout.splitlines(), done.stderr
    foreign = installed_twice / "bin/nvidia-container-cli"
    assert subprocess.run([foreign, "--help"], capture_output=True).returncode == 0
    foreign.unlink()
    foreign.write_text("#!/bin/sh\n")
    done = dev_install(f"PREFIX={installed_twice}", "--names")
    assert done.returncode == 1
    assert f"{foreign}: exists and is not nvgraft's" in done.stderr
    assert foreign.read_text() == "#!/bin/sh\n"
    foreign.unlink()
    foreign.symlink_to("nvgraft")
