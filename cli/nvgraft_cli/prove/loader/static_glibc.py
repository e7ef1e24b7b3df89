"""The glibc inside a statically linked program, and the one that its dlopen() brings."""

import posixpath
import re
from collections.abc import Iterable

from nvgraft_cli.case.planned_tree import PlannedTree
from nvgraft_cli.prove.loader.loading import Failure, Object
from nvgraft_cli.prove.loader.search import GLIBC_LOADERS, STATIC_LIMIT, LoadFault

#: The name of a setting in GLIBC_TUNABLES. Each file that has glibc's loader in it has the list of
#: them, and the list is another one in nearly every release.
_TUNABLE = re.compile(rb"glibc\.[a-z]\w*\.[a-z]\w*(?=\0)")
#: The names by which libraries need glibc's loader.
_LOADER_NAMES = frozenset(map(posixpath.basename, GLIBC_LOADERS.values()))


def other_glibc(
    what: str, program: str, loaded: Iterable[Object], tree: PlannedTree
) -> Failure | None:
    """Return how a static program fails that loads a C library of another release than its own.

    glibc: "the shared libraries from the glibc version used for linking" are needed at run time.

    :param what: the library that the program opens.
    :param loaded: what it loads with that library.
    """
    loader = next((one for one in loaded if one.name in _LOADER_NAMES), None)
    if loader is None:
        return None
    try:
        own = _tunables(tree, tree.resolve(program))
        if not own or own == _tunables(tree, loader.file):
            return None
    except OSError:
        return None
    words = (
        f"{program} is linked statically with another release of glibc than {loader.path}, which "
        f"{what} needs: the program crashes"
    )
    return Failure(program, what, words, LoadFault.OTHER_GLIBC, loader.path)


def _tunables(tree: PlannedTree, path: str) -> frozenset[bytes]:
    return frozenset(_TUNABLE.findall(tree.read(path, STATIC_LIMIT)))
