"""Reading /proc/PID/mountinfo: what is mounted where, and who else would see a new mount (proc_pid_mountinfo(5))."""

from __future__ import annotations

from nvgraft.base.values import Value


class Mount(Value):
    """One line: mount ``id``, its ``root`` inside the file system, mount ``point``, ``options``, ``shared`` (a mount made
    below it would appear elsewhere, too), ``fstype`` and ``source``."""

    __slots__ = ("fstype", "id", "options", "point", "root", "shared", "source")

    def __init__(
        self, id: int, root: str, point: str, options: str, shared: bool, fstype: str, source: str
    ) -> None:
        self.id = id
        self.root = root
        self.point = point
        self.options = options
        self.shared = shared
        self.fstype = fstype
        self.source = source


def _unescape(field: str) -> str:
    """Undo the kernel's octal escapes of blank, tab, newline and backslash."""
    if "\\" not in field:
        return field
    first, *rest = field.split("\\")
    return first + "".join(chr(int(part[:3], 8)) + part[3:] for part in rest)


def parse_mountinfo(text: str) -> list[Mount]:
    """Return the mounts of ``text`` in its order. Lines end at newlines alone: a path may hold any other separator.

    :raises ValueError: for a line that is not of the documented form.
    """
    return [_parse_line(line) for line in text.split("\n") if line]


def mounts_of_type(text: str, *fstypes: str) -> list[Mount]:
    """Return the mounts of these file system types alone, in order: of a node's thousands only some are ever looked at.

    :raises ValueError: as :func:`parse_mountinfo`, for those lines.
    """
    # Blanks in names are escaped: " - " stands before the type and nowhere else.
    found = []
    for mark in (f" - {fstype} " for fstype in fstypes):
        at = text.find(mark)
        while at >= 0:
            start, end = text.rfind("\n", 0, at) + 1, text.find("\n", at)
            found.append((start, text[start : end if end >= 0 else len(text)]))
            at = text.find(mark, at + len(mark))
    return [_parse_line(line) for _, line in sorted(found)]


class MountTable:
    """The mounts of one mountinfo by their ids; a line is parsed when it is asked for."""

    __slots__ = ("_known", "_text")

    def __init__(self, text: str = "") -> None:
        self._text = f"\n{text}\n"
        self._known: dict[int, Mount | None] = {}

    def get(self, id: int) -> Mount | None:
        """Return the mount ``id``, or None when there is none.

        :raises ValueError: as :func:`parse_mountinfo`.
        """
        if id not in self._known:
            start = self._text.find(f"\n{id} ") + 1
            self._known[id] = (
                _parse_line(self._text[start : self._text.find("\n", start)]) if start else None
            )
        return self._known[id]


def _parse_line(line: str) -> Mount:
    fields, separator, described = line.partition(" - ")
    words = fields.split(" ")
    kind = described.split(" ")
    if not separator or len(words) < 6 or len(kind) < 2:
        raise ValueError(f"malformed mountinfo line: {line}")
    shared = any(word.startswith("shared:") for word in words[6:])
    return Mount(
        int(words[0]),
        _unescape(words[3]),
        _unescape(words[4]),
        words[5],
        shared,
        kind[0],
        _unescape(kind[1]),
    )
