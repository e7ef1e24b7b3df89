"""An OCI bundle that is not running, as the container's side of a plan.

Reading only: the rootfs directory stands for the container's file system, with /proc, /sys and /dev as engines mount them.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from nvgraft.container import check_rootfs_path
from nvgraft.oci import ContainerConfig
from nvgraft.target import OfflineTarget, VirtualTree
from nvgraft.tree import open_tree_at


class BundleError(Exception):
    """A bundle cannot be read; the text names the path, the cause and the fix."""


def rootfs_label(container: ContainerConfig, bundle: str) -> str:
    """Return the rootfs as the hook would name it: a runtime starts it with the bundle as working directory."""
    return os.path.normpath(os.path.join(os.path.abspath(bundle), container.root_path))


def find_rootfs(container: ContainerConfig, bundle: str) -> str:
    """Return the directory that holds the rootfs. A bundle that was copied here from elsewhere carries it along: where the
    absolute ``root.path`` does not exist, it is looked for inside the bundle.

    :raises BundleError: when there is none.
    """
    label = rootfs_label(container, bundle)
    relative = container.root_path.lstrip("/")
    candidates = [label, os.path.join(bundle, relative), os.path.join(bundle, os.path.basename(relative))]
    for path in candidates:
        if os.path.isdir(path):
            return path
    raise BundleError(
        f"{label}: no such directory: root.path of {bundle}/config.json names no rootfs, neither as it stands nor inside the bundle"
    )


@contextmanager
def open_target(container: ContainerConfig, bundle: str, machine: str, *, module: bool) -> Iterator[OfflineTarget]:
    """Give the planner's view of the bundle; ``module`` is false for a simulated host, which has no kernel module.

    :raises BundleError: when its rootfs is missing or unreadable.
    :raises nvgraft.errors.Refusal: when it is the host's own root, or its links lead out of it.
    """
    label = rootfs_label(container, bundle)
    check_rootfs_path(label)
    path = find_rootfs(container, bundle)
    try:
        tree = open_tree_at(path, label)
    except OSError as error:
        raise BundleError(f"{path}: {(error.strerror or str(error)).lower()}: the rootfs must be readable") from error
    volumes = tuple(destination for _, destination in container.mounts)
    try:
        yield OfflineTarget(VirtualTree(tree, label), machine, volumes, module=module)
    finally:
        tree.close()
