"""What a container has at one moment: mounts, files, device rules; and how two moments differ."""

import os
import stat
from collections import Counter
from typing import NamedTuple

from nvgraft.apply import bpf, bpf_verdict, cgroup
from nvgraft.base.errors import Refusal
from nvgraft.system.mountinfo import Mount, parse_mountinfo

#: Files that are looked at. An image with more is compared in part, which is said.
LIMIT = 100_000
_OPTIONS = frozenset(("ro", "rw", "nosuid", "nodev", "noexec"))
_DRIVER = "nvidia"


class Look(NamedTuple):
    """A container at one moment.

    :ivar mounts: each as one line; ``files``: path -> what it is; ``rules``: each as one line.
    :ivar cut: whether there are more files than were looked at.
    """

    mounts: tuple[tuple[str, str], ...]
    files: dict[str, str]
    rules: frozenset[str]
    cut: bool


class Difference(NamedTuple):
    """What one look has and another has not.

    :ivar mounts: those that came and those that went, as in a look; so for ``files``, by name.
    :ivar changed: path, what it was and what it is.
    :ivar points: mount points -> what they were and what they are; "" for nothing.
    """

    mounts: tuple[list[tuple[str, str]], list[tuple[str, str]]]
    files: tuple[list[tuple[str, str]], list[tuple[str, str]]]
    changed: list[tuple[str, str, str]]
    rules: tuple[list[str], list[str]]
    points: dict[str, tuple[str, str]]
    cut: bool

    @property
    def empty(self) -> bool:
        """Whether both looks are equal."""
        return not (any(self.mounts) or any(self.files) or self.changed or any(self.rules))


def look_at(pid: int, rootfs: str) -> Look:
    """Look at the container of the process ``pid``.

    :param rootfs: its root file system as the process sees it; "" once it is the root.
    :raises OSError: the process has ended.
    """
    inside = _mounts(pid, rootfs)
    files, cut = _files(f"/proc/{pid}/root{rootfs}", rootfs, inside)
    return Look(_shown(inside, rootfs), files, _rules(pid), cut)


def mounts_of(pid: int, rootfs: str) -> tuple[tuple[str, str], ...]:
    """Return the mounts that the process ``pid`` sees below ``rootfs``: points, and words.

    :raises OSError: the process has ended.
    """
    return _shown(_mounts(pid, rootfs), rootfs)


def files_of(pid: int, directory: str) -> dict[str, str]:
    """Return the files that the process ``pid`` sees below ``directory``, and what they are.

    :raises OSError: the process has ended.
    """
    return _files(f"/proc/{pid}/root{directory}", directory, _mounts(pid, directory))[0]


