"""Arguments that several commands share: those that name a host and a container."""

import argparse


def add_case(parser: argparse.ArgumentParser) -> None:
    """Add ``--bundle``, ``--host``, ``--config`` and ``--env``."""
    parser.add_argument(
        "--bundle",
        metavar="PATH",
        default=".",
        help="an OCI bundle, a config.json, a root file system, or an image (docker save archive,"
        " OCI layout); default: this directory",
    )
    parser.add_argument(
        "--env",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="add to the container's environment",
    )
    add_host(parser)


def add_host(parser: argparse.ArgumentParser) -> None:
    """Add ``--host`` and ``--config``."""
    parser.add_argument(
        "--host",
        metavar="SNAPSHOT",
        help="a nvgraft.host/1 document, or a name of `nvgraft simulate --list`",
    )
    add_config(parser)


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add ``--config``."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="config.toml (default: the hook's own; with --host: the built-in defaults)",
    )
