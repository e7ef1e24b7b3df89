"""``nvgraft cdi list``, ``validate``, ``transform root`` and ``refresh``."""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from nvgraft.base.errors import Refusal
from nvgraft.cdi.checking import spec_of
from nvgraft.request.config import Config
from nvgraft_cli.cdi import refresh, validate
from nvgraft_cli.cdi.roots import replace_root, with_root
from nvgraft_cli.inventory import watcher
from nvgraft_cli.shell.main import main
from nvgraft_specs.models.cdi import CdiCheck, CdiDevices

Captured = pytest.CaptureFixture[str]
Document = dict[str, Any]


def document(kind: str, *names: str, **edits: Any) -> Document:
    devices = [{"name": name, "containerEdits": {"env": ["A=b"]}} for name in names]
    return {"cdiVersion": "0.7.0", "kind": kind, "devices": devices, "containerEdits": edits}


@pytest.fixture
def directories(tmp_path: Path) -> tuple[Path, Path]:
    """Two directories of specifications; the second has priority."""
    etc, run = tmp_path / "etc", tmp_path / "run"
    etc.mkdir()
    run.mkdir()
    return etc, run


def place(path: Path, data: Document) -> Path:
    path.write_text(yaml.safe_dump(data) if path.suffix == ".yaml" else json.dumps(data, indent=1))
    return path


def ran(capsys: Captured, *words: object, code: int = 0) -> tuple[str, str]:
    assert main(["cdi", *map(str, words)]) == code
    captured = capsys.readouterr()
    return captured.out, captured.err


def options(directories: tuple[Path, Path]) -> list[str]:
    return [word for directory in directories for word in ("--spec-dir", str(directory))]


# ---- list


def test_list_shows_what_engines_find(directories: tuple[Path, Path], capsys: Captured) -> None:
    """Each device is a line that begins with its name; what it hides, and what no engine finds, is
    said.
    """
    etc, run = directories
    low = place(etc / "a.json", document("v.com/gpu", "0", "1"))
    high = place(run / "b.yaml", document("v.com/gpu", "1"))
    files = [place(run / f"{name}.json", document("v.com/net", "x")) for name in "cd"]
    assert ran(capsys, "list", *options(directories), code=1)[0].splitlines() == [
        f"v.com/gpu=0  {low}",
        f"v.com/gpu=1  {high}, hides {low}",
        f"v.com/net=x  conflict: engines find none, since {files[0]} and {files[1]} have it",
    ]
    files[0].write_text("[\n")
    out, _ = ran(capsys, "list", *options(directories), "--format", "json", code=1)
    listed = CdiDevices.model_validate_json(out)
    assert [(device.name, device.hides) for device in listed.devices] == [
        ("v.com/gpu=0", []),
        ("v.com/gpu=1", [str(low)]),
        ("v.com/net=x", []),
    ]
    assert [error.file for error in listed.errors] == [str(files[0])]
    files[0].unlink()
    assert ran(capsys, "list", *options(directories))[1] == ""


def test_list_names_files_that_cannot_be_used(
    directories: tuple[Path, Path], capsys: Captured
) -> None:
    """A file that cannot be used is a line on stderr with its line number, and exit code 1."""
    bad = place(directories[0] / "a.json", document("v.com/gpu", "0", hooks=[{}]))
    out, err = ran(capsys, "list", *options(directories), code=1)
    assert out == ""
    assert f"warning: {bad}:" in err
    assert ": containerEdits.hooks[0].hookName: is missing | " in err


def test_list_of_nothing(tmp_path: Path, capsys: Captured) -> None:
    """Directories without a device are said to have none; that is no error."""
    out, err = ran(capsys, "list", "--spec-dir", tmp_path / "none")
    assert (out, err.startswith(f"nvgraft cdi: no device in {tmp_path}/none | ")) == ("", True)


