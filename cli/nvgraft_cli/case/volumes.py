"""The volumes of a container: what its config.json mounts over the files of the image.

The directory of a bundle is on this machine, and so are the files and directories that its
config.json binds, where they exist here. They are read within the bounds of the image.
"""

import os
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from nvgraft.formats.tree import Bounds, Node, PathError, Tree
from nvgraft_cli.case.fuse import check_path, open_tree
from nvgraft_cli.shell.errors import InputError

#: What engines mount in each container; no library is there.
_ENGINES = ("/proc", "/sys", "/dev")
#: The most volumes that are opened.
_MOST = 256


@dataclass(frozen=True, slots=True)
class Volume:
    """A mount of config.json.

    :ivar path: where it is, without links.
    :ivar empty: whether nothing is on it (a tmpfs).
    :ivar source: the file or directory of this machine that is bound; "" where it is not read.
    :ivar tree: the tree in which ``source`` is at ``inside``; None where it is not read.
    :ivar options: those of mount(8) that it has, such as noexec and nosuid.
    """

    path: str
    empty: bool = False
    source: str = ""
    tree: Tree | None = None
    inside: str = ""
    options: frozenset[str] = frozenset()

    def place(self, path: str) -> str:
        """Return where ``path`` of the container, on this volume, is in ``tree``."""
        return self.inside + path[len(self.path) :]


class ContainerVolumes:
    """The volumes of one container. Close them after use.

    :ivar error: the runtime's words for the first volume that it cannot mount, or "".
    """

    def __init__(self, volumes: list[Volume] | None = None, error: str = "") -> None:
        self.error = error
        self._volumes = sorted(volumes or (), key=lambda volume: len(volume.path))

    def __iter__(self) -> Iterator[Volume]:
        return iter(self._volumes)

    def over(self, path: str) -> Volume | None:
        """Return the volume that covers a path without links, or None."""
        found = None
        for volume in self._volumes:
            if path == volume.path or path.startswith(f"{volume.path}/"):
                found = volume
        return found

    def close(self) -> None:
        """Close what was opened."""
        for volume in self._volumes:
            if volume.tree is not None:
                volume.tree.close()


def open_volumes(
    mounts: Any, image: Tree, bounds: Bounds, directory: str, here: Collection[Any]
) -> ContainerVolumes:
    """Return the volumes that ``mounts`` of a config.json stand for, where the image's links lead.

    :param directory: that of the bundle, from which relative sources count.
    :param here: those whose sources are on this machine.
    """
    volumes: list[Volume] = []
    error = ""
    for mount in (mounts if isinstance(mounts, list) else ())[:_MOST]:
        path = mount.get("destination") if isinstance(mount, dict) else None
        if not isinstance(path, str) or f"{path}/".startswith(tuple(f"{p}/" for p in _ENGINES)):
            continue
        try:
            path = image.resolve(path)
        except (OSError, PathError):
            path = path.rstrip("/")
        options = mount.get("options")
        options = options if isinstance(options, list) else []
        if path in {"", "/"} or "tmpcopyup" in options:
            continue  # a tmpfs with that option gets the image's files
        kind = mount.get("type")
        source = mount.get("source")
        flags = frozenset(option for option in options if isinstance(option, str))
        volume = Volume(path, kind == "tmpfs", options=flags)
        binds = kind == "bind" or "bind" in options or "rbind" in options
        if kind == "bind" and not flags & {"bind", "rbind"}:
            error = error or _not_bound(path, source)
        if binds and isinstance(source, str) and source and mount in here:
            source = os.path.join(directory, source)
            covered = any(f"{path}/".startswith(f"{other.path}/") for other in volumes)
            error = error or _error(path, source, None if covered else image.lstat(path))
            volume = _read_here(path, source, flags, bounds) or volume
        volumes.append(volume)
    return ContainerVolumes(volumes, error)


def _not_bound(path: str, source: object) -> str:
    """Return the runtime's words for a mount of type bind without the option: the kernel has no
    file system of that name.
    """
    return (
        f'error mounting "{source}" to rootfs at "{path}": no such device (type bind needs the'
        " option bind or rbind)"
    )


def _error(path: str, source: str, covers: Node | None) -> str:
    """Return the runtime's words for a source of this machine that it cannot bind, or "".

    :param covers: what the image has at ``path``; None where it has nothing, or it is not known.
    """
    words = f'error mounting "{source}" to rootfs at "{path}": '
    try:
        check_path(source)
        mode = os.stat(source).st_mode
    except FileNotFoundError:
        return f"{words}stat {source}: no such file or directory"
    except (OSError, ValueError, InputError):
        return ""  # it may not be looked at
    if covers is None or stat.S_ISDIR(mode) == (covers.type == "dir"):
        return ""
    return f"{words}not a directory: one of both is a directory, the other is a file"


def _read_here(path: str, source: str, options: frozenset[str], bounds: Bounds) -> Volume | None:
    """Return the volume of a ``source`` of this machine, or None."""
    try:
        check_path(source)
        real = os.path.realpath(source, strict=True)
        if real == "/" or not os.access(real, os.R_OK):
            return None
        directory, _, name = real.rpartition("/")
        tree = open_tree(directory or "/", path, bounds)
    except (OSError, ValueError, InputError):
        return None  # the source may have any character
    inside = f"/{name}"
    try:
        node: Node | None = tree.lstat(inside)
    except OSError:
        node = None
    if node is None or (node.type not in {"dir", "file"} and real != os.devnull):
        tree.close()
        return None
    return Volume(path, False, source, tree, inside, options)
