"""`nvgraft simulate HOST -- COMMAND`: run a command on a GPU host that exists only as a document.

:mod:`nvgraft_cli.simulate.running` makes the host and runs COMMAND there.
"""

import argparse
import contextlib
import json
import os
import shlex
from typing import TYPE_CHECKING

from nvgraft_cli.shell import children, logs, nodes, terminal
from nvgraft_cli.shell.arguments import add_format, add_node, source
from nvgraft_cli.shell.errors import InputError
from nvgraft_cli.shell.output import is_simulated_host, print_document
from nvgraft_cli.simulate import running
from nvgraft_specs import gallery

if TYPE_CHECKING:
    from nvgraft_cli.simulate.standins.failures import HostFailure
    from nvgraft_specs.models.host import Host

_SCHEMA = "nvgraft.gallery/1"

_NOT_EXECUTABLE, _NOT_FOUND = 126, 127  # as env(1)

_DESCRIPTION = """\
Run COMMAND on a simulated GPU host. Stub libraries, device nodes, /proc/driver/nvidia, the loader
cache, NVML and /etc/nvidia-container-runtime/config.toml are those of HOST; everything else is
this machine. All changes to files are kept in memory, in a private namespace, and are gone when
COMMAND ends; what was compiled for HOST stays in /run/nvgraft/cache. Needs root. The exit code is
that of COMMAND, 2 if the host could not be made, and 126 or 127 if COMMAND cannot be executed or
found."""

_EXAMPLES = """\
examples:
  nvgraft simulate --list
  nvgraft simulate --make '16 x h100-sxm, driver 570.172.08, nvlink' > node17.json
  sudo nvgraft simulate runfile-a10x2 -- ls -l /dev/nvidia0
  sudo nvgraft simulate ./node17.json -- bash
  sudo nvgraft simulate --name a eks-t4 -- sleep 1000 &
  sudo nvgraft plan --node a --container ./web
  sudo nvgraft simulate --fail lost runfile-a10x2 -- nvidia-smi
  sudo nvgraft simulate --node a --fail xid=79"""

