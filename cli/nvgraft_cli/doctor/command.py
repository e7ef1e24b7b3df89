"""``nvgraft doctor``: find what will go wrong with a host, a container, or both."""

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nvgraft.base.errors import printable
from nvgraft_cli.case.hosts import ask_first
from nvgraft_cli.shell import terminal
from nvgraft_cli.shell.arguments import add_answer, add_cdi, add_container, add_host, add_pod
from nvgraft_cli.shell.errors import InputError
from nvgraft_cli.shell.output import print_document

if TYPE_CHECKING:
    from nvgraft_cli.doctor.examination import Result
    from nvgraft_cli.doctor.patient import Patient

_SCHEMA = "nvgraft.doctor/1"

_EXAMPLES = """\
examples:
  nvgraft doctor                                    this node
  nvgraft doctor --container ./web --host node17.json
  nvgraft doctor --container image.tar --env NVIDIA_VISIBLE_DEVICES=all --host eks-t4
  nvgraft doctor --host eks-t4 --cdi /etc/cdi/nvidia.yaml

The id of each problem is the name of its section in docs/failures.md. Checks that could not be made
are counted; --verbose lists them with the reason. The last line is the verdict: of the container,
or of the host where no container was given; with a container the host's verdict comes before it.
The host's does not count what --ignore and --level leave out.

exit code: 0 no problem found, 1 problems found, 2 bad usage or input. With a container only its
problems count, and those of the host that keep it from its GPUs. --ignore and --level leave out
problems for the exit code too."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``doctor``."""
    parser.description = (
        "Check a host, a container, or a container on a host for the failures that "
        "users of GPU containers report."
    )
    parser.epilog = _EXAMPLES
    add_container(parser, None, "none", mode=None)
    add_pod(parser)
    add_host(parser)
    add_cdi(parser)
    parser.add_argument(
        "--verbose",
        action="store_true",
        help="also list the checks that passed, and those that could not be made",
    )
    parser.add_argument(
        "--ignore",
        metavar="ID",
        action="append",
        default=[],
        help="leave out a check (may be repeated)",
    )
    parser.add_argument(
        "--level",
        choices=("error", "warning"),
        default="warning",
        help="error leaves out warnings (default: warning)",
    )
    add_answer(parser)
    parser.set_defaults(run=run, looks_only=True, open_first=_open_first)


def _open_first(args: argparse.Namespace) -> None:
    ask_first(args)
    if args.host is None:
        from nvgraft_cli.doctor.machine import probe_first

        probe_first(args)


def run(args: argparse.Namespace) -> int:
    """Print the results of the checks; return the exit code.

    :raises nvgraft_cli.shell.errors.InputError: when an input cannot be used.
    :raises nvgraft.base.errors.Refusal: this machine has no working driver.
    """
    from nvgraft_cli.case.hosts import open_host
    from nvgraft_cli.doctor.patient import Patient
    from nvgraft_cli.pods.opening import check_options, open_image, open_pod, opened_case, pod_case

    _check_readable(args.cdi)
    _check_ids(args.ignore)
    host = open_host(args.host, args.config)
    if args.pod is not None:
        with open_image(args) as image:
            pod = open_pod(args, host)
            case = pod_case(args, host, image, pod)
            return _answer(Patient(host, case.given, args.cdi, case=case, pod=pod), args)
    check_options(args)
    if args.container is None:
        return _answer(Patient(host, None, args.cdi), args)
    with opened_case(args) as case:
        return _answer(Patient(host, case.given, args.cdi, case=case), args)


def _answer(patient: "Patient", args: argparse.Namespace) -> int:
    from nvgraft_cli.doctor.examination import examine, selected
    from nvgraft_cli.doctor.verdict import container_verdict, host_verdict, makes_container_bad

    everything = examine(patient)
    results = selected(everything, args.ignore, args.level)
    of_host = host_verdict(patient, results)
    sentence = of_host
    if patient.has_container:  # what becomes of it, whatever is left out above
        sentence = container_verdict(patient, everything).sentence
    if args.format == "json":
        print_document(
            {
                "schema": _SCHEMA,
                "verdict": sentence,
                "verdicts": {
                    "container": sentence if patient.has_container else None,
                    "host": of_host,
                },
                "results": [result.document() for result in results],
            }
        )
    else:
        lines = [
            *_lines(
                results,
                verbose=args.verbose,
                colour=terminal.colour(),
                host_apart=patient.has_container,
            )
        ]
        sentences = dict.fromkeys([of_host, sentence])  # one and the same without a container
        started = patient.has_container and patient.refusal is None
        edited = patient.case.edited_before if started else ""
        note = [f"note: {printable(edited)}"] if edited else []
        terminal.show("\n".join([*note, *lines, *map(printable, sentences)]))
    if patient.has_container:
        return int(makes_container_bad(patient, results))
    return int(any(result.findings for result in results))


def _check_ids(identifiers: list[str]) -> None:
    """Check that the ids of --ignore exist.

    :raises InputError: naming the first that does not.
    """
    from nvgraft_cli.doctor.examination import CHECKS

    for identifier in identifiers:
        if identifier not in CHECKS:
            raise InputError(
                f"--ignore {identifier}: there is no check of this id | see the ids in the output "
                "of nvgraft doctor --verbose"
            )


def _check_readable(paths: list[str]) -> None:
    """Check that the named files can be read. Faults in their content are findings, not errors.

    :raises InputError: naming the first that cannot be read.
    """
    if not paths:
        return
    from nvgraft.cdi.reader import LIMIT
    from nvgraft_specs.documents import DocumentError, read_bytes

    for path in paths:
        try:
            read_bytes(path, LIMIT)
        except DocumentError as error:
            raise InputError(str(error)) from error


def _lines(
    results: "list[Result]", *, verbose: bool, colour: bool, host_apart: bool
) -> Iterator[str]:
    """Yield the text without the verdicts: errors first, then warnings.

    :param host_apart: whether to count the problems of the host apart.
    """
    colours = {"error": "31", "warning": "33"}
    found = [(result.failure, finding) for result in results for finding in result.findings]
    for failure, finding in sorted(found, key=lambda pair: pair[1].level != "error"):
        head = f"{finding.level}: {failure.id}: {failure.title}"
        yield f"\x1b[{colours[finding.level]}m{head}\x1b[0m" if colour else head
        yield f"  {printable(finding.message)}"
        yield f"  users see  {printable(finding.phrase or failure.phrase)}"
        yield f"  cause      {printable(finding.cause)}"
        yield f"  fix        {printable(finding.fix)}"
        yield ""
    passed = [result for result in results if not result.findings and not result.lacking]
    incomplete = [result for result in results if result.lacking]
    if verbose:
        yield from (f"ok: {result.failure.id}" for result in passed)
        # One line for each reason: without a container, most checks have the same one.
        for reason in dict.fromkeys(result.lacking for result in incomplete):
            ids = ", ".join(result.failure.id for result in incomplete if result.lacking == reason)
            yield f"not checked: {ids}: {printable(reason)}"
    problems = sum(len(result.findings) for result in results)
    noun = "problem" if problems == 1 else "problems"
    of_host = sum(len(result.findings) for result in results if result.of_host)
    apart = f" ({of_host} of the host)" if host_apart and of_host else ""
    why = "" if verbose or not incomplete else " (--verbose says why)"
    yield (
        f"{problems} {noun} found{apart}, {len(passed)} checks passed, "
        f"{len(incomplete)} not checked{why}"
    )
