"""The arguments that commands share, each with one name and one meaning everywhere.

A command takes those that it can use; a new shared argument is added here and nowhere else.
"""

import argparse
from collections.abc import Callable

from nvgraft_cli.shell.terminal import WHEN

#: The title of the options of every command.
EVERYWHERE = "every command"

#: Modes of nvgraft-runtime that --mode names.
CDI_MODES = ("jit-cdi", "cdi", "csv")
RUNTIME_MODES = ("legacy", *CDI_MODES)

#: What `-` stands for where a document, an image or a container is read.
STDIN = "/dev/stdin"


def add_everywhere(parser: argparse.ArgumentParser) -> None:
    """Add the options of every command, which may stand before and after its name.

    They have no default here, so that a value before the name is not overwritten; the parser of
    the program sets the defaults.
    """
    group = parser.add_argument_group(EVERYWHERE)
    group.add_argument(
        "--debug",
        action="store_true",
        default=argparse.SUPPRESS,
        help="log on stderr what is read, decided and skipped",
    )
    group.add_argument(
        "--log-format",
        choices=("text", "json"),
        default=argparse.SUPPRESS,
        help="the lines of the log on stderr: text (default), or one JSON object each",
    )
    group.add_argument(
        "--color",
        choices=WHEN,
        default=argparse.SUPPRESS,
        help="color the answer; auto (default): on a terminal, unless NO_COLOR is set",
    )
    group.add_argument(
        "--no-pager",
        action="store_true",
        default=argparse.SUPPRESS,
        help="do not page the answer on a terminal (the pager is NVGRAFT_PAGER, PAGER or less)",
    )


def source(text: str) -> str:
    """Return the path of an input: that of standard input for `-`. For ``type``."""
    return STDIN if text == "-" else text


def reads_stdin(args: argparse.Namespace) -> bool:
    """Tell whether a command line names standard input by `-`."""
    return any(
        value == STDIN or (isinstance(value, list) and STDIN in value)
        for value in vars(args).values()
    )


def add_case(parser: argparse.ArgumentParser) -> None:
    """Add the arguments for a container, or one of a pod, on a host."""
    add_container(parser, None, "this directory; with --pod none", mode=None)
    add_pod(parser)
    add_host(parser)
    add_cdi(parser)


def add_pod(parser: argparse.ArgumentParser) -> None:
    """Add ``--pod`` and what belongs to it."""
    group = parser.add_argument_group("pods")
    group.add_argument(
        "--pod",
        metavar="FILE",
        type=source,
        help="begin with a pod (YAML or JSON; also the template of a workload, and RuntimeClass"
        " objects beside it); --container is then its image",
    )
    group.add_argument(
        "--pod-container",
        metavar="NAME",
        help="the container of the pod (default: the one that asks for devices)",
    )
    group.add_argument(
        "--plugin-flag",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a flag of the device plugin, such as device-list-strategy=cdi-cri or"
        " config-file=FILE (may be repeated)",
    )
    group.add_argument(
        "--plugin-devices",
        metavar="ID[,ID]",
        type=lambda text: text.split(","),
        default=[],
        help="the devices that the kubelet chose (default: what the plugin prefers on an idle"
        " node)",
    )
    group.add_argument(
        "--kube",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a fact of the node (may be repeated): engine=containerd (default), containerd-1 or"
        " cri-o; default-runtime=NAME (runc); cdi=on or off; runtime-annotations=on or off;"
        " cpu-manager=none or static; dra=on or off",
    )


def add_container(
    parser: argparse.ArgumentParser,
    default: str | None,
    shown: str,
    *,
    two_modes: bool = False,
    mode: str | None = "hook",
) -> None:
    """Add ``--container`` (also ``--bundle``), ``--env`` and ``--mode``.

    :param shown: the default, for the help text.
    :param mode: the default of --mode; None if a command finds it.
    :param two_modes: whether --mode may name two modes with a comma between them.
    """
    parser.add_argument(
        "--container",
        "--bundle",
        metavar="PATH",
        type=source,
        default=default,
        help="an OCI bundle, a config.json, a root file system, or an image (docker save archive,"
        f" OCI layout); - reads standard input; default: {shown}",
    )
    parser.add_argument(
        "--env",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="add to the container's environment",
    )
    add_mode(parser, two=two_modes, default=mode)


