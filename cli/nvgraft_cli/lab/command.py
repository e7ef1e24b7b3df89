"""`nvgraft lab`: walk through a container's start on a simulated node, build one by hand, or mend
one.
"""

import argparse
import os
import shlex
import shutil
import signal
import sys
import uuid
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from nvgraft.base.errors import printable
from nvgraft.system import userns
from nvgraft_cli.shell import children, logs, streams, terminal
from nvgraft_cli.shell.errors import InputError

if TYPE_CHECKING:
    from nvgraft_cli.lab.ground.lent_terminal import LentTerminal
    from nvgraft_cli.lab.ground.lines import LabConsole

DEFAULT_HOST = "runfile-a10x2"
BY_HAND = "by-hand"
LESSON, LESSONS = "lesson", "lessons"

#: Bytes of a script.
_SCRIPT_LIMIT = 1 << 20
#: Variables with which the commands of nvgraft in the lab's shells are plain, too.
_PLAIN = {"NO_COLOR": "1", "NVGRAFT_PAGER": ""}
#: Characters that draw a tree: a screen reader speaks each of them, and the indentation says it.
_DRAWN = str.maketrans("├└│─", "    ")
_INTERRUPTED = 130
_NO_OUTPUT = 2

_DESCRIPTION = """\
Start a container on a simulated GPU node with the hook's own functions, and stop before each of
their phases: look around with shells in the container and on the node, go on, go back. The
container is a real one of runc, which waits meanwhile. BUNDLE is an OCI bundle (default: a small
container that asks for all GPUs); its own hooks are left out. `nvgraft lab by-hand` builds a
container with shell commands instead. `nvgraft lab lesson NAME` breaks a node or a container, and
checks your repair; `nvgraft lab lessons` lists the lessons. Needs root and runc. Everything is
taken back at the end."""

