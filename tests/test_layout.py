"""How actions add up over the content of the container: parents, placeholders, volumes, links."""

from collections.abc import Callable

import pytest

import hosts
from hosts import ROOTFS
from nvgraft.base.errors import Refusal
from nvgraft.container.offline_target import OfflineTarget
from nvgraft.container.target import OnVolume
from nvgraft.host.snapshot import SnapshotTree
from nvgraft.plan.actions import AllowDevice, Bind, MakeDirectory, Symlink, Tmpfs, Why, WriteFile
from nvgraft.plan.document import action_document
from nvgraft.plan.layout import Layout

WHY = Why("compute", "row", "found")


def layout(rootfs: str = "", *, volumes: tuple[str, ...] = (), cgroups: bool = True) -> Layout:
    return Layout(hosts.target(rootfs, volumes=volumes), cgroups=cgroups)


def made(plan: Layout) -> list[tuple[str, int]]:
    return [
        (action.path, action.mode) for action in plan.actions if isinstance(action, MakeDirectory)
    ]


def mount(plan: Layout, path: str, mode: int = 0o644) -> None:
    plan.placeholder(path, mode, WHY)
    plan.bind("file", "driver", "/host" + path, path, ("ro",), mode, WHY)


# ---- directories and parents


def test_missing_parents_are_created_once_and_first() -> None:
    """Each missing parent gets one action, before its first child; an existing one gets none."""
    plan = layout("/usr/")
    mount(plan, "/usr/lib/x/one")
    mount(plan, "/usr/lib/x/two")
    mount(plan, "/usr/lib/y/three")
    assert made(plan) == [("/usr/lib", 0o755), ("/usr/lib/x", 0o755), ("/usr/lib/y", 0o755)]
    assert [type(action).__name__ for action in plan.actions] == ["MakeDirectory"] * 2 + [
        "Bind"
    ] * 2 + ["MakeDirectory", "Bind"]


def test_directories_below_a_tmpfs_are_created_again() -> None:
    """A tmpfs hides the image's directories, so those that mounts in it need are created again."""
    plan = layout("/a/b/")
    plan.placeholder("/a/b/one", 0o644, WHY)
    plan.mount_tmpfs("/a", "/a", WHY)
    assert made(plan) == []
    plan.placeholder("/a/b/two", 0o644, WHY)
    assert made(plan) == [("/a/b", 0o755)]


def test_a_directory_gets_its_mode_and_its_parents_0755() -> None:
    """A directory gets its mode under the hook's umask of 022, and missing parents get 0755."""
    plan = layout()
    plan.directory("/a/b", 0o777, WHY)
    plan.directory("/a/c", 0o555, WHY)
    assert made(plan) == [("/a", 0o755), ("/a/b", 0o755), ("/a/c", 0o555)]


def test_a_directory_that_exists_is_left_alone() -> None:
    """An existing directory, with any mode, gets no action."""
    plan = layout("/a/b/ mode=0700")
    plan.directory("/a/b", 0o755, WHY)
    assert plan.actions == []


@pytest.mark.parametrize("entry", ["/a/b", "/a/b char 1:3", "/a/b fifo", "/a/b -> /c"])
def test_anything_else_in_place_of_a_directory_is_refused(entry: str) -> None:
    """Anything else in a directory's place is refused in the reference's words, with the path below
    the rootfs.
    """
    with pytest.raises(Refusal) as caught:
        layout(entry).directory("/a/b", 0o755, WHY)
    assert (
        caught.value.reference_line()
        == f"nvgraft: mount error: file creation failed: {ROOTFS}/a/b: not a directory"
    )


def test_a_placeholder_is_not_a_directory() -> None:
    """A directory cannot be planned below a file that the plan creates."""
    plan = layout()
    mount(plan, "/a/b")
    with pytest.raises(Refusal, match=r"not a directory$"):
        plan.directory("/a/b", 0o755, WHY)


def test_mounts_go_into_the_resolved_directory() -> None:
    """Links of the container are followed, and the directory that they lead to is created."""
    plan = layout("/usr/lib64 -> /opt/lib64")
    assert plan.directory_for_mounts("/usr/lib64") == "/opt/lib64"
    assert made(plan) == [("/opt", 0o755), ("/opt/lib64", 0o755)]


