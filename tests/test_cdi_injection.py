"""CDI devices by name: which specifications they come from, and what the host adds to them."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from nvgraft.base.errors import Refusal
from nvgraft.cdi.edits import Generated
from nvgraft.cdi.injection import inject, resolve
from nvgraft.cdi.registry import read_registry

Document = dict[str, Any]

HOST = {
    "/dev/nvidia0": (stat.S_IFCHR | 0o660, 195, 0),
    "/dev/sda": (stat.S_IFBLK | 0o600, 8, 0),
    "/dev/fifo": (stat.S_IFIFO | 0o644, 0, 0),
    "/dev/file": (stat.S_IFREG | 0o644, 0, 0),
}


def lstat(path: str) -> os.stat_result:
    if path not in HOST:
        raise FileNotFoundError(2, "No such file or directory", path)
    mode, major, minor = HOST[path]
    return os.stat_result([mode, 0, 0, 1, 0, 0, 0, 0, 0, 0], {"st_rdev": os.makedev(major, minor)})


def spec(*devices: Document, kind: str = "nvidia.com/gpu", **common: Any) -> Document:
    return {
        "cdiVersion": "0.7.0",
        "kind": kind,
        "devices": list(devices),
        "containerEdits": common,
    }


def device(name: str, **edits: Any) -> Document:
    return {"name": name, "containerEdits": edits or {"env": [f"FROM={name}"]}}


def put(path: Path, document: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(document if isinstance(document, str) else json.dumps(document))


def injected(path: Path, *names: str) -> Generated:
    directories = [str(path / name) for name in ("etc", "run")]
    return resolve(read_registry(directories), names, lstat)


def variables(generated: Generated) -> list[str]:
    return [variable for part in generated.edits for variable in part.env]


def refusal(path: Path, *names: str) -> str:
    with pytest.raises(Refusal) as error:
        injected(path, *names)
    return error.value.line()


def test_common_edits_come_once_and_first(tmp_path: Path) -> None:
    """The edits that a file's devices share stand once, before those of its first device; a device
    that is asked for twice counts once.
    """
    devices = device("0"), device("1"), device("2", env=["TWO=2"])
    put(tmp_path / "etc/a.json", spec(*devices, env=["SHARED=a"]))
    put(tmp_path / "etc/b.json", spec(device("0", env=["B=0"]), kind="b.com/x", env=["OTHER=b"]))
    names = ["nvidia.com/gpu=1", "b.com/x=0", "nvidia.com/gpu=2", "nvidia.com/gpu=1"]
    made = injected(tmp_path, *names)
    assert variables(made) == ["SHARED=a", "FROM=1", "OTHER=b", "B=0", "TWO=2"]
    assert len(made.edits) == 5, "a file's shared edits stand more than once"


def test_the_last_value_of_a_variable_counts(tmp_path: Path) -> None:
    """Of a variable that several devices set there is one entry: in the first one's place, with the
    last one's value.
    """
    put(tmp_path / "etc/a.json", spec(device("0"), device("1"), env=["A=1", "FROM=all"]))
    made = injected(tmp_path, "nvidia.com/gpu=0", "nvidia.com/gpu=1")
    assert variables(made) == ["A=1", "FROM=1"]


def test_the_later_directory_wins(tmp_path: Path) -> None:
    """A device of a later directory replaces one of an earlier, which keeps its others."""
    put(tmp_path / "etc/a.json", spec(device("0"), device("1", env=["OLD=1"]), env=["SHARED=old"]))
    put(tmp_path / "run/z.json", spec(device("0", env=["NEW=0"]), env=["SHARED=new"]))
    made = variables(injected(tmp_path, "nvidia.com/gpu=0"))
    assert made == ["SHARED=new", "NEW=0"]
    assert variables(injected(tmp_path, "nvidia.com/gpu=1")) == ["SHARED=old", "OLD=1"]


def test_a_broken_file_takes_nothing_from_the_others(tmp_path: Path) -> None:
    """A file that cannot be used is a warning if the devices are elsewhere, and named if not."""
    put(tmp_path / "etc/a.json", spec(device("0")))
    put(tmp_path / "etc/bad.json", '{"cdiVersion": "0.5.0",')
    made = injected(tmp_path, "nvidia.com/gpu=0")
    assert variables(made) == ["FROM=0"]
    assert [(level, f"{tmp_path}/etc/bad.json" in line) for level, line in made.log] == [
        ("warning", True)
    ]
    line = refusal(tmp_path, "nvidia.com/gpu=7")
    assert line.startswith(
        "failed to inject CDI devices: unresolvable CDI devices nvidia.com/gpu=7 | there is no "
    )
    assert "request one of nvidia.com/gpu=0" in line
    assert f"{tmp_path}/etc/bad.json" in line


def test_a_device_of_two_files_is_nobodys(tmp_path: Path) -> None:
    """A device that two files of one directory have is refused with both files."""
    put(tmp_path / "etc/a.json", spec(device("0")))
    put(tmp_path / "etc/b.json", spec(device("0")))
    line = refusal(tmp_path, "nvidia.com/gpu=0")
    assert "unresolvable CDI devices nvidia.com/gpu=0 | " in line
    assert f"{tmp_path}/etc/a.json, {tmp_path}/etc/b.json all have nvidia.com/gpu=0" in line


def test_every_name_that_does_not_exist_is_listed(tmp_path: Path) -> None:
    """Several unknown devices are in one line."""
    put(tmp_path / "etc/a.json", spec(device("0")))
    line = refusal(tmp_path, "a.com/b=1", "nvidia.com/gpu=0", "a.com/b=2")
    assert "unresolvable CDI devices a.com/b=1, a.com/b=2 | " in line


def test_any_number_of_unknown_names_is_one_line(tmp_path: Path) -> None:
    """Of many unknown devices the first ones are explained, and the line is bounded."""
    put(tmp_path / "etc/a.json", spec(*(device(f"n{number}") for number in range(500))))
    line = refusal(tmp_path, *(f"nvidia.com/gpu=x{number}" for number in range(2000)))
    assert len(line) <= 4096
    with pytest.raises(Refusal) as error:
        injected(tmp_path, *(f"nvidia.com/gpu=x{number}" for number in range(2000)))
    assert error.value.hint.count("there is no") == 4


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ({"path": "/dev/nvidia0"}, ("c", 195, 0, 0o660)),
        ({"path": "/dev/x", "hostPath": "/dev/nvidia0"}, ("c", 195, 0, 0o660)),
        ({"path": "/dev/nvidia0", "major": 7, "minor": 1}, ("c", 7, 1, 0o660)),
        ({"path": "/dev/nvidia0", "fileMode": 0o600}, ("c", 195, 0, 0o600)),
        ({"path": "/dev/nvidia0", "type": "u"}, ("u", 195, 0, 0o660)),
        ({"path": "/dev/gone", "type": "c", "major": 7, "minor": 1}, ("c", 7, 1, None)),
        ({"path": "/dev/file", "type": "c", "major": 7}, ("c", 7, 0, 0o644)),
        ({"path": "/dev/sda"}, ("b", 8, 0, 0o600)),
        ({"path": "/dev/fifo"}, ("p", 0, 0, 0o644)),
        ({"path": "/dev/gone", "type": "p"}, ("p", 0, 0, None)),
    ],
    ids=str,
)
def test_what_a_node_lacks_comes_from_the_host(
    tmp_path: Path, written: Document, expected: tuple[str, int, int, int | None]
) -> None:
    """Type, numbers and mode come from the host's node where the specification has none; a node
    with type and number need not exist.
    """
    put(tmp_path / "etc/a.json", spec(device("0", deviceNodes=[written])))
    (node,) = injected(tmp_path, "nvidia.com/gpu=0").edits[-1].nodes
    assert (node.type, node.major, node.minor, node.mode) == expected


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"path": "/dev/gone"}, 'failed to stat CDI host device "/dev/gone": no such file'),
        ({"path": "/dev/gone", "type": "c"}, "failed to stat CDI host device"),
        ({"path": "/dev/file"}, 'failed to stat CDI host device "/dev/file": not a device node'),
        (
            {"path": "/dev/nvidia0", "type": "b"},
            'CDI device ("/dev/nvidia0", "/dev/nvidia0"), host type mismatch (b, c)',
        ),
    ],
    ids=str,
)
def test_a_node_that_is_not_there_is_refused(tmp_path: Path, written: Document, said: str) -> None:
    """A node that the host lacks, or has as something else, is refused in one line."""
    put(tmp_path / "etc/a.json", spec(device("0", deviceNodes=[written])))
    line = refusal(tmp_path, "nvidia.com/gpu=0")
    assert line.startswith(f"failed to inject CDI devices: failed to inject devices: {said}")
    assert f" | {tmp_path}/etc/a.json: " in line
    assert "\n" not in line


def test_this_machine_is_read(tmp_path: Path) -> None:
    """inject() reads the directories and the nodes of this machine."""
    put(tmp_path / "a.json", spec(device("0", deviceNodes=[{"path": "/dev/null"}])))
    (_, part) = inject([str(tmp_path), str(tmp_path / "none")], ["nvidia.com/gpu=0"]).edits
    (node,) = part.nodes
    assert (node.type, node.major, node.minor) == ("c", 1, 3)


@pytest.mark.parametrize("writable", ["file", "directory"])
def test_what_others_can_write_is_not_used(tmp_path: Path, writable: str) -> None:
    """inject() takes no device of a specification that users other than root can write or replace;
    the refusal names the path, and the fix.
    """
    directory, file = tmp_path / "etc", tmp_path / "etc/a.json"
    put(file, spec(device("0")))
    (file if writable == "file" else directory).chmod(0o777)
    with pytest.raises(Refusal) as error:
        inject([str(directory)], ["nvidia.com/gpu=0"])
    line = error.value.line()
    assert line.startswith(
        "failed to inject CDI devices: unresolvable CDI devices nvidia.com/gpu=0 |"
    )
    place = file if writable == "file" else directory
    assert f"{file}: not used: {place}: group or others may write it" in line
    assert f"chmod go-w {place}" in line


def test_a_link_in_a_linked_directory_is_followed(tmp_path: Path) -> None:
    """A specification in /var/run/cdi, where /var/run is a link, may be a link itself."""
    put(tmp_path / "shared/a.json", spec(device("0")))
    put(tmp_path / "run/none.txt", "")
    (tmp_path / "run/a.json").symlink_to("../shared/a.json")
    (tmp_path / "linked").symlink_to("run")
    made = inject([str(tmp_path / "linked")], ["nvidia.com/gpu=0"])
    assert variables(made) == ["FROM=0"]
