"""Shells at a stop: one in the half-made container, one on the simulated node."""

import os
import signal
from collections.abc import Mapping

from nvgraft.system import syscalls
from nvgraft_cli.lab.ground import cgroups
from nvgraft_cli.lab.ground.lent_terminal import LentTerminal, run_shell
from nvgraft_cli.lab.waiting import WaitingContainer

_NAMESPACES = {
    "user": syscalls.CLONE_NEWUSER,
    "mnt": syscalls.CLONE_NEWNS,
    "uts": syscalls.CLONE_NEWUTS,
    "ipc": syscalls.CLONE_NEWIPC,
    "net": syscalls.CLONE_NEWNET,
    "pid": syscalls.CLONE_NEWPID,
}


def in_container(
    container: WaitingContainer, command: str | None, terminal: LentTerminal | None
) -> int:
    """Run a shell in the namespaces, the cgroup and the root of ``container``.

    For ``command``, ``terminal`` and the result see :func:`run_shell`.
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
            _, status = os.waitpid(child, os.WUNTRACED)
            while os.WIFSTOPPED(status):
                os.kill(os.getpid(), signal.SIGSTOP)
                _, status = os.waitpid(child, os.WUNTRACED)
            code = os.waitstatus_to_exitcode(status)
            if code < 0:
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                os.kill(os.getpid(), -code)
            os._exit(code)

    environment = dict(entry.partition("=")[::2] for entry in container.environment)
    return run_shell(command, environment, become, terminal)


def on_node(
    command: str | None, environment: Mapping[str, str], terminal: LentTerminal | None
) -> int:
    """Run a shell on the node, as :func:`in_container` does in the container."""
    return run_shell(command, environment, lambda: None, terminal)


def _other_namespaces(pid: int) -> int:
    return sum(
        kind
        for name, kind in _NAMESPACES.items()
        if os.readlink(f"/proc/{pid}/ns/{name}") != os.readlink(f"/proc/self/ns/{name}")
    )
