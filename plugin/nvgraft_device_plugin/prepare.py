"""``nvgraft-device-plugin prepare``: let the plugin's user use directories of the node.

The kubelet makes its directory and its socket for root alone. An entry in the access control list
of the directory, and in the one that new files get, opens them to one more user. The owner of a
directory may do that without a capability. A new socket has the entry, but the maker's umask takes
the right to connect away again: ``--keep`` gives it back to each socket that root makes.
"""

import argparse
import errno
import os
import signal
import stat
import struct
from collections.abc import Sequence

#: The user of the plugin in its image and manifests.
USER = 65534

_ACCESS, _DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
#: linux/posix_acl_xattr.h: a version, then entries of tag, permissions and id.
_VERSION = struct.pack("<I", 2)
_ENTRY = struct.Struct("<HHI")
_OWNER, _NAMED_USER, _GROUP, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x10, 0x20
_NO_ID = 0xFFFFFFFF
_ALL = 7

#: Seconds between two looks.
_LOOK = 0.25
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run(words: Sequence[str]) -> int:
    """Open the directories that a command line names; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="nvgraft-device-plugin prepare",
        description="Let a user that is not root make and use files in directories of this node,"
        " also those that others make there later.",
        epilog="example: nvgraft-device-plugin prepare /var/lib/kubelet/device-plugins",
    )
    parser.add_argument("directories", metavar="DIRECTORY", nargs="+")
    parser.add_argument("--user", type=int, default=USER, metavar="UID", help=f"default: {USER}")
    parser.add_argument(
        "--keep",
        action="store_true",
        help="stay, and open each socket that is made there anew, as a restarted kubelet does",
    )
    args = parser.parse_args(words)
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        for directory in args.directories:
            open_directory(directory, args.user)
        while args.keep and signal.sigtimedwait(_SIGNALS, _LOOK) is None:
            for directory in args.directories:
                open_sockets(directory, args.user)
    except OSError as error:
        fix = (
            "run the plugin as user 0: this file system has no access control lists"
            if error.errno == errno.EOPNOTSUPP
            else "run this as root, with the directory mounted writable"
        )
        parser.exit(1, f"prepare: {error.filename}: {error.strerror} | {fix}\n")
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    return 0


def open_directory(directory: str, user: int) -> None:
    """Let a user make files in a directory, and use those that others make there.

    :raises OSError: naming what cannot be changed.
    """
    acl = with_user(_read(directory), user)
    os.setxattr(directory, _DEFAULT, acl)
    os.setxattr(directory, _ACCESS, acl)
    open_sockets(directory, user)


def open_sockets(directory: str, user: int) -> None:
    """Let a user connect to the sockets of this process's own user in a directory.

    :raises OSError: naming what cannot be changed.
    """
    for name in os.listdir(directory):
        path = os.path.join(directory, name)
        try:
            status = os.lstat(path)
            if stat.S_ISSOCK(status.st_mode) and status.st_uid == os.geteuid():
                acl = _read(path)
                if acl != with_user(acl, user):
                    os.setxattr(path, _ACCESS, with_user(acl, user))
        except FileNotFoundError:
            continue  # removed since


def _read(path: str) -> bytes:
    """Return the access control list of a file, made from its mode if it has none."""
    try:
        return os.getxattr(path, _ACCESS)
    except OSError as error:
        if error.errno != errno.ENODATA:
            raise
    return of_mode(os.stat(path).st_mode)


def of_mode(mode: int) -> bytes:
    """Return the access control list that says what a mode says."""
    rights = {_OWNER: mode >> 6 & _ALL, _GROUP: mode >> 3 & _ALL, _OTHER: mode & _ALL}
    return _VERSION + b"".join(_ENTRY.pack(tag, rights[tag], _NO_ID) for tag in rights)


def with_user(acl: bytes, user: int) -> bytes:
    """Return an access control list in which a user has all rights."""
    entries = {
        (tag, name): rights for tag, rights, name in _ENTRY.iter_unpack(acl[len(_VERSION) :])
    }
    entries |= {(_NAMED_USER, user): _ALL, (_MASK, _NO_ID): _ALL}
    packed = (_ENTRY.pack(tag, entries[tag, name], name) for tag, name in sorted(entries))
    return _VERSION + b"".join(packed)
