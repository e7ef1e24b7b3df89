"""What the lab adds to its simulated node: a private directory, and nvgraft's commands in PATH."""

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from nvgraft_cli.container_cli import ORIGINAL_NAME

#: The lab's directory on the node; /run there is in memory and ends with the node.
WORK = "/run/nvgraft-lab"

#: Where the node gets nvgraft's commands; login shells search it first.
PROGRAMS = "/usr/local/bin"

#: Starts nvgraft as this process was started, whatever directory it was installed to.
_PROGRAM = """\
import sys
sys.path[:0] = {path!r}
sys.argv[0] = {name!r}
from nvgraft_cli.shell.main import main
raise SystemExit(main())
"""


def prepare() -> Mapping[str, str]:
    """Make the directory and the commands, and return the environment of a shell on the node."""
    os.makedirs(WORK)
    for name in ("nvgraft", ORIGINAL_NAME):
        program = _PROGRAM.format(path=[path for path in sys.path if path], name=name)
        path = Path(PROGRAMS, name)
        path.unlink(missing_ok=True)
        path.write_text(
            f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -IBc {shlex.quote(program)} "$@"\n',
            encoding="utf-8",
        )
        path.chmod(0o755)
    search = os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
    return {**os.environ, "PATH": f"{PROGRAMS}:{search}", "PS1": "node# "}
