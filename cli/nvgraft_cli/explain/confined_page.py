"""Write a page with two processes: a confined one makes its text, the other writes the file.

``explain`` parses foreign files and is confined for it, so that it cannot write files any more. A
file that was opened before could not be replaced as a whole. Why so: docs/decisions/0042.
"""

import os
import sys

from nvgraft_cli.shell.errors import InputError
from nvgraft_cli.shell.output import write_whole

#: Bytes; more than any page has. A hijacked confined process cannot fill the other one's memory.
LIMIT = 64 << 20


def split(path: str) -> int:
    """Fork. The child returns with a descriptor for the page; it is the process to confine.

    The parent does not return: it writes the whole page to ``path`` and exits with the child's exit
    code.

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
            f"{path}: not written: signal {-code} ended the confined process | see the kernel's log"
        )
    if len(page) > LIMIT:
        raise InputError(f"{path}: not written: the page exceeds {LIMIT >> 20} MiB")
    if page and code != 2:
        write_whole(path, page.decode())
    raise SystemExit(code)
