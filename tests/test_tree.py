"""The path resolver, tested on a recorded tree and on a live one."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nvgraft.formats.tree import LiveTree, Node, PathError, Tree
from nvgraft.host.snapshot import SnapshotTree

Layout = dict[str, str | None]  # path -> link target, "" for a file, None for a directory
Builder = Callable[[Layout], Tree]


def live_tree(root: Path, layout: Layout) -> LiveTree:
    for path, what in layout.items():
        place = root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        if what is None:
            place.mkdir(exist_ok=True)
        elif what:
            place.symlink_to(what)
        else:
            place.write_text("x")
    return LiveTree(os.open(root, os.O_PATH | os.O_DIRECTORY), "/the/rootfs")


def recorded_tree(layout: Layout) -> SnapshotTree:
    kinds = {
        None: {"type": "dir", "mode": "0755"},
        "": {"type": "file", "mode": "0644", "content": "x"},
    }
    tree = SnapshotTree(
        {
            path: kinds.get(what, {"type": "symlink", "target": what})
            for path, what in layout.items()
        }
    )
    tree.label = "/the/rootfs"
    return tree


@pytest.fixture(params=["live", "recorded"])
def build(request: pytest.FixtureRequest, tmp_path: Path) -> Builder:
    return (
        recorded_tree if request.param == "recorded" else lambda layout: live_tree(tmp_path, layout)
    )


def test_a_plain_path_stays(build: Builder) -> None:
    """A path without links resolves to itself."""
    assert build({"/usr/bin/x": ""}).resolve("/usr/bin/x") == "/usr/bin/x"


def test_an_absolute_link_stays_inside(build: Builder) -> None:
    """The target of an absolute link starts at the tree's root, not at the host's."""
    tree = build({"/usr/bin": "/bin", "/bin": None, "/bin/sh": ""})
    assert tree.find("/usr/bin/sh") == ("/bin/sh", tree.lstat("/bin/sh"))


def test_missing_components_are_kept(build: Builder) -> None:
    """Missing components stay in the path, and ".." removes them again."""
    tree = build({"/a": None})
    assert tree.resolve("/a/new/dir/../file") == "/a/new/file"
    assert tree.find("/a/new/file")[1] is None


def test_climbing_above_the_root_is_refused(build: Builder) -> None:
    """A ".." above the root is an error in the reference's words, and never the host's parent
    directory.
    """
    tree = build({"/usr/lib": "../../../etc", "/etc": None})
    with pytest.raises(
        PathError, match=r"^path error: /usr/lib/x resolves outside of /the/rootfs$"
    ):
        tree.resolve("/usr/lib/x")


def test_a_loop_of_links_is_an_error(build: Builder) -> None:
    """A link to itself is an error with the reference's double slash."""
    tree = build({"/lib": "lib"})
    with pytest.raises(
        PathError, match=r"^path error: /the/rootfs//lib/x: too many levels of symbolic links$"
    ):
        tree.resolve("/lib/x")


@pytest.mark.parametrize(("count", "fails"), [(20, False), (21, True)])
def test_twenty_links_are_followed(build: Builder, count: int, fails: bool) -> None:
    """Twenty links in a row are followed, and one more is refused."""
    layout: Layout = {f"/l{n}": f"l{n + 1}" for n in range(count)}
    tree = build({**layout, f"/l{count}": ""})
    if fails:
        with pytest.raises(PathError, match="too many levels"):
            tree.resolve("/l0")
    else:
        assert tree.resolve("/l0") == f"/l{count}"


def test_links_of_proc_are_not_followed(build: Builder) -> None:
    """A link in /proc ends the walk, because its text is not where it leads; /process is not
    /proc.
    """
    tree = build(
        {
            "/proc/1/root": "/",
            "/proc/self": "1",
            "/lib": "/proc/1/root/etc",
            "/process": "/etc",
            "/etc": None,
        }
    )
    for path in ("/lib", "/proc/self/x", "/proc/1/root"):
        with pytest.raises(PathError, match="too many levels of symbolic links"):
            tree.resolve(path)
    assert tree.resolve("/process/x") == "/etc/x"


def test_a_file_is_not_a_directory(build: Builder) -> None:
    """A path through a regular file is refused, not taken for one with missing directories."""
    with pytest.raises(PathError, match="not a directory"):
        build({"/etc/x": ""}).resolve("/etc/x/y")


