"""Expand the words of a script: variables, outputs of commands, wildcards, and splitting."""

import re
from collections.abc import Callable
from dataclasses import replace

from nvgraft_cli.case.file_changes import UNKNOWN
from nvgraft_cli.prove.script.arithmetic import computed
from nvgraft_cli.prove.script.files import ShellFiles
from nvgraft_cli.prove.script.patterns import is_pattern, quoted, without
from nvgraft_cli.prove.script.state import VALUE_LIMIT, ShellEnd, ShellState
from nvgraft_cli.prove.script.syntax import Block, Word, WordPart

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_BEGINS_ELEMENT = re.compile(r"[A-Za-z_]\w*\[")
_ELEMENT = re.compile(r"(\w+)\[([^]]*)\](\+?)=(.*)", re.DOTALL)
_HOME = re.compile(r"((?:[A-Za-z_]\w*\+?=)?)~(?=/|$)")


#: What shells other than bash do not substitute: kinds of parts, and operators.
_KINDS_OF_BASH = {"elements", "keys", "element", "indirect"}
_OPERATORS_LACKING = {
    "dash": ("piece", ",,", "^^", "/", "//"),
    "busybox": (",,", "^^"),
}


class ShellWords:
    """What words become in the state of a shell.

    :param output: returns the output of commands.
    """

    def __init__(self, files: ShellFiles, output: Callable[[Block, ShellState], str]) -> None:
        self._files = files
        self._output = output

    def text(
        self, word: Word, state: ShellState, *, pattern: bool = False, limit: int = VALUE_LIMIT
    ) -> str:
        """Return a word as one text, without splitting."""
        texts: list[str] = []
        length = 0
        for part in _at_home(word, state):
            text = " ".join(self._values(part, state))
            texts.append(quoted(text) if pattern and part.quoted else text)
            length += len(text)
            if length > limit:
                break
        return "".join(texts)[:limit]

    def fields(self, word: Word, state: ShellState) -> list[str]:
        """Return the arguments that a word becomes."""
        fields: list[str] = []
        current: str | None = None
        pattern = False
        for part in _at_home(word, state):
            values = self._values(part, state)
            if part.kind == "text" or (
                part.quoted and part.kind not in {"elements", "keys"} and part.text != "@"
            ):
                current = (current or "") + " ".join(values)
                pattern |= not part.quoted and is_pattern(part.text)
                continue
            if not part.quoted:
                values = [one for value in values for one in value.split()]
            if values:
                fields += [(current or "") + values[0], *values[1:]]
                current = fields.pop()
        if current is not None:
            fields.append(current[:VALUE_LIMIT])
        if pattern and len(fields) == 1 and UNKNOWN not in fields[0]:
            return list(self._files.matching(fields[0], state)) or fields
        return fields

    def array(self, part: WordPart, state: ShellState) -> list[str]:
        """Return the elements of an array that is written out."""
        return [text for word in part.words for text in self.fields(word, state)]

    def _values(self, part: WordPart, state: ShellState) -> list[str]:
        """Return the values of a part: more than one of $@ and of arrays only."""
        if part.kind == "text":
            return [part.text]
        if part.kind in {"unknown", "array"}:
            return [UNKNOWN]
        if part.kind == "arithmetic":
            number = computed(part.text, state)
            return [UNKNOWN if number is None else str(number)]
        if part.kind in _KINDS_OF_BASH and state.dialect != "bash":
            raise _bad_substitution(state)
        if part.kind in {"elements", "keys"}:
            elements = state.elements(part.text)
            values = list(elements.values() if part.kind == "elements" else elements)
            return _joined(values, part.operator, part, state)
        if part.kind == "element":
            unset = UNKNOWN if state.opaque else ""
            return [state.elements(part.text).get(self._key(part, state), unset)]
        if part.kind == "command":
            return [self._output(part.body, state)]
        if part.kind == "process":
            return [self._files.keep(self._output(part.body, state), state)]
        if part.text in {"@", "*"} and part.operator in {"", "piece"}:
            values = state.arguments[1:] if not part.operator else self._slice(part, state)
            return _joined(values, part.text, part, state)
        if part.kind == "indirect":
            name = state.value(part.text) or ""
            if not name.isidentifier():
                return [UNKNOWN]
            part = replace(part, kind="variable", text=name)
        return [self._variable(part, state)[:VALUE_LIMIT]]

    def _slice(self, part: WordPart, state: ShellState) -> list[str]:
        """Return the arguments that ``${@:FIRST:COUNT}`` stands for."""
        if state.dialect == "dash":
            raise _bad_substitution(state)
        first, _, count = part.argument[0].text.partition(":")
        return state.arguments[int(first) :][: int(count) if count else None]

    def element(self, word: Word, state: ShellState) -> tuple[str, str, str] | None:
        """Return the name, key and value of a word that sets one element of an array."""
        if not word or word[0].kind != "text" or not _BEGINS_ELEMENT.match(word[0].text):
            return None
        match = _ELEMENT.fullmatch(self.text(word, state))
        if match is None or word[0].quoted:
            return None
        key, value = match[2], match[4]
        if match[1] not in state.associative:
            number = computed(key, state)
            key = UNKNOWN if number is None else str(number)
        if match[3]:
            value = state.elements(match[1]).get(key, "") + value
        return match[1], key, value

    def _key(self, part: WordPart, state: ShellState) -> str:
        """Return the key of one element."""
        key = part.operator
        if key.startswith("$"):
            key = state.value(key.strip("${}")) or ""
        if part.text in state.associative:
            return key
        number = computed(key, state)
        return UNKNOWN if number is None else str(number)

    def _variable(self, part: WordPart, state: ShellState) -> str:
        value = state.value(part.text)
        operator = part.operator.removeprefix(":")
        lacking = _OPERATORS_LACKING.get(state.dialect, ())
        if operator in lacking or (lacking and part.text == "BASH_SOURCE"):
            raise _bad_substitution(state)
        asks = operator in {"-", "=", "+", "?"}
        if state.ends_at_unset and not asks and state.is_unset(part.text):
            raise ShellEnd(status=False, words=f"{part.text} is not set (set -u)")
        if asks:
            missing = value is None or (part.operator.startswith(":") and value == "")
            if operator == "?" and missing and state.is_unset(part.text):
                raise ShellEnd(status=False, words=f"{part.text} is not set")
            if operator == "+":
                return "" if missing else self.text(part.argument, state)
            if operator in {"-", "="} and missing:
                value = self.text(part.argument, state)
                if operator == "=":
                    state.variables[part.text] = value
        elif operator == "piece" and value and UNKNOWN not in value:
            start, _, count = part.argument[0].text.partition(":")
            return value[int(start) :][: int(count) if count else None]
        elif operator in {",,", "^^"} and value:
            return value.lower() if operator == ",," else value.upper()
        elif operator in {"/", "//"} and value:
            return self._replaced(value, part, state)
        elif operator and value and UNKNOWN not in value:
            pattern = self.text(part.argument, state, pattern=True)
            rest = None if UNKNOWN in pattern else without(value, operator, pattern)
            return UNKNOWN if rest is None else rest
        return value or ""

    def _replaced(self, value: str, part: WordPart, state: ShellState) -> str:
        pattern, text = self.text(part.argument, state), self.text(part.replacement, state)
        if not pattern or is_pattern(pattern) or UNKNOWN in value + pattern:
            return UNKNOWN if pattern else value
        return value.replace(pattern, text, -1 if part.operator == "//" else 1)


