"""Reading CDI specifications of anybody: what is accepted, and one line for everything else."""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from descriptors import nothing_stays_open
from nvgraft.base.errors import Refusal
from nvgraft.cdi import kept_yaml, yaml_child
from nvgraft.cdi.edits import CdiEdits, CdiHook, CdiMount, CdiNode, CdiSpec
from nvgraft.cdi.reader import (
    LIMIT,
    SpecificationError,
    read_specification,
    read_specifications,
)
from nvgraft.cdi.registry import Registry, read_registry
from nvgraft.cdi.yaml_child import NotYaml, convert
from nvgraft.system import kept, privileges
from nvgraft.system.trusted import Untrusted
from nvgraft_specs import yaml_text

Document = dict[str, Any]

RECORDS = Path(__file__).parent / "fixtures/reference/cdi"
RECORDED = sorted(path.name for path in RECORDS.glob("*.json"))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep converted texts in a directory of the test."""
    place = tmp_path / "nvgraft" / "cache"
    monkeypatch.setattr(kept, "DIRECTORY", str(place))
    return place


def document(**edits: Any) -> Document:
    return {
        "cdiVersion": "0.5.0",
        "kind": "vendor.com/gpu",
        "devices": [{"name": "0", "containerEdits": edits or {"env": ["A=b"]}}],
    }


def read(path: Path, text: str | bytes) -> CdiSpec:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_specification(str(path))


def refused(path: Path, text: str | bytes) -> str:
    """Return the line about a specification, without its path."""
    with pytest.raises(SpecificationError) as caught:
        read(path, text)
    line = str(caught.value)
    assert line.startswith(str(path))
    assert "\n" not in line
    return line.removeprefix(str(path))


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("form", ["json", "yaml"])
def test_recorded_specifications_are_read_whole(name: str, form: str, tmp_path: Path) -> None:
    """Specifications of the reference are read as they were written, as JSON and as YAML."""
    written = json.loads((RECORDS / name).read_text())
    text = json.dumps(written) if form == "json" else yaml.safe_dump(written)
    assert read(tmp_path / f"x.{form}", text).document() == written


def test_every_member_is_read(tmp_path: Path) -> None:
    """All members of CDI 1.1.0 are read; names of members match in any case, as in Go."""
    edits = {
        "env": ["A=b=c"],
        "deviceNodes": [
            {
                "path": "/dev/x",
                "hostPath": "/dev/y",
                "type": "c",
                "major": 1,
                "MINOR": 2,
                "fileMode": 438,
                "permissions": "rw",
                "uid": 0,
                "gid": 4,
            }
        ],
        "hooks": [
            {"hookName": "poststop", "path": "/h", "args": ["h"], "env": ["X="], "timeout": 5}
        ],
        "mounts": [
            {"hostPath": "/s", "containerPath": "/t", "options": ["ro"], "type": "bind"},
            {"hostPath": "relative", "containerPath": "/t/u", "options": None},
        ],
        "netDevices": [{"hostInterfaceName": "eth1", "name": "net0"}],
        "intelRdt": {"closID": "a", "enableMonitoring": True, "schemata": ["L3:0=f"]},
        "additionalGids": [5],
    }
    whole = document(**edits) | {"cdiVersion": "v1.1.0", "annotations": {"a": "b"}}
    whole["devices"][0]["annotations"] = {"c": "d"}
    spec = read(tmp_path / "x.json", json.dumps(whole))
    assert (spec.annotations, spec.devices[0].annotations) == ({"a": "b"}, {"c": "d"})
    assert (spec.version, spec.kind, spec.edits) == ("1.1.0", "vendor.com/gpu", CdiEdits())
    assert spec.devices[0].edits == CdiEdits(
        env=["A=b=c"],
        nodes=[
            CdiNode(
                "/dev/x",
                host_path="/dev/y",
                type="c",
                major=1,
                minor=2,
                mode=438,
                permissions="rw",
                uid=0,
                gid=4,
            )
        ],
        hooks=[CdiHook("poststop", "/h", ("h",), ("X=",), 5)],
        mounts=[CdiMount("/s", "/t", ("ro",), "bind"), CdiMount("relative", "/t/u")],
        net_devices=[("eth1", "net0")],
        intel_rdt={"closID": "a", "enableMonitoring": True, "schemata": ["L3:0=f"]},
        gids=[5],
    )
    written = spec.document()
    assert read(tmp_path / "y.json", json.dumps(written)) == spec
    assert written == json.loads(
        json.dumps(whole | {"cdiVersion": "1.1.0"})
        .replace("MINOR", "minor")
        .replace(', "options": null', "")
    )


def test_yaml_without_quotes(tmp_path: Path) -> None:
    """Names and values that YAML takes for numbers and switches are strings, as in Go; anchors and
    merge keys are followed.
    """
    text = """
