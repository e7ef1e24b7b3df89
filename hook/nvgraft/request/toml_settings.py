"""The text of config.toml as settings: the keys that it sets, with their types checked.

Only a start whose config.toml is not kept yet loads this module, and with it the TOML parser. The
words of errors are the reference's (reference behaviour 2).
"""

from __future__ import annotations

from nvgraft.base import tomltext
from nvgraft.base.errors import Refusal
from nvgraft.request.config_keys import ERROR, FILE_ERROR, KEYS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def settings_from_toml(data: bytes, path: str) -> dict[str, bool | int | str | list[str]]:
    """Return the settings of the file: attribute of :class:`Config` -> value. Unknown keys are
    ignored.

    :param path: the file, for errors.
    :raises Refusal: "failed to load specified config file" (syntax), "failed to unmarshal config"
        (type).
    """
    try:
        text = data.decode()
        tables = tomltext.loads(text)
    except UnicodeDecodeError as error:
        before = data[: error.start]
        raise _syntax(
            path, before.count(b"\n") + 1, error.start - before.rfind(b"\n"), "invalid UTF-8"
        ) from None
    except ValueError as error:
        problem, at, place = str(error).rpartition(" (at ")
        if not at:
            raise _syntax(path, 1, 1, str(error), f"correct {path}") from None
        words = place.strip("line )").replace(", column", "").split()
        numbers = [int(word) for word in words if word.isdigit()]
        if len(numbers) != 2:  # the error is at the end of the document
            numbers = [text.count("\n") + 1, len(text) - text.rfind("\n")]
        line, column = numbers
        raise _syntax(path, line, column, problem[:1].lower() + problem[1:]) from None
    settings: dict[str, bool | int | str | list[str]] = {}
    for table, key, attribute, default in KEYS:
        keys = _table(tables, table, path, text)
        if key in keys:
            settings[attribute] = _converted(keys[key], default, (*table, key), path, text)
    return settings


def _syntax(path: str, line: int, column: int, problem: str, hint: str = "") -> Refusal:
    return Refusal(
        "",
        f"{FILE_ERROR}({line}, {column}): {problem}",
        hint or f"correct line {line} of {path}",
    )


def _table(
    tables: Mapping[str, object], path_in_file: tuple[str, ...], path: str, text: str
) -> Mapping[str, object]:
    table: object = tables
    for depth, name in enumerate(path_in_file, 1):
        assert isinstance(table, dict)
        table = table.get(name, {})
        if not isinstance(table, dict):
            raise _wrong_type(table, "a table", path_in_file[:depth], path, text)
    assert isinstance(table, dict)
    return table


def _converted(
    value: object, default: object, name: tuple[str, ...], path: str, text: str
) -> bool | int | str | list[str]:
    if isinstance(default, tuple):
        if not isinstance(value, list):
            raise _wrong_type(value, "[]string", name, path, text)
        for item in value:
            _converted(item, "", name, path, text)
        return value
    if isinstance(value, str) and "\0" in value:
        raise Refusal(
            "",
            _unmarshal(name, text) + "the value contains a NUL character",
            f"correct {'.'.join(name)} in {path}",
        )
    if type(value) is not type(default) or not isinstance(value, (int, str)):
        expected = {bool: "bool", int: "int64"}.get(type(default), "string")
        raise _wrong_type(value, expected, name, path, text)
    if type(value) is int and value < 1:
        raise Refusal(
            "",
            f"{_unmarshal(name, text)}{'.'.join(name)} is {value}",
            f"set {'.'.join(name)} in {path} to 1 or more",
        )
    return value


#: Go's name of a type -> how a hint calls it.
_IN_WORDS = {"[]string": "a list of strings", "int64": "a whole number"}


def _wrong_type(
    value: object, expected: str, name: tuple[str, ...], path: str, text: str
) -> Refusal:
    go_type, text_of_value = "time.Time", str(value)
    for python_type, name_in_go in (
        (bool, "bool"),
        (int, "int64"),
        (float, "float64"),
        (str, "string"),
        (list, "[]interface {}"),
        (dict, "*toml.Tree"),
    ):
        if isinstance(value, python_type):
            go_type = name_in_go
            break
    if isinstance(value, bool):
        text_of_value = text_of_value.lower()
    elif isinstance(value, list):
        text_of_value = f"[{' '.join(map(str, value))}]"
    hint = f"{'.'.join(name)} in {path} must be {_IN_WORDS.get(expected, expected)}"
    return Refusal(
        "", f"{_unmarshal(name, text)}Can't convert {text_of_value}({go_type}) to {expected}", hint
    )


def _unmarshal(name: tuple[str, ...], text: str) -> str:
    line, column = _position(text, name)
    return f"{ERROR}failed to unmarshal config: ({line}, {column}): "


def _position(text: str, name: tuple[str, ...]) -> tuple[int, int]:
    """Return the line and column of a key or table header; (1, 1) if it is written in another form
    (inline tables).
    """
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.split("\n"), 1):
        bare = line.strip()
        if bare.startswith("["):
            table = key = _dotted(bare.partition("]")[0].strip("["))
        elif "=" in bare and not bare.startswith("#"):
            key = (*table, *_dotted(bare.partition("=")[0]))
        else:
            continue
        if key == name:
            return number, len(line) - len(line.lstrip()) + 1
    return 1, 1


def _dotted(text: str) -> tuple[str, ...]:
    return tuple(part.strip(" \t\"'") for part in text.split("."))
