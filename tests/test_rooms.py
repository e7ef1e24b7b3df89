"""The rooms of the code: which may import which, as one table for each package
(docs/how-it-works.md has a picture).

A room is a directory; the modules at the top of a package are its doors. ``apply/cache``,
``case/image``, ``prove/start`` and others are rooms inside rooms.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from sources import nodes

CHECKOUT = Path(__file__).parent.parent
DOORS = ""

#: Package -> room -> the rooms that it may import, besides itself and the package.
ALLOWED = {
    "hook/nvgraft": {
        "base": "",
        "system": "base",
        "formats": "base",
        "request": "base system",
        "host": "base system formats request",
        "container": "base system formats",
        "plan": "base formats request host container",
        "apply": "base system container plan",
        "apply/cache": "base system formats container plan apply",
        "cdi": "base system formats request host",
        "wrapper": "base request host cdi",
        "report": "base system",
        "startup": "",
        DOORS: "base system request host container plan cdi apply apply/cache wrapper report startup",
    },
    "cli/nvgraft_cli": {
        "shell": "container_cli docker_v1",  # commands without the parser of the others
        "case": "shell case/image",
        "case/image": "shell",
        "install": "",
        "simulate": "shell simulate/standins",
        "simulate/standins": "",
        "cdi": "case inventory shell",
        "container_cli": "",
        "diff": "case case/image export shell",
        "docker_v1": "",
        "doctor": "case pods shell prove prove/start prove/loader explain_error register",
        "dra": "case cdi pods shell",
        "explain": "case doctor html lab pods prove prove/start shell why",
        "html": "shell",
        "explain_error": "shell",
        "export": "case shell",
        "inventory": "case shell starts",
        "lab": "case lab/ground lab/lessons html prove shell simulate why",
        "lab/ground": "container_cli shell",
        "lab/lessons": "install lab/ground shell simulate simulate/standins",
        "last_error": "shell",
        "matrix": "case shell",
        "pages": "shell",
        "plan": "case pods shell cdi",
        "pods": "case shell",
        "prove": "case pods shell prove/start prove/script prove/loader prove/python",
        "prove/start": "case prove/script prove/loader",
        "prove/python": "case prove/script prove/start prove/loader",
        "prove/script": "case",
        "prove/loader": "case shell",
        "recover": "case shell",
        "register": "install shell",
        "snapshot": "case shell",
        "starts": "shell",
        "why": "case pods prove shell",
    },
}


def imported(path: Path, package: str) -> Iterator[str]:
    """Yield each module of ``package`` that a source imports, imports for the type checker
    included.
    """
    for node in nodes(path.read_text()):
        if (
            isinstance(node, ast.ImportFrom)
            and node.module
            and node.module.split(".")[0] == package
        ):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == package)


def room_of(name: str, root: Path) -> str:
    """Return the room of a module by its dotted name: the longest part that is a directory."""
    parts = name.split(".")[1:]
    while parts and not root.joinpath(*parts).is_dir():
        parts.pop()
    return "/".join(parts)


def edges(root: Path) -> set[tuple[str, str, str]]:
    """Return (room, imported room, source) for each import that leaves its room."""
    return {
        (room, other, str(path.relative_to(root)))
        for path in sorted(root.rglob("*.py"))
        for room in [str(path.parent.relative_to(root)).replace(".", "", 1)]
        for name in imported(path, root.name)
        for other in [room_of(name, root)]
        if other not in (room, DOORS) or (other == DOORS and is_door(name, root) and room != DOORS)
    }


def is_door(name: str, root: Path) -> bool:
    """Return whether a dotted name is a module at the top of its package, or something in one."""
    parts = name.split(".")
    return len(parts) > 1 and (root / f"{parts[1]}.py").is_file()


@pytest.mark.parametrize("package", ALLOWED)
def test_every_import_is_allowed_by_the_table(package: str) -> None:
    """Every import goes to a room that the table allows; a new direction is a decision, made in the
    table.
    """
    allowed = {room: set(others.split()) for room, others in ALLOWED[package].items()}
    imports = edges(CHECKOUT / package)
    assert [edge for edge in sorted(imports) if edge[1] not in allowed[edge[0]]] == []


@pytest.mark.parametrize("package", ALLOWED)
def test_every_permission_of_the_table_is_used(package: str) -> None:
    """The table allows no direction that no module takes."""
    allowed = {
        (room, other) for room, others in ALLOWED[package].items() for other in others.split()
    }
    assert allowed - {(room, other) for room, other, _ in edges(CHECKOUT / package)} == set()


def test_no_two_classes_share_a_name() -> None:
    """Each class of the engine and of the commands has a name of its own, a leading ``_`` aside."""
    counts = Counter(
        node.name.lstrip("_")
        for package in ALLOWED
        for path in (CHECKOUT / package).rglob("*.py")
        for node in nodes(path.read_text())
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in counts.items() if count > 1] == []


@pytest.mark.parametrize("package", ALLOWED)
def test_the_table_has_every_room_and_no_circle(package: str) -> None:
    """The table has every room, and each room imports only from rooms on lower floors."""
    root = CHECKOUT / package
    rooms = {str(path.parent.relative_to(root)).replace(".", "", 1) for path in root.rglob("*.py")}
    table = {room: set(others.split()) for room, others in ALLOWED[package].items()}
    assert set(table) == {room for room in rooms if room != DOORS or DOORS in table}
    placed: set[str] = set()
    while ready := {room for room in table if room not in placed and table[room] <= placed}:
        placed |= ready
    assert placed == set(table), "the other rooms import each other in a circle"


@pytest.mark.parametrize("package", ALLOWED)
def test_every_room_has_a_docstring(package: str) -> None:
    """The ``__init__`` of every room has a docstring, which says what belongs there."""
    root = CHECKOUT / package
    without_docstring = [
        room
        for room in ALLOWED[package]
        if not ast.get_docstring(ast.parse((root / room / "__init__.py").read_text()))
    ]
    assert without_docstring == []


def test_an_import_upward_is_found(tmp_path: Path) -> None:
    """An import upward is found in each form of Python's import statement."""
    package = tmp_path / "nvgraft"
    for room in ("base", "plan"):
        (package / room).mkdir(parents=True)
        (package / room / "__init__.py").touch()
    (package / "plan" / "layout.py").touch()
    for line in (
        "from nvgraft.plan import layout",
        "from nvgraft.plan.layout import x",
        "import nvgraft.plan.layout",
    ):
        (package / "base" / "values.py").write_text(f"def f():\n    {line}\n")
        assert edges(package) == {("base", "plan", "base/values.py")}
    (package / "graft.py").write_text("import nvgraft.plan.layout")
    (package / "base" / "values.py").write_text("from nvgraft.graft import graft")
    assert edges(package) == {("", "plan", "graft.py"), ("base", "", "base/values.py")}


