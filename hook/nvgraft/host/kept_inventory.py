"""The kept inventory: what is slow to find on this host, kept under /run between starts and used
while nothing has changed.

Two things are kept: the driver's report (NVML in a child) and the libraries that were selected from
the loader cache. The rest of an inventory (programs, sockets, firmware, nodes, /proc) takes a few
lookups and is read at every start.

The kept inventory is used while everything that it was made from is unchanged. For the libraries
this check is exact: it repeats the lookup of every path on the way to them, including links,
directories and missing files (:attr:`LiveTree.statuses`). NVML's answers cannot be checked without
asking it. Instead, the check compares the *signs* of the driver's state under /proc/driver/nvidia
and /dev; docs/inventory-cache.md says what they do not show. Failures are not kept, and neither is
anything that may still have been changing while it was read.
"""

from __future__ import annotations

import time

from nvgraft.base import paths
from nvgraft.base._os import os
from nvgraft.base.files import read_text
from nvgraft.base.values import Value
from nvgraft.formats.tree import LiveTree, identity
from nvgraft.host import places
from nvgraft.host.components import Component, Host, Libraries
from nvgraft.host.gpus import DriverReport, Gpu, MigDevice, parse_information
from nvgraft.system import kept
from nvgraft_specs import catalogue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from nvgraft.request.config import Config

KIND = "inventory"

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_PROC = "/proc/driver/nvidia"
_TEXT_LIMIT = 1 << 18
#: The files in which a user name of config.toml is looked up.
_ACCOUNTS = ("/etc/nsswitch.conf", "/etc/passwd", "/etc/group")
#: The package's modules that make a kept inventory, whether or not they are loaded when it is used.
SOURCES = (
    "formats/elf.py",
    "formats/ldcache.py",
    "formats/ldcache_entries.py",
    "formats/tree.py",
    "host/components.py",
    "host/gpus.py",
    "host/inventory.py",
    "host/keep_inventory.py",
    "host/libraries.py",
    "host/live.py",
    "host/nvml.py",
    "host/places.py",
)
#: Exceptions that a malformed document can raise.
_DAMAGE = (AttributeError, IndexError, KeyError, OSError, TypeError, ValueError)
_DAMAGED = "the kept inventory is damaged"
#: The labels of /proc/driver/nvidia/gpus/ADDRESS/information that are compared: other lines change
#: with use.
_GPU_FACTS = ("Model", "Device Minor", "GPU Excluded")


class Kept(Value):
    """A kept inventory: ``made`` is its time in seconds since 1970, ``paths`` are checked before it
    is used.
    """

    def __init__(
        self, made: int, report: DriverReport, libraries: Libraries, paths: tuple[str, ...]
    ) -> None:
        self.made = made
        self.report = report
        self.libraries = libraries
        self.paths = paths


def read_host(
    config: Config,
    meanwhile: Callable[[], None] = lambda: None,
    *,
    before_reading: Callable[[], None] = lambda: None,
    use_kept: bool = True,
    keep: bool = True,
    in_root: bool = True,
) -> Host:
    """Return this host as :func:`nvgraft.host.live.read_live_host` does, from the kept inventory if
    that is valid.

    :param meanwhile: as in read_live_host().
    :param before_reading: called if the kept inventory is not used, before the modules that read
        the host are loaded.
    :param use_kept: use the kept inventory, if it is still valid.
    :param keep: keep what is read now, as soon as its libraries are selected.
    :param in_root: as in read_live_host().
    :raises Refusal: as read_live_host().
    """
    started = time.time_ns()
    key = _key(config)
    document = kept.read(KIND, key) if use_kept else None
    tree, signs = _look(config)
    difference = _difference(document, signs, config)
    if not difference and tree is not None:
        try:
            # No difference: both are documents.
            return _host(config, _kept(document), tree, signs)  # type: ignore[arg-type]
        except _DAMAGE:
            difference = _DAMAGED
    if tree is not None:
        tree.close()
    before_reading()
    from nvgraft.host import keep_inventory
    from nvgraft.host.live import read_live_host

    host = read_live_host(config, meanwhile, in_root=in_root)
    host.origin = f"read now: {difference}"
    if keep and signs is not None:
        host.keep = lambda libraries: keep_inventory.keep_inventory(
            KIND, key, signs, started, host, libraries
        )
    return host


