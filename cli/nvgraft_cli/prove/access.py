"""Tell which files the container's process may read: a loader passes over the others."""

import posixpath
from collections.abc import Collection

from nvgraft.formats.tree import Node, PathError
from nvgraft_cli.case.bundle import ContainerSide
from nvgraft_cli.case.layered_tree import LayeredTree
from nvgraft_cli.case.planned_tree import PlannedTree

_READ, _SEARCH = 4, 1
_CAPABILITIES = {"CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH"}


class Access:
    """The rights of one process in one container.

    :param groups: its gid and additional gids.
    :param everything: it may read all files: it has CAP_DAC_OVERRIDE or CAP_DAC_READ_SEARCH, or it
        is in a user namespace, where the owners of files are not known.
    """

    def __init__(
        self, tree: PlannedTree, uid: int, groups: Collection[int], *, everything: bool
    ) -> None:
        self._tree = tree
        self._uid = uid
        self._groups = groups
        self._everything = everything
        self._searchable: dict[str, bool] = {"/": True}

    def may_read(self, path: str) -> bool:
        """Tell whether the process may open the file at a resolved ``path`` for reading."""
        return self._everything or (
            self._may_search(posixpath.dirname(path)) and self._has(path, _READ)
        )

    def _may_search(self, directory: str) -> bool:
        if directory not in self._searchable:
            self._searchable[directory] = self._may_search(
                posixpath.dirname(directory)
            ) and self._has(directory, _SEARCH)
        return self._searchable[directory]

    def _has(self, path: str, right: int) -> bool:
        node = self._node(path)
        if node is None or node.mode == 0:
            return True  # a snapshot does not record it
        if node.uid == self._uid:
            return bool(node.mode & right << 6)
        return bool(node.mode & (right << 3 if node.gid in self._groups else right))

    def _node(self, path: str) -> Node | None:
        """Return the file itself: of a mounted one its source, not the placeholder."""
        tree = self._tree
        try:
            below, inside = tree.side(path) if tree.from_host(path) else (tree, path)
            while isinstance(below, LayeredTree) and below is not tree:
                below, inside = below.side(inside)
            return below.find(inside)[1]
        except (OSError, PathError):
            return None


def access_of(container: ContainerSide, tree: PlannedTree) -> Access:
    """Return the rights of the process that config.json names.

    :raises nvgraft.base.errors.Refusal: config.json is not an OCI configuration.
    """
    uid, groups = container.user
    effective = container.member("process", "capabilities", "effective")
    may_all = isinstance(effective, list) and any(name in _CAPABILITIES for name in effective)
    in_namespace = bool(container.member("linux", "uidMappings"))
    return Access(tree, uid, groups, everything=may_all or in_namespace)
