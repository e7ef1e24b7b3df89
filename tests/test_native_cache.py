"""The loader cache step without ldconfig, on directories: what ldconfig would do, what an image may do, and the way back."""

import errno
import os
import posix
import shutil
import stat
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from descriptors import nothing_stays_open
from ldcaches import (
    DRIVER,
    ENTRIES,
    LIBS,
    LINES,
    container_at,
    install_driver,
    ldconfig,
    library,
    listing,
    make_image,
    tree,
    update,
)
from nvgraft.apply.cache import rootfs as rootfs_module
from nvgraft.apply.cache.native import NativeCache
from nvgraft.apply.cache.rootfs import Bounds
from nvgraft.apply.journal import Item, Journal
from nvgraft.apply.undo import UndoLog
from nvgraft.base.errors import Refusal
from nvgraft.container.container import Container

pytestmark = pytest.mark.requires("ldconfig", "x86_64")

CONF = "/etc/ld.so.conf"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An image with two libraries on its search path, and the cache that ldconfig has made of them."""
    root = tmp_path / "image"
    (root / "etc").mkdir(parents=True)
    (root / CONF[1:]).write_text(f"/opt/lib\n{LIBS}\n")
    library(root / "opt/lib/libother.so.2.1", "libother.so.2")
    library(root / LIBS[1:] / "libz.so.1.2", "libz.so.1")
    ldconfig(root)
    return root


def lines(root: Path) -> list[str]:
    return listing(root / "etc/ld.so.cache")


def refused(root: Path) -> str:
    with pytest.raises(Refusal) as caught:
        update(root)
    line = caught.value.line()
    assert line.startswith(
        "nvgraft: ldcache error: process /sbin/ldconfig failed with error code: 1 | the loader cache was not written: "
    )
    return line.partition(" | the loader cache was not written: ")[2]


# ---- the driver's libraries


def test_the_driver_is_added_to_what_is_there(image: Path) -> None:
    """A row and a link for each library, as ldconfig makes them; what the image's cache has stays; nothing else changes."""
    before, had = tree(image), lines(image)
    assert update(image) == []
    assert lines(image) == sorted(lines(image), key=lines(image).index)
    assert set(lines(image)) == {
        *had,
        *(f"{soname} (libc6,x86-64) => {LIBS}/{soname}" for soname in DRIVER),
    }
    after = tree(image)
    new = {path: entry[3] for path, entry in after.items() if before.get(path) != entry}
    assert new.pop("etc/ld.so.cache")
    links = {f"{LIBS[1:]}/{soname}": name for soname, name in DRIVER.items() if soname != name}
    assert {path: target for path, target in new.items() if isinstance(target, str)} == links
    assert after["etc/ld.so.cache"][0] == "-rw-r--r--"
    assert before.keys() <= after.keys()


def test_it_is_what_ldconfig_makes(image: Path, tmp_path: Path) -> None:
    """The same lines in the same order, and the same links, for an image whose cache was new."""
    theirs = tmp_path / "theirs"
    shutil.copytree(image, theirs, symlinks=True)
    install_driver(theirs)
    ldconfig(theirs, LIBS)
    update(image)
    assert lines(image) == lines(theirs)
    ours = tree(image)
    assert {path: entry[3] for path, entry in tree(theirs).items() if entry[0][0] == "l"} == {  # type: ignore[index]
        path: entry[3]
        for path, entry in ours.items()
        if entry[0][0] == "l"  # type: ignore[index]
    }


def test_a_second_start_writes_nothing(image: Path) -> None:
    """The cache has all rows and the links are right: the file is the same one."""
    update(image)
    before = (image / "etc/ld.so.cache").stat()
    assert update(image, meanwhile=lambda: None) == []
    after = (image / "etc/ld.so.cache").stat()
    assert (after.st_ino, after.st_mtime_ns, after.st_ctime_ns) == (
        before.st_ino,
        before.st_mtime_ns,
        before.st_ctime_ns,
    )


