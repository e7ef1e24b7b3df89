"""requirements: the expressions, their evaluation from left to right, and what is said when they fail."""

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
def test_what_holds(requirement: str) -> None:
    """Versions compare by number, properties without regard to case, and evaluation stops where the result is known."""
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
def test_what_fails(requirement: str, line: str) -> None:
    """The first alternative is quoted whole; a factor that is reached and makes no sense aborts everything."""
    assert failure(requirement) == line


def test_a_long_factor_that_holds_is_fine() -> None:
    """Only a false factor runs into the reference's buffer."""
    assert failure(f"brand!={'x' * 500}") == ""


def test_every_requirement_must_hold_for_every_device() -> None:
    """All expressions count, for all devices, device by device."""
    assert failure("cuda>=1", "driver=550") == unsatisfied("driver=550")
    assert failure("arch>=8", devices=(DEVICE, ("7.5", "Tesla"))) == unsatisfied("arch>=8")
    assert failure("brand!=tesla", "arch>=9", devices=(DEVICE, ("7.5", "Tesla"))) == unsatisfied(
        "arch>=9"
    )


def test_without_a_device_what_is_said_of_devices_holds() -> None:
    """With no device arch and brand hold whatever they are compared with; the driver is still checked."""
    for requirement in ("arch>=99", "brand=none", "brand>=x", "arch=abc"):
        assert failure(requirement, devices=()) == ""
    assert failure("arch==1", devices=()) == INVALID
    assert failure("cuda>=99", devices=()) == unsatisfied("cuda>=99" + UPDATE)


def test_the_hint_says_what_is_provided_and_tried() -> None:
    """Cause and fix: the host's versions, each alternative with the condition that failed, and what to do."""
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


def test_alternatives() -> None:
    """Every alternative is evaluated, also those behind one that holds."""
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
    """Without the zeros at the end, versions are ordered as lists of their numbers, whatever zeros stand in front."""

    def key(numbers: list[int]) -> list[int]:
        while numbers and not numbers[-1]:
            numbers = numbers[:-1]
        return numbers

    facts: dict[str, str | None] = {"driver": ".".join(map(str, left))}
    wanted = {
        "=": key(left) == key(right),
        "<": key(left) < key(right),
        ">=": key(left) >= key(right),
    }
    for operator, holds in wanted.items():
        (found,) = alternatives(
            f"driver{operator}" + ".".join(f"{number:03}" for number in right), facts
        )
        assert (found.valid, not found.factor) == (True, holds)


KINDS = [(f"{number // 7}.{number % 7}", f"Brand {number % 11}") for number in range(64)]


@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=8), st.lists(EXPRESSIONS, max_size=3))
def test_all_devices_at_once_or_one_by_one(
    devices: list[tuple[str, str]], expressions: list[str]
) -> None:
    """What is said is what the first device that it fails for would get by itself."""
    one_by_one = [failure(*expressions, devices=[device]) for device in devices]
    assert failure(*expressions, devices=devices) == next(filter(None, one_by_one), "")


@pytest.mark.parametrize(
    "expression",
    ["arch>=0,brand!x cuda>=1", "arch>=99 brand=x cuda>=1", "arch>4 brand=brand5,cuda>=1 driver>1"],
)
def test_many_devices_take_no_more_work_than_one(
    expression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A condition is read once, however many GPUs differ in what it is about: 2 MiB of them would hold up a node of 64."""
    read: list[str] = []
    split = requirements._split

    def counted(factor: str) -> tuple[str, str, str]:
        read.append(factor)
        return split(factor)

    monkeypatch.setattr(requirements, "_split", counted)
    assert failure(*[expression] * 32, devices=KINDS) == ""
    assert len(read) <= 32 * len(expression.replace(",", " ").split())


def test_a_comparison_looks_at_few_of_many_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The versions of the devices are in order: of 64 of them 6 are compared, and they are read before, once."""
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
def test_any_text_holds_or_is_refused(requirement: str) -> None:
    """Whatever the text, nothing but a refusal comes out."""
    failure(requirement)


def test_time_is_linear() -> None:
    """64 KiB of anything is decided at once: long numbers are compared as text, terms are walked once."""
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
