"""Register the hook for Podman and CRI-O: a file in a hooks directory (oci-hooks(5)).

docs/decisions/0008 has the reason why ``when`` is ``always``.
"""

import glob
import json
import os
import posixpath

from nvgraft.base import jsontext, tomltext
from nvgraft_cli.register import bundle, installation
from nvgraft_cli.register.change import LIMIT, CannotRegister, ConfigFile, read

FILE = "nvgraft.json"

#: The directory that both engines read by default.
_DEFAULT_DIRECTORY = "/usr/share/containers/oci/hooks.d"

#: Engine -> its configuration files, of which later ones win, and the table with ``hooks_dir``.
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
    """Return the file to write for ``engine``, in a hooks directory that it reads.

    :raises CannotRegister: a configuration file cannot be parsed.
    """
    patterns, table = _CONFIGURATION[engine]
    directories = [_DEFAULT_DIRECTORY]
    for path in (path for pattern in patterns for path in sorted(glob.glob(pattern))):
        section: object = _toml(path)
        for name in (*table, "hooks_dir"):
            section = section.get(name) if isinstance(section, dict) else None
        if isinstance(section, list) and section and all(isinstance(item, str) for item in section):
            directories = section
    # Later directories have precedence.
    directory = _DEFAULT_DIRECTORY if _DEFAULT_DIRECTORY in directories else directories[-1]
    return posixpath.join(directory, FILE)


def _toml(path: str) -> dict[str, object]:
    try:
        return tomltext.loads(read(path).text or "")
    except ValueError as error:
        raise CannotRegister(
            f"{path}: {error} | name a file in the hooks directory with --file FILE"
        ) from error


def entry(path: str) -> dict[str, object]:
    """Return the registration of the hook ``path``."""
    return {
        "version": "1.0.0",
        "hook": installation.hook_entry(path),
        "when": {"always": True},
        "stages": ["prestart"],
    }


def add(file: ConfigFile, programs: installation.Programs, engine: str) -> str:
    """Return the content of the file.

    :raises CannotRegister: the file has other content, or another file beside it registers a hook
        for GPUs.
    """
    if not file.path.endswith(".json"):
        raise CannotRegister(f"{file.path}: engines read *.json only")
    wanted = entry(programs.hook)
    if file.text is not None:
        if _loads(file.text, file.path) != wanted:
            raise CannotRegister(
                f"{file.path}: has content that nvgraft did not write"
                f" | run nvgraft unregister {engine}, or name another file with --file FILE"
            )
        return file.text
    for path in sorted(glob.glob(glob.escape(os.path.dirname(file.path) or ".") + "/*.json")):
        other = _loads(read(path).text or "", path)
        if isinstance(other, dict):
            # In version 0.1.0 of the format, "hook" is the program's path.
            hook = other.get("hook")
            bundle.refuse_rival({"path": hook} if isinstance(hook, str) else hook, path, engine)
    return json.dumps(wanted, indent=2) + "\n"


def remove(file: ConfigFile) -> str | None:
    """Return None, for no file.

    :raises CannotRegister: the file registers another program.
    """
    if file.text is None:
        return None
    content = _loads(file.text, file.path)
    if not isinstance(content, dict) or bundle.program(content.get("hook")) != installation.HOOK:
        raise CannotRegister(
            f"{file.path}: does not register {installation.HOOK}: nothing was changed"
        )
    return None


def _loads(text: str, path: str) -> object:
    try:
        return jsontext.loads(text.encode(), LIMIT)
    except jsontext.JsonError as error:
        raise CannotRegister(f"{path}: cannot be parsed: {error.text} | {error.hint}") from error
