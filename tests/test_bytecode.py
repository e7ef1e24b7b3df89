"""The files with the byte code of whole groups of modules: what is loaded from them, and when they are passed over."""

import json
import os
import py_compile
import shutil
import subprocess
import sys
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import Any

import prctl
import pytest

from nvgraft.startup.bytecode import DIRECTORY, GROUPS
from nvgraft_cli.install import install

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
from nvgraft.startup import bytecode
bytecode.load("hook")
bytecode.load("look")
bytecode.load("apply")
import nvgraft.hook, nvgraft.plan.planner, nvgraft.graft, nvgraft.apply.executor
import nvgraft.apply.undo as undo, nvgraft_specs.names as names
import json
asked = [name for name in asked if name.startswith("nvgraft")]
place = undo.UndoLog.add.__code__.co_filename
print(json.dumps([asked, names.ALL, undo.__file__, undo.__package__, nvgraft.apply.__path__, place, nvgraft.apply.undo is undo]))
"""


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """The engine and its tables, compiled and bundled as an installation has them."""
    for source, name in (("hook", "nvgraft"), ("specs", "nvgraft_specs")):
        shutil.copytree(
            CHECKOUT / source / name,
            tmp_path / name,
            ignore=shutil.ignore_patterns("__pycache__", "models"),
        )
    for path in tmp_path.rglob("*.py"):
        py_compile.compile(str(path), doraise=True)
    install.bundle(str(tmp_path))
    return tmp_path


def start(library: Path) -> Any:
    paths = [str(library), os.path.dirname(prctl.__file__)]
    done = subprocess.run(
        [sys.executable, "-ISB", "-c", PROGRAM.format(paths=paths)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_start_looks_for_no_module(library: Path) -> None:
    """All that the hook loads for a container comes from three files, but for the two modules that are needed to open them."""
    asked, _, file, package, directories, place, same = start(library)
    assert asked == ["nvgraft.startup", "nvgraft", "nvgraft.startup.bytecode"]
    assert (file, package, directories) == (
        f"{library}/nvgraft/apply/undo.py",
        "nvgraft.apply",
        [f"{library}/nvgraft/apply"],
    )
    assert place == f"{library}/nvgraft/apply/undo.py"
    assert same


def test_an_edited_source_counts(library: Path) -> None:
    """Whoever changes a module on a node gets what he has written, as without the file."""
    path = library / "nvgraft_specs/names.py"
    path.write_text(path.read_text() + 'ALL = "edited"\n')
    asked, value, *_ = start(library)
    assert value == "edited"
    assert asked == [
        "nvgraft.startup",
        "nvgraft",
        "nvgraft.startup.bytecode",
        "nvgraft_specs.names",
    ]


def test_a_source_of_another_time_counts(library: Path) -> None:
    """The size may be the same by chance."""
    os.utime(library / "nvgraft_specs/names.py", (1, 1))
    assert "nvgraft_specs.names" in start(library)[0]


def test_a_missing_source_is_missing(library: Path) -> None:
    """A module whose source was taken away is not there, whatever the file has."""
    (library / "nvgraft_specs/names.py").unlink()
    done = subprocess.run(
        [sys.executable, "-ISB", "-c", PROGRAM.format(paths=[str(library)])],
        capture_output=True,
        text=True,
    )
    assert "Error: cannot import name 'names' from 'nvgraft_specs'" in done.stderr


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
    install._depend(str(library), "nvgraft.late", order, {"nvgraft"})
    assert list(order) == ["nvgraft.early", "nvgraft.other", "nvgraft.late"]


def test_a_module_that_fails_is_not_half_there(library: Path) -> None:
    """The import system's rule: who catches the error and asks again gets the error again."""
    program = """
import sys
sys.path.append({path!r})
from nvgraft.startup import bytecode
try:
    bytecode.load("runtime")
except ZeroDivisionError:
    print("nvgraft_specs.names" in sys.modules)
"""
    path = library / "nvgraft_specs/names.py"
    path.write_text(path.read_text() + "1 / 0\n")
    py_compile.compile(str(path), doraise=True)
    shutil.rmtree(library / DIRECTORY)
    install.bundle(str(library))
    done = subprocess.run(
        [sys.executable, "-ISB", "-c", program.format(path=str(library))],
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_the_collector_is_stopped_without_its_module(library: Path) -> None:
    """As gc.disable() would, which a start does not load."""
    program = f"import sys; sys.path.append({str(library)!r}); from nvgraft.startup import bytecode; bytecode.stop_collector()\n"
    program += "loaded = 'gc' in sys.modules\nimport gc\nprint(loaded, gc.isenabled())"
    done = subprocess.run([sys.executable, "-ISB", "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False False\n", "")


def test_what_only_readers_need_stays_out(library: Path) -> None:
    """Docstrings and annotations take a fifth of the loading, and nobody asks for them."""
    program = f"import sys; sys.path += {[str(library), os.path.dirname(prctl.__file__)]!r}; from nvgraft.startup import bytecode\n"
    program += "bytecode.load('hook')\nfrom nvgraft.system import launch\nimport nvgraft.base.errors as errors\n"
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
    exec(compile(install.bare(source.encode()), "bare.py", "exec"), namespace)
    assert {name: namespace[name] for name in expected} == expected


def test_a_traceback_is_the_source_s() -> None:
    """Who reads it looks at the file, with all its text."""
    source = 'def f() -> int:\n    """Two\n    lines."""\n    return 1 // 0\n'
    namespace: dict[str, Any] = {}
    exec(compile(install.bare(source.encode()), "bare.py", "exec"), namespace)
    with pytest.raises(ZeroDivisionError) as caught:
        namespace["f"]()
    assert caught.traceback[-1].lineno == 3  # counted from 0
