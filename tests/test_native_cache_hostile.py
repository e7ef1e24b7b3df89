"""The loader cache step without ldconfig, for images that an attacker has made."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from ldcaches import (
    CONF,
    DRIVER,
    LIBS,
    cache_lines,
    image_with_cache,
    install_driver,
    library,
    listing,
    refused_update,
    tree,
    update,
)
from nvgraft.apply.journal import Journal, JournalEntry
from nvgraft.apply.undo import UndoLog
from nvgraft.base.errors import Refusal
from nvgraft.container.container import Container
from nvgraft.formats.tree import Bounds, OutOfBounds

pytestmark = pytest.mark.requires("ldconfig", "x86_64")


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return image_with_cache(tmp_path / "image")


@pytest.mark.parametrize("name", ["ld.so.cache", "ld.so.cache~"])
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (os.mkfifo, "not a regular file"),
        (os.mkdir, "not a regular file"),
        (
            lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 1 << 40),
            "larger than 16 mib",
        ),
    ],
    ids=["fifo", "directory", "sparse"],
)
def test_a_cache_that_could_not_be_restored_is_refused(
    image: Path, name: str, make: Callable[[Path], None], reason: str
) -> None:
    """A FIFO, a directory or a file beyond the limit in the cache's place is refused, without
    opening or reading it.
    """
    path = image / "etc" / name
    path.unlink(missing_ok=True)
    make(path)
    before = path.lstat()
    assert refused_update(image) == f"/etc/{name}: {reason}"
    assert path.lstat().st_ctime_ns == before.st_ctime_ns


@pytest.mark.parametrize(
    "target",
    [
        "/etc/passwd",
        "../../../../../../etc/passwd",
        "/proc/self/root/etc/passwd",
        "gone",
        "ld.so.cache",
    ],
)
def test_a_cache_that_is_a_link_is_replaced(image: Path, target: str) -> None:
    """A cache that is a link is replaced. Its target, on the host or in the image, is neither read
    nor written.
    """
    passwd = Path("/etc/passwd").read_bytes()
    (image / "etc/passwd").write_text("the image's own")
    (image / "etc/ld.so.cache").unlink()
    (image / "etc/ld.so.cache").symlink_to(target)
    update(image)
    assert not (image / "etc/ld.so.cache").is_symlink()
    assert any("libz.so.1" in line for line in cache_lines(image)), "the directories were searched"
    assert (image / "etc/passwd").read_text() == "the image's own"
    assert Path("/etc/passwd").read_bytes() == passwd


def test_a_linked_etc_is_followed_inside_the_image(image: Path) -> None:
    """If /etc is an absolute link to another directory of the image, the cache is written there,
    not on the host.
    """
    before = Path("/etc/ld.so.cache").read_bytes()
    (image / "etc").rename(image / "config")
    (image / "etc").symlink_to("/config")
    update(image)
    assert any("libcuda.so.1" in line for line in listing(image / "config/ld.so.cache"))
    assert Path("/etc/ld.so.cache").read_bytes() == before


def test_every_change_is_announced_in_the_journal_before(image: Path) -> None:
    """Each change is announced before it is made, under a path without links and with the former
    content.
    """
    (image / "etc/ld.so.cache").unlink()
    (image / "etc").rename(image / "config")
    (image / "etc").symlink_to("/config")
    (image / "opt/lib/libother.so.2").unlink()
    (image / "opt").rename(image / "srv")
    (image / "opt").symlink_to("srv")
    (image / LIBS[1:] / "libcuda.so.1").symlink_to("libcuda.so.470.1")
    install_driver(image)
    before = tree(image)
    announced: list[JournalEntry] = []

    class RecordingJournal(Journal):
        def announce(self, entries: Iterable[JournalEntry]) -> None:
            assert tree(image) == before
            announced.extend(entries)

    update(image, meanwhile=lambda: None, journal=RecordingJournal())
    after = tree(image)
    changed = {f"/{path}" for path in after if before.get(path) != after[path]}
    assert changed <= {item.path for item in announced}
    assert JournalEntry("link", "/srv/lib/libother.so.2", "libother.so.2.1") in announced
    assert JournalEntry("absent", "/config/ld.so.cache~") in announced
    assert [item.fields[0] for item in announced if item.kind == "was-link"] == ["libcuda.so.470.1"]


def test_a_link_to_a_cache_is_followed_inside_the_image(image: Path) -> None:
    """A cache that is a link to another file of the image keeps its rows; the file behind the link
    is not written.
    """
    (image / "run").mkdir()
    (image / "etc/ld.so.cache").rename(image / "run/cache")
    (image / "etc/ld.so.cache").symlink_to("/run/cache")
    (image / CONF[1:]).unlink()
    before = (image / "run/cache").read_bytes()
    update(image)
    assert "libother.so.2 (libc6,x86-64) => /opt/lib/libother.so.2" in cache_lines(image)
    assert (image / "run/cache").read_bytes() == before


@pytest.mark.parametrize(
    "target", ["/", "../../..", "/etc", "/proc/self/root", "/proc/1/root/usr/lib"]
)
def test_no_directory_outside_the_image_is_searched(image: Path, target: str) -> None:
    """Configured links that lead out of the image by their text lead inside it or to nothing."""
    (image / "out").symlink_to(target)
    (image / CONF[1:]).write_text(
        f"/out\n/out/usr/lib/x86_64-linux-gnu\n/out{os.path.realpath('/usr/lib/x86_64-linux-gnu')}\n"
    )
    (image / "etc/ld.so.cache").unlink()
    update(image)
    names = [line.partition(" => ")[2].rpartition("/")[2] for line in cache_lines(image)]
    assert set(names) <= {*DRIVER, "libz.so.1", "libother.so.2"}


@pytest.mark.parametrize("kind", ["fifo", "sparse"])
def test_a_configuration_that_blocks_a_reader_is_refused(image: Path, kind: str) -> None:
    """A FIFO or a huge file as ld.so.conf, on which the reference's ldconfig would not end, is
    refused without reading it.
    """
    conf = image / CONF[1:]
    conf.unlink()
    if kind == "fifo":
        os.mkfifo(conf)
    else:
        os.truncate(os.open(conf, os.O_CREAT | os.O_WRONLY), 1 << 40)
    assert refused_update(image).startswith(f"{CONF}: ")


@pytest.mark.parametrize("kind", ["directory", "loop", "device", "include", "long"])
def test_an_unreadable_configuration_is_ignored(image: Path, kind: str) -> None:
    """With an unreadable or damaged ld.so.conf the driver is still added; one that is too long
    gives a warning.
    """
    conf = image / CONF[1:]
    conf.unlink()
    if kind == "directory":
        conf.mkdir()
    elif kind == "loop":
        conf.symlink_to("ld.so.conf")
    elif kind == "device":
        conf.symlink_to("/dev/zero")  # the image has no such file
    elif kind == "include":
        os.mkfifo(image / "etc/fifo.conf")
        conf.write_text("include fifo.conf\n")
    else:
        conf.write_text("/opt\n" * 20_000)
    findings = update(image)
    assert [finding.id for finding in findings] == (["ldcache-bounds"] if kind == "long" else [])
    assert any("libcuda.so.1" in line for line in cache_lines(image))


def test_hostile_libraries_are_skipped(image: Path) -> None:
    """FIFOs, links to devices, and empty, huge or broken files with libraries' names get no
    rows.
    """
    opt = image / "opt/lib"
    os.mkfifo(opt / "libfifo.so.1")
    (opt / "libzero.so.1").symlink_to("/dev/zero")
    (opt / "libempty.so.1").touch()
    os.truncate(os.open(opt / "libsparse.so.1", os.O_CREAT | os.O_WRONLY), 1 << 40)
    (opt / "libcut.so.1").write_bytes((opt / "libother.so.2.1").read_bytes()[:100])
    library(opt / "libslash.so.1", "../../etc/passwd")
    (image / "etc/ld.so.cache").unlink()
    update(image)
    sonames = [line.partition(" ")[0] for line in cache_lines(image) if "/opt/lib/" in line]
    assert sonames == ["libother.so.2"]


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        (
            {"directories": 3},
            "its ld.so.conf names 4 library directories, more than image-directories = 3 allows",
        ),
        ({"libraries": 5}, "/opt/lib: 6 libraries, more than image-libraries = 5 allows"),
        ({"seconds": 0}, "seconds, more than image-seconds = 0 allows"),
        ({"names": 15}, "more than image-names = 15 allows"),
    ],
    ids=["directories", "libraries", "seconds", "names"],
)
def test_a_limit_gives_a_warning_and_old_rows_stay(
    image: Path, bounds: dict[str, int], text: str
) -> None:
    """A search that ends at a limit gives one warning; the driver's rows and those of the old cache
    are written.
    """
    old_lines = cache_lines(image)
    for number in range(10):
        library(image / f"opt/{number}/lib{number}.so.1", f"lib{number}.so.1")
        library(image / f"opt/lib/libmany{number}.so.1", f"libmany{number}.so.1")
    (image / CONF[1:]).write_text(
        "/opt/lib\n" + "".join(f"/opt/{number}\n" for number in range(10))
    )
    os.utime(image / "etc/ld.so.cache", (1, 1))
    (finding,) = update(image, bounds=Bounds(**bounds))
    assert (finding.id, finding.level) == ("ldcache-bounds", "warning")
    assert text in finding.message
    assert set(old_lines) <= set(cache_lines(image))
    assert any("libcuda.so.1" in line for line in cache_lines(image))


def test_links_that_take_too_long_are_left_out(
    image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When no time is left to look for missing links, the rows are written, and a warning names the
    directory.
    """
    library(image / "opt/lib/libnew.so.3.1", "libnew.so.3")
    os.utime(image / "etc/ld.so.cache", (1, 1))

    def late(_files: object, place: str, _library: object) -> bool:
        raise OutOfBounds(place, "9.0 seconds", "image-seconds", 6)

    monkeypatch.setattr("nvgraft.apply.cache.content._is_linked", late)
    (finding,) = update(image)
    assert "links in /opt/lib: 9.0 seconds, more than image-seconds = 6 allows" in finding.message
    assert any("libnew.so.3" in line for line in cache_lines(image))
    assert not (image / "opt/lib/libnew.so.3").is_symlink()


