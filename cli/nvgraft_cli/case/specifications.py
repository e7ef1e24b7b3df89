"""Read CDI specifications in a command, which may be confined: YAML is converted in this process,
not in a child of its own (docs/decisions/0060).
"""

from collections.abc import Sequence

from nvgraft.cdi.edits import CdiSpec, Generated
from nvgraft.cdi.injection import inject as _inject
from nvgraft.cdi.reader import SpecificationError, SpecificationFile
from nvgraft.cdi.reader import parse_specifications as _parse
from nvgraft.cdi.reader import read_specifications as _read
from nvgraft.cdi.registry import DIRECTORIES, Registry
from nvgraft.cdi.registry import read_registry as _read_registry
from nvgraft.cdi.yaml_child import NotYaml
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


def inject(directories: Sequence[str], devices: Sequence[str]) -> Generated:
    """Return the edits of devices of this host.

    :raises nvgraft.base.errors.Refusal: as :func:`nvgraft.cdi.injection.inject`.
    """
    return _inject(directories, devices, _InThisProcess())
