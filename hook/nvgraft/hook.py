"""The prestart hook: a drop-in for nvidia-container-runtime-hook.

Reads the OCI state on stdin, decides, and configures the container; every refusal is one line on stderr. This module is
the order of things and nothing else: what a container asks for, what the host has, what goes where and how it is put
there are modules of their own.
"""

from __future__ import annotations

import sys

from nvgraft import __version__, startup
from nvgraft.base import errors, paths
from nvgraft.base._os import os
from nvgraft.base.errors import Refusal, UsageError
from nvgraft.base.files import open_file, reason, writable
from nvgraft.request.config import Config, load_config
from nvgraft.request.decision import absolute_rootfs, decide
from nvgraft.request.oci import State, parse_config, read_config, read_state
from nvgraft.system import launch
from nvgraft.system.syscalls import SyscallError
from nvgraft.system.trusted import open_trusted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

    from nvgraft.request.request import Request

_USAGE = """\
usage: nvgraft-hook [-config FILE] [-debug] [-dry-run] [-version] COMMAND

An OCI prestart hook that gives a container the host's NVIDIA driver. The OCI state is read from stdin.

commands:
  prestart         configure the container
  create-symlinks  make the links that `--link TARGET::LINK` options name
  poststart        do nothing
  poststop         do nothing

options:
  -config FILE  use FILE instead of /etc/nvidia-container-runtime/config.toml
  -debug        say what is done, on stderr
  -dry-run      decide only, and print the arguments with which the original hook would run nvidia-container-cli
  -version      print the version

example:
  nvgraft-hook -dry-run prestart < state.json"""

#: The commands that do something.
_AT_WORK = ("prestart", "create-symlinks")

#: Lines of a run that are said and kept; a hook's stderr is held in memory by runc, as a whole.
_LINES = 64
#: Seconds that a reader of stderr may be behind.
_STDERR_PATIENCE = 1.0


class Invocation:
    """One run of the hook: its command line, and what it has said so far."""

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
        """Write a line to stderr; whoever closed it, or does not read it, does not want to hear it.

        What is ``notable`` makes a record.
        """
        self._notable = self._notable or notable
        if len(self._lines) > _LINES:
            return
        self._lines.append(
            line[: errors.LINE_LIMIT - 1]
            if len(self._lines) < _LINES
            else "nvgraft: there is more, which is left out"
        )
        try:
            # Nothing may hold the hook up: a pipe that can be written takes one line whole.
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
        """Say a warning, which makes a record."""
        self.say(errors.printable(f"nvgraft: warning: {text}"), notable=True)

    def open_records(self) -> None:
        """Make sure that what is said can be kept, while /run is still the host's."""
        if self._records is None and not self.dry_run:
            from nvgraft.report import last_error

            self._records = last_error.open_directory()

    def keep(self, exit_code: int) -> None:
        """Keep what was said about this container if it was refused or warned of: its engine may not show it."""
        if (exit_code or self._notable) and self.container_id:
            self.open_records()
            if self._records is not None:
                from nvgraft.report import last_error  # loaded by now, from the host's own /

                last_error.keep(self._records, self.container_id, exit_code, self._lines)


def run(argv: Sequence[str]) -> NoReturn:
    """Run the hook and end this process, as it stands: taking the interpreter down costs more than a skipped container's work.

    Nothing waits for that: what is written is written at once, and locks are given back where they end (docs/decisions/0002).
    """
    os._exit(main(argv))


