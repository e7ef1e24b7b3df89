"""Podman and CRI-O: a file of our own in a hooks directory, as oci-hooks(5) describes it.

Why ``when`` is ``always`` and nothing else: docs/decisions/0008.
"""

import glob
import json
import os
import posixpath

from nvgraft.base import tomltext

from . import bundle, installation
from .change import CannotRegister, Document, read

FILE = "nvgraft.json"

#: The one directory that both engines read unless they are told otherwise.
_DEFAULT_DIRECTORY = "/usr/share/containers/oci/hooks.d"

#: Engine -> the files of its configuration, the later one wins, and the table with ``hooks_dir``.
_CONFIGURATION = {
    "podman": (
        (
            "/usr/share/containers/containers.conf",
            "/etc/containers/containers.conf",
            "/etc/containers/containers.conf.d/*.conf",
        ),
        ("engine",),
    ),
    "crio": (("/etc/crio/crio.conf", "/etc/crio/crio.conf.d/*"), ("crio", "runtime")),
}


def default_file(engine: str) -> str:
    """Return the file to write for ``engine``: in the default directory, unless the engine is configured to read others.

    :raises CannotRegister: when a configuration file cannot be parsed.
    """
    patterns, table = _CONFIGURATION[engine]
    directories = [_DEFAULT_DIRECTORY]
    for path in (path for pattern in patterns for path in sorted(glob.glob(pattern))):
        section: object = _toml(path)
        for name in (*table, "hooks_dir"):
            section = section.get(name) if isinstance(section, dict) else None
        if isinstance(section, list) and section and all(isinstance(item, str) for item in section):
            directories = section
    # Of several directories the last one has precedence.
    directory = _DEFAULT_DIRECTORY if _DEFAULT_DIRECTORY in directories else directories[-1]
    return posixpath.join(directory, FILE)


def _toml(path: str) -> dict[str, object]:
    try:
        return tomltext.loads(read(path).text or "")
    except ValueError as error:
        raise CannotRegister(
            f"{path}: {error} | name the hooks directory's file with --file FILE"
        ) from error


def entry(path: str) -> dict[str, object]:
    """Return the registration of the hook ``path``."""
    return {
        "version": "1.0.0",
        "hook": installation.hook_entry(path),
        "when": {"always": True},
        "stages": ["prestart"],
    }


def add(document: Document, programs: installation.Programs, engine: str) -> str:
    """Return the whole file.

    :raises CannotRegister: when it has other content, or another file beside it registers a hook for GPUs.
    """
    if not document.path.endswith(".json"):
        raise CannotRegister(f"{document.path}: engines read *.json only")
    wanted = entry(programs.hook)
    if document.text is not None:
        if _loads(document.text, document.path) != wanted:
            raise CannotRegister(
                f"{document.path}: has other content | nvgraft unregister {engine}, or name another file with --file FILE"
            )
        return document.text
    for path in sorted(glob.glob(glob.escape(os.path.dirname(document.path) or ".") + "/*.json")):
        other = _loads(read(path).text or "", path)
        if isinstance(other, dict):
            # Version 0.1.0 of the format has the program's path itself under "hook".
            hook = other.get("hook")
            bundle.refuse_rival({"path": hook} if isinstance(hook, str) else hook, path, engine)
    return json.dumps(wanted, indent=2) + "\n"


def remove(document: Document) -> str | None:
    """Return what is left of the file: nothing, if it registers nvgraft-hook.

    :raises CannotRegister: when it registers something else.
    """
    if document.text is None:
        return None
    content = _loads(document.text, document.path)
    if not isinstance(content, dict) or bundle.program(content.get("hook")) != installation.HOOK:
        raise CannotRegister(
            f"{document.path}: does not register {installation.HOOK}: left as it is"
        )
    return None


def _loads(text: str, path: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CannotRegister(f"{path}: cannot be parsed: {error}") from error
