"""One question to the loader, put together: which program asks, by which loader, what it finds, and the verdict."""

import errno
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nvgraft.base.errors import printable
from nvgraft.formats.tree import PathError
from nvgraft.plan.actions import Injection, Plan
from nvgraft_cli.case.bundle import ContainerSide
from nvgraft_cli.case.dynamic import BadElf, Dynamic, NotRecorded, read_dynamic
from nvgraft_cli.case.planned_tree import PlannedTree
from nvgraft_cli.prove.loading import NOT_FOUND, Failure, Load, Object, load
from nvgraft_cli.prove.search import Asker, Searcher, default_loader, read_loader
from nvgraft_cli.shell.errors import InputError

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Proof:
    """The answer to one question. ``verdict`` is yes, no, or unknown, where a recorded host lacks a fact."""

    what: str
    verdict: str
    program: str
    loader: str
    load: Load
    notes: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """Return the answer for machines."""
        return {
            "what": self.what,
            "verdict": self.verdict,
            "program": self.program,
            "loader": self.loader,
            "objects": None if self.load.root is None else _object(self.load.root),
            "failures": [
                {
                    "asked_by": failure.asked_by,
                    "name": failure.name,
                    "words": failure.words,
                    "tried": [{"path": path, "reason": why} for path, why in failure.tried],
                }
                for failure in self.load.failures
            ],
            "unknown": list(self.load.unknown),
            "notes": list(self.notes),
        }

    def lines(self, *, colour: bool) -> Iterator[str]:
        """Return the answer for people."""
        words = {
            "yes": ("32", "loads"),
            "no": ("31", "does not load"),
            "unknown": ("33", "loads as far as is recorded"),
        }
        code, verdict = words[self.verdict]
        text = f"{printable(self.what)} {verdict}"
        yield f"\x1b[1;{code}m{text}\x1b[0m" if colour else text
        asker = f"asked for by {printable(self.program)}, " if self.program else ""
        yield f"  {asker}loader {printable(self.loader)}"
        for note in self.notes:
            yield f"  note: {printable(note)}"
        if self.load.root is not None:
            yield ""
            yield from _tree(self.load.root, "", "")
        for number, failure in enumerate(self.load.failures):
            yield ""
            yield printable(("first failure: " if number == 0 else "then: ") + failure.words)
            if failure.asked_by:
                yield f"  needed by {printable(failure.asked_by)}"
            for path, why in failure.tried:
                yield f"  looked at {printable(path)}: {printable(why)}"
        if self.load.unknown:
            yield ""
            yield from (f"not recorded: {printable(text)}" for text in self.load.unknown)


def _object(thing: Object) -> dict[str, Any]:
    return {
        "name": thing.name,
        "path": thing.path,
        "how": thing.how,
        "from": "host" if thing.from_host else "image",
        "needs": [_object(child) for child in thing.needs] if not thing.again else [],
    }


def _tree(thing: Object, first: str, rest: str) -> Iterator[str]:
    side = "host" if thing.from_host else "image"
    yield first + printable(f"{thing.name} => {thing.path}  ({side}, {thing.again or thing.how})")
    if thing.again:
        return
    for number, child in enumerate(thing.needs):
        last = number == len(thing.needs) - 1
        yield from _tree(
            child, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  ")
        )


def prove(
    what: str,
    program: str | None,
    tree: PlannedTree,
    plan: Plan,
    container: ContainerSide,
    isa_level: str | None = None,
) -> Proof:
    """Answer whether ``what`` loads: a program is started, a library (its path or SONAME) opened by ``program``.

    :param isa_level: the level of the host's processor; None: it is not known, or none of x86-64.
    :raises InputError: when the program that should ask is not there.
    """
    notes: list[str] = []
    facts = None
    if "/" in what:
        try:
            facts = read_dynamic(
                tree, tree.resolve(posixpath.join(container.working_directory, what))
            )
        except NotRecorded:
            notes.append(f"which loader {what} names is not recorded: the usual one is assumed")
        except (BadElf, OSError, PathError) as error:
            words = f"{what}: {_words(error)}"
            if (
                isinstance(error, OSError)
                and error.errno == errno.ENOENT
                and ".so" in posixpath.basename(what)
            ):
                words = f"{what}: {NOT_FOUND}"
            return Proof(
                what, "no", "", "none", Load(None, [Failure("", what, words)]), tuple(notes)
            )
        if facts is not None and facts.interp is None and not facts.needed and facts.soname is None:
            static = Object(what, what, "by its path", tree.from_host(tree.resolve(what)), facts)
            return Proof(what, "yes", "", "none: it is static", Load(static), ())
    if facts is not None and facts.interp is not None:
        caller, asked_by = _asker(what, tree, facts), ""
    elif "/" in what and facts is None:
        caller, asked_by = None, ""
    else:
        caller = _caller(program, tree, container, notes)
        asked_by = "" if caller is None else caller.path
    starts = facts if caller is None else caller.facts
    machine, bits = _machine(plan) if starts is None else (starts.machine, starts.bits)
    path = starts.interp if starts is not None and starts.interp else default_loader(machine, bits)
    try:
        loader = read_loader(tree, path, machine, bits)
    except OSError as error:
        return _without_loader(what, path, asked_by, error, tree, notes)
    library_path = container.spec.env.get("LD_LIBRARY_PATH", "")
    searcher = Searcher(
        tree, loader, machine, bits, caller, library_path, container.working_directory, isa_level
    )
    outcome = load(what, tree, searcher, caller)
    verdict = "no" if outcome.failures else "unknown" if outcome.unknown else "yes"
    if loader.musl and any(thing.from_host for thing in _all(outcome.root)):
        notes.append(
            "this image has musl: libraries of the driver are built for glibc, and musl lacks symbols that they need"
        )
        outcome.failures.append(
            Failure(loader.path, what, "Error relocating: symbols of glibc are not in musl's libc")
        )
        verdict = "no"
    return Proof(what, verdict, asked_by, loader.path, outcome, tuple(notes))


