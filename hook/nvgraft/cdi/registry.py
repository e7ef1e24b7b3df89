"""The devices of the directories of CDI specifications, by their qualified names
(VENDOR/CLASS=NAME).

Of two directories the later one wins. A device that two files of one directory have is nobody's
(rules of the reference, section 2). A file that cannot be used takes nothing from the others.
"""

from __future__ import annotations

from nvgraft.base import files
from nvgraft.base._os import os
from nvgraft.base.values import Value
from nvgraft.cdi.reader import SpecificationError, SpecificationFile, read_specifications

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nvgraft.cdi.edits import CdiDevice
    from nvgraft.cdi.reader import Yaml

#: Where engines and the reference look for specifications, the most important directory last.
DIRECTORIES = ("/etc/cdi", "/var/run/cdi")

#: The names of specifications; files with other names are not looked at.
SUFFIXES = (".json", ".yaml")

#: Files that are read of one directory. Device plugins write one for each kind.
_FILES = 256


class RegisteredDevice(Value):
    """A device, and the file that it comes from."""

    def __init__(self, file: SpecificationFile, device: CdiDevice, priority: int) -> None:
        self.file = file
        self.device = device
        self.priority = priority


class Registry(Value):
    """The devices of several directories.

    :ivar files: the specifications that could be read, in the order of directories and names.
    :ivar devices: qualified name -> its device.
    :ivar hidden: (qualified name, file) of devices that a later directory has, too.
    :ivar conflicts: qualified name -> the files of one directory that have it.
    :ivar errors: what is wrong with the other files and directories.
    """

    def __init__(
        self,
        files: Sequence[SpecificationFile],
        devices: dict[str, RegisteredDevice],
        hidden: Sequence[tuple[str, str]],
        conflicts: dict[str, tuple[str, ...]],
        errors: Sequence[SpecificationError],
    ) -> None:
        self.files = tuple(files)
        self.devices = devices
        self.hidden = tuple(hidden)
        self.conflicts = conflicts
        self.errors = tuple(errors)


def read_registry(
    directories: Sequence[str] = DIRECTORIES,
    open_file: Callable[[str], int] = files.open_file,
    yaml: Yaml | None = None,
) -> Registry:
    """Read the specifications of all directories; missing ones have none.

    :param open_file: as for :func:`nvgraft.cdi.reader.read_specifications`.
    :param yaml: as for :func:`nvgraft.cdi.reader.read_specifications`.
    :raises Refusal: as :func:`nvgraft.cdi.reader.read_specifications`.
    """
    errors: list[SpecificationError] = []
    paths: dict[str, int] = {}
    for priority, directory in enumerate(directories):
        names = _names(directory, errors)
        paths.update((f"{directory.rstrip('/')}/{name}", priority) for name in names)
    found = read_specifications(paths, open_file, yaml)
    errors += [item for item in found if isinstance(item, SpecificationError)]
    return registry_of(
        [(item, paths[item.path]) for item in found if isinstance(item, SpecificationFile)], errors
    )


def _names(directory: str, errors: list[SpecificationError]) -> list[str]:
    """Return the names of the specifications in a directory."""
    try:
        names = sorted(name for name in os.listdir(directory) if name.endswith(SUFFIXES))
    except FileNotFoundError:
        return []
    except OSError as error:
        fix = "make it a directory that this program can read, or remove it"
        cause = f"cannot be read: {files.reason(error)}"
        errors.append(SpecificationError(directory, 0, cause, fix))
        return []
    if len(names) > _FILES:
        cause = f"it has {len(names)} specifications, of which the first {_FILES} are read"
        errors.append(SpecificationError(directory, 0, cause, "remove those that are not used"))
    return names[:_FILES]


def registry_of(
    found: Sequence[tuple[SpecificationFile, int]], errors: Sequence[SpecificationError]
) -> Registry:
    """Return the devices of specifications that were read.

    :param found: each specification with the importance of its directory.
    """
    devices: dict[str, RegisteredDevice] = {}
    hidden: list[tuple[str, str]] = []
    conflicts: dict[str, tuple[str, ...]] = {}
    for file, priority in found:
        for device in file.spec.devices:
            name = f"{file.spec.kind}={device.name}"
            other = devices.get(name)
            if other is not None and other.priority == priority:
                conflicts[name] = (*conflicts.get(name, (other.file.path,)), file.path)
                continue
            if other is not None:
                hidden.append((name, other.file.path))
            devices[name] = RegisteredDevice(file, device, priority)
    for name in conflicts:
        del devices[name]
    return Registry([file for file, _ in found], devices, hidden, conflicts, errors)