def test_directories_of_config_toml(tmp_path: Path, capsys: Captured) -> None:
    """Without --spec-dir the runtime's directories are looked at."""
    place(tmp_path / "a.json", document("v.com/gpu", "0"))
    config = tmp_path / "config.toml"
    section = "nvidia-container-runtime.modes.cdi"
    config.write_text(f'[{section}]\nspec-dirs = ["{tmp_path}"]\n')
    assert ran(capsys, "list", "--config", config)[0] == f"v.com/gpu=0  {tmp_path}/a.json\n"


# ---- validate


class Machine:
    """Files that a specification may name, and the version of the loaded driver."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.library = path / "libcuda.so.535.1"
        self.library.touch()
        self.program = path / "hook"
        self.program.touch(mode=0o755)
        self.version = path / "version"
        self.load("535.1")

    def load(self, version: str) -> None:
        words = "NVRM version: NVIDIA UNIX x86_64 Kernel Module"
        self.version.write_text(f"{words}  {version}  Thu Feb  1 2024\n")

    def document(self, **edits: Any) -> Document:
        """Return a specification in which nothing is wrong, with changed edits."""
        return document(
            "v.com/gpu",
            "0",
            **{
                "mounts": [{"hostPath": str(self.library), "containerPath": "/libcuda.so.535.1"}],
                "deviceNodes": [{"path": "/dev/null", "major": 1, "minor": 3}],
                "hooks": [
                    {"hookName": "createContainer", "path": str(self.program), "env": ["A=b"]}
                ],
                **edits,
            },
        )


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    monkeypatch.setattr(validate, "MODULE_VERSION", str(made.version))
    # The test's directory is one of /tmp, which users other than root can write.
    trusted = "nvgraft_cli.cdi.checks.open_trusted"
    monkeypatch.setattr(trusted, lambda path: os.open(path, os.O_RDONLY))
    return made


def findings(capsys: Captured, *words: object, code: int) -> list[tuple[str, str, str]]:
    """Return level, id and message of what `cdi validate` finds."""
    out, err = ran(capsys, "validate", *words, "--format", "json", code=code)
    assert err == ""
    checked = CdiCheck.model_validate_json(out)
    return [(finding.level, finding.id, finding.message) for finding in checked.findings]


def test_nothing_is_wrong(machine: Machine, capsys: Captured) -> None:
    """A specification of this machine is shown with its kind, version and number of devices."""
    path = place(machine.path / "x.yaml", machine.document())
    assert ran(capsys, "validate", path)[0].splitlines() == [
        f"{path}: v.com/gpu, CDI 0.7.0, 1 device",
        "nothing is wrong",
    ]
    machine.version.unlink()  # no driver is loaded, so none is compared
    assert findings(capsys, path, code=0) == []


HOOK = "createContainer"


@pytest.mark.parametrize(
    ("edits", "wanted"),
    [
        (
            {"mounts": [{"hostPath": f"/no/{n}", "containerPath": f"/{n}"} for n in range(5)]},
            ("source-missing", "5 of 5 sources do not exist: /no/0, /no/1, /no/2 and 2 more"),
        ),
        (
            {"deviceNodes": [{"path": "/dev/x", "hostPath": "/no/x"}]},
            ("node-missing", "1 of 1 device nodes do not exist: /no/x"),
        ),
        ({"deviceNodes": [{"path": "/etc"}]}, ("not-a-device", "/etc is not a device")),
        (
            {"deviceNodes": [{"path": "/dev/null", "type": "b", "major": 1, "minor": 3}]},
            ("not-a-device", "/dev/null is not of type b"),
        ),
        (
            {"deviceNodes": [{"path": "/dev/null", "major": 195}]},
            ("node-numbers", "/dev/null has the numbers 1:3, not 195:0"),
        ),
        (
            {"hooks": [{"hookName": HOOK, "path": "/no/hook", "env": ["A=b"]}]},
            ("hook-missing", "hook /no/hook: there is no such program, so no container starts"),
        ),
        (
            {"hooks": [{"hookName": HOOK, "path": "/etc/passwd", "env": ["A=b"]}]},
            ("hook-missing", "hook /etc/passwd: there is no such program, so no container starts"),
        ),
        (
            {"hooks": [{"hookName": HOOK, "path": "/bin/sh"}]},
            (
                "hook-environment",
                "/bin/sh has no env: it gets the variables of the image (CVE-2025-23266)",
            ),
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_what_is_wrong_on_this_machine(
    edits: Document, wanted: tuple[str, str], machine: Machine, capsys: Captured
) -> None:
    """What engines cannot mount, pass or safely run is an error each."""
    path = place(machine.path / "x.json", machine.document(**edits))
    assert findings(capsys, path, code=1) == [("error", *wanted)]


def test_what_is_not_to_be_found_here(machine: Machine, capsys: Captured) -> None:
    """A hook of startContainer is a program of the image, and a tmpfs has no source; a node without
    numbers has the host's.
    """
    edits = {
        "mounts": [{"hostPath": "tmpfs", "containerPath": "/x", "type": "tmpfs"}],
        "hooks": [{"hookName": "startContainer", "path": "/no/hook", "env": ["A=b"]}],
        "deviceNodes": [{"path": "/dev/zero"}],
    }
    assert findings(capsys, place(machine.path / "x.json", machine.document(**edits)), code=0) == []


def test_a_specification_of_another_driver(machine: Machine, capsys: Captured) -> None:
    """Libraries of another version than that of the loaded kernel module are an error."""
    path = place(machine.path / "x.json", machine.document())
    machine.load("550.54.14")
    message = "it is of driver 535.1, and the loaded one is 550.54.14"
    assert findings(capsys, path, code=1) == [("error", "stale", message)]


def test_a_hook_that_others_can_write(
    machine: Machine, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hook program that users other than root can replace is an error with its fix."""
    monkeypatch.undo()
    machine.program.chmod(stat.S_IRWXU | stat.S_IWOTH)
    path = place(machine.path / "x.json", machine.document())
    (found,) = findings(capsys, path, code=1)
    assert found[:2] == ("error", "hook-writable")