cdiVersion: 0.5.0
kind: v/c
devices:
- name: 0
  containerEdits: &edits
    env: [&a A=1, *a]
    mounts: [{hostPath: 5, containerPath: /x, options: [true]}]
- {name: yes, containerEdits: {<<: *edits, env: [B=2]}}
"""
    spec = read(tmp_path / "x.yaml", text)
    assert [device.name for device in spec.devices] == ["0", "true"]
    assert [device.edits.env for device in spec.devices] == [("A=1", "A=1"), ("B=2",)]
    assert spec.devices[1].edits.mounts == (CdiMount("5", "/x", ("true",)),)


HOOK = {"hookName": "createContainer", "path": "/h"}
MOUNT = {"hostPath": "/s", "containerPath": "/t"}
#: Changes of a document, and the line about it behind its path. Each member is on a line of its
#: own.
BAD: dict[str, tuple[Document, str]] = {
    "future": ({"cdiVersion": "9.0.0"}, ":2: cdiVersion: invalid version '9.0.0' | upgrade"),
    "no version": ({"cdiVersion": None}, ":1: cdiVersion: is missing | "),
    "old": ({"cdiVersion": "0.3.0"}, ":2: cdiVersion: the spec version must be at least v0.5.0"),
    "kind": ({"kind": "nvidia.com"}, ":3: kind: invalid kind 'nvidia.com' | write VENDOR/CLASS"),
    "devices": ({"devices": 3}, ":4: devices: is number instead of array | "),
    "nothing": ({"devices": []}, ":4: devices: invalid spec, no devices | "),
    "device": ({"devices": [7]}, ":5: devices[0]: is number instead of object | "),
    "name": (
        {"devices": [{"name": "a/b", "containerEdits": {}}]},
        ":6: devices[0].name: invalid device name 'a/b' | use letters",
    ),
    "twice": (
        {"devices": document()["devices"] * 2},
        ":14: devices[1].name: multiple device '0' | remove all but one",
    ),
    "empty": (
        {"devices": [{"name": "a", "containerEdits": {}}]},
        ":7: devices[0].containerEdits: invalid device 'a', empty device edits | ",
    ),
    "unknown member": ({"containerEdit": {}}, ":14: containerEdit: unknown member 'containerEdit'"),
    "env": (document(env=["A=b", "=c"]), "env[1]: invalid environment variable '=c' | write NAME"),
    "node": (document(deviceNodes=[{"path": "dev/x"}]), ".path: 'dev/x' is not an absolute path"),
    "node type": (document(deviceNodes=[{"path": "/x", "type": "q"}]), "type: invalid type 'q'"),
    "access": (
        document(deviceNodes=[{"path": "/x", "permissions": "rwx"}]),
        "permissions: invalid permissions 'rwx' | write some of r, w and m",
    ),
    "uid": (document(deviceNodes=[{"path": "/x", "uid": -1}]), "uid: -1 is out of range | "),
    "major": (document(deviceNodes=[{"path": "/x", "major": 1.5}]), "a whole number | "),
    "flag": (document(deviceNodes=[{"path": "/x", "major": True}]), "major: is bool instead of"),
    "stage": (document(hooks=[HOOK | {"hookName": "x"}]), "hookName: invalid hook name 'x' | "),
    "hook path": (document(hooks=[HOOK | {"path": "../h"}]), "path: '../h' is not an absolute"),
    "hook env": (document(hooks=[HOOK | {"env": ["A"]}]), "env[0]: invalid environment variable"),
    "no hook path": (document(hooks=[{"hookName": "prestart"}]), "hooks[0].path: is missing | "),
    "over /": (document(mounts=[MOUNT | {"containerPath": "/"}]), "a mount over / hides the"),
    "over / by ..": (
        document(mounts=[MOUNT | {"containerPath": "/./../"}]),
        "a mount over / hides",
    ),
    "over / by a name": (
        document(mounts=[MOUNT | {"containerPath": "/usr/.."}]),
        "a mount over / hides",
    ),
    "control character": (
        document(mounts=[MOUNT | {"options": ["ro", "a\tb"]}]),
        "options[1]: 'a\\tb' has a control character | remove it",
    ),
    "control character in a path": (
        document(deviceNodes=[{"path": "/dev/x\x7f"}]),
        "path: '/dev/x\\x7f' has a control character",
    ),
    "negative": (document(deviceNodes=[{"path": "/x", "minor": -1}]), "minor: -1 is out of range"),
    "closID": (document(intelRdt={"closID": "../x"}), "closID: invalid closID '../x' | write"),
    "interface": (
        document(netDevices=[{"hostInterfaceName": "", "name": "a"}]),
        "hostInterfaceName: is empty | name the network interface",
    ),
    "interface twice": (
        document(
            netDevices=[
                {"hostInterfaceName": "a", "name": "x"},
                {"hostInterfaceName": "b", "name": "x"},
            ]
        ),
        "netDevices[1].name: 'x' is named twice | name each network interface once",
    ),
    "relative": (document(mounts=[MOUNT | {"containerPath": "t"}]), "'t' is not an absolute path"),
    "no source": (document(mounts=[MOUNT | {"hostPath": ""}]), "hostPath: invalid mount, empty"),
    "NUL": (document(mounts=[MOUNT | {"hostPath": "/a\0b"}]), "contains a NUL character"),
    "option": (document(mounts=[MOUNT | {"options": [[]]}]), "options[0]: is array instead of"),
    "gid": (document(additionalGids=["5"]), "additionalGids[0]: is string instead of a whole"),
    "rdt": (document(intelRdt=[]), "intelRdt: is array instead of object"),
    "annotations": ({"annotations": {"a": []}}, ":14: annotations: is array instead of string"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("form", ["json", "yaml"])
def test_a_bad_document_is_one_line(name: str, form: str, tmp_path: Path) -> None:
    """A document that is not valid is one line with file, line, member, cause and fix."""
    changes, words = BAD[name]
    changed = {key: value for key, value in (document() | changes).items() if value is not None}
    if form == "json":
        line = refused(tmp_path / "x.json", json.dumps(changed, indent=1))
        assert words in line
    else:
        line = refused(tmp_path / "x.yaml", yaml.safe_dump(changed, sort_keys=False))
        assert words.partition(": ")[2] in line
    assert line.startswith(":")
    assert " | " in line


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(12)
)
#: File name and text, and what its line has.
BROKEN: dict[str, tuple[str, str | bytes, str]] = {
    "truncated json": ("x.json", '{"cdiVersion":\n', "not JSON: unexpected EOF | the document"),
    "json": ("x.json", '{\n"a" 1}', "line 2, column 5 is not JSON"),
    "twice": ("x.json", '{"kind": "a/b",\n"kind": "c/d"}', ':2: kind: duplicate member "kind"'),
    "empty": ("x.json", "", "the document: is null instead of object"),
    "list": ("x.json", "[]", ":1: the document: is array instead of object"),
    "huge": ("x.json", b"{" + b" " * LIMIT, "cannot be read: file too large | a specification has"),
    "deep": ("x.json", '{"a":' * 100 + "1" + "}" * 100, "not JSON: exceeded max depth"),
    "text": ("x.yaml", "hello", "the document: is string instead of object"),
    "yaml": ("x.yaml", "cdiVersion: 0.5.0\n  devices: [\n", "not YAML: mapping values are not"),
    "open": ("x.yaml", "a: 1\nb: [", "did not find expected node content in line 3"),
    "member twice": ("x.yaml", "a: 1\nb: 2\na: 3", "duplicate member 'a' in line 3, column 1"),
    "flow": ("x.yaml", "{cdiVersion: 0.5.0, kind: v/c}", ":1: devices: invalid spec, no devices"),
    "code": ("x.yaml", "a: !!python/name:os.system x", "os.system is not supported in line 1"),
    "binary": ("x.yaml", b"a: \x00\x01", "not YAML: "),
    "bomb": ("x.yaml", BOMB, "more than 80,000 values, as its aliases are followed in line 1"),
    "loop": ("x.yaml", "&a [*a]", "more than 64 levels, as its aliases are followed in line 1"),
    "long": ("x.yaml", f"a: &a {'x' * 200_000}\nb: [{'*a,' * 100}]", "more than 8 MiB, as its"),
    "depth": ("x.yaml", "[" * 100_000, "nested too deeply: more than 64 levels in line 1"),
    "many": ("x.yaml", "[" + "a," * 90_000 + "]", "it has more than 80,000 values in line 1"),
    "digits": ("x.yaml", "a: 1" + ":59" * 100_000, "a number has too many digits in line 1"),
    "documents": ("x.yaml", "a: 1\n---\nb: 2\n", "but found another document in line 2"),
    "infinite": ("x.yaml", "a: .inf", "'.inf' is not a number in line 1"),
    "merge": ("x.yaml", "a: {<<: 5}", "a merge key has no members in line 1"),
    "key": ("x.yaml", "{[a]: 1}", "the name of a member is not a string in line 1"),
    "switch": ("x.yaml", "a: !!bool 7", "'7' is not true or false in line 1"),
    "number": ("x.yaml", "a: !!int x", "'x' is not a value of its tag in line 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_text_is_one_line(name: str, tmp_path: Path) -> None:
    """A text that is no document, or one beyond the bounds, is one line that says where."""
    file, text, words = BROKEN[name]
    assert words in refused(tmp_path / file, text)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "cannot be read: no such file or directory | "),
        (lambda path: path.mkdir(), "cannot be read: is a directory | "),
        (os.mkfifo, "cannot be read: invalid argument | "),
    ],
)
def test_files_that_cannot_be_read(
    make: Callable[[Path], object], words: str, tmp_path: Path
) -> None:
    """What is not a file is one line, and a FIFO does not block."""
    path = tmp_path / "x.yaml"
    make(path)
    with pytest.raises(SpecificationError, match=words.replace("|", r"\|")):
        read_specification(str(path))


def test_a_file_of_others_can_be_refused(tmp_path: Path) -> None:
    """The caller's function for opening files decides whose files are used."""

    def refuse(path: str) -> int:
        raise Untrusted(path, "it belongs to user 7", "run chown -h root")

    (found,) = read_specifications(["/x.json"], refuse)
    assert str(found) == "/x.json: not used: /x.json: it belongs to user 7 | run chown -h root"


