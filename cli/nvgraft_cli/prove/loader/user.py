"""Find the user that programs such as gosu and setpriv give to the program that they start."""

from collections.abc import Iterator
from dataclasses import dataclass

from nvgraft.formats.tree import PathError
from nvgraft_cli.case.planned_tree import PlannedTree

#: Bytes of an image's list of users.
_LIMIT = 256 << 10


@dataclass(frozen=True, slots=True)
class User:
    """A user: its uid, and its gid with additional gids behind it."""

    uid: int
    groups: tuple[int, ...]


def named_user(tree: PlannedTree, text: str, *, members: bool = True) -> User | None:
    """Return the user that ``USER`` or ``USER:GROUP`` names, each a name or a number.

    It is None where the image does not know a name.

    :param members: whether it gets, unless a group is named, all groups of which it is a member.
    """
    name, _, group = text.partition(":")
    if name.isdecimal():
        user = User(int(name), (int(name),))
    else:
        row = _row(tree, "/etc/passwd", name)
        if row is None:
            return None
        user = User(row[0], row[1:2] + (groups_of(tree, name) if members else ()))
    if not group:
        return user
    if group.isdecimal():
        return User(user.uid, (int(group),))
    found = _row(tree, "/etc/group", group)
    return None if found is None else User(user.uid, found[:1])


def groups_of(tree: PlannedTree, name: str) -> tuple[int, ...]:
    """Return the groups of which /etc/group names a user as a member."""
    lines = _lines(tree, "/etc/group")
    return tuple(int(fields[2]) for fields in lines if name in fields[3].split(","))


def shell_of(tree: PlannedTree, name: str) -> tuple[str, str]:
    """Return the shell and the home directory of a user; those that are not known are usual."""
    fields = [*_fields(tree, "/etc/passwd", name), *[""] * 7]
    return fields[6] or "/bin/sh", fields[5] or "/"


def _row(tree: PlannedTree, path: str, name: str) -> tuple[int, ...] | None:
    """Return the numbers behind the password in a line of /etc/passwd or /etc/group."""
    fields = _fields(tree, path, name)
    return tuple(int(field) for field in fields[2:4] if field.isdecimal()) or None


def _fields(tree: PlannedTree, path: str, name: str) -> list[str]:
    """Return the fields of a line of /etc/passwd or /etc/group; none if there is no such line."""
    return next((fields for fields in _lines(tree, path) if fields[0] == name), [])


def _lines(tree: PlannedTree, path: str) -> Iterator[list[str]]:
    """Yield the fields of each line of /etc/passwd or /etc/group."""
    try:
        text = tree.read(tree.resolve(path), _LIMIT).decode("utf-8", "surrogateescape")
    except (OSError, PathError):
        return
    for line in text.splitlines():
        fields = line.split(":")
        if len(fields) > 3 and fields[2].isdecimal():
            yield fields
