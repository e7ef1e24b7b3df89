"""Races: the root file system changes under the hook (SECURITY T20 to T23, T28).

An attacker makes the changes, and must have no success. The victims are the hook's own primitives,
each in a loop, and the whole hook. Naive ways to do the same suffer the same attack and must fail:
an attack that harms nothing proves nothing.
"""

import errno
import os
import posix
import random
import shutil
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from attacked import make_tree
from harness import run_in_mount_namespace
from nvgraft.apply import executor
from nvgraft.apply.detached_mounts import Sources, open_sources
from nvgraft.apply.targets import Targets, open_in_root
from nvgraft.apply.undo import UndoLog
from nvgraft.base.errors import Refusal
from nvgraft.formats.tree import LiveTree, PathError
from nvgraft.host.components import Inventory
from nvgraft.plan.actions import Bind, MakeDirectory, Plan, Symlink, Tmpfs, Why
from nvgraft.system import syscalls
from safety import arena
from safety.arena import CANARY, DECOYS, LIBS, OUTSIDE, ROOTFS
from safety.attacker import Move, attack
from safety.figures import Figure
from safety.historic import own_procfs


class Size(NamedTuple):
    """The amounts of each measurement."""

    lookups: int
    creations: int
    attaches: int
    rounds: int


SIZES = {
    "small": Size(100_000, 10_000, 1_000, 60),
    "full": Size(10_000_000, 1_000_000, 100_000, 5_000),
}

#: Escapes of a naive victim that are enough. Without any, the machine was too busy, and the run is
#: void.
CONTROL_ESCAPES = 20
CONTROL_SECONDS = 30.0

#: The per cent of lookups that may end because the kernel answered EAGAIN too often (SECURITY T21).
EXHAUSTED_LIMIT = 0.1

#: Things made and mounts attached on one arena, and the number of moves that attack it. The next
#: arena gets other moves.
_BATCH = 500
_MOVES = 4
#: Tries without a result after which an arena is given up.
_IN_VAIN = 500

_WHY = Why("", "race", "race")
_OPTIONS = ("nodev", "nosuid", "ro")

#: Errors that a lookup under attack may have. EXDEV: the kernel has seen that a directory on the
#: way has left the root.
LOOKUP_ERRNOS = {errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.EAGAIN, errno.EXDEV}

#: What the hook reads in an image besides the places of its plan (reference behaviour 6).
_LOOKED_AT = (
    "/etc/ld.so.cache",
    "/etc/ld.so.cache~",
    "/etc/ld.so.conf",
    "/etc/debian_version",
    "/usr/lib64",
    "/usr/lib32",
    "/usr/local/cuda/compat",
)


class Tally:
    """Results of many tries. ``answers`` counts errors by name; ``unclean`` quotes the first
    failures.
    """

    def __init__(self) -> None:
        self.tries = 0
        self.escapes = 0
        self.changes = 0
        self.answers: Counter[str] = Counter()
        self.unclean = ""

    def add(self, other: "Tally") -> None:
        self.tries += other.tries
        self.escapes += other.escapes
        self.changes += other.changes
        self.answers += other.answers
        self.unclean = self.unclean or other.unclean

    @property
    def exhausted(self) -> float:
        """Return the per cent of tries that ended with EAGAIN."""
        return 100 * self.answers["EAGAIN"] / max(self.tries, 1)


def parents(path: str) -> Iterator[str]:
    """Yield ``path`` and every directory above it, below the root."""
    while path not in {"/", ""}:
        yield path
        path = os.path.dirname(path)


