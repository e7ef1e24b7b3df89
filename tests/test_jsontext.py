"""jsontext: strict reading within limits, Go's words for what is wrong, and deterministic writing."""

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
def test_what_is_written_is_read_back(value: object) -> None:
    """dumps and loads are inverse, in the compact and in the indented form, and both are ordinary JSON."""
    for indent in (False, True):
        text = dumps(value, indent)
        assert loads(text.encode(), LIMIT) == value
        assert json.loads(text) == value


@given(values)
def test_the_forms_are_those_of_the_json_package(value: object) -> None:
    """The text is byte for byte what json.dumps writes without escapes for non-ASCII characters."""
    assert dumps(value) == json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert dumps(value, indent=True) == json.dumps(value, ensure_ascii=False, indent=1)


def test_tuples_are_arrays_and_other_types_are_errors() -> None:
    """A tuple is written as an array; a float has no place in our documents."""
    assert dumps((1, ("a",))) == '[1,["a"]]'
    with pytest.raises(TypeError):
        dumps({"a": 1.5})


def test_a_path_that_is_no_utf8_survives() -> None:
    """Undecodable bytes of a path are written as escapes, so that the text can be encoded, and come back equal."""
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
    """Every kind of bad JSON gets Go's phrase, and a hint with line and column."""
    with pytest.raises(JsonError) as error:
        loads(text.encode(), LIMIT)
    assert error.value.text == problem
    assert where in error.value.hint


def test_bad_json_is_explained_where_nothing_loaded_the_json_package() -> None:
    """The C scanner cannot name an error before json.decoder is loaded; a fresh interpreter still gets the message."""
    script = "from nvgraft.base.jsontext import *\ntry: loads(b'[1,', 99)\nexcept JsonError as error: print(error.text)"
    path = f"import sys; sys.path[:0] = {sys.path!r}\nassert 'json' not in sys.modules\n"
    done = subprocess.run(
        [sys.executable, "-IS", "-c", path + script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "unexpected EOF\n"


def test_the_words_of_errors_are_loaded_with_the_first_error() -> None:
    """A start whose documents are good pays for none of them."""
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
    """64 levels are read, 65 are not, and 100,000 are refused without exhausting the stack."""
    for brackets in ("[]", ('{"a":', "}")):
        opening, closing = brackets
        start = "1" if opening != "[" else ""
        loads((opening * MAX_DEPTH + start + closing * MAX_DEPTH).encode(), LIMIT)
        for depth in (MAX_DEPTH + 1, 100_000):
            with pytest.raises(JsonError, match="exceeded max depth"):
                loads((opening * depth + start + closing * depth).encode(), LIMIT)


def test_a_flat_document_of_many_objects_is_not_deep() -> None:
    """The depth limit counts levels, not brackets."""
    document = loads(b"[" + b",".join([b"[{}]"] * 500) + b"]", LIMIT)
    assert isinstance(document, list)
    assert len(document) == 500


def test_size_is_limited() -> None:
    """A document longer than the limit is refused before it is read."""
    with pytest.raises(JsonError, match="document too large"):
        loads(b'"abcdef"', 7)
    assert loads(b'"abcdef"', 8) == "abcdef"


def test_what_follows_the_first_value_is_ignored_on_request() -> None:
    """The reference decodes one value from its inputs and looks no further."""
    assert loads(b' {"a":1} trailing', LIMIT, one_value=True) == {"a": 1}


def test_members_match_without_regard_to_case() -> None:
    """Go's decoder takes "Bundle" for "bundle"; so does the hook."""
    assert members({"PID": 1, "Bundle": "/b", "x": 2}, {"pid": "pid", "bundle": "bundle"}) == {
        "pid": 1,
        "bundle": "/b",
    }


@pytest.mark.parametrize(
    "text", ['{"pid":1,"pid":1}', '{"pid":1,"PID":2}', '{"x":0,"pid":{"a":1},"b":0,"pid":null}']
)
def test_a_repeated_member_that_is_read_is_an_error(text: str) -> None:
    """A member that is read must occur once, in whatever case."""
    document = loads(text.encode(), LIMIT)
    assert isinstance(document, dict)
    with pytest.raises(JsonError, match='duplicate member "pid"'):
        members(document, {"pid": "pid"})


def test_a_repeated_member_that_is_not_read_is_ignored() -> None:
    """Other members are none of our business."""
    document = loads(b'{"x":1,"x":2,"pid":3}', LIMIT)
    assert isinstance(document, dict)
    assert members(document, {"pid": "pid"}) == {"pid": 3}


@given(
    st.binary(max_size=60)
    | st.text(alphabet='[]{}",:\\u0dtrue-1.eN \n', max_size=40).map(str.encode)
)
def test_any_bytes_give_a_value_or_our_error(data: bytes) -> None:
    """Whatever the bytes, the answer is a value or a JsonError, and what the json package reads is read alike."""
    try:
        ours = loads(data, LIMIT)
    except JsonError as error:
        assert error.text
        assert error.hint
        return
    assert ours == json.loads(data.decode("utf-8", "surrogateescape"))


@pytest.mark.parametrize("item", ["{}", "[]", "0", '"x"'])
def test_the_number_of_values_is_bounded(item: str) -> None:
    """Millions of empty objects fit into a few MiB, and would take seconds and hundreds of MiB to hold."""
    text = f"[{','.join([item] * (MAX_VALUES + 1))}]".encode()
    with pytest.raises(JsonError) as caught:
        loads(text, 8 << 20)
    assert (caught.value.text, str(MAX_VALUES) in caught.value.hint) == ("document too large", True)
    assert loads(f"[{','.join([item] * (MAX_VALUES // 2))}]".encode(), 8 << 20) is not None


def test_long_strings_are_no_values() -> None:
    """A document may be large without having many values."""
    assert loads(b'"%s"' % (b"a" * (2 * MAX_VALUES)), 8 << 20) == "a" * (2 * MAX_VALUES)
