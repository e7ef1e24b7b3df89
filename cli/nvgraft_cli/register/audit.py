"""Check an existing registration of a hook against the rules of ``nvgraft register``.

A registration is an entry of config.json (path, args, env, timeout) and the stage that lists it.
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

#: At other stages a hook runs in the container's namespaces or with its environment (SECURITY,
#: section 1).
STAGES = ("prestart", "createRuntime")

_PATH = "PATH=" + ":".join(DEFAULT_PATH)
#: Python's options: isolated, without site, without writing byte code.
_WANTED = "ISB"


class Problem(NamedTuple):
    """One violation of a rule: the member of the entry (or ``stage``), the problem and the fix."""

    member: str
    text: str
    fix: str


def problems(hook: Mapping[str, object], stage: str) -> list[Problem]:
    """Return all violations of an entry under ``stage``; none for those that nvgraft writes."""
    found = []
    if stage not in STAGES:
        fix = f"list it under {' or '.join(STAGES)}"
        found.append(
            Problem(
                "stage",
                f"{stage}: hooks of this stage run inside the container or with its environment",
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
            "no variable is set: the hook gets the runtime's environment, or the container's"
            " with its LD_PRELOAD"
        )
        return [Problem("env", text, f'set "env": ["{_PATH}"]')]
    if not isinstance(env, list) or not all(
        isinstance(entry, str) and "=" in entry for entry in env
    ):
        return [Problem("env", "not a list of NAME=VALUE", f'set "env": ["{_PATH}"]')]
    names = [entry.partition("=")[0] for entry in env]
    return [
        Problem("env", f"{name} is set: it makes the hook use foreign files", f"remove {name}")
        for name in dict.fromkeys(names)
        if name in LOADER_VARIABLES or name.startswith("PYTHON")
    ]


def _timeout(timeout: object) -> list[Problem]:
    fix = f'set "timeout": {HOOK_TIMEOUT}'
    if type(timeout) is not int or timeout <= 0:
        return [
            Problem(
                "timeout",
                "no timeout is set: a hook that hangs blocks the container's start forever",
                fix,
            )
        ]
    if timeout <= DEADLINE:
        text = (
            f"{timeout} s: the runtime would kill the hook before it can undo its work,"
            f" which it does after {DEADLINE} s"
        )
        return [Problem("timeout", text, fix)]
    return []


def _arguments(args: object) -> list[Problem]:
    # nvgraft-runtime calls the hook with create-symlinks, too (docs/decisions/0052).
    if isinstance(args, list) and not {"prestart", "create-symlinks"}.isdisjoint(
        map(str, args[1:])
    ):
        return []
    return [
        Problem(
            "args",
            "prestart is missing: the hook does nothing, or prints its usage",
            'set "args": ["nvgraft-hook", "prestart"]',
        )
    ]


def _path(path: object) -> list[Problem]:
    if not isinstance(path, str) or not path.startswith("/"):
        return [
            Problem(
                "path",
                "not an absolute path: its meaning depends on the caller",
                "write the absolute path",
            )
        ]
    try:
        owned_by_root(path)
        # owned_by_root checks the target of a link as well.
        with open(path, "rb") as file:
            data = file.read(4096)
    except CannotInstall as error:
        return [Problem("path", error.cause, error.fix)]
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
    fix = "register the nvgraft-hook that ./dev install writes, not another script"
    name = posixpath.basename(interpreter)
    if not interpreter.startswith("/") or name == "env":
        return [
            Problem(
                "path",
                "its first line searches the interpreter in PATH:"
                f" {f'{interpreter} {options}'.strip()}",
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
                    f"its Python runs without {', '.join(missing)}: variables and"
                    " directories can inject code",
                    fix,
                )
            )
    else:
        found.append(
            Problem(
                "path",
                f"a script of {interpreter}: what it starts cannot be checked",
                fix,
            )
        )
    try:
        owned_by_root(interpreter)
    except CannotInstall as error:
        found.append(Problem("path", error.cause, error.fix))
    return found
