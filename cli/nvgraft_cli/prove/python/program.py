"""Follow a Python program from the start of its interpreter: .pth files, then its code."""

import posixpath
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from nvgraft.formats.tree import PathError
from nvgraft_cli.case.at_hand import is_at_hand
from nvgraft_cli.case.file_changes import UNKNOWN
from nvgraft_cli.case.planned_tree import PlannedTree
from nvgraft_cli.prove.loader.code_opens import OpensLibraries
from nvgraft_cli.prove.loader.final_file import is_driver_library
from nvgraft_cli.prove.python.code import CodeRaised, FollowedModule
from nvgraft_cli.prove.python.found import FoundModule, ModuleFinder
from nvgraft_cli.prove.script.python import (
    NOT_KNOWN,
    FunctionNode,
    Returned,
    ScriptEnd,
    imported_names,
    parse_statements,
    parse_whole,
)
from nvgraft_cli.prove.script.python_words import InterpreterWords
from nvgraft_cli.prove.start.tree_files import names_in

#: Bytes of a source, and of all that are read; how many of one package, and of all.
_SOURCE, _BYTES, _OF_PACKAGE, _SOURCES = 128 << 10, 1536 << 10, 64, 200
#: Statements that are followed.
_STATEMENTS = 20_000
#: Names that are imported, and directories of one package in which libraries are looked for.
_NAMES, _DIRECTORIES = 2000, 64
#: Arguments of a program that are looked at.
_ARGUMENTS = 16
#: .pth files of one directory, and lines of one.
_PTH_FILES, _PTH_LINES = 32, 32
#: Libraries of the driver that one package has, and modules that pass on a function of another.
_OWN_LIBRARIES, _REEXPORTS = 8, 4
#: The names of libraries in a text, without what follows ".so".
_LIBRARY = re.compile(r"lib[\w+-]+(?=\.so)")
#: What the text of a module has that opens libraries or imports modules by functions.
_OPENING = re.compile(r"CDLL|PyDLL|LoadLibrary|dlopen|import_module|__import__|__getattr__")


@dataclass(frozen=True, slots=True)
class PythonStart:
    """How an interpreter is started.

    :ivar words: its arguments.
    :ivar executable: its path.
    :ivar directory: the working directory.
    :ivar path: sys.path without the directory of the script.
    :ivar standard: those of them that have the standard library.
    :ivar sites: those of them whose .pth files are read.
    :ivar tag: of the interpreter, in the names of extension modules; "" if it is not known.
    :ivar may_read: tells whether its user may read the file at a resolved path.
    """

    words: InterpreterWords
    executable: str
    environment: Mapping[str, str]
    directory: str
    path: tuple[str, ...]
    standard: tuple[str, ...]
    sites: tuple[str, ...]
    tag: str
    may_read: Callable[[str], bool]


def follow_program(tree: PlannedTree, start: PythonStart, opens: OpensLibraries) -> None:
    """Open the libraries that a Python program opens, as far as its code is followed."""
    process = _Process(tree, start, opens)
    process.start()
    process.run_program()


def _known(text: str) -> Any:
    """Return a text, or that it is not known what a script before has put into it."""
    return NOT_KNOWN if UNKNOWN in text else text