# ---- placeholders


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        ("/t -> /x", "file exists"),
        ("/t/", "is a directory"),
        ("/t fifo", "file exists"),
        ("/t socket", "file exists"),
        ("/t char 1:3", "file exists"),
    ],
)
def test_a_target_that_is_not_a_file_is_refused(entry: str, problem: str) -> None:
    """A link, a directory, a FIFO, a socket or a device in the place of a mounted file is refused
    in the reference's words.
    """
    with pytest.raises(Refusal) as caught:
        layout(entry).placeholder("/t", 0o644, WHY)
    assert (
        caught.value.reference_line()
        == f"nvgraft: mount error: file creation failed: {ROOTFS}/t: {problem}"
    )
    assert not isinstance(caught.value, OnVolume)


def test_an_existing_file_is_mounted_over() -> None:
    """An existing file, with any mode, is mounted over, and nothing is created."""
    plan = layout("/t mode=0600")
    mount(plan, "/t", 0o755)
    assert [action_document(action)["op"] for action in plan.actions] == ["mount"]


def test_a_socket_may_already_be_there() -> None:
    """An existing socket is accepted as the placeholder of a socket; other types are not."""
    layout("/t socket").placeholder("/t", 0o666, WHY, accept="socket")
    with pytest.raises(Refusal, match=r"file exists$"):
        layout("/t fifo").placeholder("/t", 0o666, WHY, accept="socket")


def test_a_device_may_already_be_there_with_its_own_number() -> None:
    """An existing device node is accepted with the same number; another one is refused, as it
    belongs to another device.
    """
    layout("/t char 195:0").placeholder("/t", 0o666, WHY, accept="char", rdev=(195, 0))
    for other in ("195:1", "8:0"):
        with pytest.raises(Refusal, match=rf"^file creation failed: {ROOTFS}/t: file exists$"):
            layout(f"/t char {other}").placeholder("/t", 0o666, WHY, accept="char", rdev=(195, 0))


def test_a_second_mount_on_the_same_target_is_stacked() -> None:
    """Two rows that name one target give two mounts, as in the reference."""
    plan = layout()
    mount(plan, "/a/t")
    mount(plan, "/a/t")
    assert [action_document(action)["op"] for action in plan.actions] == ["dir", "mount", "mount"]


def test_a_target_hidden_by_an_earlier_mount_is_refused() -> None:
    """A target below an earlier mount of the plan, where it cannot be reached, is refused."""
    plan = layout("/a/")
    plan.bind("dir", "driver", "/host/a", "/a", ("ro",), 0o755, WHY)
    plan.placeholder("/ab", 0o644, WHY)
    with pytest.raises(
        Refusal, match=r"^mount operation failed: /a/b/c: hidden by the mount on /a$"
    ):
        plan.placeholder("/a/b/c", 0o644, WHY)


def test_a_bind_says_whether_its_placeholder_is_missing() -> None:
    """A bind says whether its target is missing: the applier creates and announces exactly these
    placeholders.
    """
    plan = layout("/there")
    for path in ("/there", "/missing"):
        mount(plan, path)
    assert [
        (action.target, action.placeholder) for action in plan.actions if isinstance(action, Bind)
    ] == [("/there", False), ("/missing", True)]


def test_modes_of_placeholders_are_under_the_umask() -> None:
    """The mode of a placeholder is under the umask: a node of 0666 is created as 0644."""
    plan = layout()
    plan.bind("device", "dev", "/dev/x", "/dev/x", ("ro",), 0o666, WHY, (195, 0), 17)
    assert plan.actions == [
        Bind("device", "dev", "/dev/x", "/dev/x", ("ro",), 0o644, WHY, (195, 0), 17)
    ]


# ---- links


def test_a_link_is_created_only_if_its_name_is_free() -> None:
    """A link is created once, and not in place of a file, a dangling link, or a link of this
    plan.
    """
    plan = layout("/l/file\n/l/dangling -> /gone")
    for name in ("new", "file", "dangling", "new"):
        plan.symlink(f"/l/{name}", "target", WHY)
    assert plan.actions == [Symlink("/l/new", "target", WHY)]


def test_a_link_does_not_replace_a_mount() -> None:
    """A link whose name is a mounted file is not created."""
    plan = layout("/l/")
    mount(plan, "/l/libcuda.so")
    plan.symlink("/l/libcuda.so", "libcuda.so.1", WHY)
    assert len(plan.actions) == 1


# ---- paths


