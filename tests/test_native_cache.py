"""The loader cache step without ldconfig: the same result as ldconfig's."""

import errno
import os
import shutil
import stat
import struct
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ldcaches import (
    CONF,
    DRIVER,
    ENTRIES,
    LIBS,
    LINES,
    add_entry,
    cache_lines,
    container_at,
    image_with_cache,
    install_driver,
    ldconfig,
    library,
    make_image,
    refused_update,
    tree,
    update,
)
from nvgraft.apply.cache.after_files import CacheAfterFiles
from nvgraft.apply.journal import Journal
from nvgraft.apply.undo import UndoLog
from nvgraft.formats.tree import Bounds
from nvgraft.plan.actions import Plan, UpdateLoaderCache, Why

pytestmark = pytest.mark.requires("ldconfig", "x86_64")


@pytest.fixture
def image(tmp_path: Path) -> Path:
    return image_with_cache(tmp_path / "image")


# ---- the driver's libraries


def test_the_driver_is_added_to_the_images_cache(image: Path) -> None:
    """Each driver library gets a row and a link, the rows of the image's cache stay, and nothing
    else changes.
    """
    before, old_lines = tree(image), cache_lines(image)
    assert update(image) == []
    assert cache_lines(image) == sorted(cache_lines(image), key=cache_lines(image).index)
    assert set(cache_lines(image)) == {
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
    assert cache_lines(image) == cache_lines(theirs)
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
    assert [line.partition(" => ")[2] for line in cache_lines(image) if "libcuda.so.1" in line] == [
        f"{LIBS}/libcuda.so.1"
    ]
    assert [
        line.partition(" => ")[2] for line in cache_lines(image) if "libother.so.2" in line
    ] == ["/opt/lib/libother.so.2"]


def test_the_images_library_of_a_drivers_name_comes_second(image: Path) -> None:
    """An image's library of a driver library's SONAME comes after the driver's, whose directory
    ldconfig gets first.
    """
    library(image / "opt/lib/libcuda.so.1", "libcuda.so.1")
    ldconfig(image)
    update(image)
    assert [line.partition(" => ")[2] for line in cache_lines(image) if "libcuda.so.1" in line] == [
        f"{LIBS}/libcuda.so.1",
        "/opt/lib/libcuda.so.1",
    ]


def test_a_given_directory_of_the_image_comes_before_the_drivers(image: Path) -> None:
    """CUDA compatibility libraries in a given directory come before the driver's, though neither
    cache nor configuration has them.
    """
    library(image / "usr/local/cuda/compat/libcuda.so.999.1", "libcuda.so.1")
    update(image, given=("/usr/local/cuda/compat", LIBS))
    paths = [line.partition(" => ")[2] for line in cache_lines(image) if "libcuda.so.1" in line]
    assert paths == ["/usr/local/cuda/compat/libcuda.so.1", f"{LIBS}/libcuda.so.1"]
    assert os.readlink(image / "usr/local/cuda/compat/libcuda.so.1") == "libcuda.so.999.1"


def test_a_file_with_a_sonames_name_is_kept(image: Path) -> None:
    """A regular file with a SONAME's name stays and has its row (reference behaviour 6.7)."""
    (image / LIBS[1:] / "libcuda.so.1").write_text("not a link")
    update(image)
    assert (image / LIBS[1:] / "libcuda.so.1").read_text() == "not a link"
    assert f"libcuda.so.1 (libc6,x86-64) => {LIBS}/libcuda.so.1" in cache_lines(image)


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
    assert cache_lines(root) == [
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
    wide = [line for line in cache_lines(image) if "lib64/" in line]
    assert wide == ([] if debian else [
        "libwider.so.1 (libc6,x86-64) => /lib64/libwider.so.1",
        "libwide.so.1 (libc6,x86-64) => /usr/lib64/libwide.so.1",
    ])  # fmt: skip
    (image / "etc/ld.so.cache").unlink()
    (image / CONF[1:]).write_text("/usr/lib64\n")
    update(image)
    assert any("/usr/lib64/libwide.so.1" in line for line in cache_lines(image))


def test_without_a_cache_all_directories_are_searched(image: Path) -> None:
    """Without a cache the configured and the system's directories are searched, and missing links
    are created.
    """
    old_lines = cache_lines(image)
    (image / "etc/ld.so.cache").unlink()
    (image / "opt/lib/libother.so.2").unlink()
    library(image / "usr/lib64/libwide.so.1", "libwide.so.1")
    update(image)
    assert {*old_lines, "libwide.so.1 (libc6,x86-64) => /usr/lib64/libwide.so.1"} <= set(
        cache_lines(image)
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
    old_lines = cache_lines(image)
    (image / "etc/ld.so.cache").write_bytes(damage)
    update(image)
    assert set(old_lines) <= set(cache_lines(image))


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
    new_lines = cache_lines(image)
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
    assert "libsrv.so.1 (libc6,x86-64) => /srv/lib/libsrv.so.1" in cache_lines(image)


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
    assert cache_lines(image) == cache_lines(theirs)
    assert sum("hwcap" in line for line in cache_lines(image)) == 3


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
    assert not any("liba.so.1" in line for line in cache_lines(image))


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
        assert cache_lines(ours) == cache_lines(theirs)
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
        assert cache_lines(ours) == cache_lines(theirs)
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
    assert {line.split()[0] for line in cache_lines(image)} >= {*DRIVER, "libk7.so.1"}
    library(image / LIBS[1:] / "libk7.so.1.0", "libchanged.so.1")
    later = (image / "etc/ld.so.cache").stat().st_mtime + 10
    os.utime(image / LIBS[1:] / "libk7.so.1.0", (later, later))
    update_folders(image, LIBS)
    assert "libchanged.so.1" in {line.split()[0] for line in cache_lines(image)}


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
    assert refused_update(image).startswith(os.strerror(number).lower())
