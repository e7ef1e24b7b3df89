"""The program ``nvgraft``: its parser, and how errors become exit codes.

The commands of nvidia-container-cli have a parser of their own, which is also used for all
arguments when the program is called by that name.
"""

import argparse
import os
import posixpath
import sys
from importlib import import_module

from nvgraft import __version__
from nvgraft.base.errors import printable
from nvgraft.base.files import reason
from nvgraft_cli.container_cli import command as container_cli
from nvgraft_cli.container_cli.options import COMMANDS, names_command
from nvgraft_cli.shell.errors import InputError

_EPILOG = """\
examples:
  nvgraft simulate --list
  nvgraft plan --bundle ./bundle --host runfile-a10x2"""


#: The modules of the sub-commands, in the order of the help text; each has ``add_parser``.
_COMMANDS = (
    "plan.command",
    "snapshot.command",
    "doctor.command",
    "diff.command",
    "why.command",
    "explain.command",
    "matrix.command",
    "prove.command",
    "explain_error.command",
    "cdi.command",
    "simulate.command",
    "register.command",
    "last_error.command",
    "recover.command",
    "inventory.command",
    "inventory.watch",
)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nvgraft",
        description="Graft a host's NVIDIA driver onto a container, or predict what that will do.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"nvgraft {__version__}")
    parser.add_argument("--debug", action="store_true", help="log more on stderr")
    # A command that only reads is confined before it runs, and after its open_first (see confine).
    parser.set_defaults(looks_only=False, many_inputs=False, open_first=None)
    subparsers = parser.add_subparsers(metavar="COMMAND", dest="subcommand", required=True)
    for name in _COMMANDS:
        # Imported only now: `nvgraft list`, which replaces a small C program, has to start quickly.
        import_module(f"nvgraft_cli.{name}").add_parser(subparsers)
    for name, text in COMMANDS.items():
        # For the list of commands only: main() handles these before.
        subparsers.add_parser(name, help=text, add_help=False)
    return parser


def _confine(args: argparse.Namespace) -> None:
    from nvgraft_cli.shell import confine

    if args.open_first is not None:
        args.open_first(args)
    missing = confine.look_only(many_inputs=args.many_inputs)
    if args.debug:
        from nvgraft_cli.shell import logs

        logs.setup(debug=True)
        logs.get(args.subcommand).debug("confined", missing=", ".join(missing) or "nothing")


def main(argv: list[str] | None = None) -> int:
    """Run a command line and return its exit code.

    Usage errors exit with 2, those of nvidia-container-cli's commands with 1.
    """
    words = sys.argv[1:] if argv is None else argv
    # Without HOME, modules of the standard library look up the user at import, which may ask a
    # daemon.
    os.environ.setdefault("HOME", "/")
    command = next((word for word in words if not word.startswith("-")), "")
    original = posixpath.basename(sys.argv[0]) == container_cli.ORIGINAL_NAME
    try:
        if original or names_command(words):
            code: int = container_cli.main(
                container_cli.ORIGINAL_NAME if original else "nvgraft", words
            )
        else:
            args = _parser().parse_args(words)
            # Confinement cannot be undone, so a call from another program does not confine its
            # process.
            if args.looks_only and argv is None:
                _confine(args)
            code = args.run(args)
        sys.stdout.flush()
    except InputError as error:
        print(f"nvgraft {command}: {printable(str(error))}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader has closed the pipe (| head). Python flushes the rest to /dev/null at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except KeyboardInterrupt:
        return 130
    except MemoryError:
        print(
            f"nvgraft {command}: out of memory | use another input:"
            " this one is too large, damaged or malicious",
            file=sys.stderr,
        )
        return 2
    except OSError as error:
        if error.filename is None:
            raise
        fix = "run as a user who can read these paths (and the driver root, unless --host is given)"
        print(
            f"nvgraft {command}: {printable(str(error.filename))}: {reason(error)} | {fix}",
            file=sys.stderr,
        )
        return 2
    return code


if __name__ == "__main__":
    raise SystemExit(main())
