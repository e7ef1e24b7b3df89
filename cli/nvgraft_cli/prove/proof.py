"""Answer one question: which program requests the object, which loader it uses, and the verdict."""

import errno
import posixpath
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from nvgraft.base.errors import printable
from nvgraft.formats.tree import PathError
from nvgraft.plan.actions import Plan
from nvgraft_cli.case.bundle import ContainerSide
from nvgraft_cli.case.dynamic import BadElf, Dynamic, NotRecorded, read_dynamic
from nvgraft_cli.case.planned_tree import PlannedTree
from nvgraft_cli.prove.loader.access import access_of
from nvgraft_cli.prove.loader.final_file import NO_FILE, FinalFile, LoadedFrom, final_file
from nvgraft_cli.prove.loader.loading import NOT_FOUND, Failure, Load, Object, RunningProgram
from nvgraft_cli.prove.loader.search import (
    NO_DLOPEN_WORDS,
    Loader,
    LoadFault,
    Requester,
    Searcher,
    Tried,
    default_loader,
    read_loader,
    read_static_loader,
    refuses_dlopen,
)
from nvgraft_cli.prove.loader.static_glibc import other_glibc
from nvgraft_cli.prove.python.program import follow_program
from nvgraft_cli.prove.pythons import python_start
from nvgraft_cli.prove.start.architecture import exec_format_error, foreign_architecture
from nvgraft_cli.prove.start.path_search import places_in
from nvgraft_cli.prove.start.program import (
    StartedProgram,
    missing_program,
    named_program,
    started_program,
)
from nvgraft_cli.shell.errors import InputError

#: Variables that a loader ignores in a program that gains rights (ld.so(8), secure execution).
_UNSAFE = {"LD_LIBRARY_PATH", "LD_PRELOAD"}


class _OpensNothing(Exception):
    """A program opens no library: the host does not run it, for one.

    ``program`` is its path, the text is the error.
    """

    def __init__(self, program: str, words: str) -> None:
        super().__init__(words)
        self.program = program

    def failure(self, what: str) -> Failure:
        """Return why ``what`` does not load."""
        return Failure("" if self.program == what else self.program, self.program, str(self))


class _RefusesDlopen(_OpensNothing):
    """A program runs, and its dlopen() always fails: it is linked statically with musl."""

    def __init__(self, program: str) -> None:
        super().__init__(program, NO_DLOPEN_WORDS)

    def failure(self, what: str) -> Failure:
        return Failure(self.program, what, str(self), LoadFault.NO_DLOPEN)