@pytest.mark.parametrize("which", ["file", "directory"])
def test_a_specification_that_others_can_write(
    which: str, machine: Machine, capsys: Captured
) -> None:
    """A specification that users other than root can change, in itself or by its directory, is a
    warning: nvgraft-runtime takes no device of it, and other engines do.
    """
    directory = machine.path / "cdi"
    directory.mkdir()
    path = place(directory / "x.json", machine.document())
    changed = path if which == "file" else directory
    changed.chmod(changed.stat().st_mode | stat.S_IWOTH)
    ((level, finding, message),) = findings(capsys, path, code=0)
    assert (level, finding) == ("warning", "writable")
    assert message.startswith(f"nvgraft-runtime takes no device of it: {changed}: ")


def test_devices_of_several_files(
    directories: tuple[Path, Path], machine: Machine, capsys: Captured
) -> None:
    """Two files of one directory with one device are an error, a hidden device is a warning; each
    pair of files is one line.
    """
    etc, run = directories
    low = place(etc / "a.json", document("v.com/gpu", "0", "1", "2"))
    high = place(run / "b.json", document("v.com/gpu", "0", "1"))
    assert findings(capsys, *options(directories), code=0) == [
        ("warning", "hidden", f"v.com/gpu=0, v.com/gpu=1: hidden by {high}")
    ]
    other = place(run / "c.json", document("v.com/gpu", "0"))
    found = findings(capsys, *options(directories), code=1)
    assert found[0] == ("error", "conflict", f"v.com/gpu=0: {high} has this device, too")
    out, _ = ran(capsys, "validate", *options(directories), code=1)
    assert f"error: {other}: v.com/gpu=0: {high} has this device, too | no engine finds" in out
    assert f"warning: {low}: v.com/gpu=1: hidden by {high} | remove the file" in out
    assert out.splitlines()[-1] == "1 error, 1 warning"


