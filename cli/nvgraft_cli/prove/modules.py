"""Answer whether a module of Python loads in a container: its extension modules and libraries.

Each extension module is judged in a process of its own. Where one does not load, the statements of
the module's sources tell whether it is imported with the module, and which other packages are:
those bring libraries, as torch does for torchvision. What else Python code does before, such as
opening libraries of other wheels, counts for the libraries of the driver alone.
"""

import posixpath
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from nvgraft.base.errors import printable
from nvgraft.formats.tree import PathError, Tree
from nvgraft.plan.actions import Injection
from nvgraft_cli.case.dynamic import names_symbol
from nvgraft_cli.case.planned_tree import PlannedTree
from nvgraft_cli.case.planning import Case
from nvgraft_cli.case.texts import texts_in
from nvgraft_cli.prove.imports import Imports, imports_of
from nvgraft_cli.prove.loader.final_file import LoadedFrom, is_driver_library
from nvgraft_cli.prove.loader.loading import Object
from nvgraft_cli.prove.loader.search import LoadFault
from nvgraft_cli.prove.opened import opened_libraries
from nvgraft_cli.prove.proof import Opener, Proof, all_objects, open_program
from nvgraft_cli.prove.pythons import (
    container_python,
    extension_tag,
    module_path,
    names,
    resolve,
)
from nvgraft_cli.shell.errors import InputError

#: An extension module, with the tag of its Python: _C.cpython-311-x86_64-linux-gnu.so, _x.abi3.so.
_EXTENSION = re.compile(r"[^.]+(?:\.(?:(cpython-3\d+)[\w-]*|abi3))?\.so")
_INIT = re.compile(r"__init__\.(?:py|(?:[\w-]+\.)?so)")
_LIBRARY = re.compile(r"lib[^/]+\.so(?:\.[\w.]+)?")
#: A library that auditwheel copied into a wheel because another one needs it: no code opens it.
#: Source: auditwheel's repair.py, which puts a part of the file's hash into the name.
_GRAFTED = re.compile(r"lib.+-[0-9a-f]{8}(?:\.\d+)*\.so(?:\.[\w.]+)?")
#: Bytes of a library's strings in which its function for Python is looked for (triton: 14 MB).
_STRINGS_LIMIT = 32 << 20
#: Bytes of an extension module in which the names of others are looked for.
_TEXTS_LIMIT = 64 << 20
#: Libraries of CUDA, which toolkits and NVIDIA's wheels have: not libcurl, libcups or libnvme.
_CUDA = re.compile(
    r"lib(?:cu(?:blas|d[afn]|dss|fft|file|graph|inj|ml|obj|pti|quantum|rand|solver|sparse|tensor|vs)"
    r"|nccl|npp|nv(?!me))"
)

#: Directories of a package without libraries, and how deep and how many others are looked at.
_SKIPPED = {"__pycache__", "include", "test", "tests"}
_DEPTH, _DIRECTORIES = 8, 2000
_RECORD_LIMIT = 4 << 20


@dataclass(frozen=True, slots=True)
class ModuleFiles:
    """The shared objects of a module.

    :ivar path: of the module or package, or of the directory of a distribution's metadata.
    :ivar version: of its distribution; "" if it is not known.
    :ivar extensions: its extension modules for this Python.
    :ivar libraries: its other shared objects.
    :ivar beside: those of NVIDIA's wheels in the same directory.
    :ivar others: extension modules for other versions of Python.
    :ivar entry: the directory of sys.path that has the module; "" for a distribution.
    """

    path: str
    version: str
    extensions: tuple[str, ...]
    libraries: tuple[str, ...]
    beside: tuple[str, ...]
    others: int
    entry: str = ""

    @property
    def by_name(self) -> dict[str, str]:
        """The extension modules by the names under which Python imports them."""
        return {_name_below(self.entry, path): path for path in self.extensions}


