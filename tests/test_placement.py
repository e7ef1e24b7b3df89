"""Files that are placed, permissions that are changed, links in the place of files: all of it can
be undone, by the hook itself and after it was killed.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nvgraft.apply import executor, journal, left_journal, leftovers
from nvgraft.apply.journal import Heading, Journal
from nvgraft.apply.placement import Placement
from nvgraft.apply.undo import UndoLog
from nvgraft.base.errors import Refusal
from nvgraft.container.container import Container
from nvgraft.plan.actions import Symlink, Why
from nvgraft.plan.placed_actions import ChangeMode, PlaceFile
from nvgraft.system import syscalls

WHY = Why("", "", "")


class Root(Container):
    """A directory as a root file system. What is below /volume counts as a volume."""

    def __init__(self, path: Path) -> None:
        fd = os.open(path, os.O_PATH | os.O_DIRECTORY)
        super().__init__(os.getpid(), None, str(path), fd, os.geteuid(), os.getegid())
        self.on_volume = False

    def volume(self, mount_id: int) -> str | None:
        return "/volume" if self.on_volume else None


@pytest.fixture
def journals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A private directory of journals."""
    place = tmp_path / "run/journal"
    place.parent.mkdir(mode=0o700)
    monkeypatch.setattr(journal, "DIRECTORY", str(place))
    return place


@pytest.fixture
def root(tmp_path: Path, journals: Path) -> Path:
    path = tmp_path / "rootfs"
    (path / "etc").mkdir(parents=True)
    return path


def look(path: Path) -> dict[str, tuple[str, str]]:
    """Return type with mode, and content, of each file."""
    return {
        str(file.relative_to(path)): (
            oct(file.lstat().st_mode),
            os.readlink(file)
            if file.is_symlink()
            else file.read_text()
            if stat.S_ISREG(file.lstat().st_mode)
            else "",
        )
        for file in sorted(path.rglob("*"))
    }


@contextmanager
def at_work(path: Path) -> Iterator[tuple[Root, Placement, UndoLog, Journal]]:
    container, undo = Root(path), UndoLog()
    began = Journal.begin(Heading.of(str(path), container.rootfs_fd, 0, 0))
    placement = Placement(container, undo, began)
    try:
        yield container, placement, undo, began
    finally:
        placement.close()
        began.close()


def recover(path: Path, journals: Path) -> list[tuple[str, str]]:
    """Take back what the journal names, as after a kill; return each outcome."""
    directory = os.open(journals, os.O_RDONLY)
    [name] = os.listdir(journals)
    left = left_journal.read(directory, name)
    os.close(directory)
    fd = os.open(path, os.O_PATH)
    outcomes, rest = leftovers.clear(left, fd)
    os.close(fd)
    assert not rest.entries
    return [(outcome.fate, outcome.path) for outcome in outcomes]


FILES = [
    PlaceFile("/etc/new", 0o444, "new\n", WHY),
    PlaceFile("/etc/old", 0o444, "other\n", WHY),
    PlaceFile("/etc/link", 0o444, "text\n", WHY),
]


def fill(path: Path) -> dict[str, tuple[str, str]]:
    (path / "etc/old").write_text("old\n")
    (path / "etc/old").chmod(0o640)
    (path / "etc/link").symlink_to("/etc/shadow")
    return look(path)


@pytest.mark.parametrize("by", ["undo", "journal"])
def test_files_are_placed_and_taken_back(root: Path, journals: Path, by: str) -> None:
    """A new file has its mode, a replaced one keeps its own, and a link is replaced, not followed.

    The undo, and the journal of a killed hook, bring back what was there.
    """
    before = fill(root)
    with at_work(root) as (_, placement, undo, _journal):
        placement.place(FILES)
        assert look(root) == {
            "etc": before["etc"],
            "etc/link": ("0o100444", "text\n"),
            "etc/new": ("0o100444", "new\n"),
            "etc/old": ("0o100640", "other\n"),
        }
        if by == "undo":
            assert undo.run() == []
    if by == "journal":
        assert len(recover(root, journals)) == 3
    assert look(root) == before


