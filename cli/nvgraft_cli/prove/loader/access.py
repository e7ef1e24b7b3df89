"""Tell which files the container's process may read and execute, and which give it more rights.

A loader passes over a file that it may not read, and trusts no variable with more rights.
"""

import os
import posixpath
import struct
from collections.abc import Iterable, Sequence

from nvgraft.formats.tree import LiveTree, Node, PathError, Tree
from nvgraft.host.snapshot import SnapshotTree
from nvgraft_cli.case.bundle import ContainerSide
from nvgraft_cli.case.layered_tree import LayeredTree
from nvgraft_cli.case.planned_tree import PlannedTree
from nvgraft_cli.case.volumes import Volume
from nvgraft_cli.prove.loader.user import User

_READ, _WRITE, _EXECUTE = 4, 2, 1  # of a directory, the latter is the right to search
_SET_UID, _SET_GID = 0o4000, 0o2010  # a set-group-ID bit counts with the group's right to execute
_FILE_CAPABILITIES = "security.capability"
_OVERRIDE = "CAP_DAC_OVERRIDE"
_CAPABILITIES = {_OVERRIDE, "CAP_DAC_READ_SEARCH"}
_NOEXEC, _NOSUID = "noexec", "nosuid"

#: The names of capabilities, each at its number (linux/capability.h).
_NAMES = (
    *("CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID"),
    *("SETPCAP", "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW"),
    *("IPC_LOCK", "IPC_OWNER", "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT"),
    *("SYS_ADMIN", "SYS_BOOT", "SYS_NICE", "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD"),
    *("LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP", "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG"),
    *("WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF", "CHECKPOINT_RESTORE"),
)
#: The revisions of file capabilities -> their pairs of 32 permitted and 32 inheritable ones
#: (linux/capability.h, struct vfs_cap_data).
_PAIRS = {1: 1, 2: 2, 3: 2}


