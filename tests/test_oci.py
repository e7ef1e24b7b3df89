"""oci: the state and config.json, with limits, and the reference's phrases in the reference's
order.
"""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ParamSpec

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvgraft.base import files
from nvgraft.base.errors import Refusal
from nvgraft.base.files import readable
from nvgraft.request.oci import (
    CONFIG_LIMIT,
    ContainerConfig,
    State,
    parse_config,
    parse_state,
    path_problem,
    read_config,
    read_state,
)

P = ParamSpec("P")

CAPABILITIES = "could not decode Process.Capabilities in OCI spec: json: "


def spec(**members: object) -> dict[str, object]:
    return {"ociVersion": "1.0.2", "process": {"env": []}, "root": {"path": "rootfs"}, **members}


def parsed(**members: object) -> ContainerConfig:
    return parse_config(json.dumps(spec(**members)).encode())


def refusal(function: Callable[P, object], *arguments: P.args, **named: P.kwargs) -> str:
    with pytest.raises(Refusal) as error:
        function(*arguments, **named)
    assert error.value.hint, "every refusal has a cause and a fix"
    assert error.value.exit_code == 1
    return error.value.text


def test_states_of_all_versions_of_runc_are_read() -> None:
    """The bundle is "bundle" or, as runc wrote it before Docker 17.06, "bundlePath"; a missing pid
    is 0.
    """
    assert parse_state(b'{"ociVersion":"1.0.2","id":"x","pid":7,"bundle":"/b"}') == State(
        7, "/b", "x"
    )
    assert parse_state(b'{"pid":7,"bundlePath":"/old"}') == State(7, "/old")
    assert parse_state(b'{"pid":7,"bundle":"/b","bundlePath":"/old"}') == State(7, "/b")
    assert parse_state(b'{"bundle":"/b"} and more') == State(0, "/b")
    assert parse_state(b"null") == State(0, "")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "EOF"),
        ('{"pid": 1', "unexpected EOF"),
        ("[]", "json: cannot unmarshal array into Go value of type main.HookState"),
        (
            '{"pid":"1"}',
            "json: cannot unmarshal string into Go struct field HookState.pid of type int",
        ),
        (
            '{"pid":true}',
            "json: cannot unmarshal bool into Go struct field HookState.pid of type int",
        ),
        (
            '{"pid":1.5}',
            "json: cannot unmarshal number 1.5 into Go struct field HookState.pid of type int",
        ),
        (
            '{"pid":9223372036854775808}',
            (
                "json: cannot unmarshal number 9223372036854775808 into Go struct field"
                " HookState.pid of type int"
            ),
        ),
        (
            '{"bundle":[]}',
            "json: cannot unmarshal array into Go struct field HookState.bundle of type string",
        ),
        ('{"pid":1,"pid":2}', 'duplicate member "pid"'),
    ],
)
def test_bad_state_is_refused(text: str, problem: str) -> None:
    """A state that is not JSON, or has a member of the wrong type, is refused in the reference's
    words.
    """
    assert refusal(parse_state, text.encode()) == f"could not decode container state: {problem}"


def pipe_with(data: bytes) -> int:
    reader, writer = os.pipe()
    os.write(writer, data)
    os.close(writer)
    return reader


def test_state_is_read_from_a_pipe() -> None:
    """The state is read from a pipe up to its end."""
    fd = pipe_with(b'{"pid":3,"bundle":"/b"}')
    assert read_state(fd) == State(3, "/b")
    os.close(fd)


class Sender:
    """The other end of stdin: it sends one part each time it is waited for, and never closes the
    pipe.
    """

    def __init__(self, *parts: bytes) -> None:
        self.parts = list(parts)
        self.reader, self.writer = os.pipe()
        #: Seconds that were waited without result.
        self.waited = 0.0

    def readable(self, fd: int, timeout: float) -> bool:
        """Replace files.readable without using a clock."""
        if timeout and self.parts:
            os.write(self.writer, self.parts.pop(0))
        ready = readable(fd, 0)
        self.waited += 0 if ready else timeout
        assert self.waited < 60, "the wait does not end"
        return ready