@pytest.mark.parametrize(
    ("rootfs", "path", "text"),
    [
        ("/a/l -> ../../..", "/a/l/x", f"path error: /a/l/x resolves outside of {ROOTFS}"),
        ("/l -> l", "/l", f"path error: {ROOTFS}//l: too many levels of symbolic links"),
        ("/f", "/f/x", f"path error: {ROOTFS}//f/x: not a directory"),
        ("/l -> /proc/sys", "/l", "path error: /l resolves to /proc/sys"),
        ("/l -> /proc/driver", "/l", "path error: /l resolves to /proc/driver"),
        ("/l -> /proc", "/l", "path error: /l resolves to /proc"),
        ("/l -> /proc/driver/nvidia", "/l", "path error: /l resolves to /proc/driver/nvidia"),
        ("/l -> /", "/l", "path error: /l resolves to /"),
        ("/l -> .", "/l//./l", "path error: /l//./l resolves to /"),
        ("/l -> /" + "d/" * 129, "/l", f"path error: {ROOTFS}//l: file name too long"),
        ("/l -> /" + ("d" * 200 + "/") * 20, "/l", f"path error: {ROOTFS}//l: file name too long"),
    ],
)
def test_links_out_of_the_rootfs_are_refused(rootfs: str, path: str, text: str) -> None:
    """Links above the root, in a circle, to the root itself or into /proc are refused, as a fault
    of the image and not of a volume.
    """
    with pytest.raises(Refusal) as caught:
        layout(rootfs).resolve(path)
    assert caught.value.reference_line() == f"nvgraft: mount error: {text}"
    assert not isinstance(caught.value, OnVolume)


@pytest.mark.parametrize(
    "link", ["/dev -> /etc", "/dev/nvidia0 -> /dev/sda", "/dev/nvidia-caps -> /srv"]
)
def test_device_nodes_keep_their_names(link: str) -> None:
    """A link at or above a device node is refused: under another name the node could be a
    disk's.
    """
    target = OfflineTarget(SnapshotTree(hosts.tree(link)), "x86_64", (), module=True)
    node = "/dev/nvidia-caps/nvidia-cap1" if "caps" in link else "/dev/nvidia0"
    with pytest.raises(Refusal, match=f"path error: {node} resolves to /"):
        Layout(target, cgroups=True).resolve(node)


def test_a_name_that_begins_with_proc_is_not_proc() -> None:
    """A link to /process is accepted; only /proc itself is refused."""
    assert layout("/l -> /process").resolve("/l/x") == "/process/x"


# ---- tmpfs


def test_a_tmpfs_starts_empty() -> None:
    """A tmpfs hides the content of its mount point, so everything in it is created."""
    plan = layout("/p/old/file")
    plan.mount_tmpfs("/p", "/p", WHY)
    plan.write_file("/p/text", 0o444, "t", WHY)
    mount(plan, "/p/old/file")
    assert plan.actions == [
        Tmpfs("/p", ("nodev", "noexec", "nosuid", "rw"), 0o555, WHY),
        WriteFile("/p/text", 0o444, "t", WHY),
        MakeDirectory("/p/old", 0o755, WHY),
        Bind(
            "file",
            "driver",
            "/host/p/old/file",
            "/p/old/file",
            ("ro",),
            0o644,
            WHY,
            placeholder=True,
        ),
    ]


def test_a_tmpfs_hides_planned_directories() -> None:
    """A tmpfs hides directories that an earlier action created below it."""
    plan = layout()
    plan.directory("/p/sub", 0o755, WHY)
    plan.mount_tmpfs("/p", "/p", WHY)
    plan.directory("/p/sub", 0o755, WHY)
    assert made(plan) == [("/p", 0o755), ("/p/sub", 0o755), ("/p/sub", 0o755)]


def test_names_below_a_tmpfs_resolve_to_its_mount_point() -> None:
    """If the mount point was reached through a link, names below it resolve to the mount point."""
    plan = layout("/etc -> /c/etc\n/c/etc/")
    plan.mount_tmpfs("/etc/nv", plan.resolve("/etc/nv"), WHY)
    assert plan.resolve("/etc/nv") == "/c/etc/nv"
    assert plan.resolve("/etc/nv/file") == "/c/etc/nv/file"
    assert plan.resolve("/etc/nvx") == "/c/etc/nvx"


# ---- mounts that hide others


def bound(plan: Layout, path: str) -> None:
    plan.bind_directory("driver", "/host" + path, path, plan.resolve(path), ("rw",), 0o755, WHY)