def test_the_image_cannot_turn_a_directory_into_a_link(image: Path) -> None:
    """A library directory that became a link after the plan is refused, and the link is not
    followed.
    """
    outside = image.parent / "outside"
    outside.mkdir()

    def swap() -> None:
        (image / LIBS[1:]).rename(image / "moved")
        (image / LIBS[1:]).symlink_to(outside)

    with pytest.raises(Refusal):
        update(image, meanwhile=swap)
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("kind", ["link", "file", "fifo"])
def test_a_foreign_file_under_the_temporary_name_is_kept(image: Path, kind: str) -> None:
    """A file, link or FIFO that appears under the temporary name at the last moment is refused and
    not changed.
    """
    outside = image.parent / "outside"
    outside.write_text("untouched")
    place = image / "etc/ld.so.cache~"

    class Racing(Journal):
        def announce(self, entries: Iterable[JournalEntry]) -> None:
            if kind == "link":
                place.symlink_to(outside)
            elif kind == "file":
                os.link(outside, place)
            else:
                os.mkfifo(place)

    undo = UndoLog()
    with pytest.raises(Refusal, match="error code: 1"):
        update(image, undo=undo, journal=Racing())
    assert undo.run() == []
    assert os.path.lexists(place), "the undo must not remove it"
    assert outside.read_text() == "untouched"


def test_a_volume_is_not_written(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a cache nor a link is written to a volume (SECURITY R21); if all is right already,
    nothing is refused.
    """
    update(image)
    monkeypatch.setattr(Container, "volume", lambda _self, _mount_id: "/etc")
    update(image, meanwhile=lambda: None)
    (image / "etc/ld.so.cache").unlink()
    assert refused_update(image).startswith("/etc/ld.so.cache would be made on the volume /etc: ")
    (image / LIBS[1:] / "libcuda.so.1").unlink()
    assert refused_update(image).startswith(
        f"{LIBS}/libcuda.so.1 would be made on the volume /etc: "
    )
