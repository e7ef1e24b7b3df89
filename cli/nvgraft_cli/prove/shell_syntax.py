"""Parse shell scripts: of POSIX sh and bash, what the entry points of images use.

Arithmetic and most of bash's own expansions are kept as parts whose value is not known.
"""

import re
from dataclasses import dataclass
from typing import Literal, NoReturn

#: The most levels of commands, words and expansions inside one another.
_DEPTH = 40

_NAME = re.compile(r"[A-Za-z_]\w*")
_OPERATOR = re.compile(r"&&|\|\||;;&|;;|;&|\|&|[;&|()\n]")
_REDIRECTION = re.compile(r"(?:\d+|\{\w+\})?(&>>?|<<<|<<-?|<>|>>|>\||[<>]&?)")
_EXPANSION = re.compile(
    r"(?P<name>[A-Za-z_]\w*|[@*#?$!0-9])(?P<operator>:?[-=+?]|##?|%%?|)", re.DOTALL
)
#: ${NAME[0]}, which is $NAME, and ${NAME:FIRST:COUNT}.
_PIECE = re.compile(r"\{([A-Za-z_]\w*|\d)(?:\[0\]|:(\d{1,4}(?::\d{1,4})?))\}")
_ELEMENTS = re.compile(r"\{([A-Za-z_]\w*)\[[@*]\]\}")
_BLANKS = re.compile(r"(?:[ \t\r]|\\\n)+")
_HERE_NAME = re.compile(r"[ \t]*(['\"]?)([^\s'\";|&<>()]+)\1")


class NotUnderstood(ValueError):
    """A script uses what this parser does not know, or it is damaged."""


@dataclass(frozen=True, slots=True)
class WordPart:
    """A part of a word.

    :ivar kind: text, variable, command (substituted by its output), array (``words`` in
        parentheses), elements (of the array ``text``), or unknown.
    :ivar text: the text, or the name of the variable.
    :ivar operator: of ``${NAME:-WORD}``, with ``argument``.
    :ivar body: the commands of a command substitution.
    """

    kind: Literal["text", "variable", "command", "array", "elements", "unknown"]
    text: str = ""
    quoted: bool = False
    operator: str = ""
    argument: "Word" = ()
    body: "Block" = ()
    words: "tuple[Word, ...]" = ()


Word = tuple[WordPart, ...]


@dataclass(frozen=True, slots=True)
class Simple:
    """Assignments and a command with its arguments."""

    words: tuple[Word, ...]


@dataclass(frozen=True, slots=True)
class If:
    """Conditions, each with the commands that follow it; the last condition may be empty."""

    branches: tuple[tuple["Block", "Block"], ...]


@dataclass(frozen=True, slots=True)
class For:
    """A loop over words; None stands for the arguments of the script."""

    name: str
    words: tuple[Word, ...] | None
    body: "Block"


@dataclass(frozen=True, slots=True)
class While:
    """A loop with a condition."""

    condition: "Block"
    body: "Block"
    until: bool


