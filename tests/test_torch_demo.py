"""The output of ``./dev torch`` on the pages, and how it is written there."""

import re
from pathlib import Path

import pytest

import console
from nvgraft_cli.simulate import torch_demo

CHECKOUT = Path(__file__).parent.parent
PAGES = [CHECKOUT / "README.md", CHECKOUT / "docs/guide/9-the-answer.md"]


def block(page: Path) -> list[str]:
    """Return the lines of a page that the command has printed."""
    found = re.search(
        rf"^```text\n\$ {torch_demo.COMMAND}\n(.*?)^```$",
        page.read_text(),
        re.MULTILINE | re.DOTALL,
    )
    assert found
    return found[1].splitlines()


def answers(lines: list[str]) -> list[torch_demo.Answers]:
    """Return what was said in each scene."""
    said = [line[15:] for line in lines if re.match(r" {6}\w+: ", line)]
    return [torch_demo.Answers(*said[place : place + 3]) for place in range(0, len(said), 3)]


def test_the_guide_shows_all_scenes_as_foretold() -> None:
    """The page has each scene with its title, and what is said in it is what is expected."""
    lines = block(PAGES[1])
    titles = [line.partition("] ")[2] for line in lines if line.startswith("[")]
    assert titles == [scene.title for scene in torch_demo.SCENES]
    for scene, said in zip(torch_demo.SCENES, answers(lines), strict=True):
        assert torch_demo.faults(scene, said) == []


def test_the_readme_shows_the_beginning_and_the_end() -> None:
    """The README has a part of what the guide has, and says what is real and what is not."""
    assert console.agrees(block(PAGES[0]), block(PAGES[1]))
    assert len(answers(block(PAGES[0]))) == 2
    assert "stand-ins: nothing computes" in block(PAGES[0])[-1]


@pytest.mark.parametrize("page", PAGES, ids=["README", "guide"])
def test_a_page_is_written_from_the_output(page: Path, tmp_path: Path) -> None:
    """Writing the output again changes nothing; another output replaces the block alone."""
    copy = tmp_path / page.name
    copy.write_text(page.read_text())
    torch_demo.record(block(PAGES[1]), str(copy))
    assert copy.read_text() == page.read_text()
    torch_demo.record(["one", "[3/8] two", "", "three", "four"], str(copy))
    assert block(copy)[0] == "one"
    assert copy.read_text().endswith(page.read_text()[-200:])


def test_wrong_answers_are_noticed() -> None:
    """A scene in which a command or PyTorch says something else is a fault."""
    good = answers(block(PAGES[1]))
    first, second = torch_demo.SCENES[:2]
    assert len(torch_demo.faults(first, good[1])) == 3
    assert len(torch_demo.faults(second, good[0])) == 3
    assert torch_demo.faults(second, good[1]._replace(container="NVIDIA L40S")) != []
