"""Register a runtime of containerd's CRI plugin in ``config.toml``, versions 2 and 3 of its format.

The file is edited as text, so that comments and layout stay: one block between two marks is added
at the end, and removed again. The parsed documents before and after are compared, because text at
the end of a TOML file can have another meaning than intended.
"""

import copy
import glob
import json
import os
import re
from collections.abc import Iterator
from typing import Any

from nvgraft.base import tomltext
from nvgraft_cli.register import installation
from nvgraft_cli.register.change import CannotRegister, ConfigFile, read

DEFAULT_FILE = "/etc/containerd/config.toml"

_NAME = "nvgraft"
_RUNTIME_TYPE = "io.containerd.runc.v2"
_PLUGINS = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}

_BEGIN = (
    "# >>> nvgraft register containerd: `nvgraft unregister containerd` takes this block out,"
    " marks included"
)
_END = "# <<< nvgraft register containerd"
# The newline before the block is ours too: it ends the last line of the file, or is an empty line.
_BLOCK = re.compile(
    rf"\n?^{re.escape(_BEGIN)}\n(.*?)^{re.escape(_END)}\n", re.MULTILINE | re.DOTALL
)

_Table = dict[str, Any]


def add(file: ConfigFile, programs: installation.Programs) -> str:
    """Return ``config.toml`` with the runtime in a block of its own.

    :raises CannotRegister: the file has another version, cannot be extended, or the runtime would
        have no effect.
    """
    text = file.text or ""
    config = _parse(text, file.path)
    # An empty file has version 1 by default, but may get another one.
    addition: _Table = {} if config else {"version": 2}
    version = config.get("version", addition.get("version", 1))
    if not isinstance(version, int) or version not in _PLUGINS:
        hint = (
            "only versions 2 and 3 can be edited; containerd prints this file in a newer version:"
            f" containerd -c {file.path} config dump"
        )
        raise CannotRegister(f"{file.path}: config version {version} | {hint}")
    plugin = _PLUGINS[version]
    _check_effect(config, plugin, file.path, programs)
    section = _table(config, ("plugins", plugin, "containerd"), file.path)
    runtimes = _table(config, ("plugins", plugin, "containerd", "runtimes"), file.path)
    wanted = _runtime(section, runtimes, programs.runtime)
    if _NAME in runtimes:
        if runtimes[_NAME] != wanted:
            raise CannotRegister(
                f"{file.path}: has another runtime {_NAME}"
                " | run nvgraft unregister containerd first"
            )
        return text
    entries = {_NAME: wanted}
    if not runtimes:
        # In containerd 1 a table of runtimes replaces the built-in one, and the CRI plugin needs
        # runc.
        entries = {"runc": {"runtime_type": _RUNTIME_TYPE}, **entries}
    addition |= {"plugins": {plugin: {"containerd": {"runtimes": entries}}}}
    after = f"{text}{chr(10) if text else ''}{_BEGIN}\n{_dump(addition)}{_END}\n"
    try:
        result = tomltext.loads(after)
    except ValueError as error:
        raise CannotRegister(
            f"{file.path}: cannot be extended: {error}"
            " | write plugins as [tables] instead of inline tables and dotted keys"
        ) from error
    if result != _merged(config, addition):
        raise CannotRegister(
            f"{file.path}: the added block would change other settings: nothing was changed"
        )
    return after


def remove(file: ConfigFile) -> str | None:
    """Return ``config.toml`` without the block.

    :raises CannotRegister: the marks were changed, or other settings depend on the block.
    """
    if file.text is None:
        return None
    path, text = file.path, file.text
    config = _parse(text, path)
    blocks = list(_BLOCK.finditer(text))
    if not blocks and _BEGIN not in text and _END not in text:
        if any(
            _NAME in _table(config, ("plugins", plugin, "containerd", "runtimes"), path)
            for plugin in _PLUGINS.values()
        ):
            raise CannotRegister(
                f"{path}: the runtime {_NAME} is outside of the marks of `nvgraft register`"
                " | remove it by hand"
            )
        return text
    if len(blocks) != 1 or (text.count(_BEGIN), text.count(_END)) != (1, 1):
        raise CannotRegister(
            f"{path}: the marks of `nvgraft register` were changed | remove the runtime"
            f" {_NAME} by hand"
        )
    (block,) = blocks
    head, tail = text[: block.start()], text[block.end() :]
    # Lines after the block must not continue the last line before it.
    after = f"{head}\n{tail}" if tail and head and not head.endswith("\n") else head + tail
    ours, left = _parse(block[1], path), _parse(after, path)
    if _without_empty(left) != _without_empty(_subtracted(config, ours)):
        raise CannotRegister(
            f"{path}: lines after the block of `nvgraft register` belong to its last table"
            " | move them above the block, then try again"
        )
    if "version" in ours and left:
        raise CannotRegister(
            f"{path}: the rest of the file needs the line version = {ours['version']} |"
            " move it out of the block"
        )
    return None if not after and file.backup is None else after