_FAILURES = """

failures:
  nvml-init            NVML does not initialise (=CODE: its error; default: 999)
  nvml-hang            NVML does not answer (=SECONDS: for so long; default: 3600)
  driver-mismatch      the loaded kernel module is of another version
  lost@GPU             a GPU has fallen off the bus
  xid=N@GPU            a GPU has reported an Xid
  ecc@GPU              a GPU has counted memory errors
  missing-node@GPU     a GPU has no device node
  missing-library      the host has lost libcuda.so.1
  no-uvm               the nvidia-uvm module is not loaded
  slow-start           persistence mode is off: each start initialises all GPUs (=SECONDS: in
                       so long; default: by the number of GPUs)
  fabric-manager-down  fabric manager does not run on a host with NVSwitches"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``simulate``."""
    parser.usage = (
        "nvgraft simulate [--no-nvml] [--name NAME] [--fail WHAT] HOST -- COMMAND [ARG...]\n"
        "       nvgraft simulate --fail WHAT [--node NAME]\n"
        "       nvgraft simulate --make LINE [--name NAME]\n"
        "       nvgraft simulate --cuda-runtime FILE\n"
        "       nvgraft simulate --list [--format {text,json}]"
    )
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES + _FAILURES
    parser.add_argument(
        "--list", action="store_true", help="list the simulated hosts that ship with nvgraft"
    )
    add_format(parser, text="output of --list (default: text)")
    parser.add_argument(
        "--no-nvml",
        action="store_true",
        help="act as if there were no C compiler: read the GPUs from the snapshot",
    )
    parser.add_argument(
        "--name",
        metavar="NAME",
        help="while COMMAND runs, other commands can run on this host: nvgraft plan --node NAME",
    )
    parser.add_argument(
        "--make",
        metavar="LINE",
        help="print the document of a host that a line describes: GPUs and driver, and nvswitches"
        " N, nvlink, numa N (default: 1), imex N, mig PROFILE..., or aarch64; --name is then the"
        " host's name",
    )
    parser.add_argument(
        "--cuda-runtime",
        metavar="FILE",
        help="write a stand-in for the queries of the CUDA runtime, which a container on a"
        " simulated host mounts and names in LD_PRELOAD: PyTorch then finds the GPUs",
    )
    parser.add_argument(
        "--fail",
        metavar="WHAT",
        action="append",
        default=[],
        help="let something fail: WHAT, WHAT=VALUE or WHAT@GPU (default: GPU 0), one of the"
        " failures below; may be given several times; without HOST: on the running simulated host"
        " of --node, or on the one on which this command runs",
    )
    add_node(parser)
    parser.add_argument(
        "--host",
        dest="named_host",
        metavar="HOST",
        type=source,
        help="HOST, as an option",
    )
    parser.add_argument(
        "host",
        metavar="HOST",
        type=source,
        nargs="?",
        help="a name from --list, or the path of a nvgraft.host/1 document",
    )
    parser.add_argument(
        "command", metavar="COMMAND", nargs=argparse.REMAINDER, help="what to run, after --"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command and return the exit code. Errors are one line on stderr."""
    from nvgraft_specs.documents import DocumentError

    try:
        if args.list:
            _list(args.format)
            return 0
        if args.make is not None:
            return _make(args.make, args.name or "host")
        if args.cuda_runtime is not None:
            return _write_cuda_runtime(args.cuda_runtime)
        if args.fail and args.named_host is None and args.host is None:
            return _fail(args.fail)
        name, command = _host_and_command(args)
        return _simulate(name, command, args.name, args.fail, nvml=not args.no_nvml)
    except DocumentError as error:
        raise InputError(str(error)) from error


def _list(form: str) -> None:
    from nvgraft_specs.models.host import load_host

    hosts = [load_host(gallery.path(name)) for name in gallery.names()]
    if form == "json":
        print_document({"schema": _SCHEMA, "hosts": [_summary(host) for host in hosts]})
        return
    width = max(len(host.name) for host in hosts)
    terminal.show("\n".join(f"{host.name:{width}}  {host.description}" for host in hosts))


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


def _host_and_command(args: argparse.Namespace) -> tuple[str, list[str]]:
    """Return HOST, which may stand behind --host, and COMMAND.

    :raises InputError: one of them is missing.
    """
    host, command = args.named_host, list(args.command)
    if host is None:
        host = args.host
    elif args.host is not None:
        command.insert(0, args.host)
    if command[:1] == ["--"]:
        command = command[1:]
    if host is None or not command:
        raise InputError(
            "HOST or COMMAND is missing | write nvgraft simulate HOST -- COMMAND;"
            " nvgraft simulate --list shows the hosts"
        )
    return host, command


def _make(line: str, name: str) -> int:
    """Print the document of the host that a line describes."""
    from nvgraft_cli.simulate import recipe
    from nvgraft_specs.models.host import parse_host

    try:
        document = recipe.make_document(line, name)
    except recipe.WrongRecipe as error:
        raise InputError(f"--make: {error}") from error
    parse_host(json.dumps(document).encode(), "--make")  # MIG devices that do not fit
    print_document(document)
    return 0


def _write_cuda_runtime(path: str) -> int:
    """Write the stand-in for the CUDA runtime's queries to ``path``."""
    from nvgraft_cli.shell.output import write_whole
    from nvgraft_cli.simulate import cuda_runtime
    from nvgraft_cli.simulate.standins.build import CannotCompile

    try:
        write_whole(path, cuda_runtime.library(), 0o755)
    except CannotCompile as error:
        raise InputError(f"--cuda-runtime: {error}") from error
    return 0


def _fail(names: list[str]) -> int:
    """Let something fail on the simulated host on which this process runs."""
    from nvgraft_cli.simulate.standins import failures
    from nvgraft_specs.documents import read_bytes
    from nvgraft_specs.models.host import parse_host

    if not is_simulated_host() or not os.path.exists(running.DOCUMENT):
        raise InputError(
            "--fail without HOST: this is not a simulated host | name a running one with --node,"
            " or write nvgraft simulate --fail WHAT HOST -- COMMAND"
        )
    host = parse_host(read_bytes(running.DOCUMENT), running.DOCUMENT)
    try:
        failures.apply([failures.parse(name, host) for name in names], host)
    except failures.UnknownFailure as error:
        raise InputError(f"--fail: {error}") from error
    except OSError as error:
        raise InputError(f"--fail: {error} | run the command as root") from error
    return 0


def _simulate(
    name: str, command: list[str], node_name: str | None, fail: list[str], *, nvml: bool
) -> int:
    if command[0].startswith("-"):
        raise InputError(
            f"option {command[0]!r} after HOST | put options before HOST, and -- before COMMAND"
        )
    path, snapshot, host = running.read_host(name)
    logs.debug("read", host=path, bytes=len(snapshot))
    wanted = _failures(host, path, fail)
    if os.geteuid() != 0:
        fix = f"run sudo nvgraft simulate {shlex.join([name, '--', *command])}"
        raise InputError(
            f"only root can make device nodes and mounts in a private namespace | {fix}"
        )
    directory = os.getcwd()
    node = nodes.Registration(node_name) if node_name else None
    with node or contextlib.nullcontext():
        return running.on_host(
            host,
            snapshot,
            lambda: _execute(command, directory),
            failures=wanted,
            compiled=nvml,
            announce=None if node is None else node.announce,
        )


def _failures(host: "Host", path: str, fail: list[str]) -> "list[HostFailure]":
    """Return the failures of the document and of --fail.

    :raises InputError: one is unknown, or the host cannot have it.
    """
    from nvgraft_cli.simulate.standins import failures

    found = []
    named = [(f"{path}: $.failures", name) for name in host.failures or ()]
    for place, name in [*named, *(("--fail", name) for name in fail)]:
        try:
            found.append(failures.parse(name, host))
        except failures.UnknownFailure as error:
            raise InputError(f"{place}: {error}") from error
    return found


def _execute(command: list[str], directory: str) -> int:
    """Become COMMAND, in the caller's directory if it exists on the simulated host."""
    children.restore_signals()
    try:
        os.chdir(directory)
    except OSError:
        os.chdir("/")
    try:
        os.execvp(command[0], command)  # noqa: S606 - the user's own command, as given
    except FileNotFoundError:
        running.complain(
            f"{command[0]}: not found | name a program of this machine or of the simulated host"
        )
        return _NOT_FOUND
    except OSError as error:
        running.complain(
            f"{command[0]}: cannot be executed: {(error.strerror or str(error)).lower()}"
            " | name a program, and make it executable (chmod +x)"
        )
        return _NOT_EXECUTABLE
