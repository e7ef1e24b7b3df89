"""Keep standard input, so that it can be opened by its path, from its beginning and repeatedly."""

import os
import stat
import sys
import tempfile

from nvgraft.base.files import reason
from nvgraft_cli.shell.errors import InputError
from nvgraft_cli.shell.progress import Progress

_MIB = 1 << 20


def keep(*, copied: bool) -> None:
    """Replace standard input by a temporary file with its content, unless it is a file already.

    A socket cannot be opened by its path, and a pipe or an archive only once.

    :param copied: copy a file, too.
    :raises InputError: it cannot be read or kept.
    """
    try:
        if stat.S_ISREG(os.fstat(0).st_mode) and not copied:
            return
        if sys.stdin.isatty():
            print("nvgraft: reading standard input; Ctrl-D ends it", file=sys.stderr)
        with tempfile.TemporaryFile() as copy:
            with Progress("reading standard input", 0, "MiB") as progress:
                while data := os.read(sys.stdin.fileno(), _MIB):
                    copy.write(data)
                    progress.step(len(data) / _MIB)
            copy.flush()
            os.dup2(copy.fileno(), 0)
    except OSError as error:
        raise InputError(
            f"standard input: cannot be kept in a temporary file: {reason(error)}"
            " | pass the path of a file, or set TMPDIR to a directory with room"
        ) from error