@dataclass(frozen=True, slots=True)
class Proof:
    """The answer to one question.

    :ivar what: the library or program in question, as it was given.
    :ivar verdict: yes, no, or unknown where a snapshot does not record a fact.
    :ivar program: the program that opens the library, or "".
    :ivar final: the file that is loaded in the end.
    """

    what: str
    verdict: str
    program: str
    loader: str
    load: Load
    notes: tuple[str, ...]
    final: FinalFile = NO_FILE

    @property
    def program_ends(self) -> bool:
        """Whether the program that opens it ends at its start: it or its libraries do not load."""
        root = self.load.root
        return self.verdict == "no" and root is not None and root.path == self.program != self.what

    @property
    def exit_code(self) -> int:
        """0 if it loads, 1 if it does not, 4 if a file of the image is loaded for the host's."""
        return 1 if self.verdict == "no" else 4 if self.final.foreign else 0

    @property
    def trouble(self) -> str:
        """What a person must know: that it does not load, or loads from the image; else ""."""
        if self.verdict == "no":
            return f"{self.what} does not load"
        if self.final.foreign and not self.final.precedence.by_compat_rule:
            return f"the container's program loads {self.final.path} of {self.final.origin}"
        return ""

    @property
    def _first_failure(self) -> str:
        """The loader's first message; what it says of ``what`` without that name."""
        return self.load.failures[0].words.removeprefix(f"{self.what}: ")

    def in_words(self) -> tuple[str, str]:
        """Return the file that is loaded, or that none is, and the reason with its consequence."""
        final, opened_by = self.final, f"; opened by {self.program}" if self.program else ""
        if self.verdict == "no":
            return "does not load", self._first_failure + opened_by
        if final.side == LoadedFrom.NONE:
            return "not known", "; ".join(self.load.unknown)
        if final.foreign:
            consequence = f"; {final.consequence}" if final.consequence else ""
            words = f"of {final.origin}, not the host's: {final.how}{opened_by}{consequence}"
        elif self.verdict == "unknown":
            words = f"of the {final.side}, as far as is known: {final.how}{opened_by}"
        else:
            words = f"of the {final.side}: {final.how}{opened_by}"
        return final.path, words

    def sentence(self) -> str:
        """Return in one line which file is loaded, and why."""
        value, words = self.in_words()
        if self.verdict == "no" or self.final.side == LoadedFrom.NONE:
            return f"{self.what} {value}: {words}"
        return f"{self.what} => {value} ({words})"

    def result(self) -> dict[str, Any]:
        """Return the members of ``nvgraft.prove/1`` that tell which file is loaded."""
        return {
            "what": self.what,
            "verdict": self.verdict,
            "file": {
                "path": self.final.path,
                "from": self.final.side,
                "how": self.final.how,
                "instead_of_host": self.final.foreign,
                "consequence": self.final.consequence,
            }
            if self.verdict != "no" and self.final.side != LoadedFrom.NONE
            else None,
            "program": self.program,
        }

    def document(self) -> dict[str, Any]:
        """Return the answer as in ``nvgraft.prove/1``."""
        return {
            **self.result(),
            "loader": self.loader,
            "objects": None if self.load.root is None else _object(self.load.root),
            "failures": [
                {
                    "asked_by": failure.needed_by,
                    "name": failure.name,
                    "words": failure.words,
                    "tried": [
                        {"path": tried.path, "reason": tried.reason} for tried in failure.tried
                    ],
                }
                for failure in self.load.failures
            ],
            "unknown": list(self.load.unknown),
            "notes": list(self.notes),
        }

    def lines(self, *, colour: bool) -> Iterator[str]:
        """Return the answer as text."""
        words = {
            "yes": ("32", "loads"),
            "no": ("31", "does not load"),
            "unknown": ("33", "loads, as far as is known"),
        }
        code, verdict = words[self.verdict]
        if self.verdict == "unknown" and self.load.root is None:
            verdict = "may load: not all is known"
        text = f"{printable(self.what)} {verdict}"
        if self.verdict == "no":
            text += f": {printable(self._first_failure)}"
        elif self.final.path:
            file, origin = printable(self.final.path), printable(self.final.origin)
            if self.final.foreign:
                code = "31"
                text += f", but from {origin}: {file} ({printable(self.final.how)})"
            elif self.final.path == self.what:
                text += f", from {origin}"
            else:
                text += f": {file}, from {origin}"
            if self.final.consequence:
                text += f"; {printable(self.final.consequence)}"
        yield f"\x1b[1;{code}m{text}\x1b[0m" if colour else text
        program = f"opened by {printable(self.program)}, " if self.program else ""
        yield f"  {program}loader {printable(self.loader)}"
        for note in self.notes:
            yield f"  note: {printable(note)}"
        if self.load.root is not None:
            yield ""
            yield from _tree(self.load.root, "", "")
        for number, failure in enumerate(self.load.failures):
            yield ""
            yield printable(("first failure: " if number == 0 else "then: ") + failure.words)
            if failure.needed_by:
                yield f"  needed by {printable(failure.needed_by)}"
            for tried in failure.tried:
                yield f"  tried {printable(tried.path)}: {printable(tried.reason)}"
        if self.load.unknown:
            yield ""
            yield from (f"not known: {printable(text)}" for text in self.load.unknown)


def _object(loaded: Object) -> dict[str, Any]:
    return {
        "name": loaded.name,
        "path": loaded.path,
        "how": loaded.how,
        "from": "host" if loaded.from_host else "image",
        "needs": [_object(needed) for needed in loaded.needs],
    }


def _tree(loaded: Object, first: str, rest: str) -> Iterator[str]:
    """Yield the lines of a tree.

    :param first: the prefix of the first line; ``rest`` that of the others.
    """
    side = "host" if loaded.from_host else "image"
    how = loaded.already_loaded or loaded.how
    yield first + printable(f"{loaded.name} => {loaded.path}  ({side}, {how})")
    for number, needed in enumerate(loaded.needs, 1):
        if number < len(loaded.needs):
            yield from _tree(needed, rest + "├─ ", rest + "│  ")
        else:
            yield from _tree(needed, rest + "└─ ", rest + "   ")


