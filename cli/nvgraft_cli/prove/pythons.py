"""Find the Python of a container, and where it and other Pythons of the image look for modules."""

import posixpath
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nvgraft.formats.tree import PathError, Tree
from nvgraft_cli.case.bundle import ContainerSide
from nvgraft_cli.case.file_changes import UNKNOWN
from nvgraft_cli.case.planned_tree import PlannedTree
from nvgraft_cli.prove.python.program import PythonStart
from nvgraft_cli.prove.script.python_words import read_words
from nvgraft_cli.prove.start.path_search import find_in_path
from nvgraft_cli.prove.start.program import StartedProgram, started_program
from nvgraft_cli.prove.start.tree_files import text_of
from nvgraft_cli.shell.errors import InputError

#: Prefixes of Python and conda, besides those of PATH and of the container's program.
_PREFIXES = ("/usr/local", "/usr", "/opt/conda", "/opt/venv")

#: Names of one directory, and lines of a .pth file, that are looked at.
_MOST = 32
_TEXT_LIMIT = 64 << 10

_PYTHON = re.compile(r"python(3(?:\.\d+)?)?")
_VERSION = re.compile(r"python(3\.\d+)")
_LIBRARIES = ("lib", "lib64")
_PACKAGES = ("site-packages", "dist-packages")


def prefixes(environment: Mapping[str, str], program: str) -> Iterator[str]:
    """Yield the absolute prefixes below which an image may have a Python.

    :param program: the container's own, or "".
    """
    directories = [*environment.get("PATH", "").split(":"), posixpath.dirname(program)]
    searched = [path.removesuffix("/bin") for path in directories if path.endswith("/bin")]
    named = [environment.get("VIRTUAL_ENV", ""), environment.get("CONDA_PREFIX", "")]
    for prefix in dict.fromkeys([*named, *searched, *_PREFIXES]):
        if prefix.startswith("/"):
            yield prefix


def site_packages(tree: Tree, prefix: str) -> Iterator[str]:
    """Yield the directories below ``prefix`` into which pip installs."""
    for lib in _LIBRARIES:
        directory = resolve(tree, f"{prefix}/{lib}")
        for name in names(tree, directory, "python3"):
            for packages in _PACKAGES:
                yield f"{directory}/{name}/{packages}"


def container_python(tree: PlannedTree, container: ContainerSide, program: str | None) -> str:
    """Return the path of the Python that imports modules.

    It is ``program``, the container's own program, or the first python3 or python that is found.

    :raises InputError: there is none.
    """
    if program is not None:
        return program
    started = started_program(tree, container).path
    if _PYTHON.fullmatch(posixpath.basename(started)):
        return started
    environment = container.spec.env
    for name in ("python3", "python"):
        if found := find_in_path(tree, environment, name):
            return found
        for prefix in prefixes(environment, started):
            if _is_file(tree, f"{prefix}/bin/{name}"):
                return f"{prefix}/bin/{name}"
    raise InputError(
        f"{container.label}: the image has no Python in PATH or in the usual directories | pass "
        "--program the path of its Python"
    )


@dataclass(frozen=True, slots=True)
class ModulePath:
    """The directories in which a Python looks for modules (sys.path), in its order.

    :ivar named: those of PYTHONPATH.
    :ivar standard: those of the standard library.
    :ivar sites: those whose .pth files are read, and ``added`` these with what the files add.
    """

    named: tuple[str, ...]
    standard: tuple[str, ...]
    sites: tuple[str, ...]
    added: tuple[str, ...]

    @property
    def entries(self) -> list[str]:
        """All of them."""
        return list(dict.fromkeys((*self.named, *self.standard, *self.added)))


def module_path(
    tree: PlannedTree,
    python: str,
    environment: Mapping[str, str],
    directory: str,
    flags: Collection[str] = (),
) -> ModulePath:
    """Return where a Python looks for modules.

    :param directory: the working directory, to which PYTHONPATH may be relative.
    :param flags: the letters of its options.
    """
    ignored = {"I", "E"} & set(flags)
    named = [
        posixpath.join(directory, entry)
        for entry in environment.get("PYTHONPATH", "").split(":")
        if entry and not ignored
    ]
    real = resolve(tree, python)
    version = _VERSION.fullmatch(posixpath.basename(real))
    prefix = posixpath.dirname(posixpath.dirname(python))
    virtual = _settings(tree, f"{prefix}/pyvenv.cfg")
    base = posixpath.dirname(posixpath.dirname(real))
    if virtual is not None:
        base = posixpath.dirname(virtual.get("home", "")) or base
    wanted = f"python{version[1]}" if version else ""
    standard = _standard(tree, base, wanted)
    packages = _packages(tree, standard)
    sites = [] if virtual is None else _sites(tree, prefix, wanted, _PACKAGES[:1])
    if virtual is None or virtual.get("include-system-site-packages", "").lower() == "true":
        home = environment.get("HOME", "/root")
        if not ({"I", "s"} & set(flags) or environment.get("PYTHONNOUSERSITE")):
            sites += _sites(tree, f"{home}/.local", wanted, _PACKAGES)
        for place in (*(["/usr/local"] if base == "/usr" else []), base):
            sites += _sites(tree, place, wanted, packages)
        sites += [f"{base}/lib/python3/{name}" for name in packages]
    added = [entry for site in sites for entry in (site, *_added(tree, site))]
    return ModulePath(
        *(
            tuple(dict.fromkeys(resolve(tree, entry) for entry in entries))
            for entries in (named, standard, sites, added)
        )
    )


