"""Resolver: the planner follows links as the kernel does after chroot(2) (SECURITY T66).

For each path of random trees the resolver must name the inode that open(2) finds after chroot(2),
or nothing where open(2) finds nothing. Three differences are the reference's, and intended: a
``..`` above the root is refused, more than 20 links are refused, and a missing component is kept,
so that a ``..`` removes it again (behaviour 6.2).
"""

import errno
import os
import random
from collections import Counter
from pathlib import Path

from harness import run_in_mount_namespace
from nvgraft.formats.tree import LiveTree, PathError
from nvgraft.system import syscalls
from safety.figures import Figure

TREES = {"small": 2_000, "full": 100_000}
_PATHS_OF_A_TREE = 6
_TREES_OF_A_MOUNT = 500
_PLACE = Path("/mnt")
_NAMES = ("a", "b", "c")


def _random_path(chance: random.Random) -> str:
    parts = [chance.choice((*_NAMES * 3, "..", ".")) for _ in range(chance.randint(1, 4))]
    return "/".join(parts)


def _make_tree(root: Path, chance: random.Random) -> None:
    places = [root]
    for _ in range(chance.randint(6, 24)):
        place = chance.choice(places) / chance.choice(_NAMES)
        if os.path.lexists(place):
            continue
        kind = chance.random()
        if kind < 0.5:
            place.mkdir()
            places.append(place)
        elif kind < 0.65:
            place.touch()
        else:
            place.symlink_to(chance.choice(("", "/")) + _random_path(chance))


def _kernel(root: int, host: int, path: str) -> tuple[int, int] | int:
    """Return the inode of ``path`` in a chroot, or the error's number."""
    os.fchdir(root)
    os.chroot(".")
    try:
        status = os.stat("/" + path)
        return status.st_dev, status.st_ino
    except OSError as error:
        return error.errno or -1
    finally:
        os.fchdir(host)
        os.chroot(".")


def compare(root: int, host: int, path: str) -> str:
    """Return how the two answers for ``path`` relate. An answer that starts with "different" is
    wrong.
    """
    kernel = _kernel(root, host, path)
    tree = LiveTree(os.dup(root))
    try:
        resolved, node = tree.find("/" + path)
        if node is None:
            return (
                "nothing there"
                if isinstance(kernel, int)
                else f"different: {path}: the kernel finds it, the resolver does not"
            )
        parent, _, name = resolved.rpartition("/")
        status = os.stat(name or ".", dir_fd=tree.directory(parent), follow_symlinks=False)
        if kernel == (status.st_dev, status.st_ino):
            return "same inode"
        if kernel == errno.ENOENT:
            return "`..` after what does not exist"
        return f"different: {path}: {resolved} is another inode than the kernel's: {kernel}"
    except PathError as error:
        for text, reason in (
            ("outside of", "`..` above the root"),
            ("too many levels", "more than 20 links"),
        ):
            if text in error.text:
                return reason
        return (
            "refused by both"
            if isinstance(kernel, int)
            else f"different: {path}: {error.text}, the kernel finds it"
        )
    finally:
        tree.close()


def run(trees: int, seed: int) -> Counter[str]:
    """Compare on ``trees`` random trees; count the answers of :func:`compare`."""
    return run_in_mount_namespace(lambda: _run(trees, random.Random(seed)))


def _run(trees: int, chance: random.Random) -> Counter[str]:
    answers: Counter[str] = Counter()
    host = os.open("/", os.O_PATH | os.O_DIRECTORY)
    for first in range(0, trees, _TREES_OF_A_MOUNT):
        syscalls.mount("tmpfs", str(_PLACE), "tmpfs", 0)
        for number in range(first, min(first + _TREES_OF_A_MOUNT, trees)):
            place = _PLACE / str(number)
            place.mkdir()
            _make_tree(place, chance)
            root = os.open(place, os.O_PATH | os.O_DIRECTORY)
            for _ in range(_PATHS_OF_A_TREE):
                answers[compare(root, host, _random_path(chance))] += 1
            os.close(root)
        syscalls.umount2(str(_PLACE), syscalls.MNT_DETACH)
    return answers


def figures(size: str, seed: int) -> list[Figure]:
    """Compare the resolvers at ``size``."""
    answers = run(TREES[size], seed)
    wrong = sum(number for answer, number in answers.items() if answer.startswith("different"))
    intended = ", ".join(
        f"{answer} {number:,}"
        for answer, number in sorted(answers.items())
        if not answer.startswith("different")
    )
    value = f"{wrong} of {answers.total():,} on {TREES[size]:,} trees ({intended})"
    return [
        Figure(
            "resolver against the kernel in a chroot: different",
            value,
            "0",
            wrong == 0 and answers["same inode"] > TREES[size],
        )
    ]
