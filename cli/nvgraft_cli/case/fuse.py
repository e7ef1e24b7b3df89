"""Find FUSE file systems before a file of a container is looked at: their servers may never answer
(SECURITY R42).

A command that waits for such a server cannot be interrupted. The mount table of this process tells
the places. What the hook does in a container is :mod:`nvgraft.container.fuse`.
"""

import os

from nvgraft.base.errors import Refusal
from nvgraft.base.files import read_text
from nvgraft.container.fuse import OnFuse, ShunningTree, is_of_engine
from nvgraft.container.target import ALLOW_FUSE
from nvgraft.formats.tree import Bounds, LiveTree, PathError, open_tree_at
from nvgraft.request.config import load_config
from nvgraft.system.mountinfo import Mount, fuse_mounts
from nvgraft_cli.shell.errors import InputError


def check_path(path: str) -> None:
    """Check that nothing on the way to ``path`` is on a FUSE file system.

    Root file systems that fuse-overlayfs serves for an engine are allowed, and all of them with
    ``allow-fuse`` in the config.toml of this host.

    :raises InputError: it is.
    """
    _resolve(path, _shunned_mounts())


def open_tree(path: str, label: str, bounds: Bounds) -> LiveTree:
    """Open the directory ``path``, as :func:`nvgraft.formats.tree.open_tree_at` does, without
    looking at the FUSE file systems below it.

    :raises InputError: it is on one itself.
    :raises OSError: it is missing or is not a directory.
    """
    mounts = _shunned_mounts()
    place = _resolve(path, mounts)
    below = [point[len(place) :] for point in mounts if point.startswith(place + "/")]
    if not below:
        return open_tree_at(path, label, bounds)
    root_fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    return ShunningTree(root_fd, label, tuple(sorted(below)), bounds)


def _shunned_mounts() -> list[str]:
    """Return the mount points of FUSE file systems at which nothing may be looked."""
    mounts = [mount for mount in fuse_mounts(_mountinfo()) if not _is_ours(mount)]
    return [] if mounts and _allowed() else [mount.point for mount in mounts]


def _mountinfo() -> str:
    try:
        return read_text("/proc/self/mountinfo")
    except OSError:
        return ""  # without /proc there is no way to tell


def _is_ours(mount: Mount) -> bool:
    """Tell whether an engine has mounted it, for root or for the user of this process."""
    return is_of_engine(mount, any_user=os.geteuid() != 0)


def _allowed() -> bool:
    try:
        return load_config(None, os.environ).allow_fuse
    except Refusal:
        return False


def _resolve(path: str, mounts: list[str]) -> str:
    """Return the absolute path to which ``path`` leads, found without looking at ``mounts``."""
    place = os.path.abspath(path)
    if not mounts:
        return place
    tree = ShunningTree(os.open("/", os.O_PATH | os.O_DIRECTORY), "", tuple(mounts))
    try:
        resolved = tree.resolve(place)
        tree.lstat(resolved)
        return resolved
    except OnFuse as refusal:
        message = (
            f"{path}: it is on the FUSE file system {refusal.volume}, which may never answer:"
            f" copy it to another one, or {ALLOW_FUSE}"
        )
        raise InputError(message) from refusal
    except (PathError, OSError):
        return place  # the caller meets the same error, and names it
    finally:
        tree.close()
