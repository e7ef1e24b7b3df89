"""Read the text of a YAML document within bounds, with PyYAML, and name what is wrong with it.

The value is what JSON could have said: a document has no language tags, no timestamps and no member
twice. Aliases and merge keys are followed within the bounds of the whole document, so that a page
of them cannot expand to more data than fits into memory.
"""

from __future__ import annotations

import re

from nvgraft_specs.documents import DEPTH_LIMIT, SIZE_LIMIT, VALUE_LIMIT, DocumentError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

#: A number that Python does not convert. One to the base 60 (``1:59:59``) takes a time that grows
#: with the square of its length.
_LONG_NUMBER = re.compile(r"[-+0-9:_.]{4000,}")

_TAG = "tag:yaml.org,2002:"
_FIX = "write the file again: it may be truncated"


class _Fault(Exception):
    """What is wrong at a place of the document."""

    def __init__(self, cause: str, mark: Any) -> None:
        super().__init__(cause)
        self.cause = cause
        self.mark = mark


def load_yaml(raw: bytes, path: str) -> Any:
    """Return the value of a YAML text.

    :param path: the path to name in errors.
    :raises DocumentError: when it is not YAML, too large or too deep, has a member twice, or
        something that JSON does not have.
    """

    def load() -> Any:
        node = _compose(raw)
        return None if node is None else _Values().value(node, 0)

    return _explained(load, path)


def load_yaml_stream(raw: bytes, path: str) -> list[Any]:
    """Return the values of the documents of a YAML text, which ``---`` separates; empty ones are
    left out. The bounds count for all of them together.

    :raises DocumentError: see :func:`load_yaml`.
    """

    def load() -> list[Any]:
        import yaml

        _check_bounds(raw)
        values = _Values()
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        found = [values.value(node, 0) for node in yaml.compose_all(raw, loader)]
        return [value for value in found if value is not None]

    loaded: list[Any] = _explained(load, path)
    return loaded


def _explained(load: Callable[[], Any], path: str) -> Any:
    import yaml

    try:
        return load()
    except _Fault as fault:
        cause, mark = fault.cause, fault.mark
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        cause = " ".join(str(getattr(error, "problem", None) or error).split()).lower()
    except ValueError as error:
        cause, mark = str(error), None
    where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
    raise DocumentError(path, "", f"not YAML: {cause}{where}", _FIX) from None


def line_of(raw: bytes, members: Sequence[str | int]) -> int:
    """Return the line of a value, or of the last part on the way to it that exists, in a text that
    :func:`load_yaml` accepts.

    :param members: the names and indices that lead to the value.
    """
    import yaml

    node = _compose(raw)
    line = 0
    for member in members:
        if isinstance(node, yaml.MappingNode):
            pairs = [pair for pair in node.value if pair[0].value == member]
            if not pairs:
                break
            name, node = pairs[-1]
            line = name.start_mark.line
        elif isinstance(node, yaml.SequenceNode) and isinstance(member, int):
            node = node.value[member]
            line = node.start_mark.line
        else:
            break
    return int(line) + 1


def _compose(raw: bytes) -> Any:
    """Return the tree of the document's nodes, in which an alias is the node that it stands for.

    :raises _Fault: it has too many nodes, or is too deep.
    """
    import yaml

    _check_bounds(raw)
    return yaml.compose(raw, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def _check_bounds(raw: bytes) -> None:
    """Check the number of nodes of a text and its depth.

    :raises _Fault: there are too many, or it is too deep.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    too_deep = f"nested too deeply: more than {DEPTH_LIMIT} levels"
    depth = 0
    try:
        for number, event in enumerate(yaml.parse(raw, loader)):
            if number > VALUE_LIMIT:
                raise _Fault(f"it has more than {VALUE_LIMIT:,} values", event.start_mark)
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            # yaml.compose() recurses in C for each level: thousands of levels end the process.
            if depth > DEPTH_LIMIT:
                raise _Fault(too_deep, event.start_mark)
            if isinstance(event, yaml.ScalarEvent) and _LONG_NUMBER.fullmatch(event.value):
                raise _Fault("a number has too many digits", event.start_mark)
    except yaml.MarkedYAMLError as error:
        # libyaml reads ahead in a line, and from 1,000 levels on newer releases refuse it there.
        if "nesting depth" not in (error.problem or ""):
            raise
        raise _Fault(too_deep, error.problem_mark) from None


class _Values:
    """Make values of nodes. Everything that an alias repeats counts again."""

    def __init__(self) -> None:
        import yaml

        self._yaml = yaml
        scalars = yaml.constructor.SafeConstructor()
        self._scalars = {
            f"{_TAG}null": scalars.construct_yaml_null,
            f"{_TAG}bool": scalars.construct_yaml_bool,
            f"{_TAG}int": scalars.construct_yaml_int,
            f"{_TAG}float": scalars.construct_yaml_float,
        }
        self._values = 0
        self._size = 0

    def value(self, node: Any, depth: int) -> Any:
        """Return the value of a node at a depth of the document."""
        self._values += 1
        if self._values > VALUE_LIMIT:
            cause = f"it has more than {VALUE_LIMIT:,} values, as its aliases are followed"
            raise _Fault(cause, node.start_mark)
        if depth > DEPTH_LIMIT:
            cause = (
                f"nested too deeply: more than {DEPTH_LIMIT} levels, as its aliases are followed"
            )
            raise _Fault(cause, node.start_mark)
        if isinstance(node, self._yaml.SequenceNode) and node.tag == f"{_TAG}seq":
            return [self.value(item, depth + 1) for item in node.value]
        if isinstance(node, self._yaml.MappingNode) and node.tag == f"{_TAG}map":
            return self._members(node, depth + 1)
        if isinstance(node, self._yaml.ScalarNode):
            return self._scalar(node)
        raise _Fault(f"the tag {node.tag} is not supported", node.start_mark)

    def _members(self, node: Any, depth: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for name, item in node.value:
            if not isinstance(name, self._yaml.ScalarNode):
                raise _Fault("the name of a member is not a string", name.start_mark)
            if name.tag == f"{_TAG}merge":
                for other in item.value if isinstance(item, self._yaml.SequenceNode) else [item]:
                    if not isinstance(other, self._yaml.MappingNode):
                        raise _Fault("a merge key has no members", other.start_mark)
                    merged = self.value(other, depth) | merged
                continue
            self._count(name)
            if name.value in members:
                raise _Fault(f"duplicate member {name.value!r}", name.start_mark)
            members[name.value] = self.value(item, depth)
        return merged | members

    def _scalar(self, node: Any) -> Any:
        self._count(node)
        construct = self._scalars.get(node.tag)
        if construct is None:
            if node.tag in (f"{_TAG}str", f"{_TAG}timestamp", f"{_TAG}value"):
                return node.value
            raise _Fault(f"the tag {node.tag} is not supported", node.start_mark)
        try:
            value = construct(node)
        except ValueError:
            raise _Fault(f"{node.value!r} is not a value of its tag", node.start_mark) from None
        except KeyError:
            raise _Fault(f"{node.value!r} is not true or false", node.start_mark) from None
        if value in (float("inf"), float("-inf")) or value != value:
            raise _Fault(f"{node.value!r} is not a number", node.start_mark)
        return value

    def _count(self, node: Any) -> None:
        self._size += len(node.value)
        if self._size > SIZE_LIMIT:
            cause = f"it has more than {SIZE_LIMIT >> 20} MiB, as its aliases are followed"
            raise _Fault(cause, node.start_mark)
