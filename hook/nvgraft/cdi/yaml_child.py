"""Convert YAML texts into JSON values with PyYAML, in a confined child.

Who wrote a specification is unknown, and PyYAML is much code with a part in C. Therefore a child
loads it, which has given up all privileges before it looks at a text, and can open no file. It
answers with one line of JSON for each text.
"""

from __future__ import annotations

import time

from nvgraft.base import jsontext
from nvgraft.base._os import os
from nvgraft.base.files import read_text, write_all
from nvgraft.base.values import Value
from nvgraft.system import child, confinement, privileges, syscalls, userns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Seconds for all texts of a call.
TIMEOUT = 8.0

#: Bytes of all answers of one child. A text that is accepted has at most 8 MiB of strings.
_ANSWER_LIMIT = 64 << 20

#: Bytes of memory for the texts, beyond what this process has. See documents.VALUE_LIMIT for what
#: a text needs.
_MEMORY = 160 << 20

#: In seconds, bytes and descriptors; the last one lets the child open no file.
_LIMITS = (
    (syscalls.RLIMIT_CPU, 8),
    (syscalls.RLIMIT_FSIZE, 0),
    (syscalls.RLIMIT_CORE, 0),
    (syscalls.RLIMIT_NOFILE, 1),
)

#: A text that loads all of PyYAML's modules and Python's codecs.
_TRIAL = b"---\na: &a [1, 1.5, yes, ~, 'x']\nb: *a\n"

_MISSING = "PyYAML is not installed"
_MISSING_FIX = (
    "run ./dev install again, which brings it, or apt-get install python3-yaml, or write the"
    " specification as JSON"
)
_FIX = "write the specification as JSON, or look for what is unusual in it"


class NotYaml(Value):
    """The reason why a text has no value: cause and fix, as in a line of an error."""

    def __init__(self, cause: str, fix: str) -> None:
        self.cause = cause
        self.fix = fix


def convert(texts: Sequence[bytes], *, timeout: float = TIMEOUT) -> list[object]:
    """Return the JSON value of each text, or a :class:`NotYaml`.

    :param timeout: seconds for all texts together.
    :raises Refusal: stage ``permission``, without python-prctl.
    :raises OSError: no process can be made.
    """
    return _ask(texts, _value, timeout)


def line_of(text: bytes, members: Sequence[str | int]) -> int:
    """Return the line of a value in a text that :func:`convert` has accepted, or 0 if that cannot
    be found out.

    :param members: the names and indices that lead to the value.
    :raises Refusal: as :func:`convert`.
    :raises OSError: as :func:`convert`.
    """

    def line(text: bytes) -> object:
        from nvgraft_specs import yaml_text

        return yaml_text.line_of(text, members)

    (answer,) = _ask([text], line, TIMEOUT)
    return answer if isinstance(answer, int) else 0


def _ask(texts: Sequence[bytes], work: Callable[[bytes], object], timeout: float) -> list[object]:
    """Return what ``work`` returns for each text, in a child, or a :class:`NotYaml`.

    A text that ends the child does not take the others with it: another child goes on behind it.
    """
    privileges.check_installed()
    fixed_groups = userns.groups_are_fixed()
    deadline = time.monotonic() + timeout
    answers: list[object] = []
    while len(answers) < len(texts):
        rest = texts[len(answers) :]
        yaml = child.start(
            lambda writer, rest=rest: _answer(writer, rest, work, fixed_groups=fixed_groups),  # type: ignore[misc]
            forks=False,
        )
        data = None
        try:
            data = yaml.read(deadline, _ANSWER_LIMIT)
        finally:
            status = yaml.end()
        if data is None:
            late = NotYaml(f"not read within {timeout:g} s", _FIX)
            return answers + [late] * len(rest)
        lines = data.split(b"\n")[:-1]
        answers += [_parsed(line) for line in lines[: len(rest)]]
        if len(lines) < len(rest):
            killed = status is not None and os.WIFSIGNALED(status)
            how = f"signal {os.WTERMSIG(status)}" if status is not None and killed else "no answer"
            answers.append(NotYaml(f"the process that read it ended with {how}", _FIX))
    return answers


def _parsed(line: bytes) -> object:
    """Return the answer of a line. What a child may have been made to write is checked like any
    document.
    """
    try:
        answer = jsontext.loads(line, _ANSWER_LIMIT)
    except jsontext.JsonError as error:
        return NotYaml(f"the process that read it answered with {error.text}", _FIX)
    if isinstance(answer, list) and len(answer) == 1:
        return answer[0]
    if isinstance(answer, list) and len(answer) == 2 and all(type(word) is str for word in answer):
        return NotYaml(*answer)
    return NotYaml("the process that read it answered with something else", _FIX)


# ---- the functions below run only in the child


def _answer(
    writer: int, texts: Sequence[bytes], work: Callable[[bytes], object], *, fixed_groups: bool
) -> None:
    confinement.close_all_but(writer)
    try:
        _value(_TRIAL)  # loads all modules, before no file can be opened
    except ImportError:
        for _ in texts:
            write_all(writer, _line([_MISSING, _MISSING_FIX]))
        return
    from nvgraft_specs.documents import DocumentError

    uid, gid = confinement.overflow_ids()
    # Private memory, in pages: the sixth number of proc_pid_statm(5).
    used = int(read_text("/proc/self/statm").split()[5]) * os.sysconf("SC_PAGE_SIZE")
    confinement.limit((*_LIMITS, (syscalls.RLIMIT_DATA, used + _MEMORY)))
    confinement.give_up(writer, uid, gid, fixed_groups=fixed_groups)
    for text in texts:
        try:
            answer = [work(text)]
        except DocumentError as error:
            answer = [error.cause, error.fix]
        except MemoryError:
            answer = ["it needs too much memory", _FIX]
        write_all(writer, _line(answer))


def _value(text: bytes) -> object:
    from nvgraft_specs.yaml_text import load_yaml

    return load_yaml(text, "")


def _line(answer: list[object]) -> bytes:
    import json

    return json.dumps(answer).encode() + b"\n"
