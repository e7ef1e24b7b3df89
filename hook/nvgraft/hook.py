"""The prestart hook: a drop-in for nvidia-container-runtime-hook.

It reads the OCI state from stdin, decides, and configures the container. Every refusal is one line
on stderr. This module has the command line, the messages and the order of the steps; the rooms have
the rest.
"""

from __future__ import annotations

import sys

from nvgraft import __version__, startup
from nvgraft.base import errors, paths
from nvgraft.base._os import os
from nvgraft.base.errors import NO_OUTPUT, Refusal
from nvgraft.base.files import open_file, print_answer, reason, writable
from nvgraft.request.config import Config, load_config
from nvgraft.request.decision import absolute_rootfs, decide
from nvgraft.request.oci import State, parse_config, read_config, read_state
from nvgraft.system import launch
from nvgraft.system.syscalls import SyscallError
from nvgraft.system.trusted import open_trusted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

    from nvgraft.request.request import Request

_USAGE = """\
usage: nvgraft-hook [-config FILE] [-debug] [-dry-run] [-version] COMMAND

An OCI prestart hook that gives a container the host's NVIDIA driver. The OCI state is read from
stdin.

commands:
  prestart         configure the container
  create-symlinks  make the links of the options `--link TARGET::LINK`
  poststart        do nothing
  poststop         do nothing

options:
  -config FILE  use FILE instead of /etc/nvidia-container-runtime/config.toml
  -debug        write a log to stderr
  -dry-run      only decide, and print the arguments of the original hook for nvidia-container-cli
  -version      print the version

example:
  nvgraft-hook -dry-run prestart < state.json"""

#: The commands that change a container.
_AT_WORK = ("prestart", "create-symlinks")

#: Lines of a run that are written and kept: runc holds all of a hook's stderr in memory.
_LINES = 64
#: Seconds to wait for the reader of stderr.
_STDERR_PATIENCE = 1.0


class Invocation:
    """One run of the hook: its command line, and the lines that it has written."""

    def __init__(self) -> None:
        self.config: str | None = None
        self.debug = False
        self.dry_run = False
        self.command = ""
        self.arguments: list[str] = []
        self.container_id = ""
        self._lines: list[str] = []
        self._notable = False
        self._unread = False
        self._records: int | None = None

    def say(self, line: str, *, notable: bool = False) -> None:
        """Write a line to stderr, as best effort: a closed or blocked stderr is ignored.

        A ``notable`` line makes :meth:`keep` write a record.
        """
        self._notable = self._notable or notable
        if len(self._lines) > _LINES:
            return
        self._lines.append(
            line[: errors.LINE_LIMIT - 1]
            if len(self._lines) < _LINES
            else "nvgraft: all further lines are left out"
        )
        try:
            # A write must not block the hook: a writable pipe accepts one whole line.
            self._unread = self._unread or not writable(2, _STDERR_PATIENCE)
            if not self._unread:
                os.write(
                    2,
                    (self._lines[-1] + "\n").encode("utf-8", "backslashreplace")[
                        : errors.LINE_LIMIT
                    ],
                )
        except OSError:
            return

    def warn(self, text: str) -> None:
        """Write a warning, which is notable."""
        self.say(errors.printable(f"nvgraft: warning: {text}"), notable=True)

    def open_records(self) -> None:
        """Open the directory of records while /run is still the host's."""
        if self._records is None and not self.dry_run:
            from nvgraft.report import last_error

            self._records = last_error.open_directory()

    def keep(self, exit_code: int) -> None:
        """Keep the lines of this run after a refusal or a warning: the engine may not show them."""
        if (exit_code or self._notable) and self.container_id:
            self.open_records()
            if self._records is not None:
                from nvgraft.report import last_error  # loaded before, from the host's /

                last_error.keep(self._records, self.container_id, exit_code, self._lines)


def run(argv: Sequence[str]) -> NoReturn:
    """Run the hook and end this process without finalising the interpreter, which costs more than
    the work for a skipped container.

    Nothing is lost by that: nothing is buffered, and locks are released before
    (docs/decisions/0002).
    """
    os._exit(main(argv))


def main(argv: Sequence[str]) -> int:
    """Run the hook in this process, whose state it changes, and return the exit code.

    0: configured, or nothing to do. 1: refused, everything undone. 2: usage, or standard output
    cannot be written. 3: refused, and the undo failed.
    """
    invocation = Invocation()
    return report(invocation, lambda: _run(argv[1:], invocation))


def _run(arguments: Sequence[str], invocation: Invocation) -> None:
    if not _parse(arguments, invocation) or invocation.command not in _AT_WORK:
        return
    directory = begin()
    if invocation.command == "prestart":
        prestart(invocation, directory)
    else:
        _create_symlinks(invocation, directory)


def begin() -> int:
    """Check how this process was started, and put it into a known state.

    :returns: a descriptor of the working directory, as of ``launch.reset_process``.
    :raises Refusal: it must not work as it was started.
    """
    launch.check_interpreter()
    launch.check_environment(paths.environment())
    launch.check_identity()
    directory = launch.reset_process()
    launch.set_deadline()
    return directory


def report(invocation: Invocation, work: Callable[[], None]) -> int:
    """Run ``work``, write and keep what it says, and return the exit code."""
    try:
        work()
        code = 0
    except Refusal as refusal:
        invocation.say(refusal.line())
        code = refusal.exit_code
    except SyscallError as error:
        invocation.say(
            errors.printable(
                f"nvgraft: initialization error: {error} | {error.fix}; `nvgraft plan`"
                " works without this system call"
            )
        )
        code = 1
    except launch.Interrupted as interrupted:
        invocation.say(interrupted.line())
        code = 1
    except Exception as error:  # noqa: BLE001 - a traceback does not help a user; -debug shows it
        if invocation.debug:
            sys.excepthook(type(error), error, error.__traceback__)
        invocation.say(
            errors.printable(
                f"nvgraft: {type(error).__name__}: {error} | run with -debug and report this"
            )
        )
        code = 1
    invocation.keep(code)
    return code


