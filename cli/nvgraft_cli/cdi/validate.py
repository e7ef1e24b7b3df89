"""``nvgraft cdi validate``: find what is wrong with CDI specifications on this machine."""

import argparse
from collections import Counter
from collections.abc import Sequence

from nvgraft.base.errors import printable
from nvgraft.base.files import read_text
from nvgraft.cdi.reader import SpecificationError, SpecificationFile
from nvgraft_cli.case.driver import MODULE_VERSION, module_version
from nvgraft_cli.case.specifications import read_registry, read_specifications
from nvgraft_cli.cdi.arguments import add_directories, directories
from nvgraft_cli.cdi.checks import SpecFinding, between, check, unusable
from nvgraft_cli.shell import terminal
from nvgraft_cli.shell.arguments import add_answer, add_node
from nvgraft_cli.shell.errors import InputError
from nvgraft_cli.shell.output import print_document

_SCHEMA = "nvgraft.cdi-check/1"

_EXAMPLES = """\
examples:
  nvgraft cdi validate                       # all that engines find
  nvgraft cdi validate /etc/cdi/nvidia.yaml
  nvgraft cdi validate --format json | jq '.findings[] | select(.level == "error")'

exit code: 0 no error, 1 an error, or there is no specification, 2 bad usage"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``cdi validate``."""
    parser.description = (
        "Check CDI specifications: whether engines accept them (0.3.0 to 1.1.0), whether what they"
        " mount, run and pass exists on this machine, whether they are of the loaded driver, and"
        " which devices several files have."
    )
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="*",
        help="a specification in JSON or YAML (default: all of the directories)",
    )
    add_directories(parser)
    add_node(parser)
    add_answer(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print what was found and return the exit code.

    :raises InputError: there is no specification, or --config names a file that cannot be used.
    """
    files, errors, findings = _read(args)
    version = _loaded_version()
    findings += [unusable(error) for error in errors]
    for file in files:
        findings += check(file, version)
    if args.format == "json":
        print_document(
            {
                "schema": _SCHEMA,
                "driver_version": version,
                "files": [
                    {
                        "file": file.path,
                        "kind": file.spec.kind,
                        "version": file.spec.version,
                        "devices": [device.name for device in file.spec.devices],
                    }
                    for file in files
                ],
                "findings": [
                    {**finding._asdict(), "line": finding.line or None} for finding in findings
                ],
            }
        )
    else:
        terminal.show("\n".join(_lines(files, findings)))
    return 1 if any(finding.level == "error" for finding in findings) else 0


def _read(
    args: argparse.Namespace,
) -> tuple[Sequence[SpecificationFile], Sequence[SpecificationError], list[SpecFinding]]:
    """Return the specifications, those that cannot be used, and what is wrong between them."""
    if args.files:
        found = read_specifications(args.files)
        return (
            [file for file in found if isinstance(file, SpecificationFile)],
            [error for error in found if isinstance(error, SpecificationError)],
            [],
        )
    places = directories(args)
    registry = read_registry(places)
    if not registry.files and not registry.errors:
        text = f"there is no specification in {', '.join(places)}"
        fix = "write one: nvgraft cdi generate --output /etc/cdi/nvidia.yaml"
        raise InputError(f"{text} | {fix}", 1)
    return registry.files, registry.errors, list(between(registry))


def _loaded_version() -> str | None:
    try:
        return module_version(read_text(MODULE_VERSION))
    except OSError:
        return None


def _lines(files: Sequence[SpecificationFile], findings: Sequence[SpecFinding]) -> list[str]:
    lines = []
    for file in files:
        spec = file.spec
        count = f"{len(spec.devices)} device{'' if len(spec.devices) == 1 else 's'}"
        lines.append(printable(f"{file.path}: {spec.kind}, CDI {spec.version}, {count}"))
    for finding in findings:
        place = f"{finding.file}:{finding.line}" if finding.line else finding.file
        lines.append(printable(f"{finding.level}: {place}: {finding.message} | {finding.hint}"))
    levels = Counter(finding.level for finding in findings)
    counts = [f"{levels[level]} {level}{'' if levels[level] == 1 else 's'}" for level in levels]
    lines.append(", ".join(counts) if counts else "nothing is wrong")
    return lines