@pytest.mark.parametrize("cover", ["/m -> /usr/lib", "/m -> /usr"])
def test_a_mount_that_would_hide_an_earlier_one_is_refused(cover: str) -> None:
    """A bind or tmpfs that a link of the image leads over an earlier mount is refused."""
    plan = layout(cover)
    mount(plan, "/usr/lib/one")
    hidden = "mount operation failed: /usr/lib/one: hidden by the mount on /usr"
    with pytest.raises(Refusal, match=hidden):
        bound(plan, "/m")
    with pytest.raises(Refusal, match=hidden):
        plan.mount_tmpfs("/m", plan.resolve("/m"), WHY)


@pytest.mark.parametrize(
    "cover", [bound, lambda plan, path: plan.mount_tmpfs(path, plan.resolve(path), WHY)]
)
@pytest.mark.parametrize("path", ["/x", "/x/below"])
def test_links_into_a_mount_are_refused(cover: Callable[[Layout, str], None], path: str) -> None:
    """A link of the image into a mounted directory is refused: files would be created on the host,
    or hidden.
    """
    plan = layout("/x -> /m")
    cover(plan, "/m")
    with pytest.raises(Refusal, match="hidden by the mount on /m"):
        plan.resolve(path)
    assert plan.resolve("/m") == "/m", "the same name may be mounted twice"
    with pytest.raises(Refusal, match="hidden by the mount on /m"):
        plan.check_visible("/m/below", "/m/below")
    plan.check_visible("/mm", "/mm")


def test_a_rewound_mount_hides_nothing() -> None:
    """After a rewind a mount hides nothing."""
    plan = layout("/x -> /m")
    rewind = plan.checkpoint()
    bound(plan, "/m")
    rewind()
    assert plan.resolve("/x") == "/m"


# ---- volumes


@pytest.mark.parametrize("volume", ["/opt/v", "/opt/v/"])
def test_nothing_is_created_on_a_volume(volume: str) -> None:
    """A file, directory or link that would be created on a volume is refused, with the volume's
    name; an existing one is accepted.
    """
    plan = layout("/opt/v/there", volumes=(volume,))
    mount(plan, "/opt/v/there")
    with pytest.raises(OnVolume) as caught:
        mount(plan, "/opt/v/new")
    assert (
        caught.value.reference_line()
        == f"nvgraft: mount error: file creation failed: {ROOTFS}/opt/v/new: it would be made"
        " on the volume /opt/v"
    )
    with pytest.raises(OnVolume):
        plan.directory("/opt/v/dir", 0o755, WHY)
    with pytest.raises(OnVolume):
        plan.symlink("/opt/v/link", "there", WHY)
    plan.symlink("/opt/v/there", "x", WHY)
    mount(plan, "/opt/vx")


def test_a_missing_parent_on_a_volume_is_named() -> None:
    """The message names the first missing directory on the volume."""
    with pytest.raises(
        OnVolume, match=rf"^file creation failed: {ROOTFS}/v/a: it would be made on the volume /v$"
    ):
        layout("/v/", volumes=("/v",)).placeholder("/v/a/b/c", 0o644, WHY)


def test_files_in_a_tmpfs_on_a_volume_are_created() -> None:
    """Files are created in the plan's tmpfs on a volume: they do not reach the volume."""
    plan = layout("/v/t/", volumes=("/v",))
    plan.mount_tmpfs("/v/t", "/v/t", WHY)
    mount(plan, "/v/t/new")


def test_rewinding_forgets_mounts_and_directories() -> None:
    """A rewind removes the mounts and directories of an optional part that is left out."""
    plan = layout("/v/", volumes=("/v",))
    mount(plan, "/a/keep")
    rewind = plan.checkpoint()
    mount(plan, "/b/c")
    rewind()
    assert [
        action_document(action).get("target", action_document(action).get("path"))
        for action in plan.actions
    ] == ["/a", "/a/keep"]
    plan.placeholder("/b/c/d", 0o644, WHY)
    assert made(plan) == [("/a", 0o755), ("/b", 0o755), ("/b/c", 0o755)]


# ---- device rules


def test_each_device_is_allowed_once() -> None:
    """Each device is allowed once, to read and write, in the order of first mention."""
    plan = layout()
    for rdev in ((195, 0), (195, 1), (195, 0)):
        plan.allow_device(rdev, WHY)
    assert plan.actions == [AllowDevice(195, 0, WHY, "rw"), AllowDevice(195, 1, WHY, "rw")]


def test_no_device_rules_without_cgroups() -> None:
    """With no-cgroups there are no device rules."""
    plan = layout(cgroups=False)
    plan.allow_device((195, 0), WHY)
    assert plan.actions == []
