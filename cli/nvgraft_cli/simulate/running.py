"""Make a simulated host and run something there.

The first child leaves the mount and pid namespaces of this machine. Its child is the first process
of the new namespaces, builds the host, and starts the work. When the work ends, the kernel kills
all other processes of its pid namespace, and the mounts disappear with the last process. The mounts
are made by :mod:`nvgraft_cli.simulate.sandbox`, the host by
:mod:`nvgraft_cli.simulate.host_maker`.
"""

import errno
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nvgraft.base.errors import printable
from nvgraft.system import syscalls
from nvgraft_cli.shell import logs, nodes
from nvgraft_cli.shell.children import wait_for
from nvgraft_cli.shell.errors import InputError
from nvgraft_cli.shell.output import SIMULATED_DOCUMENT
from nvgraft_specs import gallery

if TYPE_CHECKING:
    from nvgraft_cli.simulate.standins.failures import HostFailure
    from nvgraft_specs.models.host import Host

DOCUMENT = SIMULATED_DOCUMENT

#: The exit code for an error before the work starts: input, or a machine that forbids it.
TROUBLE = 2


def read_host(name: str) -> "tuple[str, bytes, Host]":
    """Return the path, the text and the host of a name of the gallery or the path of a document.

    :raises InputError: there is none.
    :raises nvgraft_specs.documents.DocumentError: it is not a host document.
    """
    from nvgraft_specs.documents import read_bytes
    from nvgraft_specs.models.host import parse_host

    path = gallery.path(name) if name in gallery.names() else name
    if path == name and not os.path.exists(name):
        from nvgraft_cli.shell.parser import nearest

        there = ", ".join(gallery.names())
        raise InputError(
            f"there is no simulated host and no file {name!r}{nearest(name, gallery.names())}"
            f" | name one of {there},"
            " or the path of a host document"
        )
    snapshot = read_bytes(path)
    return path, snapshot, parse_host(snapshot, path)


def on_host(
    host: "Host",
    snapshot: bytes,
    work: Callable[[], int],
    *,
    failures: "Sequence[HostFailure]" = (),
    compiled: bool = True,
    announce: Callable[[int, str], None] | None = None,
) -> int:
    """Run ``work`` on ``host``, in a process of its own, and return its exit code. Needs root.

    :param snapshot: the text of the host's document.
    :param compiled: False acts as if there were no compiler.
    :param announce: called once the host is made, in its first process, with the number that this
        process has outside, and its start time.
    """
    from nvgraft_cli.simulate import answering, host_maker, sandbox
    from nvgraft_cli.simulate.standins import failures as applying
    from nvgraft_cli.simulate.standins.build import CannotCompile
    from nvgraft_cli.simulate.standins.data import has_fabric

    def become_first() -> int:
        syscalls.set_parent_death_signal(signal.SIGKILL)
        # /proc is still this machine's, which numbers processes as those outside see them.
        pid = int(os.readlink("/proc/self"))
        start = nodes.start_time(pid)
        libraries: dict[str, bytes] = {}
        notes = []
        try:
            # What is compiled is kept under /run, of which the simulated host has another one.
            libraries = answering.stand_ins(host) if compiled else {}
        except CannotCompile as error:
            notes = [str(error)]
        notes += sandbox.enter() + host_maker.make(host, snapshot, libraries)
        Path(DOCUMENT).write_bytes(snapshot)
        if has_fabric(host):
            _start_fabric_manager()
        for note in notes:
            logs.get().info(note)
        applying.apply(failures, host)
        if announce is not None:
            announce(pid, start)
        logs.debug("made", host=host.name, gpus=len(host.nvml.gpus), nvml=compiled)
        return _in_child(work)

    def leave_namespaces() -> int:
        syscalls.set_parent_death_signal(signal.SIGKILL)
        syscalls.unshare(syscalls.CLONE_NEWNS | syscalls.CLONE_NEWPID)
        return _in_child(become_first)

    return _in_child(leave_namespaces)


def complain(message: str) -> int:
    """Print an error, and return the exit code of trouble."""
    print(printable(f"nvgraft simulate: {message}"), file=sys.stderr)
    return TROUBLE


def _start_fabric_manager() -> None:
    """Start a process with the name of fabric manager, which a host with NVSwitches has."""
    from nvgraft_cli.simulate.standins.failures import FABRIC_MANAGER

    if os.fork() == 0:
        Path("/proc/self/comm").write_text(FABRIC_MANAGER, encoding="ascii")
        while True:  # the kernel ends it with the first process
            signal.pause()


def _in_child(main: Callable[[], int]) -> int:
    """Run ``main`` in a child, and return its exit code as :func:`wait_for` does."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        code = TROUBLE
        try:
            code = main()
        except (OSError, ValueError) as error:
            complain(_explain(error))
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return wait_for(pid)


def _explain(error: OSError | ValueError) -> str:
    from nvgraft_cli.simulate.standins.failures import UnknownFailure

    if isinstance(error, UnknownFailure):
        return f"--fail: {error}"
    if isinstance(error, OSError) and error.errno in (errno.EPERM, errno.EACCES):
        return (
            f"{error} | this machine forbids mounts or device nodes:"
            " run the command outside of a container, or in a privileged one"
        )
    if isinstance(error, syscalls.SyscallError) and "overlay" in error.call:
        return f"{error} | the kernel has no overlay file system: modprobe overlay"
    return f"{error} | the simulated host could not be built, nothing was changed"
