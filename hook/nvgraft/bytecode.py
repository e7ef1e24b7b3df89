"""The byte code of all modules in one file: what a start would look for and open, module by module, is found by one dictionary.

The installer writes the file beside the packages; the launcher calls :func:`use_bundle`. A module whose source is not the one that
was compiled (somebody has edited it), and every module where the file is missing or of another Python, is loaded as ever.

Writing the file is the installer's business (docs/decisions/0025). Its form: the interpreter's magic number, the number of bytes of
the index (8 bytes, little-endian), the index, and the modules' code, one behind the other; index and code as marshal writes them.
"""

import marshal
import os
import sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import MAGIC_NUMBER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    #: Whether it is a package, source below the file's directory, the source's time (s) and size, offset and length of the code.
    Entry = tuple[bool, str, int, int, int, int]

_NAME = "bytecode"
_HEAD = len(MAGIC_NUMBER) + 8


class _Bundle:
    """A finder and a loader of the modules in one file, as the import system asks for them."""

    def __init__(self, directory: str, index: "dict[str, Entry]", start: int) -> None:
        self._directory = directory
        self._index = index
        self._start = start  # of the code

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """Return how ``name`` is loaded; None when it is not in the file, or not as it was."""
        entry = self._index.get(name)
        if entry is None:
            return None
        package, source, time, size, _, _ = entry
        path = f"{self._directory}/{source}"
        try:
            found = os.stat(path)
        except OSError:
            return None
        if (int(found.st_mtime), found.st_size) != (time, size):
            return None
        spec = ModuleSpec(name, self, origin=path, is_package=package)  # type: ignore[arg-type] # a loader by what it has
        spec.has_location = True
        if spec.submodule_search_locations is not None:
            spec.submodule_search_locations.append(path.rpartition("/")[0])
        return spec

    def create_module(self, _spec: ModuleSpec) -> None:
        """Leave it to the import system."""

    def exec_module(self, module: "ModuleType") -> None:
        *_, offset, length = self._index[module.__name__]
        # Opened for each module: the hook closes every descriptor that it did not open itself.
        fd = os.open(f"{self._directory}/{_NAME}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            code = os.pread(fd, length, self._start + offset)
        finally:
            os.close(fd)
        exec(marshal.loads(code), module.__dict__)  # noqa: S102, S302 - the installer's own file, as its .pyc files are


def use_bundle() -> None:
    """Load the engine's modules from the file beside its packages from here on, if there is one for this Python."""
    directory = __file__.rpartition("/")[0].rpartition("/")[0]
    try:
        fd = os.open(f"{directory}/{_NAME}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        head = os.pread(fd, _HEAD, 0)
        length = int.from_bytes(head[-8:], "little")
        if len(head) == _HEAD and head.startswith(MAGIC_NUMBER):
            index = marshal.loads(os.pread(fd, length, _HEAD))  # noqa: S302 - as above
            sys.meta_path.insert(0, _Bundle(directory, index, _HEAD + length))
    finally:
        os.close(fd)