def add_mode(
    parser: argparse.ArgumentParser, *, two: bool = False, default: str | None = "hook"
) -> None:
    """Add ``--mode``.

    :param two: whether it may name two modes with a comma between them.
    """
    known = ("hook", "runtime", *RUNTIME_MODES)
    parser.add_argument(
        "--mode",
        choices=None if two else known,
        type=_modes(known) if two else str,
        metavar="MODE[,MODE]" if two else "MODE",
        default=default,
        help="how containers are started: hook (default): the engine calls the hook; runtime"
        + (" (default with --pod):" if default is None else ":")
        + " through nvgraft-runtime, in the mode of config.toml; or in the mode that is named:"
        " legacy (the hook), jit-cdi (devices that the runtime generates), cdi (those of CDI"
        " specifications), csv (Tegra)"
        + ("; two modes with a comma compare one container (legacy,jit-cdi)" if two else ""),
    )


def _modes(known: tuple[str, ...]) -> Callable[[str], str]:
    """Return the type of a --mode that may have two modes."""

    def read(text: str) -> str:
        words = text.split(",")
        if len(words) > 2 or not set(words) <= set(known):
            raise argparse.ArgumentTypeError(
                f"{text!r} | write one of {', '.join(known)}, or two of them: legacy,jit-cdi"
            )
        return text

    return read


def add_host(parser: argparse.ArgumentParser) -> None:
    """Add ``--host``, ``--node`` and ``--config``."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--host",
        metavar="HOST",
        type=source,
        help="a nvgraft.host/1 document (- reads standard input), or a name of"
        " `nvgraft simulate --list` (default: this machine)",
    )
    add_node(group)
    add_config(parser, "the hook's own; with --host: the built-in defaults")


def add_cdi(parser: argparse.ArgumentParser) -> None:
    """Add ``--cdi``."""
    parser.add_argument(
        "--cdi",
        metavar="FILE",
        type=source,
        action="append",
        default=[],
        help="a CDI specification in the place of the host's own, for CDI names and mode cdi (may"
        " be repeated; default: those in the directories of config.toml, and for a recorded host"
        " the one that nvgraft cdi generate writes)",
    )


def add_node(parser: argparse._ActionsContainer) -> None:
    """Add ``--node``, which the program itself handles: the command then runs on that node."""
    parser.add_argument(
        "--node",
        metavar="NODE",
        help="run on a simulated node that `nvgraft simulate --name NODE` has started",
    )


def add_config(parser: argparse.ArgumentParser, shown: str) -> None:
    """Add ``--config``.

    :param shown: the default, for the help text.
    """
    parser.add_argument(
        "--config", metavar="FILE", help=f"config.toml of the hook (default: {shown})"
    )


def add_answer(parser: argparse.ArgumentParser, *choices: str, text: str = "") -> None:
    """Add ``--format`` and ``--output``, which the program itself handles.

    For the parameters see :func:`add_format`.
    """
    add_format(parser, *choices, text=text)
    add_output(parser)


def add_output(parser: argparse.ArgumentParser) -> None:
    """Add ``--output``."""
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=lambda text: None if text == "-" else text,
        help="write the answer to FILE as a whole (default, or -: standard output)",
    )


def add_format(parser: argparse.ArgumentParser, *choices: str, text: str = "") -> None:
    """Add ``--format``, by default for text or JSON. The first choice is the default.

    :param text: a help text that says more.
    """
    choices = choices or ("text", "json")
    parser.add_argument(
        "--format", choices=choices, default=choices[0], help=text or f"default: {choices[0]}"
    )