def test_a_library_written_over_in_place_takes_nothing_from_the_driver(image: Path) -> None:
    """Its directory is no newer, and is not searched: the image's row stays as its author left it, and the driver's come first."""
    os.utime(image / "opt/lib", (1, 1))
    library(image / "opt/lib/libother.so.2.1", "libcuda.so.1")
    update(image)
    assert [line.partition(" => ")[2] for line in lines(image) if "libcuda.so.1" in line] == [
        f"{LIBS}/libcuda.so.1"
    ]
    assert [line.partition(" => ")[2] for line in lines(image) if "libother.so.2" in line] == [
        "/opt/lib/libother.so.2"
    ]


def test_an_images_own_library_of_that_name_comes_after_the_drivers(image: Path) -> None:
    """Whatever its cache said: the driver's directory is the first that ldconfig is given."""
    library(image / "opt/lib/libcuda.so.1", "libcuda.so.1")
    ldconfig(image)
    update(image)
    assert [line.partition(" => ")[2] for line in lines(image) if "libcuda.so.1" in line] == [
        f"{LIBS}/libcuda.so.1",
        "/opt/lib/libcuda.so.1",
    ]


def test_a_given_directory_of_the_image_comes_before_the_drivers(image: Path) -> None:
    """CUDA compatibility libraries: in no cache and no configuration, searched because they are given."""
    library(image / "usr/local/cuda/compat/libcuda.so.999.1", "libcuda.so.1")
    update(image, given=("/usr/local/cuda/compat", LIBS))
    found = [line.partition(" => ")[2] for line in lines(image) if "libcuda.so.1" in line]
    assert found == ["/usr/local/cuda/compat/libcuda.so.1", f"{LIBS}/libcuda.so.1"]
    assert os.readlink(image / "usr/local/cuda/compat/libcuda.so.1") == "libcuda.so.999.1"


def test_what_is_no_link_is_kept(image: Path) -> None:
    """A regular file under a SONAME's name stays, and has its row (reference behaviour 6.7)."""
    (image / LIBS[1:] / "libcuda.so.1").write_text("not a link")
    update(image)
    assert (image / LIBS[1:] / "libcuda.so.1").read_text() == "not a link"
    assert f"libcuda.so.1 (libc6,x86-64) => {LIBS}/libcuda.so.1" in lines(image)


def test_an_old_link_is_replaced(image: Path) -> None:
    """That of an earlier driver, or one that leads nowhere."""
    (image / LIBS[1:] / "libcuda.so.1").symlink_to("libcuda.so.470.1")
    update(image)
    assert os.readlink(image / LIBS[1:] / "libcuda.so.1") == "libcuda.so.570.1"


# ---- images with little or nothing


def test_an_image_with_nothing_gets_what_is_needed(tmp_path: Path) -> None:
    """No /etc, no configuration, no cache, no ldconfig (Nix)."""
    root = tmp_path / "empty"
    root.mkdir()
    assert update(root) == []
    assert lines(root) == [
        f"{name} (libc6,x86-64) => {LIBS}/{name}" for name in sorted(DRIVER, reverse=True)
    ]
    assert stat.S_IMODE((root / "etc").stat().st_mode) == 0o755


def test_directories_are_searched_where_there_is_no_cache(image: Path) -> None:
    """All of the configuration, and the system's own; links of the image's libraries are made, too."""
    wanted = lines(image)
    (image / "etc/ld.so.cache").unlink()
    (image / "opt/lib/libother.so.2").unlink()
    library(image / "usr/lib64/libwide.so.1", "libwide.so.1")
    update(image)
    assert {*wanted, "libwide.so.1 (libc6,x86-64) => /usr/lib64/libwide.so.1"} <= set(lines(image))
    assert os.readlink(image / "opt/lib/libother.so.2") == "libother.so.2.1"
    assert os.readlink(image / LIBS[1:] / "libcuda.so.1") == "libcuda.so.570.1", (
        "planned, and found by the search as well"
    )


@pytest.mark.parametrize("damage", [b"", b"garbage" * 10, b"glibc-ld.so.cache1.1" + b"\xff" * 40])
def test_a_damaged_cache_is_made_anew(image: Path, damage: bytes) -> None:
    """No loader would read it."""
    wanted = lines(image)
    (image / "etc/ld.so.cache").write_bytes(damage)
    update(image)
    assert set(wanted) <= set(lines(image))


