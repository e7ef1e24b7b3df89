"""The host that this program runs on, as a :class:`Host`.

Only this module and :mod:`nvgraft.host.places` know where a live host has the driver root, its
loader cache, /proc/devices, the search path and NVML. A simulated host differs in one point, which
config.toml must set: its GPUs may be read from a file.
"""

from __future__ import annotations

from nvgraft.base._os import os
from nvgraft.base.errors import HOST_NOT_OPENED, Refusal
from nvgraft.base.files import reason
from nvgraft.formats.tree import LiveTree, PathError
from nvgraft.host import places
from nvgraft.host.components import Host

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from nvgraft.formats.ldcache_entries import CacheEntry
    from nvgraft.formats.tree import Tree
    from nvgraft.host.gpus import DriverReport
    from nvgraft.host.graphics_files import FileFinder
    from nvgraft.request.config import Config

_CACHE = "/etc/ld.so.cache"
_NVML_SONAME = "libnvidia-ml.so.1"


def read_live_host(
    config: Config,
    meanwhile: Callable[[], None] = lambda: None,
    *,
    in_root: bool = True,
    mig_profiles: bool = False,
) -> Host:
    """Read this host through its driver root. NVML is asked in a child process.

    A loader cache that cannot be read is refused later, by the inventory: the reference checks the
    container before.

    :param meanwhile: called while the child asks NVML, if it does, for work that need not wait.
    :param in_root: whether the child changes its root to the driver root, as the reference CLI.
        The reference's generators of CDI edits do not.
    :param mig_profiles: see :func:`nvgraft.host.nvml.query`.
    :raises Refusal: stage ``initialization``: there is no NVML, or it reports an error.
    """
    root = config.cli_root or "/"
    try:
        tree = places.open_driver_root(config)
    except OSError as error:
        cause = reason(error)
        raise Refusal(
            "initialization",
            f"open failed: {root}: {cause}",
            "root in config.toml must name the driver root",
            kind=HOST_NOT_OPENED,
        ) from error
    try:
        return _read_host(config, tree, root, meanwhile, in_root=in_root, mig_profiles=mig_profiles)
    except BaseException:
        tree.close()
        raise


def _read_host(
    config: Config,
    tree: LiveTree,
    root: str,
    meanwhile: Callable[[], None],
    *,
    in_root: bool,
    mig_profiles: bool,
) -> Host:
    machine = os.uname().machine
    entries, refusal = _try_cache(tree, config.cli_ldcache or _CACHE, root)
    # dlopen uses the default loader cache, even if another one is configured.
    loaded = _try_cache(tree, _CACHE, root)[0] if config.cli_ldcache else entries

    def look_ahead() -> None:
        from nvgraft.host.libraries import look_at_candidates

        meanwhile()
        look_at_candidates(tree, entries, machine)

    report = _driver_report(
        config,
        tree,
        loaded,
        root,
        machine,
        look_ahead,
        in_root=in_root,
        mig_profiles=mig_profiles,
    )
    try:
        majors = places.read_majors()
    except OSError as error:
        raise Refusal(
            "initialization",
            f"open failed: /proc/devices: {reason(error)}",
            "mount /proc",
            kind=HOST_NOT_OPENED,
        ) from error
    return Host(
        name=os.uname().nodename,
        root=root,
        tree=tree,
        entries=entries,
        report=report,
        majors=majors,
        machine=machine,
        refusal=refusal,
    )


def file_finder(config: Config, dev_tree: Tree | None = None) -> FileFinder:
    """Return a finder of the driver's files by name, which does not ask NVML.

    :param dev_tree: see :class:`nvgraft.host.graphics_files.FileFinder`.
    :raises OSError: the driver root is missing or not a directory.
    """
    from nvgraft.host.graphics_files import FileFinder
    from nvgraft.host.libraries import LIBRARY_PREFIXES
    from nvgraft_specs import graphics_files as table

    tree = places.open_driver_root(config)
    names_only_here = (*table.EGL_LIBRARIES, table.VULKAN_PRODUCER)
    prefixes = (*LIBRARY_PREFIXES, *(name.partition(".so")[0].encode() for name in names_only_here))

    def entries() -> list[CacheEntry]:
        try:
            return _read_cache(tree, _CACHE, config.cli_root, prefixes)
        except Refusal:
            return []  # like the reference, which then misses files that only the cache names

    return FileFinder(tree, os.uname().machine, entries, dev_tree)


def drm_names(address: str) -> list[str]:
    """Return the names in /dev/dri of the GPU at a PCI address, which is written as in /sys."""
    try:
        return sorted(os.listdir(f"/sys/bus/pci/devices/{address}/drm"))
    except OSError:
        return []  # no DRM driver


def _driver_report(
    config: Config,
    tree: LiveTree,
    entries: list[CacheEntry],
    root: str,
    machine: str,
    meanwhile: Callable[[], None],
    *,
    in_root: bool,
    mig_profiles: bool,
) -> DriverReport:
    if config.host_snapshot:
        from nvgraft.host.snapshot import load_report

        return load_report(config.host_snapshot)
    from nvgraft.host import nvml
    from nvgraft.host.libraries import find_loaded_library

    variables = [entry.partition("=") for entry in config.cli_environment]
    search = ":".join([value for name, _, value in variables if name == "LD_LIBRARY_PATH"])
    library = find_loaded_library(tree, entries, _NVML_SONAME, machine, search.split(":"))
    if library is None:
        where = "" if root == "/" else f" under {root}"
        raise nvml.library_missing(
            f"no NVIDIA driver is installed{where}, or its directory is not in the loader"
            " cache: install it, or run ldconfig"
        )
    if not in_root:
        library, root = root.rstrip("/") + library, "/"
    return nvml.query(
        library,
        root,
        config.cli_user,
        config.cli_environment,
        meanwhile,
        mig_profiles=mig_profiles,
    )


def _try_cache(tree: LiveTree, path: str, root: str) -> tuple[list[CacheEntry], Refusal | None]:
    try:
        return _read_cache(tree, path, root), None
    except Refusal as refusal:
        return [], refusal


def _read_cache(
    tree: LiveTree, path: str, root: str, prefixes: tuple[bytes, ...] = ()
) -> list[CacheEntry]:
    """Read the loader cache's entries whose SONAMEs have one of ``prefixes``; by default the
    catalogue's libraries.
    """
    from nvgraft.formats.ldcache import SIZE_LIMIT
    from nvgraft.formats.ldcache_entries import parse
    from nvgraft.host.libraries import LIBRARY_PREFIXES

    host_path = root.rstrip("/") + path
    try:
        data = tree.read(tree.resolve(path), SIZE_LIMIT)
    except PathError as error:
        raise Refusal("detection", error.text) from error
    except OSError as error:
        raise Refusal(
            "detection",
            f"open failed: {host_path}: {reason(error)}",
            "run ldconfig in the driver root",
            kind=HOST_NOT_OPENED,
        ) from error
    try:
        return parse(data, prefixes or LIBRARY_PREFIXES)
    except ValueError as error:
        raise Refusal(
            "detection",
            f"unsupported file format: {host_path}",
            f"{error}: run ldconfig in the driver root",
        ) from error
