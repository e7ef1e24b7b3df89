"""Devices of a Tegra board, whose owner lists in CSV files what a container needs of the host.

A line is ``TYPE, PATH``: ``dev`` is a device node, ``lib`` a file, ``dir`` a directory, and ``sym``
a symbolic link, which is made in the container together with the links and the file that it leads
to. A path may have ``*`` and ``?``. Lines of another form and paths that the host lacks are passed
over.

Source: reference behaviour 13.3.
"""

from __future__ import annotations

from nvgraft.base import paths
from nvgraft.base.errors import Refusal
from nvgraft.base.values import Value
from nvgraft.cdi.discovery import (
    CONTROL_NODES,
    Contents,
    Discovered,
    Discovery,
    FoundDevice,
    cache_step,
    library_links,
)
from nvgraft.cdi.edits import CdiMount, links_step
from nvgraft.formats.tree import MAX_LINKS, PathError, Tree
from nvgraft_specs import graphics_files as table
from nvgraft_specs import names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from nvgraft.host.gpus import DriverReport, Gpu
    from nvgraft.host.graphics_files import CharDevice, FileFinder

DEV, DIR, LIB, SYM = "dev", "dir", "lib", "sym"

#: The files that count unless a container asks for all.
BASE_FILES = ("devices.csv", "drivers.csv", "l4t.csv")

#: A feature of the reference's generator: one device even if NVML reports several.
ONE_DEVICE = "disable-multiple-csv-devices"

_FILE_LIMIT = 1 << 20
_LINES = 20_000
_RELEASE = "/etc/nv_tegra_release"
_ORIN = "Orin (nvgpu)"
_ORIN_COMPAT_ROOT = "/usr/local/cuda/compat_orin"
#: Of a board with a discrete GPU: the discrete GPU's node, and the node of the integrated one's
#: display.
_DISCRETE_NODE, _DISPLAY_NODE = "/dev/nvidia1", "/dev/nvidia2"


class CsvLines(Value):
    """The paths of CSV files by the type of their lines."""

    def __init__(self, **by_type: tuple[str, ...]) -> None:
        self.dev = by_type.get(DEV, ())
        self.dir = by_type.get(DIR, ())
        self.lib = by_type.get(LIB, ())
        self.sym = by_type.get(SYM, ())


def read_csv_files(tree: Tree, directory: str, *, every: bool) -> CsvLines:
    """Return the lines of the CSV files in a directory of the host; a missing directory has none.

    :param every: read all files instead of BASE_FILES.
    :raises Refusal: a file cannot be read, or is too large.
    """
    found: dict[str, list[str]] = {DEV: [], DIR: [], LIB: [], SYM: []}
    for path in _csv_files(tree, directory, every=every):
        try:
            data = tree.read(tree.resolve(path), _FILE_LIMIT)
        except (OSError, PathError) as error:
            hint = f"make it a file of at most {_FILE_LIMIT >> 20} MiB, or remove it"
            raise Refusal("", f"failed to parse CSV file: {path}: {error}", hint) from None
        lines = data.decode("utf-8", "surrogateescape").split("\n")
        if len(lines) > _LINES:
            hint = f"it has {len(lines)} lines; at most {_LINES} are read"
            raise Refusal("", f"failed to parse CSV file: {path}", hint)
        for line in lines:
            kind, comma, target = line.partition(",")
            target = target.strip()
            if comma and target.startswith("/") and "\0" not in target:
                found.get(kind.strip(), []).append(target)
    return CsvLines(**{kind: tuple(targets) for kind, targets in found.items()})


def _csv_files(tree: Tree, directory: str, *, every: bool) -> list[str]:
    try:
        resolved = tree.resolve(paths.clean(directory))
        listed = tree.listdir(resolved)
    except (OSError, PathError):
        return []
    return [
        f"{resolved.rstrip('/')}/{name}"
        for name in listed
        if name.lower().endswith(".csv") and name != ".csv" and (every or name in BASE_FILES)
    ]


