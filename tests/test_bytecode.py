"""The file with the byte code of all modules: what is loaded from it, and when it is passed over."""

import json
import os
import py_compile
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nvgraft_cli import install

CHECKOUT = Path(__file__).parent.parent
#: Loads as a launcher does, and tells which modules came from the file, where they say they are, and one value.
PROGRAM = """
import sys
sys.path.append({path!r})
from nvgraft.bytecode import use_bundle
use_bundle()
import nvgraft.values, nvgraft.apply.undo, nvgraft_specs.names
import json
modules = [m for name, m in sys.modules.items() if name.startswith("nvgraft")]
bundled = {{m.__name__: m.__file__ for m in modules if type(m.__loader__).__name__ == "_Bundle"}}
print(json.dumps([bundled, nvgraft_specs.names.ALL, list(nvgraft.apply.__path__), nvgraft.values.Value._key.__code__.co_filename]))
"""


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """The engine and its tables, compiled and bundled as an installation has them."""
    for source, name in (("hook", "nvgraft"), ("specs", "nvgraft_specs")):
        shutil.copytree(CHECKOUT / source / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in tmp_path.rglob("*.py"):
        py_compile.compile(str(path), doraise=True)
    install.bundle(str(tmp_path))
    return tmp_path


def start(library: Path) -> tuple[dict[str, str], str, list[str], str]:
    done = subprocess.run([sys.executable, "-ISB", "-c", PROGRAM.format(path=str(library))], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result: Any = json.loads(done.stdout)
    return tuple(result)


def test_modules_come_from_the_file(library: Path) -> None:
    """All but the two that are needed before it is known; they know their sources, and packages their directories."""
    bundled, _, directories, place = start(library)
    assert bundled["nvgraft.values"] == f"{library}/nvgraft/values.py"
    assert bundled["nvgraft_specs"] == f"{library}/nvgraft_specs/__init__.py"
    assert {"nvgraft.apply", "nvgraft.apply.undo", "nvgraft_specs.names"} <= set(bundled)
    assert not {"nvgraft", "nvgraft.bytecode"} & set(bundled)
    assert directories == [f"{library}/nvgraft/apply"]
    assert place == f"{library}/nvgraft/values.py"


def test_an_edited_source_counts(library: Path) -> None:
    """Whoever changes a module on a node gets what he has written, as without the file."""
    path = library / "nvgraft_specs/names.py"
    path.write_text(path.read_text() + 'ALL = "edited"\n')
    bundled, value, _, _ = start(library)
    assert value == "edited"
    assert "nvgraft_specs.names" not in bundled
    assert "nvgraft.values" in bundled


def test_an_older_source_of_the_same_size_counts(library: Path) -> None:
    """The time alone tells, too."""
    path = library / "nvgraft_specs/names.py"
    os.utime(path, (1, 1))
    assert "nvgraft_specs.names" not in start(library)[0]


@pytest.mark.parametrize("content", [None, b"", b"\x00\x00\r\n" + (5).to_bytes(8, "little") + b"index"])
def test_without_a_file_for_this_python_all_is_loaded_as_ever(library: Path, content: bytes | None) -> None:
    """No file (a checkout), an empty one, and one of another interpreter."""
    (library / "bytecode").unlink()
    if content is not None:
        (library / "bytecode").write_bytes(content)
    assert start(library)[0] == {}


def test_document_models_are_left_out(library: Path) -> None:
    """What needs pydantic is the CLI's, and would only make the file larger."""
    assert b"nvgraft_specs/models" not in (library / "bytecode").read_bytes()