class Moves:
    """Moves of an attacker against paths of the image. Replacements that they need are made
    immediately.
    """

    def __init__(self) -> None:
        self._number = 0

    def _decoy(self, suffix: str) -> Path:
        self._number += 1
        return DECOYS / f"{self._number}.{suffix}"

    def link(self, path: str) -> list[Move]:
        """Exchange ``path`` for a link to the canary, absolute and relative."""
        moves = []
        for target in (f"{CANARY}{path}", "../" * 8 + f"{CANARY}{path}".lstrip("/")):
            decoy = self._decoy("link")
            decoy.symlink_to(target)
            moves.append(Move("exchange", f"{ROOTFS}{path}", str(decoy)))
        return moves

    def kinds(self, path: str) -> list[Move]:
        """Exchange ``path`` for a directory, a file, a FIFO."""
        directory, file, fifo = (self._decoy(kind) for kind in ("dir", "file", "fifo"))
        directory.mkdir()
        file.touch()
        os.mkfifo(fifo)
        return [
            Move("exchange", f"{ROOTFS}{path}", str(decoy)) for decoy in (directory, file, fifo)
        ]

    def plant(self, path: str) -> list[Move]:
        """Put something where the hook is going to make something."""
        place = f"{ROOTFS}{path}"
        return [
            Move("link", place, f"{CANARY}{path}"),
            Move("file", place),
            Move("dir", place),
            Move("fifo", place),
        ]

    def away(self, path: str) -> list[Move]:
        """Move ``path`` within the root file system, and out of it."""
        self._number += 1
        place = f"{ROOTFS}{path}"
        return [
            Move("away", place, str(self._decoy("away"))),
            Move("away", place, str(OUTSIDE / str(self._number))),
        ]

    def all(self, path: str) -> list[Move]:
        return [
            *self.link(path),
            *self.kinds(path),
            *self.plant(path),
            *self.away(path),
            Move("remake", f"{ROOTFS}{path}"),
        ]


def touched(plan: Plan) -> list[str]:
    """Return every path of the image that carrying out ``plan`` touches, with each directory
    above.
    """
    paths = {
        getattr(action, "target", "") for action in plan.actions if isinstance(action, Bind | Tmpfs)
    }
    paths |= {action.path for action in plan.actions if isinstance(action, MakeDirectory | Symlink)}
    paths |= {link for link, _ in plan.links} | {*_LOOKED_AT}
    return sorted({parent for path in paths for parent in parents(path)})


# ---- the hook's primitives

LOOKUP_PATHS = (
    f"{LIBS}/libc.so.6",
    f"{LIBS}/deep/er/file",
    f"{LIBS}/deep/er/../../libc.so.6",
    f"{LIBS}/deep/../../../bin/true",
    # From a directory that was just moved out, this would climb up to the canary.
    f"{LIBS}/deep/er/../../../../../../canary/etc/debian_version",
    f"{LIBS}/deep/er/../../../{CANARY.name}/etc/debian_version",
    "/etc/debian_version",
)


def lookup_moves() -> list[Move]:
    """Return links, other kinds and moves at every depth of the looked-up paths."""
    moves = Moves()
    paths = sorted(
        {parent for path in LOOKUP_PATHS if ".." not in path for parent in parents(path)}
    )
    return [
        move
        for path in paths
        for move in (*moves.link(path), *moves.kinds(path), *moves.away(path))
    ]


def lookups(
    count: int, open_path: Callable[[int, str], int], seconds: float = 0, enough: int = 0
) -> Tally:
    """Look the paths up ``count`` times with ``open_path``.

    Stop after ``seconds`` without a result, or after ``enough`` escapes.
    """
    tally = Tally()
    root = os.open(ROOTFS, os.O_PATH | os.O_DIRECTORY)
    host = os.stat(CANARY).st_dev
    deadline = time.monotonic() + seconds
    while tally.tries < count:
        for path in LOOKUP_PATHS:
            tally.tries += 1
            try:
                fd = open_path(root, path)
            except OSError as error:
                tally.answers[errno.errorcode.get(error.errno or 0, str(error.errno))] += 1
                if error.errno not in LOOKUP_ERRNOS:
                    tally.unclean = tally.unclean or str(error)
            else:
                tally.escapes += os.fstat(fd).st_dev == host
                tally.answers["opened"] += 1
                os.close(fd)
        if (enough and tally.escapes >= enough) or (seconds and time.monotonic() > deadline):
            break
    os.close(root)
    return tally


def open_as_the_hook(root: int, path: str) -> int:
    """Open ``path`` like the applier."""
    return open_in_root(root, path, os.O_PATH)


def open_with_links(root: int, path: str) -> int:
    """Open ``path`` like the loader cache step, which follows the image's links inside the root."""
    return open_in_root(root, path, os.O_PATH, follow=True)


