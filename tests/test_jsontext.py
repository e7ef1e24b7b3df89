"""jsontext: strict reading within limits, errors in Go's words, and deterministic writing."""

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvgraft.base.jsontext import MAX_DEPTH, MAX_VALUES, JsonError, dumps, loads, members

LIMIT = 1 << 20

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(values)
def test_dumps_and_loads_are_inverse(value: object) -> None:
    """A value is read back as written, compact or indented, and the text is ordinary JSON."""
    for indent in (False, True):
        text = dumps(value, indent)
        assert loads(text.encode(), LIMIT) == value
        assert json.loads(text) == value


@given(values)
def test_texts_equal_those_of_the_json_package(value: object) -> None:
    """The text is that of json.dumps with ensure_ascii=False, with unprintable characters escaped
    as with ensure_ascii=True.
    """
    for indent, separators in ((False, (",", ":")), (True, None)):
        expected = json.dumps(
            value, ensure_ascii=False, indent=1 if indent else None, separators=separators
        )
        escaped = (
            char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1]
            for char in expected
        )
        assert dumps(value, indent) == "".join(escaped)


def test_tuples_are_arrays_and_floats_are_refused() -> None:
    """A tuple is written as an array; a float is refused."""
    assert dumps((1, ("a",))) == '[1,["a"]]'
    with pytest.raises(TypeError):
        dumps({"a": 1.5})


def test_an_undecodable_path_survives() -> None:
    """Undecodable bytes of a path are written as escapes and read back unchanged."""
    text = dumps(["/usr/lib/\udcff", "ä"])
    assert text.encode() == b'["/usr/lib/\\udcff","\xc3\xa4"]'
    assert loads(text.encode(), LIMIT) == ["/usr/lib/\udcff", "ä"]


@pytest.mark.parametrize(
    ("text", "problem", "where"),
    [
        ("", "EOF", "the document is empty"),
        (" \n", "EOF", "the document is empty"),
        ("{", "unexpected EOF", "truncated: it ends in line 1, column 2"),
        ('{"a":\n  "b', "unexpected EOF", "truncated: it ends in line 2, column 5"),
        ('{"a": tru', "unexpected EOF", "truncated"),
        (
            '{"a":1,}',
            "invalid character '}' looking for beginning of object key string",
            "line 1, column 8",
        ),
        ('[1,"]",\n]', "invalid character ']' looking for beginning of value", "line 2, column 1"),
        ('{"a":[1 2]}', "invalid character '2' after array element", "line 1, column 9"),
        ('{"a":["[\\"["] 1}', "invalid character '1' after object key:value pair", "column 15"),
        ('{"a" 1}', "invalid character '1' after object key", "column 6"),
        (
            "{'a': 1}",
            "invalid character '\\'' looking for beginning of object key string",
            "column 2",
        ),
        ("[trux]", "invalid character 'x' in literal true (expecting 'e')", "column 5"),
        ("[-]", "invalid character ']' in numeric literal", "column 3"),
        ('["NaN", NaN]', "invalid character 'N' looking for beginning of value", "column 9"),
        ("[Infinity]", "invalid character 'I' looking for beginning of value", "column 2"),
        ("[-Infinity]", "invalid character 'I' in numeric literal", "column 3"),
        ('["a\nb"]', "invalid character '\\n' in string literal", "line 1, column 4"),
        ('["\\x"]', "invalid character 'x' in string escape code", "column 4"),
        ('["\\u12g4"]', "invalid character 'g' in \\u hexadecimal character escape", "column 7"),
        ("1 2", "invalid character '2' after top-level value", "column 3"),
        ("\ufeff{}", "invalid character '\ufeff' looking for beginning of value", "column 1"),
        ("9" * 5000, "number out of range", "digits"),
    ],
)
def test_bad_json_is_explained(text: str, problem: str, where: str) -> None:
    """Each kind of bad JSON gets Go's phrase and a hint with the position."""
    with pytest.raises(JsonError) as error:
        loads(text.encode(), LIMIT)
    assert error.value.text == problem
    assert where in error.value.hint


