"""The loader cache step without ldconfig: the same result as ldconfig's, hostile images, and the
undo.
"""

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
    add_entry,
    container_at,
    install_driver,
    ldconfig,
    library,
    listing,
    make_image,
    tree,
    update,
)
from nvgraft.apply.cache.after_files import CacheAfterFiles
from nvgraft.apply.cache.native import NativeCache
from nvgraft.apply.journal import Journal, JournalEntry
from nvgraft.apply.undo import UndoLog
from nvgraft.base.errors import Refusal
from nvgraft.container.container import Container
from nvgraft.formats.tree import Bounds, OutOfBounds
from nvgraft.plan.actions import Plan, UpdateLoaderCache, Why

pytestmark = pytest.mark.requires("ldconfig", "x86_64")

CONF = "/etc/ld.so.conf"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An image with two libraries in its search path and ldconfig's cache of them."""
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
        "nvgraft: ldcache error: process /sbin/ldconfig failed with error code: 1 | the"
        " loader cache was not written: "
    )
    return line.partition(" | the loader cache was not written: ")[2]


# ---- the driver's libraries


def test_the_driver_is_added_to_the_images_cache(image: Path) -> None:
    """Each driver library gets a row and a link, the rows of the image's cache stay, and nothing
    else changes.
    """
    before, old_lines = tree(image), lines(image)
    assert update(image) == []
    assert lines(image) == sorted(lines(image), key=lines(image).index)
    assert set(lines(image)) == {
        *old_lines,
        *(f"{soname} (libc6,x86-64) => {LIBS}/{soname}" for soname in DRIVER),
    }
    after = tree(image)
    new = {path: entry[3] for path, entry in after.items() if before.get(path) != entry}
    assert new.pop("etc/ld.so.cache")
    links = {f"{LIBS[1:]}/{soname}": name for soname, name in DRIVER.items() if soname != name}
    assert {path: target for path, target in new.items() if isinstance(target, str)} == links
    assert after["etc/ld.so.cache"][0] == "-rw-r--r--"
    assert before.keys() <= after.keys()


def test_the_result_equals_ldconfigs(image: Path, tmp_path: Path) -> None:
    """For an image with an up-to-date cache the lines, their order and the links equal
    ldconfig's.
    """
    theirs = tmp_path / "theirs"
    shutil.copytree(image, theirs, symlinks=True)
    install_driver(theirs)
    ldconfig(theirs, LIBS)
    update(image)
    assert lines(image) == lines(theirs)
    ours = tree(image)
    links = [
        {path: entry[3] for path, entry in entries.items() if isinstance(entry[3], str)}
        for entries in (tree(theirs), ours)
    ]
    assert links[0] == links[1]


def test_a_second_start_writes_nothing(image: Path) -> None:
    """If all rows and links are right, a second start does not write the cache."""
    update(image)
    before = (image / "etc/ld.so.cache").stat()
    assert update(image, meanwhile=lambda: None) == []
    after = (image / "etc/ld.so.cache").stat()
    assert (after.st_ino, after.st_mtime_ns, after.st_ctime_ns) == (
        before.st_ino,
        before.st_mtime_ns,
        before.st_ctime_ns,
    )


def test_a_library_overwritten_in_place_does_not_replace_the_drivers(image: Path) -> None:
    """A library overwritten in place leaves its directory's time, so the directory is not searched:
    its old row stays behind the driver's rows.
    """
    os.utime(image / "opt/lib", (1, 1))
    library(image / "opt/lib/libother.so.2.1", "libcuda.so.1")
    update(image)
    assert [line.partition(" => ")[2] for line in lines(image) if "libcuda.so.1" in line] == [
        f"{LIBS}/libcuda.so.1"
    ]
    assert [line.partition(" => ")[2] for line in lines(image) if "libother.so.2" in line] == [
        "/opt/lib/libother.so.2"
    ]


