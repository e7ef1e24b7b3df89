"""Files that decide what root does: who may have written them, on the whole way (SECURITY R13)."""

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
from nvgraft.system.trusted import Untrusted, open_trusted

Stat = Callable[[int], os.stat_result]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that looks like one below / and that only root can write, whatever the machine's /tmp is."""
    fstat = os.fstat
    above = {(found.st_dev, found.st_ino) for found in map(os.stat, tmp_path.parents)}

    def polished(fd: int) -> os.stat_result:
        found = fstat(fd)
        if (found.st_dev, found.st_ino) not in above:
            return found
        return os.stat_result((stat.S_IFDIR | 0o755, *found[1:4], 0, 0, *found[6:]))

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


def test_a_file_that_only_root_can_write_is_opened(file: Path) -> None:
    """Also by a name with superfluous parts."""
    assert content(file) == "content"
    assert content(f"{file.parent}/.//../dir/config.toml") == "content"


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_a_file_that_others_may_write_is_refused(file: Path, mode: int) -> None:
    """Named, with the fix."""
    file.chmod(mode)
    with pytest.raises(
        Untrusted, match=re.escape(f"{file}: group or others may write it")
    ) as caught:
        open_trusted(str(file))
    assert f"chmod go-w {file}" in caught.value.hint


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o1777])
def test_a_directory_that_others_may_write_is_refused(file: Path, mode: int) -> None:
    """They could put another file in its place; a sticky bit is no excuse where nobody asks for one."""
    file.parent.chmod(mode)
    with pytest.raises(
        Untrusted, match=re.escape(f"{file.parent}: group or others may write it")
    ) as caught:
        open_trusted(str(file))
    assert ("chmod" in caught.value.hint) is (mode != 0o1777), "nobody shall close /tmp"


def test_a_sticky_directory_is_passed_on_request(file: Path) -> None:
    """A file in /tmp is its owner's. A directory that is not sticky, and a file with that bit, are still refused."""
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
def test_what_belongs_to_somebody_else_is_refused(file: Path, what: str) -> None:
    """Whoever owns it can write it, or change its mode."""
    link = file.parent.parent / "link"
    link.symlink_to(file)
    owned = {"file": file, "directory": file.parent, "link": link}[what]
    os.chown(owned, 1000, 0, follow_symlinks=False)
    with pytest.raises(Untrusted, match=re.escape(f"{owned}: it belongs to user 1000")):
        open_trusted(str(link))


@pytest.mark.requires("root")
def test_a_user_may_trust_himself(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is not root can do nothing with his file that he could not do anyway."""
    os.chown(file, 1000, 0)
    monkeypatch.setattr(posix, "geteuid", lambda: 1000)
    assert content(file) == "content"


@pytest.mark.requires("root")
@pytest.mark.parametrize("inside", [True, False])
def test_in_a_user_namespace_the_hosts_root_has_no_number(
    file: Path, inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """He is shown as the overflow user then, who is nobody special elsewhere."""
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
    """Absolute or relative, at the end of the way."""
    link = file.parent.parent / "link"
    link.symlink_to(target.format(dir=file.parent))
    assert content(link) == "content"


def test_a_linked_directory_is_followed(file: Path) -> None:
    """As /var/run is."""
    (file.parent.parent / "link").symlink_to("dir")
    assert content(file.parent.parent / "link" / "config.toml") == "content"


def test_what_a_link_leads_to_is_checked(file: Path) -> None:
    """Its directories as well."""
    link = file.parent.parent / "link"
    link.symlink_to(file)
    file.parent.chmod(0o777)
    with pytest.raises(Untrusted, match=re.escape(f"{file.parent}: group or others")):
        open_trusted(str(link))


def test_a_second_link_is_refused(file: Path) -> None:
    """With its name; a loop is no more than that."""
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
def test_what_is_no_file_is_an_error(
    place: Path, make: Callable[[Path], None], error: type[OSError]
) -> None:
    """A FIFO is not waited for."""
    make(place / "x")
    with pytest.raises(error):
        open_trusted(f"{place}/x")


def test_nothing_stays_open(file: Path) -> None:
    """Neither when it succeeds nor for any of the refusals."""
    base = file.parent.parent
    (base / "one").symlink_to("two")
    (base / "two").symlink_to(file)
    for path in (file, base / "one", base / "none", file / "below", base):
        with nothing_stays_open(), suppress(Untrusted, OSError):
            os.close(open_trusted(str(path)))