def _parse(arguments: Sequence[str], invocation: Invocation) -> bool:
    """Parse the arguments into ``invocation`` as Go's flag package does. Return False if there is
    nothing to do.

    :raises UsageError: unknown flag, missing value, no command or an unknown one.
    """
    rest = list(arguments)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        name, equals, value = word.lstrip("-").partition("=")
        if name in {"h", "help"}:
            invocation.say(_USAGE)
            return False
        if name == "config":
            if not equals and not rest:
                raise _usage_error("flag needs an argument: -config")
            invocation.config = value if equals else rest.pop(0)
        elif name in {"debug", "dry-run", "version"}:
            enabled = not equals or value in {"1", "t", "T", "true", "TRUE", "True"}
            if name == "version" and enabled:
                print_line(f"NVIDIA Container Runtime Hook version {__version__} (nvgraft)")
                return False
            if name == "debug":
                invocation.debug = enabled
            elif name == "dry-run":
                invocation.dry_run = enabled
        else:
            raise _usage_error(f"flag provided but not defined: -{name}")
    if not rest or rest[0] not in {*_AT_WORK, "poststart", "poststop"}:
        raise _usage_error("")
    invocation.command = rest[0]
    invocation.arguments = rest[1:]
    return True


def _usage_error(text: str) -> Refusal:
    from nvgraft.base.usage import UsageError

    return UsageError(text, _USAGE)


def prestart(invocation: Invocation, directory: int) -> None:
    """Configure the container that the state on stdin names.

    :param directory: a descriptor of the working directory, which relative paths are relative to.
    """
    path = launch.path_of(directory)
    # A dry run changes nothing, so a file that is named on the command line need not be trusted.
    untrusted = invocation.dry_run and invocation.config
    config = load_config(
        invocation.config,
        paths.environment(),
        path,
        open_file if untrusted else open_trusted,
        cached=not invocation.dry_run,
    )
    state = read_state(0)
    invocation.container_id = state.id
    decision = decide(read_config(state.bundle, directory), config, path)
    for line in decision.log:
        invocation.say(errors.printable(line))
    if decision.refusal is not None:
        raise decision.refusal
    if decision.request is None:
        if invocation.debug:
            invocation.say(errors.printable(f"nvgraft: nothing to do: {decision.reason}"))
        return
    if invocation.dry_run:
        _print_argv(decision.request, config, state, decision.rootfs, debug=invocation.debug)
        return
    _configure(invocation, decision.request, config, state, decision.rootfs)


def _create_symlinks(invocation: Invocation, directory: int) -> None:
    """Make the links that the command line names in the container that the state on stdin names."""
    startup.load("look")
    from nvgraft.create_symlinks import create_symlinks, parse_links

    def allow_fuse() -> bool:
        environ = paths.environment()
        config = load_config(invocation.config, environ, launch.path_of(directory), open_trusted)
        return config.allow_fuse

    links = parse_links(invocation.arguments)
    state = read_state(0)
    invocation.container_id = state.id
    rootfs = absolute_rootfs(
        parse_config(read_config(state.bundle, directory)).root_path, launch.path_of(directory)
    )
    invocation.open_records()
    create_symlinks(links, state.pid, rootfs, invocation.warn, allow_fuse)


def _print_argv(
    request: Request, config: Config, state: State, rootfs: str, *, debug: bool
) -> None:
    from nvgraft.base.jsontext import dumps
    from nvgraft.request.argv import reference_argv

    print_line(dumps(reference_argv(request, config, state.pid, rootfs, debug)))


def print_line(text: str) -> None:
    """Write an answer to standard output.

    :raises Refusal: exit code 2: it cannot be written.
    """
    try:
        print_answer(f"{text}\n")
    except OSError as error:
        raise Refusal("", f"nvgraft: {NO_OUTPUT.format(reason(error))}", exit_code=2) from error


def _configure(
    invocation: Invocation, request: Request, config: Config, state: State, rootfs: str
) -> None:
    """Give the container the driver.

    :raises Refusal: everything is undone.
    """
    startup.load("look")
    from nvgraft.graft import Job, graft
    from nvgraft.host.places import search_path
    from nvgraft.plan.settings import Settings
    from nvgraft.report.debug_log import DebugLog

    invocation.open_records()
    if config.simulated_host:
        served = f", GPUs from {config.host_snapshot}" if config.host_snapshot else ""
        invocation.say(
            errors.printable(
                "nvgraft: warning: simulated-host is set in config.toml: this is not a real"
                f" GPU node{served}"
            )
        )
    log = DebugLog()
    log_path = "/dev/stderr" if invocation.debug else config.cli_debug
    try:
        log.open(log_path)
    except OSError as error:
        invocation.warn(
            f"no debug log: open {log_path}: {reason(error)} | set debug in config.toml to"
            " a file that root can write, or remove it"
        )
    path = search_path(paths.environment(), config)
    job = Job(request, state.pid, rootfs, Settings.from_config(config), path)
    try:
        if not graft(job, config, log, invocation.warn):
            invocation.say("nvgraft: this container is configured already; nothing was changed")
    except Refusal as refusal:
        log.give_up(refusal.text)
        raise
