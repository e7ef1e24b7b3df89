"""The program ``nvgraft``: what it runs, and how errors become exit codes.

The commands of nvidia-container-cli have a parser of their own, which is also used for all
arguments when the program is called by that name.
"""

from __future__ import annotations

import os
import posixpath
import sys

from nvgraft.base.errors import printable
from nvgraft.base.files import reason
from nvgraft_cli.container_cli import COMMANDS, ORIGINAL_NAME
from nvgraft_cli.shell.errors import InputError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse


def _confine(args: argparse.Namespace) -> None:
    from nvgraft_cli.shell import confine

    if args.open_first is not None:
        args.open_first(args)
    missing = confine.look_only(many_inputs=args.many_inputs)
    if args.debug:
        from nvgraft_cli.shell import logs

        logs.setup(debug=True)
        logs.get(args.subcommand).debug("confined", missing=", ".join(missing) or "nothing")


def _run_original(words: list[str]) -> int | None:
    """Run a command line that is meant for nvidia-container-cli, or return None."""
    original = posixpath.basename(sys.argv[0]) == ORIGINAL_NAME
    if not original and COMMANDS.keys().isdisjoint(words):
        return None
    from nvgraft_cli.container_cli import command, options

    if not original and not options.names_command(words):
        return None
    return command.main(ORIGINAL_NAME if original else "nvgraft", words)


def _run(words: list[str], *, confined: bool) -> int:
    """Run a command line of ``nvgraft``.

    :param confined: whether a command that only reads may confine this process, for good.
    """
    from nvgraft_cli.shell import parser

    args = parser.parse(words)
    if args.looks_only and confined:
        _confine(args)
    code: int = args.run(args)
    return code


def main(argv: list[str] | None = None) -> int:
    """Run a command line and return its exit code.

    Usage errors exit with 2, those of nvidia-container-cli's commands with 1.
    """
    words = sys.argv[1:] if argv is None else argv
    # Without HOME, modules of the standard library look up the user at import, which may ask a
    # daemon.
    os.environ.setdefault("HOME", "/")
    command = next((word for word in words if not word.startswith("-")), "")
    try:
        code = _run_original(words)
        if code is None:
            # A call from another program does not confine its process.
            code = _run(words, confined=argv is None)
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
