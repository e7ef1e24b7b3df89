"""``nvgraft explain-error``: print the stage and the cause of a pasted error, and what to do."""

import argparse
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from nvgraft.base.errors import printable
from nvgraft_cli.shell import logs, terminal
from nvgraft_cli.shell.arguments import add_answer
from nvgraft_cli.shell.errors import InputError
from nvgraft_cli.shell.output import print_document

if TYPE_CHECKING:
    from nvgraft_cli.explain_error.analysis import Analysis

_SCHEMA = "nvgraft.explain-error/1"

_EXAMPLES = """\
examples:
  nvgraft explain-error 'initialization error: nvml error: driver/library version mismatch'
  docker run --gpus all ubuntu nvidia-smi 2>&1 | nvgraft explain-error

exit code: 0 recognised, 1 no known error in the text, 2 bad usage or input"""

_WIDTH = 120


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``explain-error``."""
    parser.description = (
        "Explain an error of a GPU container, also one that docker, podman, runc or "
        "crun have wrapped: the stage that failed, the cause, and what to do."
    )
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "text", metavar="TEXT", nargs="*", help="the error (default, or -: standard input)"
    )
    add_answer(parser)
    parser.set_defaults(run=run, looks_only=True)


def run(args: argparse.Namespace) -> int:
    """Print what the error means; return the exit code.

    :raises InputError: when there is no text.
    """
    from nvgraft_cli.explain_error.analysis import analyse
    from nvgraft_cli.explain_error.paste import LIMIT, decode

    if args.text and args.text != ["-"]:
        text = " ".join(args.text)
    else:
        if sys.stdin.isatty():
            print("nvgraft: paste the error, then press Ctrl-D", file=sys.stderr)
        data = sys.stdin.buffer.read(LIMIT + 1)
        if len(data) > LIMIT:
            logs.get().info(f"only the first {LIMIT >> 20} MiB are read")
        text = decode(data[:LIMIT])
    if not text.strip():
        raise InputError("no text | pass the error as an argument, or on standard input")
    logs.debug("read", characters=len(text))
    analysis = analyse(text)
    if args.format == "json":
        print_document({"schema": _SCHEMA, **asdict(analysis)})
    else:
        terminal.show("\n".join(_lines(analysis, colour=terminal.colour())))
    return 0 if analysis.meanings else 1


def _lines(analysis: "Analysis", *, colour: bool) -> Iterator[str]:
    bold, plain = ("\x1b[1m", "\x1b[0m") if colour else ("", "")
    if analysis.wrappers:
        yield "passed on by, the outermost first:"
        for wrapper in analysis.wrappers:
            yield f"  {wrapper.name:<20}  {wrapper.says}"
        yield ""
    if analysis.stage:
        yield f"failed at the stage: {printable(analysis.stage)}"
        yield ""
    if not analysis.meanings:
        yield from _unknown(analysis)
        return
    if len(analysis.meanings) > 1:
        yield "several errors are known here, the likeliest cause first; after it is fixed, the"
        yield "others may be gone: the first check under next tells whether a cause applies"
        yield ""
    for number, meaning in enumerate(analysis.meanings):
        if number:
            yield ""
        yield f"{bold}{printable(meaning.words)}{plain}"
        yield from _paragraph("stage", meaning.stage)
        if meaning.failure:
            yield from _paragraph("failure", f"{meaning.failure}: {meaning.title}")
        yield from _paragraph("cause", printable(meaning.cause))
        for other in meaning.otherwise:
            yield from _paragraph("or", printable(other))
        if meaning.rarer:
            yield from _paragraph("rarer", printable("; ".join(meaning.rarer)))
        yield from _paragraph("fixed by", meaning.fixed_by)
        yield from _steps(meaning.next)


def _unknown(analysis: "Analysis") -> Iterator[str]:
    yield "this text contains no known error of GPU containers"
    if analysis.innermost:
        yield from _paragraph("message", printable(analysis.innermost))
        yield from _paragraph("said by", analysis.said_by or "a program that is not known here")
    for means in analysis.general:
        yield from _paragraph("means", means)
    yield ""
    if not analysis.checks:
        yield "nothing in it names a GPU or its driver: look at the program that said it"
        return
    yield "two checks that separate the most causes:"
    yield from _steps(analysis.checks)
    yield ""
    yield (
        "paste the whole output, with the innermost quoted message; or set debug in "
        "config.toml, start the container again, and read the log"
    )


def _steps(steps: Iterable[str]) -> Iterator[str]:
    for index, step in enumerate(steps):
        yield from _paragraph("next" if index == 0 else "", printable(step))


def _paragraph(name: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        min(_WIDTH, terminal.columns() or _WIDTH),
        initial_indent=f"  {name:<8} ",
        subsequent_indent=" " * 11,
        break_long_words=False,
    )
