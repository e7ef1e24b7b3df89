"""The argument of all commands that write a CDI specification."""

import argparse

from nvgraft_cli.cdi import HOOK


def add_hook_path(parser: argparse.ArgumentParser) -> None:
    """Add ``--nvidia-cdi-hook-path``."""
    parser.add_argument(
        "--nvidia-cdi-hook-path",
        metavar="PATH",
        default=HOOK,
        help="the program that the hooks of a CDI specification run; a program named nvidia-ctk "
        f"is called with `hook` as first argument (default: {HOOK})",
    )
