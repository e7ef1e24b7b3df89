"""Answer in one process and write the answer with another, which stays outside.

A command that parses foreign files is confined, so that it cannot write files any more, and a
command on a simulated node has the node's files. A file that was opened before could not be
replaced as a whole. Why so: docs/decisions/0042.
"""

import os
import sys

from nvgraft_cli.shell.children import wait_for
from nvgraft_cli.shell.errors import InputError
from nvgraft_cli.shell.output import write_whole

#: Bytes; more than any answer has. A hijacked confined process cannot fill the other one's memory.
LIMIT = 64 << 20

#: Exit codes: of bad usage and input, of a child that signal N has ended (this plus N), and of a
#: command that the user has interrupted.
_TROUBLE, _SIGNALS, _INTERRUPTED = 2, 128, 130


def split(path: str, mode: int | None = None) -> int:
    """Fork. The child returns with a descriptor for the answer; it is the process to confine.

    The parent does not return: it writes the whole answer to ``path`` and exits with the child's
    exit code. After bad usage or input (exit code 2) it writes nothing.

    :param mode: permission bits, as :func:`nvgraft_cli.shell.output.write_whole` takes them.
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
        answer = pipe.read(LIMIT + 1)
    code = wait_for(child)
    if code > _SIGNALS and code != _INTERRUPTED:
        raise InputError(
            f"{path}: not written: signal {code - _SIGNALS} ended the confined process"
            " | see the kernel's log"
        )
    if len(answer) > LIMIT:
        raise InputError(f"{path}: not written: the answer exceeds {LIMIT >> 20} MiB")
    if answer and code != _TROUBLE:
        write_whole(path, answer, mode)
    raise SystemExit(code)


def send_to(path: str, mode: int | None) -> None:
    """Send standard output to the file ``path``, as :func:`split` does."""
    writer = split(path, mode)
    os.dup2(writer, 1)
    os.close(writer)
