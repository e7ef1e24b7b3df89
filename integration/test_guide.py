"""The labs that docs/guide, page by page, and docs/course.md walk through are as they show them."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import console
from harness import CHECKOUT

pytestmark = pytest.mark.requires("root", "runc", "busybox", "overlayfs", "x86_64", "ldconfig")

GUIDE = sorted(
    (CHECKOUT / "docs/guide").glob("[1-9]*.md"), key=lambda path: int(path.name.partition("-")[0])
)
COURSE = CHECKOUT / "docs/course.md"
PROMPT = "lab> "


class Step(NamedTuple):
    """A command at a stop of the lab: its page, and what the page shows below it."""

    page: Path
    command: str
    output: list[str]


def steps(pages: list[Path]) -> Iterator[Step]:
    """Yield the steps of pages, in their order."""
    for page in pages:
        for block in page.read_text().split("```lab\n")[1:]:
            for part in f"\n{block.partition('```')[0]}".split(f"\n{PROMPT}")[1:]:
                command, *output = part.rstrip("\n").split("\n")
                yield Step(page, command, output)


@pytest.mark.parametrize(("pages", "least"), [(GUIDE, 7), ([COURSE], 1)], ids=["guide", "course"])
def test_the_pages_follow_one_lab(pages: list[Path], least: int) -> None:
    """One lab goes through the steps of all pages; each prints what its page shows."""
    shown = list(steps(pages))
    assert len({step.page for step in shown}) >= least
    done = subprocess.run(
        [sys.executable, "-m", "nvgraft_cli.shell.main", "lab", "--plain", "--script", "-"],
        input="".join(f"{step.command}\n" for step in shown),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": ":".join(sys.path)},
        timeout=60,
    )
    printed = f"\n{done.stdout}".split(f"\n{PROMPT}")[1:]
    assert len(printed) == len(shown), done.stdout
    for step, part in zip(shown, printed, strict=True):
        command, *output = part.rstrip("\n").split("\n")
        assert command == step.command
        assert console.agrees(step.output, output), (
            f"{step.page.name}: lab> {command}\n" + "\n".join(output)
        )
