"""Which lessons a user has solved: a file in the state directory (XDG_STATE_HOME).

The lab runs as root. With sudo the file is that of the user who called sudo, and is read and
written with this user's rights.
"""

import contextlib
import json
import os
import pwd
from collections.abc import Callable, Mapping

from nvgraft_cli.shell.errors import InputError
from nvgraft_cli.shell.output import write_whole

_FILE = "nvgraft/lessons.json"
#: Bytes of the file that are read.
_LIMIT = 1 << 16


def solved() -> frozenset[str]:
    """Return the names of the solved lessons. A file that cannot be read counts as empty."""
    reader, writer = os.pipe()

    def read() -> None:
        os.close(reader)
        with open(writer, "wb") as pipe:
            pipe.write(json.dumps(sorted(_read(_path()))).encode())

    child = _as_user(read)
    os.close(writer)
    with open(reader, "rb") as pipe:
        text = pipe.read(_LIMIT)
    os.waitpid(child, 0)
    return frozenset(json.loads(text or b"[]"))


def add(name: str) -> str:
    """Note that a lesson is solved; return why it could not be noted, or ""."""

    def write() -> None:
        path = _path()
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        names = sorted({*_read(path), name})
        write_whole(path, json.dumps({"solved": names}).encode() + b"\n", 0o600)

    try:
        path = _path()
    except InputError as error:
        return f"your progress is not kept: {error}"
    _, status = os.waitpid(_as_user(write), 0)
    return "" if status == 0 else f"your progress could not be kept in {path}"


def _as_user(act: Callable[[], None]) -> int:
    """Do ``act`` in a child with the rights of the user; return its number."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        user = _caller(os.environ)
        if user is not None:
            os.setgroups([])
            os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
            os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)
        act()
        code = 0
    except (OSError, InputError):
        pass  # the caller tells by the exit code
    finally:
        os._exit(code)


def _caller(environ: Mapping[str, str]) -> pwd.struct_passwd | None:
    """Return the user who called sudo, if this process is root's."""
    number = environ.get("SUDO_UID", "")
    if os.geteuid() != 0 or not (number.isascii() and number.isdecimal()) or int(number) == 0:
        return None
    try:
        return pwd.getpwuid(int(number))
    except (KeyError, OverflowError):
        return None


def _path() -> str:
    state = os.environ.get("XDG_STATE_HOME", "")
    return os.path.join(
        state if state.startswith("/") else os.path.join(_home(), ".local/state"), _FILE
    )


def _home() -> str:
    """Return the user's home directory: HOME, unless sudo has made it root's or it names none.

    :raises InputError: there is none.
    """
    user, home = _caller(os.environ), os.environ.get("HOME", "")
    if user is None and _is_home(home):
        return home
    with contextlib.suppress(KeyError):
        home = (user or pwd.getpwuid(os.geteuid())).pw_dir
    if not _is_home(home):
        raise InputError("this user has no home directory | set HOME or XDG_STATE_HOME")
    return home


def _is_home(path: str) -> bool:
    """Tell whether ``path`` is more than the root directory, which containers have as HOME."""
    return os.path.isabs(path) and path.strip("/") != ""


def _read(path: str) -> set[str]:
    try:
        with open(path, "rb") as file:
            document = json.loads(file.read(_LIMIT))
    except (OSError, ValueError, RecursionError):
        return set()
    names = document.get("solved") if isinstance(document, dict) else None
    return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()
