"""Write files for other programs."""

import os
import tempfile


def write_whole(path: str, text: str) -> None:
    """Write a file as a whole, readable for all users: a reader sees the old one or the new one.

    While it is written, its name begins with a dot, which readers of directories leave out.

    :raises OSError: the directory cannot be made or written.
    """
    directory = os.path.dirname(path) or "."
    os.makedirs(directory, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=directory, prefix=".new-", delete=False) as file:
        try:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.replace(file.name, path)
        except OSError:
            os.unlink(file.name)
            raise