def test_the_images_library_of_a_drivers_name_comes_second(image: Path) -> None:
    """An image's library of a driver library's SONAME comes after the driver's, whose directory
    ldconfig gets first.
    """
    library(image / "opt/lib/libcuda.so.1", "libcuda.so.1")
    ldconfig(image)
    update(image)
    assert [line.partition(" => ")[2] for line in lines(image) if "libcuda.so.1" in line] == [
        f"{LIBS}/libcuda.so.1",
        "/opt/lib/libcuda.so.1",
    ]


def test_a_given_directory_of_the_image_comes_before_the_drivers(image: Path) -> None:
    """CUDA compatibility libraries in a given directory come before the driver's, though neither
    cache nor configuration has them.
    """
    library(image / "usr/local/cuda/compat/libcuda.so.999.1", "libcuda.so.1")
    update(image, given=("/usr/local/cuda/compat", LIBS))
    paths = [line.partition(" => ")[2] for line in lines(image) if "libcuda.so.1" in line]
    assert paths == ["/usr/local/cuda/compat/libcuda.so.1", f"{LIBS}/libcuda.so.1"]
    assert os.readlink(image / "usr/local/cuda/compat/libcuda.so.1") == "libcuda.so.999.1"


def test_a_file_with_a_sonames_name_is_kept(image: Path) -> None:
    """A regular file with a SONAME's name stays and has its row (reference behaviour 6.7)."""
    (image / LIBS[1:] / "libcuda.so.1").write_text("not a link")
    update(image)
    assert (image / LIBS[1:] / "libcuda.so.1").read_text() == "not a link"
    assert f"libcuda.so.1 (libc6,x86-64) => {LIBS}/libcuda.so.1" in lines(image)


def test_an_old_link_is_replaced(image: Path) -> None:
    """A SONAME link of an earlier driver is replaced."""
    (image / LIBS[1:] / "libcuda.so.1").symlink_to("libcuda.so.470.1")
    update(image)
    assert os.readlink(image / LIBS[1:] / "libcuda.so.1") == "libcuda.so.570.1"


# ---- images with little or nothing


def test_an_empty_image_gets_etc_and_a_cache(tmp_path: Path) -> None:
    """An image without /etc, configuration, cache and ldconfig (Nix) gets /etc and a cache."""
    root = tmp_path / "empty"
    root.mkdir()
    assert update(root) == []
    assert lines(root) == [
        f"{name} (libc6,x86-64) => {LIBS}/{name}" for name in sorted(DRIVER, reverse=True)
    ]
    assert stat.S_IMODE((root / "etc").stat().st_mode) == 0o755


@pytest.mark.parametrize("debian", [True, False])
def test_a_debian_image_is_not_searched_below_lib64(image: Path, debian: bool) -> None:
    """Without a cache, /lib64 and /usr/lib64 are searched in other images than Debian's, as each
    image's own ldconfig and loader do it. A directory that ld.so.conf names is searched anyway.
    """
    (image / "etc/ld.so.cache").unlink()
    if debian:
        (image / "etc/debian_version").write_text("12.5\n")
    library(image / "usr/lib64/libwide.so.1", "libwide.so.1")
    library(image / "lib64/libwider.so.1", "libwider.so.1")
    update(image)
    wide = [line for line in lines(image) if "lib64/" in line]
    assert wide == ([] if debian else [
        "libwider.so.1 (libc6,x86-64) => /lib64/libwider.so.1",
        "libwide.so.1 (libc6,x86-64) => /usr/lib64/libwide.so.1",
    ])  # fmt: skip
    (image / "etc/ld.so.cache").unlink()
    (image / CONF[1:]).write_text("/usr/lib64\n")
    update(image)
    assert any("/usr/lib64/libwide.so.1" in line for line in lines(image))


def test_without_a_cache_all_directories_are_searched(image: Path) -> None:
    """Without a cache the configured and the system's directories are searched, and missing links
    are created.
    """
    old_lines = lines(image)
    (image / "etc/ld.so.cache").unlink()
    (image / "opt/lib/libother.so.2").unlink()
    library(image / "usr/lib64/libwide.so.1", "libwide.so.1")
    update(image)
    assert {*old_lines, "libwide.so.1 (libc6,x86-64) => /usr/lib64/libwide.so.1"} <= set(
        lines(image)
    )
    assert os.readlink(image / "opt/lib/libother.so.2") == "libother.so.2.1"
    assert os.readlink(image / LIBS[1:] / "libcuda.so.1") == "libcuda.so.570.1", (
        "also planned as a link"
    )


