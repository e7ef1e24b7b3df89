"""Documents: commands print what they are said to print, links lead somewhere, every failure has its section."""

import re
from pathlib import Path

import pytest

import console
import examples
from nvgraft_specs.checks import FAILURES

ROOT = console.DOCS.parent
PAGES = [ROOT / "README.md", *sorted(console.DOCS.rglob("*.md"))]


@pytest.mark.parametrize("page", console.pages(), ids=lambda page: page.stem)
def test_commands_print_what_the_page_says(page: Path) -> None:
    """Each of them, run on gallery hosts."""
    found = list(console.commands(page))
    assert found
    for command in found:
        assert command.words[0] == "nvgraft"
        printed = console.run(command.words[1:])
        assert console.agrees(command.output, printed), (
            f"{page.name}:{command.line}: it prints\n" + "\n".join(printed)
        )


def test_an_output_that_has_changed_is_noticed() -> None:
    """The comparison is exact but for the lines that are left out."""
    assert console.agrees(["a", "...", "d"], ["a", "b", "c", "d"])
    assert console.agrees(["...", "d"], ["d"])
    assert not console.agrees(["a", "...", "d"], ["a", "b", "c"])
    assert not console.agrees(["a"], ["a", "b"])
    assert not console.agrees([], ["a"])


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as they are made from them on code hosts."""
    headings = re.findall(r"^#+ +(.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Files exist, and so do the sections that are named."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), target
        if anchor and path.suffix == ".md":
            assert anchor in anchors(path), target


@pytest.mark.parametrize("image", examples.FILES)
def test_the_programs_of_the_examples_are_stubs(image: str) -> None:
    """Made by tests/examples.py, which writes them anew; nobody else's binary is among them."""
    root = console.EXAMPLES / image / "rootfs"
    found = {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }
    assert {
        name: data for name, data in found.items() if data.startswith(b"\x7fELF")
    } == examples.FILES[image]


def test_every_failure_has_a_section() -> None:
    """With the phrase that people search for."""
    text = (console.DOCS / "failures.md").read_text()
    sections = dict(re.findall(r"^## ([\w-]+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    assert list(sections) == [failure.id for failure in FAILURES]
    for failure in FAILURES:
        assert failure.phrase in sections[failure.id]
