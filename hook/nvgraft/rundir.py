"""Our directories under /run: root's own, made when they are first needed, gone with the next start of the machine."""

import os
import stat


def open_private(path: str, *, create: bool = True) -> int | None:
    """Open the directory ``path``; with ``create`` make it and its parent if need be. Both are for this user alone.

    Return None where there is none that is this user's own and closed to others: rootless, or something in its place. Called
    before the hook enters the container's mount namespace, in which /run is somebody else's.
    """
    parent, name = os.path.split(path)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        for directory in (parent, path) if create else ():
            try:
                os.mkdir(directory, 0o700)
            except FileExistsError:
                continue
        holder = os.open(parent, flags)
        try:
            fd = os.open(name, flags, dir_fd=holder) if _is_ours(holder, 0o022) else -1
        finally:
            os.close(holder)
    except OSError:
        return None
    if fd >= 0 and not _is_ours(fd, 0o077):
        os.close(fd)
        return None
    return fd if fd >= 0 else None


def _is_ours(fd: int, forbidden: int) -> bool:
    found = os.fstat(fd)
    return found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & forbidden
