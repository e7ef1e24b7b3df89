"""What only makes a start quicker: the byte code of the modules that it needs, in one file for each group of modules.

Everything works without it, more slowly (docs/decisions/0002). Code that a start needs for its result does not belong here.
This module is all of the room, since each module that is loaded before there is :func:`load` costs a hundredth of a start.

To look up, open, read and lock one module costs the import system more than running its code. So the installer writes the
modules that are always needed together into one file, in an order in which each comes after those that it imports, and
:func:`load` runs them. Where a file is missing or of another Python, its modules are left to the import system.

The sources beside the files are not looked at: asking for the time of each of ninety is a 70th of a start. Remove the
files' directory before editing an installed module; the import system then takes every module from its source.

``nvgraft_cli.install.pack`` writes the files. A file is the interpreter's magic number and any number of pieces: a length
in four bytes, the low one first, and, as marshal writes it, a list of modules: name, whether it is a package, its source
below the files' directory, and its code, compiled without docstrings and annotations. Pieces have some 64 KiB, so that each
is read into the memory of the one before it: new memory costs a page fault every 4 KiB.
"""

from __future__ import annotations

import marshal
import posix as os  # not from nvgraft.base._os: nothing of ours is loaded yet
import sys
from _frozen_importlib_external import MAGIC_NUMBER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType

#: Directory of the files, beside the packages.
DIRECTORY = "bytecode"

#: Group -> the group that is loaded by then, and the modules that, with all that they import beyond it, make up this one. ``hook``
#: and ``runtime`` are loaded first thing by a launcher, ``look`` when there is a container to be configured, ``apply`` when the host
#: has been looked at, or while NVML looks.
GROUPS = {
    "hook": ("", ("nvgraft.hook", "nvgraft.system.kept")),
    "look": (
        "hook",
        (
            "nvgraft.report.debug_log",
            "nvgraft.graft",
            "nvgraft.plan.settings",
            "nvgraft.report.last_error",
        ),
    ),
    "apply": (
        "look",
        (
            "nvgraft.apply.held_container",
            "nvgraft.apply.executor",
            "nvgraft.apply.cache.native",
            "nvgraft.apply.cache.library_search",
            "nvgraft.plan.planner",
        ),
    ),
    "runtime": ("", ("nvgraft.runtime",)),
}

_done: set[str] = set()


def load(group: str) -> None:
    """Load the modules of a group that are not loaded yet, if there is a file of it for this Python."""
    if group in _done:
        return
    _done.add(group)
    library = __file__.rpartition("/nvgraft/startup/")[0]
    try:
        fd = os.open(f"{library}/{DIRECTORY}/{group}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if os.read(fd, len(MAGIC_NUMBER)) == MAGIC_NUMBER:
            while size := int.from_bytes(os.read(fd, 4), "little"):
                piece = os.read(fd, size)
                if len(piece) < size:
                    return  # a power cut has left half of it
                _run(library, marshal.loads(piece))  # noqa: S302
    finally:
        os.close(fd)


def _run(library: str, modules: list[tuple[str, bool, str, CodeType]]) -> None:
    loaded = sys.modules
    kind = type(sys)
    for name, package, source, code in modules:
        if name in loaded:
            continue
        path = f"{library}/{source}"
        module = kind(name)
        module.__file__ = path
        parent, _, last = name.rpartition(".")
        module.__package__ = name if package else parent
        if package:
            module.__path__ = [path.rpartition("/")[0]]
        loaded[name] = module
        try:
            exec(code, module.__dict__)  # noqa: S102
        except BaseException:
            del loaded[name]
            raise
        if parent:
            setattr(loaded[parent], last, module)
