"""Look for texts in a file of any tree, without keeping more of it in memory than needed."""

import os
from collections.abc import Collection

from nvgraft.formats.elf import FileContent
from nvgraft.formats.tree import LiveTree, Tree
from nvgraft_cli.case.image.tree import ImageTree
from nvgraft_cli.case.layered_tree import LayeredTree

#: Bytes of one step; a text is shorter than the second number.
_STEP, _OVERLAP = 1 << 20, 256


def texts_in(tree: Tree, path: str, texts: Collection[bytes], limit: int) -> set[bytes]:
    """Return those of ``texts`` that the file at a resolved ``path`` contains.

    :param limit: bytes of the file that are looked at; in an archive, so many are in memory.
    :raises OSError: the file cannot be read.
    """
    while isinstance(tree, LayeredTree):
        tree, path = tree.side(path)
    found: set[bytes] = set()
    if isinstance(tree, ImageTree):

        def take(_path: str, content: FileContent) -> None:
            data = content.read(0, limit)
            found.update(text for text in texts if text in data)

        tree.visit([path], take)
    elif isinstance(tree, LiveTree):
        descriptor = tree.open(path)
        try:
            for offset in range(0, limit, _STEP):
                data = os.pread(descriptor, _STEP + _OVERLAP, offset)
                found.update(text for text in texts if text in data)
                if len(data) < _STEP or len(found) == len(texts):
                    break
        finally:
            os.close(descriptor)
    return found
