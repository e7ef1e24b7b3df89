"""Print JSON documents, and write files atomically."""

import json
import os
import stat
import sys
from collections.abc import Mapping

from nvgraft_cli.shell.errors import InputError

#: The directory, as mountinfo shows it, that gets all changes of a simulated host's root.
SIMULATED_ROOT = "upperdir=/run/0/upper"

#: The document of a simulated host, for commands that run on it.
SIMULATED_DOCUMENT = "/run/nvgraft-host.json"


def print_document(document: Mapping[str, object]) -> None:
    """Print a JSON document, which includes its ``schema``.

    It is not validated: loading its model in nvgraft_specs.models takes longer than most answers.
    """
    json.dump(document, sys.stdout, indent=1)  # ASCII: names of an image need not be UTF-8
    print()


def _is_command_of_simulate() -> bool:
    """Tell whether this process is the COMMAND of ``nvgraft simulate``, with which its files end.

    In a shell on a simulated host others can use the file.
    """
    return os.getppid() == 1 and is_simulated_host()


def is_simulated_host() -> bool:
    """Tell whether the root of this process is that of ``nvgraft simulate``."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return any(" / / " in line and SIMULATED_ROOT in line for line in file)


def write_whole(path: str, data: bytes, mode: int | None = None) -> None:
    """Replace the file ``path`` by ``data`` atomically, or write to a device or pipe of that name.

    A link is replaced, and what it leads to stays: somebody else may have made it.

    :param mode: permission bits; None keeps those of the file, and leaves a new one to the umask.
    :raises InputError: the file cannot be written, or would be lost with a simulated host.
    """
    try:
        if _is_device(path):
            with open(path, "wb") as file:
                file.write(data)
            return
        if _is_command_of_simulate():
            raise InputError(
                f"{path}: would be lost: a simulated host throws its files away when the command"
                f" ends | write to standard output: nvgraft simulate HOST -- COMMAND > {path}"
            )
        _replace(path, data, mode)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written: {(error.strerror or str(error)).lower()}: choose"
            " another file"
        ) from error


def _is_device(path: str) -> bool:
    """Tell whether ``path`` is a device, a pipe or a socket, or names an open file of this process,
    such as /dev/stdout: the names in /dev and /proc are not to be replaced.
    """
    directory = os.path.realpath(os.path.dirname(path))
    if directory == "/dev" or directory.startswith("/proc/"):
        return os.path.lexists(path)
    try:
        kind = os.stat(path).st_mode
    except OSError:
        return False
    return not stat.S_ISREG(kind) and not stat.S_ISDIR(kind)


def _replace(path: str, data: bytes, mode: int | None) -> None:
    temporary = f"{path}.{os.getpid()}.tmp"
    if mode is None and os.path.isfile(path) and not os.path.islink(path):
        mode = stat.S_IMODE(os.lstat(path).st_mode)
    try:
        with open(temporary, "xb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(data)
        os.replace(temporary, path)
    except OSError:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