class TegraDiscovery:
    """Finds what the CSV lines of a board name.

    :param host_tree: the host's own root, for the file that names the board's release; None if it
        is not known.
    :param report: the driver's report; None where there is no NVML.
    """

    def __init__(
        self,
        lines: CsvLines,
        finder: FileFinder,
        root: str,
        host_tree: Tree | None,
        report: DriverReport | None = None,
        compat_root: str = "",
    ) -> None:
        self._lines = lines
        self._finder = finder
        self._tree = finder.tree
        self._root = root.rstrip("/")
        self._host_tree = host_tree
        self._report = report
        self._compat_root = compat_root

    def discover(self) -> Discovered:
        """Return the board as one device, and what it needs."""
        device = FoundDevice(0, None, "", Contents(nodes=self._nodes(self._lines.dev)))
        return Discovered(self.common(), [device])

    def common(self) -> Contents:
        """Return what every device needs."""
        directories = [path for path in self._located(self._lines.dir) if self._is_directory(path)]
        libraries = self._files(self._lines.lib)
        linked = self._files(self._lines.sym)
        mounted = [*map(self._mount, dict.fromkeys([*directories, *libraries, *linked]))]
        if self._host_tree is not None and self._host_tree.lstat(_RELEASE) is not None:
            mounted.append(CdiMount(_RELEASE, _RELEASE, table.OPTIONS))
        return Contents(
            env=[f"{names.VISIBLE_DEVICES}={names.VOID}"],
            mounts=mounted,
            steps=[
                *links_step(link for path in libraries for link in library_links(self._tree, path)),
                *links_step(self._links()),
                *self._compat_step(),
                *cache_step([*directories, *libraries, *linked]),
            ],
        )

    def mixed(self, ids: Iterable[str], discovery: Discovery) -> list[FoundDevice] | None:
        """Return the devices with these ids of a board that also has a discrete GPU; None if an id
        is unknown, or the GPUs are not in the order of such a board.

        The integrated GPU has the index 0, the discrete one 1.
        """
        gpus = self._report.gpus if self._report is not None else ()
        wanted = list(map(str, range(len(gpus)))) if names.ALL in ids else list(ids)
        found = []
        for wanted_id in wanted:
            index = next(
                (index for index, gpu in enumerate(gpus) if wanted_id in (str(index), gpu.uuid)),
                None,
            )
            if index is None or _integrated(gpus[index]) != (index == 0) or index > 1:
                return None
            found.append(
                self._integrated_gpu(gpus[0]) if index == 0 else self._discrete_gpu(discovery)
            )
        return found

    def _integrated_gpu(self, gpu: Gpu) -> FoundDevice:
        nodes = [path for path in self._lines.dev if path != _DISCRETE_NODE]
        return FoundDevice(0, None, gpu.uuid, Contents(nodes=self._nodes([*nodes, _DISPLAY_NODE])))

    def _discrete_gpu(self, discovery: Discovery) -> FoundDevice:
        gpu = discovery.gpu(1)
        others = [
            path
            for path in self._lines.dev
            if path not in CONTROL_NODES and not path.removeprefix("/dev/nvidia").isdecimal()
        ]
        nodes = [*gpu.contents.nodes, *self._nodes([*CONTROL_NODES, *others])]
        contents = Contents(nodes=dict.fromkeys(nodes), steps=gpu.contents.steps)
        return FoundDevice(1, None, gpu.uuid, contents)

    # ---- files

    def _mount(self, path: str) -> CdiMount:
        return CdiMount(self._root + path, path, table.OPTIONS)

    def _nodes(self, patterns: Sequence[str]) -> list[CharDevice]:
        return self._finder.char_devices(
            [path for pattern in patterns for path in self._located([pattern])]
        )

    def _files(self, patterns: Iterable[str]) -> list[str]:
        """Return the files that the patterns lead to."""
        found = [self._finder.find(path) for path in self._located(patterns)]
        return list(
            dict.fromkeys(path for path, node in found if node is not None and node.type != "dir")
        )

    def _is_directory(self, path: str) -> bool:
        node = self._finder.find(path)[1]
        return node is not None and node.type == "dir"

    def _links(self) -> Iterator[str]:
        """Yield ``TARGET::LINK`` for each link on the way from a ``sym`` line to its file."""
        for path in self._located(self._lines.sym):
            link = path
            for _ in range(MAX_LINKS):
                try:
                    node = self._tree.lstat(self._tree.resolve(link, follow_last=False))
                except (OSError, PathError):
                    break
                if node is None or node.type != "symlink":
                    break
                yield f"{node.target}::{link}"
                link = paths.clean(paths.join(paths.dirname(link), node.target))

    def _located(self, patterns: Iterable[str]) -> list[str]:
        """Return the paths that match and exist, without repetitions, each in the place of its
        pattern.
        """
        return list(
            dict.fromkeys(
                path for pattern in patterns for path in glob(self._tree, paths.clean(pattern))
            )
        )

    def _compat_step(self) -> list[tuple[str, ...]]:
        if self._report is None:
            return []
        words = [f"--host-cuda-version={self._report.cuda_version}"]
        if any(_ORIN in gpu.model for gpu in self._report.gpus):
            words.append(f"--cuda-compat-container-root={self._compat_root or _ORIN_COMPAT_ROOT}")
        return [("enable-cuda-compat", *words)]


def _integrated(gpu: Gpu) -> bool:
    """Tell whether a GPU with an address is the board's own: Thor's has this one. Names do not
    count, as in the reference.
    """
    return gpu.bus_id.partition(".")[0] == "00000000:01:00"


def glob(tree: Tree, pattern: str) -> list[str]:
    """Return the existing paths that match, sorted; ``*`` and ``?`` do not match a slash."""
    found = [""]
    for part in pattern.strip("/").split("/"):
        if "*" in part or "?" in part:
            found = [
                f"{directory}/{name}"
                for directory in found
                for name in _names(tree, directory)
                if _matches(name, part)
            ]
        else:
            found = [f"{directory}/{part}" for directory in found]
    return [path for path in found if _exists(tree, path)]


def _names(tree: Tree, directory: str) -> list[str]:
    try:
        return tree.listdir(tree.resolve(directory or "/"))
    except (OSError, PathError):
        return []


def _exists(tree: Tree, path: str) -> bool:
    try:
        return tree.lstat(tree.resolve(path, follow_last=False)) is not None
    except (OSError, PathError):
        return False


def _matches(name: str, pattern: str) -> bool:
    """Tell whether ``name`` matches ``pattern``; a leading dot only matches itself."""
    if name.startswith(".") and not pattern.startswith("."):
        return False
    # Positions of the pattern that the name so far can have reached.
    reached = {0}
    for char in [*name, ""]:
        for at in sorted(reached):
            while pattern[at : at + 1] == "*":
                at += 1
                reached.add(at)
        if not char:
            return len(pattern) in reached
        reached = {
            at + (pattern[at] != "*")
            for at in reached
            if at < len(pattern) and pattern[at] in ("*", "?", char)
        }
    return False
