"""Read CDI specifications: files in JSON or YAML, of which nobody knows who wrote them.

:mod:`nvgraft.cdi.checking` says what a specification may contain. An error names the file and the
line.
"""

from __future__ import annotations

import errno

from nvgraft.base import files, jsontext
from nvgraft.base._os import os
from nvgraft.base.errors import LINE_LIMIT, printable
from nvgraft.base.values import Value
from nvgraft.cdi.checking import Invalid, spec_of
from nvgraft.cdi.yaml_child import NotYaml
from nvgraft.system.trusted import Untrusted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Protocol

    from nvgraft.cdi.edits import CdiSpec

    class Yaml(Protocol):
        """Functions as those of :mod:`nvgraft.cdi.yaml_child`."""

        def convert(self, texts: Sequence[bytes], /) -> list[object]: ...

        def line_of(self, text: bytes, members: Sequence[str | int], /) -> int: ...


#: Bytes of a file. A specification of 64 GPUs with eight MIG devices each has about 1 MiB.
LIMIT = 4 << 20

_AGAIN = "write the file again: it may be truncated"


class SpecificationError(Exception):
    """A specification that cannot be used.

    :param path: its file.
    :param line: the line of the fault, or 0 if the cause names it or there is none.
    :param cause: what is wrong.
    :param fix: what to do, as an instruction.
    """

    def __init__(self, path: str, line: int, cause: str, fix: str) -> None:
        super().__init__(path, line, cause, fix)
        self.path = path
        self.line = line
        self.cause = cause
        self.fix = fix

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}" if self.line else self.path
        return printable(f"{place}: {self.cause} | {self.fix}")[:LINE_LIMIT]


class SpecificationFile(Value):
    """A specification that was read, and its file."""

    def __init__(self, path: str, spec: CdiSpec) -> None:
        self.path = path
        self.spec = spec


def read_specification(path: str) -> CdiSpec:
    """Return the specification in a file.

    :raises SpecificationError: it cannot be used.
    :raises Refusal: it is YAML, and python-prctl is missing, without which no child is confined.
    """
    (found,) = read_specifications([path])
    if isinstance(found, SpecificationError):
        raise found
    return found.spec


def read_specifications(
    paths: Iterable[str],
    open_file: Callable[[str], int] = files.open_file,
    yaml: Yaml | None = None,
) -> list[SpecificationFile | SpecificationError]:
    """Return the specification in each file, or what is wrong with it.

    :param open_file: opens a file for reading. ``open_trusted`` refuses a file that users other
        than root can write.
    :param yaml: converts YAML; by default in a child, and what was converted before is kept.
    :raises Refusal: as :func:`read_specification`.
    """
    return parse_specifications([_text(path, open_file) for path in paths], yaml)


def parse_specifications(
    texts: Sequence[tuple[str, bytes] | SpecificationError], yaml: Yaml | None = None
) -> list[SpecificationFile | SpecificationError]:
    """Return the specification in each text, or what is wrong with it.

    :param texts: the path to name in errors, and the bytes; an error is returned as it is.
    :param yaml: as for :func:`read_specifications`.
    """
    values = [_json(*text) if isinstance(text, tuple) else text for text in texts]
    rest = [index for index, value in enumerate(values) if value is _YAML]
    if rest:
        if yaml is None:
            from nvgraft.cdi import kept_yaml

            yaml = kept_yaml
        raws = [text[1] for index in rest if isinstance(text := texts[index], tuple)]
        for index, value in zip(rest, yaml.convert(raws), strict=True):
            values[index] = value
    return [
        _specification(*text, value, yaml if index in rest else None)
        if isinstance(text, tuple)
        else text
        for index, (text, value) in enumerate(zip(texts, values, strict=True))
    ]


#: The value of a text that is not JSON.
_YAML = object()


def _text(path: str, open_file: Callable[[str], int]) -> tuple[str, bytes] | SpecificationError:
    try:
        fd = open_file(path)
        try:
            return path, files.read_fd(fd, LIMIT)
        finally:
            os.close(fd)
    except Untrusted as problem:
        return SpecificationError(path, 0, f"not used: {problem}", problem.hint)
    except OSError as error:
        fix = "make it a file that this program can read, or remove it"
        if error.errno == errno.EFBIG:
            fix = f"a specification has at most {LIMIT >> 20} MiB: {fix}"
        return SpecificationError(path, 0, f"cannot be read: {files.reason(error)}", fix)


def _json(path: str, raw: bytes) -> object:
    """Return the value of a JSON text, _YAML for another text, or the error."""
    if raw.lstrip()[:1] != b"{":
        return _YAML
    try:
        return jsontext.loads(raw, LIMIT)
    except jsontext.JsonError as error:
        # A mapping of YAML can begin in the same way.
        if not path.endswith(".json"):
            return _YAML
        return SpecificationError(path, 0, f"not JSON: {error.text}", f"{error.hint}: {_AGAIN}")


def _specification(
    path: str, raw: bytes, value: object, yaml: Yaml | None
) -> SpecificationFile | SpecificationError:
    if isinstance(value, SpecificationError):
        return value
    try:
        if isinstance(value, NotYaml):
            return SpecificationError(path, 0, value.cause, value.fix)
        if not isinstance(value, dict):
            raise Invalid((), f"is {jsontext.kind(value)} instead of object", _AGAIN)
        return SpecificationFile(path, spec_of(value))
    except Invalid as fault:
        if yaml is not None:
            line = yaml.line_of(raw, fault.members)
        else:
            from nvgraft.cdi.json_lines import line_of

            line = line_of(raw, fault.members)
        return SpecificationError(path, line, f"{_place(fault.members)}: {fault.cause}", fault.fix)


def _place(members: Sequence[str | int]) -> str:
    place = "".join(
        f"[{member}]" if isinstance(member, int) else f".{member}" for member in members
    )
    return place.removeprefix(".") or "the document"