@pytest.fixture
def sender(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Sender]]:
    made: list[Sender] = []

    def make(*parts: bytes) -> Sender:
        made.append(Sender(*parts))
        monkeypatch.setattr(files, "readable", made[-1].readable)
        return made[-1]

    yield make
    for one in made:
        os.close(one.reader)
        os.close(one.writer)


@pytest.mark.parametrize(
    "parts",
    [
        [b'{"pid":3,"bundle":"/b"}'],
        [b'{"pid":3,"a":{}', b',"bundle":"/b"}'],
        [b'{"pid":3,"bundle":"/b"', b"}\n"],
    ],
)
def test_a_complete_state_ends_the_wait(sender: Callable[..., Sender], parts: list[bytes]) -> None:
    """Reading ends with one complete document, as in the reference, though the pipe stays open."""
    stdin = sender(*parts)
    assert read_state(stdin.reader) == State(3, "/b")
    assert stdin.waited == 0


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"", "nothing was written to it"),
        (b'{"pid":3', "stdin stalled after 8 bytes"),
        (b'{"pid":{}', "stdin stalled after 9 bytes"),
    ],
)
def test_the_wait_for_an_incomplete_state_is_limited(
    sender: Callable[..., Sender], data: bytes, cause: str
) -> None:
    """The wait for an incomplete state ends after 0.7 s, and the message says how much has
    arrived.
    """
    stdin = sender(*[data] if data else [])
    with pytest.raises(Refusal) as caught:
        read_state(stdin.reader)
    assert stdin.waited == pytest.approx(0.7)
    assert caught.value.text == "could not decode container state: read /dev/stdin: i/o timeout"
    assert cause in caught.value.hint


def test_unreadable_or_oversized_stdin_is_refused(tmp_path: Path) -> None:
    """A closed stdin, a directory and more than 1 MiB are each refused in one line."""
    fd = os.open(tmp_path, os.O_RDONLY)
    assert (
        refusal(read_state, fd)
        == "could not decode container state: read /dev/stdin: is a directory"
    )
    os.close(fd)
    assert (
        refusal(read_state, fd)
        == "could not decode container state: read /dev/stdin: bad file descriptor"
    )
    (tmp_path / "big").write_bytes(b" " * ((1 << 20) + 1))
    fd = os.open(tmp_path / "big", os.O_RDONLY)
    assert (
        refusal(read_state, fd)
        == "could not decode container state: read /dev/stdin: file too large"
    )
    os.close(fd)


def test_config_is_read_from_the_bundle(tmp_path: Path) -> None:
    """config.json is read from an absolute bundle, or from one relative to a directory
    descriptor.
    """
    (tmp_path / "config.json").write_bytes(b"{}")
    assert read_config(f"{tmp_path}/") == b"{}"
    fd = os.open(tmp_path, os.O_PATH)
    assert read_config("", fd) == b"{}"
    os.close(fd)


def test_an_unreadable_config_is_refused(tmp_path: Path) -> None:
    """A missing file, a directory, a FIFO, a huge file and an impossible path are each refused with
    path and cause.
    """
    path = f"{tmp_path}/config.json"
    assert (
        refusal(read_config, str(tmp_path))
        == f"could not open OCI spec: open {path}: no such file or directory"
    )
    (tmp_path / "file").touch()
    assert (
        refusal(read_config, f"{tmp_path}/file")
        == f"could not open OCI spec: open {tmp_path}/file/config.json: not a directory"
    )
    os.mkdir(path)
    assert (
        refusal(read_config, str(tmp_path))
        == f"could not decode OCI spec: read {path}: is a directory"
    )
    os.rmdir(path)
    os.mkfifo(path)
    assert (
        refusal(read_config, str(tmp_path))
        == f"could not decode OCI spec: read {path}: invalid argument"
    )
    os.unlink(path)
    with open(path, "wb") as file:
        file.truncate(CONFIG_LIMIT + 1)
    assert (
        refusal(read_config, str(tmp_path))
        == f"could not decode OCI spec: read {path}: file too large"
    )
    assert (
        refusal(read_config, "/a\0b")
        == "could not open OCI spec: open /a\0b/config.json: invalid argument"
    )


