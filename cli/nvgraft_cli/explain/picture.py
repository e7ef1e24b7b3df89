"""Lay out the picture of host, plan and container: boxes of directories, and a line for each mount.

A line leads from the directory of its source through the capability that requests it to the
directory of its target. Boxes are as high as their lines need, and their texts are cut to their
width, so that nothing overlaps whatever the names are.
"""

import posixpath
import re
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from itertools import pairwise

from nvgraft.base.errors import printable
from nvgraft.plan.actions import Bind, Tmpfs
from nvgraft_cli.explain.steps import capability_of

_GPU = re.compile(r"/dev/nvidia\d+")

#: Kinds of mounts in the order of their boxes.
_GPUS, _DEVICES, _PROC, _MADE = "GPUs", "device nodes", "entries of /proc", "tmpfs"
_PROGRAMS, _LIBRARIES, _FIRMWARE = "programs", "libraries", "firmware"
_SOCKETS, _FILES = "sockets", "other files"
_KINDS = (
    _GPUS,
    _DEVICES,
    _PROC,
    _MADE,
    _PROGRAMS,
    _LIBRARIES,
    _FIRMWARE,
    _SOCKETS,
    _FILES,
)
#: Capabilities in the order of their boxes.
CAPABILITIES = (
    *("device", "always", "utility", "compute", "video", "graphics", "display"),
    *("compat32", "ngx"),
)
#: A kind with more directories than this has one box for all of them.
_DIRECTORIES = 3
#: Pixels between two boxes, above the first, and inside a box above and below its lines.
_GAP, _TOP, _PADDING = 10.0, 34.0, 8.0
#: Lines with fewer pixels between them are thin.
_DENSE = 4.0


@dataclass(frozen=True, slots=True)
class Format:
    """The measures of a picture, in pixels.

    :ivar columns: (x, width) of host, plan and container.
    :ivar letters: how many letters of a path fit into a box of the host or the container.
    """

    name: str
    width: float
    columns: tuple[tuple[float, float], ...]
    letters: int
    lowest: float


#: For screens, and for telephones.
WIDE = Format("wide", 960, ((0, 270), (410, 140), (690, 270)), 35, 46)
NARROW = Format("narrow", 360, ((0, 118), (142, 76), (242, 118)), 17, 44)


@dataclass(slots=True)
class Box:
    """A box.

    :ivar below: the path below the title, cut to the width of the box; ``whole`` is not cut.
    :ivar lines: numbers of the picture's lines; ``count`` of them are shown.
    """

    column: int
    title: str
    whole: str = ""
    below: str = ""
    x: float = 0
    y: float = 0
    width: float = 0
    height: float = 0
    lines: list[int] = field(default_factory=list)
    count: int = 0


