"""jsonedit: edited values change, and every other byte stays."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvgraft.base.jsonedit import Document, Place
from nvgraft.base.jsontext import JsonError

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
LAYOUTS = st.sampled_from(
    [{}, {"indent": 2}, {"separators": (" , ", "\t:\r\n")}, {"ensure_ascii": False}]
)


def encoded(value: object, layout: dict[str, Any]) -> bytes:
    return json.dumps(value, **layout).encode("utf-8", "surrogatepass")


@given(st.dictionaries(st.text(), VALUES, max_size=4), LAYOUTS)
def test_places_hold_the_text_of_values(value: dict[str, object], layout: dict[str, Any]) -> None:
    """Each member's place holds exactly the member's text, in any layout."""
    document = Document(encoded(value, layout))
    members = document.members(document.root())
    assert {name: place.value for name, place in members} == value
    for name, place in members:
        assert json.loads(document.text[place.start : place.end]) == place.value == value[name]
        assert json.loads("{" + document.text[place.name_start : place.end] + "}") == {
            name: value[name]
        }


@given(st.lists(VALUES, max_size=4), LAYOUTS)
def test_an_item_is_appended(value: list[object], layout: dict[str, Any]) -> None:
    """An item is appended behind the others, also to an empty array, and the text before it
    stays.
    """
    data = encoded(value, layout)
    document = Document(data)
    document.append(document.root(), '"new"')
    changed = document.changed()
    assert json.loads(changed) == [*value, "new"]
    assert changed.startswith(data.rstrip()[:-1])


@given(st.dictionaries(st.text(), VALUES, max_size=4), VALUES, LAYOUTS)
def test_a_member_is_appended_and_another_replaced(
    value: dict[str, object], new: object, layout: dict[str, Any]
) -> None:
    """An append and a replacement in one document do not disturb each other."""
    value = {**value, "old": [1, 2]}
    document = Document(encoded(value, layout))
    root = document.root()
    old = document.member(root, "old")
    assert old is not None
    document.append(root, f'"appended":{json.dumps(new)}')
    document.replace(old, json.dumps(new))
    assert json.loads(document.changed()) == {**value, "appended": new, "old": new}


@given(
    st.one_of(st.lists(VALUES, max_size=5), st.dictionaries(st.text(), VALUES, max_size=5)),
    st.lists(st.booleans(), min_size=5, max_size=5),
    st.booleans(),
    LAYOUTS,
)
def test_children_are_removed(
    value: list[object] | dict[str, object],
    chosen: list[bool],
    append: bool,
    layout: dict[str, Any],
) -> None:
    """remove() takes members or items out, also next to something appended."""
    document = Document(encoded(value, layout))
    root = document.root()
    listed = isinstance(value, list)
    children = document.items(root) if listed else [place for _, place in document.members(root)]
    for place, keep in zip(children, chosen, strict=False):
        if not keep:
            document.remove(root, place)
    if append:
        document.append(root, "7" if listed else '"new member": 7')
    assert document.is_appended(root) == append
    kept = [pair for pair, keep in zip(enumerate(value), chosen, strict=False) if keep]
    if isinstance(value, list):
        expected: object = [value[index] for index, _ in kept] + [7] * append
    else:
        names = list(value)
        expected = {names[index]: value[names[index]] for index, _ in kept}
        expected |= {"new member": 7} if append else {}
    assert json.loads(document.changed()) == expected


ODD = (
    b' {"n": 1.10e+400, "big": 123456789012345678901234567890, "twice": 1, "twice": 2, "u":'
    b' "\\u00e9\xff\\/", "last": []}\n{"more"'
)


def test_text_that_parsers_lose_is_kept() -> None:
    """Numbers out of range, repeated names, escapes, invalid UTF-8 and trailing text stay byte for
    byte.
    """
    document = Document(ODD)
    root = document.root()
    last = document.member(root, "LAST")
    assert last is not None
    document.append(last, "7")
    document.append(root, '"new":0')
    assert document.changed() == ODD.replace(b"[]}", b'[7],"new":0}')
    assert [name for name, _ in document.members(root)].count("twice") == 2


def test_two_members_of_one_name_are_refused() -> None:
    """Names match without regard to case, as in runc. Two members of one name are refused: readers
    differ in which one they use.
    """
    document = Document(b'{"hooks": {}, "Hooks": {}, "other": 1}')
    with pytest.raises(JsonError, match='duplicate member "hooks"'):
        document.member(document.root(), "hooks")
    assert document.member(document.root(), "OTHER") is not None
    assert document.member(document.root(), "none") is None


def test_null_is_empty() -> None:
    """null is an object without members and an array without items, as in Go."""
    document = Document(b"null")
    assert document.root() == Place(0, 4, None, 0)
    assert document.members(document.root()) == document.items(document.root()) == []


def merged(text: str, additions: Any) -> str:
    document = Document(text.encode())
    document.merge(document.root(), additions)
    return document.changed().decode()


@pytest.mark.parametrize(
    ("text", "merged_text"),
    [
        ("{}", '{"a":{"b":["1","2"],"c":0}}'),
        ('{ "x": 1 }', '{ "x": 1 ,"a":{"b":["1","2"],"c":0}}'),
        ('{"a": null}', '{"a": {"b":["1","2"],"c":0}}'),
        ('{"A": {}}', '{"A": {"b":["1","2"],"c":0}}'),
        ('{"a": {"c": 7, "b": [ 0 ]}}', '{"a": {"c": 7, "b": [ 0 ,"1","2"]}}'),
        ('{"a": {"b": null, "c": null}}', '{"a": {"b": ["1","2"], "c": null}}'),
        ('{"a": {"b": []}}', '{"a": {"b": ["1","2"],"c":0}}'),
    ],
)
def test_additions_are_merged(text: str, merged_text: str) -> None:
    """Missing and null values are added, items and members are appended, and an existing value
    stays.
    """
    assert (
        merged(
            text, {"a": {"b": ['"1"', '"2"'], "c": "0", "d": [], "e": {"f": []}}, "g": {"h": {}}}
        )
        == merged_text
    )


def test_empty_additions_change_nothing() -> None:
    """Empty additions change nothing."""
    assert merged('{"a": null }', {"a": {}, "b": {"c": []}}) == '{"a": null }'


def test_a_repeated_member_is_not_merged_into() -> None:
    """Adding to a member that occurs twice is refused: readers may use different ones."""
    with pytest.raises(JsonError, match="duplicate member"):
        merged('{"a": {}, "A": {}}', {"a": {"b": "1"}})