class _Process:
    """A process with Python's interpreter."""

    def __init__(self, tree: PlannedTree, start: PythonStart, opens: OpensLibraries) -> None:
        self._tree = tree
        self._start = start
        self._opens = opens
        self.sys_path = list(start.path)
        self._finder = ModuleFinder(tree, self.sys_path, start.standard, start.tag, start.may_read)
        self.machine = tree.machine
        self.left = _STATEMENTS
        minor = start.tag.removeprefix("cpython-3")
        self.version = [3, int(minor)] if minor else []
        self.uncertain = self.guarded = self.doubts = self.risks = 0
        self._modules: dict[str, FollowedModule | None] = {}
        self._found: dict[str, FoundModule] = {}
        #: Names that were imported for certain.
        self._certain: set[str] = set()
        self._sources: dict[str, int] = {}
        self._bytes = 0
        #: Packages of which code is perhaps run that is not followed.
        self._used: set[str] = set()
        self._arguments: list[Any] = [start.words.what, *map(_known, start.words.arguments)]
        self.directory: str | None = start.directory
        # The runtime sets HOME where config.json does not.
        self._environment: dict[str, Any] = {"HOME": NOT_KNOWN}
        self._environment |= {name: _known(text) for name, text in start.environment.items()}

    # -- what the interpreter runs

    def start(self) -> None:
        """Run what site.py runs."""
        if "S" in self._start.words.flags:
            return
        for site in self._start.sites:
            names = [name for name in names_in(self._tree, site) if name.endswith(".pth")]
            for name in names[:_PTH_FILES]:
                self._run_lines(f"{site}/{name}")
        for name in ("sitecustomize", "usercustomize"):
            found = self._finder.find(name, also_standard=True)
            if found is not None and found.path:
                self._ends(partial(self._run_found, name, found, "python imports"))

    def _run_lines(self, path: str) -> None:
        """Run the lines of a .pth file that import something, each by itself."""
        text = self._finder.source(path, _SOURCE) or ""
        for number, line in enumerate(text.splitlines()[:_PTH_LINES]):
            if line.startswith(("import ", "import\t")):
                code = "\n" * number + line
                self._ends(partial(self._run_text, code, "site", "", path))

    def _ends(self, run: Callable[[], object]) -> None:
        """Run what may end by an exception, with which Python goes on."""
        try:
            run()
        except (CodeRaised, ScriptEnd, Returned):
            self.doubts += 1

    def run_program(self) -> None:
        """Run the program itself, then what it perhaps runs."""
        with suppress(CodeRaised, ScriptEnd, Returned):  # it ends
            self.doubts = 0
            self._run_main()
        module = self._modules.get("__main__")
        if module is not None and self.doubts:
            self.uncertain += 1
            self._opens.return_to_mark()
            module.run_rest()
            self._run_arguments()

    def _run_main(self) -> None:
        words, directory = self._start.words, self._start.directory
        if words.kind == "c":
            self._enter_path(directory)
            self._arguments[0] = "-c"
            self._run_text(words.what, "__main__", "", "the text of -c")
        elif words.kind == "m":
            self._enter_path(directory)
            self._run_named(words.what)
        elif words.what:
            path = posixpath.join(directory, words.what)
            resolved = self.resolve(path)
            if self.exists(f"{resolved}/__main__.py"):
                self.sys_path.insert(0, resolved)
                path = f"{resolved}/__main__.py"
            else:
                self._enter_path(posixpath.dirname(resolved))
            self._run_file(path)

    def _enter_path(self, directory: str) -> None:
        """Put the directory of the program first in sys.path."""
        safe = {"I", "P"} & self._start.words.flags
        if not (safe or self._start.environment.get("PYTHONSAFEPATH")):
            self.sys_path.insert(0, directory)

    def _run_arguments(self) -> None:
        """Follow the modules and scripts that a program gets as arguments, and perhaps runs, as
        servers do.
        """
        directory = self._start.directory
        self.sys_path.append(directory)
        for word in self._start.words.arguments[:_ARGUMENTS]:
            path = posixpath.join(directory, word)
            name = word.partition(":")[0]
            if word.endswith(".py") and self.exists(path):
                self.sys_path.append(posixpath.dirname(path))
                self._ends(partial(self._run_file, path))
            elif all(part.isidentifier() for part in name.split(".")):
                self._ends(partial(self.import_module, name, "the program imports"))

    def _run_file(self, path: str, package: str = "") -> None:
        text = self._finder.source(path, _SOURCE)
        if text is not None:
            self._run_text(text, "__main__", package, path)
        elif self.exists(path):
            self._opens.unknown(f"which libraries the code of {path} opens, which is not read")

    def _run_named(self, name: str) -> None:
        above = name.rpartition(".")[0]
        by = "python -m imports"
        if above and not self.import_module(above, by):
            return
        found = self._find(name)
        if found is not None and found.directory:
            self.import_module(name, by)
            above, found = name, self._find(f"{name}.__main__")
        if found is not None and found.path and not found.is_shared:
            self._arguments[0] = found.path
            self._run_file(found.path, above)

    def _run_text(self, text: str, name: str, package: str, path: str) -> None:
        """Follow the text of a module."""
        try:
            # Functions count where one may open or import something.
            whole = name == "__main__" or _OPENING.search(text)
            statements = parse_whole(text) if whole else parse_statements(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            self.doubts += 1
            return
        start = self._start
        module = FollowedModule(
            self,
            name,
            package,
            path,
            text,
            dict(imported_names(statements, package)),
            self._arguments,
            self._environment,
            start.executable,
        )
        self._modules[name] = module
        uncertain = self.uncertain
        try:
            module.run(statements, module.globals)
        finally:
            self.uncertain = uncertain

    # -- imports

    def import_module(self, name: str, by: str) -> bool:
        parts = name.split(".")
        for number in range(1, len(parts) + 1):
            part = ".".join(parts[:number])
            if part in self._certain or (part in self._modules and self.uncertain):
                continue
            found = self._find(part)
            if found is None:
                standard = parts[0] in sys.stdlib_module_names
                if not (standard or number > 1 or self.guarded or self.uncertain):
                    self._opens.unknown(f"what {by} as {part}, which is not in sys.path")
                return standard
            self._modules.setdefault(part, None)
            if self.uncertain == 0:
                self._certain.add(part)
            doubts = self.doubts
            try:
                self._run_found(part, found, by)
            finally:
                if self.doubts != doubts:
                    self.use(name)
                self.doubts = doubts
        return True

    def _find(self, name: str) -> FoundModule | None:
        if name not in self._found and len(self._found) < _NAMES:
            above, _, last = name.rpartition(".")
            package = self._find(above) if above else None
            found = None
            if not above:
                found = self._finder.find(last)
            elif package is not None and package.directory:
                found = self._finder.find_in(package.directory, last)
            if found is None:  # code may add to sys.path
                return None
            self._found[name] = found
        return self._found.get(name)

    def _run_found(self, name: str, found: FoundModule, by: str) -> None:
        """Follow a module that is imported."""
        if found.is_shared:
            opened = self.open_library(found.path, by)
            if opened is False:
                raise CodeRaised
            self.risks += opened is None
            self.use(name)  # compiled code may open others
        elif found.path:
            top = name.partition(".")[0]
            count = self._sources.get(top, 0) + 1
            all_sources = sum(self._sources.values())
            if count > _OF_PACKAGE or all_sources >= _SOURCES or self._bytes > _BYTES:
                self.doubts += 1
                return
            text = self._finder.source(found.path, _SOURCE)
            if text is None or found.path.endswith(".pyc"):
                self.doubts += 1
                return
            self._sources[top] = count
            self._bytes += len(text)
            package = name if found.directory else name.rpartition(".")[0]
            self._run_text(text, name, package, found.path)

    def doubt(self, *, of_main: bool) -> None:
        self.doubts += 1
        self.risks += 1
        if of_main:
            self._opens.mark()

    def function(self, dotted: str) -> tuple[FollowedModule, FunctionNode] | None:
        for _ in range(_REEXPORTS):
            name, _, last = dotted.rpartition(".")
            module = self._modules.get(name)
            if module is None:
                return None
            function = module.function(last)
            if function is not None:
                return module, function
            dotted = module.stands_for(last)
        return None

    # -- libraries

    def open_library(self, name: str, by: str) -> bool | None:
        place = self.at(name) if "/" in name else name
        if place is None or ("/" in name and not self._is_at_hand(place)):
            self.open_unknown(by, name)
            return None
        if self.directory != self._start.directory:
            name = place
        if self.uncertain:
            self._opens.perhaps(name, by)
            return None
        return self._opens.open(name, by)

    def open_unknown(self, by: str, text: str) -> None:
        if names := set(_LIBRARY.findall(text)):
            self._opens.unknown(f"which library {by}", names)

    def use(self, dotted: str) -> None:
        """Note that code of a package which is not followed is perhaps run: it may open the
        libraries of the driver that the package has.
        """
        name = dotted.partition(".")[0]
        package = self._found.get(name)
        if package is None or not package.directory or name in self._used:
            return
        self._used.add(name)
        own = filter(is_driver_library, self._finder.files_below(package.directory, _DIRECTORIES))
        for path in list(own)[:_OWN_LIBRARIES]:
            by = f"code of {name} opens"
            if self._is_at_hand(path):
                self._opens.perhaps(path, by)
            else:
                self.open_unknown(by, path)

    # -- files

    def _is_at_hand(self, path: str) -> bool:
        """Tell whether the libraries of an image can be read at once, as that at a path."""
        try:
            return is_at_hand(self._tree, self.resolve(path))
        except OSError:
            return True

    def at(self, path: str) -> str | None:
        directory = "/" if path.startswith("/") else self.directory
        return None if directory is None else posixpath.join(directory, path)

    def resolve(self, path: str) -> str:
        try:
            return self._tree.resolve(self.at(path) or path)
        except (OSError, PathError):
            return path

    def names_in(self, directory: str) -> list[str]:
        place = self.at(directory)
        return [] if place is None else names_in(self._tree, place)[:_NAMES]

    def exists(self, path: str) -> bool:
        place = self.at(path)
        return place is not None and self._tree.is_there(place)
