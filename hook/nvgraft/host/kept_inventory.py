"""This host without asking NVML and opening the driver's libraries, where nothing has changed since that was done last.

Kept are the two things that are slow to find: the driver's own account (NVML in a child) and the libraries that were selected
from the loader cache. All else that an inventory holds, programs, sockets, firmware, nodes, /proc, is a handful of lookups and
read at every start.

What is kept is used while everything that it was made from is as it was. For the libraries that is exact: every path that was
looked at on the way to them, links, directories and what was not there included, is looked at again (:attr:`LiveTree.statuses`).
NVML cannot be looked at; in its place stand the *signs* that the driver gives of its state under /proc/driver/nvidia and /dev.
docs/inventory-cache.md says what they do not show. Nothing that failed is kept, and nothing that may still have been changing
while it was read.
"""

from __future__ import annotations

import time

from nvgraft.base import paths
from nvgraft.base._os import os, stat
from nvgraft.base.files import read_text
from nvgraft.base.values import Value
from nvgraft.formats.tree import LiveTree
from nvgraft.host import live
from nvgraft.host.components import Component, Host, Libraries
from nvgraft.host.gpus import DriverReport, Gpu, MigDevice, parse_information
from nvgraft.system import kept
from nvgraft_specs import catalogue, names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from nvgraft.request.config import Config

KIND = "inventory"

#: Nanoseconds for which a change may go unseen: two changes within one tick of the kernel's clock (at most 10 ms) have one time stamp.
SETTLED = 50_000_000

#: Why what was found is not kept; a moment later it can be.
CHANGING = "files of the driver have changed just now"

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_PROC = "/proc/driver/nvidia"
_TEXT_LIMIT = 1 << 18
#: What a user name in config.toml is looked up in.
_ACCOUNTS = ("/etc/nsswitch.conf", "/etc/passwd", "/etc/group")
#: Files of the package that make what is kept, whether or not they are loaded when it is used.
SOURCES = (
    "formats/elf.py",
    "formats/ldcache.py",
    "formats/tree.py",
    "host/components.py",
    "host/gpus.py",
    "host/inventory.py",
    "host/libraries.py",
    "host/live.py",
    "host/nvml.py",
)
#: What a document that is not ours to the last word is met with.
_DAMAGE = (AttributeError, IndexError, KeyError, OSError, TypeError, ValueError)
_DAMAGED = "what is cached is damaged"
#: Of /proc/driver/nvidia/gpus/ADDRESS/information: the other lines change with use.
_GPU_FACTS = ("Model", "Device Minor", "GPU Excluded")


class Kept(Value):
    """What is cached of a host: since when (seconds since 1970), and the ``paths`` that are looked at before it is used."""

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
    use_kept: bool = True,
    keep: bool = True,
) -> Host:
    """Return this host as :func:`nvgraft.host.live.read_live_host` does, from the cache if it may be.

    :param meanwhile: as there.
    :param use_kept: use what was kept, if it still holds.
    :param keep: keep for the next time what has to be read now, once its libraries have been selected.
    :raises Refusal: as that does.
    """
    started = time.time_ns()
    key = _key(config)
    document = kept.read(KIND, key) if use_kept else None
    tree, signs = _look(config)
    difference = _difference(document, signs, config)
    if not difference and tree is not None:
        try:
            return _host(config, _kept(document), tree)  # type: ignore[arg-type]  # no difference: it is a document
        except _DAMAGE:
            difference = _DAMAGED
    if tree is not None:
        tree.close()
    host = live.read_live_host(config, meanwhile)
    host.origin = f"read now: {difference}"
    if keep and signs is not None:
        host.keep = lambda libraries: _keep(key, signs, started, host, libraries)
    return host


def state(config: Config) -> tuple[Kept | None, str]:
    """Return what is cached for this configuration, and why it cannot be used, or ""."""
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
    """Return the file name under which the host is cached for this configuration, if it is."""
    return kept.name_of(KIND, _key(config))


def reaches_nvml(name: str) -> bool:
    """Tell whether a variable of this process can change what the driver's library answers in the child, which inherits it:
    the driver's own and the loader's do."""
    return name.startswith(("NVML_", "NVGRAFT_NVML_", "__NV", "__GL", "CUDA_", "LD_"))


def _key(config: Config) -> list[object]:
    """Return what the document depends on: for any other settings, variables or code there is another document."""
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
    """Return the driver root, and the signs of what is in it; None where they cannot be seen."""
    try:
        tree = live.open_driver_root(config)
    except OSError:
        return None, None
    try:
        return tree, _signs(config, tree)
    except OSError:
        return tree, None


