"""``nvgraft explain``: print the whole decision about a container as a story."""

import argparse
import gc
import os
import time
from typing import TYPE_CHECKING

from nvgraft_cli.case.hosts import ask_first
from nvgraft_cli.shell import documentation, terminal
from nvgraft_cli.shell.arguments import add_answer, add_case
from nvgraft_cli.shell.errors import InputError
from nvgraft_cli.shell.output import print_document, write_whole

if TYPE_CHECKING:
    from nvgraft_cli.case.planning import Case
    from nvgraft_cli.explain.story import Story
    from nvgraft_cli.pods.handover import PodOnNode

#: Seconds in which a page is made, less some to spare; and the processor time that it needs beside
#: its switches: to start this program, and to write the page.
_PROMISE, _OWN = 4.6, 0.4

_EXAMPLES = """\
examples:
  nvgraft explain --container ./web --host eks-t4
  nvgraft explain --container image.tar --env NVIDIA_VISIBLE_DEVICES=all --host node17.json | less
  nvgraft explain --container ./web --host eks-t4 --html story.html

exit code: 0 the container gets the driver, or the hook does nothing; 1 the hook would refuse;
2 bad usage or input"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``explain``."""
    parser.description = (
        "Explain step by step what the container asks for and where that comes from, "
        "what the host has, what is mounted where, what the kernel is told, how programs find "
        "the driver, and what NVIDIA's hook would execute. Each step names the page to read."
    )
    parser.epilog = _EXAMPLES
    add_case(parser)
    add_answer(parser)
    parser.add_argument(
        "--html",
        metavar="FILE",
        help="write a page for a browser, with the container's files before and after",
    )
    parser.add_argument(
        "--docs",
        metavar="URL",
        help="the address of the documentation, for links (default: the installed one, if any)",
    )
    parser.set_defaults(run=run, looks_only=True, open_first=_open_first)
    parser.set_defaults(deliver=_deliver, page_to=None, began=None)


def _open_first(args: argparse.Namespace) -> None:
    args.began = time.monotonic()
    ask_first(args)
    if args.html is not None and args.host is None:
        from nvgraft_cli.doctor.machine import probe_first

        probe_first(args)


def _deliver(args: argparse.Namespace) -> None:
    if args.html is not None:
        from nvgraft_cli.shell.apart import split

        args.page_to = split(args.html)


def run(args: argparse.Namespace) -> int:
    """Print the story, or write the page; return the exit code.

    :raises nvgraft_cli.shell.errors.InputError: when an input cannot be used.
    """
    from nvgraft_cli.explain.telling import tell
    from nvgraft_cli.pods.opening import opened_case_of_pod

    if args.docs is not None and not _is_address(args.docs):
        raise InputError(
            f"--docs {args.docs}: not an address of pages | pass https://..., file:///... or a path"
        )
    if args.began is None:  # not confined: another program called main()
        args.began = time.monotonic()
    clocks = time.monotonic(), time.process_time()
    with opened_case_of_pod(args) as (case, pod):
        story = tell(case)
        if args.html is not None:
            if args.page_to is not None:  # this process ends with the page, which has nearly all
                gc.disable()
            _write_page(args, case, pod, story, _slowness(*clocks))
            return int(story.decision == "refuse")
    if args.format == "json":
        print_document(story.document())
    else:
        from nvgraft_cli.explain import text

        docs = args.docs or documentation.directory() or "docs"
        lines = text.lines(story, docs.rstrip("/"), colour=terminal.colour())
        terminal.show("\n".join(lines))
    return int(story.decision == "refuse")


def _slowness(began: float, used: float) -> float:
    """Return how many seconds a second of processor time takes, as this command has seen it.

    :param began: a time of the clock on the wall, and ``used`` the processor time until then.
    """
    passed = time.monotonic() - began
    return max(1.0, passed / max(time.process_time() - used, 0.01))


def _is_address(docs: str) -> bool:
    scheme, colon, _ = docs.partition(":")
    return not colon or "/" in scheme or scheme in {"https", "http", "file"}


def _docs_from(page: str) -> str | None:
    """Return the address of the documentation relative to the file ``page``, or None.

    A relative address stays right when both are moved together, and hides this machine's
    directories.
    """
    from urllib.parse import quote

    docs = documentation.directory()
    return docs and quote(os.path.relpath(docs, os.path.dirname(os.path.abspath(page))))


def _write_page(
    args: argparse.Namespace,
    case: "Case",
    pod: "PodOnNode | None",
    story: "Story",
    slowness: float,
) -> None:
    from nvgraft_cli.explain.directories import before_and_after
    from nvgraft_cli.explain.page import page
    from nvgraft_cli.explain.timeline import timeline
    from nvgraft_cli.explain.whatif import compute

    plan, _ = case.outcome
    budget = args.began + _PROMISE - _OWN * slowness - time.monotonic()
    whatif = compute(case, pod, budget=budget)
    trees = before_and_after(case, plan, whatif.union) if plan.decision == "inject" else None
    docs = _docs_from(args.html) if args.docs is None else args.docs.rstrip("/")
    text = page(story, whatif, timeline(case), trees, docs)
    if args.page_to is None:  # not confined
        write_whole(args.html, text.encode())
        return
    with open(args.page_to, "w", encoding="utf-8") as pipe:
        pipe.write(text)
