"""Read CDI specifications in a command, which may be confined: YAML is converted in this process,
not in a child of its own (docs/decisions/0060).
"""

import os
import stat
from collections.abc import Callable, Iterator, Sequence

from nvgraft.cdi.edits import CdiSpec
from nvgraft.cdi.injection import open_specification, resolve
from nvgraft.cdi.reader import SpecificationError, SpecificationFile
from nvgraft.cdi.reader import parse_specifications as _parse
from nvgraft.cdi.reader import read_specifications as _read
from nvgraft.cdi.registry import DIRECTORIES, Registry, registry_of
from nvgraft.cdi.registry import read_registry as _read_registry
from nvgraft.cdi.yaml_child import NotYaml
from nvgraft.formats.tree import PathError, Tree
from nvgraft_cli.case.edits import Edited, Origin
from nvgraft_specs import yaml_text
from nvgraft_specs.documents import DocumentError


class _InThisProcess:
    """The functions of :mod:`nvgraft.cdi.yaml_child`, without a child."""

    def convert(self, texts: Sequence[bytes]) -> list[object]:
        return [self._value(text) for text in texts]

    def _value(self, text: bytes) -> object:
        try:
            return yaml_text.load_yaml(text, "")
        except DocumentError as error:
            return NotYaml(error.cause, error.fix)

    def line_of(self, text: bytes, members: Sequence[str | int]) -> int:
        return yaml_text.line_of(text, members)


def read_specifications(paths: Sequence[str]) -> list[SpecificationFile | SpecificationError]:
    """Return the specification in each file, or what is wrong with it."""
    return _read(paths, yaml=_InThisProcess())


def parse_specification(raw: bytes, path: str) -> CdiSpec:
    """Return the specification in a text in JSON or YAML.

    :param path: the path to name in errors.
    :raises SpecificationError: it cannot be used.
    """
    (found,) = _parse([(path, raw)], _InThisProcess())
    if isinstance(found, SpecificationError):
        raise found
    return found.spec


def read_registry(directories: Sequence[str] = DIRECTORIES) -> Registry:
    """Return the devices of directories of specifications."""
    return _read_registry(directories, yaml=_InThisProcess())


def read_trusted_registry(directories: Sequence[str]) -> Registry:
    """Return the devices of directories of specifications as the runtime takes them: not those of
    files that users other than root can write.
    """
    return _read_registry(directories, open_specification, _InThisProcess())


def registry_in(paths: Sequence[str]) -> Registry:
    """Return the devices of some files, as if they were in one directory."""
    found = read_specifications(paths)
    return registry_of(
        [(item, 0) for item in found if isinstance(item, SpecificationFile)],
        [item for item in found if isinstance(item, SpecificationError)],
    )


def inject(
    registry: Registry, names: Sequence[str], tree: Tree | None
) -> tuple[tuple[Edited, ...], tuple[tuple[str, str], ...]]:
    """Return the edits of devices by their qualified names, and lines for the log.

    :param tree: the files of a recorded host; None: device nodes are those of this machine.
    :raises Refusal: as :func:`nvgraft.cdi.injection.resolve`.
    """
    found = resolve(registry, names, os.lstat if tree is None else _lstat_in(tree))
    origins = _origins(registry, names)
    return tuple(map(Edited, found.edits, origins)), found.log


def _origins(registry: Registry, names: Sequence[str]) -> Iterator[Origin]:
    """Yield the origin of each part that :func:`nvgraft.cdi.injection.resolve` returns."""
    seen: set[str] = set()
    for name in dict.fromkeys(names):
        found = registry.devices[name]
        file, kind = found.file.path, found.file.spec.kind
        if file not in seen:
            seen.add(file)
            yield Origin(file, kind)
        yield Origin(file, kind, found.device.name)


def _lstat_in(tree: Tree) -> Callable[[str], os.stat_result]:
    """Return a function like :func:`os.lstat` for the device nodes of a recorded host."""

    def lstat(path: str) -> os.stat_result:
        try:
            node = tree.lstat(path)
        except PathError as error:
            raise FileNotFoundError(error.text) from error
        if node is None:
            raise FileNotFoundError(2, os.strerror(2), path)
        kind = stat.S_IFCHR if node.rdev is not None else stat.S_IFREG
        number = os.makedev(*node.rdev) if node.rdev is not None else 0
        return os.stat_result((kind | node.mode, *[0] * 9), {"st_rdev": number})

    return lstat