# ---- the child that reads YAML


def replace(monkeypatch: pytest.MonkeyPatch, load: Callable[[bytes], object]) -> None:
    """Have the child call ``load`` for all texts but the one with which it loads its modules."""
    before = yaml_text.load_yaml
    trial = yaml_child._TRIAL
    monkeypatch.setattr(
        yaml_text, "load_yaml", lambda raw, path: before(raw, path) if raw == trial else load(raw)
    )


def test_a_text_that_ends_the_child_is_the_only_one_that_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If a text ends the child, or makes it answer nonsense, the other texts are read all the
    same.
    """

    def load(raw: bytes) -> object:
        if raw == b"die":
            os.abort()
        return raw.decode()

    replace(monkeypatch, load)
    before, died, after = convert([b"a", b"die", b"b"])
    assert (before, after) == ("a", "b")
    assert isinstance(died, NotYaml)
    assert died.cause.startswith("the process that read it ended with signal ")


def test_a_text_that_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that is not read in time is given up, with those behind it."""
    replace(monkeypatch, lambda raw: time.sleep(60))
    assert [getattr(value, "cause", "") for value in convert([b"a", b"b"], timeout=0.1)] == [
        "not read within 0.1 s"
    ] * 2


def test_the_child_can_do_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it reads a text the child cannot open a file, start a process or become root, and its
    memory is limited.
    """

    def attempt(raw: bytes) -> object:
        done = []
        for action in (
            lambda: os.open("/etc/passwd", os.O_RDONLY),
            os.fork,
            lambda: os.execv("/bin/true", ["true"]),
            lambda: os.kill(1, 0),
            lambda: os.setuid(0),
        ):
            try:
                action()
            except OSError:
                continue
            done.append(str(action))
        try:
            bytearray(400 << 20)
        except MemoryError:
            return done
        return [*done, "memory"]

    replace(monkeypatch, attempt)
    (done,) = convert([b"x"])
    assert done == ([] if os.geteuid() == 0 else [name for name in done if "setuid" in name])  # type: ignore[attr-defined]


def test_nothing_of_the_child_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """No descriptor stays open, whether the child answers, dies or is late."""
    with nothing_stays_open():
        convert([b"a: 1", b"a: ["])
        replace(monkeypatch, lambda raw: time.sleep(60) if raw == b"late" else os.abort())
        convert([b"x"])
        convert([b"late"], timeout=0.1)


def test_without_pyyaml(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where PyYAML is missing, one line says how to get it; JSON is read without it."""
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert (
        refused(tmp_path / "x.yaml", "a: 1")
        == ": PyYAML is not installed | run ./dev install again, which brings it, or apt-get"
        " install python3-yaml, or write the specification as JSON"
    )
    assert read(tmp_path / "x.json", json.dumps(document())).kind == "vendor.com/gpu"