@pytest.mark.parametrize("kind", ["directory", "fifo", "gone", "way", "volume"])
def test_a_place_that_has_changed_is_refused(root: Path, kind: str) -> None:
    """What appeared since the plan was made is not replaced, and no link on the way is followed."""
    path = "/etc/x"
    if kind == "directory":
        (root / "etc/x").mkdir()
    elif kind == "fifo":
        os.mkfifo(root / "etc/x")
    elif kind == "gone":
        path = "/gone/x"
    elif kind == "way":
        (root / "way").symlink_to("etc")
        path = "/way/x"
    before = look(root)
    with at_work(root) as (container, placement, undo, _journal):
        container.on_volume = kind == "volume"
        with pytest.raises(Refusal, match=f"file creation failed: {root}{path}"):
            placement.place([PlaceFile(path, 0o644, "x", WHY)])
        assert undo.run() == []
    assert look(root) == before


def test_a_temporary_name_that_is_taken(root: Path) -> None:
    """A file under the temporary name is neither written through nor lost by an undo."""
    (root / "victim").write_text("precious")
    os.link(root / "victim", root / "etc/.x.nvgraft")
    before = look(root)
    with at_work(root) as (_, placement, undo, _journal):
        placement.place([PlaceFile("/etc/x", 0o644, "x", WHY)])
        assert (root / "victim").read_text() == "precious"
        assert undo.run() == []
    assert look(root) == before


@pytest.mark.parametrize("by", ["undo", "journal"])
def test_permissions_are_changed_and_given_back(root: Path, journals: Path, by: str) -> None:
    """Permissions of a directory and a FIFO are changed by descriptor, and given back."""
    os.mkfifo(root / "fifo", 0o600)
    before = look(root)
    with at_work(root) as (container, placement, undo, _journal):
        container._rootfs_mount = syscalls.mount_id(container.rootfs_fd)
        placement.change_modes([ChangeMode("/etc", 0o711, WHY), ChangeMode("/fifo", 0o644, WHY)])
        assert [mode for mode, _ in look(root).values()] == ["0o40711", "0o10644"]
        if by == "undo":
            assert undo.run() == []
    if by == "journal":
        assert recover(root, journals) == [("restored", "/fifo"), ("restored", "/etc")]
    assert look(root) == before


def test_permissions_that_are_not_changed(root: Path) -> None:
    """What is on a volume keeps its permissions, with a finding; a link that appeared is an
    error.
    """
    (root / "link").symlink_to("etc")
    before = look(root)
    with at_work(root) as (container, placement, _undo, _journal):
        for path in ("/link", "/link/."):
            with pytest.raises(Refusal, match=f"file creation failed: {root}{path}: "):
                placement.change_modes([ChangeMode(path, 0o700, WHY)])
        container.on_volume = True
        placement.change_modes([ChangeMode("/etc", 0o700, WHY)])
        assert [finding.id for finding in container.findings] == ["mode-on-volume"]
    assert look(root) == before


def test_a_file_that_was_not_replaced_yet_is_left_alone(root: Path, journals: Path) -> None:
    """A hook that is killed before it replaces a file leaves nothing to report."""
    (root / "etc/a").write_text("a library")
    before = look(root)
    link = Symlink("/etc/a", "a.1", WHY, replaces=True, over_file=True)
    with (
        pytest.MonkeyPatch.context() as patch,
        at_work(root) as (container, placement, undo, began),
    ):
        patch.setattr("nvgraft.apply.replaced_link.Link.make", lambda *_: None)
        executor._replace_links([link], container, undo, began, placement.own_fds)
    assert "kept" not in dict(recover(root, journals))
    assert look(root) == before


@pytest.mark.parametrize("by", ["undo", "journal"])
def test_a_link_takes_the_place_of_a_file(root: Path, journals: Path, by: str) -> None:
    """Only a link that may do so replaces a regular file, which an undo brings back."""
    (root / "etc/a").write_text("a library")
    (root / "etc/a").chmod(0o4755)
    before = look(root)
    link = Symlink("/etc/a", "a.1", WHY, replaces=True, over_file=True)
    with at_work(root) as (container, placement, undo, began):
        executor._replace_links([link], container, undo, began, placement.own_fds)
        assert os.readlink(root / "etc/a") == "a.1"
        if by == "undo":
            assert undo.run() == []
    if by == "journal":
        assert recover(root, journals) == [("removed", "/etc/a"), ("restored", "/etc/a")]
    assert look(root) == before
