"""Predict the SONAME links that the loader cache step will make or replace beside the mounted
libraries.

The rule is that of glibc's ldconfig: for each SONAME in a directory, the link leads to the greatest
file name. A link that leads elsewhere is replaced; a file that is not a link is not changed.
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
    """Return the links that will be made for ``libraries``, path -> target, and findings."""
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
        if owner != library.name and not _is_mounted(libraries, f"{directory}/{owner}"):
            message = (
                f"{path} will lead to {owner} of the image, which ldconfig prefers to the"
                f" driver's {library.name}"
            )
            findings.append(
                Finding(
                    "library-shadowed", "warning", message, "remove driver libraries from the image"
                )
            )
        if node is not None and node.type != "symlink":
            if _is_mounted(libraries, path):
                continue
            message = f"{path} is a {node.type} of the image and hides the driver's {library.name}"
            findings.append(
                Finding(
                    "library-shadowed", "warning", message, "remove driver libraries from the image"
                )
            )
        elif node is None or node.target not in {owner, f"{directory}/{owner}"}:
            links[path] = owner
    return links, findings


def _is_mounted(libraries: Sequence[MountedLibrary], path: str) -> bool:
    """Tell whether a path is a library of the driver, not of the image: WSL2 has several with one
    SONAME.
    """
    return any(library.path == path for library in libraries)


def _owner(tree: Tree, directory: str, names: Sequence[str], soname: str, mounted: str) -> str:
    """Return the file name to which ldconfig makes the link ``soname`` lead: the greatest,
    including ``mounted``.
    """
    stem = soname.partition(".so")[0] + ".so"
    owner = mounted
    for name in _starting_with(names, stem):
        if name in {mounted, soname} or compare_names(name, owner) <= 0:
            continue
        path = f"{directory}/{name}"
        tree.count_library(path)
        node = tree.lstat(path)
        if node is None or node.type != "file":
            continue
        try:
            if tree.elf(path, sections=False).soname == soname:
                owner = name
        except (OSError, ValueError):
            continue  # ldconfig skips files that are not libraries, too
    return owner


def _starting_with(names: Sequence[str], stem: str) -> Sequence[str]:
    """Return the names that start with ``stem``. ``names`` are sorted; an image has thousands of
    them.
    """
    first = end = bisect_left(names, stem)
    while end < len(names) and names[end].startswith(stem):
        end += 1
    return names[first:end]
