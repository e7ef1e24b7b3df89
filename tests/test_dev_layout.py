"""The state of the project: which command checks it, who imports whom, and what the hook may
load.
"""

import ast
import importlib
import json
import operator
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import prctl
import pytest
import yaml

from bench.phases import PHASES
from sources import parsed

CHECKOUT = Path(__file__).parent.parent
ENGINE = CHECKOUT / "hook" / "nvgraft"
SPECS = CHECKOUT / "specs" / "nvgraft_specs"

#: The import budget (docs/decisions/0002): these modules, those that they load, and the engine's.
#: ``__future__`` is loaded from a checkout only; the installer removes it from the byte code.
#: ``_bisect``, ``gc`` and ``zlib`` are built into the interpreter of Debian and Ubuntu: each costs
#: 0.02 ms and replaces code of ours.
BUDGET = (
    *("__future__", "_bisect", "gc", "zlib", "os", "ctypes", "_struct", "struct", "_json"),
    *("_signal", "errno", "select", "prctl"),
)
#: Modules that the engine may import at the top of a module.
AT_TOP = {"__future__", "errno", "os", "posixpath", "select", "sys", "time", "zlib"}
#: Modules that save start-up time or are private to the standard library -> the modules of the
#: engine that import them and say why. All others import from these and are ordinary Python.
ISLANDS = {
    "_bisect": {"base/_stdlib.py"},
    "_ctypes": {"system/_ffi.py"},
    "_frozen_importlib": {"startup/__init__.py"},
    "_frozen_importlib_external": {"startup/__init__.py"},
    "_imp": {"startup/__init__.py"},
    "_json": {"base/jsontext.py", "base/json_errors.py"},
    "_prctl": {"system/privileges.py"},
    "_signal": {"base/_os.py"},
    "_stat": {"base/_os.py"},
    "_struct": {"base/_stdlib.py"},
    "gc": set(),  # the launchers stop the collector before the engine is loaded
    "marshal": {"startup/__init__.py"},
    "posix": {"base/_os.py", "startup/__init__.py"},
}
#: Words of these islands that other modules must not contain, not even in a comment.
TRICKS = re.compile(r"\b(_ctypes|_frozen_importlib\w*|gc|marshal|posix|PyGC_\w+)\b")
#: Module -> the one place that may import it, and only inside a function.
INSIDE = {
    **dict.fromkeys(("tomllib", "re"), "the reader of config.toml"),
    "json.decoder": "the report of broken JSON",
    "json": "the YAML child",
    "difflib": "the nearest id to one that does not exist",
    **dict.fromkeys(("pynvml", "grp", "pwd", "ctypes"), "the NVML child"),
}


def sources(root: Path) -> list[Path]:
    """Return every Python source below a directory."""
    return sorted(path for path in root.rglob("*.py"))


def imports(tree: ast.AST, inside: bool = False) -> Iterator[tuple[str, bool]]:
    """Yield each imported module and whether a function imports it.

    Imports for type checkers alone are left out.
    """
    for node in ast.iter_child_nodes(tree):
        if (
            isinstance(node, ast.If)
            and isinstance(node.test, ast.Name)
            and node.test.id == "TYPE_CHECKING"
        ):
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or ""), inside
        else:
            yield from imports(node, inside or isinstance(node, ast.FunctionDef))


def loaded_by(program: str, stdin: str = "", cwd: Path = CHECKOUT) -> set[str]:
    """Run a program as the hook's launcher does; return the names of all loaded modules."""
    python = getattr(sys, "_base_executable", sys.executable)
    report = "import sys; print('== loaded', *sys.modules, sep='\\n', file=sys.stderr)"
    path = [str(CHECKOUT / "hook"), str(CHECKOUT / "specs"), os.path.dirname(prctl.__file__)]
    done = subprocess.run(
        [python, "-ISB", "-c", f"import sys; sys.path += {path!r}\n{program}\n{report}"],
        input=stdin,
        capture_output=True,
        text=True,
        env={},
        cwd=cwd,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split("== loaded\n")[1].splitlines())


