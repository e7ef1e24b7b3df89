"""Values are equal if their types and all fields are."""

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


def test_every_field_is_compared() -> None:
    """Values with equal fields, also those of the base class, are equal and have one hash."""
    assert Pixel(1, 2, "red") == Pixel(1, 2, "red")
    assert {Pixel(1, 2, "red"), Pixel(1, 2, "red")} == {Pixel(1, 2, "red")}
    for other in (Pixel(0, 2, "red"), Pixel(1, 0, "red"), Pixel(1, 2, "blue")):
        assert Pixel(1, 2, "red") != other


def test_values_of_different_types_differ() -> None:
    """Equal fields do not make values of two types equal, not even of a subclass and its base."""

    class Place(Point):
        pass

    assert Point(1, 2) != Place(1, 2)
    assert Point(1, 2) != (1, 2)


def test_values_in_values() -> None:
    """Values that have equal values as fields are equal."""
    actions = [Bind("file", "driver", "/s", "/t", (), 0o644, Why("a", "b", text)) for text in "ccd"]
    assert len(set(actions)) == 2


def test_the_representation_names_every_field() -> None:
    """The representation has every field by name."""
    assert repr(Pixel(1, 2, "red")) == "Pixel(x=1, y=2, colour='red')"


def with_slots(kind: type[object]) -> list[type[object]]:
    """Return the classes below ``kind``, itself included, that have ``__slots__``."""
    itself = [kind] if "__slots__" in vars(kind) else []
    return itself + [each for below in kind.__subclasses__() for each in with_slots(below)]


def test_no_value_hides_a_field_in_slots() -> None:
    """No value of the engine has ``__slots__``, whose fields would not be compared."""
    base = type("Base", (), {})
    hiding = type("Hiding", (base,), {"__slots__": ("hidden",)})
    assert with_slots(base) == [hiding]
    for module in pkgutil.walk_packages(nvgraft.__path__, "nvgraft."):
        importlib.import_module(module.name)
    assert with_slots(Value) == []
