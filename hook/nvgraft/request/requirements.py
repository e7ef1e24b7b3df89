"""The requirement language of images: ``cuda>=12.0 brand=tesla,driver>=470``.

Blanks separate alternatives, and commas separate conditions that must all hold (reference behaviour
8). The functions are pure: callers take the driver's versions and the selected devices from the
inventory, and the requirements from the Request.
"""

from __future__ import annotations

from nvgraft.base._stdlib import bisect_left
from nvgraft.base.errors import Refusal
from nvgraft.base.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

#: Bytes. A longer factor that does not hold counts as invalid: the reference's buffer has 128
#: bytes.
_FACTOR_LIMIT = 127

#: Operator -> the results of a comparison (-1, 0, 1) that satisfy it. The reference accepts "!"
#: alone.
_OPERATORS = {
    "=": (0,),
    "!=": (-1, 1),
    "!": (-1, 1),
    "<": (-1,),
    "<=": (-1, 0),
    ">": (1,),
    ">=": (0, 1),
}
_SIGNS = "<>=!"
_ONE_SIGN = str.maketrans(dict.fromkeys(_SIGNS, "="))

#: Properties of a device. A condition on one of them holds if there is no device.
_OF_DEVICE = ("arch", "brand")


class Alternative(Value):
    """One alternative of a requirement: its ``term``, and the ``factor`` that fails in it ("" if
    the term holds).
    """

    def __init__(self, term: str, factor: str, valid: bool) -> None:
        self.term = term
        self.factor = factor
        self.valid = valid


def check(
    requirements: Sequence[str],
    driver_version: str,
    cuda_version: str,
    devices: Sequence[tuple[str, str]],
) -> None:
    """Check that every requirement holds for every device.

    The expressions come from the container and may have 2 MiB together: each is evaluated once, for
    all devices together.

    :param devices: (compute capability, brand) of each selected device, such as ("8.0", "Tesla").
        Without any device the requirements are evaluated once, and conditions on a device hold.
    :raises Refusal: "invalid expression" or "unsatisfied condition: ..."
    """
    # Equal devices are evaluated once: a node of eight equal GPUs is the usual case.
    facts = [
        {"cuda": cuda_version, "driver": driver_version, "arch": arch, "brand": brand}
        for arch, brand in dict.fromkeys(devices) or ((None, None),)
    ]
    by_kind = _DeviceKinds(facts)
    kinds = by_kind.all
    failed = None
    for requirement in requirements:
        holds, invalid = _evaluate(requirement, by_kind, kinds)
        fails = kinds & ~holds
        if fails:
            # The reference evaluates device by device and reports the first failure of the first
            # device that fails.
            first = fails & -fails
            failed = (requirement, bool(invalid & first), facts[first.bit_length() - 1])
            kinds = first - 1
            if not kinds:
                break
    if failed is not None:
        raise _refusal(*failed)


def _refusal(requirement: str, invalid: bool, facts: dict[str, str | None]) -> Refusal:
    hint = _hint(requirement, facts)
    if invalid:
        return Refusal("requirement", "invalid expression", hint)
    first = requirement.partition(" ")[0]
    text = f"unsatisfied condition: {first}"
    if first.startswith("cuda>="):
        text += ", please update your driver to a newer version, or use an earlier cuda container"
    return Refusal("requirement", text, hint)


def alternatives(
    requirement: str, facts: dict[str, str | None], count: int | None = None
) -> tuple[Alternative, ...]:
    """Return the result of each alternative of ``requirement``, including those that :func:`check`
    does not reach.

    :param facts: property name -> value; ``arch`` and ``brand`` are None without a device.
    :param count: evaluate so many alternatives at most.
    """
    device = _DeviceKinds([facts])
    results = []
    for term in list(filter(None, requirement.split(" ")))[:count]:
        holds, invalid, factor = _evaluate_term(term, device, device.all)
        results.append(Alternative(term, "" if holds else factor, not invalid))
    return tuple(results)


def _numbers(version: str) -> tuple[tuple[int, str], ...] | None:
    """Return a version as a sort key, or None if ``version`` is not a version.

    Numbers are compared from left to right, and zeros at the end are ignored: 12 equals 12.0. The
    key has the length of each number and its digits, so that long numbers need no conversion.
    """
    if version[:1] in ("", ".") or version.strip("0123456789."):
        return None
    parts = [part.lstrip("0") for part in version.split(".") if part]
    while parts and not parts[-1]:
        parts.pop()
    return tuple([(len(part), part) for part in parts])