def main(argv: Sequence[str]) -> int:
    """Run the hook in this process, which it takes over, and return the exit code.

    0: configured, or nothing to do. 1: refused, everything undone. 2: usage. 3: refused and something was left behind.
    """
    invocation = Invocation()
    try:
        if not _parse(argv[1:], invocation) or invocation.command not in _AT_WORK:
            return 0
        launch.check_interpreter()
        launch.check_environment(paths.environment())
        launch.check_identity()
        directory = launch.reset_process()
        launch.set_deadline()
        if invocation.command == "prestart":
            _prestart(invocation, directory)
        else:
            _create_symlinks(invocation, directory)
        code = 0
    except Refusal as refusal:
        invocation.say(refusal.line())
        code = refusal.exit_code
    except SyscallError as error:
        invocation.say(
            errors.printable(
                f"nvgraft: initialization error: {error} | {error.fix}; `nvgraft plan` works without"
            )
        )
        code = 1
    except launch.Interrupted as interrupted:
        invocation.say(interrupted.line())
        code = 1
    except Exception as error:  # noqa: BLE001 - a traceback tells a user nothing; -debug shows it
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
    """Fill ``invocation`` as Go's flag package does, which the original uses; return False when there is nothing to do.

    :raises UsageError: unknown flag, missing value, no or an unknown command.
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
                raise UsageError("flag needs an argument: -config", _USAGE)
            invocation.config = value if equals else rest.pop(0)
        elif name in {"debug", "dry-run", "version"}:
            wanted = not equals or value in {"1", "t", "T", "true", "TRUE", "True"}
            if name == "version" and wanted:
                os.write(
                    1, f"NVIDIA Container Runtime Hook version {__version__} (nvgraft)\n".encode()
                )
                return False
            if name == "debug":
                invocation.debug = wanted
            elif name == "dry-run":
                invocation.dry_run = wanted
        else:
            raise UsageError(f"flag provided but not defined: -{name}", _USAGE)
    if not rest or rest[0] not in {*_AT_WORK, "poststart", "poststop"}:
        raise UsageError("", _USAGE)
    invocation.command = rest[0]
    invocation.arguments = rest[1:]
    return True


def _prestart(invocation: Invocation, directory: int) -> None:
    """Do what the container that the state on stdin names asks for.

    :param directory: what relative paths are relative to.
    """
    path = launch.path_of(directory)
    # A decision that nobody acts on may be asked for with anybody's file, if it is named.
    asked = invocation.dry_run and invocation.config
    config = load_config(
        invocation.config,
        paths.environment(),
        path,
        open_file if asked else open_trusted,
        cached=not invocation.dry_run,
    )
    state = read_state(0)
    invocation.container_id = state.id
    decision = decide(read_config(state.bundle, directory), config, path)
    for line in decision.log:
        invocation.say(line, notable="level=warning" in line)
    if decision.refusal is not None:
        raise decision.refusal
    if decision.request is None:
        if invocation.debug:
            invocation.say(f"nvgraft: nothing to do: {decision.reason}")
        return
    if invocation.dry_run:
        _print_argv(decision.request, config, state, decision.rootfs, debug=invocation.debug)
        return
    _configure(invocation, decision.request, config, state, decision.rootfs)


def _create_symlinks(invocation: Invocation, directory: int) -> None:
    """Make the links of the command line in the container that the state on stdin names."""
    startup.load("look")
    from nvgraft.create_symlinks import create_symlinks, parse_links

    links = parse_links(invocation.arguments)
    state = read_state(0)
    invocation.container_id = state.id
    rootfs = absolute_rootfs(
        parse_config(read_config(state.bundle, directory)).root_path, launch.path_of(directory)
    )
    invocation.open_records()
    create_symlinks(links, state.pid, rootfs, invocation.warn)


def _print_argv(
    request: Request, config: Config, state: State, rootfs: str, *, debug: bool
) -> None:
    from nvgraft.base.jsontext import dumps
    from nvgraft.request.argv import reference_argv

    os.write(
        1,
        (dumps(reference_argv(request, config, state.pid, rootfs, debug)) + "\n").encode(
            "utf-8", "surrogateescape"
        ),
    )


def _configure(
    invocation: Invocation, request: Request, config: Config, state: State, rootfs: str
) -> None:
    """Give the container what it asks for.

    :raises Refusal: with nothing changed.
    """
    startup.load("look")
    from nvgraft.graft import Job, graft
    from nvgraft.host.live import search_path
    from nvgraft.plan.settings import Settings
    from nvgraft.report.debug_log import DebugLog

    invocation.open_records()
    if config.simulated_host:
        served = f", GPUs from {config.host_snapshot}" if config.host_snapshot else ""
        invocation.say(
            f"nvgraft: warning: simulated-host is set in config.toml: this is no real GPU node{served}"
        )
    log = DebugLog()
    log_path = "/dev/stderr" if invocation.debug else config.cli_debug
    try:
        log.open(log_path)
    except OSError as error:
        invocation.warn(
            f"no debug log: open {log_path}: {reason(error)} | name a file that can be written, or remove debug"
        )
    path = search_path(paths.environment(), config)
    job = Job(request, state.pid, rootfs, Settings.from_config(config), path)
    try:
        if not graft(job, config, log, invocation.warn):
            invocation.say("nvgraft: this container is configured already; nothing was changed")
    except Refusal as refusal:
        log.give_up(refusal.text)
        raise
