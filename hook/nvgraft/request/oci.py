"""Decode the two OCI documents that a hook is given: the state on stdin and the bundle's
config.json.

Phrases and order of the errors are those of the reference hook (reference behaviour 3.2, 3.4).
Members that the hook does not need are not checked. ``nvgraft.request.request`` decides what the
container asks for.
"""

from __future__ import annotations

import errno

from nvgraft.base import files, paths
from nvgraft.base._os import os
from nvgraft.base.errors import Refusal
from nvgraft.base.jsontext import JsonError, Repeated, kind, loads, members
from nvgraft.base.values import Value

STATE_LIMIT = 1 << 20
CONFIG_LIMIT = 8 << 20
#: How long the hook waits for the next part of the state: a number of pauses of so many seconds. It
#: counts pauses, not the time of a clock, because on a machine that stalls the hook stalls together
#: with the runtime.
_STATE_PAUSE, _STATE_WAITS = 0.05, 14
PATH_LIMIT = 4096
NAME_LIMIT = 255

_STATE = "could not decode container state: "
_OPEN = "could not open OCI spec: "
_CONFIG = "could not decode OCI spec: "
_CAPABILITIES = "could not decode Process.Capabilities in OCI spec: "

_STATE_FIX = "let an OCI runtime start the hook: it writes the container's state to stdin"
_CONFIG_FIX = "let the engine write the bundle's config.json again"

_STATE_MEMBERS = {"id": "id", "pid": "pid", "bundle": "bundle", "bundlepath": "bundlePath"}
_SPEC_MEMBERS = {
    "ociversion": "ociVersion",
    "process": "process",
    "root": "root",
    "mounts": "mounts",
}
_PROCESS_MEMBERS = {"env": "env", "capabilities": "capabilities"}
_CAPABILITY_MEMBERS = {"bounding": "bounding"}
_ROOT_MEMBERS = {"path": "path", "readonly": "readonly"}
_MOUNT_MEMBERS = {"destination": "destination", "source": "source"}


class State(Value):
    """The part of the OCI state that the hook reads. ``pid`` is 0 and ``bundle`` is empty if the
    state has none.

    ``id`` is only a name for people.
    """

    def __init__(self, pid: int, bundle: str, id: str = "") -> None:
        self.pid = pid
        self.bundle = bundle
        self.id = id


class ContainerConfig(Value):
    """The part of config.json that the hook reads.

    ``env`` maps names to values as they are in the document; ``nvgraft.request.request`` checks
    them. ``mounts`` are (source, destination) pairs. ``root_path`` may be relative.
    """

    def __init__(
        self,
        env: dict[str, str],
        bounding: tuple[str, ...] = (),
        mounts: tuple[tuple[str, str], ...] = (),
        root_path: str = "rootfs",
        root_readonly: bool = False,
        oci_version: str = "",
    ) -> None:
        self.env = env
        self.bounding = bounding
        self.mounts = mounts
        self.root_path = root_path
        self.root_readonly = root_readonly
        self.oci_version = oci_version


def path_problem(path: str) -> str:
    """Return why ``path`` is not accepted as a path (SECURITY R10), or an empty string."""
    if not path.isprintable() and any(
        ord(char) < 32 or 127 <= ord(char) < 160 or "\ud800" <= char <= "\udfff" for char in path
    ):
        return "it contains a control character or bytes that are not UTF-8"
    size = len(path.encode())
    if size > PATH_LIMIT:
        return f"it has {size} bytes, more than {PATH_LIMIT}"
    if size > NAME_LIMIT and any(len(part.encode()) > NAME_LIMIT for part in path.split("/")):
        return f"a component has more than {NAME_LIMIT} bytes"
    return ""


def read_state(fd: int) -> State:
    """Read the OCI state from ``fd``, to its end or until it is a whole document: some callers
    never close the pipe.

    :raises Refusal: "could not decode container state: ..."
    """
    data = b""
    waits = 0
    while True:
        try:
            if files.readable(fd, _STATE_PAUSE):
                chunk = os.read(fd, 1 << 16)
                if not chunk:
                    return parse_state(data)
                data += chunk
                if len(data) > STATE_LIMIT:
                    raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
            else:
                waits += 1
        except OSError as error:
            hint = f"it has more than {STATE_LIMIT} bytes; " if error.errno == errno.EFBIG else ""
            raise Refusal(
                "", f"{_STATE}read /dev/stdin: {files.reason(error)}", hint + _STATE_FIX
            ) from None
        if data.endswith((b"}", b"}\n")) and not files.readable(fd, 0):
            try:
                return parse_state(data)
            except Refusal:
                pass  # the brace closes an inner object
        if waits == _STATE_WAITS:
            cause = (
                f"stdin stalled after {len(data)} bytes; "
                if data
                else "nothing was written to it; "
            )
            raise Refusal("", f"{_STATE}read /dev/stdin: i/o timeout", cause + _STATE_FIX)


