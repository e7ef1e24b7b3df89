"""`nvgraft simulate HOST -- COMMAND`: run a command on a GPU host that exists only as a document.

Three processes stand between the caller and COMMAND: one that leaves the mount and pid namespaces of this machine, the
first process of the new ones, which builds the host, and COMMAND. When COMMAND ends, the kernel ends everything else in
its pid namespace, and with the last process the mounts are gone. Mounts are :mod:`nvgraft_cli.simulate.sandbox`, the host is
:mod:`nvgraft_cli.simulate.host_maker`.
"""

import argparse
import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import prctl

from nvgraft.base.errors import printable
from nvgraft.system import syscalls
from nvgraft_cli.shell import logs
from nvgraft_cli.shell.output import print_document
from nvgraft_specs import gallery

if TYPE_CHECKING:
    from types import FrameType

    from nvgraft_specs.models.host import Host

    _Handler = Callable[[int, FrameType | None], None] | signal.Handlers

_SCHEMA = "nvgraft.gallery/1"

#: What went wrong before COMMAND started: bad usage, bad input, or a machine that does not allow it.
_TROUBLE = 2
_NOT_EXECUTABLE, _NOT_FOUND = 126, 127  # as env(1)

_DESCRIPTION = """\
Run COMMAND on a simulated GPU host: stub libraries, device nodes, /proc/driver/nvidia, the loader cache, NVML and
/etc/nvidia-container-runtime/config.toml are those of HOST, everything else is this machine. All changes are made in a
private namespace, in memory, and are gone when COMMAND ends. Needs root. Exit code: that of COMMAND, 2 when it could not
be started, 126 or 127 when it cannot be executed or found."""

_EXAMPLES = """\
examples:
  nvgraft simulate --list
  sudo nvgraft simulate runfile-a10x2 -- ls -l /dev/nvidia0
  sudo nvgraft simulate ./node17.json -- bash"""