class Access:
    """The rights of one process in one container.

    :param groups: its gid, then additional gids.
    :param everything: it may read all files: it has CAP_DAC_OVERRIDE or CAP_DAC_READ_SEARCH, or it
        is in a user namespace, where the owners of files are not known.
    :param override: it may execute all files that somebody may execute: CAP_DAC_OVERRIDE alone
        gives that, and in a user namespace it is not known.
    :param gains: whether a program may give it more rights; not with no_new_privs.
    :param bounding: the capabilities that file capabilities can give it; None if it is not limited.
    :param inheritable: its inheritable capabilities.
    """

    def __init__(
        self,
        tree: PlannedTree,
        uid: int,
        groups: Sequence[int],
        *,
        everything: bool,
        override: bool,
        gains: bool,
        bounding: frozenset[str] | None = None,
        inheritable: frozenset[str] = frozenset(),
    ) -> None:
        self._tree = tree
        self._uid = uid
        self._groups = groups
        self._everything = everything
        self._override = override
        self._gains = gains
        self._bounding = bounding
        self._inheritable = inheritable
        self._searchable: dict[str, bool] = {"/": True}

    def may_read(self, path: str) -> bool:
        """Tell whether the process may open the file at a resolved ``path`` for reading."""
        return self._everything or (
            self._may_search(posixpath.dirname(path)) and self._has(path, _READ)
        )

    def may_write(self, path: str) -> bool:
        """Tell whether the process may write to the file or directory at a resolved ``path``.

        Root may: an image that a user has unpacked for root belongs to that user here.
        """
        return self._override or self._uid == 0 or self._has(path, _WRITE)

    def not_executed(self, path: str) -> str:
        """Return why the process may not execute the file at a resolved ``path``, or "".

        Source: execve(2), EACCES.
        """
        volume = self._volume(path)
        node = self._node(path)
        if volume is not None and _NOEXEC in volume.options:
            return f"the volume {volume.path} has the option noexec"
        if node is None or (volume is not None and volume.tree is None):
            return ""
        if node.type == "dir":
            return "it is a directory"
        if not (self._everything or self._may_search(posixpath.dirname(path))):
            return "the container's user may not search its directory"
        mode = node.mode
        if mode == 0 and not self._modes_known(path):
            return ""
        if not mode & 0o111:
            return f"nobody may execute it: its mode is {mode:04o}"
        if not (self._override or self._has(path, _EXECUTE)):
            return f"the container's user may not execute it: its mode is {mode:04o}"
        return ""

    def not_permitted(self, path: str) -> str:
        """Return why execve(2) of the file at a resolved ``path`` fails with EPERM, or "".

        A program with effective file capabilities has to get all that it is permitted.
        """
        data = b"" if self._has_option(path, _NOSUID) else self._file_capabilities(path)
        if self._bounding is None or len(data) < 4 or not data[0] & 1:
            return ""
        count = 2 * _PAIRS.get(data[3], 0)
        if len(data) < 4 + 4 * count:
            return ""
        masks = struct.unpack_from(f"<{count}I", data, 4)
        permitted, inherited = (
            {f"CAP_{name}" for bit, name in enumerate(_NAMES) if self._bit(masks[kind::2], bit)}
            for kind in (0, 1)
        )
        missing = permitted - self._bounding - (inherited & self._inheritable)
        if not missing:
            return ""
        return f"its file capability {min(missing)} is not in the container's bounding set"

    @staticmethod
    def _bit(words: Sequence[int], number: int) -> bool:
        return number < 32 * len(words) and bool(words[number // 32] >> number % 32 & 1)

    def maps(self, path: str) -> bool:
        """Tell whether a loader may map the code of the library at a resolved ``path``."""
        return not self._has_option(path, _NOEXEC)

    def _has_option(self, path: str, option: str) -> bool:
        volume = self._volume(path)
        return volume is not None and option in volume.options

    def _volume(self, path: str) -> Volume | None:
        """Return the volume that covers a file which is not the host's, or None."""
        return None if self._tree.from_host(path) else self._tree.volumes.over(path)

    def gains_rights(self, path: str) -> bool:
        """Tell whether the program at a resolved ``path`` gives its process more rights.

        The kernel then sets AT_SECURE (execve(2)). File capabilities are known of directories only.
        """
        node = self._node(path)
        if node is None or self._has_option(path, _NOSUID):
            return False
        if self._gains and node.mode & _SET_UID and node.uid != self._uid:
            return True
        if self._gains and node.mode & _SET_GID == _SET_GID and node.gid not in self._groups[:1]:
            return True
        data = b"" if self._uid == 0 else self._file_capabilities(path)
        # Under no_new_privs the effective bit counts too, though the process gets none of them.
        return bool(data) and (self._gains or bool(data[0] & 1))

    def _may_search(self, directory: str) -> bool:
        if directory not in self._searchable:
            self._searchable[directory] = self._may_search(
                posixpath.dirname(directory)
            ) and self._has(directory, _EXECUTE)
        return self._searchable[directory]

    def _has(self, path: str, right: int) -> bool:
        node = self._node(path)
        if node is None or (node.mode == 0 and not self._modes_known(path)):
            return True
        if node.uid == self._uid:
            return bool(node.mode & right << 6)
        return bool(node.mode & (right << 3 if node.gid in self._groups else right))

    def _modes_known(self, path: str) -> bool:
        """Tell whether modes are known where a file is: a snapshot may lack them."""
        below: Tree = self._tree
        try:
            while isinstance(below, LayeredTree):
                below, path = below.side(path)
        except OSError:
            return False
        return not isinstance(below, SnapshotTree)

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

    def _file_capabilities(self, path: str) -> bytes:
        """Return the file capabilities of a file of a directory; an archive does not tell them."""
        below: Tree = self._tree
        try:
            while isinstance(below, LayeredTree):
                below, path = below.side(path)
            if not isinstance(below, LiveTree):
                return b""
            fd = below.open(path)
        except (OSError, PathError):
            return b""
        try:
            return os.getxattr(fd, _FILE_CAPABILITIES)
        except OSError:
            return b""
        finally:
            os.close(fd)


def access_of(container: ContainerSide, tree: PlannedTree, user: User | None = None) -> Access:
    """Return the rights of the process that config.json names.

    :param user: the user that a program in the container changes to, which takes its capabilities
        from the process unless it is root.

    :raises nvgraft.base.errors.Refusal: config.json is not an OCI configuration.
    """
    uid, groups = container.user
    held = _capabilities(container, "effective")
    limited = container.member("process", "capabilities") is not None
    if user is not None:
        uid, groups = user.uid, list(user.groups)
        held = held if uid == 0 else frozenset()
    in_namespace = bool(container.member("linux", "uidMappings"))
    return Access(
        tree,
        uid,
        groups,
        everything=in_namespace or bool(held & _CAPABILITIES),
        override=in_namespace or _OVERRIDE in held,
        gains=container.member("process", "noNewPrivileges") is not True,
        bounding=_capabilities(container, "bounding") if limited and not in_namespace else None,
        inheritable=_capabilities(container, "inheritable"),
    )


def lacks_capability(container: ContainerSide, names: Iterable[str]) -> str:
    """Return the first of these capabilities that root of the container does not have, or "".

    A configuration without capabilities tells nothing.
    """
    if container.member("process", "capabilities") is None:
        return ""
    held = _capabilities(container, "effective")
    return next((name for name in names if name not in held), "")


def _capabilities(container: ContainerSide, kind: str) -> frozenset[str]:
    """Return the names in a set of the capabilities of the container's process."""
    listed = container.member("process", "capabilities", kind)
    return frozenset(
        name for name in (listed if isinstance(listed, list) else ()) if isinstance(name, str)
    )