def parse_state(data: bytes) -> State:
    """Decode an OCI state. runc wrote ``bundlePath`` instead of ``bundle`` before Docker 17.06.

    :raises Refusal: "could not decode container state: ..."
    """
    try:
        value = loads(data, STATE_LIMIT, one_value=True)
        state = members(as_object(value, "value of type main.HookState"), _STATE_MEMBERS)
        pid = state.get("pid")
        if pid is None:
            pid = 0
        elif type(pid) is not int or not -(1 << 63) <= pid < 1 << 63:
            described = f"number {pid}" if kind(pid) == "number" else kind(pid)
            raise _mismatch(described, "struct field HookState.pid of type int")
        bundle = as_string(state.get("bundle"), "struct field HookState.bundle of type string")
        bundle_path = as_string(
            state.get("bundlePath"), "struct field HookState.bundlePath of type string"
        )
    except JsonError as error:
        raise Refusal("", _STATE + error.text, f"{error.hint}; {_STATE_FIX}") from None
    name = state.get("id")
    return State(pid, bundle or bundle_path, name if isinstance(name, str) else "")


def read_config(bundle: str, dir_fd: int | None = None) -> bytes:
    """Return the bytes of the bundle's config.json.

    :param dir_fd: the directory that a relative bundle is relative to; by default the working
        directory.
    :raises Refusal: "could not open OCI spec: ..." or "could not decode OCI spec: ..."
    """
    path = paths.clean(paths.join(bundle, "config.json"))
    problem = path_problem(path)
    if problem:
        raise Refusal(
            "",
            f"{_OPEN}open {path}: invalid argument",
            f"the bundle in the state is not a usable path: {problem}",
        )
    try:
        fd = files.open_file(path, dir_fd)
    except OSError as error:
        if error.errno in (errno.EISDIR, errno.EINVAL):
            raise Refusal(
                "",
                f"{_CONFIG}read {path}: {files.reason(error)}",
                f"it is not a regular file; {_CONFIG_FIX}",
            ) from None
        hint = (
            "the bundle in the state must be the directory with the container's config.json,"
            " readable by the hook"
        )
        raise Refusal("", f"{_OPEN}open {path}: {files.reason(error)}", hint) from None
    try:
        return files.read_fd(fd, CONFIG_LIMIT)
    except OSError as error:
        hint = f"it has more than {CONFIG_LIMIT} bytes; " if error.errno == errno.EFBIG else ""
        raise Refusal(
            "", f"{_CONFIG}read {path}: {files.reason(error)}", hint + _CONFIG_FIX
        ) from None
    finally:
        os.close(fd)


def parse_config(data: bytes, complete: bool = True) -> ContainerConfig:
    """Decode a config.json.

    :param complete: refuse a document without ociVersion, process or root. The hook does, the
        runtime wrapper does not.
    :raises Refusal: for the first fault, in the reference's words and order: JSON and types,
        missing members, process.capabilities, process.env.
    """
    try:
        spec = members(
            as_object(loads(data, CONFIG_LIMIT, one_value=True), "value of type main.Spec"),
            _SPEC_MEMBERS,
        )
        version = as_string(spec.get("ociVersion"), "struct field Spec.ociVersion of type string")
        process = members(
            as_object(spec.get("process"), "struct field Spec.process of type main.Process"),
            _PROCESS_MEMBERS,
        )
        root = members(
            as_object(spec.get("root"), "struct field Spec.root of type main.Root"), _ROOT_MEMBERS
        )
        env = as_strings(process.get("env"), "struct field Process.process.env of type ")
        root_path = as_string(root.get("path"), "struct field Root.root.path of type string")
        mounts = as_array(spec.get("mounts"), "struct field Spec.mounts of type []specs.Mount")
        mount_pairs = tuple(map(_mount, mounts))
    except JsonError as error:
        raise Refusal(
            "", _CONFIG + error.text, f"config.json: {error.hint}; {_CONFIG_FIX}"
        ) from None
    # A member only has to be present: an empty ociVersion passes.
    for name, member in (("Version", "ociVersion"), ("Process", "process"), ("Root", "root")):
        if complete and spec.get(member) is None:
            raise Refusal(
                "",
                f"{name} is empty in OCI spec",
                f"config.json has no member {member}; {_CONFIG_FIX}",
            )
    try:
        bounding = _bounding(process.get("capabilities"), version)
    except JsonError as error:
        hint = (
            f"config.json, process.capabilities for ociVersion {version or '(empty)'}:"
            f" {error.hint}; {_CONFIG_FIX}"
        )
        raise Refusal("", _CAPABILITIES + error.text, hint) from None
    return ContainerConfig(
        _environment(env),
        tuple(bounding),
        mount_pairs,
        root_path,
        root.get("readonly") is True,
        version,
    )