def walks(count: int) -> Tally:
    """Resolve and read the paths like the planner, ``count`` times. The content read shows an
    escape.
    """
    tally = Tally()
    root = os.open(ROOTFS, os.O_PATH | os.O_DIRECTORY)
    while tally.tries < count:
        for path in LOOKUP_PATHS:
            tally.tries += 1
            tree = LiveTree(os.dup(root))
            try:
                resolved, node = tree.find(path)
                if node is None or node.type != "file":
                    tally.answers["nothing" if node is None else node.type] += 1
                    continue
                tally.escapes += tree.read(resolved, 1 << 20) == arena.SECRET
                tally.answers["opened"] += 1
            except PathError:
                tally.answers["path error"] += 1
            except OSError as error:
                tally.answers[errno.errorcode.get(error.errno or 0, str(error.errno))] += 1
                if error.errno not in LOOKUP_ERRNOS | {errno.EINVAL}:
                    tally.unclean = tally.unclean or str(error)
            finally:
                tree.close()
    os.close(root)
    return tally


def _placeholder(target: str, source: str = "/unused") -> Bind:
    """Return the mount of a file on a placeholder that has to be made."""
    return Bind("file", "driver", source, target, _OPTIONS, 0o644, _WHY, placeholder=True)


NEW = f"{LIBS}/new"
_MAKE = (
    MakeDirectory(NEW, 0o755, _WHY),
    _placeholder(f"{NEW}/placeholder"),
    Symlink(f"{LIBS}/deep/link", "libc.so.6", _WHY),
    _placeholder(f"{LIBS}/deep/er/placeholder"),
)


def creation_moves() -> list[Move]:
    """Return every move against every parent of the things made, and against their names."""
    moves = Moves()
    paths = sorted(
        {
            parent
            for action in _MAKE
            for parent in parents(getattr(action, "target", "") or getattr(action, "path", ""))
        }
    )
    return [move for path in paths for move in moves.all(path)]


def creations(count: int) -> Tally:
    """Make directories, placeholders and links and take them back, until ``count`` were made.

    Call this in a container's namespace. It ends earlier when the attacker has left no place in
    which something can be made.
    """
    tally = Tally()
    _count_creations(tally)
    container = arena.standalone()
    host = [CANARY, *(path for path in CANARY.rglob("*") if path.is_dir())]
    before = [path.stat().st_ctime_ns for path in host]
    in_vain = 0
    while tally.tries < count and in_vain < _IN_VAIN:
        last = tally.tries
        undo = UndoLog()
        targets = Targets(container, Sources(), undo)
        try:
            targets.prepare(_MAKE, lambda _: None)
            tally.answers["made"] += 1
        except Refusal as refusal:
            tally.answers[refusal.stage] += 1
        except Exception as error:  # noqa: BLE001 - any other exception is counted
            tally.unclean = tally.unclean or repr(error)
        tally.answers["left behind"] += len(undo.run())
        targets.close()
        in_vain = 0 if tally.tries > last else in_vain + 1
        if (after := [path.stat().st_ctime_ns for path in host]) != before:
            tally.escapes += 1
            before = after
    return tally


def _count_creations(tally: Tally) -> None:
    """Count every call that makes something, for the rest of this process."""
    mkdir, symlink, open_file = os.mkdir, os.symlink, os.open

    def counted_mkdir(*arguments: Any, **named: Any) -> None:
        mkdir(*arguments, **named)
        tally.tries += 1

    def counted_symlink(*arguments: Any, **named: Any) -> None:
        symlink(*arguments, **named)
        tally.tries += 1

    def counted_open(path: str, flags: int, *arguments: Any, **named: Any) -> int:
        fd = open_file(path, flags, *arguments, **named)
        tally.tries += bool(flags & os.O_CREAT)
        return fd

    for name, counted in (
        ("mkdir", counted_mkdir),
        ("symlink", counted_symlink),
        ("open", counted_open),
    ):
        setattr(posix, name, counted)


ATTACHED = f"{LIBS}/deep/er/attached"