@dataclass(frozen=True)
class ModuleProof:
    """The answer about one module.

    :ivar program: the Python that imports it.
    :ivar extensions: an answer for each extension module.
    :ivar libraries: answers for libraries that no extension module needs: code opens them.
    :ivar driver: answers for the driver's libraries that CUDA opens.
    :ivar spare: the paths of extension modules that do not load and are not imported with it.
    """

    module: str
    files: ModuleFiles
    program: str
    loader: str
    extensions: tuple[Proof, ...]
    libraries: tuple[Proof, ...]
    driver: tuple[Proof, ...]
    notes: tuple[str, ...]
    spare: frozenset[str] = frozenset()

    @property
    def judged(self) -> tuple[Proof, ...]:
        """The answers that decide: of the extension modules that are imported with it, or of all
        libraries that its code may open if it has none.
        """
        own = [proof for proof in self.libraries if proof.what in self.files.libraries]
        opened = [proof for proof in own if not _GRAFTED.fullmatch(posixpath.basename(proof.what))]
        imported = [proof for proof in self.extensions if proof.what not in self.spare]
        return tuple(imported or opened or own)

    @property
    def exit_code(self) -> int:
        """1 if something does not load, 4 if CUDA gets a library that is not the host's, else 0.

        Libraries that the code of extension modules opens on demand do not count.
        """
        if self.verdict == "no":
            return 1
        return max((proof.exit_code for proof in self.driver), default=0)

    @property
    def verdict(self) -> str:
        """Yes, no, or unknown where a snapshot does not record a fact."""
        verdicts = {proof.verdict for proof in self.judged}
        return next((word for word in ("no", "unknown") if word in verdicts), "yes")

    @cached_property
    def cuda(self) -> dict[str, Object]:
        """The libraries of CUDA that are loaded with it, by name."""
        found: dict[str, Object] = {}
        for proof in (*self.extensions, *self.libraries):
            for loaded in all_objects(proof.load.root):
                name = posixpath.basename(loaded.path)
                if _CUDA.match(name) and not is_driver_library(name):
                    found.setdefault(posixpath.basename(loaded.name), loaded)
        return found

    def document(self) -> dict[str, Any]:
        """Return the answer as in ``nvgraft.prove/1``."""
        return {
            "module": self.module,
            "version": self.files.version,
            "path": self.files.path,
            "verdict": self.verdict,
            "program": self.program,
            "loader": self.loader,
            "extensions": [proof.document() for proof in self.extensions],
            "libraries": [proof.document() for proof in self.libraries],
            "cuda": [
                {"name": name, "path": loaded.file, "from": _side(loaded), "how": loaded.how}
                for name, loaded in self.cuda.items()
            ],
            "driver": [proof.document() for proof in self.driver],
            "notes": list(self.notes),
        }

    def lines(self, *, colour: bool) -> Iterator[str]:
        """Yield the answer as text."""
        # The first line is green, yellow or red, as that of a library.
        code = {"yes": "32", "no": "31", "unknown": "33"}[self.verdict]
        head = printable(f"{self.module} {self.files.version}".strip() + self._head())
        if self.exit_code == 4:
            code = "31"
        yield f"\x1b[1;{code}m{head}\x1b[0m" if colour else head
        yield f"  imported by {printable(self.program)}, loader {printable(self.loader)}"
        yield f"  found in {printable(self.files.path)}"
        for note in self.notes:
            yield f"  note: {printable(note)}"
        rows = [(proof.what, *proof.in_words()) for proof in self.driver]
        rows += [
            (name, loaded.file, f"of the {_side(loaded)}: {_shortened(loaded.how)}")
            for name, loaded in self.cuda.items()
        ]
        if rows:
            yield ""
            width = max(len(printable(name)) for name, *_ in rows)
            for name, path, words in rows:
                yield f"{printable(name):<{width}}  {printable(path)}  ({printable(words)})"
        for proof in (*self.extensions, *self.libraries):
            if proof.verdict == "no":
                yield ""
                yield from _failure(proof)
        unknown = dict.fromkeys(text for proof in self.judged for text in proof.load.unknown)
        if unknown:
            yield ""
            yield from (f"not known: {printable(text)}" for text in unknown)

    def _head(self) -> str:
        """Return the first line behind the module's name."""
        if not self.files.extensions and not self.libraries:
            return " has no shared objects: it is Python only"
        failed = [proof for proof in self.judged if proof.verdict == "no"]
        if failed:
            words = failed[0].load.failures[0].words
            return f" does not load: {posixpath.basename(failed[0].what)}: {words}"
        words = " loads, as far as is known" if self.verdict == "unknown" else " loads"
        foreign = next((proof for proof in self.driver if proof.exit_code == 4), None)
        if foreign is not None:
            final = foreign.final
            words += f", but {foreign.what} from the image: {final.path} ({final.how})"
            return f"{words}; {final.consequence}" if final.consequence else words
        missing = next((proof for proof in self.driver if proof.verdict == "no"), None)
        if missing is not None:
            return f"{words}, but {missing.what} does not"
        broken = [proof.what for proof in self.libraries if proof.verdict == "no"]
        own = len([path for path in broken if path in self.files.libraries])
        if self.extensions:
            words += f": {_counted(len(self.extensions) - len(self.spare), 'extension module')}"
        else:
            words += f": {_counted(len(self.libraries) - len(broken), 'shared library')}"
        if self.spare:
            words += f"; {len(self.spare)} that it does not import itself"
            words += _not_loading(len(self.spare))
        if own:
            which = " that it may open" if self.extensions else " that no code opens"
            words += f"; {_counted(own, 'library')}{which}{_not_loading(own)}"
        if beside := len(broken) - own:
            words += f"; {_counted(beside, 'library')} of NVIDIA's wheels{_not_loading(beside)}"
        return words