def test_files_that_engines_refuse(tmp_path: Path, capsys: Captured) -> None:
    """A file that is not a specification is an error with its line; the others are checked all the
    same.
    """
    bad = place(tmp_path / "bad.json", document("v.com", "0"))
    good = place(tmp_path / "good.json", document("v.com/gpu", "0"))
    out, _ = ran(capsys, "validate", bad, good, code=1)
    lines = out.splitlines()
    assert lines[0] == f"{good}: v.com/gpu, CDI 0.7.0, 1 device"
    assert lines[1].startswith(f"error: {bad}:3: kind: invalid kind 'v.com' | ")
    assert lines[2] == "1 error"


def test_no_specification_at_all(tmp_path: Path, capsys: Captured) -> None:
    """Without any specification the answer is one line and exit code 1."""
    out, err = ran(capsys, "validate", "--spec-dir", tmp_path, code=1)
    assert out == ""
    assert err.startswith(f"nvgraft cdi: there is no specification in {tmp_path} | write one: ")


# ---- transform root


@pytest.mark.parametrize(
    ("path", "old", "new", "wanted"),
    [
        ("/driver/usr/lib/x.so", "/driver", "/", "/usr/lib/x.so"),
        ("/driver/usr/lib/x.so", "/driver/", "/run/d", "/run/d/usr/lib/x.so"),
        ("/driver", "/driver", "/run", "/run"),
        ("/driver-backup/x", "/driver", "/run", "/driver-backup/x"),
        ("/usr/x", "/", "/run", "/run/usr/x"),
        ("relative", "/", "/run", "relative"),
        ("--link", "/", "/run", "--link"),
    ],
)
def test_the_root_of_a_path(path: str, old: str, new: str, wanted: str) -> None:
    """Whole components of a path are compared; other paths stay as they are."""
    assert replace_root(path, old, new) == wanted


EDITS = {
    "deviceNodes": [
        {"path": "/dev/a", "uid": 0},
        {"path": "/d/dev/b", "hostPath": "/d/dev/c", "type": "c"},
    ],
    "hooks": [
        {"hookName": "createContainer", "path": "/d/h", "args": ["h", "/d/x::/d/y", "/d/z"]},
        {"hookName": "prestart", "path": "/d/h", "args": ["/d/h", "x::/d/y"], "timeout": 0},
        {"hookName": "startContainer", "path": "/d/h", "args": ["/d/h"], "env": ["A=/d"]},
    ],
    "mounts": [{"hostPath": "/d/s", "containerPath": "/d/t", "options": ["ro"], "type": "bind"}],
}


def test_paths_of_the_host() -> None:
    """Sources, device nodes and the programs of hooks get the new root, and the arguments of hooks
    that run outside of the container.
    """
    spec = spec_of(document("v/c", "0", **EDITS) | {"annotations": {"a": "b"}})
    edits = with_root(spec, "/d", "/n", "host").document()["containerEdits"]
    assert edits == {
        "deviceNodes": [
            {"path": "/dev/a", "hostPath": "/dev/a", "uid": 0},
            {"path": "/d/dev/b", "hostPath": "/n/dev/c", "type": "c"},
        ],
        "hooks": [
            {"hookName": "createContainer", "path": "/n/h", "args": ["h", "/d/x::/d/y", "/d/z"]},
            {"hookName": "prestart", "path": "/n/h", "args": ["/n/h", "x::/n/y"], "timeout": 0},
            {"hookName": "startContainer", "path": "/d/h", "args": ["/d/h"], "env": ["A=/d"]},
        ],
        "mounts": [
            {"hostPath": "/n/s", "containerPath": "/d/t", "options": ["ro"], "type": "bind"}
        ],
    }