def test_a_directory_newer_than_the_cache_is_searched(image: Path) -> None:
    """A library copied in after the last ldconfig is found; rows of files that are gone go; other directories stay unread."""
    library(image / "opt/lib/libnew.so.3.1", "libnew.so.3")
    (image / "opt/lib/libother.so.2").unlink()
    (image / "opt/lib/libother.so.2.1").unlink()
    os.utime(image / "opt/lib", ns=(0, (image / "etc/ld.so.cache").stat().st_mtime_ns + 1))
    library(image / LIBS[1:] / "libunseen.so.1", "libunseen.so.1")
    os.utime(image / LIBS[1:], (1, 1))
    update(image)
    found = lines(image)
    assert "libnew.so.3 (libc6,x86-64) => /opt/lib/libnew.so.3" in found
    assert os.readlink(image / "opt/lib/libnew.so.3") == "libnew.so.3.1"
    assert not any("libother" in line or "libunseen" in line for line in found)
    assert any("libz.so.1" in line for line in found)


def test_a_directory_that_was_named_later_is_searched(image: Path) -> None:
    """Whatever its time: of its libraries the cache knows none."""
    library(image / "srv/lib/libsrv.so.1", "libsrv.so.1")
    (image / CONF[1:]).write_text(f"/opt/lib\n{LIBS}\n/srv/lib\n")
    os.utime(image / "srv/lib", (1, 1))
    update(image)
    assert "libsrv.so.1 (libc6,x86-64) => /srv/lib/libsrv.so.1" in lines(image)


def test_capabilities_have_subdirectories(image: Path, tmp_path: Path) -> None:
    """glibc-hwcaps: rows name the subdirectory and the file; the same as ldconfig's, bit for bit."""
    for name in ("x86-64-v2", "x86-64-v3", "other"):
        library(image / LIBS[1:] / "glibc-hwcaps" / name / "libz.so.1.2", "libz.so.1")
    theirs = tmp_path / "theirs"
    shutil.copytree(image, theirs, symlinks=True)
    for root in (image, theirs):
        (root / "etc/ld.so.cache").unlink()
    update(image, {})
    ldconfig(theirs, LIBS)
    assert lines(image) == lines(theirs)
    assert sum("hwcap" in line for line in lines(image)) == 3


@pytest.mark.requires("gcc")
def test_the_isa_level_of_a_library_is_in_its_row(image: Path, tmp_path: Path) -> None:
    """A library in glibc-hwcaps that says what processor it needs: the row's capabilities are ldconfig's number."""
    directory = image / LIBS[1:] / "glibc-hwcaps/x86-64-v3"
    directory.mkdir(parents=True)
    (tmp_path / "x.c").write_text("int x;")
    command = [
        "gcc",
        "-shared",
        "-nostdlib",
        "-fcf-protection=none",
        "-Wl,-z,x86-64-v3",
        "-Wl,-soname,libx.so.1",
    ]
    subprocess.run([*command, "-o", directory / "libx.so.1", tmp_path / "x.c"], check=True)
    theirs = tmp_path / "theirs"
    shutil.copytree(image, theirs, symlinks=True)
    (image / "etc/ld.so.cache").unlink()
    update(image, {})
    ldconfig(theirs, LIBS)
    caches = [(root / "etc/ld.so.cache").read_bytes() for root in (image, theirs)]
    hwcaps = [
        {fields[4] for fields in struct.iter_unpack("<iIIIQ", data[48 : 48 + 24 * data[20]])}
        for data in caches
    ]
    assert hwcaps[0] == hwcaps[1] == {0, 1 << 62 | 2 << 32}


def test_leftovers_of_package_managers_are_no_libraries(image: Path) -> None:
    """dpkg, RPM and prelink write a file under another name first; newer releases of ldconfig pass over those."""
    for name in (
        "liba.so.1.dpkg-new",
        "liba.so.1.dpkg-tmp",
        "liba.so.1;5f",
        "liba.so.1.#prelink#",
        "liba.so.1.#prelink#.a1B2c3",
    ):
        library(image / "opt/lib" / name, "liba.so.1")
    (image / "etc/ld.so.cache").unlink()
    update(image)
    assert not any("liba.so.1" in line for line in lines(image))


