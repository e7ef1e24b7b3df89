"""Find out what an argument names: a capability, a device, a catalogue row, or another path."""

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass

from nvgraft.base.errors import Refusal
from nvgraft.host.gpus import Gpu
from nvgraft.plan.actions import (
    Action,
    AllowDevice,
    Bind,
    Injection,
    Plan,
    Symlink,
    Tmpfs,
    UpdateLoaderCache,
    WriteFile,
)
from nvgraft.plan.device_selection import select_devices
from nvgraft_specs import catalogue, names


@dataclass(frozen=True, slots=True)
class Subject:
    """What an argument names.

    :ivar kind: capability, device, library, binary, or path.
    :ivar row: the catalogue row of a library or binary; ``component_class`` is its class.
    """

    kind: str
    name: str
    row: str = ""
    component_class: str = ""

    @property
    def basename(self) -> str:
        """The name without directories."""
        return posixpath.basename(self.name)


def parse_subject(text: str, gpus: tuple[Gpu, ...]) -> Subject:
    """Return what ``text`` names on a host with ``gpus``."""
    if text in names.CAPABILITIES:
        return Subject("capability", text)
    name = posixpath.basename(text)
    for row in catalogue.BINARIES:
        if name == row.name:
            return Subject("binary", text, row.name, row.component_class)
    # The longest prefix is the row: libnvidia-ml.so does not belong to a row libnvidia-m.
    rows = [row for row in catalogue.LIBRARIES if f"{name}.".startswith(f"{row.name}.")]
    if not rows and name.startswith("lib"):
        stem = name.partition(".so")[0]
        rows = [row for row in catalogue.LIBRARIES if row.name.partition(".so")[0] == stem]
    if rows:
        row = max(rows, key=lambda row: len(row.name))
        return Subject("library", text, row.name, row.component_class)
    if text.startswith("/dev/") or _is_device(text, gpus):
        return Subject("device", text)
    return Subject("path", text)


def _is_device(text: str, gpus: tuple[Gpu, ...]) -> bool:
    if text.startswith(("GPU-", "MIG-")) or text.replace(":", "").isdecimal():
        return True
    if not gpus:
        return False
    try:
        select_devices([text], gpus)
    except Refusal:
        return False
    return True


def matching(subject: Subject, plan: Plan, gpus: tuple[Gpu, ...]) -> list[Action | tuple[str, str]]:
    """Return the actions of ``plan`` for the subject, and the SONAME links (path, target) to it."""
    if subject.kind == "capability":
        return [*_of_capability(subject.name, plan)]
    links = (
        [link for link in plan.links if _names(subject, link[0])]
        if subject.kind in {"library", "path"}
        else []
    )
    # A subject that is the name of a link includes the mount of the library that it leads to.
    made = [
        (action.path, action.target)
        for action in plan.actions
        if isinstance(action, Symlink)
        and subject.kind == "library"
        and _names(subject, action.path)
    ]
    libraries = {
        posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        for path, target in (*links, *made)
    }
    # The image may have the link already.
    libraries |= {
        posixpath.join(library.directory, library.name)
        for action in plan.actions
        if isinstance(action, UpdateLoaderCache) and subject.kind == "library"
        for library in action.libraries
        if _names(subject, posixpath.join(library.directory, library.soname))
    }
    mounts = [
        action
        for action in plan.actions
        if isinstance(action, Bind)
        and (action.target in libraries or _concerns(subject, action, gpus))
    ]
    numbers = {action.rdev for action in mounts} if subject.kind == "device" else set()
    actions = [
        action
        for action in plan.actions
        if action in mounts
        or (isinstance(action, AllowDevice) and (action.major, action.minor) in numbers)
        or _concerns(subject, action, gpus)
    ]
    return [*actions, *links]


def _of_capability(name: str, plan: Plan) -> Iterator[Action]:
    """Yield the mounts and files that a capability brings.

    Graphics and display switch on the same libraries. Where both are requested, a library names one
    of them as its reason, and is of both.
    """
    classes = catalogue.LIBRARY_CLASSES[name]
    requested = plan.request.capabilities if isinstance(plan, Injection) else ()
    same = {other for other in requested if catalogue.LIBRARY_CLASSES[other] == classes}
    for action in plan.actions:
        if not isinstance(action, Bind | Tmpfs | WriteFile):
            continue
        library = isinstance(action, Bind) and action.kind == "file" and name in requested
        if action.why.capability == name or (library and action.why.capability in same):
            yield action


def device_paths(subject: Subject, gpus: tuple[Gpu, ...]) -> set[str]:
    """Return the paths of the nodes of a device."""
    return _device_identity(subject.name, gpus)[0]


def _concerns(subject: Subject, action: Action, gpus: tuple[Gpu, ...]) -> bool:
    """Tell whether an action is about the subject itself."""
    if subject.kind == "device":
        paths, numbers = _device_identity(subject.name, gpus)
        if isinstance(action, Bind):
            return action.target in paths or subject.name in {action.target, action.source}
        return isinstance(action, AllowDevice) and (action.major, action.minor) in numbers
    if isinstance(action, Bind):
        return _names(subject, action.target) or action.source == subject.name
    if isinstance(action, Symlink | WriteFile):
        return _names(subject, action.path)
    return isinstance(action, Tmpfs) and action.target == subject.name


def _names(subject: Subject, path: str) -> bool:
    """Tell whether the subject names ``path``.

    A subject without a directory names files of every directory and version.
    """
    if "/" in subject.name:
        return path == subject.name
    name = posixpath.basename(path)
    return name == subject.name or name.startswith(subject.name.rstrip(".") + ".")


def _device_identity(text: str, gpus: tuple[Gpu, ...]) -> tuple[set[str], set[tuple[int, int]]]:
    """Return the paths and numbers of the nodes of a device."""
    if text.startswith("/dev/"):
        minors = {f"/dev/nvidia{gpu.minor}": gpu.minor for gpu in gpus}
        numbers = {
            "/dev/nvidiactl": catalogue.CONTROL_MINOR,
            "/dev/nvidia-modeset": catalogue.MODESET_MINOR,
            **minors,
        }
        return {text}, {(catalogue.NVIDIA_MAJOR, numbers[text])} if text in numbers else set()
    try:
        selection = select_devices([text], gpus)
    except Refusal:
        return set(), set()
    if selection.migs:
        return {selection.migs[0].device.uuid}, set()
    minor = gpus[selection.gpus[0]].minor if selection.gpus else -1
    return {f"/dev/nvidia{minor}"}, {(catalogue.NVIDIA_MAJOR, minor)}