def prove(
    what: str,
    program: str | None,
    tree: PlannedTree,
    plan: Plan,
    container: ContainerSide,
    isa_level: str | None = None,
) -> Proof:
    """Answer whether ``what`` loads: a program when it is started, a library when it is opened.

    :param what: a path, a library's SONAME, or the name of a program in PATH.
    :param program: the program that opens the library; None for the container's own.
    :param isa_level: the level of the host's x86-64 processor; None if it is not known.
    :raises InputError: when ``program`` is not in the container.
    """
    if _names_program(what):
        path = named_program(what, tree, container).path
        if path == what:
            return _not_in_path(what, container)
        return replace(prove(path, program, tree, plan, container, isa_level), what=what)
    if "/" not in what:
        return library_prover(program, tree, plan, container, isa_level)(what)
    notes: list[str] = []
    facts = None
    try:
        facts = read_dynamic(tree, tree.resolve(posixpath.join(container.working_directory, what)))
    except NotRecorded:
        notes.append(
            f"the snapshot does not record which loader {what} names: the usual one is assumed"
        )
    except (BadElf, OSError, PathError) as error:
        words, fault = f"{what}: {_words(error)}", LoadFault.OTHER
        missing = isinstance(error, OSError) and error.errno == errno.ENOENT
        if missing and ".so" in posixpath.basename(what):
            words, fault = f"{what}: {NOT_FOUND}", LoadFault.NOT_FOUND
        failure = Failure("", what, words, fault, what)
        return Proof(what, "no", "", "none", Load(None, [failure]), tuple(notes))
    if facts is not None and _is_program(facts):
        try:
            _check_machine(what, facts, tree)
        except _OpensNothing as error:
            return _opens_nothing(what, error, notes)
    if facts is not None and _is_static(facts):
        file = tree.resolve(what)
        static = Object(what, what, file, "by its path", tree.from_host(file), facts)
        side = LoadedFrom.HOST if static.from_host else LoadedFrom.IMAGE
        final = FinalFile(side, file, static.how)
        return Proof(what, "yes", "", "none: it is statically linked", Load(static), (), final)
    requester: Requester | None = None
    started = StartedProgram("", dict(container.spec.env), container.working_directory)
    if facts is not None and facts.interp is not None:
        requester = _requester(what, tree, facts)
    elif facts is not None:
        try:
            requester, started = _opening_program(program, tree, container, notes)
            tree = started.tree or tree
        except _OpensNothing as error:
            return _opens_nothing(what, error, notes)
    return _prover(facts, requester, started, tree, plan, container, isa_level, notes)(what)


def _names_program(what: str) -> bool:
    """Tell whether a word is the name of a program, to be looked up in PATH, not a library's."""
    return "/" not in what and ".so" not in what and not what.startswith("lib")


def _not_in_path(what: str, container: ContainerSide) -> Proof:
    """Return the answer for a program that PATH does not lead to."""
    places = places_in(container.spec.env.get("PATH", ""), what)
    tried = tuple(Tried(place, "does not exist") for place in places)
    failure = Failure("", what, f'exec: "{what}": executable file not found in $PATH', tried=tried)
    note = "a library is named by its SONAME (libcuda.so.1), and a module of Python by --python"
    return Proof(what, "no", "", "none", Load(None, [failure]), (note,))


def library_prover(
    program: str | None,
    tree: PlannedTree,
    plan: Plan,
    container: ContainerSide,
    isa_level: str | None,
) -> Callable[[str], Proof]:
    """Return the function that answers for libraries which a program opens by their SONAMEs.

    The program and its loader are looked up once. Parameters and errors are those of
    :func:`prove`.
    """
    notes: list[str] = []
    try:
        requester, started = _opening_program(program, tree, container, notes)
    except _OpensNothing as error:
        known = error
        return lambda what: _opens_nothing(what, known, notes)
    tree = started.tree or tree
    return _prover(None, requester, started, tree, plan, container, isa_level, notes)


