"""requirements: the expressions, their evaluation from left to right, and the errors."""

import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvgraft.base.errors import Refusal
from nvgraft.request import requirements
from nvgraft.request.requirements import Alternative, alternatives, check

DRIVER, CUDA, DEVICE = "535.309.01", "12.2", ("8.0", "Nvidia")


def failure(*requirements: str, devices: Sequence[tuple[str, str]] = (DEVICE,)) -> str:
    """Return the error line without its hint, or an empty string."""
    try:
        check(requirements, DRIVER, CUDA, devices)
    except Refusal as refusal:
        assert refusal.hint
        return refusal.reference_line()
    return ""


def unsatisfied(first: str) -> str:
    return f"nvgraft: requirement error: unsatisfied condition: {first}"


UPDATE = ", please update your driver to a newer version, or use an earlier cuda container"
INVALID = "nvgraft: requirement error: invalid expression"


@pytest.mark.parametrize(
    "requirement",
    [
        "",
        " ",
        ",",
        " , ,",
        "cuda>=9.0",
        "CUDA>=9.0",
        "cuda>=9.0,",
        ",cuda>=9.0",
        " cuda>=9.0",
        "cuda=12.2",
        "cuda=12.2.0",
        "cuda=012.02",
        "cuda=12..2",
        "cuda!=11",
        "cuda!11",
        "driver<=535.309.01",
        "driver>535.309",
        "driver<535.309.1.0.1",
        "arch=8",
        "arch<9,arch>7.5",
        "brand=NVIDIA",
        "brand!=tesla",
        "cuda<5 driver>=300",
        "cuda>=99 brand=tesla cuda>=1",
        "cuda>=1 bogus",
        "cuda<5,bogus driver>1",
    ],
)
def test_requirements_that_hold(requirement: str) -> None:
    """Versions compare by number, properties without regard to case, and evaluation ends when the
    result is known.
    """
    assert failure(requirement) == ""


@pytest.mark.parametrize(
    ("requirement", "line"),
    [
        ("cuda>=99", unsatisfied("cuda>=99" + UPDATE)),
        ("CUDA>=99", unsatisfied("CUDA>=99")),
        ("cuda>=99,brand=x brand=tesla", unsatisfied("cuda>=99,brand=x" + UPDATE)),
        ("brand=Tesla,driver>=390,driver<1000", unsatisfied("brand=Tesla,driver>=390,driver<1000")),
        (" cuda>=99", unsatisfied("")),
        ("cuda>=99 ,", unsatisfied("cuda>=99" + UPDATE)),
        ("arch>=9.1", unsatisfied("arch>=9.1")),
        ("driver=550", unsatisfied("driver=550")),
        ("cuda<12.2", unsatisfied("cuda<12.2")),
        ("cuda", INVALID),
        ("cuda>=", INVALID),
        (">=1", INVALID),
        ("bogus>=1", INVALID),
        ("cuda==12.2", INVALID),
        ("cuda=>9", INVALID),
        ("cuda=<99", INVALID),
        ("cuda<>9", INVALID),
        ("cuda>>1", INVALID),
        ("cuda>=abc", INVALID),
        ("cuda>=.1", INVALID),
        ("cuda>=1=2", INVALID),
        ("cuda>=²", INVALID),
        ("brand>=tesla", INVALID),
        ("cuda<5 bogus", INVALID),
        ("cuda>=9,bogus", INVALID),
        ("cuda>=1\t2", INVALID),
        (f"brand={'x' * 121}", unsatisfied(f"brand={'x' * 121}")),
        (f"brand={'x' * 122}", INVALID),
    ],
)
def test_requirements_that_fail(requirement: str, line: str) -> None:
    """The error quotes the whole first alternative; an invalid factor that is reached fails the
    requirement.
    """
    assert failure(requirement) == line


def test_a_long_factor_that_holds_is_accepted() -> None:
    """A long factor that holds is accepted: only a false one reaches the limit of the reference's
    buffer.
    """
    assert failure(f"brand!={'x' * 500}") == ""


def test_every_requirement_must_hold_for_every_device() -> None:
    """Every requirement must hold for every device; devices are checked one after the other."""
    assert failure("cuda>=1", "driver=550") == unsatisfied("driver=550")
    assert failure("arch>=8", devices=(DEVICE, ("7.5", "Tesla"))) == unsatisfied("arch>=8")
    assert failure("brand!=tesla", "arch>=9", devices=(DEVICE, ("7.5", "Tesla"))) == unsatisfied(
        "arch>=9"
    )


def test_without_devices_arch_and_brand_hold() -> None:
    """Without devices arch and brand hold whatever they are compared with; cuda and driver are
    still checked.
    """
    for requirement in ("arch>=99", "brand=none", "brand>=x", "arch=abc"):
        assert failure(requirement, devices=()) == ""
    assert failure("arch==1", devices=()) == INVALID
    assert failure("cuda>=99", devices=()) == unsatisfied("cuda>=99" + UPDATE)


