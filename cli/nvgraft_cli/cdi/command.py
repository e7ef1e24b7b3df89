"""The command line of ``nvgraft cdi``: its sub-commands, each a module of this package."""

import argparse
from importlib import import_module

#: Sub-command -> its module in this package, and its summary.
_COMMANDS = {
    "generate": ("generate", "write the specification of a host"),
    "refresh": ("refresh", "keep the specification of this machine up to date"),
    "list": ("listing", "list the devices of all specifications, by which names engines find them"),
    "validate": ("validate", "find what is wrong with specifications"),
    "transform": ("transform", "write a specification for another root"),
}


def add_arguments(group: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``cdi`` and of its sub-commands."""
    group.description = "Write and check CDI specifications (Container Device Interface)."
    group.epilog = "example: nvgraft cdi generate --host eks-t4 --output nvidia.yaml"
    group.set_defaults(looks_only=True)
    commands = group.add_subparsers(metavar="COMMAND", dest="cdi_command", required=True)
    for name, (module, summary) in _COMMANDS.items():
        import_module(f"nvgraft_cli.cdi.{module}").add_arguments(
            commands.add_parser(name, help=summary)
        )
