"""A configuration file before and after: read whole, shown as a diff, backed up, replaced at once.

What goes into a file is decided by the modules of the engines; nothing here knows one of them.
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

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Beside a changed file, as long as the registration lasts: the file as it was before.
BACKUP_SUFFIX = ".nvgraft-backup"

#: Bytes; a configuration file that is larger is none.
LIMIT = 8 << 20


_FIX = "name the engine's configuration file, one that you may read (--file, or --bundle for runc)"


class CannotRegister(Exception):
    """Why nothing was changed; the text is the one line for the user."""


@dataclass(frozen=True)
class Document:
    """A configuration file as it is; ``text`` is None where there is none, ``backup`` where it was never changed by us."""

    path: str
    #: Where the file itself lies: ``path``, or what the link ``path`` points to.
    place: str
    text: str | None
    backup: str | None


def read(path: str) -> Document:
    """Read the file ``path``, through one symbolic link, and its backup.

    :raises CannotRegister: when it is no regular file of readable UTF-8 text.
    """
    place = path
    if os.path.islink(path):
        place = os.path.join(os.path.dirname(path), os.readlink(path))
        if os.path.islink(place):
            raise CannotRegister(
                f"{path}: a link to the link {place} | name the file that is meant"
            )
    return Document(path, place, _text(place), _text(place + BACKUP_SUFFIX))


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


def diff(document: Document, after: str | None) -> str:
    """Return the change as a unified diff, for a person: control characters but tabs are shown as escapes."""
    before = document.text
    old, new = ("/dev/null" if text is None else document.place for text in (before, after))
    return "".join(_closed(difflib.unified_diff(_lines(before), _lines(after), old, new)))


def _lines(text: str | None) -> list[str]:
    """Return the lines as these formats count them: str.splitlines() also ends one at a form feed, a lone \\r and others."""
    lines = [line + "\n" for line in (text or "").split("\n")]
    return lines[:-1] if lines[-1] == "\n" else [*lines[:-1], lines[-1][:-1]]


def _closed(rows: "Iterator[str]") -> "Iterator[str]":
    for row in rows:
        shown = "\t".join(map(printable, row.removesuffix("\n").split("\t"))) + "\n"
        yield shown if row.endswith("\n") else shown + "\\ No newline at end of file\n"


def write(document: Document, after: str, *, back_up: bool) -> None:
    """Replace the file by ``after``, or make it; whoever reads it meanwhile gets the old or the new one, whole.

    :param back_up: keep the file as it is now as the backup; one that was there before is replaced.
    :raises CannotRegister: naming what the kernel did not allow.
    """
    backup = document.place + BACKUP_SUFFIX
    try:
        if document.text is None:
            os.makedirs(os.path.dirname(document.place) or ".", mode=0o755, exist_ok=True)
            # Of a file that somebody has removed since: what comes now starts from nothing.
            with suppress(FileNotFoundError):
                os.unlink(backup)
        elif back_up:
            _put(backup, document.text, document.place)
        _put(document.place, after, document.place)
    except OSError as error:
        raise _refused(error, document.place) from error


def take_back(document: Document, after: str | None) -> None:
    """Replace the file by ``after``, or remove it, and remove its backup: with the registration its purpose is gone.

    :raises CannotRegister: naming what the kernel did not allow.
    """
    try:
        if after is None:
            os.unlink(document.place)
        else:
            _put(document.place, after, document.place)
        with suppress(FileNotFoundError):
            os.unlink(document.place + BACKUP_SUFFIX)
    except OSError as error:
        raise _refused(error, document.place) from error


def _put(path: str, text: str, like: str) -> None:
    """Put ``text`` at ``path`` with the owner and mode of the file ``like``, 0644 where there is none."""
    directory, name = os.path.split(path)
    # A random name, made exclusively: the directory may be somebody else's. Not *.json, *.toml: engines read those.
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