@pytest.mark.parametrize("damage", [b"", b"garbage" * 10, b"glibc-ld.so.cache1.1" + b"\xff" * 40])
def test_a_damaged_cache_is_replaced(image: Path, damage: bytes) -> None:
    """A damaged cache, which no loader reads, is replaced by one from a search of all
    directories.
    """
    old_lines = lines(image)
    (image / "etc/ld.so.cache").write_bytes(damage)
    update(image)
    assert set(old_lines) <= set(lines(image))


def test_a_directory_newer_than_the_cache_is_searched(image: Path) -> None:
    """A directory newer than the cache is searched: new libraries get rows and removed ones lose
    theirs. Other directories are not read.
    """
    library(image / "opt/lib/libnew.so.3.1", "libnew.so.3")
    (image / "opt/lib/libother.so.2").unlink()
    (image / "opt/lib/libother.so.2.1").unlink()
    os.utime(image / "opt/lib", ns=(0, (image / "etc/ld.so.cache").stat().st_mtime_ns + 1))
    library(image / LIBS[1:] / "libunseen.so.1", "libunseen.so.1")
    os.utime(image / LIBS[1:], (1, 1))
    update(image)
    new_lines = lines(image)
    assert "libnew.so.3 (libc6,x86-64) => /opt/lib/libnew.so.3" in new_lines
    assert os.readlink(image / "opt/lib/libnew.so.3") == "libnew.so.3.1"
    assert not any("libother" in line or "libunseen" in line for line in new_lines)
    assert any("libz.so.1" in line for line in new_lines)


def test_a_newly_configured_directory_is_searched(image: Path) -> None:
    """A configured directory that the cache has no library of is searched, whatever its time."""
    library(image / "srv/lib/libsrv.so.1", "libsrv.so.1")
    (image / CONF[1:]).write_text(f"/opt/lib\n{LIBS}\n/srv/lib\n")
    os.utime(image / "srv/lib", (1, 1))
    update(image)
    assert "libsrv.so.1 (libc6,x86-64) => /srv/lib/libsrv.so.1" in lines(image)


def test_libraries_in_glibc_hwcaps_get_rows(image: Path, tmp_path: Path) -> None:
    """Rows of libraries in glibc-hwcaps name subdirectory and file, and equal ldconfig's."""
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
    """The row of a library in glibc-hwcaps has the ISA level that the library needs, as
    ldconfig's.
    """
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


def test_temporary_files_of_package_managers_are_skipped(image: Path) -> None:
    """Temporary files of dpkg, RPM and prelink get no rows, as in newer releases of ldconfig."""
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


