"""Register a runtime in Docker's ``daemon.json``, optionally as the default runtime."""

from nvgraft_cli.register import installation
from nvgraft_cli.register.change import CannotRegister, ConfigFile
from nvgraft_cli.register.jsonfile import Json, parsed_backup

DEFAULT_FILE = "/etc/docker/daemon.json"

_NAME = "nvgraft"
_RUNTIME = ("runtimes", _NAME)
_DEFAULT = ("default-runtime",)


def add(file: ConfigFile, programs: installation.Programs, *, set_default: bool) -> str:
    """Return ``daemon.json`` with the runtime.

    :raises CannotRegister: the file has another runtime of that name.
    """
    text = file.text
    config = Json("{}\n" if text is None or not text.strip() else text, file.path)
    wanted = {"path": programs.runtime}
    have = config.get(_RUNTIME)
    if have is not None and have != wanted:
        raise CannotRegister(
            f"{file.path}: {'.'.join(_RUNTIME)} is another program or has arguments"
            " | run nvgraft unregister docker first"
        )
    changed = config if have == wanted else config.put(_RUNTIME, wanted)
    if set_default and config.get(_DEFAULT) != _NAME:
        changed = changed.put(_DEFAULT, _NAME)
    return changed.text


def remove(file: ConfigFile) -> str | None:
    """Return ``daemon.json`` without the runtime, and with the former default runtime if it was
    that.
    """
    if file.text is None or not file.text.strip():
        return file.text
    config = Json(file.text, file.path)
    backup = parsed_backup(file)
    changed = config
    if changed.get(_DEFAULT) == _NAME:
        if backup is None or not backup.has(_DEFAULT) or backup.get(_DEFAULT) == _NAME:
            changed = changed.without(_DEFAULT, backup)
        else:
            changed = changed.restored(_DEFAULT, backup)
    if changed.get(_RUNTIME) is not None:
        changed = changed.without(_RUNTIME, backup)
    if changed is not config and changed.is_empty() and backup is None:
        # Only the former content is left: no file (None), or a blank one.
        return file.backup
    return changed.text