def _prover(
    facts: Dynamic | None,
    requester: Requester | None,
    started: StartedProgram,
    tree: PlannedTree,
    plan: Plan,
    container: ContainerSide,
    isa_level: str | None,
    notes: list[str],
) -> Callable[[str], Proof]:
    """Return the function that answers for what a program opens.

    :param facts: of what is opened; None where they are not known.
    :param requester: the program; None where it is not known, ``started`` how it is started.
    """
    first = facts if requester is None else requester.facts
    machine, bits = _machine(tree) if first is None else (first.machine, first.bits)
    path = started.loader or (
        first.interp if first is not None and first.interp else default_loader(machine, bits)
    )
    try:
        loader = _static_loader(tree, requester) or read_loader(tree, path, machine, bits)
    except OSError as error:
        missing, program = error, "" if requester is None else requester.path
        return lambda what: _without_loader(what, path, program, missing, tree, notes)
    return Opener(
        tree, plan, container, requester, started, loader, (machine, bits), isa_level, notes
    ).proof


def open_program(
    program: str,
    tree: PlannedTree,
    plan: Plan,
    container: ContainerSide,
    isa_level: str | None,
    arguments: Sequence[str] = (),
) -> "Opener":
    """Return what opens libraries in a program that the user names.

    :param arguments: those of the program.
    :raises InputError: it is not a program of the container, or its loader is missing.
    """
    notes: list[str] = []
    try:
        requester, started = _opening_program(program, tree, container, notes, arguments)
        tree = started.tree or tree
    except _RefusesDlopen as error:
        raise InputError(
            f"{program}: {error} | link it dynamically, or pass --program another one"
        ) from error
    except _OpensNothing as error:
        raise InputError(f"{error} | use an image for {tree.machine}") from error
    if requester is None or requester.facts.interp is None:
        raise InputError(
            f"{program}: it cannot load libraries | pass --program the path of a program in the "
            "container"
        )
    facts = requester.facts
    machine, path = (facts.machine, facts.bits), requester.facts.interp
    try:
        loader = read_loader(tree, path, *machine)
    except OSError as error:
        raise InputError(
            f"{program}: the image lacks its loader {path} | use an image with it"
        ) from error
    return Opener(tree, plan, container, requester, started, loader, machine, isa_level, notes)


