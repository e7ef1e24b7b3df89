"""Read a configuration file, show a change as a diff, back the file up, and replace it
atomically.
"""

import difflib
import errno
import os
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nvgraft.base import files
from nvgraft.base.errors import printable
from nvgraft.system import syscalls
from nvgraft_cli.shell import logs
from nvgraft_cli.shell.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Suffix of the backup beside a changed file, which is kept as long as the registration.
BACKUP_SUFFIX = ".nvgraft-backup"

#: The most bytes of a configuration file. Edits and the diff take up to 150 times as much memory.
LIMIT = 1 << 20


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
    #: The status of the file that was read; None if it does not exist.
    seen: os.stat_result | None = None


def read(path: str) -> ConfigFile:
    """Read the file ``path``, through one symbolic link, and its backup.

    :raises CannotRegister: ``path`` is not a regular file of readable UTF-8 text.
    """
    place = path
    if os.path.islink(path):
        place = os.path.join(os.path.dirname(path), os.readlink(path))
        if os.path.islink(place):
            raise CannotRegister(f"{path}: a link to the link {place} | name the file itself")
    text, seen = _read(place)
    backup, _ = _read(place + BACKUP_SUFFIX)
    logs.debug("read", file=place, exists=text is not None, backup=backup is not None)
    return ConfigFile(path, place, text, backup, seen)


def _read(path: str) -> tuple[str, os.stat_result] | tuple[None, None]:
    """Return the text and the status of a file, or None for both if it does not exist."""
    try:
        fd = files.open_file(path)
    except FileNotFoundError:
        return None, None
    except OSError as error:
        raise CannotRegister(f"{path}: {files.reason(error)} | {_FIX}") from error
    try:
        return files.read_fd(fd, LIMIT).decode(), os.fstat(fd)
    except OSError as error:
        why = f": it has more than {LIMIT} bytes" if error.errno == errno.EFBIG else ""
        raise CannotRegister(f"{path}: {files.reason(error)}{why} | {_FIX}") from error
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
    :raises CannotRegister: another program has changed the file since it was read (SECURITY R46),
        or the kernel refused it.
    """
    drafts: list[str] = []
    try:
        if file.text is None:
            os.makedirs(os.path.dirname(file.place) or ".", mode=0o755, exist_ok=True)
        for text in (after, file.text) if back_up else (after,):
            _draft(file, text or "", drafts)
        _exchange(file, drafts)
        backup = file.place + BACKUP_SUFFIX
        if back_up:
            os.replace(drafts[1], backup)
        elif file.text is None:
            # A backup of a file that was removed since has no meaning any more.
            with suppress(FileNotFoundError):
                os.unlink(backup)
    except OSError as error:
        raise _refused(error, file.place) from error
    finally:
        _drop(drafts)


def take_back(file: ConfigFile, after: str | None) -> None:
    """Replace the file by ``after`` or remove it, and remove its backup.

    :raises CannotRegister: another program has changed the file since it was read (SECURITY R46),
        or the kernel refused it.
    """
    drafts: list[str] = []
    try:
        _draft(file, after or "", drafts)
        if after is None:
            _take_away(file, drafts)
        else:
            _exchange(file, drafts)
        with suppress(FileNotFoundError):
            os.unlink(file.place + BACKUP_SUFFIX)
    except OSError as error:
        raise _refused(error, file.place) from error
    finally:
        _drop(drafts)


def _draft(file: ConfigFile, text: str, drafts: list[str]) -> None:
    """Write ``text`` to a new file beside the file, with its owner and mode, and add the new name
    to ``drafts``.
    """
    directory, name = os.path.split(file.place)
    # A random, exclusive name, since others may write to the directory; not *.json or *.toml, which
    # engines read.
    fd, draft = tempfile.mkstemp(prefix=f".{name}.", suffix=".nvgraft-new", dir=directory or ".")
    drafts.append(draft)
    with os.fdopen(fd, "wb") as written:
        written.write(text.encode())
        if file.seen is None:
            os.fchmod(fd, 0o644)
        else:
            os.fchown(fd, file.seen.st_uid, file.seen.st_gid)
            os.fchmod(fd, stat.S_IMODE(file.seen.st_mode))
        written.flush()
        os.fsync(fd)


def _drop(drafts: list[str]) -> None:
    for draft in drafts:
        with suppress(OSError):
            os.unlink(draft)


def _exchange(file: ConfigFile, drafts: list[str]) -> None:
    """Put the first draft in the place of the file, which gets the draft's name.

    The names are exchanged first, and the file is compared with what was read afterwards: there is
    no moment between the comparison and the change in which a save is lost.

    :raises CannotRegister: it is another file now. It has its place again.
    """
    draft = drafts[0]
    new = file.text is None
    flag = syscalls.RENAME_NOREPLACE if new else syscalls.RENAME_EXCHANGE
    try:
        exchanged = _rename(draft, file.place, flag)
    except OSError as error:
        if error.errno in {errno.EEXIST, errno.ENOENT}:
            raise _changed(file) from error
        raise
    if not exchanged:
        if os.path.lexists(file.place) if new else not _is_as_read(file, file.place):
            raise _changed(file)
        os.replace(draft, file.place)
    elif not new and not _is_as_read(file, draft):
        del drafts[0]  # this name now has the file of another program
        try:
            ours = os.lstat(file.place)
            _rename(draft, file.place, flag)
            once = os.path.samestat(os.lstat(draft), ours)
        except OSError:
            once = False
        if not once:
            raise CannotRegister(
                f"{file.path}: another program has changed it twice meanwhile: one of its files is"
                f" {draft} | compare both files, remove that one, and run the command again"
            )
        drafts.append(draft)
        raise _changed(file)


def _take_away(file: ConfigFile, drafts: list[str]) -> None:
    """Remove the file, which gets the name of the first draft.

    :raises CannotRegister: it is another file now. It has its place again.
    """
    draft = drafts[0]
    os.rename(file.place, draft)
    if not _is_as_read(file, draft):
        del drafts[0]  # this name now has the file of another program
        os.link(draft, file.place)
        drafts.append(draft)
        raise _changed(file)


def _changed(file: ConfigFile) -> CannotRegister:
    return CannotRegister(
        f"{file.path}: another program has changed it meanwhile: nothing was changed"
        " | run the command again"
    )


def _rename(old: str, new: str, flags: int) -> bool:
    """Rename with ``flags``; return False if the kernel or the file system does not know them."""
    try:
        syscalls.rename(old, new, flags)
    except syscalls.SyscallError as error:
        if error.errno in {errno.EINVAL, errno.ENOSYS}:
            return False
        raise
    return True


def _is_as_read(file: ConfigFile, place: str) -> bool:
    """Tell whether the file at ``place`` is the one that was read, and has not been changed."""
    try:
        text, seen = _read(place)
    except CannotRegister:
        return False
    return (
        seen is not None
        and file.seen is not None
        and text == file.text
        and os.path.samestat(seen, file.seen)
        and (seen.st_mode, seen.st_uid, seen.st_gid)
        == (file.seen.st_mode, file.seen.st_uid, file.seen.st_gid)
    )


def _refused(error: OSError, path: str) -> CannotRegister:
    hint = " | run it as root" if os.geteuid() != 0 else ""
    return CannotRegister(f"{path}: cannot be changed: {files.reason(error)}{hint}")
