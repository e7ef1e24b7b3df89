"""A shell on a terminal of its own, which the learner's terminal shows while a command runs.

Each interactive bash on that terminal, the first one and those that commands start, is told to
print a mark when a command has ended, and then to wait for the lab. So what is typed while a
command runs is for this command, and what the command has not read goes back to the lab's prompt.
Any other program that reads commands (sh, python3) has the terminal until it ends.
"""

import contextlib
import fcntl
import os
import re
import select
import signal
import stat
import sys
import termios
import tty
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NoReturn

from nvgraft.system import syscalls
from nvgraft_cli.lab.ground.lines import Ended
from nvgraft_cli.lab.hand_shell import (
    BASH,
    CannotRun,
    CommandResult,
    ShellGone,
    ShellPlace,
    place_of,
)
from nvgraft_cli.shell import children

#: Where bash, and what it starts, has the pipe through which the lab lets it go on.
_GATE = 240
#: Where an interactive bash keeps its terminal, and one that runs a script the script.
_FD_OF_BASH = 255
#: Ctrl-], which ends the experiment when it is typed three times in a row.
_ESCAPE = b"\x1d\x1d\x1d"
_INTERRUPT = b"\x03"
#: Bytes that a terminal takes before a program reads, a little less than N_TTY_BUF_SIZE.
_LONGEST = 4000
#: A flag of /proc/PID/stat (PF_FORKNOEXEC): the process still runs the program of its parent.
_FORKED_ONLY = 0x40
_NO_SHELL = 127