@pytest.mark.requires("root")  # ldconfig needs it
@settings(max_examples=40)
@given(
    st.lists(ENTRIES, max_size=12, unique_by=lambda entry: entry[:2]),
    st.lists(st.sampled_from(LINES), max_size=4),
    st.booleans(),
)
@example(
    [("/usr/lib", "liba.so.1", "/opt/lib/liba.so.1"), ("/opt/lib", "liba.so.1.2", "file")],
    ["/opt/lib"],
    False,
)
@example(
    [("/usr/lib", "liba.so.1.2", "/opt/lib/liba.so.1"), ("/opt/lib", "liba.so.1.2", "file")],
    ["/opt/lib"],
    False,
)
@example(
    [
        ("/usr/lib", "liba.so.1", "/opt/lib/liba.so.1"),
        ("/opt/lib", "liba.so.1", "text"),
        ("/opt/lib", "liba.so.1.2", "file"),
    ],
    ["/opt/lib"],
    False,
)
@example(
    [
        ("/opt/lib", "liba.so.1.2", "file"),
        ("/opt/lib/glibc-hwcaps/v9", "liba.so.1", "/opt/lib/liba.so.1"),
        ("/opt/lib/glibc-hwcaps/v9", "liba.so.1.2", "liba.so.1"),
    ],
    ["/opt/lib"],
    False,
)
def test_any_image_gets_what_ldconfig_gives_it(
    entries: list[tuple[str, str, str]], conf: list[str], merged: bool
) -> None:
    """A small image without a cache gets ldconfig's rows in ldconfig's order, and every link that
    ldconfig creates.

    /usr/lib64 is left out, because Debian's ldconfig does not search it.
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


# ---- folders of CDI edits, whose libraries are mounted before the step


def update_folders(root: Path, *folders: str, bounds: Bounds | None = None) -> None:
    """Run the step of nvgraft-cdi-hook for folders that the image's ld.so.conf has."""
    container = container_at(root)
    container.bounds = bounds or container.bounds
    action = UpdateLoaderCache(folders, Why("", "", ""), searched=folders)
    step = CacheAfterFiles("/sbin/ldconfig")
    step.prepare()
    try:
        step.survey(container, action)
        step.update(container, Plan("inject", ""), action, UndoLog(), Journal())
    finally:
        step.close()
        os.close(container.rootfs_fd)


@pytest.mark.requires("root")  # ldconfig needs it
@settings(max_examples=40)
@given(
    st.lists(ENTRIES, max_size=10, unique_by=lambda entry: entry[:2]),
    st.lists(ENTRIES, max_size=6, unique_by=lambda entry: entry[:2]),
)
@example(
    [(LIBS, "liba.so.1.2", "file"), (LIBS, "liba.so", "liba.so.1")],
    [(LIBS, "liba.so.1.10", "file")],
)
@example([(LIBS, "liba.so.1.10", "file")], [(LIBS, "liba.so", "liba.so.1.10")])
@example([("/usr/lib", "liba.so.1.2", "file"), ("/usr/lib", "liba.so", "liba.so.1")], [])
@example([(LIBS, "liba.so.1", "nameless")], [(LIBS, "liba.so.1.2", "liba.so.1")])
@example([(LIBS, "liba.so.1.2", "nameless")], [(LIBS, "liba.so.1", "liba.so.1.2")])
def test_what_is_added_to_an_image_gets_what_ldconfig_gives_it(
    entries: list[tuple[str, str, str]], added: list[tuple[str, str, str]]
) -> None:
    """Libraries that come into a folder of an image with a cache get ldconfig's rows, in its order,
    although files that the cache knows are not read again.

    In the image's other directories ldconfig ran twice: its first run makes links, of which only
    the next one lists what leads to them. A start searches the folder alone.
    """
    with tempfile.TemporaryDirectory() as place:
        ours, theirs = Path(place, "ours"), Path(place, "theirs")
        others = [entry for entry in entries if entry[0] != LIBS]
        make_image(ours, others, [LIBS], merged=False)
        ldconfig(ours)
        for entry in entries:
            if entry not in others:
                add_entry(ours, *entry)
        ldconfig(ours)
        os.utime(ours / "etc/ld.so.cache", (2_000_000_000, 2_000_000_000))
        for directory, name, kind in added:
            path = ours / directory[1:] / name
            if directory == LIBS and not path.exists() and not path.is_symlink():
                add_entry(ours, directory, name, kind)
        shutil.copytree(ours, theirs, symlinks=True)
        update_folders(ours, LIBS)
        ldconfig(theirs)
        assert lines(ours) == lines(theirs)
        made = {path: entry[3] for path, entry in tree(theirs).items() if isinstance(entry[3], str)}
        assert made.items() <= {path: entry[3] for path, entry in tree(ours).items()}.items()