def _not_loading(count: int) -> str:
    return " does not load" if count == 1 else " do not load"


def _counted(count: int, noun: str) -> str:
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun[:-1]}ies" if noun.endswith("y") else f"{count} {noun}s"


def _shortened(how: str) -> str:
    """Return a rule with the name of the object whose search path it is, without directories."""
    rule, of, path = how.partition(" of ")
    return f"{rule}{of}{posixpath.basename(path)}"


def _side(loaded: Object) -> str:
    return LoadedFrom.HOST if loaded.from_host else LoadedFrom.IMAGE


def _failure(proof: Proof) -> Iterator[str]:
    failure = proof.load.failures[0]
    yield f"does not load: {printable(proof.what)}"
    yield f"  {printable(failure.words)}"
    if failure.needed_by and failure.needed_by != proof.what:
        yield f"  needed by {printable(failure.needed_by)}"


def prove_module(module: str, case: Case, program: str | None = None) -> ModuleProof:
    """Answer whether a module loads in the container of a case that is not refused.

    :param module: a name to import, or the name of a distribution.
    :param program: the Python that imports it; None for the container's.
    :raises InputError: the image has no such module, or no Python.
    """
    tree, container = case.planned_tree, case.container
    plan, _ = case.outcome
    python = container_python(tree, container, program)
    opener = open_program(python, tree, plan, container, case.host.isa_level)
    path = module_path(tree, python, container.spec.env, container.working_directory).entries
    tag = extension_tag(tree, python)
    files = _find(tree, path, module, tag)
    if files is None:
        raise InputError(
            f"{module}: {python} of the image has no such module | name an import or a "
            "distribution, and with --program another Python; it looks in "
            + ", ".join(entry for entry in path if _is_directory(tree, entry))
        )
    extensions, notes = tuple(map(opener.proof, files.extensions)), list[str]()
    spare: frozenset[str] = frozenset()
    if files.entry and any(proof.verdict == "no" for proof in extensions):
        imports = imports_of(tree, files.entry, module, files.by_name)
        extensions, notes = _with_packages(opener, tree, files, imports, tag, extensions)
        spare = _not_imported(tree, files, imports, extensions)
    loaded = {entry.file for proof in extensions for entry in all_objects(proof.load.root)}

    def opened(libraries: tuple[str, ...]) -> tuple[Proof, ...]:
        return tuple(
            opener.proof(library) for library in libraries if resolve(tree, library) not in loaded
        )

    loader, libraries = opener.loader.path, opened(files.libraries)
    if files.others:
        notes.append(f"{files.others} extension modules are for other versions of Python")
    notes += _notes(files, (*extensions, *libraries))
    answer = ModuleProof(
        module, files, python, loader, extensions, libraries, (), tuple(notes), spare
    )
    if answer.cuda:  # a module without CUDA opens nothing of NVIDIA's wheels
        failed = tuple(proof for proof in opened(files.beside) if proof.verdict == "no")
        notes += _notes(files, failed)
        answer = replace(answer, libraries=(*libraries, *failed), notes=tuple(notes))
    if isinstance(plan, Injection):
        if files.entry:
            code = ["-c", f"import {module}"]
            opener = open_program(python, tree, plan, container, case.host.isa_level, code)
        return replace(answer, driver=tuple(_driver(opener, answer, plan)))
    return answer


