"""Parse /proc/PID/mountinfo (proc_pid_mountinfo(5))."""

from __future__ import annotations

from nvgraft.base.values import Value


class Mount(Value):
    """One mount. ``root`` is the mounted directory inside its file system, ``point`` where it is
    mounted.

    ``shared`` tells whether a mount that is made below it propagates to other mount namespaces.
    ``fs_options`` are those of its file system, which all of its mounts have in common.
    """

    def __init__(
        self,
        id: int,
        root: str,
        point: str,
        options: str,
        shared: bool,
        fstype: str,
        source: str,
        fs_options: str = "",
    ) -> None:
        self.id = id
        self.root = root
        self.point = point
        self.options = options
        self.shared = shared
        self.fstype = fstype
        self.source = source
        self.fs_options = fs_options


#: The separator and the first letters of the types of FUSE file systems.
_FUSE = " - fuse"


def _unescape(field: str) -> str:
    """Undo the kernel's octal escapes of blank, tab, newline and backslash."""
    if "\\" not in field:
        return field
    first, *rest = field.split("\\")
    return first + "".join(chr(int(part[:3], 8)) + part[3:] for part in rest)


def parse_mountinfo(text: str) -> list[Mount]:
    """Return the mounts in order. Only newlines end lines: a path may contain every other
    separator.

    :raises ValueError: a line does not have the documented form.
    """
    return [_parse_line(line) for line in text.split("\n") if line]


def mounts_of_type(text: str, *fstypes: str) -> list[Mount]:
    """Return the mounts of these file system types, in order. Nodes have thousands of others.

    :raises ValueError: as :func:`parse_mountinfo`, for these lines.
    """
    # Blanks in names are escaped, so " - " is only before the type.
    lines = []
    for mark in (f" - {fstype} " for fstype in fstypes):
        at = text.find(mark)
        while at >= 0:
            start, end = text.rfind("\n", 0, at) + 1, text.find("\n", at)
            lines.append((start, text[start : end if end >= 0 else len(text)]))
            at = text.find(mark, at + len(mark))
    return [_parse_line(line) for _, line in sorted(lines)]


def keeps_deleted_files(fstype: str) -> bool:
    """Tell whether a file system keeps a deleted file under another name in its directory until the
    file is closed (FUSE's .fuse_hidden..., NFS's .nfs...).
    """
    return fstype.startswith(("fuse", "nfs")) or fstype in {"cifs", "smb3"}


def fuse_mounts(text: str) -> list[Mount]:
    """Return the mounts of FUSE file systems, in order. fusectl, which the kernel serves itself, is
    not one of them.

    :raises ValueError: as :func:`parse_mountinfo`, for these lines.
    """
    mounts = []
    at = text.find(_FUSE)
    while at >= 0:
        start, end = text.rfind("\n", 0, at) + 1, text.find("\n", at)
        line = text[start : end if end >= 0 else len(text)]
        mount = _parse_line(line)
        if mount.fstype in {"fuse", "fuseblk"} or mount.fstype.startswith("fuse."):
            mounts.append(mount)
        at = text.find(_FUSE, at + len(_FUSE))
    return mounts


class MountTable:
    """The mounts of one mountinfo by id. A line is parsed when its mount is asked for."""

    def __init__(self, text: str = "") -> None:
        self._text = f"\n{text}\n"
        self._parsed: dict[int, Mount | None] = {}

    def get(self, id: int) -> Mount | None:
        """Return the mount ``id``, or None when there is none.

        :raises ValueError: as :func:`parse_mountinfo`.
        """
        if id not in self._parsed:
            start = self._text.find(f"\n{id} ") + 1
            self._parsed[id] = (
                _parse_line(self._text[start : self._text.find("\n", start)]) if start else None
            )
        return self._parsed[id]


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
        " ".join(kind[2:]),
    )