def _signs(config: Config, tree: LiveTree) -> dict[str, Any]:
    """Return all that can be seen of the state of machine, driver and GPUs without asking the driver.

    :raises OSError: when some of it cannot be told.
    """
    version = tree.lstat(f"{_PROC}/version")
    files = [
        *(_ACCOUNTS if config.cli_user else ()),
        *([config.host_snapshot] if config.host_snapshot else []),
    ]
    if config.simulated_host:
        files.append(config.cli_root.rstrip("/") + names.STANDIN_NVML)
    return {
        "boot": read_text(_BOOT_ID),
        "driver version": tree.read(f"{_PROC}/version", _TEXT_LIMIT).decode(
            "utf-8", "surrogateescape"
        )
        if version
        else None,
        "GPUs": [_gpu(tree, name) for name in tree.listdir(f"{_PROC}/gpus")],
        "MIG devices": _mig(tree),
        "device nodes": _nodes(tree),
        "device majors": [
            [name, major] for name, major in live.read_majors().items() if name.startswith("nvidia")
        ],
        "other files": [[path, _identity(_stat(path))] for path in files],
    }


def _gpu(tree: LiveTree, name: str) -> list[object]:
    """Return the facts of one GPU. Its UUID is unknown ("GPU-????????-...") until the driver has first been used."""
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
    """Return what tells a directory of /proc from a later one of the same name: the kernel gives each one its time when it is
    first looked at. (Forgotten by the kernel for want of memory, it has another one later: then all is read once more.)"""
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


def _identity(status: os.stat_result | None) -> list[int] | bool:
    """Return what changes whenever the file does: the kernel sets ctime at every change of contents, owner, mode and links.

    Of a directory it only counts that it is one: what was looked at in it is looked at again.
    """
    if status is None:
        return False
    if stat.S_ISDIR(status.st_mode):
        return True
    return [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _difference(document: object, signs: dict[str, Any] | None, config: Config) -> str:
    """Return what has changed since ``document`` was made, or why that cannot be told; "" for nothing."""
    if not isinstance(document, dict):
        return "nothing is cached"
    if signs is None:
        return "the state of the driver cannot be seen"
    try:
        return _changed(document, signs, config.cli_root.rstrip("/"))
    except _DAMAGE:
        return _DAMAGED


def _changed(document: dict[str, Any], signs: dict[str, Any], root: str) -> str:
    before = document["signs"]
    for name, now in signs.items():
        if now != before[name] and not (name == "GPUs" and _same_gpus(before[name], now)):
            return f"changed: {_first(before[name], now, name)}"
    for path, identity in document["files"].items():
        try:
            status = os.lstat(root + path)
        except (FileNotFoundError, NotADirectoryError):
            status = None
        except OSError as error:
            return str(error)
        if _identity(status) != identity:
            return (
                "appeared" if identity is False else "removed" if status is None else "changed"
            ) + f": {root}{path}"
    return ""


def _first(before: object, now: object, name: str) -> str:
    """Return the first thing that one of two lists of rows has and the other has not, by its own name."""
    if isinstance(before, list) and isinstance(now, list):
        for row in (*before, *now):
            if isinstance(row, list) and row not in (now if row in before else before):
                return f"{name}, {row[0]}"
    return name


def _same_gpus(before: list[list[object]], now: list[list[object]]) -> bool:
    """Compare all but UUIDs that are unknown at one of both times."""
    uuids = [(old[-1], new[-1]) for old, new in zip(before, now, strict=False)]
    return [row[:-1] for row in before] == [row[:-1] for row in now] and all(
        old is None or new is None or old == new for old, new in uuids
    )


def _keep(
    key: list[object], signs: dict[str, Any], started: int, host: Host, libraries: Libraries
) -> str:
    """Keep what was found and return "", or return why it cannot be kept.

    A file that has changed shortly before it was read may change again and have the same time.
    """
    assert isinstance(host.tree, LiveTree)
    files = {path: _identity(status) for path, status in host.tree.statuses.items()}
    now = time.time_ns()
    identities = [*files.values(), *(identity for _, identity in signs["other files"])]
    if any(
        started - SETTLED < identity[-1] <= now
        for identity in identities
        if isinstance(identity, list)
    ):
        return CHANGING
    document = {
        "made": now // 10**9,
        "signs": signs,
        "files": files,
        "driver": [host.report.driver_version, host.report.cuda_version],
        "gpus": [
            [_fields(gpu, _GPU), [_fields(mig, _MIG_DEVICE) for mig in gpu.mig_devices]]
            for gpu in host.report.gpus
        ],
        "wide": [[library.row.name, *_fields(library, _LIBRARY)] for library in libraries.wide],
        "narrow": [[library.row.name, *_fields(library, _LIBRARY)] for library in libraries.narrow],
        "missing": [row.name for row in libraries.missing],
    }
    return "" if kept.write(KIND, key, document) else f"{kept.DIRECTORY} cannot be written"


#: The order of fields in the document, which is the one of the parameters.
_GPU = ("minor", "uuid", "bus_id", "brand", "arch", "mig", "model")
_MIG_DEVICE = ("uuid", "gpu_instance", "compute_instance")
_LIBRARY = ("path", "found", "mode", "size", "soname")


def _fields(value: Value, names: Iterable[str]) -> list[object]:
    return [getattr(value, name) for name in names]


def _host(config: Config, cached: Kept, tree: LiveTree) -> Host:
    uname = os.uname()
    host = Host(
        name=uname.nodename,
        root=config.cli_root or "/",
        tree=tree,
        entries=(),
        report=cached.report,
        majors=live.read_majors(),
        machine=uname.machine,
    )
    host.origin = "from the cache"
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