@pytest.mark.requires("root")  # for ldconfig
@settings(max_examples=40)
@given(
    st.lists(ENTRIES, max_size=12, unique_by=lambda entry: entry[:2]),
    st.lists(st.sampled_from(LINES), max_size=4),
    st.booleans(),
)
@example(
    [
        ("/usr/lib", "liba.so.1", "/opt/lib/liba.so.1"),
        ("/opt/lib", "liba.so.1.2", "file"),
    ],
    ["/opt/lib"],
    False,
)
def test_any_image_gets_what_ldconfig_gives_it(
    entries: list[tuple[str, str, str]], conf: list[str], merged: bool
) -> None:
    """Small images without a cache: the same rows in the same order, and a link wherever ldconfig makes one.

    Without /usr/lib64, into which Debian's ldconfig does not look.
    """
    with tempfile.TemporaryDirectory() as place:
        ours, theirs = Path(place, "ours"), Path(place, "theirs")
        make_image(ours, entries, conf, merged=merged)
        shutil.copytree(ours, theirs, symlinks=True)
        update(ours, {}, given=(LIBS,))
        ldconfig(theirs, LIBS)
        assert lines(ours) == lines(theirs)
        made = {path: entry[3] for path, entry in tree(theirs).items() if isinstance(entry[3], str)}
        assert made.items() <= {path: entry[3] for path, entry in tree(ours).items()}.items()


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES, errno.EINVAL, errno.EIO])
def test_a_library_that_cannot_be_read_is_not_passed_over(
    image: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """It could be opened, so this is a fault of the machine, and the cache would lack what it should have."""

    def fail(*_arguments: object, **_options: object) -> None:
        raise OSError(number, os.strerror(number))

    (image / "etc/ld.so.cache").unlink()
    monkeypatch.setattr("nvgraft.formats.elf.read_library", fail)
    assert refused(image).startswith(os.strerror(number).lower())


# ---- hostile images


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
def test_what_could_not_be_put_back_is_refused(
    image: Path, name: str, make: Callable[[Path], None], reason: str
) -> None:
    """A FIFO is not opened, a terabyte is not read: one line, at once."""
    path = image / "etc" / name
    path.unlink(missing_ok=True)
    make(path)
    before = path.lstat()
    assert refused(image) == f"/etc/{name}: {reason}"
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
    """What it leads to, on the host or in the image, is neither read into the cache nor written."""
    passwd = Path("/etc/passwd").read_bytes()
    (image / "etc/passwd").write_text("the image's own")
    (image / "etc/ld.so.cache").unlink()
    (image / "etc/ld.so.cache").symlink_to(target)
    update(image)
    assert not (image / "etc/ld.so.cache").is_symlink()
    assert any("libz.so.1" in line for line in lines(image)), "searched, because there was no cache"
    assert (image / "etc/passwd").read_text() == "the image's own"
    assert Path("/etc/passwd").read_bytes() == passwd


def test_follows_the_images_own_etc_inside_the_root(image: Path) -> None:
    """/etc as an absolute link to another directory of the image is that directory, not the host's."""
    before = Path("/etc/ld.so.cache").read_bytes()
    (image / "etc").rename(image / "config")
    (image / "etc").symlink_to("/config")
    update(image)
    assert any("libcuda.so.1" in line for line in listing(image / "config/ld.so.cache"))
    assert Path("/etc/ld.so.cache").read_bytes() == before


def test_what_a_kill_would_leave_is_announced_before(image: Path) -> None:
    """Each thing that changes is in the journal, under a path without links, with what was there."""
    (image / "etc/ld.so.cache").unlink()
    (image / "etc").rename(image / "config")
    (image / "etc").symlink_to("/config")
    (image / "opt/lib/libother.so.2").unlink()
    (image / "opt").rename(image / "srv")
    (image / "opt").symlink_to("srv")
    (image / LIBS[1:] / "libcuda.so.1").symlink_to("libcuda.so.470.1")
    install_driver(image)
    before = tree(image)
    announced: list[Item] = []

    class Told(Journal):
        def announce(self, entries: Iterable[Item]) -> None:
            assert tree(image) == before
            announced.extend(entries)

    update(image, meanwhile=lambda: None, journal=Told())
    after = tree(image)
    changed = {f"/{path}" for path in after if before.get(path) != after[path]}
    assert changed <= {item.path for item in announced}
    assert Item("link", "/srv/lib/libother.so.2", "libother.so.2.1") in announced
    assert Item("absent", "/config/ld.so.cache~") in announced
    assert [item.fields[0] for item in announced if item.kind == "was-link"] == ["libcuda.so.470.1"]


def test_a_link_to_a_cache_is_read_as_the_loader_reads_it(image: Path) -> None:
    """Inside the image, absolute or not: its rows are kept, and the file behind it is not written."""
    (image / "run").mkdir()
    (image / "etc/ld.so.cache").rename(image / "run/cache")
    (image / "etc/ld.so.cache").symlink_to("/run/cache")
    (image / CONF[1:]).unlink()
    before = (image / "run/cache").read_bytes()
    update(image)
    assert "libother.so.2 (libc6,x86-64) => /opt/lib/libother.so.2" in lines(image)
    assert (image / "run/cache").read_bytes() == before


@pytest.mark.parametrize(
    "target", ["/", "../../..", "/etc", "/proc/self/root", "/proc/1/root/usr/lib"]
)
def test_no_directory_outside_is_searched(image: Path, target: str) -> None:
    """The configuration names links that lead out by their text: they lead inside of the image, or nowhere."""
    (image / "out").symlink_to(target)
    (image / CONF[1:]).write_text(
        f"/out\n/out/usr/lib/x86_64-linux-gnu\n/out{os.path.realpath('/usr/lib/x86_64-linux-gnu')}\n"
    )
    (image / "etc/ld.so.cache").unlink()
    update(image)
    found = [line.partition(" => ")[2].rpartition("/")[2] for line in lines(image)]
    assert set(found) <= {*DRIVER, "libz.so.1", "libother.so.2"}


@pytest.mark.parametrize("kind", ["fifo", "sparse"])
def test_a_configuration_that_holds_a_reader_up_is_refused(image: Path, kind: str) -> None:
    """The original's ldconfig would wait or read for ever; nothing is read here."""
    conf = image / CONF[1:]
    conf.unlink()
    if kind == "fifo":
        os.mkfifo(conf)
    else:
        os.truncate(os.open(conf, os.O_CREAT | os.O_WRONLY), 1 << 40)
    assert refused(image).startswith(f"{CONF}: ")


@pytest.mark.parametrize("kind", ["directory", "loop", "device", "include", "long"])
def test_what_cannot_be_read_is_no_configuration(image: Path, kind: str) -> None:
    """The driver is added all the same; of a file that is too long it is said."""
    conf = image / CONF[1:]
    conf.unlink()
    if kind == "directory":
        conf.mkdir()
    elif kind == "loop":
        conf.symlink_to("ld.so.conf")
    elif kind == "device":
        conf.symlink_to("/dev/zero")  # there is no such file in the image
    elif kind == "include":
        os.mkfifo(image / "etc/fifo.conf")
        conf.write_text("include fifo.conf\n")
    else:
        conf.write_text("/opt\n" * 20_000)
    findings = update(image)
    assert [finding.id for finding in findings] == (["ldcache-bounds"] if kind == "long" else [])
    assert any("libcuda.so.1" in line for line in lines(image))


def test_hostile_libraries_are_passed_over(image: Path) -> None:
    """FIFOs, devices by link, empty, huge and broken files under libraries' names."""
    opt = image / "opt/lib"
    os.mkfifo(opt / "libfifo.so.1")
    (opt / "libzero.so.1").symlink_to("/dev/zero")
    (opt / "libempty.so.1").touch()
    os.truncate(os.open(opt / "libsparse.so.1", os.O_CREAT | os.O_WRONLY), 1 << 40)
    (opt / "libcut.so.1").write_bytes((opt / "libother.so.2.1").read_bytes()[:100])
    library(opt / "libslash.so.1", "../../etc/passwd")
    (image / "etc/ld.so.cache").unlink()
    update(image)
    found = [line.partition(" ")[0] for line in lines(image) if "/opt/lib/" in line]
    assert found == ["libother.so.2"]


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        (lambda: Bounds(directories=3), "its ld.so.conf names more directories"),
        (lambda: Bounds(libraries=5), "/opt/lib has more libraries"),
        (lambda: Bounds(seconds=0), f"{LIBS} has more files than can be read in 0 seconds"),
    ],
    ids=["directories", "libraries", "seconds"],
)
def test_a_bound_is_said_and_what_was_there_stays(
    image: Path, monkeypatch: pytest.MonkeyPatch, bounds: Callable[[], Bounds], text: str
) -> None:
    """One warning; the driver's rows and those of the old cache are in the new one."""
    had = lines(image)
    for number in range(10):
        library(image / f"opt/{number}/lib{number}.so.1", f"lib{number}.so.1")
        library(image / f"opt/lib/libmany{number}.so.1", f"libmany{number}.so.1")
    (image / CONF[1:]).write_text(
        "/opt/lib\n" + "".join(f"/opt/{number}\n" for number in range(10))
    )
    os.utime(image / "etc/ld.so.cache", (1, 1))
    monkeypatch.setattr("nvgraft.apply.cache.native.Bounds", bounds)
    (finding,) = update(image)
    assert (finding.id, finding.level) == ("ldcache-bounds", "warning")
    assert text in finding.message
    assert set(had) <= set(lines(image))
    assert any("libcuda.so.1" in line for line in lines(image))


