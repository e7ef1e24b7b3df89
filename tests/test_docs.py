"""Documents: commands print what pages show, links and names exist, failures have a section."""

import ast
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

import console
import examples
import failures_page
from nvgraft.plan import actions
from nvgraft_specs.checks import FAILURES
from sources import parsed

ROOT = console.DOCS.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(console.DOCS.rglob("*.md"))]


@pytest.mark.parametrize("page", console.pages(), ids=lambda page: page.stem)
def test_commands_print_what_the_page_says(page: Path) -> None:
    """Every command of a page prints the lines that the page shows, on gallery hosts."""
    commands = list(console.commands(page))
    assert commands
    for command in commands:
        assert command.words[0] == "nvgraft"
        printed = console.run(command.words[1:])
        assert console.agrees(command.output, printed), (
            f"{page.name}:{command.line}: it prints\n" + "\n".join(printed)
        )


def test_an_output_that_has_changed_is_noticed() -> None:
    """The comparison is exact, except for lines that a page leaves out."""
    assert console.agrees(["a", "...", "d"], ["a", "b", "c", "d"])
    assert console.agrees(["...", "d"], ["d"])
    assert not console.agrees(["a", "...", "d"], ["a", "b", "c"])
    assert not console.agrees(["a"], ["a", "b"])
    assert not console.agrees([], ["a"])


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as code hosts derive them."""
    headings = re.findall(r"^#+ +(.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Linked files and sections exist."""
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
    """Every ELF file of the examples is a stub that tests/examples.py writes."""
    root = console.EXAMPLES / image / "rootfs"
    files = {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }
    assert {
        name: data for name, data in files.items() if data.startswith(b"\x7fELF")
    } == examples.FILES[image]