def test_a_file_that_the_cache_knows_is_not_read(image: Path) -> None:
    """A folder with known libraries costs the reading of the new ones; one that was changed since
    is read.
    """
    for number in range(30):
        library(image / LIBS[1:] / f"libk{number}.so.1.0", f"libk{number}.so.1")
    ldconfig(image)
    install_driver(image)
    update_folders(image, LIBS, bounds=Bounds(libraries=len(DRIVER)))
    assert {line.split()[0] for line in lines(image)} >= {*DRIVER, "libk7.so.1"}
    library(image / LIBS[1:] / "libk7.so.1.0", "libchanged.so.1")
    later = (image / "etc/ld.so.cache").stat().st_mtime + 10
    os.utime(image / LIBS[1:] / "libk7.so.1.0", (later, later))
    update_folders(image, LIBS)
    assert "libchanged.so.1" in {line.split()[0] for line in lines(image)}


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES, errno.EINVAL, errno.EIO])
def test_a_library_that_cannot_be_read_is_fatal(
    image: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """A library that was opened but cannot be read is a fault of the machine, and refused: the
    cache would lack its row.
    """

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
    """A cache that is a link is replaced. Its target, on the host or in the image, is neither read
    nor written.
    """
    passwd = Path("/etc/passwd").read_bytes()
    (image / "etc/passwd").write_text("the image's own")
    (image / "etc/ld.so.cache").unlink()
    (image / "etc/ld.so.cache").symlink_to(target)
    update(image)
    assert not (image / "etc/ld.so.cache").is_symlink()
    assert any("libz.so.1" in line for line in lines(image)), "the directories were searched"
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
    assert "libother.so.2 (libc6,x86-64) => /opt/lib/libother.so.2" in lines(image)
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
    names = [line.partition(" => ")[2].rpartition("/")[2] for line in lines(image)]
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
    assert refused(image).startswith(f"{CONF}: ")


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
    assert any("libcuda.so.1" in line for line in lines(image))


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
    sonames = [line.partition(" ")[0] for line in lines(image) if "/opt/lib/" in line]
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
    old_lines = lines(image)
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
    assert set(old_lines) <= set(lines(image))
    assert any("libcuda.so.1" in line for line in lines(image))


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
    assert any("libnew.so.3" in line for line in lines(image))
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
    assert refused(image).startswith("/etc/ld.so.cache would be made on the volume /etc: ")
    (image / LIBS[1:] / "libcuda.so.1").unlink()
    assert refused(image).startswith(f"{LIBS}/libcuda.so.1 would be made on the volume /etc: ")


# ---- the way back


def test_undo_leaves_the_image_as_it_was(image: Path) -> None:
    """The undo restores the cache, replaced links and a leftover of an earlier run, with contents
    and times, and removes the rest.
    """
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


def test_undo_removes_a_new_etc(tmp_path: Path) -> None:
    """The undo removes a new /etc and the cache in it."""
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
def test_each_failing_call_is_refused_and_undone(
    image: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """If any call fails for lack of space, the refusal has the reference's words and the cause, and
    the undo restores the image.
    """
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


def test_undo_keeps_a_foreign_file_in_a_links_place(image: Path) -> None:
    """The undo does not remove a file that replaced a link of the step."""
    undo = UndoLog()
    update(image, undo=undo)
    (image / LIBS[1:] / "libcuda.so.1").unlink()
    (image / LIBS[1:] / "libcuda.so.1").write_text("somebody else's")
    assert undo.run() == []
    assert (image / LIBS[1:] / "libcuda.so.1").read_text() == "somebody else's"


@pytest.mark.parametrize("moment", ["before it is renamed", "when all is done"])
def test_undo_empties_and_names_a_cache_that_was_moved_away(
    image: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache that was moved to an unknown place names libraries that are gone after the undo, so
    it is emptied, and its old path is reported.
    """
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
    assert left == ["/etc/ld.so.cache (it was moved or linked elsewhere)"]
    assert (image / "stolen").read_bytes() == b""
    if moment == "before it is renamed":
        assert (image / "etc/ld.so.cache").read_bytes() == before


def test_no_descriptor_is_left_open(image: Path) -> None:
    """The step closes every descriptor that it opens."""
    os.utime(image / "etc/ld.so.cache", (1, 1))
    update(image)
    os.utime(image / "etc/ld.so.cache", (1, 1))
    with nothing_stays_open():
        update(image)
        os.close(container_at(image).rootfs_fd)
