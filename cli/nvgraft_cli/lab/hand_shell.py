"""A shell that obeys one command at a time, and the processes in which its commands end up."""

import os
import re
import select
import signal
import subprocess
import uuid
from collections.abc import Mapping
from typing import NamedTuple

from nvgraft_cli.lab.looks import (
    Look,
    differ,
    difference_of_mounts,
    files_of,
    line_of,
    mounts_of,
)

BASH = ("/bin/bash", "--norc", "--noprofile")
#: Mounts and files that are listed one by one.
_SHORT = 12
#: Seconds without a word that a command without a terminal may take.
PATIENCE = 60.0
#: Bytes that such a command may print.
_MOST_OUTPUT = 16 << 20
#: What bash says of a command that goes on in the next line.
_UNFINISHED = re.compile("unexpected end of file|unexpected EOF|delimited by end-of-file")


class ShellGone(Exception):
    """The shell has ended, or a command in it does not end."""


class CannotRun(Exception):
    """The shell cannot be told this command. The text says why."""


class CommandResult(NamedTuple):
    """What a command has come to.

    :ivar lines: its output, unless a terminal has shown it; ``silent``: whether there was none.
    """

    lines: list[str]
    silent: bool
    code: int


class ShellPlace(NamedTuple):
    """Where the innermost shell is: its namespaces, directory and user, and its mounts.

    :ivar files: those below its directory; none of the root directory.
    """

    mount_namespace: str
    pid_namespace: str
    directory: str
    user: str
    mounts: tuple[tuple[str, str], ...]
    files: dict[str, str]


class HandShell:
    """A bash without a terminal. Shells that it starts read their commands from the same pipe."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            BASH,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**environment, "SHELL": BASH[0], "LC_ALL": "C"},
            start_new_session=True,  # a terminal's signals are for the lab
            cwd="/",
        )

    def run(self, command: str, *, held: bool) -> CommandResult:
        """Run ``command``.

        :param held: whether its output is returned, not shown on the terminal, if there is one.
        :raises ShellGone: there is no shell any more that could tell, or it does not end.
        """
        mark = f"--{uuid.uuid4().hex}--"
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(f"{command}\nprintf '\\n%s %s\\n' {mark} $?\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise ShellGone("the shell has ended") from error
        said = bytearray()
        fd = self._process.stdout.fileno()
        end = re.compile(rf"\n{mark} (\d+)\n".encode())
        looked_at = 0
        while (found := end.search(said, max(0, looked_at - len(mark) - 8))) is None:
            looked_at = len(said)
            if len(said) > _MOST_OUTPUT:
                raise ShellGone(f"the command has printed more than {_MOST_OUTPUT >> 20} MiB")
            if not select.select([fd], [], [], PATIENCE)[0]:
                raise ShellGone(f"the command has not ended for {PATIENCE:g} s")
            data = os.read(fd, 1 << 16)
            if not data:
                raise ShellGone("the shell has ended")
            said += data
        output, code = said[: found.start()], int(found[1])
        lines = output.decode("utf-8", "replace").splitlines()
        return CommandResult(lines, not lines, code)

    def unread(self) -> list[str]:
        """Return no lines: the commands read nothing that anybody types."""
        return []

    def place(self) -> ShellPlace | None:
        """Return where the innermost shell is; None if it has just ended."""
        try:
            return place_of(self._innermost())
        except OSError:
            return None

    def end(self) -> None:
        """End the shell and everything that it has started."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self._process.wait()

    def _innermost(self) -> int:
        """Return the process that reads the next command."""
        pid = self._process.pid
        pipe = os.readlink(f"/proc/{pid}/fd/0")
        # bash gives commands in the background another standard input.
        while children := [child for child in _children(pid) if _input_of(child) == pipe]:
            pid = children[0]
        return pid


def mistake_in(command: str) -> tuple[str, bool]:
    """Return what is wrong with the syntax of ``command``, or "", and whether it goes on in the
    next line.
    """
    checked = subprocess.run(
        [*BASH, "-n", "-c", command],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LC_ALL": "C"},
    )
    message = checked.stderr.strip().rpartition(": ")[2] if checked.returncode else ""
    slashes = len(command) - len(command.rstrip("\\"))
    return message, bool(_UNFINISHED.search(checked.stderr)) or slashes % 2 == 1


def place_of(pid: int) -> ShellPlace:
    """Return where the process ``pid`` is.

    :raises OSError: it has ended.
    """
    status = os.stat(f"/proc/{pid}")
    directory = os.readlink(f"/proc/{pid}/cwd")
    return ShellPlace(
        os.readlink(f"/proc/{pid}/ns/mnt"),
        os.readlink(f"/proc/{pid}/ns/pid"),
        directory,
        f"{status.st_uid}:{status.st_gid}",
        mounts_of(pid, ""),
        {} if directory == "/" else files_of(pid, directory),
    )


def _children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return [int(word) for word in file.read().split()]


def _input_of(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/0")
    except OSError:
        return ""  # it has just ended


def effects(before: ShellPlace | None, after: ShellPlace | None) -> list[str]:
    """Return how the place of the innermost shell has changed."""
    if before is None or after is None:
        return []
    lines = []
    if after.mount_namespace != before.mount_namespace:
        lines.append("the shell is in another mount namespace")
    if after.pid_namespace != before.pid_namespace:
        lines.append("the shell is in another pid namespace")
    if after.user != before.user:
        lines.append(f"the user is {after.user}")
    if after.directory != before.directory:
        lines.append(f"the directory is {after.directory}")
    sides = [
        [_from(after.directory, row) for row in rows]
        for rows in difference_of_mounts(before.mounts, after.mounts)
    ]
    lines += _listed("+", "mount", sides[0]) + _listed("-", "mount", sides[1])
    if before.directory == after.directory:
        changes = differ(_look(before), _look(after))
        # Of mounts, files_of() lists those in a tmpfs.
        closed = tuple(
            f"{point}/"
            for side in changes.mounts
            for point, words in side
            if not words.startswith("tmpfs")
        )
        for sign, entries in zip("+-", changes.files, strict=True):
            rows = [f".{line_of(entry)}" for entry in entries if not entry[0].startswith(closed)]
            lines += _listed(sign, "file", rows)
        rows = [f".{path}: {was} -> {now}" for path, was, now in changes.changed]
        lines += _listed("~", "file", rows)
    return lines


def _look(place: ShellPlace) -> Look:
    below = [
        (point[len(place.directory) :], words)
        for point, words in place.mounts
        if point.startswith(f"{place.directory}/")
    ]
    return Look(tuple(below), place.files, frozenset(), False)


def _from(directory: str, row: str) -> str:
    """Return a mount as it is called in ``directory``."""
    inside = directory.rstrip("/")
    return f".{row[len(inside) :]}" if row.startswith(f"{inside}/") else row


def _listed(sign: str, kind: str, rows: list[str]) -> list[str]:
    if len(rows) > _SHORT:
        return [f"{sign} {len(rows)} {kind}s; the first is {rows[0]}"]
    return [f"{sign} {kind} {row}" for row in rows]