def _with_packages(
    opener: Opener,
    tree: PlannedTree,
    files: ModuleFiles,
    imports: Imports,
    tag: str,
    proofs: tuple[Proof, ...],
) -> tuple[tuple[Proof, ...], list[str]]:
    """Return the answers of extension modules after the packages that the module imports and that
    have a library which is missing, and notes about these packages.

    The extension modules in the directory of a package are taken for those that come with it.
    """
    missing = {
        posixpath.basename(failure.name)
        for proof in proofs
        for failure in proof.load.failures
        if failure.fault is LoadFault.NOT_FOUND
    }
    notes, opened = [], list[str]()
    for package in sorted(imports.packages) if missing else ():
        place = f"{files.entry}/{package}"
        lent = missing & {posixpath.basename(path) for path in _walk(tree, place)}
        if not lent:
            continue
        listed = [f"{place}/{name}" for name in _listed(tree, place)]
        own = _files(tree, files.entry, package, place, listed, tag).extensions
        failed = next((proof for proof in map(opener.proof, own) if proof.verdict == "no"), None)
        if failed is not None:
            words = failed.load.failures[0].words
            notes.append(f"{package}, which it imports, does not load: {words}")
        elif own:
            notes.append(f"{package}, which it imports, has loaded {', '.join(sorted(lent))}")
            opened += own
    if not opened:
        return proofs, notes
    return tuple(
        opener.proof(proof.what, opened=opened) if proof.verdict == "no" else proof
        for proof in proofs
    ), notes


def _not_imported(
    tree: PlannedTree, files: ModuleFiles, imports: Imports, proofs: tuple[Proof, ...]
) -> frozenset[str]:
    """Return the extension modules that do not load and are not imported with the module.

    There are none where its sources do not tell, and where no extension module loads.
    """
    failed = {proof.what for proof in proofs if proof.verdict == "no"}
    if not imports.complete or len(failed) == len(proofs):
        return frozenset()
    imported = [path for name, path in files.by_name.items() if name in imports.extensions]
    spare = {
        name.encode(): path
        for name, path in files.by_name.items()
        if path in failed and name not in imports.extensions
    }
    for path in imported if spare else ():
        # Compiled code imports others too: their names are among its texts.
        tree.count_library(path)
        with suppress(OSError):
            for name in texts_in(tree, resolve(tree, path), set(spare), _TEXTS_LIMIT):
                del spare[name]
    return frozenset(spare.values())


def _driver(opener: Opener, answer: ModuleProof, plan: Injection) -> Iterator[Proof]:
    """Yield an answer for each library of the driver that CUDA opens: without CUDA, for those that
    the module's code leads to other files, or perhaps does.
    """
    runtime = next(
        (
            proof.what
            for proof in (*answer.extensions, *answer.libraries)
            for loaded in all_objects(proof.load.root)
            if posixpath.basename(loaded.path).startswith("libcudart.so")
        ),
        next(iter((*answer.files.extensions, *answer.files.libraries)), ""),
    )
    for name in opened_libraries(plan.request.capabilities):
        if name in {"libcuda.so.1", "libnvidia-ml.so.1"}:
            proof = opener.proof(name, runtime if answer.cuda else "")
            if answer.cuda or proof.final.precedence.by_code or proof.load.perhaps_opened:
                yield proof


def _notes(files: ModuleFiles, proofs: tuple[Proof, ...]) -> Iterator[str]:
    beside = {posixpath.basename(path): path for path in files.beside}
    for name in dict.fromkeys(
        failure.name for proof in proofs for failure in proof.load.failures[:1]
    ):
        if name in beside:
            yield (
                f"{name} is in {beside[name]}, and the loader does not look there: whether the "
                "module's own Python code opens it first is not known"
            )


def _find(tree: Tree, path: list[str], module: str, tag: str) -> ModuleFiles | None:
    """Return the files of a module that is imported from ``path``, or of a distribution."""
    if not module or "/" in module:
        return None
    *above, last = module.split(".")
    for regular in (True, False):  # a package without __init__ comes last, wherever it is
        for entry in path:
            place = posixpath.join(entry, *above)
            package = posixpath.join(place, last)
            listed = _listed(tree, package)
            if listed and any(map(_INIT.fullmatch, listed)) is regular:
                files = [*_walk(tree, package), *_walk(tree, f"{package}.libs")]
                return _files(tree, entry, module, package, files, tag)
            if not regular:
                continue
            single = [name for name in _listed(tree, place) if name.split(".")[0] == last]
            shared = [name for name in single if _EXTENSION.fullmatch(name)]
            if shared or f"{last}.py" in single:
                found = shared[0] if shared else f"{last}.py"
                files = [f"{place}/{name}" for name in shared]
                files += _walk(tree, f"{entry}/{module.split('.', maxsplit=1)[0]}.libs")
                return _files(tree, entry, module, f"{place}/{found}", files, tag)
    for entry in path:
        metadata = _metadata(tree, entry, module)
        if metadata:
            files = list(_recorded(tree, entry, metadata))
            return _files(tree, entry, module, f"{entry}/{metadata}", files, tag)
    return None