def failure_sections() -> dict[str, str]:
    """Return the text of each section of docs/failures.md by its heading."""
    text = (console.DOCS / "failures.md").read_text()
    return dict(re.findall(r"^## ([\w-]+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))


def test_every_failure_has_a_section() -> None:
    """Every failure has a section, with the phrase that people search for."""
    sections = failure_sections()
    assert list(sections) == [failure.id for failure in FAILURES]
    for failure in FAILURES:
        assert failure.phrase in sections[failure.id]


def test_a_section_says_what_explain_error_says() -> None:
    """A failure's section has the causes and next steps of explain-error.

    tests/failures_page.py writes them.
    """
    page = failures_page.PAGE.read_text("utf-8")
    assert failures_page.rewritten(page) == page
    assert failures_page.rewritten(page.replace("At the stage", "In the stage", 1)) != page


#: Where a path to code in a page may begin.
CODE = [
    ROOT / name
    for name in (
        *("", "hook", "hook/nvgraft", "cli", "cli/nvgraft_cli", "specs", "specs/nvgraft_specs"),
        "integration",
    )
]
#: Every test module and test function of the repository.
TESTS = {
    name
    for folder in ("tests", "integration")
    for path in (ROOT / folder).rglob("*.py")
    for name in (path.stem, *re.findall(r"def (test_\w+)", path.read_text()))
}
#: A path of a source, with a name in it if one follows: `plan/layout.py: Layout.bind`.
_SOURCE = re.compile(r"([\w./*-]+\.py)\b(?:: ([A-Za-z_][\w.]*)`)?")
_TEST = re.compile(r"(?<![\w/.])(i/)?(test_\w+)(?![\w*]|\.py)")
#: Tests of one case of the catalogue: `i/test_hostile_config` (`t30`).
_CASE = re.compile(r"`(?:i/)?(test_\w+)` \(`(t\d+)`")
_MODULE = re.compile(r"`(nvgraft(?:_cli|_specs)?)((?:\.\w+)+)`")


def unknown_names(text: str) -> list[str]:
    """Return the names in ``text`` that this repository lacks.

    These are sources, functions and classes in them, modules, and tests.
    """
    unknown = []
    for path, name in _SOURCE.findall(text):
        files = [file for root in CODE for file in root.glob(path)]
        if not files:
            unknown.append(path)
        elif name and not any(defines(file, name) for file in files):
            unknown.append(f"{path}: {name}")
    unknown += [
        place + name
        for place, name in _TEST.findall(text)
        if name not in TESTS or (place and not (ROOT / "integration" / f"{name}.py").exists())
    ]
    unknown += [
        f"{name} ({case})"
        for name, case in _CASE.findall(text)
        if not any(
            f"def test_{case}_" in path.read_text()
            for folder in ("tests", "integration")
            for path in (ROOT / folder).glob(f"{name}.py")
        )
    ]
    for package, names in _MODULE.findall(text):
        if not names.endswith(".json") and not is_module(package + names):
            unknown.append(package + names)
    return unknown


def defines(file: Path, name: str) -> bool:
    """Return whether a source defines a function or class ``name``, or a method as
    ``Class.method``.
    """
    body: Sequence[ast.stmt] = parsed(file.read_text()).body
    for part in name.split("."):
        definitions = [
            node
            for node in body
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == part
        ]
        if not definitions:
            return False
        body = definitions[0].body
    return True


def is_module(name: str) -> bool:
    """Return whether a dotted name is a module of ours, or is defined in one."""
    place = "/".join(name.split("."))
    rest = ""
    while place:
        for root in CODE:
            if (root / place).is_dir() and not rest:
                return True
            if (file := root / f"{place}.py").is_file():
                return not rest or defines(file, rest)
        place, _, last = place.rpartition("/")
        rest = f"{last}.{rest}".rstrip(".")
    return False


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_name_on_a_page_exists(page: Path) -> None:
    """Every source, function, class, module and test that a page names exists."""
    assert unknown_names(page.read_text()) == []


def test_a_name_that_does_not_exist_is_noticed() -> None:
    """The check of names can fail, and passes names that exist."""
    assert (
        unknown_names("`plan/layout.py: Layout.bind`, `i/test_runc`, `nvgraft.plan.layout`") == []
    )
    assert unknown_names("`nvgraft.plan/1`, tests/test_container_cli_*.py, `nvgraft.json`") == []
    assert unknown_names("`test_hostile_requests` (`t32`)") == []
    assert unknown_names("`test_hostile_requests` (`t99`)") == ["test_hostile_requests (t99)"]
    for name in (
        "plan/outlay.py",
        "plan/layout.py: Layout.bound",
        "test_nothing_of_the_kind",
        "i/test_docs",
        "nvgraft.plan.outlay",
    ):
        assert unknown_names(f"see `{name}`") == [name]


def test_every_action_of_a_plan_has_a_row() -> None:
    """The table of docs/how-it-works.md has each class of plan/actions.py once, with its `op`."""
    text = (console.DOCS / "how-it-works.md").read_text()
    rows = re.findall(r"^\| `(\w+)`, `([\w-]+)`", text, re.MULTILINE)
    classes = [
        value
        for value in vars(actions).values()
        if isinstance(value, type) and issubclass(value, actions.Action) and value.op
    ]
    assert sorted(rows) == sorted((action.__name__, action.op) for action in classes)


RECORDS = sorted((console.DOCS / "decisions").glob("0*.md"))


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.name[:4])
def test_a_decision_has_its_number_its_status_and_its_date(record: Path) -> None:
    """A record begins with number, status and date; a replaced one names an existing record."""
    lines = record.read_text().splitlines()
    assert lines[0].startswith(f"# {record.name[:4]}: ")
    status = re.fullmatch(r"- Status: (accepted|replaced by \[(\d{4})\]\(.*\)).*", lines[2])
    assert status
    assert re.fullmatch(r"- Date: \d{4}-\d\d-\d\d", lines[3])
    if status[2]:
        assert any(other.name.startswith(status[2]) for other in RECORDS)


def test_the_index_of_decisions_has_every_number() -> None:
    """The index links each record once and explains each unused number."""
    text = (console.DOCS / "decisions/README.md").read_text()
    records, _, gaps = text.partition("Numbers without a record")
    listed = re.findall(r"^\| \[(\d{4})\]\((\1-[\w-]+\.md)\)", records, re.MULTILINE)
    assert [name for _, name in listed] == [record.name for record in RECORDS]
    explained = {
        number
        for first, last in re.findall(r"\b(\d{4})(?: to (\d{4}))?\b", gaps)
        for number in range(int(first), int(last or first) + 1)
    }
    numbers = {int(number) for number, _ in listed}
    assert numbers | explained == set(range(1, max(numbers) + 1))
    assert not numbers & explained


def test_the_glossary_says_where_each_term_lives() -> None:
    """The glossary's terms are in alphabetical order, and each entry ends with a link."""
    lines = (console.DOCS / "glossary.md").read_text().splitlines()
    entries = [line for line in lines if line.startswith("- ")]
    terms = [re.sub(r"[*():]", "", line[2:].partition("**: ")[0]).casefold() for line in entries]
    assert len(terms) > 40
    assert terms == sorted(terms)
    assert [line for line in entries if not re.search(r"\. \[[^\]]+\]\([^)]+\)$", line)] == []


def test_rules_that_sources_cite_stand_on_their_pages() -> None:
    """Every cited "reference behaviour 6.4" and "SECURITY R18" exists on its page."""
    behaviour = (console.DOCS / "reference-behaviour.md").read_text()
    security = (console.DOCS / "security.md").read_text()
    sections = set(re.findall(r"^#+ ([\d.]+) ", behaviour, re.MULTILINE))
    rules = set(re.findall(r"^\| ([RT]\d+) ", security, re.MULTILINE))
    cited = re.compile(r"reference\s+behaviour ((?:[\d.]*\d(?:, | and | to )?)+)")
    unknown = []
    for root in ("hook", "cli", "specs", "plugin", "tests", "integration", "docs"):
        for path in (ROOT / root).rglob("*"):
            if path.suffix not in {".py", ".md", ".c"}:
                continue
            text = path.read_text(errors="replace").replace("\n# ", "\n")
            numbers = {
                number for group in cited.findall(text) for number in re.findall(r"[\d.]*\d", group)
            }
            unknown += [f"{path}: {number}" for number in numbers - sections]
            marks = {
                mark
                for group in re.findall(r"SECURITY ((?:[RT]\d+(?:, | and | to )?)+)", text)
                for mark in re.findall(r"[RT]\d+", group)
            }
            unknown += [f"{path}: {mark}" for mark in marks - rules]
    assert unknown == []


@pytest.mark.parametrize("page", sorted(console.DOCS.glob("guide/[1-9]*.md")), ids=lambda p: p.stem)
def test_pages_of_the_guide_begin_and_end_with_the_reader(page: Path) -> None:
    """Each page begins with something to do, and ends with a question that a command answers."""
    first, *_, last = page.read_text().split("\n## ")[1:]
    assert first.startswith("Do this\n") and "\n```" in first
    assert last.startswith("A question\n")
    question, _, answer = last.partition("Decide, then ask")
    assert "?" in question and "\n$ nvgraft " in answer


def test_an_installation_says_where_to() -> None:
    """`./dev install` without PREFIX installs nothing, so no page for learners tells it so."""
    pages = [console.DOCS / "course.md", console.DOCS / "lab.md", *console.DOCS.glob("guide/*.md")]
    assert len(pages) > 10
    bare = [page.name for page in pages if "./dev install`" in page.read_text()]
    assert bare == []


def test_the_readme_is_read_in_one_go() -> None:
    """The README has fewer than 150 lines; details have pages of their own."""
    assert len((ROOT / "README.md").read_text().splitlines()) < 150
