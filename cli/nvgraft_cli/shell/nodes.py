"""Simulated nodes with a name: ``nvgraft simulate --name`` registers one while it runs, and --node
runs a command on it.

A node is a file that its processes keep locked. The kernel unlocks it with the last of them, so
that a node whose processes were killed is not found.
"""

from __future__ import annotations

import fcntl
import os
import re
import sys

from nvgraft.base.files import reason
from nvgraft.system import syscalls
from nvgraft.system.rundir import open_private, require_private, unlike_ours
from nvgraft_cli.shell.children import wait_for
from nvgraft_cli.shell.errors import InputError

#: The directory of the files; only root can read it.
DIRECTORY = "/run/nvgraft/nodes"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
#: Bytes: the number of a process, and its start time.
_LIMIT = 64


class Registration:
    """A context in which a simulated node has a name. Its file is locked until all holders end."""

    def __init__(self, name: str) -> None:
        """Register ``name``, whose node is not reachable before :meth:`announce`.

        :raises InputError: the name is not one, or a node with this name runs.
        :raises nvgraft.base.errors.Refusal: there is no directory for it.
        """
        if not _NAME.fullmatch(name):
            raise InputError(
                f"--name {name}: not a name | use at most 64 letters, digits, dots and hyphens"
            )
        directory = require_private(DIRECTORY)
        if directory is None:
            raise InputError(f"{DIRECTORY}: not accessible | run the command as root")
        self._directory = directory
        self._name = name
        self._fd = self._lock()

    def _lock(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        while True:
            fd = os.open(self._name, flags, 0o600, dir_fd=self._directory)
            if not _try_lock(fd, fcntl.LOCK_EX):
                os.close(fd)
                raise InputError(
                    f"--name {self._name}: a simulated node with this name runs"
                    " | choose another name"
                )
            if os.fstat(fd).st_nlink:  # the node before has not just removed this file
                os.ftruncate(fd, 0)
                return fd
            os.close(fd)

    def announce(self, pid: int, start: str) -> None:
        """Make the node reachable. Its first process, which has just made it, calls this.

        :param pid: the number of the first process outside of the node.
        :param start: its start time, as :func:`start_time` returns it.
        """
        os.pwrite(self._fd, f"{pid} {start}\n".encode(), 0)

    def __enter__(self) -> Registration:
        return self

    def __exit__(self, *_: object) -> None:
        os.unlink(self._name, dir_fd=self._directory)
        os.close(self._fd)
        os.close(self._directory)


def start_time(pid: int | str) -> str:
    """Return the start time of a process, which tells it from a later one with its number.

    :raises OSError: there is no such process.
    """
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        # The name of the program, in parentheses, can have blanks: field 22 counts from behind it.
        return file.read().rpartition(")")[2].split()[19]


def names() -> list[str]:
    """Return the names of the nodes that run."""
    directory = open_private(DIRECTORY, create=False)
    if directory is None:
        return []
    running = []
    try:
        for name in sorted(os.listdir(directory)):
            process = _first_process(directory, name)
            if process is not None:
                os.close(process)
                running.append(name)
    finally:
        os.close(directory)
    return running


def enter(name: str) -> None:
    """Go on as a process of the node ``name``: in its namespaces of mounts and processes.

    The caller forks. The child returns, in the caller's directory if the node has it. The parent
    waits for the child and exits with its exit code.

    :raises InputError: there is no such node, or the caller may not enter it.
    """
    if os.geteuid() != 0:
        raise InputError(f"--node {name}: only root can enter a simulated node | use sudo")
    node = _open(name)
    directory = os.getcwd()
    sys.stdout.flush()
    try:
        syscalls.setns(node, syscalls.CLONE_NEWPID)  # for the child
        child = os.fork()
        if child:
            raise SystemExit(wait_for(child))
        syscalls.setns(node, syscalls.CLONE_NEWNS)
    except OSError as error:
        raise InputError(
            f"--node {name}: cannot be entered: {reason(error)} | run the command outside of a"
            " container, or in a privileged one"
        ) from error
    os.close(node)
    try:
        os.chdir(directory)
    except OSError:
        os.chdir("/")


def _open(name: str) -> int:
    """Return a pidfd of the first process of the node ``name``."""
    directory = open_private(DIRECTORY, create=False)
    running: list[str] = []
    if directory is not None:
        try:
            found = _first_process(directory, name) if _NAME.fullmatch(name) else None
            if found is not None:
                return found
        finally:
            os.close(directory)
        running = names()
    there = f"name one of {', '.join(running)}, or start it" if running else "start it"
    raise InputError(
        f"--node {name}: no simulated node with this name runs | {there}:"
        f" nvgraft simulate --name {name} HOST -- COMMAND"
    )


def _first_process(directory: int, name: str) -> int | None:
    """Return a pidfd of the first process of a node, or None if it does not run (yet)."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(name, flags, dir_fd=directory)
    except OSError:
        return None
    try:
        if unlike_ours(os.fstat(fd), _LIMIT) or _try_lock(fd, fcntl.LOCK_SH):
            return None
        pid, _, start = os.read(fd, _LIMIT).decode("ascii", "replace").strip().partition(" ")
        if not pid.isdecimal():
            return None
        process = syscalls.pidfd_open(int(pid))
        if start_time(pid) == start:
            return process
        os.close(process)
    except OSError:
        return None
    finally:
        os.close(fd)
    return None


def _try_lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
