"""A terminal of its own for a shell of the lab, joined to the one at which the learner sits.

A shell with job control gives its terminal to process groups of its own. In another pid namespace
it does not see the lab's group, and could not give a shared terminal back.
"""

import errno
import fcntl
import os
import select
import signal
import termios
import tty
from types import FrameType

from nvgraft.system import syscalls

_PIECE = 1 << 16
#: Pieces of output that a shell may leave behind when it ends.
_LAST_PIECES = 16


class ShellTerminal:
    """A pseudo-terminal as large as that of standard input."""

    def __init__(self) -> None:
        self._ours, self._theirs = os.openpty()
        self._resize()

    def take(self) -> None:
        """Make it the terminal and the standard streams of this process, a child of the lab."""
        os.login_tty(self._theirs)

    def leave_ours(self) -> None:
        """Close the lab's side in a child, so that the lab's end hangs the terminal up."""
        os.close(self._ours)

    def join(self, shell: int) -> None:
        """Pass on what is typed and what is printed, until the process ``shell`` ends."""
        os.close(self._theirs)
        ended = syscalls.pidfd_open(shell)
        mode = termios.tcgetattr(0)
        before = signal.signal(signal.SIGWINCH, self._resize)
        try:
            tty.setraw(0)
            while True:
                ready, _, _ = select.select([0, self._ours, ended], [], [])
                if ended in ready:
                    self._show_rest()
                    return
                if self._ours in ready:
                    self._show()
                if 0 in ready:
                    os.write(self._ours, os.read(0, _PIECE))
        finally:
            termios.tcsetattr(0, termios.TCSADRAIN, mode)
            signal.signal(signal.SIGWINCH, before)
            os.close(ended)
            os.close(self._ours)

    def _show_rest(self) -> None:
        for _ in range(_LAST_PIECES):
            if not select.select([self._ours], [], [], 0)[0] or not self._show():
                return

    def _show(self) -> bool:
        """Print what the shell has written, and tell whether there may be more."""
        try:
            data = os.read(self._ours, _PIECE)
        except OSError as error:
            if error.errno != errno.EIO:  # everybody has closed the shell's side
                raise
            return False
        while data:
            data = data[os.write(1, data) :]
        return True

    def _resize(self, _number: int = 0, _frame: FrameType | None = None) -> None:
        size = fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8))
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, size)
