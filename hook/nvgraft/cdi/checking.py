"""Make values of the document of a CDI specification, or say what is wrong with it.

What is accepted is what CDI's own reader accepts (0.3.0 to 1.1.0), except for what no container can
have: a mount over /, a path that is not absolute, a control character in a path or an option, a
negative device number.

Source: https://github.com/cncf-tags/container-device-interface (pkg/cdi, specs-go/version.go).
"""

from __future__ import annotations

from nvgraft.base import jsontext
from nvgraft.cdi.edits import (
    NO_PERMISSIONS,
    CdiDevice,
    CdiEdits,
    CdiHook,
    CdiMount,
    CdiNode,
    CdiSpec,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

#: The versions that engines read, the newest last.
VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")

#: The stages of OCI's hooks.
_STAGES = (
    "prestart",
    "createRuntime",
    "createContainer",
    "startContainer",
    "poststart",
    "poststop",
)
_NODE_TYPES = ("", "b", "c", "u", "p")

_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_ALPHANUMERIC = _LETTERS | frozenset("0123456789")

_UINT32 = (0, (1 << 32) - 1)
#: Characters of a closID.
_CLOS_LIMIT = 4095
_INT64 = (-(1 << 63), (1 << 63) - 1)

KIND_FIX = "write VENDOR/CLASS: each begins with a letter, and has letters, digits, _, - and ."
_SEE = "see the CDI specification, or write the file again: nvgraft cdi generate"
_ABSOLUTE = "write an absolute path"


def _names(*members: str) -> dict[str, str]:
    return {name.casefold(): name for name in members}


_SPEC = _names("cdiVersion", "kind", "annotations", "devices", "containerEdits")
_DEVICE = _names("name", "annotations", "containerEdits")
_EDITS = _names("env", "deviceNodes", "netDevices", "hooks", "mounts", "intelRdt", "additionalGids")
_NODE = _names(
    "path", "hostPath", "type", "major", "minor", "fileMode", "permissions", "uid", "gid"
)
_MOUNT = _names("hostPath", "containerPath", "options", "type")
_HOOK = _names("hookName", "path", "args", "env", "timeout")
_INTERFACE = _names("hostInterfaceName", "name")
#: Members of intelRdt.
_RDT_TEXTS = ("closID", "l3CacheSchema", "memBwSchema")
_RDT_SWITCHES = ("enableCMT", "enableMBM", "enableMonitoring")
_RDT = _names(*_RDT_TEXTS, *_RDT_SWITCHES, "schemata")


class Invalid(Exception):
    """A member of a document that is not accepted; ``members`` are the names and indices that lead
    to it.
    """

    def __init__(self, members: Sequence[str | int], cause: str, fix: str) -> None:
        super().__init__(cause)
        self.members = tuple(members)
        self.cause = cause
        self.fix = fix


def spec_of(value: object) -> CdiSpec:
    """Return the specification in the value of a document.

    :raises Invalid: it is not valid.
    """
    top = _Members(value, _SPEC, ())
    version = top.text("cdiVersion").removeprefix("v")
    if version not in VERSIONS:
        fix = f"upgrade nvgraft, or write the specification in version {VERSIONS[-1]}"
        raise top.invalid("cdiVersion", f"invalid version {version!r}", fix)
    kind = top.text("kind")
    if not is_kind(kind):
        raise top.invalid("kind", f"invalid kind {kind!r}", KIND_FIX)
    common = _edits(top)
    devices: dict[str, CdiDevice] = {}
    for part in top.parts("devices", _DEVICE):
        device = _device(part)
        if device.name in devices:
            raise part.invalid("name", f"multiple device {device.name!r}", "remove all but one")
        devices[device.name] = device
    if not devices:
        raise top.invalid("devices", "invalid spec, no devices", "add a device, or remove the file")
    spec = CdiSpec(kind, devices.values(), common, version, top.texts_by_name("annotations"))
    least = spec.lowest_version()
    if VERSIONS.index(least) > VERSIONS.index(version):
        fix = f"write cdiVersion {least}, or remove the members that are newer"
        raise top.invalid("cdiVersion", f"the spec version must be at least v{least}", fix)
    return spec


def _device(part: _Members) -> CdiDevice:
    name = part.text("name")
    if not _is_name(name, _ALPHANUMERIC, "_-.:"):
        fix = "use letters, digits, _, -, . and :, with a letter or digit at both ends"
        raise part.invalid("name", f"invalid device name {name!r}", fix)
    edits = _edits(part)
    if edits == CdiEdits():
        raise part.invalid("containerEdits", f"invalid device {name!r}, empty device edits", _SEE)
    return CdiDevice(name, edits, part.texts_by_name("annotations"))


def _edits(holder: _Members) -> CdiEdits:
    """Return the edits of a device or of all devices."""
    part = holder.part("containerEdits", _EDITS)
    if part is None:
        return CdiEdits()
    return CdiEdits(
        env=_env(part),
        nodes=map(_node, part.parts("deviceNodes", _NODE)),
        hooks=map(_hook, part.parts("hooks", _HOOK)),
        mounts=map(_mount, part.parts("mounts", _MOUNT)),
        gids=part.numbers("additionalGids", _UINT32),
        net_devices=_net_devices(part),
        intel_rdt=_intel_rdt(part.part("intelRdt", _RDT)),
    )


def _net_devices(part: _Members) -> list[tuple[str, str]]:
    devices: list[tuple[str, str]] = []
    for device in part.parts("netDevices", _INTERFACE):
        pair = device.text("hostInterfaceName"), device.text("name")
        for index, name in enumerate(("hostInterfaceName", "name")):
            if not pair[index]:
                raise device.invalid(name, "is empty", "name the network interface")
            if any(pair[index] == other[index] for other in devices):
                fix = "name each network interface once"
                raise device.invalid(name, f"{pair[index]!r} is named twice", fix)
        devices.append(pair)
    return devices


def _env(part: _Members) -> list[str]:
    entries = part.texts("env")
    for index, entry in enumerate(entries):
        if entry.find("=") <= 0:
            cause = f"invalid environment variable {entry!r}"
            raise part.invalid("env", cause, "write NAME=VALUE", index)
    return entries


def _node(part: _Members) -> CdiNode:
    kind, permissions = part.text("type", ""), part.text("permissions", "")
    if kind not in _NODE_TYPES:
        raise part.invalid("type", f"invalid type {kind!r}", "write b, c, u or p")
    if permissions != NO_PERMISSIONS and permissions.strip("rwm"):
        fix = "write some of r, w and m"
        raise part.invalid("permissions", f"invalid permissions {permissions!r}", fix)
    return CdiNode(
        part.path("path"),
        host_path=part.plain("hostPath", part.text("hostPath", "")),
        type=kind,
        major=part.number("major", _UINT32) or 0,
        minor=part.number("minor", _UINT32) or 0,
        mode=part.number("fileMode", _UINT32),
        permissions=permissions,
        uid=part.number("uid", _UINT32),
        gid=part.number("gid", _UINT32),
    )


def _mount(part: _Members) -> CdiMount:
    source, target, kind = part.text("hostPath"), part.path("containerPath"), part.text("type", "")
    if not source:
        raise part.invalid("hostPath", "invalid mount, empty host path", _SEE)
    if not _leads_below_root(target):
        fix = "mount single files or directories"
        raise part.invalid("containerPath", "a mount over / hides the container's image", fix)
    options = part.texts("options")
    for index, option in enumerate(options):
        part.plain("options", option, index)
    return CdiMount(part.plain("hostPath", source), target, tuple(options), kind)


def _leads_below_root(path: str) -> bool:
    """Tell whether an absolute path without links names something else than /."""
    depth = 0
    for name in path.split("/"):
        if name == "..":
            depth = max(depth - 1, 0)
        elif name not in {"", "."}:
            depth += 1
    return depth > 0


def _hook(part: _Members) -> CdiHook:
    stage = part.text("hookName")
    if stage not in _STAGES:
        fix = f"write one of {', '.join(_STAGES)}"
        raise part.invalid("hookName", f"invalid hook name {stage!r}", fix)
    path, args = part.path("path"), part.texts("args")
    return CdiHook(stage, path, tuple(args), tuple(_env(part)), part.number("timeout", _INT64))


def _intel_rdt(part: _Members | None) -> dict[str, object] | None:
    """Return the settings of Intel RDT as in the document, or None if it has none."""
    if part is None:
        return None
    members: dict[str, object] = {name: part.text(name, "") for name in _RDT_TEXTS}
    clos = part.text("closID", "")
    if (
        clos in {".", ".."}
        or (clos != "/" and ("/" in clos or "\n" in clos))
        or len(clos) > _CLOS_LIMIT
    ):
        raise part.invalid("closID", f"invalid closID {clos!r}", "write the name of one directory")
    members |= {name: part.switch(name) for name in _RDT_SWITCHES}
    members["schemata"] = part.texts("schemata")
    return {name: member for name, member in members.items() if member}


def is_kind(kind: str) -> bool:
    """Tell whether a kind is VENDOR/CLASS, as CDI has them."""
    vendor, _, name = kind.partition("/")
    return _is_name(vendor, _LETTERS, "_-.") and _is_name(name, _LETTERS, "_-.")


def _is_name(name: str, first: Collection[str], inside: str) -> bool:
    return (
        name[:1] in first
        and name[-1:] in _ALPHANUMERIC
        and all(char in _ALPHANUMERIC or char in inside for char in name)
    )


class _Members:
    """An object of a document, whose ``members`` are read with their types. null counts as absent,
    as in Go.
    """

    def __init__(self, value: object, names: Mapping[str, str], place: Sequence[str | int]) -> None:
        self._place = tuple(place)
        if not isinstance(value, dict):
            raise Invalid(self._place, _instead(value, "object"), _SEE)
        for name in value:
            if name.casefold() not in names:
                fix = "remove it: engines refuse the whole file"
                raise Invalid((*self._place, name), f"unknown member {name!r}", fix)
        try:
            members = jsontext.members(value, names)
        except jsontext.JsonError as error:
            repeated = value.names[:1] if isinstance(value, jsontext.Repeated) else ()
            raise Invalid((*self._place, *repeated), error.text, error.hint) from None
        self.members = {name: item for name, item in members.items() if item is not None}

    def invalid(self, name: str, cause: str, fix: str, *deeper: int) -> Invalid:
        """Return the exception for a member."""
        return Invalid((*self._place, name, *deeper), cause, fix)

    def text(self, name: str, default: str | None = None) -> str:
        """Return a string. A number or a switch becomes its text, since YAML's strings need no
        quotes.

        :param default: the value of an absent member; without one it is required.
        """
        value = self.members.get(name, default)
        if value is None:
            raise self.invalid(name, "is missing", _SEE)
        return self._text(value, name)

    def _text(self, value: object, name: str, *deeper: int) -> str:
        if isinstance(value, bool):
            value = "true" if value else "false"
        elif isinstance(value, (int, float)):
            value = str(value)
        if not isinstance(value, str):
            raise self.invalid(name, _instead(value, "string"), _SEE, *deeper)
        if "\0" in value:
            raise self.invalid(name, "contains a NUL character", "remove it", *deeper)
        return value

    def path(self, name: str) -> str:
        """Return an absolute path."""
        value = self.text(name)
        if not value.startswith("/"):
            raise self.invalid(name, f"{value!r} is not an absolute path", _ABSOLUTE)
        return self.plain(name, value)

    def plain(self, name: str, value: str, *deeper: int) -> str:
        """Return the value of a member, which must have no control character."""
        if any(char < " " or char == "\x7f" for char in value):
            raise self.invalid(name, f"{value!r} has a control character", "remove it", *deeper)
        return value

    def number(self, name: str, bounds: tuple[int, int]) -> int | None:
        """Return a whole number, or None for an absent member."""
        value = self.members.get(name)
        return None if value is None else self._number(value, bounds, name)

    def _number(self, value: object, bounds: tuple[int, int], name: str, *deeper: int) -> int:
        if type(value) is not int:
            raise self.invalid(name, _instead(value, "a whole number"), _SEE, *deeper)
        low, high = bounds
        if not low <= value <= high:
            fix = f"write a number from {low} to {high}"
            raise self.invalid(name, f"{value} is out of range", fix, *deeper)
        return value

    def switch(self, name: str) -> bool:
        """Return true or false; false for an absent member."""
        value = self.members.get(name, False)
        if not isinstance(value, bool):
            raise self.invalid(name, _instead(value, "bool"), _SEE)
        return value

    def _list(self, name: str) -> list[object]:
        value = self.members.get(name, [])
        if not isinstance(value, list):
            raise self.invalid(name, _instead(value, "array"), _SEE)
        return value

    def texts(self, name: str) -> list[str]:
        """Return a list of strings; an empty one for an absent member."""
        return [self._text(item, name, index) for index, item in enumerate(self._list(name))]

    def numbers(self, name: str, bounds: tuple[int, int]) -> list[int]:
        """Return a list of whole numbers; an empty one for an absent member."""
        items = enumerate(self._list(name))
        return [self._number(item, bounds, name, index) for index, item in items]

    def texts_by_name(self, name: str) -> dict[str, str]:
        """Return an object of strings; an empty one for an absent member."""
        value = self.members.get(name, {})
        if not isinstance(value, dict):
            raise self.invalid(name, _instead(value, "object"), _SEE)
        return {key: self._text(item, name) for key, item in value.items()}

    def part(self, name: str, names: Mapping[str, str]) -> _Members | None:
        """Return an object, or None for an absent member."""
        value = self.members.get(name)
        return None if value is None else _Members(value, names, (*self._place, name))

    def parts(self, name: str, names: Mapping[str, str]) -> Iterator[_Members]:
        """Yield the objects of a list."""
        for index, item in enumerate(self._list(name)):
            yield _Members(item, names, (*self._place, name, index))


def _instead(value: object, wanted: str) -> str:
    return f"is {jsontext.kind(value)} instead of {wanted}"