def test_directories_with_very_many_files_have_an_end(
    image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names are counted, libraries or not."""
    monkeypatch.setattr(rootfs_module, "_NAMES_LIMIT", 50)
    for number in range(100):
        (image / f"opt/lib/file{number}").touch()
    os.utime(image / "etc/ld.so.cache", (1, 1))
    (finding,) = update(image)
    assert "more files" in finding.message


def test_the_image_cannot_turn_a_directory_into_a_link(image: Path) -> None:
    """Between the plan and the step the library directory became a link: refused, nothing followed."""
    outside = image.parent / "outside"
    outside.mkdir()

    def swap() -> None:
        (image / LIBS[1:]).rename(image / "moved")
        (image / LIBS[1:]).symlink_to(outside)

    with pytest.raises(Refusal):
        update(image, meanwhile=swap)
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("kind", ["link", "file", "fifo"])
def test_what_appears_under_the_temporary_name_is_not_written(image: Path, kind: str) -> None:
    """Whoever can write to the image puts something there at the last moment: a refusal, and that thing as it was."""
    outside = image.parent / "outside"
    outside.write_text("untouched")
    place = image / "etc/ld.so.cache~"

    class Racing(Journal):
        def announce(self, entries: Iterable[Item]) -> None:
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
    assert os.path.lexists(place), "not ours to remove"
    assert outside.read_text() == "untouched"


def test_a_volume_is_not_written(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a cache nor a link is made where others see it (SECURITY R21); what is right already needs no writing."""
    update(image)
    monkeypatch.setattr(Container, "volume_of", lambda _self, _fd: "/etc")
    update(image, meanwhile=lambda: None)
    (image / "etc/ld.so.cache").unlink()
    assert refused(image).startswith("/etc/ld.so.cache would be made on the volume /etc: ")
    (image / LIBS[1:] / "libcuda.so.1").unlink()
    assert refused(image).startswith(f"{LIBS}/libcuda.so.1 would be made on the volume /etc: ")


# ---- the way back


def test_undo_leaves_the_image_as_it_was(image: Path) -> None:
    """Byte for byte and with its times: the cache, replaced links, a leftover of an earlier run; nothing new stays."""
    (image / LIBS[1:] / "libcuda.so.1").symlink_to("libcuda.so.470.1")
    (image / "etc/ld.so.cache~").write_text("left")
    library(image / "opt/lib/libnew.so.3.1", "libnew.so.3")
    install_driver(image)
    os.utime(image / "etc/ld.so.cache", (1, 1))
    (image / "etc/ld.so.cache").chmod(0o640)
    before = tree(image)
    undo = UndoLog()
    update(image, undo=undo, meanwhile=lambda: None)
    assert tree(image) != before
    assert undo.run() == []
    assert tree(image) == before


def test_undo_removes_what_was_not_there(tmp_path: Path) -> None:
    """/etc and the cache in it, too."""
    root = tmp_path / "empty"
    root.mkdir()
    install_driver(root)
    before = tree(root)
    undo = UndoLog()
    update(root, undo=undo, meanwhile=lambda: None)
    assert undo.run() == []
    assert tree(root) == before


@pytest.mark.parametrize(
    "call", ["open", "write", "fchmod", "rename", "symlink", "mkdir", "unlink"]
)
def test_each_failing_call_is_a_refusal_and_can_be_undone(
    image: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """No space, at any point: the reference's words, the cause, and the image as it was."""
    install_driver(image)
    (image / LIBS[1:] / "libcuda.so.1").symlink_to("libcuda.so.470.1")
    if call == "mkdir":
        shutil.rmtree(image / "etc")
    before = tree(image)
    real = getattr(os, call)

    def failing(*arguments: object, **named: object) -> object:
        if call != "open" or (isinstance(arguments[1], int) and arguments[1] & os.O_CREAT):
            monkeypatch.setattr(posix, call, real)
            raise OSError(28, "No space left on device")
        return real(*arguments, **named)

    monkeypatch.setattr(posix, call, failing)
    undo = UndoLog()
    with pytest.raises(Refusal) as caught:
        update(image, undo=undo, meanwhile=lambda: None)
    assert (
        "failed with error code: 1 | the loader cache was not written: no space left on device"
        in caught.value.line()
    )
    assert undo.run() == []
    assert tree(image) == before


def test_what_others_put_in_a_links_place_is_not_removed(image: Path) -> None:
    """The undo takes back what the step made, not what came after it."""
    undo = UndoLog()
    update(image, undo=undo)
    (image / LIBS[1:] / "libcuda.so.1").unlink()
    (image / LIBS[1:] / "libcuda.so.1").write_text("somebody else's")
    assert undo.run() == []
    assert (image / LIBS[1:] / "libcuda.so.1").read_text() == "somebody else's"


@pytest.mark.parametrize("moment", ["before it is renamed", "when all is done"])
def test_a_cache_that_somebody_has_moved_out_of_the_undo_s_sight_is_emptied_and_named(
    image: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names libraries that are gone then; where it is now cannot be known."""
    undo = UndoLog()
    left: list[str] = []
    close = NativeCache.close

    def steal(name: str) -> None:
        os.replace(image / "etc" / name, image / "stolen")

    def stolen_from(source: str, *_: str, **__: int) -> None:
        steal(source)
        raise FileNotFoundError(2, "No such file or directory")

    def give_up(step: NativeCache) -> None:
        if moment == "when all is done":
            steal("ld.so.cache")
        left.extend(undo.run())
        close(step)

    before = (image / "etc/ld.so.cache").read_bytes()
    monkeypatch.setattr(NativeCache, "close", give_up)
    if moment == "before it is renamed":
        monkeypatch.setattr(posix, "rename", stolen_from)
        with pytest.raises(Refusal):
            update(image, undo=undo)
    else:
        update(image, undo=undo)
    assert left == ["/etc/ld.so.cache (somebody has moved it away)"]
    assert (image / "stolen").read_bytes() == b""
    if moment == "before it is renamed":
        assert (image / "etc/ld.so.cache").read_bytes() == before


def test_no_descriptor_is_left_open(image: Path) -> None:
    """Whatever the step looked into."""
    os.utime(image / "etc/ld.so.cache", (1, 1))
    update(image)
    os.utime(image / "etc/ld.so.cache", (1, 1))
    with nothing_stays_open():
        update(image)
        os.close(container_at(image).rootfs_fd)
