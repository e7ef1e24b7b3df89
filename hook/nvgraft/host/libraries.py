"""Select the driver's libraries among those that the host's loader cache names.

This is the slow part of an inventory: the links of each candidate are followed and its ELF headers
are read.
:mod:`nvgraft.host.kept_inventory` keeps the result.
"""

from __future__ import annotations

from nvgraft.base import paths
from nvgraft.base.errors import HOST_NOT_OPENED, Refusal
from nvgraft.base.files import reason
from nvgraft.formats.elf import NoFacts
from nvgraft.formats.ldcache import ARCHITECTURES
from nvgraft.formats.ldcache_entries import CacheEntry
from nvgraft.formats.tree import PathError, Tree
from nvgraft.host.components import NO_LIBRARY, Component, Host, Libraries, in_rows
from nvgraft_specs import catalogue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nvgraft_specs.catalogue import CatalogueRow

_REINSTALL = "reinstall the driver, then run ldconfig"

_NAMES = tuple([row.name for row in catalogue.LIBRARIES])

#: Beginnings of the SONAMEs of driver components: the reader of the loader cache may skip all other
#: entries.
LIBRARY_PREFIXES = tuple([name.encode() for name in _NAMES])


def select_libraries(host: Host) -> Libraries:
    """Select the driver's libraries of both architectures.

    :raises Refusal: stage ``detection``, for a stale entry of the loader cache and for what libelf
        refuses to open.
    """
    wide, narrow = ARCHITECTURES.get(host.machine, ARCHITECTURES["x86_64"])
    libraries, missing = _libraries(host, wide)
    return Libraries(
        wide=libraries,
        narrow=() if narrow is None else _libraries(host, narrow)[0],
        missing=missing,
    )


def look_at_candidates(tree: Tree, entries: Iterable[CacheEntry], machine: str) -> None:
    """Warm the tree's cache for :func:`select_libraries`. Errors are ignored here;
    select_libraries() reports them.
    """
    architectures = ARCHITECTURES.get(machine, ARCHITECTURES["x86_64"])
    for entry in entries:
        if entry.architecture in architectures and entry.soname.startswith(_NAMES):
            try:
                path = tree.resolve(entry.path)
                tree.elf(path, sections=_is_tls(path))
            except (PathError, OSError, ValueError):
                continue


def _is_tls(path: str) -> bool:
    return paths.basename(path).startswith(catalogue.TLS_LIBRARY)


def _libraries(
    host: Host, architecture: int
) -> tuple[tuple[Component, ...], tuple[CatalogueRow, ...]]:
    """Select the libraries of one architecture. The last accepted candidate of a row wins
    (reference behaviour 5.2, 5.3).
    """
    chosen: dict[CatalogueRow, Component] = {}
    for entry in host.entries:
        if entry.architecture != architecture:
            continue
        for row in catalogue.LIBRARIES:
            if not entry.soname.startswith(row.name):
                continue
            try:
                path = host.tree.resolve(entry.path)
            except PathError as error:
                raise Refusal("detection", error.text) from error
            if row in chosen and chosen[row].path == path:
                continue  # the same file under another name may fit a later row
            component = _select(host, row, entry, path)
            if component is not None:
                chosen[row] = component
            break
    return in_rows(catalogue.LIBRARIES, chosen)


def _select(host: Host, row: CatalogueRow, entry: CacheEntry, path: str) -> Component | None:
    """Return the component at ``path``, or None if the selector rejects it."""
    host_path = host.root.rstrip("/") + path
    tls = _is_tls(path)
    try:
        facts = host.tree.elf(path, sections=tls)
    except OSError as error:
        node = host.tree.lstat(path)
        if node is not None and node.type == "dir":
            raise Refusal(
                "detection", f"elf file read error: {host_path}", f"it is a directory: {_REINSTALL}"
            ) from error
        raise Refusal(
            "detection",
            f"open failed: {host_path}: {reason(error)}",
            f"the loader cache names {entry.path} for {entry.soname}, which cannot be read:"
            " run ldconfig on the host",
            kind=HOST_NOT_OPENED,
        ) from error
    except ValueError as error:
        if tls or not isinstance(error, NoFacts):
            raise Refusal(
                "detection", f"elf file read error: {host_path}", f"{error}: {_REINSTALL}"
            ) from error
        facts = None  # of other libraries the reference reads only the name
    abi_tag = facts.abi_tag if facts else None
    if tls and abi_tag is None:
        raise Refusal(
            "detection",
            f"elf section 0x7 missing: {host_path}",
            f"it has no .note.ABI-tag: {_REINSTALL}",
        )
    if rejection(path, abi_tag, host.report.driver_version):
        return None
    node = host.tree.lstat(path)
    links = f" -> {path}" if path != entry.path else ""
    found = f"loader cache: {entry.soname} => {entry.path}{links}"
    soname = facts.soname if facts else NO_LIBRARY
    mode, size = (node.mode, node.size) if node else (0o644, 0)
    return Component(row, path, found, mode, size, soname)


def rejection(path: str, abi_tag: tuple[int, int, int] | None, driver_version: str) -> str:
    """Return why the selector rejects the library at a resolved ``path``, or "" if it accepts it
    (reference behaviour 5.3).
    """
    if paths.basename(path).startswith(catalogue.TLS_LIBRARY) and abi_tag != catalogue.TLS_ABI_TAG:
        return "its ABI tag is not the one of the TLS library for this kernel"
    if not path.endswith(driver_version):
        return f"its name does not end in the driver's version {driver_version}"
    return ""


def find_loaded_library(
    host_tree: Tree, entries: Iterable[CacheEntry], soname: str, machine: str, search: Sequence[str]
) -> str | None:
    """Return the path from which dlopen would load ``soname`` inside the driver root, or None if
    dlopen would fail.

    dlopen searches ``search`` (LD_LIBRARY_PATH), then the loader cache, then the default
    directories.
    """
    wide = ARCHITECTURES.get(machine, ARCHITECTURES["x86_64"])[0]
    multiarch = f"{machine}-linux-gnu"
    names = (f"lib/{multiarch}", "lib64", "lib")
    defaults = [f"{prefix}/{name}" for name in names for prefix in ("", "/usr")]
    candidates = [f"{directory}/{soname}" for directory in search if directory]
    candidates += [
        entry.path for entry in entries if entry.soname == soname and entry.architecture == wide
    ]
    candidates += [f"{directory}/{soname}" for directory in defaults]
    for path in candidates:
        try:
            if host_tree.find(path)[1] is not None:
                return path
        except PathError:
            continue
    return None