@dataclass(frozen=True, slots=True)
class CaseCommand:
    """A choice by patterns."""

    word: Word
    branches: tuple[tuple[tuple[Word, ...], "Block"], ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Commands in braces, or in parentheses (``subshell``)."""

    body: "Block"
    subshell: bool


@dataclass(frozen=True, slots=True)
class FunctionDefinition:
    """The definition of a function."""

    name: str
    body: "Block"


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Commands of which each reads what the one before writes."""

    commands: tuple["Command", ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class AndOr:
    """Pipelines; each but the first with the operator before it."""

    pipelines: tuple[tuple[str, Pipeline], ...]


Command = Simple | If | For | While | CaseCommand | Group | FunctionDefinition
Block = tuple[AndOr, ...]

_UNKNOWN = WordPart("unknown")


def parse(text: str) -> Block:
    """Return the commands of a script.

    :raises NotUnderstood: it uses what is not known here.
    """
    parser = _Parser(text)
    block = parser.block(set())
    if parser.at < len(text):
        parser.fail()
    return block


def text_of(word: Word) -> str | None:
    """Return the text of a word that is neither quoted nor expanded, or None."""
    if len(word) == 1 and word[0].kind == "text" and not word[0].quoted:
        return word[0].text
    return None


class _Parser:
    def __init__(self, text: str, depth: int = 0) -> None:
        self.text = text
        self.at = 0
        self._depth = depth
        self._here: list[tuple[str, bool]] = []

    def fail(self) -> NoReturn:
        raise NotUnderstood(f"the script is not understood at character {self.at}")

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > _DEPTH:
            self.fail()

    # -- tokens

    def _blanks(self) -> None:
        """Pass over blanks and a comment."""
        if match := _BLANKS.match(self.text, self.at):
            self.at = match.end()
        if self.text.startswith("#", self.at):
            end = self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end

    def _peek_operator(self) -> str:
        self._blanks()
        if self.text.startswith("&>", self.at):
            return ""
        match = _OPERATOR.match(self.text, self.at)
        return match[0] if match else ""

    def _take(self, operator: str) -> None:
        self.at += len(operator)
        if operator == "\n":
            self._pass_here_documents()

    def _pass_here_documents(self) -> None:
        for end, tabs in self._here:
            while self.at < len(self.text):
                stop = self.text.find("\n", self.at)
                stop = len(self.text) if stop < 0 else stop
                line = self.text[self.at : stop]
                self.at = min(stop + 1, len(self.text))
                if (line.lstrip("\t") if tabs else line) == end:
                    break
        self._here = []

    def _newlines(self) -> None:
        while (operator := self._peek_operator()) == "\n":
            self._take(operator)

    def _reserved(self, word: str) -> bool:
        """Take a reserved word if it is next."""
        self._newlines()
        match = re.compile(rf"{re.escape(word)}(?=[\s;&|()<>]|$)").match(self.text, self.at)
        if match:
            self.at = match.end()
        return match is not None

    def _expect(self, word: str) -> None:
        if not self._reserved(word):
            self.fail()

    # -- commands

    def block(self, ends: set[str]) -> Block:
        """Parse commands up to one of the reserved words or operators ``ends``."""
        self._deeper()
        commands: list[AndOr] = []
        while True:
            self._newlines()
            operator = self._peek_operator()
            if self.at >= len(self.text) or operator in ends or self._at_end(ends):
                break
            commands.append(self._and_or())
            operator = self._peek_operator()
            if operator in {";", "&", "\n"}:
                self._take(operator)
            elif operator not in ends and self.at < len(self.text) and not self._at_end(ends):
                self.fail()
        self._depth -= 1
        return tuple(commands)

    def _at_end(self, ends: set[str]) -> bool:
        match = re.compile(r"[a-z]+|\}").match(self.text, self.at)
        if match is None or match[0] not in ends:
            return False
        return match.end() == len(self.text) or self.text[match.end()] in " \t\r\n;&|()<>"

    def _and_or(self) -> AndOr:
        pipelines = [("", self._pipeline())]
        while (operator := self._peek_operator()) in {"&&", "||"}:
            self._take(operator)
            self._newlines()
            pipelines.append((operator, self._pipeline()))
        return AndOr(tuple(pipelines))

    def _pipeline(self) -> Pipeline:
        negated = self._reserved("!")
        commands = [self._command()]
        while (operator := self._peek_operator()) in {"|", "|&"}:
            self._take(operator)
            self._newlines()
            commands.append(self._command())
        return Pipeline(tuple(commands), negated)

    def _command(self) -> Command:
        self._blanks()
        if self.text.startswith("((", self.at):
            self._balanced()
            return Simple(((_UNKNOWN,),))
        if self.text.startswith("(", self.at):
            self.at += 1
            body = self.block({")"})
            self._close(")")
            return self._redirected(Group(body, subshell=True))
        for word, compound in (
            ("{", self._group),
            ("if", self._if),
            ("for", self._for),
            ("while", self._while),
            ("until", self._until),
            ("case", self._case),
            ("function", self._function),
        ):
            if self._reserved(word):
                return self._redirected(compound())
        match = re.compile(r"([\w.:-]+)[ \t]*\([ \t]*\)").match(self.text, self.at)
        if match:
            self.at = match.end()
            return self._body_of(match[1])
        return self._simple()

    def _redirected(self, command: Command) -> Command:
        while self._redirection():
            pass
        return command

    def _close(self, operator: str) -> None:
        if self._peek_operator() != operator:
            self.fail()
        self._take(operator)

    def _group(self) -> Command:
        body = self.block({"}"})
        self._expect("}")
        return Group(body, subshell=False)

    def _function(self) -> Command:
        self._blanks()
        match = re.compile(r"([\w.:-]+)(?:[ \t]*\([ \t]*\))?").match(self.text, self.at)
        if match is None:
            self.fail()
        self.at = match.end()
        return self._body_of(match[1])

    def _body_of(self, name: str) -> Command:
        self._newlines()
        self._deeper()
        body = self._command()
        self._depth -= 1
        return FunctionDefinition(name, (AndOr((("", Pipeline((body,))),)),))

    def _if(self) -> Command:
        branches = []
        while True:
            condition = self.block({"then"})
            self._expect("then")
            branches.append((condition, self.block({"elif", "else", "fi"})))
            if not self._reserved("elif"):
                break
        if self._reserved("else"):
            branches.append(((), self.block({"fi"})))
        self._expect("fi")
        return If(tuple(branches))

    def _for(self) -> Command:
        self._blanks()
        if self.text.startswith("((", self.at):
            self._balanced()
            if self._peek_operator() == ";":
                self._take(";")
            condition = AndOr((("", Pipeline((Simple(((_UNKNOWN,),)),))),))
            return While((condition,), self._do(), until=False)
        match = _NAME.match(self.text, self.at)
        if match is None:
            self.fail()
        self.at = match.end()
        words: list[Word] | None = None
        if self._reserved("in"):
            words = []
            while not self._peek_operator() and self.at < len(self.text):
                words.append(self._word())
        if self._peek_operator() == ";":
            self._take(";")
        return For(match[0], None if words is None else tuple(words), self._do())

    def _do(self) -> Block:
        self._expect("do")
        body = self.block({"done"})
        self._expect("done")
        return body

    def _while(self, *, until: bool = False) -> Command:
        condition = self.block({"do"})
        return While(condition, self._do(), until)

    def _until(self) -> Command:
        return self._while(until=True)

    def _case(self) -> Command:
        self._blanks()
        word = self._word()
        self._expect("in")
        branches = []
        while not self._reserved("esac"):
            if self._peek_operator() == "(":
                self._take("(")
            patterns = [self._pattern()]
            while self._peek_operator() == "|":
                self._take("|")
                patterns.append(self._pattern())
            self._close(")")
            body = self.block({";;", ";;&", ";&", "esac"})
            branches.append((tuple(patterns), body))
            if self._peek_operator() in {";;", ";;&", ";&"}:
                self._take(self._peek_operator())
        return CaseCommand(word, tuple(branches))

    def _pattern(self) -> Word:
        self._blanks()
        if self._peek_operator() or self.at >= len(self.text):
            self.fail()
        return self._word()

    def _simple(self) -> Simple:
        words: list[Word] = []
        while self.at < len(self.text):
            self._blanks()
            if self._redirection():
                continue
            if self._peek_operator() or self.at >= len(self.text):
                break
            words.append(self._word())
            if len(words) == 1 and text_of(words[0]) == "[[":
                words += self._test_words()
        if not words and self._peek_operator() in {"(", ")"}:
            self.fail()
        return Simple(tuple(words))

    def _test_words(self) -> list[Word]:
        """Parse what is between [[ and ]], where operators of a list are those of the test."""
        words: list[Word] = []
        while not words or text_of(words[-1]) != "]]":
            self._newlines()
            operator = self._peek_operator() or self.text[self.at : self.at + 1]
            if not operator:
                self.fail()
            if operator in {"&&", "||", "(", ")", "<", ">"}:
                self.at += len(operator)
                words.append((WordPart("text", operator),))
            else:
                words.append(self._word())
        return words

    def _redirection(self) -> bool:
        """Pass over a redirection if it is next."""
        self._blanks()
        match = _REDIRECTION.match(self.text, self.at)
        if match is None or self.text.startswith("(", match.end()):
            return False
        self.at = match.end()
        if match[1] in {"<<", "<<-"}:
            name = _HERE_NAME.match(self.text, self.at)
            if name is None:
                self.fail()
            self.at = name.end()
            self._here.append((name[2].lstrip("\\"), match[1] == "<<-"))
            return True
        self._blanks()
        self._word()
        return True

    # -- words

    def _word(self) -> Word:
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
                self._balanced()  # a pattern of bash
                plain += self.text[begin : self.at]
            elif character in "<>" and self.text.startswith("(", self.at + 1):
                self.at += 1
                self._balanced()
                flush()
                parts.append(_UNKNOWN)
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

    def _array(self) -> WordPart:
        """Parse the words of an array."""
        self.at += 1
        self._deeper()
        words = []
        while True:
            self._newlines()
            if self._peek_operator() == ")":
                break
            words.append(self._word())
        self._depth -= 1
        self._take(")")
        return WordPart("array", words=tuple(words))

    def _end_of_quote(self) -> int:
        end = self.text.find("'", self.at + 1)
        if end < 0:
            self.fail()
        return end

    def _quoted(self) -> list[WordPart]:
        """Parse the rest of a text in double quotes."""
        parts: list[WordPart] = []
        plain: list[str] = []
        while True:
            character = self.text[self.at : self.at + 1]
            if not character:
                self.fail()
            if character == '"':
                self.at += 1
                break
            if character == "\\":
                following = self.text[self.at + 1 : self.at + 2]
                plain.append(following if following in '$`"\\' else f"\\{following}")
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
            self._balanced()
            return WordPart("unknown", quoted=quoted)
        if self.text.startswith("(", self.at):
            self.at += 1
            self._deeper()
            body = self.block({")"})
            self._depth -= 1
            self._close(")")
            return WordPart("command", quoted=quoted, body=body)
        if self.text.startswith("{", self.at):
            return self._in_braces(quoted=quoted)
        match = re.compile(r"[A-Za-z_]\w*|[@*#?$!0-9-]").match(self.text, self.at)
        if match is None:
            return WordPart("text", "$", quoted)
        self.at = match.end()
        return WordPart("variable", match[0], quoted)

    def _in_backquotes(self, *, quoted: bool) -> WordPart:
        end = self.at + 1
        while end < len(self.text) and self.text[end] != "`":
            end += 2 if self.text[end] == "\\" else 1
        inside = re.sub(r"\\([$`\\])", r"\1", self.text[self.at + 1 : end])
        self.at = end + 1
        self._deeper()
        parser = _Parser(inside, self._depth)
        body = parser.block(set())
        self._depth -= 1
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
            return WordPart("elements", match[1], quoted)
        match = _EXPANSION.match(self.text, start + 1)
        if match is not None and (
            match["operator"] or self.text.startswith("}", match.end("name"))
        ):
            self.at = match.end()
            self._deeper()
            argument = self._until_brace(quoted=quoted)
            self._depth -= 1
            return WordPart("variable", match["name"], quoted, match["operator"], argument)
        self.at = start
        self._balanced("{", "}")
        return WordPart("unknown", quoted=quoted)

    def _until_brace(self, *, quoted: bool) -> Word:
        parts: list[WordPart] = []
        while True:
            character = self.text[self.at : self.at + 1]
            if not character:
                self.fail()
            if character == "}":
                self.at += 1
                return tuple(parts)
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
                match = re.compile(r"[^}\"'$`\\]+|'").match(self.text, self.at)
                assert match is not None
                parts.append(WordPart("text", match[0], quoted))
                self.at = match.end()

    def _balanced(self, opening: str = "(", closing: str = ")") -> None:
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
