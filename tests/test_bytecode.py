"""Packed byte code: what is loaded from the files of the groups, and when they are not used."""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import MAGIC_NUMBER, cache_from_source, find_spec
from pathlib import Path
from typing import Any

import _prctl
import prctl
import pytest

from nvgraft.startup import DIRECTORY, GROUPS
from nvgraft_cli.install import install, pack

CHECKOUT = Path(__file__).parent.parent
#: Loads all groups as the hook does, and prints the imports of nvgraft that were not packed.
PROGRAM = """
import sys
sys.path += {paths!r}
machinery = sys.modules["_frozen_importlib"]
find_and_load = machinery._find_and_load
imported = []
def find(name, function):
    imported.append(name)
    return find_and_load(name, function)
machinery._find_and_load = find
from nvgraft import startup
startup.load("hook")
startup.load("look")
startup.load("apply")
import nvgraft.hook, nvgraft.plan.planner, nvgraft.graft, nvgraft.apply.executor
import nvgraft.apply.undo as undo, nvgraft_specs.names as names
files = {{name: str(getattr(sys.modules[name], "__file__", "")) for name in imported}}
compiled = [name for name, file in files.items() if not file.endswith(".py")]
import json
imported = [name for name in imported if name.startswith("nvgraft")]
place = undo.UndoLog.add.__code__.co_filename
print(json.dumps([
    imported, names.ALL, undo.__file__, undo.__package__, nvgraft.apply.__path__, place,
    nvgraft.apply.undo is undo, compiled,
]))
"""


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Compile and pack the engine and its tables; return their directory and a copy of it."""
    directory = tmp_path_factory.mktemp("packed")
    library = directory / "hook"
    for source, name in (("hook", "nvgraft"), ("specs", "nvgraft_specs")):
        shutil.copytree(
            CHECKOUT / source / name,
            library / name,
            ignore=shutil.ignore_patterns("__pycache__", "models"),
        )
    shutil.copy(_prctl.__file__, library)  # the installer brings it
    pack.compile_tree(str(directory), str(directory))
    pack.pack_groups(str(library), str(library))
    shutil.copytree(library, directory / "copy")
    return library, directory / "copy"


@pytest.fixture
def library(packed: tuple[Path, Path]) -> Path:
    """The engine and its tables as an installation has them, for this test to change."""
    library, copy = packed
    shutil.rmtree(library)
    shutil.copytree(copy, library)
    return library


def start(library: Path) -> Any:
    paths = [str(library), os.path.dirname(prctl.__file__)]
    done = subprocess.run(
        [sys.executable, "-ISB", "-c", PROGRAM.format(paths=paths)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_start_imports_packed_modules_only(library: Path) -> None:
    """The hook loads everything for a container from three files, except the module that opens
    them.
    """
    imported, _, file, package, directories, place, same, compiled = start(library)
    assert imported == ["nvgraft", "nvgraft.startup"]
    assert (file, package, directories) == (
        f"{library}/nvgraft/apply/undo.py",
        "nvgraft.apply",
        [f"{library}/nvgraft/apply"],
    )
    assert place == f"{library}/nvgraft/apply/undo.py"
    assert same
    assert compiled == []  # errno, _ctypes and others, which need no finder


def test_a_shared_library_that_has_moved_is_imported(library: Path) -> None:
    """The import statement finds a module of compiled C that is not where it was when packed."""
    (library / Path(_prctl.__file__).name).unlink()
    imported, *_, compiled = start(library)
    assert (imported, compiled) == (["nvgraft", "nvgraft.startup"], ["_prctl"])


def test_shared_libraries_are_those_that_an_import_statement_takes(library: Path) -> None:
    """python-prctl's is taken from beside the engine wherever that lies now: a new installation is
    started before it has its final place. Python's own is the one that this Python imports.
    """
    shutil.rmtree(library / DIRECTORY)
    pack.pack_groups(str(library), "/nowhere")
    imported, *_, compiled = start(library)
    assert (imported, compiled) == (["nvgraft", "nvgraft.startup"], [])
    order: dict[str, str] = {}
    pack.add_module(str(library), "_json", order, set())
    found = find_spec("_json")
    assert found is not None
    assert order == {"_json": "" if found.origin == "built-in" else found.origin}


def test_an_edited_source_counts_once_the_packed_files_are_removed(library: Path) -> None:
    """The packed files run even when a source is edited.

    Their README says how an edit on a node takes effect.
    """
    path = library / "nvgraft_specs/names.py"
    path.write_text(path.read_text() + 'ALL = "edited"\n')
    imported, value, *_ = start(library)
    assert value == "all"
    assert imported == ["nvgraft", "nvgraft.startup"]
    assert "Remove this directory" in (library / DIRECTORY / "README").read_text()
    shutil.rmtree(library / DIRECTORY)
    assert start(library)[1] == "edited"


@pytest.mark.parametrize("content", [None, b"", b"\x00\x00\r\n[]", MAGIC_NUMBER[:3]])
def test_without_a_usable_packed_file_modules_are_imported(
    library: Path, content: bytes | None
) -> None:
    """Without a usable packed file the import system loads all modules.

    The file is missing (a checkout), empty, of another interpreter, or cut short.
    """
    for group in GROUPS:
        (library / DIRECTORY / group).unlink()
        if content is not None:
            (library / DIRECTORY / group).write_bytes(content)
    imported = start(library)[0]
    assert {"nvgraft.hook", "nvgraft.plan.planner", "nvgraft_specs.names"} <= set(imported)


def test_whole_pieces_of_a_truncated_file_are_loaded(library: Path) -> None:
    """Whole pieces of a truncated file are loaded; the import system loads the other modules."""
    path = library / DIRECTORY / "apply"
    data = path.read_bytes()
    first = 8 + int.from_bytes(data[4:8], "little")
    assert first < len(data), "the file has one piece only"
    path.write_bytes(data[: first + 100])
    imported = start(library)[0]
    assert "nvgraft.apply.executor" in imported
    assert "nvgraft.system.lock" not in imported


def test_every_module_comes_after_those_that_it_imports(library: Path) -> None:
    """A module stands after the modules that it imports, because a group runs from start to end."""
    (library / "nvgraft/late.py").write_text(
        "from nvgraft import early\nfrom nvgraft.other import thing\nVALUE = early.VALUE + thing\n"
    )
    (library / "nvgraft/early.py").write_text("VALUE = 1\n")
    (library / "nvgraft/other.py").write_text("import nvgraft.late\nthing = 2\n")
    order: dict[str, str] = {}
    pack.add_module(str(library), "nvgraft.late", order, {"nvgraft"})
    assert list(order) == ["nvgraft.early", "nvgraft.other", "nvgraft.late"]


def test_a_module_that_fails_is_not_left_in_sys_modules(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module that fails to load is not left in sys.modules.

    This is the import system's rule: a second import fails again.
    """
    program = """
import sys
sys.path.append({path!r})
from nvgraft import startup
try:
    startup.load("runtime")
except ZeroDivisionError:
    print("nvgraft_specs.names" in sys.modules)
"""
    path = library / "nvgraft_specs/names.py"
    path.write_text(path.read_text() + "1 / 0\n")
    shutil.rmtree(library / DIRECTORY)
    monkeypatch.setattr(pack, "GROUPS", {"runtime": GROUPS["runtime"]})
    pack.pack_groups(str(library), str(library))
    done = subprocess.run(
        [sys.executable, "-ISB", "-c", program.format(path=str(library))],
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_a_launcher_stops_the_collector_and_loads_its_group(library: Path) -> None:
    """A launcher first stops the collector, which would scan all that is loaded, then loads its
    group.
    """
    program = f"import sys; sys.path += {[str(library), os.path.dirname(prctl.__file__)]!r}\n"
    program += install.LOAD.format(group="hook")
    program += "import gc\nprint(gc.isenabled(), 'nvgraft.hook' in sys.modules)"
    done = subprocess.run([sys.executable, "-ISB", "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False True\n", "")


def test_packed_modules_have_no_docstrings_or_annotations(library: Path) -> None:
    """Packed modules lack docstrings and annotations, which take a fifth of the loading time."""
    program = f"import sys; sys.path += {[str(library), os.path.dirname(prctl.__file__)]!r}\n"
    program += "from nvgraft import startup\nstartup.load('hook')\n"
    program += "from nvgraft.system import launch\nfrom nvgraft.base import errors\n"
    program += "function = launch.set_deadline\n"
    program += (
        "print(launch.__doc__, function.__doc__, function.__annotations__, errors.Refusal.__doc__)"
    )
    done = subprocess.run([sys.executable, "-ISB", "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("None None {} None\n", "")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('"""Text."""\nVALUE = 1', {"VALUE": 1}),
        (
            'class E(Exception):\n    """Nothing else."""\nVALUE = E.__mro__[1] is Exception',
            {"VALUE": True},
        ),
        ('def f():\n    """Nothing else."""\nVALUE = f()', {"VALUE": None}),
        (
            (
                "def f(a: 'int', *b: int, c: 'int' = 2, **d: int) -> 'int':\n"
                "    return a + c\n"
                "VALUE = f(1)"
            ),
            {"VALUE": 3},
        ),
        ("VALUE: int = 4", {"VALUE": 4}),
        (
            "class K:\n    __slots__: 'tuple[str, ...]' = ('a',)\n    a: int\nVALUE = K.__slots__",
            {"VALUE": ("a",)},
        ),
        ("TYPE_CHECKING = False\nif TYPE_CHECKING:\n    import nowhere\nVALUE = 5", {"VALUE": 5}),
        (
            "TYPE_CHECKING = False\nif TYPE_CHECKING:\n    VALUE = 0\nelse:\n    VALUE = 6",
            {"VALUE": 6},
        ),
        ("VALUE = 'a' 'b'", {"VALUE": "ab"}),
        ("def f():\n    'first'\n    'second'\n    return 7\nVALUE = f()", {"VALUE": 7}),
    ],
)
def test_a_bare_program_does_the_same(source: str, expected: dict[str, object]) -> None:
    """A program without docstrings and annotations computes the same values."""
    namespace: dict[str, object] = {"__name__": "bare"}
    exec(compile(pack.bare(source.encode()), "bare.py", "exec"), namespace)
    assert {name: namespace[name] for name in expected} == expected


def test_a_pyc_file_has_no_more_than_the_packed_one(library: Path) -> None:
    """Modules outside of the packed files lack docstrings, annotations and ``__future__`` too."""
    program = f"import sys; sys.path += {[str(library)]!r}\n"
    program += "from nvgraft.base import errors, files\n"
    program += "annotations = files.read_fd.__annotations__\n"
    program += "print(errors.__cached__, errors.__doc__, annotations, '__future__' in sys.modules)"
    done = subprocess.run([sys.executable, "-ISB", "-c", program], capture_output=True, text=True)
    cached = cache_from_source(f"{library}/nvgraft/base/errors.py")
    assert (done.stdout, done.stderr) == (f"{cached} None {{}} False\n", "")


def test_a_pyc_file_of_an_edited_source_is_passed_over(library: Path) -> None:
    """The import system compares time and size of the source, so that an edited one is used."""
    program = f"import sys; sys.path += {[str(library)]!r}\n"
    program += "from nvgraft.base import errors\nprint(errors.LINE_LIMIT)"
    path = library / "nvgraft/base/errors.py"
    path.write_text(path.read_text() + "LINE_LIMIT = 'edited'\n")
    done = subprocess.run([sys.executable, "-ISB", "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("edited\n", "")


def test_sources_outside_of_the_engine_keep_all(tmp_path: Path) -> None:
    """Sources of the CLI keep annotations, which pydantic reads.

    A source that cannot be compiled gets no byte code and does not stop the others.
    """
    (tmp_path / "cli").mkdir()
    (tmp_path / "cli/model.py").write_text('"""Text."""\nx: int = 1\n')
    (tmp_path / "cli/broken.py").write_text("x = (\n")
    pack.compile_tree(str(tmp_path), "/final")
    files = [path.name.partition(".")[0] for path in tmp_path.glob("cli/__pycache__/*")]
    assert files == ["model"]
    program = f"import sys; sys.path.append({str(tmp_path / 'cli')!r})\n"
    program += "import model\nprint(model.__doc__, model.__annotations__)"
    done = subprocess.run([sys.executable, "-ISB", "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("Text. {'x': <class 'int'>}\n", "")


def test_functions_have_no_qualified_names() -> None:
    """A method's qualified name would be a further text of each function; only its name is kept."""
    source = b"class K:\n    def f(self):\n        return [lambda: 1]\n"
    code = pack.plain(compile(pack.bare(source), "bare.py", "exec"))
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    method = namespace["K"].f
    assert (method.__name__, method.__qualname__) == ("f", "f")
    assert method(None)[0].__qualname__ == "<lambda>"


def test_a_traceback_has_the_source_s_line_numbers() -> None:
    """Line numbers in a traceback are those of the source with all its text."""
    source = 'def f() -> int:\n    """Two\n    lines."""\n    return 1 // 0\n'
    namespace: dict[str, Any] = {}
    exec(compile(pack.bare(source.encode()), "bare.py", "exec"), namespace)
    with pytest.raises(ZeroDivisionError) as caught:
        namespace["f"]()
    assert caught.traceback[-1].lineno == 3  # counted from 0