def attaches(count: int) -> Tally:
    """Make a target, attach a file of the host there, verify it and take it back, ``count`` times.

    Call this in a container's namespace.
    """
    tally = Tally()
    container = arena.standalone()
    procfs = own_procfs()
    action = _placeholder(ATTACHED, str(arena.DRIVER / "usr/bin/nvidia-smi"))
    before = len(arena.mount_points())
    while tally.tries < count:
        tally.tries += 1
        undo = UndoLog()
        sources = open_sources([action], 0, 0)
        targets = Targets(container, sources, undo)
        try:
            targets.prepare([action], lambda _: None)
            executor._attach(sources, targets, container, procfs, undo)
            tally.answers["attached"] += 1
        except Refusal as refusal:
            tally.answers[refusal.stage] += 1
        except Exception as error:  # noqa: BLE001 - any other exception is counted
            tally.unclean = tally.unclean or repr(error)
        tally.escapes += bool(arena.mounts_below(CANARY))
        tally.answers["left behind"] += len(undo.run())
        targets.close()
        sources.close()
        if len(arena.mount_points()) != before:
            tally.unclean = tally.unclean or "a mount was left: " + arena.mount_points()[-1]
    return tally


def attach_moves() -> list[Move]:
    """Return every move against the target's parents and its name."""
    moves = Moves()
    return [move for path in parents(ATTACHED) for move in moves.all(path)]


# ---- naive ways, which must fail


def control_moves() -> list[Move]:
    """Return links in the place of directories, the part of the attack that is made for naive
    ways.
    """
    moves = Moves()
    return [move for path in parents(f"{LIBS}/deep/er") for move in moves.link(path)]


def _open_realpath(_root: int, path: str) -> int:
    """Open the result of realpath after a check that it is inside."""
    real = os.path.realpath(f"{ROOTFS}{path}")
    if not real.startswith(f"{ROOTFS}/"):
        raise OSError(errno.ELOOP, "outside", real)
    return os.open(real, os.O_PATH)


def _open_after_walk(root: int, path: str) -> int:
    """Walk without following links, then open the string."""
    fd = os.dup(root)
    try:
        for part in os.path.normpath(path).strip("/").split("/"):
            step = os.open(part, os.O_PATH | os.O_NOFOLLOW, dir_fd=fd)
            os.close(fd)
            fd = step
            if stat.S_ISLNK(os.fstat(fd).st_mode):
                raise OSError(errno.ELOOP, "a link", path)
    finally:
        os.close(fd)
    return os.open(f"{ROOTFS}{os.path.normpath(path)}", os.O_PATH)


def _mounts_on_realpath() -> Tally:
    """Check that realpath is inside, then call mount(2) on the string. Call this in a container's
    namespace.
    """
    tally = Tally()
    deadline = time.monotonic() + CONTROL_SECONDS
    while tally.escapes < CONTROL_ESCAPES and time.monotonic() < deadline:
        tally.tries += 1
        try:
            real = os.path.realpath(f"{ROOTFS}{LIBS}/deep/er")
            if not real.startswith(f"{ROOTFS}/"):
                continue
            syscalls.mount(str(arena.DRIVER / "usr/bin"), real, None, syscalls.MS_BIND)
        except OSError as error:
            tally.answers[errno.errorcode.get(error.errno or 0, "")] += 1
            continue
        below = arena.mounts_below(CANARY)
        tally.escapes += bool(below)
        for point in [*below, *arena.mounts_below(ROOTFS)]:
            with suppress(OSError):
                syscalls.umount2(point, syscalls.MNT_DETACH)
    return tally


def _makes_directories() -> Tally:
    """Call os.makedirs, then open by path."""
    tally = Tally()
    deadline = time.monotonic() + CONTROL_SECONDS
    before = arena.canary_state()
    while tally.escapes < CONTROL_ESCAPES and time.monotonic() < deadline:
        tally.tries += 1
        made = f"{ROOTFS}{NEW}"
        with suppress(OSError):
            os.makedirs(made, exist_ok=True)
            os.close(os.open(f"{made}/placeholder", os.O_WRONLY | os.O_CREAT, 0o644))
        for place in (ROOTFS, CANARY):
            shutil.rmtree(f"{place}{NEW}", ignore_errors=True)
        if (after := arena.canary_state()) != before:
            tally.escapes += 1
            before = after
    return tally


def _naive_lookups(open_path: Callable[[int, str], int]) -> Callable[[], Tally]:
    return lambda: lookups(1 << 40, open_path, CONTROL_SECONDS, CONTROL_ESCAPES)


