"""Our directories under /run: root's own, made when they are first needed, gone with the next start of the machine."""

import os
import stat


def open_private(path: str) -> int | None:
    """Open, and make if need be, the directory ``path``, whose parent is made as well; both are for this user alone.

    Return None where there is none that is this user's own and closed to others: rootless, or something in its place. Called
    before the hook enters the container's mount namespace, in which /run is somebody else's.
    """
    parent, name = os.path.split(path)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        for directory in (parent, path):
            try:
                os.mkdir(directory, 0o700)
            except FileExistsError:
                continue
        holder = os.open(parent, flags)
        try:
            fd = os.open(name, flags, dir_fd=holder)
        finally:
            os.close(holder)
        found = os.fstat(fd)
    except OSError:
        return None
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        os.close(fd)
        return None
    return fd
