"""Files that decide what root does: who may have written them and their directories (SECURITY
R13).
"""

import os
import posix
import re
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from descriptors import nothing_stays_open
from nvgraft.system import trusted, userns
from nvgraft.system.trusted import Untrusted, open_trusted, open_trusted_directory

Stat = Callable[[int], os.stat_result]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory whose parents appear as root's with mode 0755, whatever this machine's /tmp
    is.
    """
    fstat = os.fstat
    above = {(info.st_dev, info.st_ino) for info in map(os.stat, tmp_path.parents)}

    def polished(fd: int) -> os.stat_result:
        info = fstat(fd)
        if (info.st_dev, info.st_ino) not in above:
            return info
        return os.stat_result((stat.S_IFDIR | 0o755, *info[1:4], 0, 0, *info[6:]))

    monkeypatch.setattr(trusted.os, "fstat", polished)  # type: ignore[attr-defined]
    tmp_path.chmod(0o755)
    return tmp_path


@pytest.fixture
def file(place: Path) -> Path:
    path = place / "dir" / "config.toml"
    path.parent.mkdir(mode=0o755)
    path.write_text("content")
    path.chmod(0o644)
    return path


def content(path: Path | str, *, sticky: bool = False) -> str:
    fd = open_trusted(str(path), sticky=sticky)
    try:
        assert not os.get_inheritable(fd)
        return os.read(fd, 100).decode()
    finally:
        os.close(fd)


def test_a_file_that_only_root_can_write_to_is_opened(file: Path) -> None:
    """A file that only root can write to is opened, also by a path with superfluous parts."""
    assert content(file) == "content"
    assert content(f"{file.parent}/.//../dir/config.toml") == "content"


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_a_file_that_others_may_write_to_is_refused(file: Path, mode: int) -> None:
    """A file that group or others may write to is refused with its name and the fix."""
    file.chmod(mode)
    with pytest.raises(
        Untrusted, match=re.escape(f"{file}: group or others may write it")
    ) as caught:
        open_trusted(str(file))
    assert f"chmod go-w {file}" in caught.value.hint


def test_chmod_is_advised_for_files_and_directories_only(file: Path) -> None:
    """The fix for what is neither names no chmod: a device such as /dev/null is for everybody."""
    file.unlink()
    os.mkfifo(file)
    file.chmod(0o666)
    with pytest.raises(Untrusted, match="may write it") as caught:
        open_trusted(str(file))
    assert "chmod" not in caught.value.hint


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o1777])
def test_a_directory_that_others_may_write_to_is_refused(file: Path, mode: int) -> None:
    """A directory that others may write to is refused, sticky or not, because they could replace
    the file.
    """
    file.parent.chmod(mode)
    with pytest.raises(
        Untrusted, match=re.escape(f"{file.parent}: group or others may write it")
    ) as caught:
        open_trusted(str(file))
    assert ("chmod" in caught.value.hint) is (mode != 0o1777), "the hint must not change /tmp"


def test_a_sticky_directory_is_accepted_on_request(file: Path) -> None:
    """With ``sticky`` a sticky directory is accepted; one that is not sticky, and a file with that
    bit, are refused.
    """
    file.parent.chmod(0o1777)
    assert content(file, sticky=True) == "content"
    file.chmod(0o1646)
    with pytest.raises(Untrusted):
        content(file, sticky=True)
    file.chmod(0o644)
    file.parent.chmod(0o777)
    with pytest.raises(Untrusted):
        content(file, sticky=True)


@pytest.mark.requires("root")
@pytest.mark.parametrize("what", ["file", "directory", "link"])
def test_a_file_of_another_user_is_refused(file: Path, what: str) -> None:
    """A file, directory or link of another user is refused, because its owner can change it."""
    link = file.parent.parent / "link"
    link.symlink_to(file)
    foreign = {"file": file, "directory": file.parent, "link": link}[what]
    os.chown(foreign, 1000, 0, follow_symlinks=False)
    with pytest.raises(Untrusted, match=re.escape(f"{foreign}: it belongs to user 1000")) as caught:
        open_trusted(str(link))
    assert ("chown" in caught.value.hint) is (what != "directory"), "a home must stay its user's"


@pytest.mark.requires("root")
def test_a_user_may_trust_their_own_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's own file is accepted for that user: it gives no rights beyond the user's own."""
    os.chown(file, 1000, 0)
    monkeypatch.setattr(posix, "geteuid", lambda: 1000)
    assert content(file) == "content"


