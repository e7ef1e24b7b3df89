"""``nvgraft cdi transform root``: write a specification for another root, as
`nvidia-ctk cdi transform root` does.

The specification of a driver container names paths as that container sees them, or as it sees the
driver root. Its node needs them as the host does.
"""

import argparse
import sys

from nvgraft.cdi.reader import SpecificationError
from nvgraft_cli.case.specifications import parse_specification
from nvgraft_cli.cdi import spec
from nvgraft_cli.cdi.arguments import add_form, form
from nvgraft_cli.cdi.roots import with_root
from nvgraft_cli.shell.arguments import STDIN, source
from nvgraft_cli.shell.errors import InputError
from nvgraft_specs.documents import DocumentError, read_bytes

_EXAMPLES = """\
examples:
  nvgraft cdi transform root --from /host --to / --input nvidia.yaml
  nvgraft cdi generate | nvgraft cdi transform root --from / --to /run/nvidia/driver

exit code: 0 written, 2 bad usage or input"""


def add_arguments(group: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``cdi transform root``."""
    group.description = "Write a CDI specification with other paths."
    group.epilog = _EXAMPLES
    parser = group.add_subparsers(metavar="WHAT", dest="transformed", required=True).add_parser(
        "root",
        help="replace the first directories of paths",
        description="Write a CDI specification whose paths begin with another root: sources,"
        " device nodes and hooks of the host, or with --relative-to container the paths in the"
        " container.",
        epilog=_EXAMPLES,
    )
    parser.add_argument("--from", metavar="DIR", required=True, help="the root of its paths")
    parser.add_argument("--to", metavar="DIR", required=True, help="the root to write instead")
    parser.add_argument(
        "--input",
        metavar="FILE",
        type=source,
        default=STDIN,
        help="the specification in JSON or YAML (default, or -: standard input)",
    )
    parser.add_argument(
        "--relative-to",
        choices=("host", "container"),
        default="host",
        help="whose paths are changed (default: host)",
    )
    add_form(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the specification and return the exit code.

    :raises InputError: the specification cannot be used.
    """
    try:
        before = parse_specification(read_bytes(args.input), args.input)
    except (DocumentError, SpecificationError) as error:
        raise InputError(str(error)) from None
    after = with_root(before, vars(args)["from"], args.to, args.relative_to)
    sys.stdout.write(spec.text(after, form(args)))
    return 0