def _parse(text: str, path: str) -> _Table:
    try:
        return tomltext.loads(text)
    except ValueError as error:
        raise CannotRegister(f"{path}: not valid TOML: {error}") from error


def _table(config: _Table, names: tuple[str, ...], path: str) -> _Table:
    for depth, name in enumerate(names):
        config = config.get(name, {})
        if not isinstance(config, dict):
            raise CannotRegister(f"{path}: {'.'.join(names[: depth + 1])} is not a table")
    return config


def _strings(config: _Table, name: str) -> list[str]:
    value = config.get(name)
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _check_effect(config: _Table, plugin: str, path: str, programs: installation.Programs) -> None:
    """Refuse a file in which containerd would ignore the runtime."""
    if {plugin, _PLUGINS[2], "cri"}.intersection(_strings(config, "disabled_plugins")):
        hint = (
            "remove it from disabled_plugins; ctr needs no registration:"
            f" ctr run --runc-binary {programs.runtime}"
        )
        raise CannotRegister(
            f"{path}: the CRI plugin, which has the runtimes, is disabled | {hint}"
        )
    if config.get("version") == 3:
        return
    # In containerd 1 a plugin's section in an imported file replaces the one in this file.
    for pattern in _strings(config, "imports"):
        for other in sorted(glob.glob(os.path.join(os.path.dirname(path), pattern))):
            if plugin in _table(_parse(read(other).text or "", other), ("plugins",), other):
                hint = f"run nvgraft register containerd --file {other}"
                raise CannotRegister(
                    f"{path}: the imported {other} has a section of the CRI plugin, which"
                    " may replace"
                    f" the one here | {hint}"
                )


def _runtime(section: _Table, runtimes: _Table, program: str) -> _Table:
    """Return the runtime's table: a copy of the default runtime's with our program, if that is
    runc's.
    """
    for name in (section.get("default_runtime_name", "runc"), "runc"):
        model = runtimes.get(name) if isinstance(name, str) and name != _NAME else None
        if isinstance(model, dict) and model.get("runtime_type") == _RUNTIME_TYPE:
            break
    else:
        model = {"runtime_type": _RUNTIME_TYPE}
    options = model.get("options")
    return {
        **copy.deepcopy(model),
        "options": {**(options if isinstance(options, dict) else {}), "BinaryName": program},
    }


def _merged(config: _Table, addition: _Table) -> _Table:
    merged = dict(config)
    for name, value in addition.items():
        merged[name] = _merged(merged.get(name, {}), value) if isinstance(value, dict) else value
    return merged


def _subtracted(config: _Table, ours: _Table) -> _Table:
    """Return ``config`` without equal values of ``ours``; values that differ were changed and
    stay.
    """
    rest = {}
    for name, value in config.items():
        if isinstance(value, dict) and isinstance(ours.get(name), dict):
            rest[name] = _subtracted(value, ours[name])
        elif name not in ours or ours[name] != value:
            rest[name] = value
    return rest


def _without_empty(config: _Table) -> _Table:
    """Return ``config`` without empty tables, whose headers come and go with their subtables."""
    kept = {
        name: _without_empty(value) if isinstance(value, dict) else value
        for name, value in config.items()
    }
    return {name: value for name, value in kept.items() if value != {}}


def _dump(tables: _Table) -> str:
    """Return nested tables as TOML text, each with a header."""
    return "\n\n".join(_paragraphs(tables, ())) + "\n"


def _paragraphs(table: _Table, path: tuple[str, ...]) -> Iterator[str]:
    rows = [
        f"{_key(name)} = {_value(value)}"
        for name, value in table.items()
        if not isinstance(value, dict)
    ]
    if rows:
        header = [f"[{'.'.join(map(_key, path))}]"] if path else []
        yield "\n".join(header + rows)
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _paragraphs(value, (*path, name))


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)


def _value(value: object) -> str:
    """Return a value of a runtime's table as TOML. Other types fail the comparison afterwards."""
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return str(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
