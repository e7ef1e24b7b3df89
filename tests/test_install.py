"""The installer's decisions. integration/test_dev_install.py shows that an installation runs."""

import importlib.metadata
import os
import stat
import sys
from pathlib import Path

import pytest
from pytest_subprocess import FakeProcess

from nvgraft_cli.install import install


class Owner:
    """A replacement for ``os.lstat``: the real result with chosen owners and, for some paths,
    modes.
    """

    def __init__(self, others: dict[str, int], modes: dict[str, int]) -> None:
        self.others = others
        self.modes = modes
        self.real = os.lstat

    def __call__(self, path: str) -> os.stat_result:
        path = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        info = self.real(path)
        kind = stat.S_IFMT(info.st_mode)
        mode = kind | self.modes.get(path, 0o777 if kind == stat.S_IFLNK else 0o755)
        return os.stat_result((mode, *info[1:4], self.others.get(path, 0), *info[5:10]))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A chain of directories and a link beside it: ``real/deep`` and ``link -> real``."""
    (tmp_path / "real/deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    return tmp_path


@pytest.mark.parametrize("path", ["real/deep", "link/deep", "real/deep/not/there/yet"])
def test_a_path_that_only_root_can_change_is_accepted(
    path: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path is accepted if only root can write to its directories, through links and with missing
    last parts.
    """
    monkeypatch.setattr(os, "lstat", Owner({}, {}))
    install.owned_by_root(f"{place}/{path}")


@pytest.mark.parametrize(
    ("path", "foreign"),
    [
        ("real/deep", "real"),
        ("real/deep", "real/deep"),
        ("link/deep", "link"),
        ("link", "real"),
        ("link/deep", "real/deep"),
    ],
)
def test_a_path_of_another_user_is_refused(
    path: str, foreign: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path is refused if another user owns a directory, a link or a link's target on the way."""
    monkeypatch.setattr(os, "lstat", Owner({f"{place}/{foreign}": 1000}, {}))
    with pytest.raises(install.CannotInstall, match=r"owned by user 1000") as caught:
        install.owned_by_root(f"{place}/{path}")
    assert ("chown" in str(caught.value)) is (foreign == "link"), "a home must not be given to root"
    assert ("such as /usr/local" in str(caught.value)) is (foreign != "link")


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o1777])
def test_a_path_that_others_may_write_to_is_refused(
    mode: int, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path is refused if group or others may write to a directory on the way, even with a sticky
    bit.
    """
    monkeypatch.setattr(os, "lstat", Owner({}, {f"{place}/real": mode}))
    with pytest.raises(
        install.CannotInstall, match=r"real: group or others may write to it"
    ) as caught:
        install.owned_by_root(f"{place}/link/deep")
    assert ("chmod" in str(caught.value)) is (mode != 0o1777), "/tmp must stay as it is"


def test_a_loop_of_links_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links that lead to each other are refused with a message."""
    (place / "a").symlink_to("b")
    (place / "b").symlink_to("a")
    monkeypatch.setattr(os, "lstat", Owner({}, {}))
    with pytest.raises(install.CannotInstall, match="too many symbolic links"):
        install.owned_by_root(f"{place}/a")


@pytest.mark.parametrize(
    ("prefix", "python", "complaint"),
    [
        ("usr/local", "/usr/bin/python3", "PREFIX=usr/local: not an absolute path"),
        ("/usr/../tmp", "/usr/bin/python3", "PREFIX=/usr/../tmp: not an absolute path"),
        ("/usr/local", "python3", "PYTHON=python3: not an absolute path"),
        ("/usr/my local", "/usr/bin/python3", "contains a character"),
        ("/usr/local", "/usr/bin/python3\n", "contains a character"),
        ("/usr/local", "/" + "p" * 250, "too long"),
    ],
)
def test_unusable_paths_are_refused(
    prefix: str, python: str, complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path that does not fit into a script's first line or ``sys.path`` is refused before
    anything is written.
    """
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(install.CannotInstall, match=complaint):
        install.check_places(prefix, python)


def test_only_root_installs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only root may install: the hook would refuse to start from another user's directory."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(install.CannotInstall, match="not root"):
        install.check_places("/usr/local", "/usr/bin/python3")


def distribution(packages: Path, name: str, *requires: str) -> None:
    """Write the metadata of an installed distribution."""
    directory = packages / f"{name}-1.0.dist-info"
    directory.mkdir()
    rows = "".join(f"Requires-Dist: {row}\n" for row in requires)
    (directory / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{rows}"
    )


def test_the_closure_follows_requirements_but_not_extras(tmp_path: Path) -> None:
    """A package's requirements are found in any spelling; those of extras and of other platforms
    are left out.
    """
    distribution(
        tmp_path,
        "Top",
        "Mid_Dle>=1",
        'extra-thing; extra == "test"',
        'windows-only; sys_platform == "win32"',
    )
    distribution(tmp_path, "mid.dle", "leaf")
    distribution(tmp_path, "leaf", "top")
    distribution(tmp_path, "extra_thing")
    closure: list[importlib.metadata.Distribution] = install.closure(str(tmp_path), ["top"])
    assert [item.metadata["Name"] for item in closure] == ["leaf", "mid.dle", "Top"]


def test_no_module_beside_the_engine_has_a_name_of_the_standard_library() -> None:
    """The engine's directory is searched first; a module of the same name would be loaded there."""
    modules = {name for names in install.HOOK_MODULES.values() for name in names}
    assert not {"nvgraft", "nvgraft_specs", *modules} & sys.stdlib_module_names


def test_a_failed_swap_brings_the_old_installation_back(tmp_path: Path) -> None:
    """If the new installation cannot be moved into place, the old one is put back."""
    (tmp_path / "nvgraft").mkdir()
    (tmp_path / "nvgraft/works").touch()
    with pytest.raises(FileNotFoundError):
        install.replace_tree(
            f"{tmp_path}/.nvgraft.new", f"{tmp_path}/nvgraft", f"{tmp_path}/.nvgraft.old"
        )
    assert [path.name for path in tmp_path.iterdir()] == ["nvgraft"]
    assert (tmp_path / "nvgraft/works").exists()


def test_a_swap_leaves_only_the_new_installation(tmp_path: Path) -> None:
    """A swap removes the old installation, so that no stale module can be loaded."""
    for name in ("nvgraft/old", ".nvgraft.new/new"):
        (tmp_path / name).mkdir(parents=True)
    install.replace_tree(
        f"{tmp_path}/.nvgraft.new", f"{tmp_path}/nvgraft", f"{tmp_path}/.nvgraft.old"
    )
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == [
        "nvgraft",
        "nvgraft/new",
    ]


def test_original_names_link_to_nvgraft(tmp_path: Path) -> None:
    """The original names become links to the programs beside them; linking again changes
    nothing.
    """
    for _ in range(2):
        install.check_names(str(tmp_path))
        install.link_names(str(tmp_path))
        assert {path.name: os.readlink(path) for path in tmp_path.iterdir()} == {
            "nvidia-container-runtime-hook": "nvgraft-hook",
            "nvidia-container-cli": "nvgraft",
            "nvidia-container-runtime": "nvgraft-runtime",
            "nvidia-cdi-hook": "nvgraft-cdi-hook",
            "nvidia-ctk": "nvgraft-cdi-hook",
        }


def test_the_cdi_hook_has_its_original_names_behind_a_static_program_only(tmp_path: Path) -> None:
    """Without the static program the names that foreign specifications start are left out, and
    removed where an earlier installation has made them.
    """
    install.link_names(str(tmp_path))
    install.link_names(str(tmp_path), cdi_hook=False)
    assert {path.name for path in tmp_path.iterdir()} == {
        "nvidia-container-runtime-hook",
        "nvidia-container-cli",
        "nvidia-container-runtime",
    }


@pytest.mark.parametrize("kind", ["file", "link", "dangling link"])
def test_a_foreign_program_is_not_replaced(kind: str, tmp_path: Path) -> None:
    """A program or link that is not nvgraft's keeps its name: the installer names it and writes
    nothing.
    """
    path = tmp_path / "nvidia-container-cli"
    if kind == "file":
        path.touch()
    else:
        path.symlink_to("/bin/sh" if kind == "link" else "/nowhere")
    with pytest.raises(
        install.CannotInstall, match="nvidia-container-cli: exists and is not nvgraft's"
    ):
        install.check_names(str(tmp_path))


def test_a_launcher_needs_an_assembler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `as` and `objcopy` the launcher is refused, with the package to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("", "", "", "", "aarch64")))
    with pytest.raises(
        install.CannotInstall, match=r"no program as and no objcopy to assemble.* apt-get"
    ):
        install.static_launcher("/usr/bin/python3", "/script")


