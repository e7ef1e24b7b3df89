"""Every parser over mutated documents (SECURITY R9, R16, T65).

A parser raises documented exceptions only and agrees with its oracle. There are few inputs here:
``./dev fuzz`` runs the same targets under a coverage-guided fuzzer, ``--fuzz-examples N`` runs more
of these.
"""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fuzzing
from fuzz_checks import check_text

#: Targets whose seeds are JSON: values are exchanged, and the document stays well-formed.
JSON = (
    "json",
    "state",
    "config",
    "rewrite",
    "docker",
    "runc",
    "snapshot",
    "plan",
    "kept_inventory",
)

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["/", "..", "\x1b[2J", "\udc80", "9" * 30])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=6,
)


@st.composite
def mutated_bytes(draw: st.DrawFn, target: str) -> bytes:
    """Draw a seed with pieces removed, doubled, or replaced.

    A replacement is a word of the language, a piece of another seed, or any bytes.
    """
    seeds = fuzzing.TARGETS[target].seeds(target)
    words = fuzzing.TARGETS[target].words
    data = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(0, 5))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 40)))
        other = draw(st.sampled_from(seeds))
        at = draw(st.integers(0, len(other)))
        piece = draw(
            st.sampled_from([*words, b"", data[start:end] * 2, other[at : at + 40]])
            | st.binary(max_size=8)
        )
        data = data[:start] + piece + data[end:]
    return data[: fuzzing.LENGTH]


@st.composite
def mutated_json(draw: st.DrawFn, target: str) -> bytes:
    """Draw a seed in which some values are changed or moved."""
    seeds = [seed for seed in fuzzing.TARGETS[target].seeds(target) if _is_json(seed)]
    document = json.loads(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(document))
        if not places:
            break
        container, key = draw(st.sampled_from(places))
        container[key] = draw(
            VALUES | st.just(draw(st.sampled_from(places))[0]).map(json.dumps).map(json.loads)
        )
    return json.dumps(document).encode()[: fuzzing.LENGTH]


def _is_json(seed: bytes) -> bool:
    try:
        return isinstance(json.loads(seed), (dict, list))
    except ValueError:
        return False


def _places(value: Any) -> "list[tuple[Any, Any]]":
    keys = (
        list(value)
        if isinstance(value, dict)
        else range(len(value))
        if isinstance(value, list)
        else []
    )
    return [(value, key) for key in keys] + [place for key in keys for place in _places(value[key])]


@pytest.mark.parametrize("target", fuzzing.TARGETS)
def test_every_seed_and_every_former_finding(target: str) -> None:
    """Every seed and every former finding passes."""
    for seed in fuzzing.TARGETS[target].seeds(target):
        fuzzing.TARGETS[target].run(seed)


@pytest.mark.parametrize("target", fuzzing.TARGETS)
def test_damaged_documents(target: str, fuzz_examples: int) -> None:
    """Documents with pieces removed, doubled or replaced give no finding."""

    @settings(max_examples=fuzz_examples, database=None)
    @given(mutated_bytes(target))
    def check(data: bytes) -> None:
        fuzzing.TARGETS[target].run(data)

    check()


@pytest.mark.parametrize("target", JSON)
def test_documents_with_other_values(target: str, fuzz_examples: int) -> None:
    """Well-formed JSON with unexpected values gives no finding."""

    @settings(max_examples=fuzz_examples, database=None)
    @given(mutated_json(target))
    def check(data: bytes) -> None:
        fuzzing.TARGETS[target].run(data)

    check()


def test_a_target_can_fail() -> None:
    """Each kind of check finds a parser that is wrong."""
    with pytest.raises(AssertionError):
        check_text("a\x1b[2J")
    with pytest.raises(AssertionError):
        fuzzing._there_and_back(lambda document: f"{document.text} ", lambda _: "x", b"y")
    assert fuzzing.expected(["cuda>=99 driver>1"], ()) == "holds"
    assert fuzzing.expected(["cuda>=99"], ()) == "unsatisfied"
    assert fuzzing.expected(["cuda>=99,x"], ()) == "unsatisfied"
    assert fuzzing.expected(["x,cuda>=99"], ()) == "invalid"
