"""What makes two values equal: every field, for every value type of the engine."""

import importlib
import pkgutil
from collections.abc import Iterator

import pytest

import nvgraft
from nvgraft.base.values import Value
from nvgraft.plan.actions import Bind, Plan, Why


def _classes() -> Iterator[type[Value]]:
    """Every value type of the engine: all of its modules are loaded to find them."""
    for module in pkgutil.walk_packages(nvgraft.__path__, "nvgraft."):
        importlib.import_module(module.name)
    pending = Value.__subclasses__()
    while pending:
        found = pending.pop()
        pending.extend(found.__subclasses__())
        yield found


CLASSES = sorted(
    (found for found in _classes() if found.__slots__),
    key=lambda found: f"{found.__module__}.{found.__name__}",
)


def _fields(kind: type[Value]) -> list[str]:
    """Every slot of a class and of those that it derives from."""
    return [name for base in kind.__mro__ for name in getattr(base, "__slots__", ())]


def _filled(kind: type[Value], changed: str = "") -> Value:
    value = object.__new__(kind)
    for name in _fields(kind):
        setattr(value, name, ("other" if name == changed else "same", name))
    return value


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_field_takes_part_in_identity(kind: type[Value]) -> None:
    """Values with equal fields are equal and hash alike; one other field, whichever it is, makes them different."""
    assert _filled(kind) == _filled(kind)
    assert hash(_filled(kind)) == hash(_filled(kind))
    for name in _fields(kind):
        assert _filled(kind) != _filled(kind, name), name


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_the_representation_names_every_field(kind: type[Value]) -> None:
    """What a failed comparison prints shows the field that differs."""
    for name in _fields(kind):
        assert f"{name}=('other'" in repr(_filled(kind, name))


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_values_carry_nothing_beside_their_fields(kind: type[Value]) -> None:
    """No instance has a __dict__ in which a field could hide from equality."""
    assert not hasattr(_filled(kind), "__dict__")


def test_the_types_that_plans_are_made_of_are_checked() -> None:
    """The search above finds the engine's types, not an empty list."""
    assert {"Bind", "Component", "Mount", "Node", "Plan", "Request", "Selection"} <= {
        kind.__name__ for kind in CLASSES
    }


def test_values_of_different_types_differ() -> None:
    """Equal fields do not make two types equal, nor a subclass equal to its base."""

    class Narrow(Why):
        __slots__ = ()

    assert Why("a", "b", "c") != Narrow("a", "b", "c")
    assert Why("a", "b", "c") != ("a", "c", "b")


def test_values_work_as_keys() -> None:
    """Equal values are one key; a plan hashes although it holds dictionaries."""
    why = Why("a", "b", "c")
    assert {
        Bind("file", "driver", "/s", "/t", (), 0o644, why),
        Bind("file", "driver", "/s", "/t", (), 0o644, Why("a", "b", "c")),
    } == {Bind("file", "driver", "/s", "/t", (), 0o644, why)}
    assert (
        len(
            {
                Plan("skip", "r"),
                Plan("skip", "r"),
                Plan("skip", "other"),
            }
        )
        == 2
    )
