"""The argument that every command which writes a CDI specification has."""

import argparse

from nvgraft_cli.cdi import HOOK


def add_hook_path(parser: argparse.ArgumentParser) -> None:
    """Add ``--nvidia-cdi-hook-path``."""
    parser.add_argument(
        "--nvidia-cdi-hook-path",
        metavar="PATH",
        default=HOOK,
        help=f"the program that a CDI specification's hooks run; one called nvidia-ctk has them below `hook` (default: {HOOK})",
    )