#: What commands share with the device plugin: its decisions, which need no gRPC.
PLUGIN_DECISIONS = {
    *("allocate", "cdi_files", "configuration", "devices", "errors", "files", "labels"),
    *("preferred", "recorded", "resources"),
}
#: What only a serving plugin needs.
_SERVING = {"grpc", "google", "prometheus_client", "pynvml", "asyncio", "structlog"}


def _modules_of_plugin(path: Path) -> set[str]:
    return {name.split(".")[1] for name in imported(path, "nvgraft_device_plugin") if "." in name}


def test_commands_import_only_the_decisions_of_the_device_plugin() -> None:
    """A command imports no module of the device plugin that serves the kubelet, and the plugin's
    decisions import neither those nor commands.
    """
    plugin = CHECKOUT / "plugin/nvgraft_device_plugin"
    files = {path.stem for path in plugin.glob("*.py")}
    for path in (CHECKOUT / "cli").rglob("*.py"):
        assert _modules_of_plugin(path) & files <= PLUGIN_DECISIONS, path
    for name in PLUGIN_DECISIONS:
        path = plugin / f"{name}.py"
        assert _modules_of_plugin(path) & files <= PLUGIN_DECISIONS, path
        for package in (*_SERVING, "nvgraft_cli"):
            assert set(imported(path, package)) == set(), path


PICTURE = CHECKOUT / "docs/how-it-works.svg"
SVG = "{http://www.w3.org/2000/svg}"


def test_the_picture_shows_every_room_above_its_imports() -> None:
    """docs/how-it-works.svg shows every room of the hook above the rooms that it may import."""
    picture = ElementTree.parse(PICTURE)
    floors = {
        room.attrib["id"]: float(room.attrib["y"])
        for room in picture.iter(f"{SVG}rect")
        if room.get("id")
    }
    table = {room or "doors": others.split() for room, others in ALLOWED["hook/nvgraft"].items()}
    assert set(floors) == set(table)
    texts = {"".join(text.itertext()).partition(":")[0] for text in picture.iter(f"{SVG}text")}
    assert set(table) <= texts
    assert [
        (room, other)
        for room, others in table.items()
        for other in others
        if floors[room] >= floors[other]
    ] == []


def test_the_arrows_of_the_picture_are_the_tables() -> None:
    """Each arrow goes downward and is allowed; other allowed imports follow from several arrows."""
    table = {
        room or "doors": set(others.split()) for room, others in ALLOWED["hook/nvgraft"].items()
    }
    arrows = dict.fromkeys(table, frozenset[str]())
    for line in ElementTree.parse(PICTURE).iter(f"{SVG}polyline"):
        heights = [float(point.split(",")[1]) for point in line.attrib["points"].split()]
        assert heights == sorted(heights) and heights[0] < heights[-1]
        if "data-from" in line.attrib:
            arrows[line.attrib["data-from"]] |= {line.attrib["data-to"]}

    def reached(room: str) -> set[str]:
        return set(arrows[room]).union(*(reached(other) for other in arrows[room]))

    for room, others in table.items():
        assert arrows[room] <= others <= reached(room)
