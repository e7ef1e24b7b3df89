"""A shell that obeys one command at a time, and the processes in which its commands end up."""

import os
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

_BASH = ["/bin/bash", "--norc", "--noprofile"]
#: Mounts and files that are listed one by one.
_SHORT = 12
#: Seconds that a command may take.
PATIENCE = 60.0


class ShellGone(Exception):
    """The shell has ended, or a command in it does not end."""


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
            _BASH,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**environment, "SHELL": _BASH[0], "LC_ALL": "C"},
            start_new_session=True,  # a terminal's signals are for the lab
            cwd="/",
        )

    def mistake(self, command: str) -> str:
        """Return what is wrong with the syntax of ``command``, or ""."""
        checked = subprocess.run(
            [*_BASH, "-n", "-c", command], capture_output=True, text=True, check=False
        )
        return checked.stderr.strip().rpartition(": ")[2] if checked.returncode else ""

    def run(self, command: str) -> tuple[list[str], int]:
        """Return the output of ``command`` and its exit code.

        :raises ShellGone: there is no shell any more that could tell.
        """
        mark = f"--{uuid.uuid4().hex}--"
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(f"{command}\nprintf '\\n%s %s\\n' {mark} $?\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise ShellGone("the shell has ended") from error
        said = b""
        fd = self._process.stdout.fileno()
        end = f"\n{mark} ".encode()
        while end not in said or not said.endswith(b"\n"):
            if not select.select([fd], [], [], PATIENCE)[0]:
                raise ShellGone(f"the command has not ended for {PATIENCE:g} s")
            data = os.read(fd, 1 << 16)
            if not data:
                raise ShellGone("the shell has ended")
            said += data
        output, _, code = said.rpartition(end)
        return output.decode("utf-8", "replace").splitlines(), int(code)

    def place(self) -> ShellPlace | None:
        """Return where the innermost shell is; None if it has just ended."""
        pid = self._process.pid
        try:
            while children := _children(pid):
                pid = children[0]
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
        except OSError:
            return None

    def end(self) -> None:
        """End the shell and everything that it has started."""
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self._process.wait()


def _children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return [int(word) for word in file.read().split()]


def effects(before: ShellPlace | None, after: ShellPlace | None) -> list[str]:
    """Return how the place of the innermost shell has changed."""
    if before is None or after is None:
        return []
    lines = []
    if after.mount_namespace != before.mount_namespace:
        lines.append("the shell is in a new mount namespace")
    if after.pid_namespace != before.pid_namespace:
        lines.append("the shell is in a new pid namespace")
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
    return f".{row[len(directory) :]}" if row.startswith(f"{directory.rstrip('/')}/") else row


def _listed(sign: str, kind: str, rows: list[str]) -> list[str]:
    if len(rows) > _SHORT:
        return [f"{sign} {len(rows)} {kind}s; the first is {rows[0]}"]
    return [f"{sign} {kind} {row}" for row in rows]
