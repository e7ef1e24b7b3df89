"""Register the hook in the ``config.json`` of an OCI bundle, only at stage prestart (SECURITY
R1).
"""

import posixpath

from . import installation
from .change import CannotRegister, Document
from .jsonfile import Json, Path, parsed_backup

_PRESTART = ("hooks", "prestart")

#: Other hooks that configure GPU containers. Two of them would configure a container twice.
_RIVALS = ("nvidia-container-runtime-hook", "nvidia-container-toolkit")


def add(document: Document, programs: installation.Programs) -> str:
    """Return ``config.json`` with the hook as the last prestart hook.

    :raises CannotRegister: there is no such file, or it has another hook for GPUs.
    """
    if document.text is None:
        raise CannotRegister(
            f"{document.path}: no such file | name an OCI bundle with --bundle DIR"
        )
    config = Json(document.text, document.path)
    if not isinstance(config.get(("ociVersion",)), str):
        raise CannotRegister(
            f"{document.path}: not an OCI configuration: it has no ociVersion"
            " | name an OCI bundle with --bundle DIR"
        )
    wanted = installation.hook_entry(programs.hook)
    for hook in _hooks(config, document.path):
        if hook == wanted:
            return document.text
        refuse_rival(hook, document.path, "runc")
    return config.append(_PRESTART, wanted).text


def refuse_rival(hook: object, path: str, engine: str) -> None:
    """Refuse to register if the entry ``hook`` of the file ``path`` configures GPU containers as
    well.

    :raises CannotRegister: names the program of the entry.
    """
    name = program(hook)
    if name == installation.HOOK:
        raise CannotRegister(
            f"{path}: registers {name} in another form | nvgraft unregister {engine}, then register it again"
        )
    if name in _RIVALS:
        raise CannotRegister(
            f"{path}: registers {name}: a container would be configured twice | remove that entry first"
        )


def remove(document: Document) -> str | None:
    """Return ``config.json`` without the hook."""
    if document.text is None:
        return None
    config = Json(document.text, document.path)
    ours = [
        place
        for place, hook in enumerate(_hooks(config, document.path))
        if program(hook) == installation.HOOK
    ]
    return (
        config.without_items(_PRESTART, ours, parsed_backup(document)).text
        if ours
        else document.text
    )


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
