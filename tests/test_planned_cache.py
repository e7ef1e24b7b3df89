"""The planned loader cache is byte for byte the one that the hook writes, from a directory and from
an archive.
"""

import io
import os
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ldcaches import (
    ENTRIES,
    LIBS,
    LINES,
    add_entry,
    install_driver,
    ldconfig,
    library,
    make_image,
    plan_for,
    update,
)
from nvgraft.formats.ldcache_table import Table
from nvgraft.formats.tree import Bounds, LiveTree, Tree, open_tree_at
from nvgraft.host.components import Host
from nvgraft.host.gpus import DriverReport
from nvgraft_cli.case.dynamic import read_dynamic
from nvgraft_cli.case.image.tree import ImageLayer, ImageTree
from nvgraft_cli.case.planned_tree import PlannedTree

pytestmark = pytest.mark.requires("ldconfig", "x86_64")

HWCAPS = f"{LIBS}/glibc-hwcaps/x86-64-v3"


def archive(root: Path) -> ImageTree:
    """Return the directory as an image of one layer."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as out:
        out.add(root, ".")
    return ImageTree(
        "image", [ImageLayer("layer", 0, lambda _: io.BytesIO(data.getvalue()))], Bounds()
    )


def host_of(driver: LiveTree) -> Host:
    """Return a host with these files and without a GPU."""
    return Host(
        name="host",
        root="/",
        tree=driver,
        entries=[],
        report=DriverReport("570.1", "12.8", ()),
        majors={},
        machine="x86_64",
    )


def planned(image: Tree, root: Path, driver: LiveTree) -> PlannedTree:
    """Return the image with the planned driver."""
    return PlannedTree(image, plan_for(root), host_of(driver))


def check(root: Path) -> None:
    """Check that the planned cache and links of an image are those that the hook writes."""
    with tempfile.TemporaryDirectory() as place:
        install_driver(Path(place))
        driver = open_tree_at(place)
        live = open_tree_at(str(root))
        trees = [planned(live, root, driver), planned(archive(root), root, driver)]
        tables = [tree.loader_cache for tree in trees]
        before = {path: os.readlink(path) for path in root.rglob("*") if path.is_symlink()}
        update(root)
        written = (root / "etc/ld.so.cache").read_bytes()
        made = {path: os.readlink(path) for path in root.rglob("*") if path.is_symlink()}
        for tree, table in zip(trees, tables, strict=True):
            assert isinstance(table, Table)
            # A cache that has all rows already is not written again.
            assert table.data() == written or (Table.parse(written).data() == table.data())
            for path, target in made.items():
                if before.get(path) != target:
                    node = tree.lstat("/" + str(path.relative_to(root)))
                    assert node is not None
                    assert node.target == target
        driver.close()
        live.close()


def age(root: Path, seconds: int) -> None:
    """Make every file of an image older than its cache."""
    for path in [root, *root.rglob("*")]:
        os.utime(path, (seconds, seconds), follow_symlinks=False)
    if (root / "etc/ld.so.cache").exists():
        os.utime(root / "etc/ld.so.cache", (seconds + 10, seconds + 10))


@pytest.mark.requires("root")  # ldconfig needs it
@settings(max_examples=60)
@given(
    st.lists(ENTRIES, max_size=10, unique_by=lambda entry: entry[:2]),
    st.lists(st.sampled_from(LINES), max_size=4),
    st.booleans(),
    st.booleans(),
    st.lists(ENTRIES, max_size=3, unique_by=lambda entry: entry[:2]),
)
def test_any_images_cache_is_planned_as_written(
    entries: list[tuple[str, str, str]],
    conf: list[str],
    merged: bool,
    cached: bool,
    later: list[tuple[str, str, str]],
) -> None:
    """For small images, with or without a cache, with libraries that are newer than it, the plan
    equals the result.
    """
    with tempfile.TemporaryDirectory() as place:
        root = Path(place, "image")
        make_image(root, entries, conf, merged=merged)
        if cached:
            ldconfig(root)
        age(root, 1_700_000_000)
        for entry in later:
            if not os.path.lexists(root / entry[0][1:] / entry[1]):
                add_entry(root, *entry)
        check(root)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """An image with libraries in plain directories and in glibc-hwcaps, all in its cache."""
    root = tmp_path / "image"
    (root / "etc").mkdir(parents=True)
    (root / "etc/ld.so.conf").write_text("/opt/lib\n")
    library(root / "opt/lib/libother.so.2.1", "libother.so.2")
    library(root / LIBS[1:] / "libz.so.1.2", "libz.so.1")
    library(root / HWCAPS[1:] / "libz.so.1.2", "libz.so.1")
    library(root / "usr/lib/libnarrow.so.1", "libnarrow.so.1", bits=32, machine="EM_386")
    ldconfig(root)
    age(root, 1_700_000_000)
    return root


def rows(root: Path, name: str) -> list[tuple[str, int, str | None]]:
    with tempfile.TemporaryDirectory() as place:
        install_driver(Path(place))
        driver, live = open_tree_at(place), open_tree_at(str(root))
        table = planned(live, root, driver).loader_cache
        driver.close()
        live.close()
    assert table is not None
    return [
        (row.path.decode(), row.flags, None if row.hwcaps is None else row.hwcaps.decode())
        for row in table.lookup(name.encode())
    ]


def test_the_planned_cache_has_capabilities_and_flags(image: Path) -> None:
    """The planned cache has the rows of the image's ldconfig, with capabilities and flags, and the
    driver's rows.
    """
    assert rows(image, "libz.so.1") == [
        (f"{HWCAPS}/libz.so.1.2", 0x303, "x86-64-v3"),
        (f"{LIBS}/libz.so.1", 0x303, None),
    ]
    assert rows(image, "libnarrow.so.1") == [("/usr/lib/libnarrow.so.1", 0x003, None)]
    assert rows(image, "libcuda.so.1") == [(f"{LIBS}/libcuda.so.1", 0x303, None)]
    assert rows(image, "libnone.so.1") == []
    check(image)


def test_an_image_is_read_once_for_several_plans(
    image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each plan for the same archive has the same cache and facts; libraries are read once."""
    install_driver(tmp_path / "driver")
    tree, driver = archive(image), open_tree_at(str(tmp_path / "driver"))
    trees = [planned(tree, image, driver) for _ in range(2)]
    path = "/opt/lib/libother.so.2.1"
    facts, table = read_dynamic(trees[0], path), trees[0].loader_cache
    monkeypatch.setattr(ImageTree, "visit", lambda *_: pytest.fail("the archive is read again"))
    other = trees[1].loader_cache
    assert read_dynamic(trees[1], path) == facts
    driver.close()
    assert table is not None
    assert other is not None
    assert other.data() == table.data()


