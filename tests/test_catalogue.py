"""Invariants of the catalogue."""

import re
from itertools import groupby

import pytest

from nvgraft.request.request import Request
from nvgraft_specs import catalogue, names

TABLES = {"libraries": catalogue.LIBRARIES, "binaries": catalogue.BINARIES}
#: Classes that a capability of another name switches on.
SHARED = {"glvnd"}


def row_names(table: str) -> list[str]:
    return [row.name for row in TABLES[table]]


def classes_in_order(table: str) -> list[str]:
    """Return the class of each block of rows; a class with two blocks occurs twice."""
    return [name for name, _ in groupby(row.component_class for row in TABLES[table])]


@pytest.mark.parametrize("table", TABLES)
def test_rows_and_classes_are_unique(table: str) -> None:
    """No row occurs twice, and no class has two blocks."""
    rows = row_names(table)
    assert len(rows) == len(set(rows))
    classes = classes_in_order(table)
    assert len(classes) == len(set(classes))


@pytest.mark.parametrize("table", TABLES)
def test_no_row_is_a_prefix_of_another(table: str) -> None:
    """A file belongs to the one row whose name starts its own: a prefix would take it."""
    rows = row_names(table)
    for row in rows:
        assert [other for other in rows if other != row and other.startswith(row)] == []


@pytest.mark.parametrize("table", TABLES)
def test_versions_are_releases(table: str) -> None:
    """``since`` is "" or MAJOR.MINOR.PATCH of libnvidia-container."""
    for row in TABLES[table]:
        assert row.since == "" or re.fullmatch(r"1\.\d+\.\d+", row.since), row


def test_names_are_plain() -> None:
    """Rows are names of libraries that end in .so, or of programs; none is a path or a pattern."""
    assert all(re.fullmatch(r"lib[A-Za-z0-9_-]+\.so", name) for name in row_names("libraries"))
    assert all(re.fullmatch(r"nv[a-z-]+", name) for name in row_names("binaries"))


def test_every_capability_is_covered() -> None:
    """Each capability has an entry, also if it switches on no class."""
    assert tuple(catalogue.LIBRARY_CLASSES) == names.CAPABILITIES
    assert set(catalogue.BINARY_CLASSES) <= set(names.CAPABILITIES)


@pytest.mark.parametrize(
    ("table", "switches"),
    [("libraries", catalogue.LIBRARY_CLASSES), ("binaries", catalogue.BINARY_CLASSES)],
    ids=["libraries", "binaries"],
)
def test_every_class_is_known_and_reachable(
    table: str, switches: dict[str, tuple[str, ...]]
) -> None:
    """Switched classes exist, and a class that is not shared has a capability of its name."""
    classes = set(classes_in_order(table))
    assert {name for enabled in switches.values() for name in enabled} == classes
    for component_class in classes - SHARED:
        assert component_class in switches[component_class]


def test_lookup_order_is_the_references() -> None:
    """It is also the order of mounts."""
    assert classes_in_order("libraries") == [
        "utility",
        "compute",
        "ngx",
        "video",
        "graphics",
        "glvnd",
    ]
    assert classes_in_order("binaries") == ["utility", "compute"]


def test_links_belong_to_library_rows() -> None:
    """Each link belongs to a row, and its target is a plain name."""
    prefixes = row_names("libraries")
    for prefix, name, target in catalogue.LIBRARY_LINKS:
        assert prefix in prefixes
        assert "/" not in name + target
        assert name != target


def test_paths_are_absolute() -> None:
    """Sockets and the MPS directory are looked up below the driver root."""
    assert all(
        path.startswith("/") and path == path.rstrip("/")
        for path in (*catalogue.SERVICE_SOCKETS.values(), catalogue.MPS_DIRECTORY)
    )
    assert catalogue.TLS_LIBRARY in row_names("libraries")


def test_numbers_fit_their_kernel_types() -> None:
    """The GPU mask has 64 bits, and GPU minors are below those of the control nodes."""
    assert catalogue.MAX_GPUS == 64
    assert catalogue.MAX_GPUS <= catalogue.MODESET_MINOR < catalogue.CONTROL_MINOR < 256


def test_default_capabilities_exist() -> None:
    """The default capabilities are known ones."""
    assert set(names.DEFAULT_CAPABILITIES) <= set(names.CAPABILITIES)
    assert list(names.CAPABILITIES) == sorted(names.CAPABILITIES)
    assert Request((), names.DEFAULT_CAPABILITIES).capabilities == ("compute", "utility")
