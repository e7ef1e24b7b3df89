"""What makes two values equal: every field."""

import importlib
import pkgutil

import nvgraft
from nvgraft.base.values import Value
from nvgraft.plan.actions import Bind, Why


class Point(Value):
    def __init__(self, x: int, y: int) -> None:
        self.x = x
        self.y = y


class Pixel(Point):
    def __init__(self, x: int, y: int, colour: str) -> None:
        super().__init__(x, y)
        self.colour = colour


def test_every_field_counts() -> None:
    """Those of a base class too; values with equal fields are equal, and one key."""
    assert Pixel(1, 2, "red") == Pixel(1, 2, "red")
    assert {Pixel(1, 2, "red"), Pixel(1, 2, "red")} == {Pixel(1, 2, "red")}
    for other in (Pixel(0, 2, "red"), Pixel(1, 0, "red"), Pixel(1, 2, "blue")):
        assert Pixel(1, 2, "red") != other


def test_values_of_different_types_differ() -> None:
    """Equal fields do not make two types equal, nor a subclass equal to its base."""

    class Place(Point):
        pass

    assert Point(1, 2) != Place(1, 2)
    assert Point(1, 2) != (1, 2)


def test_values_in_values() -> None:
    """An action is equal to one with an equal reason, and is the same key."""
    actions = [
        Bind("file", "driver", "/s", "/t", (), 0o644, Why("a", "b", found)) for found in "ccd"
    ]
    assert len(set(actions)) == 2


def test_the_representation_names_every_field() -> None:
    """What a failed comparison prints shows the field that differs."""
    assert repr(Pixel(1, 2, "red")) == "Pixel(x=1, y=2, colour='red')"


def with_slots(kind: type[object]) -> list[type[object]]:
    """Return the classes below ``kind`` that have ``__slots__``, itself included."""
    itself = [kind] if "__slots__" in vars(kind) else []
    return itself + [each for below in kind.__subclasses__() for each in with_slots(below)]


def test_no_value_hides_a_field_in_slots() -> None:
    """Such a field would not count: no class of the engine has one."""
    base = type("Base", (), {})
    hiding = type("Hiding", (base,), {"__slots__": ("hidden",)})
    assert with_slots(base) == [hiding]
    for module in pkgutil.walk_packages(nvgraft.__path__, "nvgraft."):
        importlib.import_module(module.name)
    assert with_slots(Value) == []
