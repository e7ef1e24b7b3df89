"""A tree whose files lie in several other trees, such as an image with a driver in it. Which ones, each kind decides."""

from nvgraft.formats.elf import ElfFacts
from nvgraft.formats.tree import Tree


class LayeredTree(Tree):
    """Contents come from the tree that holds the file; names and nodes are the deriving class's."""

    def side(self, path: str) -> tuple[Tree, str]:
        """Return the tree that holds the file at a resolved ``path``, and its path there.

        :raises OSError: when none does.
        """
        raise NotImplementedError

    def read(self, path: str, limit: int) -> bytes:
        tree, inside = self.side(path)
        return tree.read(inside, limit)

    def elf(self, path: str, *, sections: bool) -> ElfFacts:
        tree, inside = self.side(path)
        return tree.elf(inside, sections=sections)