@pytest.mark.requires("root")
@pytest.mark.parametrize("inside", [True, False])
def test_in_a_user_namespace_the_overflow_user_is_accepted(
    file: Path, inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a user namespace the host's root appears as the overflow user and is accepted; elsewhere
    that user is refused.
    """
    os.chown(file, userns.overflow_uid(), 0)
    monkeypatch.setattr(userns, "inside", lambda: inside)
    if inside:
        assert content(file) == "content"
    else:
        with pytest.raises(Untrusted):
            open_trusted(str(file))


@pytest.mark.parametrize(
    "target", ["{dir}/config.toml", "dir/config.toml", "dir/../dir/./config.toml"]
)
def test_one_link_is_followed(file: Path, target: str) -> None:
    """One absolute or relative link at the end of the path is followed."""
    link = file.parent.parent / "link"
    link.symlink_to(target.format(dir=file.parent))
    assert content(link) == "content"


def test_a_linked_directory_is_followed(file: Path) -> None:
    """A link to a directory, such as /var/run, is followed."""
    (file.parent.parent / "link").symlink_to("dir")
    assert content(file.parent.parent / "link" / "config.toml") == "content"


def test_the_target_of_a_link_is_checked(file: Path) -> None:
    """The directories of a link's target are checked too."""
    link = file.parent.parent / "link"
    link.symlink_to(file)
    file.parent.chmod(0o777)
    with pytest.raises(Untrusted, match=re.escape(f"{file.parent}: group or others")):
        open_trusted(str(link))


def test_a_second_link_is_refused(file: Path) -> None:
    """A second link, or a loop, is refused with its name."""
    base = file.parent.parent
    (base / "one").symlink_to("two")
    (base / "two").symlink_to(file)
    (base / "loop").symlink_to("loop")
    for name, second in (("one", "two"), ("loop", "loop")):
        with pytest.raises(Untrusted, match=re.escape(f"{base}/{second}: a second symbolic link")):
            open_trusted(f"{base}/{name}")


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda path: os.mkfifo(path, 0o600), OSError),
        (lambda path: path.mkdir(0o755), IsADirectoryError),
        (lambda path: None, FileNotFoundError),
    ],
)
def test_anything_but_a_file_is_an_error(
    place: Path, make: Callable[[Path], None], error: type[OSError]
) -> None:
    """A FIFO, a directory or a missing file is an error, without waiting for a writer."""
    make(place / "x")
    with pytest.raises(error):
        open_trusted(f"{place}/x")


def test_nothing_stays_open(file: Path) -> None:
    """No descriptor stays open after success or any refusal."""
    base = file.parent.parent
    (base / "one").symlink_to("two")
    (base / "two").symlink_to(file)
    for path in (file, base / "one", base / "none", file / "below", base):
        with nothing_stays_open(), suppress(Untrusted, OSError):
            os.close(open_trusted(str(path)))


def identity(root: Path, path: str) -> tuple[int, int]:
    """Return device and inode of the directory that is opened below ``root``."""
    root_fd = os.open(root, os.O_PATH | os.O_DIRECTORY)
    try:
        with nothing_stays_open():
            fd = open_trusted_directory(root_fd, path)
            status = os.fstat(fd)
            os.close(fd)
    finally:
        os.close(root_fd)
    return status.st_dev, status.st_ino


def test_a_directory_is_opened_inside_of_a_root(place: Path) -> None:
    """A directory, or one link to it, is looked up from the root that is given, even if the link is
    absolute, and sticky directories may be on the way.
    """
    directory = place / "sticky" / "rootfs"
    directory.mkdir(parents=True)
    directory.chmod(0o755)
    directory.parent.chmod(0o1777)
    (place / "link").symlink_to("/sticky")
    found = directory.stat()
    for path in ("/sticky/rootfs", "//sticky/./rootfs/", "/link/rootfs"):
        assert identity(place, path) == (found.st_dev, found.st_ino)


def test_a_directory_that_others_own_or_may_replace_is_refused(place: Path) -> None:
    """What others may write, on the way or at its end, is refused by name, as for a file."""
    directory = place / "parent" / "rootfs"
    directory.mkdir(parents=True)
    directory.chmod(0o775)
    directory.parent.chmod(0o755)
    with pytest.raises(Untrusted, match=r"^/parent/rootfs: group or others may write it"):
        identity(place, "/parent/rootfs")
    directory.chmod(0o755)
    directory.parent.chmod(0o777)
    with pytest.raises(Untrusted, match=r"^/parent: group or others may write it"):
        identity(place, "/parent/rootfs")


def test_a_file_is_not_opened_as_a_directory(file: Path, place: Path) -> None:
    """A file in the place of the directory is an error of its own."""
    with pytest.raises(NotADirectoryError):
        identity(place, "/dir/config.toml")