@dataclass(slots=True)
class MountLine:
    """A line for one mount.

    :ivar mounts: the numbers of its mounts: modes may mount the same in different ways.
    :ivar kind: its class in the style: device, made or file.
    """

    mounts: list[int]
    source: str
    target: str
    capability: str
    kind: str
    boxes: tuple[int, int, int]
    shown: bool = False
    path: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture with its coordinates.

    :ivar dense: whether there are so many lines that they must be thin.
    """

    format: Format
    height: float
    dense: bool
    boxes: list[Box]
    lines: list[MountLine]


def draw(mounts: Sequence[Bind | Tmpfs], shown: Set[int], form: Format) -> Picture:
    """Return the picture of mounts.

    :param shown: the numbers of those that are shown. The others have their places too, so that
        nothing moves when a switch shows them.
    """
    merged = [_many(mounts, source_of), _many(mounts, _target)]
    keys = [
        (
            _host_key(mount, merged[0]),
            (_rank(capability_of(mount), CAPABILITIES), capability_of(mount), ""),
            _key(mount, _target(mount), merged[1]),
        )
        for mount in mounts
    ]
    numbers: dict[tuple[int, tuple[int, str, str]], int] = {}
    boxes: list[Box] = []
    for column in range(3):
        for key in sorted({key for row in keys if (key := row[column]) is not None}):
            numbers[column, key] = len(boxes)
            x, width = form.columns[column]
            below = _shortened(printable(key[2]), form.letters)
            boxes.append(Box(column, key[1], key[2], below, x, width=width))
    lines: dict[tuple[str, ...], MountLine] = {}
    for number, (mount, row) in enumerate(zip(mounts, keys, strict=True)):
        made = row[0] is None
        name = (source_of(mount), _target(mount), capability_of(mount))
        if name in lines:
            lines[name].mounts.append(number)
            continue
        ends = tuple(-1 if key is None else numbers[column, key] for column, key in enumerate(row))
        style = "made" if made else "device" if _kind(mount) in {_GPUS, _DEVICES} else "file"
        lines[name] = MountLine([number], *name, style, (ends[0], ends[1], ends[2]))
    picture = list(lines.values())
    for number, line in enumerate(picture):
        line.shown = not shown.isdisjoint(line.mounts)
        for box in line.boxes:
            if box >= 0:
                boxes[box].lines.append(number)
                boxes[box].count += line.shown
    spacing = _spacing(len(picture))
    height = _place(boxes, form, spacing)
    _connect(boxes, picture, spacing)
    return Picture(form, height, spacing < _DENSE, boxes, picture)


def source_of(mount: Bind | Tmpfs) -> str:
    """Return what is mounted, as the host names it; "" for what the hook makes."""
    return mount.source if isinstance(mount, Bind) and mount.origin != "made" else ""


def _target(mount: Bind | Tmpfs) -> str:
    return mount.target


def _kind(mount: Bind | Tmpfs) -> str:
    if isinstance(mount, Tmpfs) or mount.origin == "made":
        return _MADE
    path = mount.source
    if mount.kind == "device":
        return _GPUS if _GPU.fullmatch(path) else _DEVICES
    if mount.origin == "proc":
        return _PROC
    if mount.kind == "socket":
        return _SOCKETS
    if "/firmware/" in path:
        return _FIRMWARE
    if ".so" in posixpath.basename(path):
        return _LIBRARIES
    return _PROGRAMS if posixpath.basename(posixpath.dirname(path)) in {"bin", "sbin"} else _FILES


def _many(mounts: Sequence[Bind | Tmpfs], path: Callable[[Bind | Tmpfs], str]) -> set[str]:
    """Return the kinds whose mounts are in more directories than have a box each."""
    directories: dict[str, set[str]] = {}
    for mount in mounts:
        directories.setdefault(_kind(mount), set()).add(posixpath.dirname(path(mount)))
    return {kind for kind, found in directories.items() if len(found) > _DIRECTORIES}


def _host_key(mount: Bind | Tmpfs, many: set[str]) -> tuple[int, str, str] | None:
    source = source_of(mount)
    return _key(mount, source, many) if source else None


def _key(mount: Bind | Tmpfs, path: str, many: set[str]) -> tuple[int, str, str]:
    """Return the rank, the title and the directory of a box."""
    kind = _kind(mount)
    place = "several paths" if kind in many else posixpath.dirname(path)
    return _rank(kind, _KINDS), kind, place


def _rank(name: str, order: Sequence[str]) -> int:
    return order.index(name) if name in order else len(order)


def _shortened(path: str, letters: int) -> str:
    """Leave out directories in the middle of a path, or letters at its beginning."""
    letters = letters if path.isascii() else letters // 2  # some scripts have wide letters
    if len(path) <= letters:
        return path
    first, last = path[: path.find("/", 1) + 1], posixpath.basename(path)
    middle = f"{first}…/{last}"
    return middle if first and len(middle) <= letters else f"…{path[1 - letters :]}"


def _spacing(lines: int) -> float:
    """Return the pixels between two lines at a box: fewer where there are many."""
    return min(7.0, max(1.5, 450 / max(lines, 1)))


def _place(boxes: list[Box], form: Format, spacing: float) -> float:
    """Give each box its place; return the height of the picture."""
    columns = [[box for box in boxes if box.column == column] for column in range(3)]
    for box in boxes:
        box.height = max(form.lowest, (len(box.lines) - 1) * spacing + 2 * _PADDING)
    heights = [sum(box.height + _GAP for box in column) - _GAP for column in columns]
    for column, height in zip(columns, heights, strict=True):
        y = _TOP + (max(heights) - height) / 2
        for box in column:
            box.y = y
            y += box.height + _GAP
    return _TOP + max(*heights, form.lowest) + 2


def _connect(boxes: list[Box], lines: list[MountLine], spacing: float) -> None:
    """Draw each line. On either side of a box its lines are in the order of the boxes there."""
    ends: dict[tuple[int, int, int], float] = {}  # (line, box, other box) -> height
    for number, box in enumerate(boxes):
        for side in {-1, 1}:
            others = [
                (other, line)
                for line in box.lines
                for other in [_neighbour(lines[line], number, box.column + side)]
                if other >= 0
            ]
            first = box.y + box.height / 2 - (len(others) - 1) * spacing / 2
            for place, (other, line) in enumerate(sorted(others)):
                ends[line, number, other] = first + place * spacing
    for number, drawn in enumerate(lines):
        parts = []
        for left, right in pairwise(drawn.boxes):
            if left >= 0:
                x1, x2 = boxes[left].x + boxes[left].width, boxes[right].x
                y1, y2 = ends[number, left, right], ends[number, right, left]
                half = (x1 + x2) / 2
                parts.append(
                    f"M{x1:g} {y1:.1f}C{half:g} {y1:.1f} {half:g} {y2:.1f} {x2:g} {y2:.1f}"
                )
        drawn.path = "".join(parts)


def _neighbour(line: MountLine, box: int, column: int) -> int:
    """Return the box of a line in a column, or -1."""
    return line.boxes[column] if 0 <= column < len(line.boxes) and box in line.boxes else -1