def _environment(entries: list[str]) -> dict[str, str]:
    """Split each entry at its first ``=``. The last entry of a name wins (reference behaviour
    1.1).
    """
    try:
        return dict([entry.split("=", 1) for entry in entries])
    except ValueError:
        bad = next(entry for entry in entries if "=" not in entry)
        raise Refusal(
            "",
            f"invalid environment variable: {bad}",
            'an entry of process.env in config.json has no "="',
        ) from None


def _bounding(capabilities: object, version: str) -> list[str]:
    if capabilities is None:
        return []
    if _flat_capabilities(version):
        return as_strings(capabilities, "value of type ")
    sets = members(
        as_object(capabilities, "value of type specs.LinuxCapabilities"), _CAPABILITY_MEMBERS
    )
    return as_strings(sets.get("bounding"), "struct field LinuxCapabilities.bounding of type ")


def _flat_capabilities(version: str) -> bool:
    """Tell whether process.capabilities is a plain list: ociVersion in [1.0.0-rc1, 1.0.0-rc5)
    (reference behaviour 1.5).

    Pre-releases of 1.0.0 are ordered by their first identifier as text, numbers before words. An
    invalid version is older than all of them.
    """
    core, plus, build = version.partition("+")
    if not core.startswith("1.0.0-") or (plus and not _identifiers(build)):
        return False
    release = core[len("1.0.0-") :]
    first = release.partition(".")[0]
    numbered = any(
        part.isdigit() and part[:1] == "0" and part != "0" for part in release.split(".")
    )
    return _identifiers(release) and not numbered and not first.isdigit() and "rc1" <= first < "rc5"


def _identifiers(text: str) -> bool:
    return all(part.isascii() and part.replace("-", "a").isalnum() for part in text.split("."))


def _mount(value: object) -> tuple[str, str]:
    if value is None:
        return "", ""
    mount = members(
        as_object(value, "struct field Spec.mounts of type specs.Mount"), _MOUNT_MEMBERS
    )
    source = as_string(mount.get("source"), "struct field Mount.mounts.source of type string")
    return source, as_string(
        mount.get("destination"), "struct field Mount.mounts.destination of type string"
    )


def _mismatch(json_type: str, target: str) -> JsonError:
    return JsonError(
        f"json: cannot unmarshal {json_type} into Go {target}",
        f"{target.rpartition(' of type ')[2]} expected, found {json_type}",
    )


def as_object(value: object, target: str) -> dict[str, object]:
    """Return an object's members. null is an object without members, since it leaves a Go struct
    empty.

    :param target: the place as Go's message names it; also in the functions below.
    :raises JsonError: the value has another type; also in the functions below.
    """
    if type(value) is dict or type(value) is Repeated:
        return value
    if value is None:
        return {}
    raise _mismatch(kind(value), target)


def as_string(value: object, target: str) -> str:
    """Return a string; null is the empty string."""
    if type(value) is str:
        return value
    if value is None:
        return ""
    raise _mismatch(kind(value), target)


def as_number(value: object, target: str) -> int:
    """Return an integer that is not negative; null is 0."""
    if type(value) is int and value >= 0:
        return value
    if value is None:
        return 0
    raise _mismatch(kind(value), target)


def as_array(value: object, target: str) -> list[object]:
    """Return an array's items; null is an empty array."""
    if type(value) is list:
        return value
    if value is None:
        return []
    raise _mismatch(kind(value), target)


def as_strings(value: object, target: str) -> list[str]:
    """Return an array of strings. ``target`` ends before Go's name of the type, which is added
    here.
    """
    return [
        item if type(item) is str else as_string(item, target + "string")
        for item in as_array(value, target + "[]string")
    ]
