"""The first moments of the hook: what a runtime hands down is not trusted (SECURITY R3, R4).

runc and crun start hooks with the engine's descriptors, signal mask and working directory; crun blocks every signal and
points stderr to /dev/null. All of that is put into a known state before anything else is looked at.
"""

import _signal
import os

from nvgraft import syscalls
from nvgraft.errors import Refusal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

#: Variables that make the dynamic loader or libc run or read foreign files. Python's own are inert under -I.
_LOADER_VARIABLES = ("LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH", "GLIBC_TUNABLES", "GCONV_PATH")

#: Signals that end a hook and must not leave half of its work behind.
ENDING_SIGNALS = (_signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP, _signal.SIGALRM)


class Interrupted(BaseException):
    """A signal asked the hook to end; whatever was done is taken back on the way out."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def check_environment(environ: "Mapping[str, str]") -> None:
    """Refuse variables that have already changed this very process, or would change a child.

    :raises Refusal: naming the variable and the fix.
    """
    for name in _LOADER_VARIABLES:
        if name in environ:
            hint = "register the hook with an explicit env in config.json: without one a runtime hands down somebody else's"
            raise Refusal("initialization", f"environment variable {name} is set for the hook", hint)


def reset_process() -> str:
    """Put signals, descriptors, umask and working directory into a known state; return the old working directory."""
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
    for number in ENDING_SIGNALS:
        _signal.signal(number, _interrupt)
    for number in (_signal.SIGCHLD, _signal.SIGUSR1, _signal.SIGUSR2):
        _signal.signal(number, _signal.SIG_DFL)
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            # A later open would take its number, and a message would be written into it.
            os.open("/dev/null", os.O_RDWR)
    syscalls.close_range(3, 0xFFFFFFFF)
    os.umask(0o022)
    try:
        directory = os.getcwd()
    except OSError:
        directory = "/"  # it is gone; only a relative root.path needs it, and that cannot be valid then
    os.chdir("/")
    return directory


def _interrupt(number: int, _frame: object) -> None:
    # One is enough: the undo must not be interrupted by the runtime's second try.
    _signal.pthread_sigmask(_signal.SIG_BLOCK, ENDING_SIGNALS)
    raise Interrupted(number)
