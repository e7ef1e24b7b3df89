"""The arguments that commands about CDI specifications share."""

import argparse
from collections.abc import Sequence

from nvgraft_cli.case.hosts import read_configuration
from nvgraft_cli.cdi import HOOK, MODES, STRATEGIES
from nvgraft_cli.shell.arguments import add_answer, add_config
from nvgraft_specs import cdi_hooks
from nvgraft_specs.names import ALL


def add_hook_path(parser: argparse.ArgumentParser) -> None:
    """Add ``--nvidia-cdi-hook-path``; its default is None."""
    parser.add_argument(
        "--nvidia-cdi-hook-path",
        metavar="PATH",
        help="the program that the hooks of a CDI specification run; a program named nvidia-ctk "
        f"is called with `hook` as first argument (default: {HOOK})",
    )


def add_content(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say what a specification contains."""
    parser.add_argument(
        "--mode",
        metavar="MODE",
        choices=("auto", *MODES),
        default="auto",
        help="which devices: of NVML (nvml), of the CSV files of a Tegra board (csv) or of WSL2"
        " (wsl); auto, the default: as the host is; management: all nodes of the driver, for"
        " containers that manage GPUs; or those of a component: gds, mofed, gdrcopy, nvswitch,"
        " imex",
    )
    parser.add_argument(
        "--device-name-strategy",
        metavar="NAME",
        choices=STRATEGIES,
        action="append",
        help="name devices by index (0, 0:1), uuid, or type-index (gpu0, mig0:1); may be given "
        "more than once (default: index and uuid)",
    )
    parser.add_argument(
        "--no-all-device", action="store_true", help="leave out the device all, which has all"
    )
    parser.add_argument("--vendor", metavar="NAME", help="of the kind (default: the mode's)")
    parser.add_argument("--class", metavar="NAME", help="of the kind (default: the mode's)")
    parser.add_argument(
        "--driver-root",
        metavar="DIR",
        help="where the driver's files are (default: root of config.toml)",
    )
    parser.add_argument(
        "--dev-root",
        metavar="DIR",
        help="the directory with the dev of the device nodes (default: the driver root; of a"
        " recorded host /)",
    )
    parser.add_argument(
        "--hooks",
        choices=("nvidia", "nvgraft"),
        default="nvidia",
        help="whose hooks: nvidia-cdi-hook, once for each step (default), or nvgraft-cdi-hook, once"
        ' for all steps unless config.toml has cdi-hooks = "each"',
    )
    parser.add_argument(
        "--disable-hook",
        metavar="STEP[,STEP...]",
        type=_steps,
        action="extend",
        help=f"leave out steps of the hooks ({', '.join(cdi_hooks.ALL_STEPS)}), or all; may be"
        " given more than once",
    )
    add_hook_path(parser)


def _steps(text: str) -> list[str]:
    """Return the steps of one --disable-hook."""
    steps = text.split(",")
    for step in steps:
        if step not in {*cdi_hooks.ALL_STEPS, ALL}:
            raise argparse.ArgumentTypeError(
                f"invalid choice: {step!r} (choose from {', '.join((*cdi_hooks.ALL_STEPS, ALL))})"
            )
    return steps


def add_form(parser: argparse.ArgumentParser) -> None:
    """Add ``--format`` and ``--output`` of a specification; :func:`form` returns the format."""
    add_answer(parser, "yaml", "json", text="default: as FILE's name says, else yaml")
    # A file is readable for the engines of all users.
    parser.set_defaults(format=None, output_mode=0o644)


def form(args: argparse.Namespace) -> str:
    """Return the format of a specification: "yaml" or "json"."""
    return str(args.format or form_of(args.output or ""))


def form_of(path: str) -> str:
    """Return the format that the name of a file says: "json", or else "yaml"."""
    return "json" if path.endswith(".json") else "yaml"


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
