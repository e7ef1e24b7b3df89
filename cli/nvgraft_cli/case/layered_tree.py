"""A tree whose files are in several other trees, such as an image with a driver in it."""

from nvgraft.formats.elf import ElfFacts
from nvgraft.formats.tree import Tree


class LayeredTree(Tree):
    """A tree that reads contents from the tree that has the file. Subclasses provide names and
    nodes.
    """

    def side(self, path: str) -> tuple[Tree, str]:
        """Return the tree that has the file at a resolved ``path``, and its path in that tree.

        :raises OSError: no tree has it.
        """
        raise NotImplementedError

    def read(self, path: str, limit: int) -> bytes:
        tree, inside = self.side(path)
        return tree.read(inside, limit)

    def elf(self, path: str, *, sections: bool) -> ElfFacts:
        tree, inside = self.side(path)
        return tree.elf(inside, sections=sections)