def test_a_library_of_the_image_comes_after_the_drivers(image: Path) -> None:
    """A library of the image comes after the driver's library of the same SONAME."""
    library(image / "opt/lib/libcuda.so.1", "libcuda.so.1")
    ldconfig(image)
    assert [path for path, _, _ in rows(image, "libcuda.so.1")] == [
        f"{LIBS}/libcuda.so.1",
        "/opt/lib/libcuda.so.1",
    ]
    check(image)


def test_rows_of_removed_libraries_go_if_the_directory_is_newer(image: Path) -> None:
    """The row of a removed library is dropped if its directory is newer than the cache, and stays
    if it is older.
    """
    (image / "opt/lib/libother.so.2.1").unlink()
    (image / "opt/lib/libother.so.2").unlink()
    assert rows(image, "libother.so.2") == []
    os.utime(image / "opt/lib", (1, 1))
    assert [path for path, _, _ in rows(image, "libother.so.2")] == ["/opt/lib/libother.so.2"]


def test_with_ldconfig_the_cache_is_planned_from_files(image: Path) -> None:
    """With ldcache = "ldconfig" the planned rows come from the image's files, not from its
    cache.
    """
    (image / "opt/lib/libother.so.2.1").unlink()
    os.utime(image / "opt/lib", (1, 1))
    driver, live = open_tree_at(str(image)), open_tree_at(str(image))
    host = host_of(driver)
    tables = [
        PlannedTree(live, plan_for(image, {}), host, rebuilt=rebuilt).loader_cache
        for rebuilt in (False, True)
    ]
    paths = [
        [row.path for row in table.lookup(b"libother.so.2")]
        for table in tables
        if table is not None
    ]
    assert paths == [[b"/opt/lib/libother.so.2"], []]


def test_a_container_that_gets_nothing_keeps_its_cache(image: Path) -> None:
    """Without a host the image's own cache is used; a damaged one counts as missing."""
    live = open_tree_at(str(image))
    tree = PlannedTree(live, plan_for(image), None)
    assert tree.loader_cache is not None
    assert tree.loader_cache.data() == Table.parse((image / "etc/ld.so.cache").read_bytes()).data()
    (image / "etc/ld.so.cache").write_bytes(b"x")
    assert PlannedTree(live, plan_for(image), None).loader_cache is None