class _Property:
    """The value of one property on each kind of device. A set of kinds is a number: bit 0 stands
    for the first kind.

    ``unknown`` is the set of kinds without the property: every condition on it holds for them.
    ``invalid`` is the set of those whose value is not a version. ``keys`` has the versions of the
    others, ascending, and ``below[i]`` is the set of kinds with one of the first ``i`` versions.
    ``brands`` maps a value in lower case to the kinds that have it.
    """

    def __init__(self, values: Sequence[str | None]) -> None:
        self.unknown = self.invalid = 0
        self.brands: dict[str, int] = {}
        versions: dict[tuple[tuple[int, str], ...], int] = {}
        for number, value in enumerate(values):
            if value is None:
                self.unknown |= 1 << number
                continue
            self.brands[value.lower()] = self.brands.get(value.lower(), 0) | 1 << number
            key = _numbers(value)
            if key is None:
                self.invalid |= 1 << number
            else:
                versions[key] = versions.get(key, 0) | 1 << number
        self.keys = sorted(versions)
        self.below = [0]
        for key in self.keys:
            self.below.append(self.below[-1] | versions[key])

    def compared(self, version: str) -> tuple[int, int, int] | None:
        """Return the kinds whose version is lower, equal and higher; None when ``version`` is not a
        version.
        """
        key = _numbers(version)
        if key is None:
            return None
        low = bisect_left(self.keys, key)
        lower, versioned = self.below[low], self.below[-1]
        upto = self.below[low + 1] if low < len(self.keys) and self.keys[low] == key else lower
        return lower, upto & ~lower, versioned & ~upto


class _DeviceKinds:
    """The properties of kinds of device; ``all`` is the set of all kinds."""

    def __init__(self, kinds: Sequence[dict[str, str | None]]) -> None:
        self.all = (1 << len(kinds)) - 1
        self.properties = {name: _Property([facts[name] for facts in kinds]) for name in kinds[0]}


def _evaluate(requirement: str, devices: _DeviceKinds, kinds: int) -> tuple[int, int]:
    """Return the set of ``kinds`` for which a requirement holds, and of those for which a deciding
    factor is invalid.
    """
    holds, invalid, undecided, empty = 0, 0, kinds, True
    for term in filter(None, requirement.split(" ")):
        if not term.strip(","):
            continue
        empty = False
        good, bad, _ = _evaluate_term(term, devices, undecided)
        holds |= good
        invalid |= bad
        undecided &= ~(good | bad)
        if not undecided:
            break
    return (kinds, 0) if empty else (holds, invalid)


def _evaluate_term(term: str, devices: _DeviceKinds, kinds: int) -> tuple[int, int, str]:
    """Return the same sets for one alternative, and the factor at which its evaluation ended."""
    holds, invalid, factor = kinds, 0, ""
    for factor in filter(None, term.split(",")):
        good, bad = _evaluate_factor(factor, devices)
        if holds & ~good:
            if len(factor.encode("utf-8", "surrogateescape")) > _FACTOR_LIMIT:
                bad = ~good
            invalid |= holds & bad
            holds &= good
            if not holds:
                break
    return holds, invalid, factor


def _evaluate_factor(factor: str, devices: _DeviceKinds) -> tuple[int, int]:
    """Return the set of all kinds for which a factor holds, and of those for which it is
    invalid.
    """
    name, operator, value = _split(factor)
    accepted = _OPERATORS.get(operator)
    prop = devices.properties.get(name)
    if accepted is None or not value or prop is None:
        return 0, devices.all
    with_property = devices.all & ~prop.unknown
    if not with_property:
        return prop.unknown, 0
    if name == "brand":
        if operator not in ("=", "!=", "!"):
            return prop.unknown, with_property
        same = prop.brands.get(value.lower(), 0)
        return prop.unknown | (same if operator == "=" else with_property & ~same), 0
    compared = prop.compared(value)
    if compared is None:
        return prop.unknown, with_property
    good = prop.unknown
    for order in accepted:
        good |= compared[order + 1]
    return good, prop.invalid


def _split(factor: str) -> tuple[str, str, str]:
    start = len(factor.translate(_ONE_SIGN).partition("=")[0])
    rest = factor[start:]
    value = rest.lstrip(_SIGNS)
    return factor[:start].lower(), rest[: len(rest) - len(value)], value


def _hint(requirement: str, facts: dict[str, str | None]) -> str:
    provided = ", ".join(f"{name} {value}" for name, value in facts.items() if value)
    failures = "; ".join(
        f"{_short(failed.term)}: {_short(failed.factor)}"
        f" {'does not hold' if failed.valid else 'is not a valid condition'}"
        for failed in alternatives(requirement, facts, 8)
        if failed.factor
    )
    return (
        f"this host provides {provided}; {failures}; use a newer driver or another image, or"
        " set NVIDIA_DISABLE_REQUIRE=1"
    )


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."