def test_without_prctl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without python-prctl no child can be confined: no YAML is read, and a refusal says why."""

    def missing() -> None:
        raise Refusal("permission", "python-prctl is not installed")

    monkeypatch.setattr(privileges, "check_installed", missing)
    with pytest.raises(Refusal, match="python-prctl is not installed"):
        read(tmp_path / "x.yaml", "a: 1")


@pytest.mark.skipif(sys.flags.optimize > 0, reason="asserts are needed")
def test_what_was_converted_is_kept(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A text is converted once; a changed one is converted again, and an error is not kept."""
    first = read(tmp_path / "x.yaml", yaml.safe_dump(document()))
    refused(tmp_path / "bad.yaml", "a: [")
    assert len(list(cache.iterdir())) == 1
    converted: list[bytes] = []

    def convert(texts: list[bytes]) -> list[object]:
        converted.extend(texts)
        return [document(env=["C=d"]) for _ in texts]

    monkeypatch.setattr(yaml_child, "convert", convert)
    assert read(tmp_path / "other.yaml", yaml.safe_dump(document())) == first
    assert converted == []
    assert read(tmp_path / "x.yaml", "changed").devices[0].edits.env == ("C=d",)
    assert converted == [b"changed"]


def test_a_fraction_is_not_kept(cache: Path) -> None:
    """A value that the kept document cannot have is converted each time."""
    assert kept_yaml.convert([b"a: 1.5"]) == [{"a": 1.5}]
    assert not cache.exists() or not list(cache.iterdir())


