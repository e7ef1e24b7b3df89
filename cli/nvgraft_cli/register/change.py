"""Read a configuration file, show a change as a diff, back the file up, and replace it
atomically.
"""

import difflib
import os
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nvgraft.base import files
from nvgraft.base.errors import printable
from nvgraft_cli.shell.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Suffix of the backup beside a changed file, which is kept as long as the registration.
BACKUP_SUFFIX = ".nvgraft-backup"

#: The most bytes of a configuration file.
LIMIT = 8 << 20


_FIX = "name a readable configuration file of the engine with --file, or --bundle for runc"


class CannotRegister(InputError):
    """Why nothing was changed; the text is the one line for the user."""

    def __init__(self, text: str) -> None:
        super().__init__(text, exit_code=1)


@dataclass(frozen=True)
class ConfigFile:
    """A configuration file. ``text`` is None if it does not exist, ``backup`` if there is no
    backup.
    """

    path: str
    #: The path of the file itself: ``path``, or the target of a link there.
    place: str
    text: str | None
    backup: str | None


def read(path: str) -> ConfigFile:
    """Read the file ``path``, through one symbolic link, and its backup.

    :raises CannotRegister: ``path`` is not a regular file of readable UTF-8 text.
    """
    place = path
    if os.path.islink(path):
        place = os.path.join(os.path.dirname(path), os.readlink(path))
        if os.path.islink(place):
            raise CannotRegister(f"{path}: a link to the link {place} | name the file itself")
    return ConfigFile(path, place, _text(place), _text(place + BACKUP_SUFFIX))


def _text(path: str) -> str | None:
    try:
        fd = files.open_file(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CannotRegister(f"{path}: {files.reason(error)} | {_FIX}") from error
    try:
        return files.read_fd(fd, LIMIT).decode()
    except OSError as error:
        raise CannotRegister(f"{path}: {files.reason(error)} | {_FIX}") from error
    except UnicodeDecodeError as error:
        raise CannotRegister(f"{path}: not UTF-8 text: byte {error.start} | {_FIX}") from error
    finally:
        os.close(fd)


def diff(file: ConfigFile, after: str | None) -> str:
    """Return the change as a unified diff, with control characters other than tabs escaped."""
    before = file.text
    old, new = ("/dev/null" if text is None else file.place for text in (before, after))
    return "".join(_closed(difflib.unified_diff(_lines(before), _lines(after), old, new)))


def _lines(text: str | None) -> list[str]:
    """Split at newlines only; str.splitlines() also splits at form feeds, a lone \\r and others."""
    lines = [line + "\n" for line in (text or "").split("\n")]
    return lines[:-1] if lines[-1] == "\n" else [*lines[:-1], lines[-1][:-1]]


def _closed(rows: "Iterator[str]") -> "Iterator[str]":
    for row in rows:
        shown = "\t".join(map(printable, row.removesuffix("\n").split("\t"))) + "\n"
        yield shown if row.endswith("\n") else shown + "\\ No newline at end of file\n"


def write(file: ConfigFile, after: str, *, back_up: bool) -> None:
    """Replace the file by ``after`` atomically, or make it.

    :param back_up: keep the present file as the backup, in place of an older one.
    :raises CannotRegister: the kernel refused it.
    """
    backup = file.place + BACKUP_SUFFIX
    try:
        if file.text is None:
            os.makedirs(os.path.dirname(file.place) or ".", mode=0o755, exist_ok=True)
            # A backup of a file that was removed since has no meaning any more.
            with suppress(FileNotFoundError):
                os.unlink(backup)
        elif back_up:
            _put(backup, file.text, file.place)
        _put(file.place, after, file.place)
    except OSError as error:
        raise _refused(error, file.place) from error


def take_back(file: ConfigFile, after: str | None) -> None:
    """Replace the file by ``after`` or remove it, and remove its backup.

    :raises CannotRegister: the kernel refused it.
    """
    try:
        if after is None:
            os.unlink(file.place)
        else:
            _put(file.place, after, file.place)
        with suppress(FileNotFoundError):
            os.unlink(file.place + BACKUP_SUFFIX)
    except OSError as error:
        raise _refused(error, file.place) from error


def _put(path: str, text: str, like: str) -> None:
    """Write ``text`` to ``path`` with owner and mode of the file ``like``, or 0644 without one."""
    directory, name = os.path.split(path)
    # A random, exclusive name, since others may write to the directory; not *.json or *.toml, which
    # engines read.
    fd, draft = tempfile.mkstemp(prefix=f".{name}.", suffix=".nvgraft-new", dir=directory or ".")
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(text.encode())
            try:
                model = os.stat(like)
            except FileNotFoundError:
                os.fchmod(fd, 0o644)
            else:
                os.fchown(fd, model.st_uid, model.st_gid)
                os.fchmod(fd, stat.S_IMODE(model.st_mode))
            file.flush()
            os.fsync(fd)
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise


def _refused(error: OSError, path: str) -> CannotRegister:
    hint = " | run it as root" if os.geteuid() != 0 else ""
    return CannotRegister(f"{path}: cannot be changed: {files.reason(error)}{hint}")
