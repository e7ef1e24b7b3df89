"""Register the hook in the ``config.json`` of an OCI bundle, only at stage prestart (SECURITY
R1).
"""

import posixpath

from nvgraft_cli.register import installation
from nvgraft_cli.register.change import CannotRegister, ConfigFile
from nvgraft_cli.register.jsonfile import Json, Path, parsed_backup

_PRESTART = ("hooks", "prestart")

#: Other hooks that configure GPU containers. Two of them would configure a container twice.
_RIVALS = ("nvidia-container-runtime-hook", "nvidia-container-toolkit")


def add(file: ConfigFile, programs: installation.Programs) -> str:
    """Return ``config.json`` with the hook as the last prestart hook.

    :raises CannotRegister: there is no such file, or it has another hook for GPUs.
    """
    if file.text is None:
        raise CannotRegister(f"{file.path}: no such file | name an OCI bundle with --bundle DIR")
    config = Json(file.text, file.path)
    if not isinstance(config.get(("ociVersion",)), str):
        raise CannotRegister(
            f"{file.path}: not an OCI configuration: it has no ociVersion"
            " | name an OCI bundle with --bundle DIR"
        )
    wanted = installation.hook_entry(programs.hook)
    for hook in _hooks(config, file.path):
        if hook == wanted:
            return file.text
        refuse_rival(hook, file.path, "runc")
    return config.append(_PRESTART, wanted).text


def refuse_rival(hook: object, path: str, engine: str) -> None:
    """Refuse to register if the entry ``hook`` of the file ``path`` configures GPU containers as
    well.

    :raises CannotRegister: names the program of the entry.
    """
    name = program(hook)
    if name == installation.HOOK:
        raise CannotRegister(
            f"{path}: registers {name} in another form | run nvgraft unregister {engine}, then"
            " register it again"
        )
    if name in _RIVALS:
        raise CannotRegister(
            f"{path}: registers {name}: a container would be configured twice | remove that"
            " entry first"
        )


def remove(file: ConfigFile) -> str | None:
    """Return ``config.json`` without the hook."""
    if file.text is None:
        return None
    config = Json(file.text, file.path)
    ours = [
        place
        for place, hook in enumerate(_hooks(config, file.path))
        if program(hook) == installation.HOOK
    ]
    return config.without_items(_PRESTART, ours, parsed_backup(file)).text if ours else file.text


def _hooks(config: Json, path: str) -> list[object]:
    hooks = _member(config, path, _PRESTART[:1], dict)
    return _member(config, path, _PRESTART, list) if hooks else []


def _member(
    config: Json, path: str, member: Path, kind: type[list[object]] | type[dict[str, object]]
) -> list[object]:
    value = config.get(member)
    if value is not None and not isinstance(value, kind):
        raise CannotRegister(
            f"{path}: {'.'.join(member)} is not {'an object' if kind is dict else 'an array'}"
        )
    return list(value or ())


def program(hook: object) -> str:
    """Return the program name of an OCI hook entry, or ""."""
    path = hook.get("path") if isinstance(hook, dict) else None
    return posixpath.basename(path) if isinstance(path, str) else ""