class TerminalShell:
    """A bash with a terminal. What a command prints goes to standard output as it comes.

    Standard input must be a terminal.
    """

    def __init__(self, environment: Mapping[str, str], wrapper: str) -> None:
        """Start it.

        :param wrapper: the path of a program to make: bash finds it in $SHELL.
        """
        with open(wrapper, "w", encoding="ascii") as file:
            file.write(f'#!{BASH[0]}\nexec {" ".join(BASH)} "$@"\n')
            os.fchmod(file.fileno(), 0o755)
        mark = uuid.uuid4().hex
        self._mark = f"<{mark} ".encode()
        self._end = re.compile(self._mark + rb"(\d+)>")
        self._adoption = (
            f""" PROMPT_COMMAND='printf "<%s %d>" {mark} $? >&2; read -ru{_GATE} _ 2>&-'"""
            " PS1= PS2=; unset PS0 TMOUT; set +H +o emacs +o vi +o history\n"
        )
        self._adopted: set[tuple[int, bytes]] = set()
        self._typed = b""
        self._master, self._slave = os.openpty()
        os.set_blocking(self._master, False)
        self._sane = termios.tcgetattr(self._slave)
        _copy_size(0, self._master)
        reader, self._gate = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            self._become_shell(reader, {**environment, "SHELL": wrapper, "LC_ALL": "C"})
        os.close(reader)
        self._ended = syscalls.pidfd_open(self._pid)
        self._converse(_HeldOutput(), b"", lent=False)

    def run(self, command: str, *, held: bool) -> CommandResult:
        """Run ``command``, as :meth:`HandShell.run` does.

        :raises CannotRun: it cannot be typed at a terminal.
        """
        if len(command.encode("utf-8", "surrogateescape")) > _LONGEST:
            raise CannotRun(f"it has more than {_LONGEST} bytes: write it to a file, and run that")
        if not all(character.isprintable() or character in "\t\n" for character in command):
            raise CannotRun("it has control characters")
        termios.tcsetattr(self._slave, termios.TCSANOW, self._sane)
        _copy_size(0, self._master)
        os.write(self._gate, b"\n")
        os.write(self._master, f"{command}\n".encode())
        echo = f"{command}\n".replace("\n", "\r\n").encode()
        output = _HeldOutput() if held else _ShownOutput()
        with self._interrupts_passed_on() if held else self._own_terminal_lent():
            code = self._converse(output, echo, lent=not held)
        return CommandResult(output.end(), output.silent, code)

    def unread(self) -> list[str]:
        """Return the lines that were typed for the last command, and that it has not read."""
        lines = b""
        while select.select([self._slave], [], [], 0)[0]:
            lines += os.read(self._slave, 1 << 16)
        termios.tcflush(self._slave, termios.TCIFLUSH)
        found = lines.decode("utf-8", "replace").splitlines()
        return [line for line in found if line.strip() != self._adoption.strip()]

    def place(self) -> ShellPlace | None:
        """Return where the innermost shell is; None if it has just ended."""
        try:
            return place_of(os.tcgetpgrp(self._master))
        except OSError:
            return None

    def end(self) -> None:
        """End the shell. What it has started ends with the node, whose first process is next."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)

    def _become_shell(self, reader: int, environment: Mapping[str, str]) -> NoReturn:
        try:
            children.restore_signals(signal.SIGINT)
            os.login_tty(self._slave)
            os.dup2(reader, _GATE)
            os.chdir("/")
            os.execve(BASH[0], BASH, environment)  # noqa: S606
        finally:
            os._exit(_NO_SHELL)

    def _converse(self, output: "_HeldOutput | _ShownOutput", echo: bytes, *, lent: bool) -> int:
        """Pass on what the terminal shows until a command has ended; return its exit code.

        :param echo: what the terminal shows of the command itself, which is left out.
        :param lent: whether what is typed at standard input is passed on too.
        :raises ShellGone: the first shell has ended.
        """
        pending = b""
        adopting = False
        while True:
            inputs = [self._master, self._ended, *([0] if lent else [])]
            ready = select.select(inputs, [], [])[0]
            if 0 in ready:
                self._pass_on()
            if self._master not in ready:
                if self._ended in ready:
                    raise ShellGone("the shell has ended")
                continue
            pending += os.read(self._master, 1 << 16)
            if echo:
                if len(pending) < len(echo) and echo.startswith(pending):
                    continue
                pending, echo = pending.removeprefix(echo), b""
            if not adopting and self._meets_new_shell():
                adopting = True
                # The rest is its prompt. It prints nothing else before the mark but greetings.
                output.write(pending[: pending.rfind(b"\n") + 1])
                os.write(self._master, self._adoption.encode())
            found = self._end.search(pending)
            text = pending[: found.start() if found else self._before_mark(pending)]
            if not adopting:
                output.write(text)
            if found:
                return int(found[1])
            pending = pending[len(text) :]
            if self._ended in ready:
                raise ShellGone("the shell has ended")

    def _before_mark(self, pending: bytes) -> int:
        """Return how many bytes of ``pending`` cannot be of a mark that is not complete."""
        place = pending.rfind(self._mark)
        if place >= 0:
            return place
        for length in range(min(len(self._mark), len(pending)), 0, -1):
            if pending.endswith(self._mark[:length]):
                return len(pending) - length
        return len(pending)

    def _meets_new_shell(self) -> bool:
        """Tell whether the terminal now belongs to an interactive bash that knows no mark yet."""
        try:
            leader = os.tcgetpgrp(self._master)
            with open(f"/proc/{leader}/stat", "rb") as file:
                facts = file.read().rpartition(b") ")[2].split()
            flags, start_of_stack = int(facts[6]), facts[25]
            kept = os.stat(f"/proc/{leader}/fd/{_FD_OF_BASH}")
        except OSError:
            return False
        # A process that executes another program has another stack.
        known = (leader, start_of_stack)
        if known in self._adopted or flags & _FORKED_ONLY or not stat.S_ISCHR(kept.st_mode):
            return False
        if kept.st_rdev != os.fstat(self._slave).st_rdev:
            return False
        self._adopted.add(known)
        return True

    def _pass_on(self) -> None:
        """Type at the shell's terminal what is typed at standard input.

        :raises KeyboardInterrupt: the person wants to end the experiment.
        """
        try:
            data = os.read(0, 1 << 12)
        except OSError:  # EIO: the terminal has hung up
            data = b""
        if not data:
            raise Ended
        if _ESCAPE in self._typed + data:
            raise KeyboardInterrupt
        self._typed = (self._typed + data)[-len(_ESCAPE) + 1 :]
        self._type(data)

    def _type(self, data: bytes) -> None:
        with contextlib.suppress(BlockingIOError):  # lost: nobody reads what was typed before
            os.write(self._master, data)

    @contextmanager
    def _own_terminal_lent(self) -> Iterator[None]:
        """Let standard input and output pass on each byte as it is."""
        sys.stdout.flush()
        mode = termios.tcgetattr(0)
        before = signal.signal(signal.SIGWINCH, lambda *_: _copy_size(0, self._master))
        tty.setraw(0, termios.TCSADRAIN)
        try:
            yield
        finally:
            termios.tcsetattr(0, termios.TCSADRAIN, mode)
            signal.signal(signal.SIGWINCH, before)

    @contextmanager
    def _interrupts_passed_on(self) -> Iterator[None]:
        """Let Ctrl-C end the command alone."""
        before = signal.signal(signal.SIGINT, lambda *_: self._type(_INTERRUPT))
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


class _HeldOutput:
    """Output that is kept, for the lab to print."""

    def __init__(self) -> None:
        self._said = b""

    @property
    def silent(self) -> bool:
        return not self._said

    def write(self, data: bytes) -> None:
        """Take output."""
        self._said += data

    def end(self) -> list[str]:
        """Return its lines."""
        return self._said.decode("utf-8", "replace").replace("\r\n", "\n").splitlines()


class _ShownOutput:
    """Output that standard output shows."""

    def __init__(self) -> None:
        self._last = b""

    @property
    def silent(self) -> bool:
        return not self._last

    def write(self, data: bytes) -> None:
        """Show output."""
        self._last = data[-1:] or self._last
        while data:
            data = data[os.write(1, data) :]

    def end(self) -> list[str]:
        """End the last line; no line is left to print."""
        if self._last not in (b"", b"\n"):
            self.write(b"\n")
        return []


def _copy_size(source: int, target: int) -> None:
    """Give the terminal ``target`` the size of ``source``."""
    with contextlib.suppress(OSError):
        size = fcntl.ioctl(source, termios.TIOCGWINSZ, bytes(8))
        fcntl.ioctl(target, termios.TIOCSWINSZ, size)
