"""Parse shell scripts: of POSIX sh and bash, what the entry points of images use."""

import re

from nvgraft_cli.prove.script.syntax import (
    UNKNOWN_PART,
    AndOr,
    Block,
    CaseCommand,
    Command,
    For,
    FunctionDefinition,
    Group,
    If,
    Pipeline,
    Redirected,
    Redirection,
    Simple,
    While,
    Word,
    WordPart,
    text_of,
)
from nvgraft_cli.prove.script.tokens import Tokens

_NAME = re.compile(r"[A-Za-z_]\w*")


def parse(text: str) -> Block:
    """Return the commands of a script.

    :raises NotUnderstood: it uses what is not known here.
    """
    parser = _Parser(text)
    block = parser.block(set())
    if parser.at < len(text):
        parser.fail()
    return block


class _Parser(Tokens):
    def block(self, ends: set[str]) -> Block:
        """Parse commands up to one of the reserved words or operators ``ends``."""
        with self.deeper():
            commands: list[AndOr] = []
            while True:
                self.newlines()
                operator = self.peek_operator()
                if self.at >= len(self.text) or operator in ends or self._at_end(ends):
                    break
                commands.append(self._and_or())
                operator = self.peek_operator()
                if operator in {";", "&", "\n"}:
                    self.take(operator)
                elif operator not in ends and self.at < len(self.text) and not self._at_end(ends):
                    self.fail()
        return tuple(commands)

    def _at_end(self, ends: set[str]) -> bool:
        match = re.compile(r"[a-z]+|\}").match(self.text, self.at)
        if match is None or match[0] not in ends:
            return False
        return match.end() == len(self.text) or self.text[match.end()] in " \t\r\n;&|()<>"

    def _and_or(self) -> AndOr:
        before, self.bashism = self.bashism, ""
        pipelines = [("", self._pipeline())]
        while (operator := self.peek_operator()) in {"&&", "||"}:
            self.take(operator)
            self.newlines()
            pipelines.append((operator, self._pipeline()))
        found = self.bashism
        self.bashism = found or before
        return AndOr(tuple(pipelines), found)

    def _pipeline(self) -> Pipeline:
        negated = self.reserved("!")
        commands = [self._command()]
        while (operator := self.peek_operator()) in {"|", "|&"}:
            self.take(operator)
            self.bashism = operator if operator == "|&" else self.bashism
            self.newlines()
            commands.append(self._command())
        return Pipeline(tuple(commands), negated)

    def _command(self) -> Command:
        self.blanks()
        if self.text.startswith("((", self.at):
            return Simple(((WordPart("text", "(("),), (WordPart("text", self.arithmetic(), True),)))
        if self.text.startswith("(", self.at):
            self.at += 1
            body = self.block({")"})
            self.close(")")
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
            if self.reserved(word):
                return self._redirected(compound())
        match = re.compile(r"([\w.:-]+)[ \t]*\([ \t]*\)").match(self.text, self.at)
        if match:
            self.at = match.end()
            return self._body_of(match[1])
        return self._simple()

    def _redirected(self, command: Command) -> Command:
        found: list[Redirection] = []
        while self.redirection(found):
            pass
        return Redirected(command, tuple(found)) if found else command

    def _group(self) -> Command:
        body = self.block({"}"})
        self.expect("}")
        return Group(body, subshell=False)

    def _function(self) -> Command:
        self.bashism = "function"
        self.blanks()
        match = re.compile(r"([\w.:-]+)(?:[ \t]*\([ \t]*\))?").match(self.text, self.at)
        if match is None:
            self.fail()
        self.at = match.end()
        return self._body_of(match[1])

    def _body_of(self, name: str) -> Command:
        self.newlines()
        with self.deeper():
            body = self._command()
        return FunctionDefinition(name, (AndOr((("", Pipeline((body,))),)),))

    def _if(self) -> Command:
        branches = []
        while True:
            condition = self.block({"then"})
            self.expect("then")
            branches.append((condition, self.block({"elif", "else", "fi"})))
            if not self.reserved("elif"):
                break
        if self.reserved("else"):
            branches.append(((), self.block({"fi"})))
        self.expect("fi")
        return If(tuple(branches))

    def _for(self) -> Command:
        self.blanks()
        if self.text.startswith("((", self.at):
            self.bashism = "for (("
            self.balanced()
            if self.peek_operator() == ";":
                self.take(";")
            condition = AndOr((("", Pipeline((Simple(((UNKNOWN_PART,),)),))),))
            return While((condition,), self._do(), until=False)
        match = _NAME.match(self.text, self.at)
        if match is None:
            self.fail()
        self.at = match.end()
        words: list[Word] | None = None
        if self.reserved("in"):
            words = []
            while not self.peek_operator() and self.at < len(self.text):
                words.append(self.word())
        if self.peek_operator() == ";":
            self.take(";")
        return For(match[0], None if words is None else tuple(words), self._do())

    def _do(self) -> Block:
        self.expect("do")
        body = self.block({"done"})
        self.expect("done")
        return body

    def _while(self, *, until: bool = False) -> Command:
        condition = self.block({"do"})
        return While(condition, self._do(), until)

    def _until(self) -> Command:
        return self._while(until=True)

    def _case(self) -> Command:
        self.blanks()
        word = self.word()
        self.expect("in")
        branches = []
        while not self.reserved("esac"):
            if self.peek_operator() == "(":
                self.take("(")
            patterns = [self._pattern()]
            while self.peek_operator() == "|":
                self.take("|")
                patterns.append(self._pattern())
            self.close(")")
            body = self.block({";;", ";;&", ";&", "esac"})
            branches.append((tuple(patterns), body))
            if self.peek_operator() in {";;", ";;&", ";&"}:
                self.take(self.peek_operator())
        return CaseCommand(word, tuple(branches))

    def _pattern(self) -> Word:
        self.blanks()
        if self.peek_operator() or self.at >= len(self.text):
            self.fail()
        return self.word()

    def _simple(self) -> Command:
        words: list[Word] = []
        found: list[Redirection] = []
        while self.at < len(self.text):
            self.blanks()
            if self.redirection(found):
                continue
            if self.peek_operator() or self.at >= len(self.text):
                break
            words.append(self.word())
            if len(words) == 1 and text_of(words[0]) == "[[":
                words += self._test_words()
        if not words and not found and self.peek_operator() in {"(", ")"}:
            self.fail()
        command = Simple(tuple(words))
        return Redirected(command, tuple(found)) if found else command

    def _test_words(self) -> list[Word]:
        """Parse what is between [[ and ]], where operators of a list are those of the test."""
        words: list[Word] = []
        while not words or text_of(words[-1]) != "]]":
            self.newlines()
            operator = self.peek_operator() or self.text[self.at : self.at + 1]
            if not operator:
                self.fail()
            if operator in {"&&", "||", "(", ")", "<", ">"}:
                self.at += len(operator)
                words.append((WordPart("text", operator),))
            else:
                words.append(self.word())
        return words
