"""The arguments that commands about CDI specifications share."""

import argparse
import os
from collections.abc import Sequence

from nvgraft_cli.case.hosts import read_configuration
from nvgraft_cli.cdi import HOOK
from nvgraft_cli.shell.arguments import add_answer, add_config

_SUFFIXES = {".json": "json", ".yaml": "yaml", ".yml": "yaml"}


def add_hook_path(parser: argparse.ArgumentParser) -> None:
    """Add ``--nvidia-cdi-hook-path``."""
    parser.add_argument(
        "--nvidia-cdi-hook-path",
        metavar="PATH",
        default=HOOK,
        help="the program that the hooks of a CDI specification run; a program named nvidia-ctk "
        f"is called with `hook` as first argument (default: {HOOK})",
    )


def add_form(parser: argparse.ArgumentParser) -> None:
    """Add ``--format`` and ``--output`` of a specification; :func:`form` returns the format."""
    add_answer(parser, "yaml", "json", text="default: as FILE's name says, else yaml")
    # A file is readable for the engines of all users.
    parser.set_defaults(format=None, output_mode=0o644)


def form(args: argparse.Namespace) -> str:
    """Return the format of a specification: "yaml" or "json"."""
    suffix = os.path.splitext(args.output or "")[1]
    return str(args.format or _SUFFIXES.get(suffix, "yaml"))


def add_directories(parser: argparse.ArgumentParser) -> None:
    """Add ``--spec-dir`` and ``--config``; :func:`directories` returns what they say."""
    parser.add_argument(
        "--spec-dir",
        metavar="DIR",
        action="append",
        help="a directory of specifications, the most important one last; may be given more than"
        " once (default: spec-dirs of config.toml: /etc/cdi and /var/run/cdi)",
    )
    add_config(parser, "the runtime's own")


def directories(args: argparse.Namespace) -> Sequence[str]:
    """Return the directories of specifications.

    :raises nvgraft_cli.shell.errors.InputError: --config names a file that cannot be used.
    """
    if args.spec_dir:
        found: Sequence[str] = args.spec_dir
        return found
    return read_configuration(args.config).runtime_cdi_spec_dirs