class Opener:
    """A program that opens libraries, with its loader.

    :param requester: the program; None if it is not known.
    :param machine: machine and bits of the libraries.
    :param notes: remarks of each proof.
    """

    def __init__(
        self,
        tree: PlannedTree,
        plan: Plan,
        container: ContainerSide,
        requester: Requester | None,
        started: StartedProgram,
        loader: Loader,
        machine: tuple[str, int],
        isa_level: str | None,
        notes: list[str],
    ) -> None:
        self._tree = tree
        self._plan = plan
        self._requester = requester
        self._notes = notes
        self.loader = loader
        environment = started.environment
        access = access_of(container, tree, started.user)
        secure = requester is not None and access.gains_rights(tree.resolve(requester.path))
        if requester is not None and secure:
            environment = {name: environment[name] for name in environment if name not in _UNSAFE}
            notes.append(
                f"{requester.path} runs with more rights than its user has: the loader ignores "
                "LD_LIBRARY_PATH and LD_PRELOAD"
            )
        self._searcher = Searcher(
            tree,
            loader,
            *machine,
            requester,
            environment,
            started.directory,
            isa_level,
            access,
            secure=secure,
            rebuilt=_given_to_ldconfig(started, container),
        )
        self._changes = started.changes
        self._computed = next(iter(started.unknown), "")
        self._searcher.unknown += started.unknown
        python = None if requester is None else python_start(tree, started, access.may_read)
        code = None if python is None else partial(follow_program, tree, python)
        self._program = RunningProgram(tree, self._searcher, requester, code)

    def proof(self, what: str, after: str = "", opened: Sequence[str] = ()) -> Proof:
        """Answer whether a library loads that the program opens.

        :param after: the path of a library that the program has opened before. Of the objects
            that came with it, CUDA's runtime opens ``what``, or else the library itself does.
        :param opened: paths of libraries that the program has opened before; it opens ``what`` too.
        """
        outcome = self._program.load(what, after, opened)
        outcome.computed = self._computed
        outcome.scripted = _scripted(what, outcome.root, self._changes, self._tree.followed)
        if outcome.scripted:
            outcome.unknown.append(outcome.scripted)
        notes = [*self._notes, *outcome.ignored, *self._read_volumes(outcome)]
        of_host = any(loaded.from_host for loaded in all_objects(outcome.root))
        if of_host and self.loader.preloads:
            outcome.unfit = "whether gcompat has all symbols of glibc that the driver needs"
            outcome.unknown.append(outcome.unfit)
        verdict = "no" if outcome.failures else "unknown" if outcome.unknown else "yes"
        if of_host and self.loader.musl and not self.loader.preloads:
            notes.append(
                "the image is built on musl: the driver's libraries are built for glibc and need "
                "symbols that musl lacks"
            )
            words = "Error relocating: symbols of glibc are not in musl's libc"
            outcome.failures.append(Failure(self.loader.path, what, words))
            verdict = "no"
        if verdict != "no" and (failure := self._other_glibc(what, outcome)):
            outcome.failures.append(failure)
            verdict = "no"
        opened_by = outcome.opened_by
        if not opened_by and self._requester is not None and self._requester.path != what:
            opened_by = self._requester.path
        final = final_file(what, outcome, self._plan, self._tree)
        return Proof(what, verdict, opened_by, self.loader.path, outcome, tuple(notes), final)

    def _other_glibc(self, what: str, outcome: Load) -> Failure | None:
        """Return how a statically linked program fails with the image's C library, if it does."""
        program = self._requester
        if program is None or program.facts.interp is not None:
            return None
        return other_glibc(what, program.path, all_objects(outcome.root), self._tree)

    def _read_volumes(self, outcome: Load) -> Iterator[str]:
        """Yield remarks on the volumes from which objects are loaded."""
        volumes = (self._tree.volumes.over(loaded.file) for loaded in all_objects(outcome.root))
        used = (volume for volume in volumes if volume is not None)
        for path, source in dict.fromkeys((volume.path, volume.source) for volume in used):
            if source:
                yield f"the volume {path} is read from {source} of this machine"


def _given_to_ldconfig(started: StartedProgram, container: ContainerSide) -> list[str] | None:
    """Return the directories that a script before a program gives to ldconfig, which writes the
    container's loader cache anew; None where none does.
    """
    if container.user[0] != 0 or container.member("root", "readonly") is True:
        return None
    given = None
    for words in started.changes:
        if _is_plain_ldconfig(words):
            given = [word for word in words[1:] if word.startswith("/")]
    return given


def _is_plain_ldconfig(words: tuple[str, ...]) -> bool:
    """Tell whether a command is ldconfig that writes the usual cache."""
    plain = all(word.startswith("/") or word in {"-v", "-X"} for word in words[1:])
    return plain and posixpath.basename(words[0]) == "ldconfig"


def _scripted(
    what: str,
    root: Object | None,
    changes: tuple[tuple[str, ...], ...],
    followed: Collection[str],
) -> str:
    """Return the fact that a script changes what decides which file is loaded, or "".

    :param followed: paths of which it is known what is changed.
    """
    stem = posixpath.basename(what).partition(".so")[0] + ".so"
    files = [] if root is None or root.from_host else [root.path, root.file]
    places = [place for place in files if place not in followed]
    for words in changes:
        for word in () if _is_plain_ldconfig(words) else words[1:]:
            path = word.rstrip("/")
            if any(f"/{one}".endswith(f"/{path}") for one in followed):
                continue
            names_it = posixpath.basename(path).startswith(stem)
            if names_it or (path and any(f"{place}/".startswith(f"{path}/") for place in places)):
                return f"what a script of the container changes by `{' '.join(words)}`"
    return ""


def _static_loader(tree: PlannedTree, requester: Requester | None) -> Loader | None:
    """Return the loader inside the requesting program, if that is statically linked."""
    if requester is None or requester.facts.interp is not None:
        return None
    return read_static_loader(tree, tree.resolve(requester.path))


def _requester(path: str, tree: PlannedTree, facts: Dynamic) -> Requester:
    """Return a program as requester. Its $ORIGIN is the directory of its file, links followed."""
    return Requester(path, posixpath.dirname(tree.resolve(path)), facts)


