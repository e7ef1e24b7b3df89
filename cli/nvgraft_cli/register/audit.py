"""What is wrong with a registration, whoever made it: the rules of ``nvgraft register``, asked of an entry that is there.

An entry is the hook as config.json has it (path, args, env, timeout) and the stage that it is listed under. Finding entries
is the caller's business.
"""

import os
import posixpath
import re
from collections.abc import Mapping
from typing import NamedTuple

from nvgraft.system.launch import DEADLINE, LOADER_VARIABLES
from nvgraft_cli.install import launcher
from nvgraft_cli.install.install import CannotInstall, owned_by_root
from nvgraft_specs.names import DEFAULT_PATH, HOOK_TIMEOUT

#: At the other stages a hook is in the container's namespaces, or is given the container's environment (SECURITY, section 1).
STAGES = ("prestart", "createRuntime")

_PATH = "PATH=" + ":".join(DEFAULT_PATH)
#: In Python's options: isolated, without site, without writing byte code.
_WANTED = "ISB"


class Problem(NamedTuple):
    """One violation: the member of the entry it is about (``stage`` for its place), what is wrong, and what to do."""

    member: str
    text: str
    fix: str


def problems(hook: Mapping[str, object], stage: str) -> list[Problem]:
    """Return every violation of ``hook``, an entry under ``stage``; none for what ``nvgraft register`` writes."""
    found = []
    if stage not in STAGES:
        fix = f"list it under {' or '.join(STAGES)}"
        found.append(
            Problem(
                "stage",
                f"{stage}: there a hook runs inside the container, or in its environment",
                fix,
            )
        )
    return [
        *found,
        *_environment(hook.get("env")),
        *_timeout(hook.get("timeout")),
        *_arguments(hook.get("args")),
        *_path(hook.get("path")),
    ]


def _environment(env: object) -> list[Problem]:
    if not env:
        text = (
            "none is set: the runtime hands down its own, or the container's with LD_PRELOAD in it"
        )
        return [Problem("env", text, f'set "env": ["{_PATH}"]')]
    if not isinstance(env, list) or not all(
        isinstance(entry, str) and "=" in entry for entry in env
    ):
        return [Problem("env", "not a list of NAME=VALUE", f'set "env": ["{_PATH}"]')]
    names = [entry.partition("=")[0] for entry in env]
    return [
        Problem(
            "env", f"{name} is set: it has the hook run or read foreign files", f"take {name} out"
        )
        for name in dict.fromkeys(names)
        if name in LOADER_VARIABLES or name.startswith("PYTHON")
    ]


def _timeout(timeout: object) -> list[Problem]:
    fix = f'set "timeout": {HOOK_TIMEOUT}'
    if type(timeout) is not int or timeout <= 0:
        return [
            Problem(
                "timeout",
                "none is set: a hook that hangs holds the start of its container up for ever",
                fix,
            )
        ]
    if timeout <= DEADLINE:
        text = f"{timeout} s: the runtime would kill the hook before it gives up and takes its work back, after {DEADLINE} s"
        return [Problem("timeout", text, fix)]
    return []


def _arguments(args: object) -> list[Problem]:
    # nvgraft-runtime has the hook make links, too (docs/decisions/0052).
    if isinstance(args, list) and not {"prestart", "create-symlinks"}.isdisjoint(
        map(str, args[1:])
    ):
        return []
    return [
        Problem(
            "args",
            "do not say prestart: the hook does nothing, or ends with its usage",
            'set "args": ["nvgraft-hook", "prestart"]',
        )
    ]


def _path(path: object) -> list[Problem]:
    if not isinstance(path, str) or not path.startswith("/"):
        return [
            Problem(
                "path",
                "not an absolute path: it depends on who starts the hook",
                "write the absolute path",
            )
        ]
    try:
        owned_by_root(path)
        # What a link leads to is looked at as well, by the same rule.
        with open(path, "rb") as file:
            data = file.read(4096)
    except CannotInstall as error:
        text, _, fix = str(error).partition(" | ")
        return [Problem("path", text, fix)]
    except OSError as error:
        return [
            Problem("path", f"{path}: {error.strerror}", "install the hook, or correct the path")
        ]
    found = (
        []
        if os.access(path, os.X_OK)
        else [Problem("path", f"{path}: not executable", f"chmod a+x {path}")]
    )
    target = launcher.parse(data)
    if target is not None:
        return [*found, *_interpreter(target.interpreter, "-ISB"), *_path(target.script)]
    if data.startswith(b"#!"):
        words = data[2:].split(b"\n", 1)[0].decode("utf-8", "replace").split(None, 1)
        return [
            *found,
            *_interpreter(words[0] if words else "", words[1] if len(words) > 1 else ""),
        ]
    return found


def _interpreter(interpreter: str, options: str) -> list[Problem]:
    fix = "register the nvgraft-hook that ./dev install writes, not a script of pip's or your own"
    name = posixpath.basename(interpreter)
    if not interpreter.startswith("/") or name == "env":
        return [
            Problem(
                "path",
                f"its first line looks the interpreter up: {f'{interpreter} {options}'.strip()}",
                fix,
            )
        ]
    found = []
    if name.startswith("python"):
        given = "".join(re.findall(r"(?:^|\s)-([A-Za-z]+)", options))
        missing = [f"-{letter}" for letter in _WANTED if letter not in given]
        if missing:
            found.append(
                Problem(
                    "path",
                    f"its Python runs without {', '.join(missing)}: variables and directories put code into it",
                    fix,
                )
            )
    else:
        found.append(
            Problem(
                "path",
                f"a script of {interpreter}: what it starts with which environment cannot be told",
                fix,
            )
        )
    try:
        owned_by_root(interpreter)
    except CannotInstall as error:
        text, _, hint = str(error).partition(" | ")
        found.append(Problem("path", text, hint))
    return found