def _asker(path: str, tree: PlannedTree, facts: Dynamic) -> Asker:
    """Return a program as what asks for libraries: $ORIGIN of a program is the directory in which it lies, links followed."""
    return Asker(path, posixpath.dirname(tree.resolve(path)), facts)


def _without_loader(
    what: str, path: str, asked_by: str, error: OSError, tree: PlannedTree, notes: list[str]
) -> Proof:
    musl = [name for name in tree.listdir("/lib") if name.startswith("ld-musl-")]
    if musl:
        notes.append(
            f"the image has musl's loader /lib/{musl[0]}, which programs and libraries of glibc cannot use"
        )
    words = (
        f"{what}: No such file or directory"
        if "/" in what
        else f"{what}: the image has no loader for glibc"
    )
    failure = Failure(what if "/" in what else asked_by, path, words, ((path, _words(error)),))
    return Proof(what, "no", "", path, Load(None, [failure]), tuple(notes))


def _words(error: Exception) -> str:
    if isinstance(error, PathError):
        return error.text
    return (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)


def _all(thing: Object | None) -> Iterator[Object]:
    if thing is not None:
        yield thing
        for child in thing.needs:
            yield from _all(child)


def _machine(plan: Plan) -> tuple[str, int]:
    """Return the machine of the driver that is mounted, where no program says it."""
    arm = isinstance(plan, Injection) and "aarch64" in plan.target.libs_dir
    return ("EM_AARCH64" if arm else "EM_X86_64", 64)


def _caller(
    program: str | None, tree: PlannedTree, container: ContainerSide, notes: list[str]
) -> Asker | None:
    """Return the program that asks: the one that was named, else what the container starts, behind its #! lines."""
    path = program or _start_of(tree, container)
    for _ in range(4):
        if path is None:
            notes.append(
                "the container's own program was not found: a program without RPATH is assumed"
            )
            return None
        try:
            resolved = tree.resolve(path)
            facts = read_dynamic(tree, resolved)
        except BadElf:
            path = _interpreter(tree, path)
            continue
        except (OSError, PathError) as error:
            if program is not None:
                raise InputError(
                    f"{program}: {_words(error)}: --program must name a program of the container"
                ) from error
            path = None
            continue
        if facts.interp is None:
            notes.append(
                f"{path} is static and can load no library: a dynamic program without RPATH is assumed"
            )
            return None
        return _asker(path, tree, facts)
    return None


def _interpreter(tree: PlannedTree, path: str) -> str | None:
    try:
        line = tree.read(tree.resolve(path), 1 << 20).split(b"\n", 1)[0]
    except (OSError, PathError):
        return None
    if not line.startswith(b"#!"):
        return None
    words = line[2:].decode("utf-8", "surrogateescape").split()
    if words and posixpath.basename(words[0]) == "env":
        return _in_path(tree, words[-1], _PATH)
    return words[0] if words else None


def _start_of(tree: PlannedTree, container: ContainerSide) -> str | None:
    arguments = container.arguments
    if not arguments:
        return None
    name = arguments[0]
    return name if "/" in name else _in_path(tree, name, container.spec.env.get("PATH", _PATH))


def _in_path(tree: PlannedTree, name: str, path: str) -> str | None:
    for directory in path.split(":"):
        try:
            found = posixpath.join("/", directory, name)
            if tree.find(found)[1] is not None:
                return found
        except (PathError, OSError):
            continue
    return None