def test_an_assembler_that_fails_is_quoted(
    fp: FakeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the assembler fails, the refusal quotes its last line, and objcopy is not started."""
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("", "", "", "", "x86_64")))
    fp.register(["as", fp.any()], returncode=1, stderr="first\nunknown option\n")
    with pytest.raises(install.CannotInstall, match="--launcher: as failed: unknown option"):
        install.static_launcher("/usr/bin/python3", "/script")
    (call,) = fp.calls
    assert list(call)[1:2] == ["-o"]
    assert str(list(call)[3]).endswith("/launcher_x86_64.s")


def test_every_program_is_loaded_before_it_is_installed(fp: FakeProcess) -> None:
    """The installer loads each program from the stage, isolated as its launcher does; the first
    that fails is named with the last line of what Python says.
    """
    fp.register(["/python", "-ISB", "-c", fp.any()], occurrences=4)
    install.check_start("/python", "/stage")
    programs = [str(list(call)[3]) for call in fp.calls]
    assert [text.rpartition(" ")[2] for text in programs] == [
        "nvgraft.hook",
        "nvgraft.runtime",
        "nvgraft.cdi_hook",
        "nvgraft_cli.shell.main",
    ]
    assert ["/stage/cli" in text for text in programs] == [False, False, False, True]
    fp.register(["/python", fp.any()])
    fp.register(["/python", fp.any()], returncode=1, stderr="Traceback\nImportError: no prctl\n")
    with pytest.raises(
        install.CannotInstall,
        match=r"nvgraft\.runtime does not start on /python: ImportError: no prctl",
    ):
        install.check_start("/python", "/stage")


def test_a_machine_without_launcher_source_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that the launcher has no source for is refused; the message names those that it
    has.
    """
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("", "", "", "", "riscv64")))
    with pytest.raises(install.CannotInstall, match="not for riscv64, only for x86_64 and aarch64"):
        install.static_launcher("/usr/bin/python3", "/script")


def test_a_refused_launcher_leaves_the_prefix_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the launcher is refused, nothing has been written to the prefix."""
    monkeypatch.setattr(install, "check_places", lambda *_: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(install.CannotInstall, match="--launcher"):
        install.install("/checkout", "/packages", str(tmp_path), "/python", with_launcher=True)
    assert list(tmp_path.iterdir()) == []