def test_the_hint_has_versions_and_failed_conditions() -> None:
    """The hint has the host's versions, each alternative with the condition that failed, and the
    fix.
    """
    with pytest.raises(Refusal) as error:
        check(
            ["cuda>=12.6 brand=tesla,driver>=470 bogus,cuda>1"], DRIVER, CUDA, [("8.0", "Nvidia")]
        )
    assert error.value.text == "invalid expression"
    for part in (
        "cuda 12.2, driver 535.309.01, arch 8.0, brand Nvidia",
        "cuda>=12.6: cuda>=12.6 does not hold",
        "brand=tesla,driver>=470: brand=tesla does not hold",
        "bogus,cuda>1: bogus is not a valid condition",
        "NVIDIA_DISABLE_REQUIRE=1",
    ):
        assert part in error.value.hint


def test_every_alternative_is_evaluated() -> None:
    """Every alternative is evaluated, also behind one that holds."""
    facts = {"cuda": "12.2", "driver": "535", "arch": None, "brand": None}
    assert alternatives("cuda>=1  cuda>=13,x arch=7 x", facts) == (
        Alternative("cuda>=1", "", True),
        Alternative("cuda>=13,x", "cuda>=13", True),
        Alternative("arch=7", "", True),
        Alternative("x", "x", False),
    )


versions = st.lists(st.integers(0, 12), min_size=1, max_size=4)

FACTORS = st.builds(
    str.__add__,
    st.sampled_from(
        [
            "arch>=",
            "arch<",
            "arch!=",
            "arch=",
            "brand=",
            "brand!",
            "brand<",
            "cuda>=",
            "driver<",
            "x",
        ]
    ),
    st.sampled_from(["0", "3.0", "3.1", "9", "brand 3", "Brand 5", "12.2", "x", "", "1" * 130]),
)
EXPRESSIONS = st.lists(st.lists(FACTORS, max_size=3).map(",".join), max_size=3).map(" ".join)


@given(versions, versions)
def test_versions_compare_as_lists_of_numbers(left: list[int], right: list[int]) -> None:
    """Versions compare as lists of their numbers, without zeros at the end and leading zeros."""

    def key(numbers: list[int]) -> list[int]:
        while numbers and not numbers[-1]:
            numbers = numbers[:-1]
        return numbers

    facts: dict[str, str | None] = {"driver": ".".join(map(str, left))}
    expected = {
        "=": key(left) == key(right),
        "<": key(left) < key(right),
        ">=": key(left) >= key(right),
    }
    for operator, holds in expected.items():
        (alternative,) = alternatives(
            f"driver{operator}" + ".".join(f"{number:03}" for number in right), facts
        )
        assert (alternative.valid, not alternative.factor) == (True, holds)


KINDS = [(f"{number // 7}.{number % 7}", f"Brand {number % 11}") for number in range(64)]


@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=8), st.lists(EXPRESSIONS, max_size=3))
def test_devices_together_give_the_first_failure_of_each_alone(
    devices: list[tuple[str, str]], expressions: list[str]
) -> None:
    """The error for several devices is that of the first device that fails alone."""
    one_by_one = [failure(*expressions, devices=[device]) for device in devices]
    assert failure(*expressions, devices=devices) == next(filter(None, one_by_one), "")


@pytest.mark.parametrize(
    "expression",
    ["arch>=0,brand!x cuda>=1", "arch>=99 brand=x cuda>=1", "arch>4 brand=brand5,cuda>=1 driver>1"],
)
def test_a_condition_is_parsed_once_for_all_devices(
    expression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A condition is parsed once for any number of different GPUs, so that 2 MiB of conditions do
    not block a node of 64.
    """
    parsed: list[str] = []
    split = requirements._split

    def counted(factor: str) -> tuple[str, str, str]:
        parsed.append(factor)
        return split(factor)

    monkeypatch.setattr(requirements, "_split", counted)
    assert failure(*[expression] * 32, devices=KINDS) == ""
    assert len(parsed) <= 32 * len(expression.replace(",", " ").split())


def test_a_comparison_uses_few_of_many_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The devices' versions are parsed and sorted once, and a comparison with 64 of them takes 6
    steps.
    """
    compared = 0

    class Counting(tuple):  # type: ignore[type-arg]
        def __lt__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return tuple.__lt__(self, other)  # type: ignore[operator]

    numbers = requirements._numbers
    monkeypatch.setattr(requirements, "_numbers", lambda version: Counting(numbers(version) or ()))
    devices = [(f"{number}.1", "Tesla") for number in range(64)]
    assert failure(devices=devices) == ""
    ordering = compared
    assert failure("arch<100,arch!=7.2,arch>=0", devices=devices) == ""
    assert compared - 2 * ordering <= 3 * 7


@given(st.text(alphabet="cudariveh<>=!0129. ,x", max_size=40))
def test_any_text_is_evaluated_or_refused(requirement: str) -> None:
    """Any text is evaluated or refused."""
    failure(requirement)


def test_long_requirements_take_linear_time() -> None:
    """64 KiB of any text take linear time: long numbers compare as text, and terms are visited
    once.
    """
    start = time.monotonic()
    for requirement in (
        "cuda>=" + "9" * 65530,
        "x" * 65536,
        "cuda<1 " * 9362,
        "cuda>1," * 9362,
        "=" * 65536,
        "cuda>=" + "1." * 32765,
    ):
        failure(requirement)
    assert time.monotonic() - start < 10
