"""Shells at a stop: one in the half-made container, one on the simulated node."""

import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import NoReturn

from nvgraft.system import syscalls
from nvgraft_cli.lab.ground import cgroups
from nvgraft_cli.lab.shell_terminal import ShellTerminal
from nvgraft_cli.lab.waiting import WaitingContainer

_NAMESPACES = {
    "user": syscalls.CLONE_NEWUSER,
    "mnt": syscalls.CLONE_NEWNS,
    "uts": syscalls.CLONE_NEWUTS,
    "ipc": syscalls.CLONE_NEWIPC,
    "net": syscalls.CLONE_NEWNET,
    "pid": syscalls.CLONE_NEWPID,
}
_NO_SHELL = 127


def in_container(container: WaitingContainer, command: str | None) -> int:
    """Run a shell in the namespaces, the cgroup and the root of ``container``; return its exit
    code (-N: ended by signal N).

    :param command: for the shell; None for one on this terminal.
    """

    def become() -> None:
        for directory in cgroups.directories(container.name):
            with open(f"{directory}/cgroup.procs", "w", encoding="ascii") as file:
                file.write("0")
        pidfd = syscalls.pidfd_open(container.pid)
        kinds = _other_namespaces(container.pid)
        syscalls.setns(pidfd, kinds)
        os.close(pidfd)
        if kinds & syscalls.CLONE_NEWUSER:
            os.setgid(0)
            os.setuid(0)
        if not container.pivoted:
            os.chroot(container.rootfs)
        os.chdir("/")
        child = os.fork()  # the first process of the pid namespace that it shall be in
        if child:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            _, status = os.waitpid(child, 0)
            code = os.waitstatus_to_exitcode(status)
            if code < 0:
                os.kill(os.getpid(), -code)
            os._exit(code)

    environment = dict(entry.partition("=")[::2] for entry in container.environment)
    return _run(command, environment, become)


def on_node(command: str | None, environment: Mapping[str, str]) -> int:
    """Run a shell on the node. For ``command`` and the result see :func:`in_container`."""
    return _run(command, environment, lambda: None)


def _other_namespaces(pid: int) -> int:
    return sum(
        kind
        for name, kind in _NAMESPACES.items()
        if os.readlink(f"/proc/{pid}/ns/{name}") != os.readlink(f"/proc/self/ns/{name}")
    )


def _run(command: str | None, environment: Mapping[str, str], become: Callable[[], None]) -> int:
    words = ["/bin/sh"] if command is None else ["/bin/sh", "-c", command]
    terminal = ShellTerminal() if command is None else None
    sys.stdout.flush()
    sys.stderr.flush()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the shell
    try:
        shell = os.fork()
        if shell == 0:
            _become_shell(words, environment, become, terminal)
        if terminal is not None:
            terminal.join(shell)
        _, status = os.waitpid(shell, 0)
    finally:
        signal.signal(signal.SIGINT, before)
    return os.waitstatus_to_exitcode(status)


def _become_shell(
    words: list[str],
    environment: Mapping[str, str],
    become: Callable[[], None],
    terminal: ShellTerminal | None,
) -> NoReturn:
    """Replace this child of the lab by a shell; without ``terminal`` it reads nothing."""
    try:
        for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        if terminal is None:
            os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        else:
            terminal.leave_ours()
        become()
        if terminal is not None:
            terminal.take()
        kind = {"TERM": os.environ.get("TERM", "dumb")}
        os.execve(words[0], words, {**kind, **environment})  # noqa: S606
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        print(f"the shell cannot be started: {error.filename or ''}: {reason}", flush=True)
    finally:
        os._exit(_NO_SHELL)