def state(config: Config) -> tuple[Kept | None, str]:
    """Return the kept inventory for this configuration, and the reason why it cannot be used, or
    "".
    """
    document = kept.read(KIND, _key(config))
    tree, signs = _look(config)
    if tree is not None:
        tree.close()
    difference = _difference(document, signs, config)
    try:
        return (_kept(document) if isinstance(document, dict) else None), difference
    except _DAMAGE:
        return None, _DAMAGED


def name_of(config: Config) -> str:
    """Return the file name of the kept inventory for this configuration, whether or not it
    exists.
    """
    return kept.name_of(KIND, _key(config))


def reaches_nvml(name: str) -> bool:
    """Tell whether a variable of this process can change NVML's answers: the driver's and the
    loader's variables can.

    The child that loads NVML inherits them.
    """
    return name.startswith(("NVML_", "__NV", "__GL", "CUDA_", "LD_"))


def _key(config: Config) -> list[object]:
    """Return the key of the document: other settings, variables or code have another document."""
    package = paths.dirname(paths.dirname(__file__))
    sources = [str(catalogue.__file__), *(f"{package}/{path}" for path in SOURCES)]
    inherited = sorted(
        [name, value] for name, value in paths.environment().items() if reaches_nvml(name)
    )
    settings: list[object] = [
        config.cli_root,
        config.cli_ldcache,
        config.cli_user,
        list(config.cli_environment),
    ]
    settings += [config.simulated_host, config.host_snapshot, inherited, os.uname().machine]
    return [*kept.code(__file__, *sources), *settings]


def _look(config: Config) -> tuple[LiveTree | None, dict[str, Any] | None]:
    """Return the driver root and the signs of its state, or None for either that cannot be read."""
    try:
        tree = places.open_driver_root(config)
    except OSError:
        return None, None
    try:
        return tree, _signs(config, tree)
    except OSError:
        return tree, None


def _signs(config: Config, tree: LiveTree) -> dict[str, Any]:
    """Return the signs of the state of the machine, the driver and the GPUs, without asking NVML.

    :raises OSError: a sign cannot be read.
    """
    version = None
    if tree.lstat(f"{_PROC}/version"):
        version = tree.read(f"{_PROC}/version", _TEXT_LIMIT).decode("utf-8", "surrogateescape")
    files = [
        *(_ACCOUNTS if config.cli_user else ()),
        *([config.host_snapshot] if config.host_snapshot else []),
    ]
    return {
        "boot": read_text(_BOOT_ID),
        "driver version": version,
        "GPUs": [_gpu(tree, name) for name in tree.listdir(f"{_PROC}/gpus")],
        "MIG devices": _mig(tree),
        "device nodes": _nodes(tree),
        "device majors": [
            [name, major]
            for name, major in places.read_majors().items()
            if name.startswith("nvidia")
        ],
        "other files": [[path, identity(_stat(path))] for path in files],
    }


def _gpu(tree: LiveTree, name: str) -> list[object]:
    """Return the signs of one GPU. Its UUID is unknown ("GPU-????????-...") until the driver is
    first used.
    """
    directory = f"{_PROC}/gpus/{name}"
    facts: dict[str, str] = {}
    if tree.lstat(f"{directory}/information") is not None:
        facts = parse_information(tree.read(f"{directory}/information", _TEXT_LIMIT))
    uuid = facts.get("GPU UUID", "?")
    return [
        name,
        *_entry(tree, directory),
        *(facts.get(label) for label in _GPU_FACTS),
        None if "?" in uuid else uuid,
    ]


def _mig(tree: LiveTree) -> list[object]:
    """Return the directories of all GPU instances and compute instances."""
    rows: list[object] = []
    pending = [f"{_PROC}/capabilities"]
    while pending:
        directory = pending.pop()
        for name in tree.listdir(directory):
            if name.startswith(("gpu", "mig", "gi", "ci")):
                path = f"{directory}/{name}"
                node = tree.lstat(path)
                if node is not None and node.type == "dir":
                    rows.append([path, *_entry(tree, path)])
                    pending.append(path)
    return rows


