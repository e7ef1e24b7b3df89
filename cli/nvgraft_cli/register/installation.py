"""The installed programs that a registration names, and the check whether root may run them.

The checks are those of the installer (SECURITY R1, R2): files may have been moved, or their owners
changed, since the installation.
"""

import os
import posixpath
import re
from typing import NamedTuple

from nvgraft_cli.install import launcher
from nvgraft_cli.install.install import FIRST, CannotInstall, owned_by_root
from nvgraft_cli.register.change import CannotRegister
from nvgraft_cli.shell import logs
from nvgraft_specs.names import DEFAULT_PATH, HOOK_TIMEOUT

HOOK = "nvgraft-hook"
RUNTIME = "nvgraft-runtime"

#: The first line of the installer's launchers, and the directory that they put before sys.path.
_FIRST_LINE = re.compile(r"#!(/\S+) -ISB\n")
_BEFORE, _AFTER = map(re.escape, f"sys.path.{FIRST}".split("{directory}"))
_DIRECTORY = re.compile(f'^{_BEFORE}(/[^"]+){_AFTER}$', re.MULTILINE)


class Programs(NamedTuple):
    """The absolute paths of the programs of one installation."""

    hook: str
    runtime: str


def programs(prefix: str) -> Programs:
    """Return the programs of ``prefix``."""
    return Programs(*(f"{prefix.rstrip('/')}/bin/{name}" for name in (HOOK, RUNTIME)))


def hook_entry(path: str) -> dict[str, object]:
    """Return the hook's entry for an OCI configuration.

    It has an explicit env, because a hook without one gets the engine's or the container's: with
    LD_PRELOAD in it, code of the image would run as the host's root.
    """
    return {
        "path": path,
        "args": [HOOK, "prestart"],
        "env": ["PATH=" + ":".join(DEFAULT_PATH)],
        "timeout": HOOK_TIMEOUT,
    }


def check(prefix: str, names: tuple[str, ...]) -> None:
    """Check that programs of ``prefix`` exist, are the installer's, and only root can change them.

    :raises CannotRegister: names the first path that is not so.
    """
    if (
        not prefix.startswith("/")
        or posixpath.normpath(prefix) != (prefix.rstrip("/") or "/")
        or not prefix.isprintable()
    ):
        raise CannotRegister(f"--prefix {prefix!r}: not an absolute path without . and .. parts")
    for name in names:
        _check_launcher(f"{prefix.rstrip('/')}/bin/{name}", prefix)
        logs.debug("checked", program=name, prefix=prefix)


def _check_launcher(path: str, prefix: str) -> None:
    if not os.path.isfile(path):
        raise CannotRegister(
            f"{path}: no such program | run ./dev install PREFIX={prefix}, or name another"
            " prefix with --prefix DIR"
        )
    try:
        owned_by_root(path)
        if not os.access(path, os.X_OK):
            raise CannotRegister(f"{path}: not executable | run ./dev install PREFIX={prefix}")
        with open(path, "rb") as file:
            data = file.read(4096)
        target = launcher.parse(data)
        if target is not None:
            owned_by_root(target.interpreter)
            _check_launcher(target.script, prefix)
            return
        text = data.decode("utf-8", "replace")
        first, added = _FIRST_LINE.match(text), _DIRECTORY.search(text)
        if first is None or added is None:
            raise CannotRegister(
                f"{path}: not a launcher of ./dev install | run ./dev install PREFIX={prefix}"
            )
        owned_by_root(first[1])
        for directory, _, names in os.walk(added[1]):
            for name in ("", *names):
                owned_by_root(posixpath.join(directory, name).rstrip("/"))
    except CannotInstall as error:
        raise CannotRegister(str(error)) from error
    except OSError as error:
        raise CannotRegister(f"{path}: {error.strerror}") from error