def add_parser(
    subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]",
) -> argparse.ArgumentParser:
    """Add the command ``simulate``; its ``run`` default is :func:`run`."""
    parser = subparsers.add_parser(
        "simulate",
        help="run a command on a simulated GPU host",
        usage="nvgraft simulate [--no-nvml] HOST -- COMMAND [ARG...]\n       nvgraft simulate --list [--format {text,json}]",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--list", action="store_true", help="list the simulated hosts that ship with nvgraft"
    )
    parser.add_argument(
        "--format",
        choices=("text", "json"),
        default="text",
        help="output of --list (default: text)",
    )
    parser.add_argument(
        "--no-nvml",
        action="store_true",
        help="act as if there were no C compiler: GPUs are served from the snapshot",
    )
    parser.add_argument(
        "host",
        metavar="HOST",
        nargs="?",
        help="a name from --list, or the path of a nvgraft.host/1 document",
    )
    parser.add_argument(
        "command", metavar="COMMAND", nargs=argparse.REMAINDER, help="what to run, after --"
    )
    parser.set_defaults(run=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Do what the command line says; return the exit code. Errors are one line on stderr."""
    from nvgraft_specs.models import DocumentError

    try:
        if args.list:
            _list(args.format)
            return 0
        return _simulate(args.host, args.command, nvml=not args.no_nvml)
    except (DocumentError, _Trouble) as error:
        return _complain(str(error))


class _Trouble(Exception):
    """Bad usage, or a machine that does not allow it; the text is the whole message."""


def _complain(message: str) -> int:
    print(printable(f"nvgraft simulate: {message}"), file=sys.stderr)
    return _TROUBLE


def _list(form: str) -> None:
    from nvgraft_specs.models.host import load_host

    hosts = [load_host(gallery.path(name)) for name in gallery.names()]
    if form == "json":
        print_document({"schema": _SCHEMA, "hosts": [_summary(host) for host in hosts]})
        return
    width = max(len(host.name) for host in hosts)
    print("".join(f"{host.name:{width}}  {host.description}\n" for host in hosts), end="")


def _summary(host: "Host") -> dict[str, object]:
    return {
        "name": host.name,
        "description": host.description,
        "driver_version": host.nvml.driver_version,
        "cuda_version": host.nvml.cuda_version,
        "gpus": [gpu.model for gpu in host.nvml.gpus],
        "root": host.root,
        "path": gallery.path(host.name),
    }


def _simulate(name: str | None, command: list[str], *, nvml: bool) -> int:
    from nvgraft_cli.simulate import host_maker, sandbox
    from nvgraft_specs.models import read_bytes
    from nvgraft_specs.models.host import parse_host

    if command[:1] == ["--"]:
        command = command[1:]
    if name is None or not command:
        raise _Trouble(
            "a host and a command are needed | nvgraft simulate HOST -- COMMAND; nvgraft simulate --list names the hosts"
        )
    if command[0].startswith("-"):
        raise _Trouble(
            f"option {command[0]!r} stands after HOST | give options before it, and -- before COMMAND"
        )
    path = gallery.path(name) if name in gallery.names() else name
    if path == name and not os.path.exists(name):
        there = ", ".join(gallery.names())
        raise _Trouble(
            f"no simulated host and no file {name!r} | there are {there}; or give the path of a host document"
        )
    snapshot = read_bytes(path)
    host = parse_host(snapshot, path)
    if os.geteuid() != 0:
        fix = f"sudo nvgraft simulate {shlex.join([name, '--', *command])}"
        raise _Trouble(
            f"needs root, to make device nodes and mounts in a private namespace | {fix}"
        )
    source = Path(__file__).with_name("nvml_standin.c").read_bytes() if nvml else None
    directory = os.getcwd()

    def become_first() -> int:
        prctl.set_pdeathsig(signal.SIGKILL)
        notes = sandbox.enter() + host_maker.make(host, snapshot, source)
        for note in notes:
            logs.get("simulate").info(note)
        return _in_child(lambda: _execute(command, directory))

    def leave_namespaces() -> int:
        prctl.set_pdeathsig(signal.SIGKILL)
        syscalls.unshare(syscalls.CLONE_NEWNS | syscalls.CLONE_NEWPID)
        return _in_child(become_first)

    return _in_child(leave_namespaces)


def _execute(command: list[str], directory: str) -> int:
    """Become COMMAND, in the caller's directory where that exists inside."""
    for number in (
        signal.SIGPIPE,
        signal.SIGXFSZ,
    ):  # Python ignores these, and exec would keep that
        signal.signal(number, signal.SIG_DFL)
    try:
        os.chdir(directory)
    except OSError:
        os.chdir("/")
    try:
        os.execvp(command[0], command)  # noqa: S606 - the user's own command, as given
    except FileNotFoundError:
        _complain(
            f"{command[0]}: not found | it must exist on this machine or on the simulated host"
        )
        return _NOT_FOUND
    except OSError as error:
        _complain(
            f"{command[0]}: cannot be executed: {(error.strerror or str(error)).lower()} | is it a program, with mode 755?"
        )
        return _NOT_EXECUTABLE


def _in_child(main: Callable[[], int]) -> int:
    """Run ``main`` in a forked child, passing signals on to it, and return its exit code (128 + N when signal N ended it).

    Every other child that ends meanwhile is reaped: the first process of a pid namespace inherits the orphans.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        code = _TROUBLE
        try:
            code = main()
        except (OSError, ValueError) as error:
            _complain(_explain(error))
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def pass_on(number: int, _frame: "FrameType | None") -> None:
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(pid, number)

    # A terminal sends the keyboard's signals to COMMAND itself, and only COMMAND decides what they mean.
    handlers: dict[signal.Signals, _Handler] = {
        signal.SIGTERM: pass_on,
        signal.SIGHUP: pass_on,
        signal.SIGINT: signal.SIG_IGN,
        signal.SIGQUIT: signal.SIG_IGN,
    }
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        while True:
            ended, status = os.wait()
            if ended == pid:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def _explain(error: OSError | ValueError) -> str:
    if isinstance(error, PermissionError):
        return f"{error} | this machine does not allow mounts or device nodes: run it outside of a container, or in a privileged one"
    if isinstance(error, syscalls.SyscallError) and "overlay" in error.call:
        return f"{error} | the kernel needs the overlay file system: modprobe overlay"
    return f"{error} | the simulated host could not be built, nothing was changed"
