"""The terminal at which the learner sits, lent to one shell or command at a time.

A command is a process group of its own in the foreground, so that editors and shells with job
control work, and Ctrl-C and Ctrl-Z are for the command. The lab stays in the process group of its
caller, which has no number in the pid namespace of the simulated node. Therefore a process outside
of the node makes that group the foreground again.
"""

import contextlib
import os
import signal
import socket
import sys
import termios
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NoReturn

from nvgraft.system import syscalls
from nvgraft_cli.shell import children

_LEND, _TAKE_BACK = b"l", b"t"
_NO_SHELL = 127


class LentTerminal:
    """The terminal on standard input."""

    def __init__(self, keeper: socket.socket | None) -> None:
        """Keep ``keeper``, the socket of :func:`_keep`; None for a terminal that sends this session
        no signals.
        """
        self._keeper = keeper

    @contextmanager
    def lend(self) -> Iterator[None]:
        """Let a child take the terminal; take it back at the end, in the mode of the beginning."""
        mode = termios.tcgetattr(0)
        self._order(_LEND)
        try:
            yield
        finally:
            self._order(_TAKE_BACK)
            _set_mode(mode)

    def take(self) -> None:
        """Make this process, a child of the lab, the leader of the foreground process group."""
        if self._keeper is None:
            return
        os.setpgid(0, 0)
        before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        os.tcsetpgrp(0, os.getpid())
        signal.signal(signal.SIGTTOU, before)

    def wait(self, child: int) -> int:
        """Wait for the end of a child that takes the terminal, and return its wait status.

        If it is stopped (Ctrl-Z), so is the lab with all of its process group; they go on together.
        """
        while True:
            _, status = os.waitpid(child, 0 if self._keeper is None else os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                return status
            self._stop_with(child)

    def _stop_with(self, child: int) -> None:
        group, mode = os.tcgetpgrp(0), termios.tcgetattr(0)
        self._order(_TAKE_BACK)
        # Without anybody who could continue it (an orphaned group), the kernel stops nothing.
        os.kill(0, signal.SIGTSTP)
        self._order(_LEND)
        _set_mode(mode)
        with contextlib.suppress(OSError):  # the group is gone
            os.tcsetpgrp(0, group)
            os.killpg(group, signal.SIGCONT)
        os.kill(child, signal.SIGCONT)

    def _order(self, what: bytes) -> None:
        if self._keeper is not None:
            with contextlib.suppress(OSError):  # the keeper was killed
                self._keeper.send(what)
                self._keeper.recv(1)


@contextmanager
def terminal_of(*, scripted: bool) -> Iterator[LentTerminal | None]:
    """Yield the terminal of a lab; None for a script, or if standard input is not a terminal.

    Call it outside of the simulated node, and in the process group of the lab.
    """
    if scripted or not os.isatty(0):
        yield None
        return
    try:
        os.tcgetpgrp(0)
    except OSError:  # not the controlling terminal of this session
        yield LentTerminal(None)
        return
    ours, theirs = socket.socketpair()
    keeper = os.fork()
    if keeper == 0:
        ours.close()
        _keep(theirs)
    theirs.close()
    try:
        yield LentTerminal(ours)
    finally:
        ours.close()
        with contextlib.suppress(ChildProcessError):  # it was killed
            os.waitpid(keeper, 0)


@contextmanager
def mode_kept() -> Iterator[None]:
    """Give the terminal on standard input its mode back at the end, even if the lab was killed."""
    if not os.isatty(0):
        yield
        return
    mode = termios.tcgetattr(0)
    try:
        yield
    finally:
        _set_mode(mode)


def run_shell(
    command: str | None,
    environment: Mapping[str, str],
    become: Callable[[], None],
    terminal: LentTerminal | None,
) -> int:
    """Run a shell, and return its exit code (-N: ended by signal N).

    :param command: for the shell; None for one that reads commands from the terminal.
    :param become: brings a child of the lab to the place of the shell.
    :param terminal: is the shell's for its time; without one it reads nothing.
    """
    words = ["/bin/sh"] if command is None else ["/bin/sh", "-c", command]
    sys.stdout.flush()
    sys.stderr.flush()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the shell
    try:
        with contextlib.nullcontext() if terminal is None else terminal.lend():
            shell = os.fork()
            if shell == 0:
                _become_shell(words, environment, become, terminal)
            status = os.waitpid(shell, 0)[1] if terminal is None else terminal.wait(shell)
    finally:
        signal.signal(signal.SIGINT, before)
    return os.waitstatus_to_exitcode(status)


def _become_shell(
    words: list[str],
    environment: Mapping[str, str],
    become: Callable[[], None],
    terminal: LentTerminal | None,
) -> NoReturn:
    try:
        children.restore_signals(signal.SIGINT)
        if terminal is None:
            os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
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


def _keep(orders: socket.socket) -> NoReturn:
    """Make this process group the foreground again when the lab says so, or ends meanwhile."""
    try:
        # If the lab's first process is killed, the terminal belongs to its caller's shell.
        syscalls.set_parent_death_signal(signal.SIGKILL)
        for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTTOU):
            signal.signal(number, signal.SIG_IGN)
        lent = False
        while order := orders.recv(1):
            lent = order == _LEND
            if not lent:
                _to_foreground()
            orders.send(order)
        if lent:
            _to_foreground()
    finally:
        os._exit(0)


def _to_foreground() -> None:
    with contextlib.suppress(OSError):  # the terminal has hung up
        os.tcsetpgrp(0, os.getpgrp())


def _set_mode(mode: list[int | list[bytes | int]]) -> None:
    with contextlib.suppress(termios.error):  # the terminal has hung up
        termios.tcsetattr(0, termios.TCSADRAIN, mode)