_EXAMPLES = """\
examples:
  sudo nvgraft lab
  sudo nvgraft lab h100-580 ./web
  sudo nvgraft lab by-hand
  nvgraft lab lessons
  sudo nvgraft lab lesson error-999
  printf 'run mounts\\nshell ls -l /dev\\n' | sudo nvgraft lab --script -
  sudo nvgraft lab --script all.txt --record page.html

exit code: 0 the lab has ended, 1 a command of a script or the start failed, or a script has not
solved its lesson, 2 bad usage or input"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``lab``."""
    parser.description = _DESCRIPTION
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "host",
        metavar="HOST",
        nargs="?",
        default=DEFAULT_HOST,
        help="a name of `nvgraft simulate --list`, the path of a nvgraft.host/1 document, or"
        f" by-hand, lesson or lessons (default: {DEFAULT_HOST})",
    )
    parser.add_argument(
        "bundle",
        metavar="BUNDLE",
        nargs="?",
        help="the directory of a bundle; behind lesson, its name or file",
    )
    parser.add_argument(
        "--script",
        metavar="FILE",
        help="obey the commands of FILE, one a line (- reads standard input)",
    )
    parser.add_argument(
        "--record", metavar="FILE", help="write a page of all stops to FILE at the end (HTML)"
    )
    parser.add_argument(
        "--plain",
        action="store_true",
        help="lines of text alone, for screen readers: no folding, no completion, no colours and"
        " no pager",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the lab and return the exit code.

    :raises InputError: it cannot begin.
    """
    if args.plain and args.color == "auto":
        terminal.setup("never")
    if args.host == BY_HAND:
        return _run_by_hand(args)
    if args.host in (LESSON, LESSONS):
        return _run_lesson(args)
    from nvgraft_cli.lab import image
    from nvgraft_cli.lab.ground.bundles import bundle_config
    from nvgraft_cli.lab.ground.cgroups import Janitor
    from nvgraft_cli.lab.ground.lent_terminal import terminal_of
    from nvgraft_cli.simulate import running
    from nvgraft_specs.documents import DocumentError

    try:
        _, snapshot, host = running.read_host(args.host)
    except DocumentError as error:
        raise InputError(str(error)) from error
    _check_machine()
    script = None if args.script is None else _read_script(args.script)
    if args.record is not None:
        _check_writable(args.record)
    if args.bundle is None:
        image.check()
    config = None if args.bundle is None else bundle_config(args.bundle)
    record = os.memfd_create("record")
    name = f"nvgraft-lab-{uuid.uuid4().hex[:12]}"
    with terminal_of(scripted=script is not None) as lent, Janitor(name) as janitor:
        code = running.on_host(
            host,
            snapshot,
            lambda: _work(lambda: _walk(name, config, script, record, host.name, args, lent)),
            announce=janitor.announce,
        )
    data = os.pread(record, os.fstat(record).st_size, 0)
    if args.record is not None and data:
        from nvgraft_cli.shell.output import write_whole

        write_whole(args.record, data, 0o644)
    return code


def _run_by_hand(args: argparse.Namespace) -> int:
    from nvgraft_cli.lab import hand_node
    from nvgraft_cli.lab.ground.lent_terminal import mode_kept
    from nvgraft_cli.simulate import running
    from nvgraft_specs.models.host import parse_host

    if args.bundle is not None or args.record is not None:
        raise InputError("by-hand takes no BUNDLE and no --record | leave them out")
    _check_root()
    hand_node.check()
    script = None if args.script is None else _read_script(args.script)
    text = hand_node.host_text()
    host = parse_host(text, BY_HAND)
    with mode_kept():
        return running.on_host(host, text, lambda: _work(lambda: _build_by_hand(script, args)))


def _build_by_hand(script: Sequence[str] | None, args: argparse.Namespace) -> int:
    from nvgraft_cli.lab import hand_node
    from nvgraft_cli.lab.by_hand import ByHand
    from nvgraft_cli.simulate.demo import DemoFailed

    environment = _prepare(args)
    hand_node.keep_machine()
    _end_by(signal.SIGTERM, signal.SIGHUP)
    try:
        experiment = ByHand(environment, _say(args), terminal=script is None and _has_terminal())
    except DemoFailed as error:
        raise InputError(f"{error} | install the package of that program anew", 1) from error
    try:
        return experiment.follow(_console(script, args))
    finally:
        _uninterrupted(experiment.end)


def _run_lesson(args: argparse.Namespace) -> int:
    from nvgraft_cli.lab.lessons import command

    if args.record is not None:
        raise InputError(f"{args.host} takes no --record | leave it out")
    if args.host == LESSONS:
        if args.bundle is not None or args.script is not None:
            raise InputError("lessons takes no argument | write lesson NAME to begin one")
        return command.list_lessons(print)
    if args.bundle is None:
        raise InputError("lesson: no name | write lesson NAME; nvgraft lab lessons lists them")
    _check_machine()
    command.check_machine()
    script = None if args.script is None else _read_script(args.script)

    def environment() -> dict[str, str]:
        made = _prepare(args)
        _end_by(signal.SIGTERM, signal.SIGHUP)
        children.adopt_orphans()
        return made

    return command.teach(args.bundle, _work, _console(script, args), environment)


def _has_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _say(args: argparse.Namespace) -> Callable[[str], None]:
    return say_plainly if args.plain else terminal.show


def say_plainly(text: str) -> None:
    """Print an answer for a screen reader: nothing is folded, and a tree has indentation only."""
    print(text.translate(_DRAWN))


def _console(script: Sequence[str] | None, args: argparse.Namespace) -> "LabConsole":
    from nvgraft_cli.lab.ground.lines import LabConsole

    return LabConsole(script, _say(args), plain=args.plain)


def _check_machine() -> None:
    _check_root()
    if shutil.which("runc") is None:
        raise InputError("runc: there is no such program in PATH | run apt-get install runc")


def _check_root() -> None:
    if os.geteuid() != 0:
        fix = f"run sudo nvgraft {shlex.join(sys.argv[1:])}"
        raise InputError(f"only root can make containers and mounts on a simulated node | {fix}")
    if userns.inside():
        raise InputError(
            "root of a user namespace cannot make device nodes on a simulated node | leave the user"
            " namespace, or the rootless container"
        )


def _read_script(path: str) -> list[str]:
    try:
        with open(0 if path == "-" else path, "rb", closefd=path != "-") as file:
            data = file.read(_SCRIPT_LIMIT + 1)
    except OSError as error:
        raise InputError(
            f"--script {path}: {(error.strerror or str(error)).lower()} | name a readable file"
        ) from error
    if len(data) > _SCRIPT_LIMIT:
        raise InputError(f"--script {path}: more than {_SCRIPT_LIMIT >> 20} MiB | shorten it")
    return data.decode("utf-8", "replace").splitlines()


def _check_writable(path: str) -> None:
    directory = os.path.dirname(os.path.abspath(path))
    if os.path.isdir(path):
        raise InputError(f"--record {path}: is a directory | name a file")
    if not os.access(directory, os.W_OK):
        raise InputError(f"--record {path}: {directory} cannot be written | name another file")


def _prepare(args: argparse.Namespace) -> dict[str, str]:
    """Make the lab's part of the node, and return the environment of a shell there."""
    from nvgraft_cli.lab.ground import node

    return {**node.prepare(), **(_PLAIN if args.plain else {})}


def _work(act: Callable[[], int]) -> int:
    """Be the lab, as a process of the simulated node: do ``act``, and report its errors."""
    try:
        code = act()
        sys.stdout.flush()
        return code
    except InputError as error:
        print(printable(f"nvgraft lab: {error}"), file=sys.stderr)
        return error.exit_code
    except streams.CannotWrite as error:
        print(f"nvgraft lab: {error}", file=sys.stderr)
        return _NO_OUTPUT
    except streams.ReaderGone:
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        if sys.stdin.isatty():
            print(file=sys.stderr)  # the terminal shows ^C behind the prompt
        print("nvgraft lab: interrupted | everything was taken back", file=sys.stderr)
        return _INTERRUPTED


def _walk(
    name: str,
    config: dict[str, Any] | None,
    script: Sequence[str] | None,
    record: int,
    host: str,
    args: argparse.Namespace,
    lent: "LentTerminal | None",
) -> int:
    from nvgraft_cli.lab import console, image
    from nvgraft_cli.lab.commands import LabCommands
    from nvgraft_cli.lab.ground import node
    from nvgraft_cli.lab.run import LabRun
    from nvgraft_cli.lab.waiting import StartFailed, WaitingContainer
    from nvgraft_cli.simulate.demo import DemoFailed

    environment = _prepare(args)
    _end_by(signal.SIGTERM, signal.SIGHUP)
    children.adopt_orphans()
    try:
        container = WaitingContainer(name, node.WORK, config or image.make(f"{node.WORK}/default"))
        start = LabRun(container)
        try:
            start.begin()
            commands = LabCommands(start, environment, _say(args), lent)
            commands.show()
            code = console.follow(commands, _console(script, args))
            if args.record is not None:
                from nvgraft_cli.lab import page

                os.write(record, page.render(start, host).encode())
        finally:
            _uninterrupted(start.end)
    except (StartFailed, DemoFailed) as error:
        raise InputError(f"{error} | look at the bundle's config.json", 1) from error
    logs.debug("ended", stops=len(start.stops))
    return code or int(bool(start.failure))


def _end_by(*numbers: int) -> None:
    """Let signals end the lab."""
    from nvgraft_cli.lab.ground.lines import Ended

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise Ended

    for number in numbers:
        signal.signal(number, interrupt)


def _uninterrupted(act: Callable[[], None]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    act()