def _bad_substitution(state: ShellState) -> ShellEnd:
    return ShellEnd(status=False, words=f"bad substitution: {state.dialect} does not know it")


def _joined(values: list[str], sign: str, part: WordPart, state: ShellState) -> list[str]:
    """Return values, of a quoted * as one text with the first character of IFS between them."""
    if sign != "*" or not part.quoted:
        return values
    return [state.variables.get("IFS", " ")[:1].join(values)]


def assignment(word: Word) -> tuple[str, bool, Word] | None:
    """Return the name, whether the value is joined to it, and the value, of an assignment."""
    if not word or word[0].kind != "text" or word[0].quoted:
        return None
    assigns = assignment_of_text(word[0].text)
    if assigns is None:
        return None
    name, joined, text = assigns
    return name, joined, (WordPart("text", text), *word[1:])


def assignment_of_text(text: str) -> tuple[str, bool, str] | None:
    """Return the name, whether the value is joined to it, and the value, of an assignment."""
    match = _ASSIGNMENT.match(text)
    return None if match is None else (match[1], bool(match[2]), text[match.end() :])


def _at_home(word: Word, state: ShellState) -> Word:
    """Return a word, or an assignment, with the path of HOME for an unquoted ~ that begins it."""
    first = word[0] if word else None
    if first is None or first.kind != "text" or first.quoted:
        return word
    match = _HOME.match(first.text)
    if match is None:
        return word
    text = match[1] + state.variables.get("HOME", "/root") + first.text[match.end() :]
    return (replace(first, text=text), *word[1:])
