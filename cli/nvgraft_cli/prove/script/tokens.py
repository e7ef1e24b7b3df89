"""Take the words and operators of a shell script one after another."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, NoReturn

from nvgraft_cli.prove.script.syntax import (
    UNKNOWN_PART,
    Block,
    NotUnderstood,
    Redirection,
    Word,
    WordPart,
    text_of,
)

#: The most levels of commands, words and expansions inside one another.
_DEPTH = 40

_OPERATOR = re.compile(r"&&|\|\||;;&|;;|;&|\|&|[;&|()\n]")
_EXPANSION = re.compile(
    r"(?P<name>[A-Za-z_]\w*|[@*#?$!0-9])(?P<operator>:?[-=+?]|##?|%%?|)", re.DOTALL
)
#: ${NAME[0]}, which is $NAME, and ${NAME:FIRST:COUNT}.
_PIECE = re.compile(r"\{([A-Za-z_]\w*|[\d@*])(?:\[0\]|:(\d{1,4}(?::\d{1,4})?))\}")
#: ${NAME,,} and ${NAME^^}; ${!NAME}, perhaps with a default.
_CASED = re.compile(r"\{([A-Za-z_]\w*|\d)(,,|\^\^)\}")
_INDIRECT = re.compile(r"\{!([A-Za-z_]\w*)(?:\}|(:?[-+=]))")
#: ${NAME/PATTERN/TEXT} and ${NAME//PATTERN/TEXT}.
_REPLACEMENT = re.compile(r"\{([A-Za-z_]\w*|\d)(//?)(?!\})")
_ELEMENTS = re.compile(r"\{(!?)([A-Za-z_]\w*)\[([@*])\]\}")
#: ${NAME[KEY]} with a plain key or that of a variable.
_ELEMENT = re.compile(r"""\{([A-Za-z_]\w*)\[(["']?)(\$\{?\w+\}?|[^]$`"'{}]+)\2\]\}""")
_REDIRECTION = re.compile(r"(?:\d+|\{\w+\})?(&>>?|<<<|<<-?|<>|>>|>\||[<>]&?)")
_HERE_NAME = re.compile(r"[ \t]*(['\"]?)([^\s'\";|&<>()]+)\1")
_BLANKS = re.compile(r"(?:[ \t\r]|\\\n)+")


class Tokens(ABC):
    """The words and operators of a script, and the place that is reached.

    Outputs of commands are parts of words: :meth:`block` parses the commands.
    """

    def __init__(self, text: str, depth: int = 0) -> None:
        self.text = text
        self.at = 0
        #: The last construct that is an error in a POSIX shell, "" if there was none.
        self.bashism = ""
        self._depth = depth
        self._here: list[tuple[re.Match[str], bool, Redirection]] = []

    def fail(self) -> NoReturn:
        """Raise ``NotUnderstood``."""
        raise NotUnderstood(f"the script is not understood at character {self.at}")

    @contextmanager
    def deeper(self) -> Iterator[None]:
        """Be one level deeper inside others for as long as the context lasts."""
        self._depth += 1
        if self._depth > _DEPTH:
            self.fail()
        yield
        self._depth -= 1

    @abstractmethod
    def block(self, ends: set[str]) -> Block:
        """Parse commands up to one of the reserved words or operators ``ends``."""

    def blanks(self) -> None:
        """Pass over blanks and a comment."""
        if match := _BLANKS.match(self.text, self.at):
            self.at = match.end()
        if self.text.startswith("#", self.at):
            end = self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end

    def peek_operator(self) -> str:
        """Return the operator that is next, "" where none is."""
        self.blanks()
        if self.text.startswith("&>", self.at):
            return ""
        match = _OPERATOR.match(self.text, self.at)
        return match[0] if match else ""

    def take(self, operator: str) -> None:
        """Pass over the operator that is next, and over here documents after a line."""
        self.at += len(operator)
        if operator == "\n":
            self._pass_here_documents()

    def _pass_here_documents(self) -> None:
        for name, tabs, redirection in self._here:
            end, lines = name[2].lstrip("\\"), []
            while self.at < len(self.text):
                stop = self.text.find("\n", self.at)
                stop = len(self.text) if stop < 0 else stop
                line = self.text[self.at : stop]
                line = line.lstrip("\t") if tabs else line
                self.at = min(stop + 1, len(self.text))
                if line == end:
                    break
                lines.append(f"{line}\n")
            text = "".join(lines)
            if name[1] or name[2].startswith("\\"):
                redirection.word = (WordPart("text", text, True),)
            else:
                with self.deeper():
                    redirection.word = tuple(type(self)(text, self._depth)._quoted(""))
        self._here = []

    def newlines(self) -> None:
        """Pass over ends of lines."""
        while (operator := self.peek_operator()) == "\n":
            self.take(operator)

    def reserved(self, word: str) -> bool:
        """Take a reserved word if it is next."""
        self.newlines()
        match = re.compile(rf"{re.escape(word)}(?=[\s;&|()<>]|$)").match(self.text, self.at)
        if match:
            self.at = match.end()
        return match is not None

    def expect(self, word: str) -> None:
        """Take a reserved word, which has to be next."""
        if not self.reserved(word):
            self.fail()

    def close(self, operator: str) -> None:
        """Take an operator, which has to be next."""
        if self.peek_operator() != operator:
            self.fail()
        self.take(operator)

    def redirection(self, found: list[Redirection]) -> bool:
        """Take a redirection if it is next; those of input and output are ``found``."""
        self.blanks()
        match = _REDIRECTION.match(self.text, self.at)
        if match is None or self.text.startswith("(", match.end()):
            return False
        self.at = match.end()
        if match[1] in {"<<", "<<-"}:
            name = _HERE_NAME.match(self.text, self.at)
            if name is None:
                self.fail()
            self.at = name.end()
            found.append(Redirection("text"))
            self._here.append((name, match[1] == "<<-", found[-1]))
            return True
        self.blanks()
        word, number = self.word(), match[0].removesuffix(match[1])
        if match[1] == "<<<":
            self.bashism = "<<<"
            found.append(Redirection("text", (*word, WordPart("text", "\n", True))))
        elif match[1] == "<" and number in {"", "0"}:
            found.append(Redirection("read", word))
        elif match[1] in {">", ">|", ">>", "&>", "&>>"} and number in {"", "1"}:
            kind: Literal["append", "write"] = "append" if match[1].endswith(">>") else "write"
            found.append(Redirection(kind, word, match[1].startswith("&")))
        elif match[1] == ">&" and number in {"", "1"} and text_of(word) == "2":
            found.append(Redirection("aside"))
        return True

    def word(self) -> Word:
        """Take the word that is next."""
        parts: list[WordPart] = []
        plain: list[str] = []

        def flush() -> None:
            if plain:
                parts.append(WordPart("text", "".join(plain)))
                plain.clear()

        start = self.at
        while self.at < len(self.text):
            character = self.text[self.at]
            if character == "(" and plain[-1:] == ["="]:
                flush()
                parts.append(self._array())
            elif character == "(" and plain and plain[-1] in "@?*+":
                begin = self.at
                self.balanced()  # a pattern of bash
                plain += self.text[begin : self.at]
            elif character in "<>" and self.text.startswith("(", self.at + 1):
                self.bashism = f"{character}("
                flush()
                parts.append(self._process(character))
            elif character in " \t\r\n;&|()<>":
                break
            elif character == "\\":
                if not self.text.startswith("\\\n", self.at):
                    flush()
                    parts.append(WordPart("text", self.text[self.at + 1 : self.at + 2], True))
                self.at += 2
            elif character == "'":
                end = self._end_of_quote()
                flush()
                parts.append(WordPart("text", self.text[self.at + 1 : end], True))
                self.at = end + 1
            elif character == '"':
                flush()
                self.at += 1
                parts += self._quoted()
            elif character in "$`":
                flush()
                parts.append(self._expansion(quoted=False))
            else:
                plain.append(character)
                self.at += 1
        flush()
        if self.at == start:
            self.fail()
        return tuple(parts)

    def _process(self, character: str) -> WordPart:
        """Parse ``<(COMMANDS)``, a file with their output; ``>(COMMANDS)`` is not known."""
        self.at += 1
        if character == ">":
            self.balanced()
            return UNKNOWN_PART
        self.at += 1
        with self.deeper():
            body = self.block({")"})
        self.close(")")
        return WordPart("process", body=body)

    def _array(self) -> WordPart:
        """Parse the words of an array."""
        self.bashism = "=("
        self.at += 1
        with self.deeper():
            words = []
            while True:
                self.newlines()
                if self.peek_operator() == ")":
                    break
                words.append(self.word())
        self.take(")")
        return WordPart("array", words=tuple(words))

    def _end_of_quote(self) -> int:
        end = self.text.find("'", self.at + 1)
        if end < 0:
            self.fail()
        return end

    def _quoted(self, end: str = '"') -> list[WordPart]:
        """Parse the rest of a text in double quotes; without ``end`` that of a here document."""
        parts: list[WordPart] = []
        plain: list[str] = []
        while True:
            character = self.text[self.at : self.at + 1]
            if not character and end:
                self.fail()
            if character == end:
                self.at += 1
                break
            if character == "\\":
                following = self.text[self.at + 1 : self.at + 2]
                if following != "\n":
                    plain.append(following if following in f"$`\\{end}" else f"\\{following}")
                self.at += 2
            elif character in "$`":
                parts.append(WordPart("text", "".join(plain), True))
                plain.clear()
                parts.append(self._expansion(quoted=True))
            else:
                plain.append(character)
                self.at += 1
        parts.append(WordPart("text", "".join(plain), True))
        return parts

    def _expansion(self, *, quoted: bool) -> WordPart:
        if self.text[self.at] == "`":
            return self._in_backquotes(quoted=quoted)
        self.at += 1
        if self.text.startswith("((", self.at):
            return WordPart("arithmetic", self.arithmetic(), quoted)
        if self.text.startswith("(", self.at):
            self.at += 1
            with self.deeper():
                body = self.block({")"})
            self.close(")")
            return WordPart("command", quoted=quoted, body=body)
        if self.text.startswith("{", self.at):
            return self._in_braces(quoted=quoted)
        match = re.compile(r"[A-Za-z_]\w*|[@*#?$!0-9-]").match(self.text, self.at)
        if match is None:
            return WordPart("text", "$", quoted)
        self.at = match.end()
        return WordPart("variable", match[0], quoted)

    def arithmetic(self) -> str:
        """Take an expression in two parentheses; return its text."""
        start = self.at
        self.balanced()
        return self.text[start + 2 : self.at - 2]

    def _in_backquotes(self, *, quoted: bool) -> WordPart:
        end = self.at + 1
        while end < len(self.text) and self.text[end] != "`":
            end += 2 if self.text[end] == "\\" else 1
        inside = re.sub(r"\\([$`\\])", r"\1", self.text[self.at + 1 : end])
        self.at = end + 1
        with self.deeper():
            parser = type(self)(inside, self._depth)
            body = parser.block(set())
        return WordPart("command", quoted=quoted, body=body)

    def _in_braces(self, *, quoted: bool) -> WordPart:
        start = self.at
        if match := _PIECE.match(self.text, start):
            self.at = match.end()
            if match[2] is None:
                return WordPart("variable", match[1], quoted)
            return WordPart("variable", match[1], quoted, "piece", (WordPart("text", match[2]),))
        if match := _ELEMENTS.match(self.text, start):
            self.at = match.end()
            return WordPart("keys" if match[1] else "elements", match[2], quoted, match[3])
        if match := _ELEMENT.match(self.text, start):
            self.at = match.end()
            return WordPart("element", match[1], quoted, match[3])
        if match := _CASED.match(self.text, start):
            self.at = match.end()
            return WordPart("variable", match[1], quoted, match[2])
        if match := _INDIRECT.match(self.text, start):
            self.at = match.end()
            with self.deeper():
                argument = self._until_brace(quoted=quoted) if match[2] else ()
            return WordPart("indirect", match[1], quoted, match[2] or "", argument)
        if match := _REPLACEMENT.match(self.text, start):
            self.at = match.end()
            with self.deeper():
                pattern, end = self._until_slash(quoted=False)
                argument = self._until_brace(quoted=quoted) if end == "/" else ()
            return WordPart("variable", match[1], quoted, match[2], pattern, replacement=argument)
        match = _EXPANSION.match(self.text, start + 1)
        if match is not None and (
            match["operator"] or self.text.startswith("}", match.end("name"))
        ):
            self.at = match.end()
            with self.deeper():
                # Quotes around ${NAME#PATTERN} do not quote the pattern.
                argument = self._until_brace(quoted=quoted and match["operator"][:1] not in "#%")
            return WordPart("variable", match["name"], quoted, match["operator"], argument)
        self.at = start
        self.balanced("{", "}")
        return WordPart("unknown", quoted=quoted)

    def _until_brace(self, *, quoted: bool) -> Word:
        return self._word_until("}", quoted=quoted)[0]

    def _until_slash(self, *, quoted: bool) -> tuple[Word, str]:
        return self._word_until("/}", quoted=quoted)

    def _word_until(self, ends: str, *, quoted: bool) -> tuple[Word, str]:
        """Parse a word up to one of the characters ``ends``; return it and the character."""
        parts: list[WordPart] = []
        while True:
            character = self.text[self.at : self.at + 1]
            if not character:
                self.fail()
            if character in ends:
                self.at += 1
                return tuple(parts), character
            if character == '"':
                self.at += 1
                parts += self._quoted()
            elif character == "'" and not quoted:
                end = self._end_of_quote()
                parts.append(WordPart("text", self.text[self.at + 1 : end], True))
                self.at = end + 1
            elif character in "$`":
                parts.append(self._expansion(quoted=quoted))
            elif character == "\\":
                parts.append(WordPart("text", self.text[self.at + 1 : self.at + 2], True))
                self.at += 2
            else:
                match = re.compile(rf"[^{ends}\"'$`\\]+|'").match(self.text, self.at)
                assert match is not None
                parts.append(WordPart("text", match[0], quoted))
                self.at = match.end()

    def balanced(self, opening: str = "(", closing: str = ")") -> None:
        """Pass over text in parentheses or braces, with quotes in it."""
        depth = 0
        while self.at < len(self.text):
            character = self.text[self.at]
            if character == "\\":
                self.at += 1
            elif character == "'":
                self.at = self._end_of_quote()
            elif character == '"':
                self.at += 1
                self._quoted()
                continue
            elif character == opening:
                depth += 1
            elif character == closing:
                depth -= 1
                if depth == 0:
                    self.at += 1
                    return
            self.at += 1
        self.fail()
