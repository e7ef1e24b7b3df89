"""What machines read: a document on standard output, and a file that is written whole or not at all."""

import json
import os
from collections.abc import Mapping

from nvgraft_cli.shell.errors import InputError


def print_document(document: Mapping[str, object]) -> None:
    """Print a JSON document, ``schema`` included. Its model in nvgraft_specs.models is not asked: loading it costs more than the answer."""
    print(json.dumps(document, indent=1))  # ASCII: names of an image need not be UTF-8


def write_whole(path: str, text: str, mode: int | None = None) -> None:
    """Put ``text`` into the file ``path``; what reads it meanwhile sees the old file or the new one.

    :param mode: permission bits; None: what the caller's umask leaves.
    :raises InputError: when it cannot be written.
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
            f"{path}: cannot be written: {(error.strerror or str(error)).lower()}: choose another file"
        ) from error
