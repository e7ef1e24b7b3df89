"""Put the hook's process into a known state at its start (SECURITY R3, R4, R40).

runc and crun start hooks with the engine's descriptors, signal mask and working directory; crun
blocks every signal and connects stderr with /dev/null. Capabilities are dropped later, by
:mod:`nvgraft.system.privileges`.
"""

from __future__ import annotations

import sys

from nvgraft.base._os import os, signal
from nvgraft.base.errors import Refusal
from nvgraft.base.files import reason
from nvgraft.system import syscalls
from nvgraft_specs.names import HOOK_TIMEOUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

#: Variables that make the dynamic loader or libc use foreign files. -I disables Python's own
#: variables.
LOADER_VARIABLES = ("LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH", "GLIBC_TUNABLES", "GCONV_PATH")

#: Signals that end a hook, after which its work is undone.
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM)

#: Seconds after which the hook undoes its work and ends by itself, before the runtime kills it.
DEADLINE = HOOK_TIMEOUT - 15

#: Signals that Python ignores, because the calls return errors instead.
_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)
_FIXED = (signal.SIGKILL, signal.SIGSTOP)


class Interrupted(BaseException):
    """A signal that ends the hook. Work that was done is undone while this propagates."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    def line(self, program: str = "nvgraft") -> str:
        """Return the message for stderr."""
        if self.number == signal.SIGALRM:
            return (
                f"{program}: not done after {DEADLINE} s, and a runtime waits for {HOOK_TIMEOUT} s;"
                " everything was undone"
            )
        return f"{program}: interrupted by signal {self.number}; everything was undone"


def check_interpreter() -> None:
    """Refuse an interpreter that has searched the caller's directories for modules.

    This only detects it: a planted module has run already. The first line of the installed launcher
    and an explicit env in config.json prevent it.

    :raises Refusal: with the fix.
    """
    if not (sys.flags.isolated and sys.flags.no_site):
        hint = "run the nvgraft-hook that ./dev install writes: it starts Python with -I -S -B"
        raise Refusal("initialization", "the Python interpreter of the hook is not isolated", hint)


class Interruptible:
    """A context in which a signal ends the hook immediately. Outside, signals wait
    (:func:`hold_signals`).
    """

    def __enter__(self) -> None:
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)

    def __exit__(self, *_error: object) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)


def hold_signals() -> None:
    """Block signals from here on, except in :func:`take_signals` and :class:`Interruptible`.

    A signal must not come between a change and its registration in the undo log.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)


def take_signals() -> None:
    """Deliver a pending signal here.

    :raises Interrupted: a signal was pending.
    """
    with Interruptible():
        pass


def check_environment(environ: Mapping[str, str]) -> None:
    """Refuse variables that have already changed this process, or would change a child.

    :raises Refusal: names the variable and the fix.
    """
    for name in LOADER_VARIABLES:
        if name in environ:
            hint = (
                "register the hook with an explicit env in config.json:"
                " without one it gets the environment of the runtime's caller"
            )
            raise Refusal(
                "initialization", f"environment variable {name} is set for the hook", hint
            )


def check_identity() -> None:
    """Refuse to work for a caller who has fewer rights than this process.

    :raises Refusal: stage ``permission``, in the reference's words.
    """
    if (
        len(set(os.getresuid())) > 1
        or len(set(os.getresgid())) > 1
        or syscalls.is_secure_execution()
    ):
        hint = (
            "remove set-user-ID and set-group-ID bits and file capabilities"
            " from the hook and its Python interpreter"
        )
        raise Refusal("permission", "capability change failed: operation not permitted", hint)


def reset_process() -> int:
    """Reset signals, descriptors, umask, working directory, core dumps and future privileges.

    :returns: a descriptor of the old working directory, to which paths in OCI documents are
        relative.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in signal.valid_signals().difference(ENDING_SIGNALS, _IGNORED, _FIXED):
        # getsignal is not a system call: the interpreter has asked for all handlers at its start.
        if signal.getsignal(number) != signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
    for number in ENDING_SIGNALS:
        signal.signal(number, _interrupt)
    for fd, stream in enumerate((sys.__stdin__, sys.__stdout__, sys.__stderr__)):
        # A later open would take the number of a closed stream, and a message would be written into
        # that file. The number may be taken already: libffi from 3.5 on keeps a file open from its
        # loading.
        if stream is None or not _is_open(fd):
            null = os.open("/dev/null", os.O_RDWR)
            if null != fd:
                os.dup2(null, fd)
    syscalls.close_range(3, ~0)
    directory = _hold_directory()
    os.chdir("/")
    os.umask(0o022)
    # The memory of this process contains files that only root may read; its descriptors lead to the
    # host.
    syscalls.set_rlimit(syscalls.RLIMIT_CORE, 0, 0)
    syscalls.set_dumpable(False)
    syscalls.set_no_new_privs()
    return directory


def set_deadline(seconds: float = DEADLINE) -> None:
    """Interrupt this process after ``seconds`` of wall-clock time."""
    signal.setitimer(signal.ITIMER_REAL, seconds)


def path_of(directory: int) -> str:
    """Return the path of an open directory, for messages; "/" if it was removed.

    :raises Refusal: stage ``initialization``: /proc is not mounted.
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
        # This user may not search the directory, so nothing relative to it could be opened either.
        return os.open("/", flags)


def _interrupt(number: int, _frame: object) -> None:
    # Further signals wait: the undo must not be interrupted.
    hold_signals()
    raise Interrupted(number)
