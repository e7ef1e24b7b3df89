"""Print JSON documents, and write files atomically."""

import json
import os
from collections.abc import Mapping

from nvgraft_cli.shell.errors import InputError


def print_document(document: Mapping[str, object]) -> None:
    """Print a JSON document, which includes its ``schema``.

    It is not validated: loading its model in nvgraft_specs.models takes longer than most answers.
    """
    print(json.dumps(document, indent=1))  # ASCII: names of an image need not be UTF-8


def write_whole(path: str, text: str, mode: int | None = None) -> None:
    """Replace the file ``path`` by ``text`` atomically.

    :param mode: permission bits; None leaves them to the umask.
    :raises InputError: the file cannot be written.
    """
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "x", encoding="utf-8") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(text)
        os.replace(temporary, path)
    except OSError as error:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise InputError(
            f"{path}: cannot be written: {(error.strerror or str(error)).lower()}: choose"
            " another file"
        ) from error