def test_the_hooks_members_are_read() -> None:
    """The members that the hook reads are decoded; others may have any type."""
    config = parsed(
        process={
            "env": ["A=1", "B=x=y", "A=2", "=z", "E="],
            "capabilities": {"bounding": ["CAP_CHOWN"], "effective": 5},
        },
        root={"path": "/r", "readonly": True},
        mounts=[
            {"destination": "/d", "source": "/s", "options": 7},
            None,
            {"destination": "/only"},
        ],
        linux=7,
    )
    assert config.env == {"A": "2", "B": "x=y", "": "z", "E": ""}
    assert config.bounding == ("CAP_CHOWN",)
    assert config.mounts == (("/s", "/d"), ("", ""), ("", "/only"))
    assert (config.root_path, config.root_readonly, config.oci_version) == ("/r", True, "1.0.2")


def test_null_counts_as_absent() -> None:
    """null leaves a member empty, as Go decodes it."""
    config = parsed(
        process={"env": None, "capabilities": None}, root={"path": None}, mounts=None, ociVersion=""
    )
    assert (config.env, config.bounding, config.mounts, config.root_path) == ({}, (), (), "")


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ({"ociVersion": None}, "Version is empty in OCI spec"),
        ({"ociVersion": None, "process": None}, "Version is empty in OCI spec"),
        ({"process": None, "root": None}, "Process is empty in OCI spec"),
        ({"root": None}, "Root is empty in OCI spec"),
        ({"root": None, "process": {"env": ["NOEQUALS"]}}, "Root is empty in OCI spec"),
        ({"process": {"env": ["A=1", "NOEQUALS"]}}, "invalid environment variable: NOEQUALS"),
        ({"process": {"env": [None]}}, "invalid environment variable: "),
        (
            {"process": {"env": ["NOEQUALS"], "capabilities": 3}},
            CAPABILITIES + "cannot unmarshal number into Go value of type specs.LinuxCapabilities",
        ),
        (
            {"process": {"capabilities": {"bounding": "x"}}},
            CAPABILITIES
            + "cannot unmarshal string into Go struct field LinuxCapabilities.bounding of"
            " type []string",
        ),
        (
            {"process": {"env": "A=1"}},
            (
                "could not decode OCI spec: json: cannot unmarshal string into Go struct field"
                " Process.process.env of type []string"
            ),
        ),
        (
            {"process": {"env": [1]}, "root": None},
            (
                "could not decode OCI spec: json: cannot unmarshal number into Go struct field"
                " Process.process.env of type string"
            ),
        ),
        (
            {"process": []},
            (
                "could not decode OCI spec: json: cannot unmarshal array into Go struct field"
                " Spec.process of type main.Process"
            ),
        ),
        (
            {"root": "/"},
            (
                "could not decode OCI spec: json: cannot unmarshal string into Go struct field"
                " Spec.root of type main.Root"
            ),
        ),
        (
            {"root": {"path": 1}},
            (
                "could not decode OCI spec: json: cannot unmarshal number into Go struct field"
                " Root.root.path of type string"
            ),
        ),
        (
            {"ociVersion": 1},
            (
                "could not decode OCI spec: json: cannot unmarshal number into Go struct field"
                " Spec.ociVersion of type string"
            ),
        ),
        (
            {"mounts": {}},
            (
                "could not decode OCI spec: json: cannot unmarshal object into Go struct field"
                " Spec.mounts of type []specs.Mount"
            ),
        ),
        (
            {"mounts": [1]},
            (
                "could not decode OCI spec: json: cannot unmarshal number into Go struct field"
                " Spec.mounts of type specs.Mount"
            ),
        ),
    ],
)
def test_bad_config_is_refused_in_the_references_order(
    members: dict[str, object], text: str
) -> None:
    """The first fault in the reference's order is named: types, missing members, capabilities,
    environment.
    """
    assert refusal(parse_config, json.dumps(spec(**members)).encode()) == text


def test_an_empty_document_is_refused() -> None:
    """An empty document, null, and a document that is not an object are refused."""
    assert refusal(parse_config, b"{}") == "Version is empty in OCI spec"
    assert refusal(parse_config, b"null") == "Version is empty in OCI spec"
    assert (
        refusal(parse_config, b"[]")
        == "could not decode OCI spec: json: cannot unmarshal array into Go value of type main.Spec"
    )


