"""``nvgraft cdi list``: the devices of all specifications, as engines find them."""

import argparse

from nvgraft.base.errors import printable
from nvgraft.cdi.registry import Registry
from nvgraft_cli.case.specifications import read_registry
from nvgraft_cli.cdi.arguments import add_directories, directories
from nvgraft_cli.shell import logs, terminal
from nvgraft_cli.shell.arguments import add_answer, add_node
from nvgraft_cli.shell.output import print_document

_SCHEMA = "nvgraft.cdi-devices/1"

_EXAMPLES = """\
examples:
  nvgraft cdi list
  nvgraft cdi list --spec-dir /etc/cdi --spec-dir /run/cdi
  nvgraft cdi list --format json | jq -r '.devices[].name'

exit code: 0 listed; 1 a file cannot be used, or two files of one directory have the same device;
2 bad usage"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``cdi list``."""
    parser.description = (
        "List the devices of all CDI specifications by the names that engines know, and the file"
        " of each. A device of a later directory hides one of the same name."
    )
    parser.epilog = _EXAMPLES
    add_directories(parser)
    add_node(parser)
    add_answer(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the list and return the exit code.

    :raises nvgraft_cli.shell.errors.InputError: --config names a file that cannot be used.
    """
    places = directories(args)
    registry = read_registry(places)
    if args.format == "json":
        print_document({"schema": _SCHEMA, "directories": list(places), **_document(registry)})
    else:
        lines = _lines(registry)
        if lines:
            terminal.show("\n".join(lines))
        for error in registry.errors:
            logs.get().warning(str(error))
        if not lines:
            logs.get().info(
                f"no device in {', '.join(places)} | write a specification: nvgraft cdi generate"
            )
    return 1 if registry.errors or registry.conflicts else 0


def _document(registry: Registry) -> dict[str, object]:
    return {
        "devices": [
            {
                "name": name,
                "file": found.file.path,
                "hides": [path for other, path in registry.hidden if other == name],
            }
            for name, found in sorted(registry.devices.items())
        ],
        "conflicts": [
            {"name": name, "files": list(paths)}
            for name, paths in sorted(registry.conflicts.items())
        ],
        "errors": [
            {
                "file": error.path,
                "line": error.line or None,
                "cause": error.cause,
                "fix": error.fix,
            }
            for error in registry.errors
        ],
    }


def _lines(registry: Registry) -> list[str]:
    notes = {name: found.file.path for name, found in registry.devices.items()}
    for name, path in registry.hidden:
        if name in notes:
            notes[name] += f", hides {path}"
    for name, paths in registry.conflicts.items():
        notes[name] = f"conflict: engines find none, since {' and '.join(paths)} have it"
    width = max(map(len, notes), default=0)
    return [f"{name:<{width}}  {printable(note)}" for name, note in sorted(notes.items())]