@pytest.fixture(scope="module")
def allowed() -> set[str]:
    """Return the modules that the budget loads on this Python."""
    return loaded_by("import " + ", ".join(BUDGET))


def over_budget(loaded: set[str], allowed: set[str]) -> list[str]:
    return sorted(
        name for name in loaded - allowed if name.split(".")[0] not in ("nvgraft", "nvgraft_specs")
    )


def test_a_start_of_the_cdi_hook_stays_in_the_budget(allowed: set[str]) -> None:
    """All that nvgraft-cdi-hook loads for its steps is in the budget of the hook."""
    program = "from nvgraft.startup import GROUPS\nfor name in GROUPS['cdi-hook'][1]:\n    __import__(name)"
    assert over_budget(loaded_by(program), allowed) == []


def test_ci_runs_the_command_of_the_readme() -> None:
    """CI runs exactly the command that the README tells a newcomer to run."""
    lines = [
        line
        for line in (CHECKOUT / ".ci/run").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert lines == [
        "set -euo pipefail",
        'cd "$(dirname "${BASH_SOURCE[0]}")/.."',
        "exec ./dev test",
    ]
    assert "./dev test" in (CHECKOUT / "README.md").read_text()


def test_pre_commit_runs_the_same_lint() -> None:
    """A commit is checked by ``./dev lint``, and by nothing that comes from another repository."""
    (repository,) = yaml.safe_load((CHECKOUT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local"
    assert [hook["entry"] for hook in repository["hooks"]] == ["./dev lint"]


@pytest.mark.requires("sh")
def test_every_target_of_dev_is_a_target_of_make() -> None:
    """Every ``./dev TARGET`` is also ``make TARGET``."""
    usage = subprocess.run(
        [CHECKOUT / "dev", "help"], capture_output=True, text=True, check=True
    ).stdout
    targets = {
        line.split()[0]
        for line in usage.splitlines()
        if line.startswith("  ") and not line.startswith("   ")
    }
    makefile = (CHECKOUT / "Makefile").read_text()
    phony = next(line for line in makefile.splitlines() if line.startswith(".PHONY:"))
    assert targets == set(phony.split()[1:])


@pytest.mark.requires("sh")
@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["install"],
        ["install", "PREFIX=/x", "--name"],
        ["install", "PREFIX=/x", "PYTHON=python3"],
    ],
)
def test_dev_refuses_what_it_does_not_know(arguments: list[str]) -> None:
    """A mistyped command line of ./dev changes nothing and is answered in one line."""
    done = subprocess.run([CHECKOUT / "dev", *arguments], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("dev: ")


@pytest.mark.parametrize("path", sources(ENGINE), ids=lambda path: str(path.relative_to(ENGINE)))
def test_engine_sources_import_only_the_budget(path: Path) -> None:
    """The engine imports the budget's modules, itself and plain tables.

    It never imports the CLI or a document model.
    """
    for name, inside in imports(parsed(path.read_text())):
        if name.split(".")[0] in ("nvgraft", "nvgraft_specs"):
            assert not name.startswith("nvgraft_specs.models"), f"{name} needs pydantic"
        elif name in INSIDE:
            assert inside, f"{name}: only {INSIDE[name]} loads it, inside a function"
        else:
            assert name in AT_TOP or name in ISLANDS, f"{name} is not in the import budget"


def tricks_outside(source: str, module: str) -> list[str]:
    """Return the imports and words in a module of the engine that only other modules may have."""
    words = [match[0] for match in TRICKS.finditer(source)]
    words += [name for name, _ in imports(parsed(source)) if name in ISLANDS]
    return [word for word in words if module not in ISLANDS.get(word, ())]


def test_start_up_tricks_stay_on_their_islands() -> None:
    """Ordinary modules neither import nor name the modules that only make a start quicker."""
    modules = {str(path.relative_to(ENGINE)): path.read_text() for path in sources(ENGINE)}
    assert {
        module: found
        for module, source in modules.items()
        if (found := tricks_outside(source, module))
    } == {}


@pytest.mark.parametrize(
    "source",
    [
        "import posix as os",
        "import _stat as stat",
        "def f():\n    from _ctypes import dlopen",
        "import marshal",
        "import gc",
        "# as gc.disable() would",
        '"""Text that explains posix."""',
        "NAME = 'PyGC_Disable'",
    ],
)
def test_the_check_on_tricks_can_fail(source: str) -> None:
    """The check on tricks can fail.

    It passes on the trick's island, and where words are only similar.
    """
    assert tricks_outside(source, "plan/planner.py") != []
    for harmless in ("text = 'cannot unmarshal'", "import posixpath", "def _stat(): ..."):
        assert tricks_outside(harmless, "plan/planner.py") == []
    assert tricks_outside("import posix as os", "base/_os.py") == []


@pytest.mark.parametrize("path", sources(SPECS), ids=lambda path: str(path.relative_to(SPECS)))
def test_specs_import_neither_engine_nor_cli(path: Path) -> None:
    """The CLI imports the engine and the engine imports the specs, never the other way round."""
    assert not [
        name
        for name, _ in imports(parsed(path.read_text()))
        if name.split(".")[0] in ("nvgraft", "nvgraft_cli")
    ]


#: Functions of os that resolve a path.
RESOLVING = {
    *("open", "stat", "lstat", "readlink", "symlink", "link", "unlink", "remove", "rmdir"),
    *("mkdir", "mknod", "mkfifo", "rename", "replace", "chmod", "lchmod", "chown", "lchown"),
    *("access", "listdir", "scandir", "utime", "truncate", "chdir", "chroot", "statvfs"),
    *("pathconf", "setxattr", "getxattr", "removexattr", "listxattr"),
}
#: Functions and modules that resolve a path as a string and would follow the container's links.
#: apply/ must not use them.
STRINGS = {
    *("paths.exists", "os.path", "os.makedirs", "os.removedirs", "os.renames", "os.walk"),
    "os.fwalk",
}
MODULES = {"os.path", "pathlib", "shutil", "glob", "tempfile", "fnmatch", "fileinput"}
#: (module of apply/, function, first argument) -> why this call needs no directory descriptor.
WITHOUT_DIRECTORY = {
    ("executor.py", "stat", "action.host_path"): "a source: the host's own path",
    ("ldconfig.py", "open", "path"): "the host's ldconfig",
    ("left_journal.py", "utime", "fd"): "a descriptor",
    ("left_journal.py", "listdir", "directory"): "a descriptor",
    ("journal.py", "listdir", "directory"): "a descriptor",
    ("leftovers.py", "listdir", "directory"): "a descriptor",
    ("restore.py", "utime", "copy"): "a descriptor",
    ("directory_links.py", "scandir", "self._directory.fd"): "a descriptor",
    ("rootfs.py", "scandir", "directory"): "a descriptor",
}
#: Functions of os that start a process.
STARTING = {
    *("system", "popen", "fork", "forkpty", "posix_spawn", "posix_spawnp"),
    *("execl", "execle", "execlp", "execlpe", "execv", "execve", "execvp", "execvpe"),
    *("spawnl", "spawnle", "spawnlp", "spawnlpe", "spawnv", "spawnve", "spawnvp", "spawnvpe"),
}
#: Module -> the functions it may call. Each has tests of its own (SECURITY R6, R31, R37).
MAY_START = {
    "system/jail.py": {"execve"},
    "system/child.py": {"fork"},
    "host/kmods.py": {"fork", "execve"},
    "runtime.py": {"execv"},
    "system/syscalls.py": {"fork"},
}
#: startup/ and system/_ffi.py open libraries that are loaded already: the interpreter and libc.
MAY_LOAD_LIBRARIES = {"startup/__init__.py", "system/_ffi.py", "host/nvml.py"}
MAY_RUN_CODE = {"startup/__init__.py"}


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Yield every call with the name of the called function, such as ``os.open`` or ``open``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def container_path_calls(tree: ast.AST, module: str) -> list[str]:
    """Return where a module of apply/ resolves a path as a string, with line numbers."""
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    violations = [
        f"line {node.lineno}: {ast.unparse(node)}"
        for node in attributes
        if ast.unparse(node) in STRINGS
    ]
    violations += [f"imports {name}" for name, _ in imports(tree) if name in MODULES]
    for called, call in calls(tree):
        name = called.removeprefix("os.")
        if called == "open":
            violations.append(f"line {call.lineno}: open")
        if (
            called != f"os.{name}"
            or name not in RESOLVING
            or any((word.arg or "").endswith("dir_fd") for word in call.keywords)
        ):
            continue
        first = call.args[0]
        if isinstance(first, ast.Constant) and first.value in ("/", ".", "/proc", "/proc/self/fd"):
            continue
        if (module, name, ast.unparse(first)) not in WITHOUT_DIRECTORY:
            violations.append(f"line {call.lineno}: {ast.unparse(call)} has no dir_fd")
    return violations


def starting_calls(tree: ast.AST, module: str) -> list[str]:
    """Return where a module of the engine starts a program, a thread or code from a string.

    Looking up libraries by name counts as well. Calls that MAY_START and its neighbours allow are
    left out.
    """
    violations = []
    for called, call in calls(tree):
        last = called.rpartition(".")[2]
        if called == f"os.{last}" and last in STARTING and last not in MAY_START.get(module, ()):
            violations.append(f"line {call.lineno}: {called}")
        if last in ("CDLL", "PyDLL", "LoadLibrary", "find_library", "dlopen") and (
            module not in MAY_LOAD_LIBRARIES or last == "find_library"
        ):
            violations.append(f"line {call.lineno}: {called}")
        if called in ("eval", "exec", "compile", "__import__") and module not in MAY_RUN_CODE:
            violations.append(f"line {call.lineno}: {called}")
    started = (
        *("subprocess", "threading", "_thread", "multiprocessing", "concurrent", "asyncio"),
        *("ctypes.util", "pty", "_posixsubprocess"),
    )
    return violations + [f"imports {name}" for name, _ in imports(tree) if name.startswith(started)]


@pytest.mark.parametrize(
    "path", sources(ENGINE / "apply"), ids=lambda path: str(path.relative_to(ENGINE))
)
def test_the_applier_never_resolves_a_container_path_as_a_string(path: Path) -> None:
    """In apply/ a path of the container is opened once by openat2 and never resolved as a string
    (R19).
    """
    assert container_path_calls(parsed(path.read_text()), path.name) == []


def test_engine_starts_nothing() -> None:
    """The engine uses no shell, PATH search, thread, find_library or code from a string.

    The few modules that fork or exec are listed (R5, R6).
    """
    assert [
        call
        for path in sources(ENGINE)
        for call in starting_calls(parsed(path.read_text()), str(path.relative_to(ENGINE)))
    ] == []


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.open(path, 0)",
        "import os\nos.mkdir(f'{root}/x')",
        "import os\nos.path.realpath(path)",
        "from nvgraft.base import paths\npaths.exists(path)",
        "import os\nos.makedirs(path)",
        "open(path)",
        "import shutil",
        "def f():\n    import tempfile",
        "import os\nos.rename(a, b)",
    ],
)
def test_the_check_on_paths_can_fail(source: str) -> None:
    """The check on paths can fail.

    It passes with a directory's descriptor, and for the host's root.
    """
    assert container_path_calls(ast.parse(source), "x.py") != []
    assert (
        container_path_calls(
            ast.parse("import os\nos.open(name, 0, dir_fd=fd)\nos.open('/', 0)"), "x.py"
        )
        == []
    )


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.system('x')",
        "import os\nos.execvp('x', [])",
        "import os\nos.fork()",
        "import ctypes\nctypes.CDLL('x')",
        "import ctypes.util\nctypes.util.find_library('c')",
        "import subprocess",
        "def f():\n    import threading",
        "exec('1')",
    ],
)
def test_the_check_on_programs_can_fail(source: str) -> None:
    """The check on starting programs can fail."""
    assert starting_calls(ast.parse(source), "x.py") != []


