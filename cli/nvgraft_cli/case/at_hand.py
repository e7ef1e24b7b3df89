"""Tell which files of any tree can be read at once."""

from nvgraft.formats.tree import Tree
from nvgraft_cli.case.image.tree import ImageTree
from nvgraft_cli.case.layered_tree import LayeredTree


def is_at_hand(tree: Tree, path: str) -> bool:
    """Tell whether the file at a resolved ``path`` is read without a whole layer of an archive.

    :raises OSError: no tree has it.
    """
    while isinstance(tree, LayeredTree):
        tree, path = tree.side(path)
    return not isinstance(tree, ImageTree) or tree.is_at_hand(path)