def test_the_last_link_can_be_kept(build: Builder) -> None:
    """With follow_last false the last component stays a link."""
    tree = build({"/d": "e", "/e": None, "/e/l": "nowhere"})
    assert tree.resolve("/d/l", follow_last=False) == "/e/l"


def test_listing_and_reading(build: Builder) -> None:
    """A directory lists its names sorted, a missing one none; a file is read up to a limit."""
    tree = build({"/d/b": "", "/d/a": "x"})
    assert tree.listdir("/d") == ["a", "b"]
    assert tree.listdir("/nothing") == []
    assert tree.read("/d/b", 10) == b"x"
    with pytest.raises(FileNotFoundError):
        tree.read("/nothing", 10)


def test_below_a_missing_directory_there_is_nothing(tmp_path: Path) -> None:
    """A tree shows one state: what is made below a directory after that was missing stays unseen."""
    live = LiveTree(os.open(tmp_path, os.O_PATH | os.O_DIRECTORY))
    assert live.lstat("/late") is None
    (tmp_path / "late").mkdir()
    (tmp_path / "late/file").touch()
    assert live.lstat("/late/file") is None
    assert live.statuses == {"/late": None, "/late/file": None}
    live.close()


def test_a_fifo_is_never_opened(tmp_path: Path) -> None:
    """Reading a FIFO fails without opening it: an image must not block the hook."""
    os.mkfifo(tmp_path / "fifo")
    tree = live_tree(tmp_path, {})
    with pytest.raises(OSError, match="not a regular file"):
        tree.read("/fifo", 10)
    tree.close()


def test_a_large_file_is_refused(tmp_path: Path) -> None:
    """A file beyond the limit is refused, also a sparse one."""
    (tmp_path / "big").touch()
    os.truncate(tmp_path / "big", 1 << 40)
    tree = live_tree(tmp_path, {})
    with pytest.raises(OSError, match="larger than 100 bytes"):
        tree.read("/big", 100)
    tree.close()


def test_missing_content_of_a_recorded_tree_is_an_error() -> None:
    """A file without recorded content is an error, never empty."""
    tree = SnapshotTree({"/proc/driver/nvidia/params": {"type": "file", "mode": "0444"}})
    with pytest.raises(OSError, match="not recorded"):
        tree.read("/proc/driver/nvidia/params", 100)
    assert tree.lstat("/proc/driver") == Node("dir", 0o755)


_NAMES = st.sampled_from(["a", "b", "c"])
_TARGETS = st.lists(st.sampled_from(["a", "b", "c", "..", "."]), min_size=1, max_size=4).map(
    "/".join
)


@settings(max_examples=150)
@given(
    links=st.dictionaries(
        st.lists(_NAMES, min_size=1, max_size=3).map("/".join),
        st.one_of(st.none(), _TARGETS, _TARGETS.map("/".__add__)),
        max_size=6,
    ),
    path=st.lists(st.sampled_from(["a", "b", "c", "..", "."]), min_size=1, max_size=6).map(
        "/".join
    ),
)
def test_live_and_recorded_trees_agree(
    tmp_path_factory: pytest.TempPathFactory, links: dict[str, str | None], path: str
) -> None:
    """For any tree of links both kinds resolve any path alike, errors included."""
    root = tmp_path_factory.mktemp("tree")
    layout: Layout = {}
    for place, target in sorted(links.items()):
        if not os.path.realpath((root / place).parent).startswith(str(root)):
            continue  # an earlier link leads out of the tree, where the test must not write
        try:
            os.makedirs((root / place).parent, exist_ok=True)
            if target is None:
                os.mkdir(root / place)
            else:
                os.symlink(target, root / place)
        except OSError:
            continue  # a link of the same tree is in the way
    for directory, directories, files in os.walk(root):
        for name in directories + files:
            full = os.path.join(directory, name)
            layout[full[len(str(root)) :]] = os.readlink(full) if os.path.islink(full) else None
    live = LiveTree(os.open(root, os.O_PATH | os.O_DIRECTORY), "/the/rootfs")
    answers = []
    for tree in (live, recorded_tree(layout)):
        try:
            answers.append(tree.resolve(path))
        except PathError as error:
            answers.append(error.text)
    live.close()
    assert answers[0] == answers[1]
