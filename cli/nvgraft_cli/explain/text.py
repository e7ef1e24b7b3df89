"""Show a story as text for a terminal."""

from collections.abc import Iterable, Iterator

from nvgraft.base.errors import printable
from nvgraft_cli.explain.story import Step, Story, StoryEntry, groups
from nvgraft_cli.shell.text import size


def lines(story: Story, docs: str, *, colour: bool) -> Iterator[str]:
    """Yield the lines of a story.

    :param docs: the address of the documentation.
    """

    def paint(code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if colour else text

    printed: set[str] = set()  # each reason is printed once
    yield paint("1", printable(story.headline))
    yield f"  {printable(story.container)} on {printable(story.host)}"
    for number, step in enumerate(story.steps, 1):
        yield ""
        yield paint("1", f"{number}. {step.title}")
        yield f"   {printable(step.text)}"
        yield from _facts(step)
        if step.grouped:
            for capability, entries in groups(step.entries):
                total = sum(entry.size or 0 for entry in entries)
                yield f"   {paint('1', capability)}  {len(entries)}" + (
                    f", {size(total)}" if total else ""
                )
                yield from _entries(entries, "     ", printed)
        else:
            yield from _entries(step.entries, "   ", printed)
        yield paint("2", f"   read more: {printable(docs)}/{step.doc}")


def _facts(step: Step) -> Iterator[str]:
    width = max((len(fact.name) for fact in step.facts), default=0)
    for fact in step.facts:
        why = f"  ({printable(fact.why)})" if fact.why else ""
        yield f"   {fact.name:<{width}}  {printable(fact.value)}{why}"


def _entries(entries: Iterable[StoryEntry], indent: str, printed: set[str]) -> Iterator[str]:
    for entry in entries:
        amount = "" if entry.size is None else f"  {size(entry.size)}"
        why = f"  ({printable(entry.why)})" if entry.why and entry.why not in printed else ""
        printed.add(entry.why)
        yield f"{indent}{printable(entry.what)}{amount}  {printable(entry.how)}{why}"
