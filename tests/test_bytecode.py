"""The files with the byte code of whole groups of modules: what is loaded from them, and when they are passed over."""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import MAGIC_NUMBER, cache_from_source
from pathlib import Path
from typing import Any

import prctl
import pytest

from nvgraft.startup import DIRECTORY, GROUPS
from nvgraft_cli.install import install, pack

CHECKOUT = Path(__file__).parent.parent
#: Loads all groups as the hook does, and tells what the import system was asked for, beside and behind them.
PROGRAM = """
import sys
sys.path += {paths!r}
machinery = sys.modules["_frozen_importlib"]
found = machinery._find_and_load
asked = []
def find(name, function):
    asked.append(name)
    return found(name, function)
machinery._find_and_load = find
from nvgraft import startup
startup.load("hook")
startup.load("look")
startup.load("apply")
import nvgraft.hook, nvgraft.plan.planner, nvgraft.graft, nvgraft.apply.executor
import nvgraft.apply.undo as undo, nvgraft_specs.names as names
import json
asked = [name for name in asked if name.startswith("nvgraft")]
place = undo.UndoLog.add.__code__.co_filename
print(json.dumps([asked, names.ALL, undo.__file__, undo.__package__, nvgraft.apply.__path__, place, nvgraft.apply.undo is undo]))
"""


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The directory of the engine and its tables, compiled and packed, and a copy of it."""
    directory = tmp_path_factory.mktemp("packed")
    library = directory / "hook"
    for source, name in (("hook", "nvgraft"), ("specs", "nvgraft_specs")):
        shutil.copytree(
            CHECKOUT / source / name,
            library / name,
            ignore=shutil.ignore_patterns("__pycache__", "models"),
        )
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


def test_a_start_looks_for_no_module(library: Path) -> None:
    """All that the hook loads for a container comes from three files, but for the module that opens them."""
    asked, _, file, package, directories, place, same = start(library)
    assert asked == ["nvgraft", "nvgraft.startup"]
    assert (file, package, directories) == (
        f"{library}/nvgraft/apply/undo.py",
        "nvgraft.apply",
        [f"{library}/nvgraft/apply"],
    )
    assert place == f"{library}/nvgraft/apply/undo.py"
    assert same


def test_an_edited_source_counts_once_the_packed_files_are_removed(library: Path) -> None:
    """The packed files are what runs, whatever becomes of a source; their README says how to have an edit on a node take effect."""
    path = library / "nvgraft_specs/names.py"
    path.write_text(path.read_text() + 'ALL = "edited"\n')
    asked, value, *_ = start(library)
    assert value == "all"
    assert asked == ["nvgraft", "nvgraft.startup"]
    assert "Remove this directory" in (library / DIRECTORY / "README").read_text()
    shutil.rmtree(library / DIRECTORY)
    assert start(library)[1] == "edited"


@pytest.mark.parametrize("content", [None, b"", b"\x00\x00\r\n[]", MAGIC_NUMBER[:3]])
def test_without_a_file_for_this_python_all_is_loaded_as_ever(
    library: Path, content: bytes | None
) -> None:
    """No file (a checkout), an empty one, one of another interpreter, one that is cut short."""
    for group in GROUPS:
        (library / DIRECTORY / group).unlink()
        if content is not None:
            (library / DIRECTORY / group).write_bytes(content)
    asked = start(library)[0]
    assert {"nvgraft.hook", "nvgraft.plan.planner", "nvgraft_specs.names"} <= set(asked)


def test_half_a_file_is_loaded_as_far_as_it_goes(library: Path) -> None:
    """Whole pieces count, the rest is left to the import system."""
    path = library / DIRECTORY / "apply"
    data = path.read_bytes()
    first = 8 + int.from_bytes(data[4:8], "little")
    assert first < len(data), "it has several pieces"
    path.write_bytes(data[: first + 100])
    asked = start(library)[0]
    assert "nvgraft.apply.executor" in asked
    assert "nvgraft.system.lock" not in asked


def test_every_module_comes_after_those_that_it_imports(library: Path) -> None:
    """A group is run from its beginning to its end, so what a module imports has to be there before."""
    (library / "nvgraft/late.py").write_text(
        "from nvgraft import early\nfrom nvgraft.other import thing\nVALUE = early.VALUE + thing\n"
    )
    (library / "nvgraft/early.py").write_text("VALUE = 1\n")
    (library / "nvgraft/other.py").write_text("import nvgraft.late\nthing = 2\n")
    order: dict[str, str] = {}
    pack.add_module(str(library), "nvgraft.late", order, {"nvgraft"})
    assert list(order) == ["nvgraft.early", "nvgraft.other", "nvgraft.late"]


def test_a_module_that_fails_is_not_half_there(library: Path) -> None:
    """The import system's rule: who catches the error and asks again gets the error again."""
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
    pack.pack_groups(str(library), str(library))
    done = subprocess.run(
        [sys.executable, "-ISB", "-c", program.format(path=str(library))],
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_a_launcher_stops_the_collector_and_loads_its_group(library: Path) -> None:
    """Both come before anything else of the program: the collector would look through all that is loaded."""
    program = f"import sys; sys.path += {[str(library), os.path.dirname(prctl.__file__)]!r}\n"
    program += install.LOAD.format(group="hook")
    program += "import gc\nprint(gc.isenabled(), 'nvgraft.hook' in sys.modules)"
    done = subprocess.run([sys.executable, "-ISB", "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False True\n", "")


def test_what_only_readers_need_stays_out(library: Path) -> None:
    """Docstrings and annotations take a fifth of the loading, and nobody asks for them."""
    program = f"import sys; sys.path += {[str(library), os.path.dirname(prctl.__file__)]!r}; from nvgraft import startup\n"
    program += "startup.load('hook')\nfrom nvgraft.system import launch\nimport nvgraft.base.errors as errors\n"
    program += "print(launch.__doc__, launch.set_deadline.__doc__, launch.set_deadline.__annotations__, errors.Refusal.__doc__)"
    done = subprocess.run([sys.executable, "-ISB", "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("None None {} None\n", "")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('"""Text."""\nVALUE = 1', {"VALUE": 1}),
        (
            'class Alone(Exception):\n    """Nothing else."""\nVALUE = Alone.__mro__[1] is Exception',
            {"VALUE": True},
        ),
        ('def f():\n    """Nothing else."""\nVALUE = f()', {"VALUE": None}),
        (
            "def f(a: 'int', *b: int, c: 'int' = 2, **d: int) -> 'int':\n    return a + c\nVALUE = f(1)",
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
    """Only what is read by people is gone."""
    namespace: dict[str, object] = {"__name__": "bare"}
    exec(compile(pack.bare(source.encode()), "bare.py", "exec"), namespace)
    assert {name: namespace[name] for name in expected} == expected


def test_a_pyc_file_has_no_more_than_the_packed_one(library: Path) -> None:
    """Modules that are looked for get by without docstrings, annotations and the module ``__future__`` too."""
    program = f"import sys; sys.path += {[str(library)]!r}\n"
    program += "from nvgraft.base import errors, files\n"
    program += "print(errors.__cached__, errors.__doc__, files.read_fd.__annotations__, '__future__' in sys.modules)"
    done = subprocess.run([sys.executable, "-ISB", "-c", program], capture_output=True, text=True)
    cached = cache_from_source(f"{library}/nvgraft/base/errors.py")
    assert (done.stdout, done.stderr) == (f"{cached} None {{}} False\n", "")


def test_a_pyc_file_of_an_edited_source_is_passed_over(library: Path) -> None:
    """The import system compares time and size, as for any other."""
    program = f"import sys; sys.path += {[str(library)]!r}; from nvgraft.base import errors; print(errors.LINE_LIMIT)"
    path = library / "nvgraft/base/errors.py"
    path.write_text(path.read_text() + "LINE_LIMIT = 'edited'\n")
    done = subprocess.run([sys.executable, "-ISB", "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("edited\n", "")


def test_sources_outside_of_the_engine_keep_all(tmp_path: Path) -> None:
    """pydantic reads annotations; a source that cannot be compiled has no byte code and stops nothing."""
    (tmp_path / "cli").mkdir()
    (tmp_path / "cli/model.py").write_text('"""Text."""\nx: int = 1\n')
    (tmp_path / "cli/broken.py").write_text("x = (\n")
    pack.compile_tree(str(tmp_path), "/final")
    files = [path.name.partition(".")[0] for path in tmp_path.glob("cli/__pycache__/*")]
    assert files == ["model"]
    program = f"import sys; sys.path.append({str(tmp_path / 'cli')!r}); import model; print(model.__doc__, model.__annotations__)"
    done = subprocess.run([sys.executable, "-ISB", "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("Text. {'x': <class 'int'>}\n", "")


def test_a_traceback_is_the_source_s() -> None:
    """Who reads it looks at the file, with all its text."""
    source = 'def f() -> int:\n    """Two\n    lines."""\n    return 1 // 0\n'
    namespace: dict[str, Any] = {}
    exec(compile(pack.bare(source.encode()), "bare.py", "exec"), namespace)
    with pytest.raises(ZeroDivisionError) as caught:
        namespace["f"]()
    assert caught.traceback[-1].lineno == 3  # counted from 0
