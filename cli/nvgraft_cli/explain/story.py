"""A story as values: steps in order, each with its facts, its entries and the section of the documentation that teaches it."""

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nvgraft.base.errors import printable

SCHEMA = "nvgraft.story/1"

#: What brings a thing that no driver capability asks for.
ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that holds, and ``why``: where it comes from, or ""."""

    name: str
    value: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class StoryEntry:
    """One thing that is put in, made, mounted or allowed.

    ``capability`` is a driver capability, "device" for what comes with a GPU that was asked for, or :data:`ALWAYS`; ``size`` is in
    bytes, None where it has none.
    """

    what: str
    how: str
    why: str
    capability: str = ALWAYS
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One step. ``doc`` is a page of docs/ with an anchor; ``grouped`` tells that entries are best read by capability."""

    id: str
    title: str
    text: str
    doc: str
    facts: tuple[Fact, ...] = ()
    entries: tuple[StoryEntry, ...] = ()
    grouped: bool = False


@dataclass(frozen=True, slots=True)
class Story:
    """``decision`` is inject, skip or refuse, ``headline`` one sentence; the story ends with the step where the decision ended."""

    decision: str
    headline: str
    host: str
    container: str
    steps: tuple[Step, ...]

    def document(self) -> dict[str, Any]:
        """Return the story for machines."""
        return {
            "schema": SCHEMA,
            "decision": self.decision,
            "headline": self.headline,
            "host": self.host,
            "container": self.container,
            "steps": [_step(step) for step in self.steps],
        }


def _step(step: Step) -> dict[str, Any]:
    return {
        "id": step.id,
        "title": step.title,
        "text": step.text,
        "doc": step.doc,
        "facts": [{"name": fact.name, "value": fact.value, "why": fact.why} for fact in step.facts],
        "entries": [
            {
                "what": entry.what,
                "how": entry.how,
                "why": entry.why,
                "capability": entry.capability,
                "size": entry.size,
            }
            for entry in step.entries
        ],
    }


def groups(entries: tuple[StoryEntry, ...]) -> Iterator[tuple[str, list[StoryEntry]]]:
    """Return the entries by capability, in the order in which the first of each comes."""
    for capability in dict.fromkeys(entry.capability for entry in entries):
        yield capability, [entry for entry in entries if entry.capability == capability]


def visible(text: str) -> str:
    """Return ``text`` with everything escaped that is not seen or turns what is: also marks that reverse the direction of a line.

    Images and foreign hosts choose many of the names in a story.
    """
    return "".join(
        f"\\u{ord(char):04x}" if unicodedata.category(char) in {"Cf", "Zl", "Zp"} else char
        for char in printable(text)
    )
