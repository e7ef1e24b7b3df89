"""The values of YAML texts that were converted before, kept under /run between starts.

A text is found by its content, all of it, so a changed file has another document. Texts that are
not kept are converted in a child (:mod:`nvgraft.cdi.yaml_child`), which takes longer than the rest
of a start.
"""

from __future__ import annotations

from nvgraft.base import paths
from nvgraft.system import kept

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

KIND = "yaml"

#: The package's modules that make a value.
_SOURCES = ("documents.py", "yaml_text.py")


def convert(texts: Sequence[bytes]) -> list[object]:
    """Return the JSON value of each text, or a :class:`nvgraft.cdi.yaml_child.NotYaml`.

    :raises Refusal: as :func:`nvgraft.cdi.yaml_child.convert`.
    :raises OSError: as :func:`nvgraft.cdi.yaml_child.convert`.
    """
    import nvgraft_specs

    package = paths.dirname(str(nvgraft_specs.__file__))
    code = kept.code(*(f"{package}/{name}" for name in _SOURCES))
    keys = [[*code, text.decode("utf-8", "surrogateescape")] for text in texts]
    values = [kept.read(KIND, key) for key in keys]
    missing = [index for index, value in enumerate(values) if not isinstance(value, list)]
    if missing:
        from nvgraft.cdi import yaml_child

        for index, value in zip(
            missing, yaml_child.convert([texts[index] for index in missing]), strict=True
        ):
            values[index] = [value]
            if not isinstance(value, yaml_child.NotYaml):
                _keep(keys[index], [value])
    return [value[0] for value in values if isinstance(value, list)]


def _keep(key: object, value: list[object]) -> None:
    from nvgraft.system import keep

    try:
        keep.write(KIND, key, value)
    except TypeError:
        return  # a fraction, which no valid specification has


def line_of(text: bytes, members: Sequence[str | int]) -> int:
    """Return the line of a value, as :func:`nvgraft.cdi.yaml_child.line_of`."""
    from nvgraft.cdi import yaml_child

    return yaml_child.line_of(text, members)