def _entry(tree: LiveTree, path: str) -> tuple[int, int] | tuple[()]:
    """Return the inode number and time of a /proc directory, which differ from those of a later one
    of the same name.

    The kernel sets the time at the first lookup. If it drops the directory's inode for lack of
    memory, the time changes, and the host is read again.
    """
    tree.lstat(path)
    status = tree.statuses[path]
    return (status.st_ino, status.st_mtime_ns) if status is not None else ()


def _nodes(tree: LiveTree) -> list[object]:
    paths = [f"/dev/{name}" for name in tree.listdir("/dev") if name.startswith("nvidia")]
    paths += [f"/dev/nvidia-caps/{name}" for name in tree.listdir("/dev/nvidia-caps")]
    rows: list[object] = []
    for path in paths:
        node = tree.lstat(path)
        if node is not None:
            rows.append([path, node.type, node.mode, node.uid, node.gid, *(node.rdev or ())])
    return rows


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None


def _difference(document: object, signs: dict[str, Any] | None, config: Config) -> str:
    """Return what has changed since ``document`` was made, or why that is unknown; "" if nothing
    has changed.
    """
    if not isinstance(document, dict):
        return "no inventory is kept"
    if signs is None:
        return "the state of the driver cannot be read"
    try:
        return _changed(document, signs, config.cli_root.rstrip("/"))
    except _DAMAGE:
        return _DAMAGED


def _changed(document: dict[str, Any], signs: dict[str, Any], root: str) -> str:
    before = document["signs"]
    for name, now in signs.items():
        if now != before[name] and not (name == "GPUs" and _same_gpus(before[name], now)):
            return f"changed: {_first(before[name], now, name)}"
    for path, kept_identity in document["files"].items():
        try:
            status = os.lstat(root + path)
        except (FileNotFoundError, NotADirectoryError):
            status = None
        except OSError as error:
            return str(error)
        if identity(status) != kept_identity:
            if kept_identity is False:
                return f"appeared: {root}{path}"
            return f"{'removed' if status is None else 'changed'}: {root}{path}"
    return ""


def _first(before: object, now: object, name: str) -> str:
    """Return the name of the first row that only one of two lists has, behind the name of the
    sign.
    """
    if isinstance(before, list) and isinstance(now, list):
        for row in (*before, *now):
            if isinstance(row, list) and row not in (now if row in before else before):
                return f"{name}, {row[0]}"
    return name


def _same_gpus(before: list[list[object]], now: list[list[object]]) -> bool:
    """Tell whether the GPUs are equal. A UUID that is unknown in either list is not compared."""
    uuids = [(old[-1], new[-1]) for old, new in zip(before, now, strict=False)]
    return [row[:-1] for row in before] == [row[:-1] for row in now] and all(
        old is None or new is None or old == new for old, new in uuids
    )


def _host(config: Config, cached: Kept, tree: LiveTree, signs: dict[str, Any]) -> Host:
    uname = os.uname()
    host = Host(
        name=uname.nodename,
        root=config.cli_root or "/",
        tree=tree,
        entries=(),
        report=cached.report,
        majors=dict(signs["device majors"]),  # the driver's: nobody asks for others
        machine=uname.machine,
    )
    host.origin = "from the kept inventory"
    host.libraries = cached.libraries
    return host


def _kept(document: dict[str, Any]) -> Kept:
    gpus = tuple(
        [
            Gpu(*(*fields, tuple([MigDevice(*mig) for mig in migs])))
            for fields, migs in document["gpus"]
        ]
    )
    driver_version, cuda_version = document["driver"]
    rows = {row.name: row for row in catalogue.LIBRARIES}
    libraries = Libraries(
        wide=tuple([Component(rows[name], *fields) for name, *fields in document["wide"]]),
        narrow=tuple([Component(rows[name], *fields) for name, *fields in document["narrow"]]),
        missing=tuple([rows[name] for name in document["missing"]]),
    )
    return Kept(
        document["made"],
        DriverReport(driver_version, cuda_version, gpus),
        libraries,
        tuple(document["files"]),
    )
