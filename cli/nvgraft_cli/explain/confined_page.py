"""Two processes for one page: the confined one reads what others have written, the other only puts its text into a file.

``explain`` is confined like every command that only looks, and cannot write a file any more; a file that was opened before
could not be replaced whole. Why so: docs/decisions/0042.
"""

import os
import sys

from nvgraft_cli.shell.errors import InputError
from nvgraft_cli.shell.output import write_whole

#: More than any page has; a confined process that was taken over cannot fill the memory of the other one.
LIMIT = 64 << 20


def split(path: str) -> int:
    """Return, in a child that is to be confined, a descriptor for the page. The parent stays here: it writes the page to ``path``
    when all of it has come, and ends with the child's exit code.

    :raises InputError: in the parent, when the file cannot be written.
    """
    sys.stdout.flush()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        return writer
    os.close(writer)
    with open(reader, "rb") as pipe:
        page = pipe.read(LIMIT + 1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:
        raise InputError(
            f"{path}: not written: the confined process was ended by signal {-code}: see the kernel's log"
        )
    if len(page) > LIMIT:
        raise InputError(f"{path}: not written: the page is larger than {LIMIT >> 20} MiB")
    if page and code != 2:
        write_whole(path, page.decode())
    raise SystemExit(code)