# ---- directories


@pytest.fixture
def directories(tmp_path: Path) -> list[str]:
    """Two directories for specifications; the second has priority."""
    for name in ("etc", "run"):
        (tmp_path / name).mkdir()
    return [str(tmp_path / "etc"), str(tmp_path / "run")]


def place(path: str, *names: str, kind: str = "v/c") -> str:
    """Write a specification with devices whose variable names the file."""
    devices = [{"name": name, "containerEdits": {"env": [f"FROM={path}"]}} for name in names]
    text = json.dumps({"cdiVersion": "0.5.0", "kind": kind, "devices": devices})
    Path(path).write_text(text)
    return path


def origins(registry: Registry) -> dict[str, str]:
    """Return the file of each device."""
    for name, found in registry.devices.items():
        assert found.device.edits.env == (f"FROM={found.file.path}",), name
    return {name: found.file.path for name, found in registry.devices.items()}


def test_the_later_directory_wins(directories: list[str]) -> None:
    """A device of a later directory hides that of an earlier one, which keeps its others; files
    with other names are not read.
    """
    etc, run = directories
    low = place(f"{etc}/a.json", "0", "1")
    high = place(f"{run}/b.yaml", "1", "2")
    other = place(f"{run}/c.json", "1", kind="other/c")
    place(f"{run}/d.yml", "5")
    place(f"{run}/e.json.new", "6")
    registry = read_registry([*directories, f"{etc}/missing"])
    expected = {"v/c=0": low, "v/c=1": high, "v/c=2": high, "other/c=1": other}
    assert origins(registry) == expected
    assert registry.hidden == (("v/c=1", low),)
    assert [file.path for file in registry.files] == [low, high, other]
    assert (registry.conflicts, registry.errors) == ({}, ())


def test_a_device_of_two_files_of_a_directory_is_nobodys(directories: list[str]) -> None:
    """Two files of one directory that have one device are a conflict, as for the reference, even
    if a later directory has the device, too.
    """
    etc, run = directories
    files = tuple(place(f"{etc}/{name}.json", "0", name) for name in "abc")
    later = place(f"{run}/d.json", "0")
    registry = read_registry(directories)
    assert registry.conflicts == {"v/c=0": files}
    assert sorted(origins(registry)) == ["v/c=a", "v/c=b", "v/c=c"]
    assert [file.path for file in registry.files] == [*files, later]


def test_bad_files_take_nothing_from_the_others(directories: list[str]) -> None:
    """Each file that cannot be used is an error; the devices of the others are there."""
    etc, run = directories
    good = place(f"{etc}/good.json", "0")
    Path(f"{etc}/bad.json").write_text("{")
    Path(f"{run}/bad.yaml").write_text("a: [")
    Path(f"{run}/good.yaml").write_text(yaml.safe_dump(document()))
    registry = read_registry([*directories, good])
    assert sorted(registry.devices) == ["v/c=0", "vendor.com/gpu=0"]
    assert [error.path for error in registry.errors] == [good, f"{etc}/bad.json", f"{run}/bad.yaml"]


def test_a_directory_of_many_files_is_bounded(
    directories: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a directory a limited number of files is read, and an error says so."""
    monkeypatch.setattr("nvgraft.cdi.registry._FILES", 2)
    for name in "cab":
        place(f"{directories[0]}/{name}.json", name)
    registry = read_registry(directories)
    assert sorted(registry.devices) == ["v/c=a", "v/c=b"]
    assert registry.errors[0].cause == "it has 3 specifications, of which the first 2 are read"