def test_paths_of_the_container() -> None:
    """Mount targets, device nodes, and the arguments of hooks that run in the container get the new
    root; the version is the lowest one that has all members.
    """
    spec = spec_of(document("v/c", "a", **EDITS))
    written = with_root(spec, "/d", "/n", "container").document()
    assert written["cdiVersion"] == "0.5.0"
    edits = written["containerEdits"]
    assert isinstance(edits, dict)
    assert edits["deviceNodes"] == [
        {"path": "/dev/a", "uid": 0},
        {"path": "/n/dev/b", "hostPath": "/d/dev/c", "type": "c"},
    ]
    assert [hook["path"] for hook in edits["hooks"]] == ["/d/h", "/d/h", "/n/h"]
    assert [hook["args"] for hook in edits["hooks"]] == [
        ["h", "/n/x::/n/y", "/n/z"],
        ["/d/h", "x::/d/y"],
        ["/n/h"],
    ]
    assert edits["mounts"][0]["containerPath"] == "/n/t"


def test_transform_root(tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """A specification is read from standard input or a file, in any form, and written as YAML or as
    the file's name says.
    """
    data = document("v/c", "0", mounts=[{"hostPath": "/a/x", "containerPath": "/x"}])
    words = ["transform", "root", "--from", "/a", "--to", "/b"]
    monkeypatch.setattr("nvgraft_cli.cdi.transform.read_bytes", lambda _: json.dumps(data).encode())
    out, _ = ran(capsys, *words)
    assert out.startswith("---\n")
    assert yaml.safe_load(out)["containerEdits"]["mounts"][0]["hostPath"] == "/b/x"
    monkeypatch.undo()
    path = place(tmp_path / "in.yaml", data)
    ran(capsys, *words, "--input", path, "--output", tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text()) == yaml.safe_load(out)


def test_transform_root_of_something_else(tmp_path: Path, capsys: Captured) -> None:
    """What is not a specification is one line with the line number and exit code 2."""
    path = place(tmp_path / "in.json", document("v/c"))
    out, err = ran(
        capsys, "transform", "root", "--from", "/", "--to", "/x", "--input", path, code=2
    )
    assert out == ""
    assert err.startswith(f"nvgraft cdi: {path}:4: devices: invalid spec, no devices | ")


# ---- refresh


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The texts of this machine's specification, in the order in which they are asked for."""
    written = ["---\nfirst\n"]
    monkeypatch.setattr(refresh, "specification_now", lambda _args, form: written[-1] + form)
    monkeypatch.setattr(refresh, "require_root", lambda: None)
    let_engines_read(monkeypatch, *(tmp_path / name for name in (".", "cdi", "file")))
    return written


def let_engines_read(monkeypatch: pytest.MonkeyPatch, *directories: Path) -> None:
    config = Config(runtime_cdi_spec_dirs=tuple(map(str, directories)))
    monkeypatch.setattr(refresh, "read_configuration", lambda _path: config)


def test_refresh_writes_what_has_changed(
    texts: list[str], tmp_path: Path, capsys: Captured
) -> None:
    """The file and its directory are made, readable for all; a file that is up to date is not
    touched, and another one is replaced as a whole.
    """
    path = tmp_path / "cdi/nvidia.json"
    umask = os.umask(0o077)
    try:
        ran(capsys, "refresh", path)
    finally:
        os.umask(umask)
    assert path.read_text() == "---\nfirst\njson"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    before = path.stat()
    assert ran(capsys, "refresh", path) == ("", "")
    assert path.stat() == before
    texts.append("second\n")
    out, err = ran(capsys, "refresh", path)
    assert (out, err) == ("", f"nvgraft cdi: written: file={path} bytes=11\n")
    assert path.read_text() == "second\njson"
    assert path.stat().st_ino != before.st_ino
    assert os.listdir(path.parent) == ["nvidia.json"]


def test_refresh_of_a_machine_without_a_driver(
    texts: list[str], tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a driver the refusal is printed, the exit code is 1, and the file stays."""
    path = tmp_path / "nvidia.yaml"
    path.write_text("before")

    def refuse(*_: object) -> str:
        raise Refusal("detection", "no devices", "fix")

    monkeypatch.setattr(refresh, "specification_now", refuse)
    assert ran(capsys, "refresh", path, code=1)[1] == (
        "nvgraft: detection error: no devices | fix\n"
    )
    assert path.read_text() == "before"


def test_refresh_where_nothing_can_be_written(
    texts: list[str], tmp_path: Path, capsys: Captured
) -> None:
    """A file that cannot be written is one line and exit code 2."""
    (tmp_path / "file").touch()
    err = ran(capsys, "refresh", tmp_path / "file/nvidia.yaml", code=2)[1]
    assert err.startswith(f"nvgraft cdi: {tmp_path}/file")
    assert len(err.splitlines()) == 1


def test_refresh_goes_on_with_the_watcher(
    texts: list[str], tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --watch the file is written after each reading of the watcher."""
    path = tmp_path / "nvidia.yaml"

    class Watcher:
        def __init__(self, *given: Any) -> None:
            assert given[:3] == (None, 5.0, 0.0)
            self.follow_up, self.lost = given[4:]

        async def run(self) -> None:
            assert self.lost() == f"{path} is gone"
            self.follow_up()
            assert self.lost() == ""
            assert path.read_text() == "---\nfirst\nyaml"
            texts.append("second\n")
            self.follow_up()

    monkeypatch.setattr(watcher, "Watcher", Watcher)
    ran(capsys, "refresh", "--watch", "--check", "5", "--ask", "0", path)
    assert path.read_text() == "second\nyaml"


@pytest.fixture
def refreshed(
    texts: list[str], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[str]]:
    """Return a function that refreshes a specification with the device v/c=0, for engines that read
    directories, and returns the warnings.
    """
    text = json.dumps(document("v/c", "0"))
    monkeypatch.setattr(refresh, "specification_now", lambda _args, _form: text)

    def run(path: Path, *directories: Path) -> list[str]:
        let_engines_read(monkeypatch, *directories)
        lines = ran(capsys, "refresh", path)[1].splitlines()
        assert path.read_text() == text
        return [line for line in lines if ": written: " not in line]

    return run


def test_refresh_of_a_file_that_engines_do_not_find(
    refreshed: Callable[..., list[str]], tmp_path: Path
) -> None:
    """A file in another directory, or with another ending, is written with a warning; a link to a
    directory of engines is one.
    """
    cdi, other = tmp_path / "cdi", tmp_path / "other"
    assert refreshed(cdi / "a.json", cdi) == []
    (tmp_path / "link").symlink_to(cdi)
    assert refreshed(tmp_path / "link/a.json", cdi) == []
    (line,) = refreshed(other / "a.json", cdi)
    assert line.startswith(
        f"nvgraft cdi: warning: {other}/a.json: engines do not find it: they read {cdi} | write it"
    )
    (line,) = refreshed(cdi / "a.yml", cdi)
    assert "a.yml: engines do not read a file of this name | let it end in .json or .yaml" in line


def test_refresh_beside_another_specification(
    refreshed: Callable[..., list[str]], tmp_path: Path
) -> None:
    """Another file with the same devices is named: one of a later directory hides the written one,
    beside one of the same directory engines find neither.
    """
    first, later = tmp_path / "etc", tmp_path / "run"
    later.mkdir()
    place(later / "x.json", document("v/c", "0"))
    (line,) = refreshed(first / "a.json", first, later)
    assert line.endswith(
        f"a.json: engines take its devices from {later}/x.json | remove one of both files"
    )
    (line,) = refreshed(later / "a.json", first, later)
    assert line.endswith(
        f"a.json: engines find none of the devices that {later}/x.json has, too | remove one of"
        " both files"
    )
