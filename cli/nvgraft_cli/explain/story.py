"""The values of a story: its steps in order, each with facts, entries and a section to read."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

SCHEMA = "nvgraft.story/1"

#: The capability of an entry that does not depend on a driver capability.
ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact. ``why`` says where it comes from, or is ""."""

    name: str
    value: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class StoryEntry:
    """One file, link or device that is mounted, created or allowed.

    :ivar capability: a driver capability, "device" for what a requested GPU needs, or
        :data:`ALWAYS`.
    :ivar size: in bytes; None where it has none.
    """

    what: str
    how: str
    why: str
    capability: str = ALWAYS
    size: int | None = None


@dataclass(frozen=True, slots=True)
class PodLayer:
    """One layer of the way from a pod to its container, for the page's picture.

    :ivar fault: what is broken there, or "".
    """

    id: str
    title: str
    facts: tuple[Fact, ...]
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    :ivar doc: the page below docs/ to read about it, with an anchor.
    :ivar grouped: whether to show the entries grouped by capability.
    :ivar layers: the facts once more, by the layer in which they come about; () for most steps.
    """

    id: str
    title: str
    text: str
    doc: str
    facts: tuple[Fact, ...] = ()
    entries: tuple[StoryEntry, ...] = ()
    grouped: bool = False
    layers: tuple[PodLayer, ...] = ()


@dataclass(frozen=True, slots=True)
class Story:
    """The story of a decision. It ends with the step in which the decision ended.

    :ivar decision: inject, skip or refuse.
    :ivar headline: one sentence.
    """

    decision: str
    headline: str
    host: str
    container: str
    steps: tuple[Step, ...]

    def document(self) -> dict[str, Any]:
        """Return the story as in ``nvgraft.story/1``."""
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
    """Yield each capability with its entries, in the order of their first entries."""
    for capability in dict.fromkeys(entry.capability for entry in entries):
        yield capability, [entry for entry in entries if entry.capability == capability]
