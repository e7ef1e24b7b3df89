"""The container's side of a question: an OCI bundle that is not running.

Reading only: the rootfs directory stands for the container's file system, with /proc, /sys and /dev as engines mount them.
"""

import os
from functools import cached_property
from types import TracebackType

from nvgraft.container import check_rootfs_path
from nvgraft.oci import ContainerConfig, parse_config, read_config
from nvgraft.target import OfflineTarget, VirtualTree
from nvgraft.tree import LiveTree, open_tree_at
from nvgraft_cli.errors import InputError


def rootfs_label(container: ContainerConfig, bundle: str) -> str:
    """Return the rootfs as the hook would name it: a runtime starts it with the bundle as working directory."""
    return os.path.normpath(os.path.join(os.path.abspath(bundle), container.root_path))


def find_rootfs(container: ContainerConfig, bundle: str) -> str:
    """Return the directory that holds the rootfs. A bundle that was copied here from elsewhere carries it along: where the
    absolute ``root.path`` does not exist, it is looked for inside the bundle.

    :raises InputError: when there is none.
    """
    label = rootfs_label(container, bundle)
    relative = container.root_path.lstrip("/")
    candidates = [label, os.path.join(bundle, relative), os.path.join(bundle, os.path.basename(relative))]
    for path in candidates:
        if os.path.isdir(path):
            return path
    raise InputError(
        f"{label}: no such directory: root.path of {bundle}/config.json names no rootfs, neither as it stands nor inside the bundle"
    )


class ContainerSide:
    """A container as a plan sees it; its rootfs is opened when it is asked for. Close it after use.

    :param label: how people call it: the path that they gave.
    :param directory: the bundle, absolute: what a relative root.path counts from.
    :param data: config.json.
    """

    def __init__(self, label: str, directory: str, data: bytes) -> None:
        self.label = label
        self.directory = directory
        self.data = data
        self._tree: LiveTree | None = None
        self._targets: dict[tuple[str, bool], OfflineTarget] = {}

    def __enter__(self) -> "ContainerSide":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the rootfs."""
        if self._tree is not None:
            self._tree.close()
            self._tree = None
        self._targets.clear()

    @cached_property
    def spec(self) -> ContainerConfig:
        """What the hook reads of config.json.

        :raises nvgraft.errors.Refusal: when it is no OCI configuration.
        """
        return parse_config(self.data)

    @property
    def rootfs(self) -> LiveTree:
        """The files of the image.

        :raises InputError: when the rootfs is missing or unreadable.
        :raises nvgraft.errors.Refusal: when it is the host's own root.
        """
        if self._tree is None:
            label = rootfs_label(self.spec, self.directory)
            check_rootfs_path(label)
            path = find_rootfs(self.spec, self.directory)
            try:
                self._tree = open_tree_at(path, label)
            except OSError as error:
                raise InputError(f"{path}: {(error.strerror or str(error)).lower()}: the rootfs must be readable") from error
        return self._tree

    def target(self, machine: str, *, module: bool) -> OfflineTarget:
        """Return the planner's view; ``module`` is false for a simulated host, which has no kernel module.

        :raises InputError: when the rootfs is missing or unreadable.
        :raises nvgraft.errors.Refusal: when it is the host's own root, or its links lead out of it.
        """
        key = (machine, module)
        if key not in self._targets:
            tree = self.rootfs
            volumes = tuple(destination for _, destination in self.spec.mounts)
            self._targets[key] = OfflineTarget(VirtualTree(tree, tree.label), machine, volumes, module=module)
        return self._targets[key]


def open_container(path: str) -> ContainerSide:
    """Return the container of the OCI bundle at ``path``.

    :raises InputError: when there is no such directory.
    :raises nvgraft.errors.Refusal: the hook's own complaint about config.json.
    """
    if not os.path.isdir(path):
        raise InputError(f"{path}: no such directory: --bundle must name an OCI bundle (a directory with config.json)")
    return ContainerSide(path, os.path.abspath(path), read_config(path))