def test_empty_members_are_present() -> None:
    """An empty process or root is present; only an absent one or null is missing."""
    config = parse_config(b'{"ociVersion":"","process":{},"root":{}}')
    assert (config.env, config.bounding, config.root_path, config.root_readonly) == (
        {},
        (),
        "",
        False,
    )


def test_duplicates_of_members_that_are_read_are_refused() -> None:
    """process.env given twice is refused, because two readers could see different containers."""
    text = b'{"ociVersion":"1","process":{"env":[],"Env":["A=1"]},"root":{}}'
    assert refusal(parse_config, text) == 'could not decode OCI spec: duplicate member "env"'


@pytest.mark.parametrize(
    ("version", "flat"),
    [
        ("1.0.0-rc1", True),
        ("1.0.0-rc4", True),
        ("1.0.0-rc4-dev", True),
        ("1.0.0-rc1.7+build.5", True),
        ("1.0.0-rc10", True),
        ("1.0.0-rc5", False),
        ("1.0.0-rc5.1", False),
        ("1.0.0-rc", False),
        ("1.0.0-1", False),
        ("1.0.0-rc2.01", False),
        ("1.0.0-rc2.", False),
        ("1.0.0-rc2+", False),
        ("1.0.0", False),
        ("0.9.0", False),
        ("v1.0.0-rc1", False),
        ("abc", False),
        ("", False),
    ],
)
def test_early_versions_have_flat_capabilities(version: str, flat: bool) -> None:
    """Capabilities are a list in [1.0.0-rc1, 1.0.0-rc5), and an object with "bounding" in every
    other version, valid or not.
    """
    forms = (["CAP_SYS_ADMIN"], {"bounding": ["CAP_SYS_ADMIN"]})
    accepted, refused = forms if flat else forms[::-1]
    assert parsed(ociVersion=version, process={"capabilities": accepted}).bounding == (
        "CAP_SYS_ADMIN",
    )
    phrase = CAPABILITIES + "cannot unmarshal "
    phrase += (
        "object into Go value of type []string"
        if flat
        else "array into Go value of type specs.LinuxCapabilities"
    )
    assert (
        refusal(
            parse_config,
            json.dumps(spec(ociVersion=version, process={"capabilities": refused})).encode(),
        )
        == phrase
    )


def test_values_of_unread_variables_are_not_decoded() -> None:
    """An undecodable value of a variable that the hook does not read does not stop a container."""
    text = b'{"ociVersion":"1","process":{"env":["A=\xff","B=\\ud800"]},"root":{}}'
    assert parse_config(text).env == {"A": "\udcff", "B": "\ud800"}


def test_paths_have_limits() -> None:
    """A usable path is text without control characters, of at most 4096 bytes and 255 in a
    component.
    """
    for path in ("", "/", "/a b/ü", "x" * 255, "/" + "é" * 127 + "/b"):
        assert path_problem(path) == ""
    for path in ("a\nb", "a\0", "\x7f", "\x85", "\udc80", "x" * 256, "é" * 128, "a/" * 2049):
        assert path_problem(path)


documents = st.recursive(
    st.none() | st.booleans() | st.integers(0, 5) | st.sampled_from(["", "A", "A=1", "1.0.0-rc1"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "ociVersion",
                    "process",
                    "root",
                    "path",
                    "env",
                    "capabilities",
                    "bounding",
                    "mounts",
                    "source",
                    "pid",
                    "bundle",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=15,
)


@given(documents)
def test_any_document_gives_a_value_or_a_refusal(document: object) -> None:
    """Any JSON document gives a value or a refusal of one line."""
    data = json.dumps(document).encode()
    for parse in (parse_state, parse_config):
        try:
            parse(data)
        except Refusal as error:
            assert "\n" not in error.line()


@given(st.binary(max_size=80))
def test_any_bytes_give_a_value_or_a_refusal(data: bytes) -> None:
    """Any bytes give a value or a refusal of one line."""
    for parse in (parse_state, parse_config):
        try:
            parse(data)
        except Refusal as error:
            assert "\n" not in error.line()