def test_bad_json_is_explained_without_the_json_package() -> None:
    """In an interpreter that has not loaded json.decoder, which the C scanner's errors need, bad
    JSON gets its message too.
    """
    script = (
        "from nvgraft.base.jsontext import *\ntry: loads(b'[1,', 99)\nexcept JsonError as"
        " error: print(error.text)"
    )
    path = f"import sys; sys.path[:0] = {sys.path!r}\nassert 'json' not in sys.modules\n"
    done = subprocess.run(
        [sys.executable, "-IS", "-c", path + script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "unexpected EOF\n"


def test_error_words_are_loaded_with_the_first_error() -> None:
    """The module with the errors' words is loaded with the first error, so that good documents do
    not pay for it.
    """
    script = "import sys; from nvgraft.base.jsontext import *; loads(b'[1]', 99)\n"
    script += "print('nvgraft.base.json_errors' in sys.modules)\n"
    script += (
        "try: loads(b'1 2', 99)\nexcept JsonError: print('nvgraft.base.json_errors' in sys.modules)"
    )
    path = f"import sys; sys.path[:0] = {sys.path!r}\n"
    done = subprocess.run(
        [sys.executable, "-IS", "-c", path + script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\nTrue\n"


def test_depth_is_limited_exactly() -> None:
    """64 levels are read and 65 refused; 100,000 levels do not exhaust the stack."""
    for brackets in ("[]", ('{"a":', "}")):
        opening, closing = brackets
        start = "1" if opening != "[" else ""
        loads((opening * MAX_DEPTH + start + closing * MAX_DEPTH).encode(), LIMIT)
        for depth in (MAX_DEPTH + 1, 100_000):
            with pytest.raises(JsonError, match="exceeded max depth"):
                loads((opening * depth + start + closing * depth).encode(), LIMIT)


def test_a_flat_document_of_many_objects_is_not_deep() -> None:
    """The depth limit counts nested levels, not brackets."""
    document = loads(b"[" + b",".join([b"[{}]"] * 500) + b"]", LIMIT)
    assert isinstance(document, list)
    assert len(document) == 500


def test_size_is_limited() -> None:
    """A document longer than the limit is refused before it is parsed."""
    with pytest.raises(JsonError, match="document too large"):
        loads(b'"abcdef"', 7)
    assert loads(b'"abcdef"', 8) == "abcdef"


def test_text_behind_the_first_value_can_be_ignored() -> None:
    """With ``one_value`` trailing text is ignored, as the reference decodes only the first
    value.
    """
    assert loads(b' {"a":1} trailing', LIMIT, one_value=True) == {"a": 1}


def test_members_match_without_regard_to_case() -> None:
    """Names of members match without regard to case, as in Go's decoder."""
    assert members({"PID": 1, "Bundle": "/b", "x": 2}, {"pid": "pid", "bundle": "bundle"}) == {
        "pid": 1,
        "bundle": "/b",
    }


@pytest.mark.parametrize(
    "text", ['{"pid":1,"pid":1}', '{"pid":1,"PID":2}', '{"x":0,"pid":{"a":1},"b":0,"pid":null}']
)
def test_a_repeated_requested_member_is_refused(text: str) -> None:
    """A requested member that occurs twice, in any case, is refused."""
    document = loads(text.encode(), LIMIT)
    assert isinstance(document, dict)
    with pytest.raises(JsonError, match='duplicate member "pid"'):
        members(document, {"pid": "pid"})


def test_another_repeated_member_is_ignored() -> None:
    """A repeated member that was not requested is ignored."""
    document = loads(b'{"x":1,"x":2,"pid":3}', LIMIT)
    assert isinstance(document, dict)
    assert members(document, {"pid": "pid"}) == {"pid": 3}


@given(
    st.binary(max_size=60)
    | st.text(alphabet='[]{}",:\\u0dtrue-1.eN \n', max_size=40).map(str.encode)
)
def test_any_bytes_give_a_value_or_a_json_error(data: bytes) -> None:
    """Any bytes give the value that the json package reads, or a JsonError."""
    try:
        ours = loads(data, LIMIT)
    except JsonError as error:
        assert error.text
        assert error.hint
        return
    assert ours == json.loads(data.decode("utf-8", "surrogateescape"))


@pytest.mark.parametrize("item", ["{}", "[]", "0", '"x"'])
def test_the_number_of_values_is_bounded(item: str) -> None:
    """More values than the limit are refused: millions of empty objects in a few MiB would take
    hundreds of MiB of memory.
    """
    text = f"[{','.join([item] * (MAX_VALUES + 1))}]".encode()
    with pytest.raises(JsonError) as caught:
        loads(text, 8 << 20)
    assert (caught.value.text, str(MAX_VALUES) in caught.value.hint) == ("document too large", True)
    assert loads(f"[{','.join([item] * (MAX_VALUES // 2))}]".encode(), 8 << 20) is not None


def test_a_long_string_is_one_value() -> None:
    """A long string counts as one value."""
    assert loads(b'"%s"' % (b"a" * (2 * MAX_VALUES)), 8 << 20) == "a" * (2 * MAX_VALUES)