CONTROLS: dict[str, Callable[[], Tally]] = {
    "realpath, startswith, open": _naive_lookups(_open_realpath),
    "O_NOFOLLOW walk, then the string": _naive_lookups(_open_after_walk),
    "mount(realpath)": _mounts_on_realpath,
    "makedirs, open(O_CREAT)": _makes_directories,
}


# ---- one victim, one attack


def besiege(
    victim: Callable[[], Tally], make_moves: Callable[[], list[Move]], seed: int, attackers: int = 1
) -> Tally:
    """Run ``victim`` in a container's namespace of a new arena, while the host's side attacks
    it.
    """

    def scenario() -> Tally:
        arena.make_arena()
        with attack(make_moves(), seed, attackers) as running:
            tally = arena.in_child(lambda: _as_container(victim))
            running.check()
            tally.changes = running.changes
        return tally

    return run_in_mount_namespace(scenario)


def besiege_often(
    victim: Callable[[int], Tally], make_moves: Callable[[], list[Move]], count: int, seed: int
) -> Tally:
    """Besiege ``victim`` on one arena after another, telling it how much to do, until ``count`` is
    done.
    """
    chance = random.Random(seed)
    tally = Tally()
    arenas = 0
    while tally.tries < count:
        arenas += 1
        assert arenas <= 3 + 4 * count // _BATCH, (
            f"nothing can be done under this attack: {tally.tries} of {count}"
        )
        some = partial(_some_of, make_moves, chance.randrange(1 << 30))
        tally.add(
            besiege(
                partial(victim, min(_BATCH, count - tally.tries)), some, chance.randrange(1 << 30)
            )
        )
    return tally


def _some_of(make_moves: Callable[[], list[Move]], seed: int) -> list[Move]:
    return random.Random(seed).sample(make_moves(), _MOVES)


def _as_container(victim: Callable[[], Tally]) -> Tally:
    arena.enter_container_namespace()
    return victim()


# ---- the hook as a whole


def hook_rounds(count: int, seed: int) -> Tally:
    """Run the hook on ``count`` containers, each attacked on a few of the paths that the hook
    touches.
    """
    return run_in_mount_namespace(lambda: _hook_rounds(count, random.Random(seed)))


def _hook_rounds(count: int, chance: random.Random) -> Tally:
    arena.make_arena()
    inventory = arena.the_inventory()
    with arena.container_process() as pid:
        plan = arena.in_child(lambda: arena.plan_of_process(pid, inventory))
    paths = [path for path in touched(plan) if not path.startswith(("/proc", "/dev"))]
    tally = Tally()
    for _ in range(count):
        _fresh_rootfs()
        moves = Moves()
        chosen = [
            move for path in chance.sample(paths, 3) for move in chance.sample(moves.all(path), 3)
        ]
        # ldconfig may be blocked for half a minute, so it is tried rarely.
        loader_cache = "ldconfig" if chance.random() < 0.05 else "native"
        inside = chance.random() < 0.3
        tally.add(
            _hook_round(
                chosen,
                chance.randrange(1 << 30),
                inventory,
                inside=inside,
                loader_cache=loader_cache,
            )
        )
    return tally


def _fresh_rootfs() -> None:
    for name in os.listdir(ROOTFS):
        path = ROOTFS / name
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for path in OUTSIDE.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    make_tree(ROOTFS, arena.IMAGE)
    DECOYS.mkdir()


