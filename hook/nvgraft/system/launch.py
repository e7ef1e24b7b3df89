"""The first moments of the hook: what a runtime hands down is not trusted (SECURITY R3, R4, R40).

runc and crun start hooks with the engine's descriptors, signal mask and working directory; crun blocks every signal and
points stderr to /dev/null. All of that is put into a known state before anything else is looked at. What the process may
do after that, and what it gives up on the way, is :mod:`nvgraft.system.privileges`.
"""

from __future__ import annotations

import _signal
import sys

from nvgraft.base._os import os
from nvgraft.base.errors import Refusal
from nvgraft.base.files import reason
from nvgraft.system import syscalls
from nvgraft_specs.names import HOOK_TIMEOUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

#: Variables that make the dynamic loader or libc run or read foreign files. Python's own are inert under -I.
LOADER_VARIABLES = ("LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH", "GLIBC_TUNABLES", "GCONV_PATH")

#: Signals that end a hook and must not leave half of its work behind.
ENDING_SIGNALS = (_signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP, _signal.SIGALRM)

#: Seconds after which the hook gives up by itself, takes everything back and says so: the runtime would kill it.
DEADLINE = HOOK_TIMEOUT - 15

#: Python ignores these, and turns what they stand for into errors.
_IGNORED = (_signal.SIGPIPE, _signal.SIGXFSZ)
_FIXED = (_signal.SIGKILL, _signal.SIGSTOP)


class Interrupted(BaseException):
    """A signal asked the hook to end; whatever was done is taken back on the way out."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    def line(self, program: str = "nvgraft") -> str:
        """The message for stderr."""
        if self.number == _signal.SIGALRM:
            return f"{program}: not done after {DEADLINE} s, and a runtime waits for {HOOK_TIMEOUT} s; everything was undone"
        return f"{program}: interrupted by signal {self.number}; everything was undone"


def check_interpreter() -> None:
    """Refuse an interpreter that has searched the caller's directories for modules.

    It only detects: what was planted there has run by now. The installer's first line, and an explicit env, prevent it.

    :raises Refusal: with the fix.
    """
    if not (sys.flags.isolated and sys.flags.no_site):
        hint = "run the nvgraft-hook that ./dev install writes; its first line starts Python with -I -S -B"
        raise Refusal("initialization", "the Python interpreter of the hook is not isolated", hint)


class Interruptible:
    """A context in which a signal ends the hook at once; around it, see :func:`hold_signals`, signals wait."""

    __slots__ = ("_mask",)

    def __enter__(self) -> None:
        self._mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, ())
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, ENDING_SIGNALS)

    def __exit__(self, *_error: object) -> None:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, self._mask)


def hold_signals() -> None:
    """From here on let signals wait, until :func:`take_signals` or an :class:`Interruptible`.

    A signal must not come between a change and the note of how to take it back, which to the interpreter are two steps.
    """
    _signal.pthread_sigmask(_signal.SIG_BLOCK, ENDING_SIGNALS)


def take_signals() -> None:
    """Let a signal that is waiting end the hook here.

    :raises Interrupted: when there is one.
    """
    with Interruptible():
        pass


def check_environment(environ: Mapping[str, str]) -> None:
    """Refuse variables that have already changed this very process, or would change a child.

    :raises Refusal: naming the variable and the fix.
    """
    for name in LOADER_VARIABLES:
        if name in environ:
            hint = "register the hook with an explicit env in config.json: without one a runtime hands down somebody else's"
            raise Refusal(
                "initialization", f"environment variable {name} is set for the hook", hint
            )


def check_identity() -> None:
    """Refuse to work for a caller with fewer rights than this process has.

    :raises Refusal: stage ``permission``, in the reference's words.
    """
    if (
        len(set(os.getresuid())) > 1
        or len(set(os.getresgid())) > 1
        or syscalls.is_secure_execution()
    ):
        hint = "neither it nor its interpreter may have the set-user-ID or set-group-ID bit, or file capabilities"
        raise Refusal("permission", "capability change failed: operation not permitted", hint)


def reset_process() -> int:
    """Put signals, descriptors, umask, directory, core dumps and privileges to come into a known state.

    :returns: the old working directory, held by a descriptor, which relative paths of the OCI documents are relative to.
    """
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
    for number in _signal.valid_signals().difference(ENDING_SIGNALS, _IGNORED, _FIXED):
        if (
            _signal.getsignal(number) != _signal.SIG_DFL
        ):  # the interpreter has asked for all of them at its start
            _signal.signal(number, _signal.SIG_DFL)
    for number in ENDING_SIGNALS:
        _signal.signal(number, _interrupt)
    for fd, stream in enumerate((sys.__stdin__, sys.__stdout__, sys.__stderr__)):
        # A later open would take the number of a closed one, and a message would be written into it. One that was closed when
        # Python started may be taken already: libffi, from 3.5 on, keeps a file open that it opens when it is loaded.
        if stream is None or not _is_open(fd):
            null = os.open("/dev/null", os.O_RDWR)
            if null != fd:
                os.dup2(null, fd)
    syscalls.close_range(3, ~0)
    directory = _hold_directory()
    os.chdir("/")
    os.umask(0o022)
    # The memory of this process holds files that only root may read, and its descriptors lead to the host.
    syscalls.set_rlimit(syscalls.RLIMIT_CORE, 0, 0)
    syscalls.set_dumpable(False)
    syscalls.set_no_new_privs()
    return directory


def set_deadline(seconds: float = DEADLINE) -> None:
    """Interrupt this process after ``seconds``; the time is the wall's, whatever the process waits for."""
    _signal.setitimer(_signal.ITIMER_REAL, seconds)


def path_of(directory: int) -> str:
    """Return the path of a held directory, for what has to be named; "/" if it has none any more.

    :raises Refusal: stage ``initialization``, where /proc is not mounted.
    """
    if not os.fstat(directory).st_nlink:
        return "/"
    try:
        return os.readlink(f"/proc/self/fd/{directory}")
    except OSError as error:
        raise Refusal(
            "initialization", f"open failed: /proc/self/fd: {reason(error)}", "mount /proc"
        ) from error


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _hold_directory() -> int:
    flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        return os.open(".", flags)
    except OSError:
        return os.open(
            "/", flags
        )  # one that this user may not search: nothing relative to it could be opened either


def _interrupt(number: int, _frame: object) -> None:
    # One is enough: the undo must not be interrupted by the runtime's second try.
    hold_signals()
    raise Interrupted(number)