def test_all_of_the_engine_loads_within_the_budget(allowed: set[str]) -> None:
    """No module of the engine loads, through another, a module outside of the budget."""
    names = [
        ".".join(path.relative_to(CHECKOUT / "hook").with_suffix("").parts).removesuffix(
            ".__init__"
        )
        for path in sources(ENGINE)
    ]
    loaded = loaded_by("import " + ", ".join(names))
    assert set(names) <= loaded
    assert over_budget(loaded, allowed) == []


def write_bundle(directory: Path, *variables: str) -> str:
    """Write the config.json of a container with these variables; return its OCI state."""
    process = {"args": ["sh"], "env": ["PATH=/bin", *variables]}
    config = {"ociVersion": "1.0.2", "process": process, "root": {"path": "rootfs"}}
    (directory / "config.json").write_text(json.dumps(config))
    state = {"ociVersion": "1.0.2", "id": "x", "status": "creating", "pid": 0}
    return json.dumps({**state, "bundle": str(directory)})


@pytest.mark.parametrize(
    "variables",
    [[], ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all"]],
    ids=["no GPU", "all GPUs"],
)
def test_hook_run_stays_within_the_budget(
    variables: list[str], allowed: set[str], tmp_path: Path
) -> None:
    """Deciding about a container loads only the budget's modules, and tomllib for config.toml."""

    state = write_bundle(tmp_path, *variables)
    program = (
        'from nvgraft.hook import main\nassert main(["nvgraft-hook", "-dry-run", "prestart"]) == 0'
    )
    if Path("/etc/nvidia-container-runtime/config.toml").exists():
        allowed = allowed | loaded_by("import tomllib")
    loaded = loaded_by(program, stdin=state, cwd=tmp_path)
    assert "nvgraft.hook" in loaded
    assert over_budget(loaded, allowed) == []


def test_tomllib_is_loaded_while_config_toml_is_not_cached(
    allowed: set[str], tmp_path: Path
) -> None:
    """The first hook parses config.toml with tomllib; later hooks stay within the budget."""
    (tmp_path / "config.toml").write_text('swarm-resource = "X"\n')
    state = write_bundle(tmp_path)
    program = (
        "from nvgraft.system import kept; from nvgraft import hook\n"
        f"kept.DIRECTORY = '{tmp_path}/nvgraft/cache'\n"
        "hook.open_trusted = hook.open_file\n"  # the test's directory need not be root's
        f"assert hook.main(['nvgraft-hook', '-config', '{tmp_path}/config.toml', 'prestart']) == 0"
    )
    first = loaded_by(program, stdin=state, cwd=tmp_path)
    assert "tomllib" in first
    later = loaded_by(program, stdin=state, cwd=tmp_path)
    assert over_budget(later, allowed) == []
    assert "os" not in later, "os was loaded: it costs a tenth of such a start"
    (tmp_path / "config.toml").write_text('swarm-resource = "Y"\n')
    assert loaded_by(program, stdin=state, cwd=tmp_path) == first


@pytest.mark.parametrize("module", PHASES)
def test_the_bench_times_existing_functions(module: str) -> None:
    """The functions that ``./dev bench`` replaces by name exist in the engine."""
    for name in PHASES[module]:
        operator.attrgetter(name)(importlib.import_module(module))