def _files(
    tree: Tree, entry: str, module: str, path: str, found: list[str], tag: str
) -> ModuleFiles:
    extensions: list[str] = []
    libraries: list[str] = []
    others = 0
    for file in dict.fromkeys(found):
        name = posixpath.basename(file)
        match = _EXTENSION.fullmatch(name)
        if match and (name.count(".") > 1 or not name.startswith("lib")):
            if match[1] and tag and match[1] != tag:
                others += 1
            else:
                extensions.append(file)
        elif _LIBRARY.fullmatch(name):
            libraries.append(file)
    if not extensions:  # triton's has the name of a library
        extensions = [file for file in libraries if _is_imported(tree, file)]
        libraries = [file for file in libraries if file not in extensions]
    beside = tuple(
        file
        for file in _walk(tree, f"{entry}/nvidia")
        if file not in libraries and _LIBRARY.fullmatch(posixpath.basename(file))
    )
    metadata = _metadata(tree, entry, module.split(".", 1)[0])
    version = metadata.removesuffix(".dist-info").rpartition("-")[2]
    of_module = "" if path.endswith(".dist-info") else entry
    return ModuleFiles(
        path, version, tuple(extensions), tuple(libraries), beside, others, of_module
    )


def _name_below(entry: str, path: str) -> str:
    """Return the name of the module in a file below a directory of sys.path."""
    directory, name = posixpath.split(path)
    parts = [*directory.removeprefix(entry).split("/"), name.partition(".")[0]]
    return ".".join(filter(None, parts))


def _is_imported(tree: Tree, library: str) -> bool:
    """Tell whether a library has the function with which Python imports it by its name."""
    name, dot, rest = posixpath.basename(library).partition(".")
    if dot + rest != ".so":
        return False
    tree.count_library(library)
    return names_symbol(tree, resolve(tree, library), f"PyInit_{name}", _STRINGS_LIMIT)


def _walk(tree: Tree, place: str) -> Iterator[str]:
    """Yield the files of a directory and below whose names are those of shared objects."""
    queue, seen = [(place, 0)], 0
    while queue and seen < _DIRECTORIES:
        directory, depth = queue.pop(0)
        seen += 1
        for name in _listed(tree, directory):
            path = f"{directory}/{name}"
            if _EXTENSION.fullmatch(name) or _LIBRARY.fullmatch(name):
                yield path
            elif "." in name or name in _SKIPPED or depth == _DEPTH:
                continue
            elif _is_directory(tree, path):
                queue.append((path, depth + 1))


def _listed(tree: Tree, directory: str) -> list[str]:
    try:
        return tree.listdir(tree.resolve(directory))
    except (PathError, OSError):
        return []


def _is_directory(tree: Tree, path: str) -> bool:
    try:
        node = tree.find(path)[1]
    except (PathError, OSError):
        return False
    return node is not None and node.type == "dir"


def _metadata(tree: Tree, entry: str, module: str) -> str:
    """Return the name of the metadata directory of a distribution, or ""."""
    wanted = re.sub(r"[-_.]+", "_", module).lower()
    for name in names(tree, resolve(tree, entry), "", ".dist-info", most=_DIRECTORIES):
        distribution = name.removesuffix(".dist-info").rpartition("-")[0]
        if re.sub(r"[-_.]+", "_", distribution).lower() == wanted:
            return name
    return ""


def _recorded(tree: Tree, entry: str, metadata: str) -> Iterator[str]:
    """Yield the shared objects that a distribution's RECORD names."""
    try:
        text = tree.read(tree.resolve(f"{entry}/{metadata}/RECORD"), _RECORD_LIMIT)
    except (PathError, OSError):
        return
    for line in text.decode("utf-8", "surrogateescape").splitlines():
        path = line.split(",", 1)[0].strip('"')
        name = posixpath.basename(path)
        if _EXTENSION.fullmatch(name) or _LIBRARY.fullmatch(name):
            yield posixpath.normpath(posixpath.join(entry, path))
