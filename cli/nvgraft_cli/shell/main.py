"""The command ``nvgraft``: one parser, one sub-command each in a module of its own.

The commands of nvidia-container-cli have a parser of their own, and so has the whole program when called by that name.
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
        description="Graft a host's NVIDIA driver onto a container, or say beforehand what that would do.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"nvgraft {__version__}")
    parser.add_argument("--debug", action="store_true", help="say on stderr what else happens")
    # See nvgraft_cli.shell.confine: a command that only looks is confined before it runs; what it must do before is its open_first.
    parser.set_defaults(looks_only=False, many_inputs=False, open_first=None)
    subparsers = parser.add_subparsers(metavar="COMMAND", dest="subcommand", required=True)
    for name in _COMMANDS:
        # Loaded only now: what takes the place of a small C program has to start quickly.
        import_module(f"nvgraft_cli.{name}").add_parser(subparsers)
    for name, text in COMMANDS.items():
        subparsers.add_parser(
            name, help=text, add_help=False
        )  # for the list of commands: main() does not come here for them
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
    """Run a command line and return its exit code; usage errors exit with 2, those of nvidia-container-cli's commands with 1."""
    words = sys.argv[1:] if argv is None else argv
    # Without it modules of the standard library look the user up while they are loaded, which asks a daemon, by a socket.
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
            # For good: so only the command line of a process of its own confines it, not a call from another program.
            if args.looks_only and argv is None:
                _confine(args)
            code = args.run(args)
        sys.stdout.flush()
    except InputError as error:
        print(f"nvgraft {command}: {printable(str(error))}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader has seen enough (| head). What Python would flush at exit goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except KeyboardInterrupt:
        return 130
    except MemoryError:
        print(
            f"nvgraft {command}: out of memory | the input is too large, damaged, or made to take it",
            file=sys.stderr,
        )
        return 2
    except OSError as error:
        if error.filename is None:
            raise
        fix = "run it as a user who may read what the command line names and, without --host, the driver root"
        print(
            f"nvgraft {command}: {printable(str(error.filename))}: {reason(error)} | {fix}",
            file=sys.stderr,
        )
        return 2
    return code


if __name__ == "__main__":
    raise SystemExit(main())
