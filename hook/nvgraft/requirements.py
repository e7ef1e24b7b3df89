"""The requirement language of images: ``cuda>=12.0 brand=tesla,driver>=470``.

Blanks separate alternatives, commas what must hold together (reference behaviour 8). Pure: the driver's versions and the
selected devices come from the inventory. Which requirements apply to a container is ``nvgraft.request``'s business.
"""

from nvgraft.errors import Refusal
from nvgraft.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

#: A longer factor that does not hold counts as invalid: the reference's buffer is 128 bytes.
_FACTOR_LIMIT = 127

#: operator -> the results of a comparison (-1, 0, 1) that satisfy it. A lone "!" is accepted by the reference.
_OPERATORS = {"=": (0,), "!=": (-1, 1), "!": (-1, 1), "<": (-1,), "<=": (-1, 0), ">": (1,), ">=": (0, 1)}
_SIGNS = "<>=!"
_ONE_SIGN = str.maketrans(dict.fromkeys(_SIGNS, "="))

#: A property of a device holds when there is no device.
_OF_DEVICE = ("arch", "brand")


class Alternative(Value):
    """One alternative of a requirement: its ``term``, and the ``factor`` that decides against it ("" when it holds)."""

    __slots__ = ("factor", "term", "valid")

    def __init__(self, term: str, factor: str, valid: bool) -> None:
        self.term = term
        self.factor = factor
        self.valid = valid


def check(requirements: "Sequence[str]", driver_version: str, cuda_version: str, devices: "Sequence[tuple[str, str]]") -> None:
    """Refuse the container unless every requirement holds for every device.

    :param devices: (compute capability, brand) of each selected device, as in ("8.0", "Tesla"); with none, the
        requirements are evaluated once and what they say of a device holds.
    :raises Refusal: "invalid expression" or "unsatisfied condition: ..."
    """
    # Devices of one kind are asked once: a node of eight equal GPUs is the usual case.
    for arch, brand in dict.fromkeys(devices) or ((None, None),):
        facts = {"cuda": cuda_version, "driver": driver_version, "arch": arch, "brand": brand}
        for requirement in requirements:
            holds = _evaluate(requirement, facts)
            if holds:
                continue
            hint = _hint(requirement, facts)
            if holds is None:
                raise Refusal("requirement", "invalid expression", hint)
            first = requirement.partition(" ")[0]
            text = f"unsatisfied condition: {first}"
            if first.startswith("cuda>="):
                text += ", please update your driver to a newer version, or use an earlier cuda container"
            raise Refusal("requirement", text, hint)


def alternatives(requirement: str, facts: "dict[str, str | None]") -> tuple[Alternative, ...]:
    """Return how every alternative of ``requirement`` fares, also those that :func:`check` never reaches.

    :param facts: property name -> value; ``arch`` and ``brand`` are None without a device.
    """
    found = []
    for term in filter(None, requirement.split(" ")):
        factor, holds = _first_false(term, facts)
        found.append(Alternative(term, factor, holds is not None))
    return tuple(found)


def compare_versions(left: str, right: str) -> int | None:
    """Return -1, 0 or 1, or None when one side is no version.

    Numbers are compared from left to right; zeros at the end count for nothing, so that 12 equals 12.0.
    """
    first, second = _numbers(left), _numbers(right)
    if first is None or second is None:
        return None
    return (first > second) - (first < second)


def _numbers(version: str) -> list[tuple[int, str]] | None:
    """Return a sort key: the length of each number and its digits, so that long ones cost no conversion."""
    if version[:1] in ("", ".") or version.strip("0123456789."):
        return None
    parts = [part.lstrip("0") for part in version.split(".") if part]
    while parts and not parts[-1]:
        parts.pop()
    return [(len(part), part) for part in parts]


def _evaluate(requirement: str, facts: "dict[str, str | None]") -> bool | None:
    """Return whether a requirement holds; None when a factor that decides is invalid."""
    result: bool | None = True
    for term in filter(None, requirement.split(" ")):
        if not term.strip(","):
            continue
        _, result = _first_false(term, facts)
        if result is not False:
            break
    return result


def _first_false(term: str, facts: "dict[str, str | None]") -> tuple[str, bool | None]:
    """Return the factor that ends the evaluation of a term and its result, or an empty factor and True."""
    for factor in filter(None, term.split(",")):
        result = _holds(factor, facts)
        if result is False and len(factor.encode()) > _FACTOR_LIMIT:
            result = None
        if not result:
            return factor, result
    return "", True


def _holds(factor: str, facts: "dict[str, str | None]") -> bool | None:
    name, operator, wanted = _split(factor)
    accepted = _OPERATORS.get(operator)
    if accepted is None or not wanted or name not in facts:
        return None
    actual = facts[name]
    if actual is None:
        return True
    if name == "brand":
        if operator not in ("=", "!=", "!"):
            return None
        return (actual.lower() == wanted.lower()) == (operator == "=")
    order = compare_versions(actual, wanted)
    return None if order is None else order in accepted


def _split(factor: str) -> tuple[str, str, str]:
    start = len(factor.translate(_ONE_SIGN).partition("=")[0])
    rest = factor[start:]
    wanted = rest.lstrip(_SIGNS)
    return factor[:start].lower(), rest[: len(rest) - len(wanted)], wanted


def _hint(requirement: str, facts: "dict[str, str | None]") -> str:
    provided = ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None)
    tried = "; ".join(
        f"{_short(found.term)}: {_short(found.factor)} {'does not hold' if found.valid else 'is no valid condition'}"
        for found in alternatives(requirement, facts)[:8]
        if found.factor
    )
    return f"this host provides {provided}; {tried}; use a newer driver or another image, or set NVIDIA_DISABLE_REQUIRE=1"


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."
