"""The program ``nvgraft``: what it runs, and how errors become exit codes.

The commands of nvidia-container-cli have a parser of their own, which is also used for all
arguments when the program is called by that name.
"""

from __future__ import annotations

import gc
import os
import posixpath
import sys

from nvgraft.base.errors import Refusal, printable
from nvgraft.base.files import reason
from nvgraft_cli.container_cli import COMMANDS, ORIGINAL_NAME
from nvgraft_cli.shell import streams, terminal
from nvgraft_cli.shell.errors import InputError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

#: The exit code of bad usage and input.
_TROUBLE = 2

#: The command whose words are those of another program.
DOCKER = "docker-v1"


def _confine(args: argparse.Namespace) -> None:
    from nvgraft_cli.shell import confine, logs

    if args.open_first is not None:
        args.open_first(args)
    missing = confine.look_only(many_inputs=args.many_inputs)
    logs.debug("confined", missing=", ".join(missing) or "nothing")


def _first_command(words: list[str]) -> str:
    """Return the first word that names a command: `nvgraft --debug why list` is not for list."""
    from nvgraft_cli.shell.commands import GROUPS

    known = {name for group in GROUPS.values() for name in group}
    return next((word for word in words if word in known), "")


def _run_original(words: list[str]) -> int | None:
    """Run a command line that is meant for nvidia-container-cli, or return None."""
    original = posixpath.basename(sys.argv[0]) == ORIGINAL_NAME
    if not original and _first_command(words) not in COMMANDS:
        return None
    from nvgraft_cli.container_cli import command, options

    if not original and not options.names_command(words):
        return None
    return command.main(ORIGINAL_NAME if original else "nvgraft", words)


def _run_docker(words: list[str]) -> int | None:
    """Run a command line whose words are docker's, or return None: it asks for help."""
    if words[1:2] in (["--help"], ["-h"]):
        return None
    from nvgraft_cli.docker_v1 import command

    return command.main(words[1:])


def _run(words: list[str], pager: terminal.Pager | None) -> int:
    """Run a command line of ``nvgraft``.

    :param pager: for the answer of a command that only reads, which is then confined for good. None
        in the process of another program.
    """
    from nvgraft_cli.shell import parser

    args = parser.parse(words)
    from nvgraft_cli.shell import logs

    terminal.setup(args.color)
    logs.setup(args.subcommand, debug=args.debug, json=args.log_format == "json")
    try:
        if pager is None:
            return _answer_here(args)
        _go_there(args)
        if args.looks_only:
            if not args.no_pager:
                pager.start()
            _confine(args)
        code: int = args.run(args)
    except (InputError, Refusal) as error:
        return _report(error, args)
    except MemoryError:
        text = "out of memory | use another input: this one is too large, damaged or malicious"
        return _report(InputError(text), args)
    except OSError as error:
        if error.filename is None:
            raise
        fix = "run as a user who can read these paths (and the driver root, unless --host is given)"
        return _report(InputError(f"{error.filename}: {reason(error)} | {fix}"), args)
    return code


def _go_there(args: argparse.Namespace) -> None:
    """Go to where the command shall answer (--node), and leave a process that writes (--output).

    This process goes on as a child of those that stay.
    """
    from nvgraft_cli.shell import arguments

    if args.output is not None:
        from nvgraft_cli.shell import apart

        apart.send_to(args.output, args.output_mode)
        terminal.setup(args.color)
    if args.deliver is not None:
        args.deliver(args)
    if args.node is not None:
        from nvgraft_cli.shell import nodes

        nodes.enter(args.node)
    if arguments.reads_stdin(args):
        from nvgraft_cli.shell import stdin

        # A confined command cannot open a file that is not on the node.
        stdin.keep(copied=args.node is not None)


def _answer_here(args: argparse.Namespace) -> int:
    """Run a command in the process of another program, which cannot be confined or forked."""
    if args.output is None:
        code: int = args.run(args)
        return code
    import contextlib
    import io

    from nvgraft_cli.shell import output

    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        code = args.run(args)
    if code != _TROUBLE and text.getvalue():
        output.write_whole(args.output, text.getvalue().encode(), args.output_mode)
    return code


def _report(error: InputError | Refusal, args: argparse.Namespace) -> int:
    """Print an error as one line, with --format json also as a document, and return the exit
    code.
    """
    if getattr(args, "format", None) == "json":
        from nvgraft_cli.shell import output, refusals

        output.print_document(refusals.document(args.subcommand, error, error.exit_code))
    if isinstance(error, Refusal):
        line = error.line()
    else:
        line = printable(f"nvgraft {args.subcommand}: {error}")
    print(line, file=sys.stderr)
    return error.exit_code


def main(argv: list[str] | None = None) -> int:
    """Run a command line and return its exit code.

    Usage errors exit with 2, those of nvidia-container-cli's commands with 1.
    """
    words = sys.argv[1:] if argv is None else argv
    # A call from another program does not confine its process.
    pager = terminal.Pager() if argv is None else None
    if argv is None:
        streams.prepare()
    # Without HOME, modules of the standard library look up the user at import, which may ask a
    # daemon.
    os.environ.setdefault("HOME", "/")
    try:
        try:
            code = _run_docker(words) if words[:1] == [DOCKER] else _run_original(words)
            if code is None:
                code = _run(words, pager)
        finally:
            sys.stdout.flush()
    except streams.CannotWrite as error:
        print(f"nvgraft: {error}", file=sys.stderr)
        code = 2
    except streams.ReaderGone:
        if pager is not None:
            pager.finish()
        streams.end_by_sigpipe()
    except KeyboardInterrupt:
        code = 130
    finally:
        if pager is not None:
            pager.finish()
            gc.freeze()  # the process ends: to look through what is left would take its time
    return code


if __name__ == "__main__":
    raise SystemExit(main())