def python_start(
    tree: PlannedTree, started: StartedProgram, may_read: Callable[[str], bool]
) -> PythonStart | None:
    """Return how a program is started that is a Python; None for another one.

    :param may_read: tells whether its user may read the file at a resolved path.
    """
    if not _PYTHON.fullmatch(posixpath.basename(started.path)):
        return None
    words = read_words(started.words[1:])
    path = module_path(tree, started.path, started.environment, started.directory, words.flags)
    return PythonStart(
        words,
        started.path,
        {**dict.fromkeys(started.computed, UNKNOWN), **started.environment},
        started.directory,
        tuple(path.entries),
        path.standard,
        path.sites,
        extension_tag(tree, started.path),
        may_read,
    )


def extension_tag(tree: Tree, python: str) -> str:
    """Return the tag of a Python in the names of extension modules, or "" if it is not known."""
    match = re.fullmatch(r"python3\.(\d+)", posixpath.basename(resolve(tree, python)))
    return f"cpython-3{match[1]}" if match else ""


def _standard(tree: Tree, base: str, wanted: str) -> list[str]:
    """Return the directories of the standard library."""
    return [
        f"{base}/{lib}/{name}{below}"
        for lib in _LIBRARIES
        for name in _versions(tree, f"{base}/{lib}", wanted)
        for below in ("", "/lib-dynload")
    ]


def _sites(tree: Tree, prefix: str, wanted: str, packages: Sequence[str]) -> list[str]:
    return [
        f"{prefix}/{lib}/{name}/{directory}"
        for lib in _LIBRARIES
        for name in _versions(tree, f"{prefix}/{lib}", wanted)
        for directory in packages
    ]


def _packages(tree: Tree, standard: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the directories of packages that a Python reads: Debian's has another
    one, as its site.py tells.
    """
    for directory in standard:
        text = text_of(tree, f"{directory}/site.py", _TEXT_LIMIT)
        if text is not None:
            return _PACKAGES[1:] if _PACKAGES[1] in text else _PACKAGES[:1]
    return _PACKAGES


def _versions(tree: Tree, directory: str, wanted: str) -> list[str]:
    return [wanted] if wanted else names(tree, resolve(tree, directory), "python3.")


def _settings(tree: Tree, path: str) -> dict[str, str] | None:
    """Return the settings of a virtual environment's pyvenv.cfg, or None if there is none."""
    text = text_of(tree, path, _TEXT_LIMIT)
    if text is None:
        return None
    pairs = (line.partition("=") for line in text.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _added(tree: Tree, site: str) -> list[str]:
    """Return the directories that .pth files of a directory add."""
    added = []
    for name in names(tree, resolve(tree, site), "", ".pth"):
        lines = (text_of(tree, f"{site}/{name}", _TEXT_LIMIT) or "").splitlines()[:_MOST]
        added += [
            posixpath.join(site, line.strip())
            for line in lines
            if line.strip() and not line.startswith(("#", "import ", "import\t"))
        ]
    return added


def _is_file(tree: Tree, path: str) -> bool:
    try:
        node = tree.find(path)[1]
    except (PathError, OSError):
        return False
    return node is not None and node.type == "file"


def resolve(tree: Tree, path: str) -> str:
    """Return ``path`` with symbolic links followed, or itself where that fails."""
    try:
        return tree.resolve(path)
    except (PathError, OSError):
        return path


def names(
    tree: Tree, directory: str, prefix: str, suffix: str = "", most: int = _MOST
) -> list[str]:
    """Return the first names in a directory with a prefix and a suffix.

    There are none where it cannot be listed.
    """
    try:
        listed = tree.listdir(directory)
    except (PathError, OSError):
        return []
    return [name for name in listed if name.startswith(prefix) and name.endswith(suffix)][:most]
