"""The texts of errors and logs: what a container chose cannot change how they are shown."""

import json
import sys
import unicodedata

from nvgraft.base.errors import Refusal, printable, printable_lines
from nvgraft.base.jsontext import dumps
from nvgraft.base.usage import UsageError

#: Categories of characters that steer the text around them, or have no form of their own.
_STEERING = {"Cc", "Cf", "Cs", "Zl", "Zp"}
#: Categories of characters that people read.
_READ = {"Ll", "Lu", "Lt", "Lo", "Lm", "Nd", "Nl", "No", "Mn", "Mc", "Me"} | {
    "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So"
}  # fmt: skip


def _of(categories: set[str]) -> str:
    """Return all code points of Unicode in these categories."""
    codes = map(chr, range(sys.maxunicode + 1))
    return "".join(char for char in codes if unicodedata.category(char) in categories)


def test_characters_that_steer_the_text_around_them_are_escaped() -> None:
    """No control, format or bidirectional character, line separator or lone surrogate is left, and
    what is left is text that can be encoded.
    """
    steering = _of(_STEERING)
    assert len(steering) > 2000
    shown = printable(steering)
    assert shown.isascii()
    assert shown.isprintable()
    for char in "\x00\x1b\n\x7f\x9b\xad\u061c\u200b\u200e\u2028\u2029\u202e\u2066\ufeff\U000e0041":
        assert printable(char) in shown
        assert char not in dumps(char)
        assert json.loads(dumps({char: char})) == {char: char}
    assert printable("a\x1b\xad\u202e\udcff\U000e0001") == "a\\x1b\\xad\\u202e\\udcff\\U000e0001"


def test_text_that_people_read_is_not_changed() -> None:
    """Letters, digits, marks, punctuation and symbols of all scripts, and the space, stay."""
    text = " " + _of(_READ)
    assert printable(text) == text
    assert dumps(text) == json.dumps(text, ensure_ascii=False)


def test_a_refusal_has_printable_lines_only() -> None:
    """The reference's words, the lines before them, the hint and a usage error's text are
    escaped; the newlines between lines stay.
    """
    evil = "x\u202ey\u2028z\r\u2066"
    refusal = Refusal("device", evil, evil, first_line=f"{evil}\n{evil}")
    safe = "x\\u202ey\\u2028z\\x0d\\u2066"
    assert refusal.line() == f"{safe}\n{safe}\nnvgraft: device error: {safe} | {safe}"
    assert UsageError(evil, "usage").line() == f"{safe}\nusage"
    assert printable_lines(f"{evil}\n\n{evil}") == f"{safe}\n\n{safe}"
