"""Packed byte code, which only makes a start faster: one file for each group of modules that are
needed together.

Everything works without it, more slowly (docs/decisions/0002). Code that a start needs for its
result does not belong here. The room has only this module, since each module that is loaded before
:func:`load` exists costs a hundredth of a start.

For one module the import system spends more time on finding, opening, reading and locking than on
running its code. Therefore the installer writes the modules that are always needed together into
one file, each behind the modules that it imports, and :func:`load` runs them. If a file is missing
or made by another Python, the import system loads its modules.

The sources beside the files are not checked: reading the times of all ninety takes a 70th of a
start. Remove the directory of the files before you edit an installed module; the import system then
loads every module from its source.

``nvgraft_cli.install.pack`` writes the files. A file has the interpreter's magic number and any
number of pieces. A piece has its length in four bytes, the low one first, and a list of modules in
the format of marshal: name, whether it is a package, the path of its source, and its code, compiled
without docstrings, annotations and qualified names of functions. A module without code is compiled
C: its path is that of a shared library, absolute for one of the standard library, or empty for one
of the interpreter's program.
Pieces have about 120 KiB, so that each one is read into the memory of the one before: new memory
costs a page fault for each 4 KiB.
"""

from __future__ import annotations

import _imp
import marshal
import posix as os  # not from nvgraft.base._os: nothing of ours is loaded yet
import sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import MAGIC_NUMBER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType

#: Directory of the files, beside the packages.
DIRECTORY = "bytecode"

#: Group -> the group that is loaded before, and the modules that make up this group together with
#: all that they import. A launcher loads ``hook``, ``runtime`` or ``cdi-hook`` first. ``look`` is
#: loaded if a container has to be configured, ``host`` if the inventory is not kept, ``apply``
#: after the host was read, or while NVML is asked; ``devices`` if the runtime generates CDI
#: devices, ``specifications`` if it reads them.
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
    "host": (
        "look",
        (
            "nvgraft.host.live",
            "nvgraft.host.libraries",
            "nvgraft.host.nvml",
            "nvgraft.host.keep_inventory",
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
    "runtime": ("", ("nvgraft.runtime", "nvgraft.system.kept")),
    "devices": (
        "runtime",
        (
            "nvgraft.wrapper.host_look",
            "nvgraft.wrapper.edits",
            "nvgraft.cdi.live_source",
            "nvgraft.cdi.selection",
            "nvgraft.formats.elf",
            "nvgraft.formats.ldcache_entries",
            "nvgraft.host.kept_inventory",
            "nvgraft.host.libraries",
            "nvgraft.host.live",
            "nvgraft_specs.cdi_hooks",
        ),
    ),
    "specifications": (
        "runtime",
        ("nvgraft.wrapper.host_look", "nvgraft.wrapper.edits", "nvgraft.cdi.injection"),
    ),
    "cdi-hook": (
        "",
        (
            "nvgraft.cdi_hook",
            "nvgraft.apply.held_container",
            "nvgraft.apply.executor",
            "nvgraft.apply.placement",
            "nvgraft.apply.cache.after_files",
            "nvgraft.apply.cache.library_search",
            "nvgraft.container.live_target",
            "nvgraft.container.unprepared",
            "nvgraft.formats.elf",
            "nvgraft.plan.forward_compat",
            "nvgraft.plan.hook_steps",
            "nvgraft.report.last_error",
        ),
    ),
}

#: The specification of every packed module. Each import statement asks it whether the module is
#: being initialised, and nothing else: one for each module would take 0.5 % of a start.
_SPECIFICATION = ModuleSpec("nvgraft (packed)", None)
_SPECIFICATION._initializing = False  # type: ignore[attr-defined]

_done: set[str] = set()


def load(group: str) -> None:
    """Load those modules of a group that are not loaded yet, if there is a file of the group for
    this Python.
    """
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
                    return  # the file was cut short by a power failure
                _run(library, marshal.loads(piece))  # noqa: S302
    finally:
        os.close(fd)


def _load_compiled(name: str, library: str) -> None:
    """Load a module of compiled C, for which an import statement would take a lock and ask each
    finder. Where it has moved since the installation, the import statement loads it.

    :param library: path of the shared library; empty for a module of the interpreter's program.
    """
    specification = ModuleSpec(name, None, origin=library)
    try:
        create = _imp.create_dynamic if library else _imp.create_builtin
        module = create(specification)
    except ImportError:
        return
    if module is not None:
        (_imp.exec_dynamic if library else _imp.exec_builtin)(module)
        module.__spec__ = _SPECIFICATION
        sys.modules[name] = module


def _run(library: str, modules: list[tuple[str, bool, str, CodeType | None]]) -> None:
    loaded = sys.modules
    kind = type(sys)
    for name, package, source, code in modules:
        if name in loaded:
            continue
        path = source if source[:1] in ("", "/") else f"{library}/{source}"
        if code is None:
            _load_compiled(name, path)
            continue
        module = kind(name)
        module.__file__ = path
        parent, _, last = name.rpartition(".")
        module.__package__ = name if package else parent
        module.__spec__ = _SPECIFICATION
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
