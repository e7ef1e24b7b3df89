"""Which SONAME links the loader cache step will make or replace beside the mounted libraries.

ldconfig decides this for itself; a plan has to say it beforehand. The rule is glibc's: for each SONAME of a directory the
greatest file name owns the link, a link that points elsewhere is replaced, anything but a link is left alone.
"""

from __future__ import annotations

from nvgraft.base._stdlib import bisect_left
from nvgraft.base.finding import Finding
from nvgraft.formats.ldcache import compare_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvgraft.formats.tree import Tree
    from nvgraft.plan.actions import MountedLibrary


def soname_links(
    tree: Tree, libraries: Sequence[MountedLibrary]
) -> tuple[dict[str, str], list[Finding]]:
    """Return path -> target of the links made for ``libraries``, and findings."""
    links: dict[str, str] = {}
    findings: list[Finding] = []
    listings: dict[str, list[str]] = {}
    for library in libraries:
        directory, soname = library.directory, library.soname
        if not soname or soname == library.name or "/" in soname:
            continue
        if directory not in listings:
            listings[directory] = tree.listdir(directory)
        owner = _owner(tree, directory, listings[directory], soname, library.name)
        path = f"{directory}/{soname}"
        node = tree.lstat(path)
        if owner != library.name:
            message = f"{path} will lead to the image's own {owner}, which ldconfig prefers to the driver's {library.name}"
            findings.append(
                Finding(
                    "library-shadowed", "warning", message, "remove driver libraries from the image"
                )
            )
        if node is not None and node.type != "symlink":
            message = f"{path} is a {node.type} of the image and hides the driver's {library.name}"
            findings.append(
                Finding(
                    "library-shadowed", "warning", message, "remove driver libraries from the image"
                )
            )
        elif node is None or node.target not in {owner, f"{directory}/{owner}"}:
            links[path] = owner
    return links, findings


def _owner(tree: Tree, directory: str, names: Sequence[str], soname: str, mounted: str) -> str:
    """Return the file name that ldconfig lets own ``soname``: the greatest one, ``mounted`` among them."""
    stem = soname.partition(".so")[0] + ".so"
    owner = mounted
    for name in _starting_with(names, stem):
        if name in {mounted, soname} or compare_names(name, owner) <= 0:
            continue
        path = f"{directory}/{name}"
        node = tree.lstat(path)
        if node is None or node.type != "file":
            continue
        try:
            if tree.elf(path, sections=False).soname == soname:
                owner = name
        except (OSError, ValueError):
            continue  # ldconfig, too, passes over what is no library
    return owner


def _starting_with(names: Sequence[str], stem: str) -> Sequence[str]:
    """Return the names that start with ``stem``. They are sorted, and an image has thousands."""
    first = end = bisect_left(names, stem)
    while end < len(names) and names[end].startswith(stem):
        end += 1
    return names[first:end]