def _without_loader(
    what: str, path: str, program: str, error: OSError, tree: PlannedTree, notes: list[str]
) -> Proof:
    """Return the answer for an image that lacks the loader ``path``.

    :param program: the one that opens ``what``; "" where it is not known.
    """
    try:
        musl = [name for name in tree.listdir(tree.resolve("/lib")) if name.startswith("ld-musl-")]
    except (OSError, PathError):
        musl = []
    if musl:
        remark = (
            f"the image has musl's loader /lib/{musl[0]}, which cannot load programs and libraries "
            "that are built for glibc"
        )
        notes = [*notes, remark]
    tried = (Tried(path, _words(error)),)
    if "/" in what:
        failure = Failure(what, path, f"{what}: No such file or directory", tried=tried)
    else:
        words = f"{what}: the image has no loader for glibc"
        failure = Failure(program, path, words, tried=tried)
    return Proof(what, "no", "", path, Load(None, [failure]), tuple(notes))


def _words(error: Exception) -> str:
    if isinstance(error, PathError):
        return error.text
    return (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)


def all_objects(root: Object | None) -> Iterator[Object]:
    """Yield an object and those that it needs, each as often as it is needed."""
    waiting = [] if root is None else [root]
    while waiting:
        current = waiting.pop()
        yield current
        waiting += reversed(current.needs)


def _machine(tree: PlannedTree) -> tuple[str, int]:
    """Return machine and bits of the mounted driver, for where no program tells them."""
    return ("EM_AARCH64" if tree.machine == "aarch64" else "EM_X86_64", 64)


def _is_static(facts: Dynamic) -> bool:
    return facts.interp is None and not facts.needed and facts.soname is None


def _is_program(facts: Dynamic) -> bool:
    return facts.interp is not None or _is_static(facts)


def _check_machine(program: str, facts: Dynamic, tree: PlannedTree) -> None:
    """Check that the host runs a program.

    :raises _OpensNothing: it is for another architecture.
    """
    architecture = foreign_architecture(facts, tree.machine)
    if architecture:
        raise _OpensNothing(program, exec_format_error(program, architecture, tree.machine))


def _opens_nothing(what: str, error: _OpensNothing, notes: list[str]) -> Proof:
    """Return the answer for a program that opens nothing, and all that it would open."""
    failure = error.failure(what)
    return Proof(what, "no", failure.needed_by, "none", Load(None, [failure]), tuple(notes))


def _opening_program(
    program: str | None,
    tree: PlannedTree,
    container: ContainerSide,
    notes: list[str],
    arguments: Sequence[str] = (),
) -> tuple[Requester | None, StartedProgram]:
    """Return the program that opens the library, as requester or None if it is not known.

    It is ``program``, or else the program that the container runs.

    :raises InputError: ``program`` is not in the container.
    :raises _OpensNothing: the host does not run it, or its dlopen() always fails.
    """
    started = (
        started_program(tree, container)
        if program is None
        else named_program(program, tree, container, arguments)
    )
    if started.error:
        raise _OpensNothing(started.path, started.error.words)
    tree = started.tree or tree
    if started.starters:
        notes.append(f"the container starts it through {', '.join(started.starters)}")
    try:
        if not started.path:
            raise FileNotFoundError
        resolved = tree.resolve(started.path)
        facts = read_dynamic(tree, resolved)
    except (BadElf, OSError, PathError) as error:
        if program is not None:
            raise InputError(
                f"{program}: {_words(error)} | pass --program the path of a program in the "
                "container"
            ) from error
        if failure := missing_program(tree, container):
            raise _OpensNothing(started.path, failure.words) from error
        notes.append(
            "the container's own program was not found: a program without RPATH is assumed"
        )
        return None, started
    _check_machine(started.path, facts, tree)
    if facts.interp is None and read_static_loader(tree, resolved) is None:
        if refuses_dlopen(tree, resolved):
            notes.append(
                f"{started.path} is linked statically with musl, whose dlopen() then fails"
            )
            raise _RefusesDlopen(started.path)
        notes.append(
            f"{started.path} is statically linked and cannot load libraries: a dynamic program "
            "without RPATH is assumed"
        )
        return None, started
    return _requester(started.path, tree, facts), started