def _hook_round(
    moves: list[Move], seed: int, inventory: Inventory, *, inside: bool, loader_cache: str
) -> Tally:
    tally = Tally()
    tally.tries = 1
    before = arena.canary_state()
    files = _listing()
    with arena.container_process() as pid:
        own = arena.mount_points(pid)
        if inside:
            moves = [*moves[:2], *_runtime_moves(pid)]
        with attack(moves, seed) as running:
            outcome = arena.run_hook(pid, inventory, loader_cache=loader_cache)
            running.check()
            tally.changes = running.changes
        mounted = [point for point in arena.mount_points(pid) if point not in own]
        tally.answers[outcome.kind] += 1
        if not outcome.clean:
            tally.unclean = outcome.line
        # A directory that the attacker moved away with a mount of ours in it still has the mount.
        tally.escapes += any(
            not point.startswith((f"{ROOTFS}/", f"{OUTSIDE}/")) for point in mounted
        )
        tally.escapes += arena.canary_state() != before
        if outcome.kind != "applied":
            if mounted:
                tally.unclean = tally.unclean or f"{outcome.line}: left mounted: {mounted}"
            # Things moved out of the undo's sight are empty (placeholders, directories, links), or
            # the image's own.
            left = _listing() - files
            tally.answers["left where it was moved to"] += bool(left) and outcome.kind != "undo"
            names = {os.path.basename(path) for path in files}
            full = [
                path for path in left if os.path.basename(path) not in names and _has_content(path)
            ]
            if full:
                tally.unclean = tally.unclean or f"{outcome.line}: left with content: {full}"
    return tally


def _has_content(path: str) -> bool:
    return os.path.isfile(path) and not os.path.islink(path) and os.path.getsize(path) > 0


def _listing() -> set[str]:
    return {str(path) for place in (ROOTFS, OUTSIDE) for path in place.rglob("*")}


def _runtime_moves(pid: int) -> list[Move]:
    """Return moves against the runtime's mounts, which exist in the container's namespace only."""
    seen = Path(f"/proc/{pid}/root{ROOTFS}")
    moves = []
    for directory, names in (
        ("dev", ("nvidiactl", "nvidia0", "nvidia-uvm")),
        ("proc/driver", ("nvidia",)),
    ):
        decoys = seen / directory / ".decoys"
        decoys.mkdir()
        for name in names:
            place = str(seen / directory / name)
            (decoys / name).symlink_to(CANARY / "etc")
            moves += [
                Move("link", place, str(CANARY / "etc/debian_version")),
                Move("file", place),
                Move("dir", place),
                Move("fifo", place),
            ]
            moves += [
                Move("exchange", place, str(decoys / name)),
                Move("away", place, str(decoys / f"{name}.away")),
            ]
    return moves


# ---- the report


def figures(size: str, seed: int) -> list[Figure]:
    """Measure every victim and every naive way at ``size``."""
    amounts = SIZES[size]
    rows = []
    for name, control in CONTROLS.items():
        tally = besiege(control, control_moves, seed)
        value = f"{tally.escapes} escapes of {tally.tries:,}"
        rows.append(
            Figure(f"control, {name}", value, "escapes, else the run is void", tally.escapes > 0)
        )
    attackers = 1 if size == "small" else max(1, (os.cpu_count() or 2) - 1)
    rows += _of(
        "lookups by the applier",
        besiege(lambda: lookups(amounts.lookups, open_as_the_hook), lookup_moves, seed, attackers),
    )
    rows += _of(
        "lookups with links followed",
        besiege(lambda: lookups(amounts.lookups, open_with_links), lookup_moves, seed, attackers),
    )
    rows += _of(
        "lookups by the planner",
        besiege(lambda: walks(amounts.lookups // 20), lookup_moves, seed, attackers),
    )
    rows += _of("things made", besiege_often(creations, creation_moves, amounts.creations, seed))
    rows += _of("mounts attached", besiege_often(attaches, attach_moves, amounts.attaches, seed))
    rows += _of("whole hooks", hook_rounds(amounts.rounds, seed))
    return rows


def _of(name: str, tally: Tally) -> list[Figure]:
    answers = ", ".join(
        f"{kind} {number:,}" for kind, number in sorted(tally.answers.items()) if number
    )
    value = f"{tally.escapes} of {tally.tries:,} ({answers}; {tally.changes:,} changes meanwhile)"
    rows = [Figure(f"{name}: escapes", value, "0", tally.escapes == 0 and tally.changes > 0)]
    if name.startswith("lookups"):
        share = f"{tally.exhausted:.4f} %"
        rows.append(
            Figure(
                f"{name}: given up after EAGAIN",
                share,
                f"<= {EXHAUSTED_LIMIT} %",
                tally.exhausted <= EXHAUSTED_LIMIT,
            )
        )
    if tally.unclean:
        rows.append(
            Figure(
                f"{name}: other than a refusal",
                tally.unclean.strip().splitlines()[-1],
                "none",
                False,
            )
        )
    return rows