def _mounts(pid: int, rootfs: str) -> list[Mount]:
    with open(f"/proc/{pid}/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        mounts = parse_mountinfo(file.read())
    return [mount for mount in mounts if f"{mount.point}/".startswith(f"{rootfs}/")]


def _shown(mounts: list[Mount], rootfs: str) -> tuple[tuple[str, str], ...]:
    return tuple((mount.point[len(rootfs) :] or "/", _words(mount)) for mount in mounts)


def differ(before: Look, after: Look) -> Difference:
    """Return what ``after`` has more and less than ``before``."""
    mounts = _more(before.mounts, after.mounts), _more(after.mounts, before.mounts)
    covered = {point for side in mounts for point, _ in side}
    new = [path for path in after.files if path not in before.files]
    gone = [path for path in before.files if path not in after.files]
    changed = [
        (path, before.files[path], what)
        for path, what in after.files.items()
        if path not in covered and before.files.get(path, what) != what
    ]
    return Difference(
        mounts,
        (
            [(path, after.files[path]) for path in sorted(new)],
            [(path, before.files[path]) for path in sorted(gone)],
        ),
        sorted(changed),
        (sorted(after.rules - before.rules), sorted(before.rules - after.rules)),
        {point: (before.files.get(point, ""), after.files.get(point, "")) for point in covered},
        before.cut or after.cut,
    )


def difference_of_mounts(
    before: tuple[tuple[str, str], ...], after: tuple[tuple[str, str], ...]
) -> tuple[list[str], list[str]]:
    """Return the mounts that only ``after`` has, and those that only ``before`` has, as lines."""
    more, less = _more(before, after), _more(after, before)
    return list(map(line_of, more)), list(map(line_of, less))


def line_of(entry: tuple[str, str]) -> str:
    """Return a mount or a file as one line for people."""
    return "  ".join(entry)


def _more(
    before: tuple[tuple[str, str], ...], after: tuple[tuple[str, str], ...]
) -> list[tuple[str, str]]:
    left = Counter(before)
    found = []
    for mount in after:
        if left[mount]:
            left[mount] -= 1
        else:
            found.append(mount)
    return found


def _words(mount: Mount) -> str:
    options = ",".join(word for word in mount.options.split(",") if word in _OPTIONS)
    source = f" of {mount.root}" if mount.root != "/" else ""
    return f"{mount.fstype}{source} ({options})"


def _files(root: str, rootfs: str, mounts: list[Mount]) -> tuple[dict[str, str], bool]:
    """Return the files of the root file system and of each tmpfs in it, links not followed."""
    points = {mount.point[len(rootfs) :]: mount.fstype for mount in mounts}
    closed = {point for point, fstype in points.items() if fstype != "tmpfs" and point}
    # A tmpfs of the hook stands in the procfs, which is not listed.
    todo = ["", *(point for point in points if point not in closed and _below(point, closed))]
    found: dict[str, str] = {}
    while todo:
        directory = todo.pop()
        try:
            names = sorted(os.listdir(f"{root}{directory}/"))
        except OSError:
            continue  # it is gone, or the root of a user namespace may not list it
        for name in names:
            path = f"{directory}/{name}"
            if len(found) == LIMIT:
                return found, True
            try:
                status = os.lstat(root + path)
            except OSError:
                continue
            found[path] = _what(root + path, status)
            if stat.S_ISDIR(status.st_mode) and path not in closed:
                todo.append(path)
    return found, False


def _below(path: str, directories: set[str]) -> bool:
    return any(path.startswith(f"{directory}/") for directory in directories)


def _what(path: str, status: os.stat_result) -> str:
    mode = f"{stat.S_IMODE(status.st_mode):04o}"
    if stat.S_ISLNK(status.st_mode):
        try:
            return f"-> {os.readlink(path)}"
        except OSError:
            return "link"
    if stat.S_ISDIR(status.st_mode):
        return f"directory {mode}"
    if stat.S_ISREG(status.st_mode):
        return f"file {mode}, {status.st_size} bytes"
    if stat.S_ISCHR(status.st_mode):
        return f"device {os.major(status.st_rdev)}:{os.minor(status.st_rdev)} {mode}"
    return f"{'socket' if stat.S_ISSOCK(status.st_mode) else 'special'} {mode}"


def _rules(pid: int) -> frozenset[str]:
    """Return the device rules of the container's cgroup."""
    try:
        held = cgroup.find_cgroup(pid)
    except Refusal:
        return frozenset()
    try:
        return device_rules(held, _driver_nodes())
    finally:
        held.close()


def device_rules(held: cgroup.DeviceCgroup, nodes: list[tuple[int, int]]) -> frozenset[str]:
    """Return the device rules of a cgroup, as lines of cgroup v1; none where they are not known.

    :param nodes: device numbers that the programs of version 2 are asked about.
    """
    try:
        if held.version == 1:
            with open(f"{held.path}/devices.list", encoding="ascii") as file:
                return frozenset(file.read().splitlines())
        directory = os.open(held.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            codes = [bpf_verdict.read_code(program) for program in bpf.query(directory)[1]]
        finally:
            os.close(directory)
        return frozenset(
            f"c {major}:{minor} rw"
            for major, minor in nodes
            if codes and all(bpf_verdict.allows(code, major, minor, "rw") for code in codes)
        )
    except (OSError, bpf.ProgramError, bpf_verdict.Unknown):
        return frozenset()


def _driver_nodes() -> list[tuple[int, int]]:
    found = []
    for directory, _, names in os.walk("/dev"):
        for name in names:
            path = f"{directory}/{name}"
            if _DRIVER in path:
                status = os.lstat(path)
                if stat.S_ISCHR(status.st_mode):
                    found.append((os.major(status.st_rdev), os.minor(status.st_rdev)))
    return sorted(found)
