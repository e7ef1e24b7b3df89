"""One test for each measure that keeps the hook in a root file system. safety/mutants.py removes
each.

What an attacker would have to hit by chance happens here at exactly that moment.
"""

import errno
import os
import posix
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import T, run_in_mount_namespace
from nvgraft.apply import executor, targets
from nvgraft.apply.detached_mounts import Sources, open_sources
from nvgraft.apply.restore import Owner
from nvgraft.apply.targets import Targets, open_in_root
from nvgraft.apply.undo import UndoLog
from nvgraft.base.errors import Refusal
from nvgraft.container import container as containers
from nvgraft.container.container import Container
from nvgraft.formats.tree import LiveTree
from nvgraft.plan.actions import Action, Bind, MakeDirectory, Symlink, Tmpfs, Why
from nvgraft.system import syscalls
from safety import arena
from safety.arena import CANARY, DRIVER, LIBS, OUTSIDE, ROOTFS
from safety.historic import detach_with_fake_proc, own_procfs

pytestmark = pytest.mark.requires("root")

WHY = Why("", "test", "test")
OPTIONS = ("nodev", "nosuid", "ro")
#: A directory on the root file system's own mount, to which things are moved.
ELSEWHERE = ROOTFS / ".decoys"
SMI = str(DRIVER / "usr/bin/nvidia-smi")


def in_arena(function: Callable[[], T]) -> T:
    """Run ``function`` on an arena, in a mount namespace in which the root file system is a mount;
    patches end with it.
    """

    def scenario() -> T:
        arena.make_arena()
        before = arena.canary_state()
        syscalls.mount(str(ROOTFS), str(ROOTFS), None, syscalls.MS_BIND)
        value = function()
        assert arena.canary_state() == before, "the host was reached"
        return value

    return run_in_mount_namespace(scenario)


def bind(
    target: str,
    source: str = SMI,
    kind: str = "file",
    rdev: tuple[int, int] | None = None,
    *,
    placeholder: bool = True,
) -> Bind:
    return Bind(
        kind,
        "dev" if rdev else "driver",
        source,
        target,
        OPTIONS,
        0o644,
        WHY,
        rdev,
        placeholder=placeholder,
    )


def prepare(
    *actions: Action, undo: UndoLog | None = None, container: Container | None = None
) -> str:
    """Make the things of ``actions``; return the refusal's line, or ""."""
    made = Targets(container or arena.standalone(), Sources(), UndoLog() if undo is None else undo)
    try:
        made.prepare(actions, lambda _: None)
    except Refusal as refusal:
        return refusal.line()
    finally:
        made.close()
    return ""


def attach(*actions: Bind | Tmpfs, keep: bool = False) -> str:
    """Attach every mount of ``actions`` like the hook, then undo it unless it succeeded and is to
    be kept.

    Return the refusal's line, or "", and what the undo had to leave.
    """
    container = arena.standalone()
    undo = UndoLog()
    sources = open_sources(actions, 0, 0)
    made = Targets(container, sources, undo)
    procfs = own_procfs()
    try:
        made.prepare(actions, lambda _: None)
        executor._attach(sources, made, container, procfs, undo)
    except Refusal as refusal:
        return " ".join([refusal.line(), *(f"left: {each}" for each in undo.run())])
    finally:
        if not keep:
            assert undo.run() == []
        made.close()
        sources.close()
    return ""


def after(function: Callable[..., T], then: Callable[[], object]) -> Callable[..., T]:
    """Return a function that calls ``function``, and calls ``then`` right after the first call."""
    calls: list[int] = []

    def wrapped(*args: object, **named: object) -> T:
        value = function(*args, **named)
        calls.append(1)
        if len(calls) == 1:
            then()
        return value

    return wrapped


# ---- looking up


def test_two_dots_do_not_lead_above_the_root() -> None:
    """At the root `..` stays there, as in a chroot."""

    def scenario() -> int | None:
        root = os.open(ROOTFS, os.O_PATH)
        with pytest.raises(OSError, match="openat2") as caught:
            open_in_root(root, f"/../{CANARY.name}/etc/debian_version", os.O_PATH)
        os.close(open_in_root(root, "/../etc/debian_version", os.O_PATH))
        return caught.value.errno

    assert in_arena(scenario) == errno.ENOENT


@pytest.mark.parametrize("target", ["/usr/bin", str(CANARY), "/proc/self/root", "/proc/self/cwd"])
def test_no_link_on_the_way_is_followed(target: str) -> None:
    """A link that has appeared since the plan was made gives ELOOP, wherever it leads."""

    def scenario() -> int | None:
        (ROOTFS / "usr/appeared").symlink_to(target)
        root = os.open(ROOTFS, os.O_PATH)
        with pytest.raises(OSError, match="openat2") as caught:
            open_in_root(root, "/usr/appeared/true", os.O_PATH)
        return caught.value.errno

    assert in_arena(scenario) == errno.ELOOP


def test_a_lookup_is_tried_again_when_the_kernel_asks_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """EAGAIN, caused by renames elsewhere, is retried 128 times at most, then reported."""
    tries = []

    def busy(*_args: object) -> int:
        tries.append(1)
        raise syscalls.SyscallError(errno.EAGAIN, "openat2()")

    monkeypatch.setattr(syscalls, "openat2", busy)
    monkeypatch.setattr(targets, "_PATIENCE", 60)
    with pytest.raises(OSError, match="EAGAIN"):
        open_in_root(3, "/a", os.O_PATH)
    assert len(tries) == 128
    tries.clear()
    monkeypatch.setattr(targets, "_PATIENCE", 0)
    with pytest.raises(OSError, match="EAGAIN"):
        open_in_root(3, "/a", os.O_PATH)
    assert len(tries) < 3, "patience is over"


def test_the_planner_follows_no_link_that_has_replaced_a_directory() -> None:
    """A directory that has become a link since the planner saw it is not opened through the
    link.
    """

    def scenario() -> None:
        tree = LiveTree(os.open(ROOTFS, os.O_PATH))
        assert tree.find("/etc")[0] == "/etc"
        (ROOTFS / "etc").rename(ROOTFS / "moved")
        (ROOTFS / "etc").symlink_to(CANARY / "etc")
        with pytest.raises(NotADirectoryError):
            tree.directory("/etc")

    in_arena(scenario)


def test_a_link_that_is_replaced_while_it_is_read_is_nothing() -> None:
    """The planner treats a link that is a file when read as absent, and anything made there is
    refused.
    """

    def scenario() -> None:
        link = ROOTFS / "usr/link"
        link.symlink_to("bin")
        look = os.stat

        def replaced(
            path: str, *, dir_fd: int | None = None, follow_symlinks: bool = True
        ) -> os.stat_result:
            status = look(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)
            if path == "link":
                os.unlink(link)
                os.close(os.open(link, os.O_CREAT))
            return status

        pytest.MonkeyPatch().setattr(posix, "stat", replaced)
        assert LiveTree(os.open(ROOTFS, os.O_PATH)).lstat("/usr/link") is None

    in_arena(scenario)


def test_the_planner_reads_no_file_through_a_link_that_has_replaced_one() -> None:
    """A file that has become a link to the host since the planner saw it is not read."""

    def scenario() -> None:
        tree = LiveTree(os.open(ROOTFS, os.O_PATH))
        assert tree.find("/etc/debian_version")[0] == "/etc/debian_version"
        (ROOTFS / "etc/debian_version").unlink()
        (ROOTFS / "etc/debian_version").symlink_to(CANARY / "etc/debian_version")
        with pytest.raises(OSError, match="not a regular file"):
            tree.read("/etc/debian_version", 4096)

    in_arena(scenario)


# ---- making


@pytest.mark.parametrize("kind", ["file", "dangling link", "link to a file"])
def test_what_appears_where_a_placeholder_goes_is_kept(kind: str) -> None:
    """A file that appears before the creation is used, a link is refused; no undo removes
    either.
    """

    def scenario() -> None:
        place = ROOTFS / "usr/bin/placeholder"

        def appear() -> None:
            if kind == "file":
                place.write_text("mine")
            else:
                place.symlink_to(
                    CANARY / ("etc/new" if "dangling" in kind else "etc/debian_version")
                )

        create = os.open

        def created(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            if path == "placeholder" and flags & os.O_CREAT:
                appear()
            return create(path, flags, mode, dir_fd=dir_fd)

        pytest.MonkeyPatch().setattr(posix, "open", created)
        undo = UndoLog()
        line = prepare(bind("/usr/bin/placeholder"), undo=undo)
        assert ("/usr/bin/placeholder: file exists" in line) == (kind != "file")
        assert undo.run() == []
        assert os.path.lexists(place), "it is not ours"
        assert kind != "file" or place.read_text() == "mine"

    in_arena(scenario)


@pytest.mark.parametrize("kind", ["fifo", "directory", "link", "socket", "another device"])
def test_a_target_of_another_kind_is_refused(kind: str) -> None:
    """A target that is neither a placeholder nor the thing to mount is neither covered nor
    opened.
    """

    def scenario() -> str:
        place = ROOTFS / "usr/bin/there"
        if kind == "directory":
            place.mkdir()
        elif kind == "link":
            place.symlink_to("true")
        elif kind == "another device":
            os.mknod(place, 0o20666, os.makedev(1, 3))
            return prepare(bind("/usr/bin/there", "/dev/nvidia0", "device", (195, 0)))
        else:
            os.mknod(place, {"fifo": 0o10644, "socket": 0o140644}[kind])
        return prepare(bind("/usr/bin/there"))

    assert (
        f"/usr/bin/there: {'is a directory' if kind == 'directory' else 'file exists'}"
        in in_arena(scenario)
    )


def test_an_existing_target_keeps_its_bytes_and_its_mode() -> None:
    """A setuid program in the place of a mount is covered and not changed."""

    def scenario() -> None:
        place = ROOTFS / "usr/bin/there"
        place.write_text("program")
        place.chmod(0o4755)
        before = place.stat()
        undo = UndoLog()
        assert prepare(bind("/usr/bin/there"), undo=undo) == ""
        undo.run()
        assert place.read_text() == "program"
        assert (place.stat().st_mode, place.stat().st_ctime_ns) == (
            before.st_mode,
            before.st_ctime_ns,
        )

    in_arena(scenario)


@pytest.mark.parametrize(
    "action",
    [
        bind(f"{LIBS}/new"),
        MakeDirectory(f"{LIBS}/new", 0o755, WHY),
        Symlink(f"{LIBS}/new", "x", WHY),
    ],
)
def test_nothing_is_made_on_a_volume(action: Action) -> None:
    """The applier checks for volumes itself, because one may have come after the plan."""

    def scenario() -> None:
        syscalls.mount("tmpfs", f"{ROOTFS}{LIBS}", "tmpfs", 0)
        assert f"it would be made on the volume {LIBS}" in prepare(action)
        assert os.listdir(f"{ROOTFS}{LIBS}") == []

    in_arena(scenario)


def test_a_mount_that_came_since_is_refused() -> None:
    """A mount that an attacker makes while the hook works is refused (SECURITY T25)."""

    def scenario() -> str:
        container = arena.standalone()
        syscalls.mount("tmpfs", f"{ROOTFS}{LIBS}", "tmpfs", 0)
        return prepare(bind(f"{LIBS}/new"), container=container)

    assert "unknown mount" in in_arena(scenario)


def test_a_target_on_a_shared_mount_is_refused() -> None:
    """On a shared mount the driver would appear outside of the container, too."""

    def scenario() -> str:
        syscalls.mount("tmpfs", f"{ROOTFS}/tmp", "tmpfs", 0)
        syscalls.mount(None, f"{ROOTFS}/tmp", None, 1 << 20)  # MS_SHARED
        (ROOTFS / "tmp/there").touch()
        return prepare(bind("/tmp/there", placeholder=False))

    assert "/tmp/there: shared mount" in in_arena(scenario)


def test_the_undo_removes_nothing_that_came_in_the_place_of_what_was_made() -> None:
    """A file, directory or link that came in the place of what was made stays."""

    def scenario() -> None:
        undo = UndoLog()
        made = Targets(arena.standalone(), Sources(), undo)
        made.prepare(
            [MakeDirectory("/tmp/d", 0o755, WHY), bind("/tmp/f"), Symlink("/tmp/l", "x", WHY)],
            lambda _: None,
        )
        for name in ("d", "f", "l"):
            (ROOTFS / "tmp" / name).rename(ELSEWHERE / name)
        (ROOTFS / "tmp/d").mkdir()
        (ROOTFS / "tmp/f").write_text("theirs")
        (ROOTFS / "tmp/l").symlink_to("theirs")
        assert undo.run() == [
            "/tmp/f (it was moved or linked elsewhere)"
        ]  # no descriptor of directories and links is open
        made.close()
        assert sorted(os.listdir(ROOTFS / "tmp")) == ["d", "f", "l"]

    in_arena(scenario)


def test_a_directory_that_was_removed_meanwhile_is_a_clean_refusal() -> None:
    """A directory that was removed while open takes nothing new, and is refused (SECURITY T24)."""

    def scenario() -> str:
        made = Targets(arena.standalone(), Sources(), UndoLog())
        (ROOTFS / "tmp/dead").mkdir()
        made.prepare([MakeDirectory("/tmp/dead/first", 0o755, WHY)], lambda _: None)
        (ROOTFS / "tmp/dead/first").rmdir()
        (ROOTFS / "tmp/dead").rmdir()
        (ROOTFS / "tmp/dead").mkdir()
        with pytest.raises(Refusal) as caught:
            made.prepare([bind("/tmp/dead/second")], lambda _: None)
        made.close()
        assert os.listdir(ROOTFS / "tmp/dead") == []
        return caught.value.line()

    assert "no such file or directory" in in_arena(scenario)


def test_what_is_made_belongs_to_the_container_s_root() -> None:
    """It belongs to the container's root from its creation; afterwards this process has its own ids
    again.
    """

    def scenario() -> list[int]:
        container = arena.standalone()
        container.uid = container.gid = 100000
        actions = [
            MakeDirectory("/tmp/d", 0o755, WHY),
            bind("/tmp/d/f"),
            Symlink("/tmp/d/l", "x", WHY),
        ]
        made = Targets(container, Sources(), UndoLog())
        with Owner(container.uid, container.gid):
            made.prepare(actions, lambda _: None)
        made.close()
        mine = ROOTFS / "tmp/mine"
        mine.touch()
        return [
            os.lstat(path).st_uid
            for path in (ROOTFS / "tmp/d", ROOTFS / "tmp/d/f", ROOTFS / "tmp/d/l", mine)
        ]

    assert in_arena(scenario) == [100000, 100000, 100000, 0]


# ---- sources


def become_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o644)


@pytest.mark.parametrize(
    ("change", "action", "message"),
    [
        (
            lambda path: (path.unlink(), path.symlink_to(CANARY / "etc/debian_version")),
            bind("/x"),
            "unexpected source file mode 120777",
        ),
        (lambda path: path.chmod(0o775), bind("/x"), "unexpected source file mode 100775"),
        (lambda path: path.chmod(0o757), bind("/x"), "unexpected source file mode 100757"),
        (lambda path: os.chown(path, 1000, 0), bind("/x"), "unexpected source file mode"),
        (
            lambda path: (path.unlink(), path.mkdir()),
            bind("/x"),
            "unexpected source file mode 40755",
        ),
        (become_fifo, bind("/x"), "unexpected source file mode 10644"),
        (
            lambda path: None,
            bind("/x", str(DRIVER / "dev/nvidia0"), "device", (195, 7)),
            "invalid device node",
        ),
    ],
)
def test_a_source_that_is_not_what_was_planned_is_refused(
    change: Callable[[Path], object], action: Bind, message: str
) -> None:
    """A link, a file that others can write or own, another kind and another device are refused."""

    def scenario() -> str:
        change(Path(SMI))
        with pytest.raises(Refusal) as caught:
            open_sources([action], 0, 0)
        return caught.value.line()

    assert message in in_arena(scenario)


def test_an_attached_mount_has_its_options_and_hears_of_no_other() -> None:
    """It is read-only, without devices and set-user-ID; mounts made later at the source do not
    appear.
    """

    def scenario() -> tuple[str, str]:
        syscalls.mount("tmpfs", str(OUTSIDE), "tmpfs", 0, "mode=755")
        syscalls.mount(None, str(OUTSIDE), None, 1 << 20)  # MS_SHARED
        (OUTSIDE / "source").mkdir(mode=0o755)
        (ROOTFS / "tmp/place").mkdir()
        assert attach(bind("/tmp/place", str(OUTSIDE / "source"), "dir"), keep=True) == ""
        words = next(
            line
            for line in Path("/proc/self/mountinfo").read_text().splitlines()
            if "/tmp/place" in line
        ).split()
        return words[5], " ".join(words[6 : words.index("-")])

    options, propagation = in_arena(scenario)
    assert {"ro", "nosuid", "nodev"} <= set(options.split(","))
    assert propagation == ""


def test_a_tmpfs_of_ours_has_limits() -> None:
    """A container's root can fill the tmpfs, but not the machine's memory."""

    def scenario() -> tuple[int, int]:
        (ROOTFS / "tmp/place").mkdir()
        assert (
            attach(Tmpfs("/tmp/place", ("nodev", "noexec", "nosuid", "rw"), 0o555, WHY), keep=True)
            == ""
        )
        status = os.statvfs(ROOTFS / "tmp/place")
        return status.f_blocks * status.f_frsize, status.f_files

    size, inodes = in_arena(scenario)
    assert size == 1 << 20
    assert inodes == 8192


# ---- attaching


def test_a_target_that_moves_away_is_noticed_and_undone() -> None:
    """Between opening and attaching, the mount follows the inode, and its name no longer leads
    there.
    """

    def scenario() -> str:
        move_away = after(
            syscalls.move_mount, lambda: (ROOTFS / "usr/bin").rename(ELSEWHERE / "bin")
        )
        pytest.MonkeyPatch().setattr(syscalls, "move_mount", move_away)
        line = attach(bind("/usr/bin/nvidia-smi"))
        assert arena.mounts_below(ROOTFS) == []
        return line

    line = in_arena(scenario)
    assert "/usr/bin/nvidia-smi: it is not where it was attached" in line
    assert "left: " not in line


def test_a_placeholder_that_is_moved_away_is_named_as_left() -> None:
    """The placeholder's new name has an empty file then, and the message names it."""

    def scenario() -> str:
        real = syscalls.move_mount

        def moved(mount_fd: int, target_fd: int) -> None:
            (ROOTFS / "usr/bin/nvidia-smi").rename(ELSEWHERE / "taken")
            real(mount_fd, target_fd)

        pytest.MonkeyPatch().setattr(syscalls, "move_mount", moved)
        line = attach(bind("/usr/bin/nvidia-smi"))
        assert arena.mounts_below(ROOTFS) == []
        return f"{line} size {(ELSEWHERE / 'taken').stat().st_size}"

    line = in_arena(scenario)
    assert "it is not where it was attached" in line
    assert line.endswith("left: /usr/bin/nvidia-smi (it was moved or linked elsewhere) size 0")


def test_a_mount_that_is_covered_at_once_is_noticed_and_undone() -> None:
    """Another mount over ours is noticed, although ours is below. The placeholder below is named as
    left.
    """

    def scenario() -> str:
        def cover() -> None:
            """Cover the target with a file that has the options of ours."""
            place = f"{ROOTFS}/usr/bin/nvidia-smi"
            syscalls.mount(
                str(DRIVER / "usr/bin/nvidia-cuda-mps-control"), place, None, syscalls.MS_BIND
            )
            flags = syscalls.MS_RDONLY | syscalls.MS_NODEV | syscalls.MS_NOSUID
            syscalls.mount(None, place, None, syscalls.MS_REMOUNT | syscalls.MS_BIND | flags)

        pytest.MonkeyPatch().setattr(syscalls, "move_mount", after(syscalls.move_mount, cover))
        return attach(bind("/usr/bin/nvidia-smi"))

    line = in_arena(scenario)
    assert "it is not where it was attached" in line
    assert "left: /usr/bin/nvidia-smi (Device or resource busy)" in line


def test_a_mount_with_other_options_than_planned_is_noticed_and_undone() -> None:
    """A mount whose read-only flag was removed is noticed."""

    def scenario() -> str:
        set_options = syscalls.mount_setattr
        attached: list[int] = []

        def remember(mount_fd: int, attr_set: int, propagation: int = 0) -> None:
            attached.append(mount_fd)
            set_options(mount_fd, attr_set, propagation)

        patch = pytest.MonkeyPatch()
        patch.setattr(
            syscalls,
            "mount_setattr",
            lambda fd, attributes, propagation, _clear: remember(fd, attributes, propagation),
        )
        weaken = after(
            syscalls.move_mount,
            lambda: set_options(attached[0], 0, attr_clear=syscalls.MOUNT_ATTR_RDONLY),
        )
        patch.setattr(syscalls, "move_mount", weaken)
        return attach(bind("/usr/bin/nvidia-smi"))

    assert "it is not where it was attached" in in_arena(scenario)


def test_a_mount_of_ours_does_not_lead_a_later_target_elsewhere() -> None:
    """All targets are opened before the first mount. One that an earlier mount would hide is
    refused; all is undone.
    """

    def scenario() -> str:
        source = DRIVER / "run/directory"
        source.mkdir()
        (source / "inner").touch()
        (ROOTFS / "tmp/outer").mkdir()
        line = attach(bind("/tmp/outer", str(source), "dir"), bind("/tmp/outer/inner"))
        assert arena.mounts_below(ROOTFS) == []
        return line

    assert "/tmp/outer/inner: it is not where it was attached" in in_arena(scenario)


def test_the_undo_trusts_no_proc_that_it_finds() -> None:
    """The undo unmounts by descriptor through a procfs of its own, so a false one cannot redirect
    it.
    """
    assert in_arena(lambda: detach_with_fake_proc(own_procfs)) == [str(OUTSIDE)]


# ---- the container


def opened(pid: int, rootfs: Path = ROOTFS) -> str:
    """Open the container of ``pid``; return the refusal's line, or ""."""
    try:
        containers.open_container(pid, containers.hold_process(pid), str(rootfs))
    except Refusal as refusal:
        return refusal.line()
    return ""


def test_a_process_in_our_own_mount_namespace_is_no_container() -> None:
    """The driver would be mounted over the host's files otherwise."""

    def scenario() -> str:
        with arena.process(lambda: None) as pid:
            return opened(pid)

    assert "has no mount namespace of its own" in in_arena(scenario)


def test_a_rootfs_that_is_no_mount_point_is_refused() -> None:
    """A runtime makes the rootfs a mount point; another directory is refused."""

    def scenario() -> str:
        with arena.container_process() as pid:
            assert opened(pid) == ""
            return opened(pid, ROOTFS / "usr")

    assert "is not a mount point in the mount namespace" in in_arena(scenario)


def test_a_magic_link_does_not_lead_to_a_rootfs() -> None:
    """A path through /proc/PID/root depends on another process, and is refused."""

    def scenario() -> str:
        with arena.container_process() as pid:
            return opened(pid, Path(f"/proc/self/root{ROOTFS}"))

    assert "too many levels of symbolic links" in in_arena(scenario)


@pytest.mark.requires("kernel-threads")
def test_a_thread_of_the_kernel_is_no_container() -> None:
    """The mount namespace of a kernel thread is the host's, whichever the hook has."""
    with pytest.raises(Refusal, match="invalid process id: 2"):
        containers.hold_process(2)


def test_the_host_s_root_by_another_name_is_refused() -> None:
    """A bind mount of / is a mount point, but still the host's root."""

    def scenario() -> str:
        alias = arena.PLACE / "alias"
        alias.mkdir()
        with arena.container_process(
            lambda: syscalls.mount("/", str(alias), None, syscalls.MS_BIND)
        ) as pid:
            return opened(pid, alias)

    assert "is the host's own root" in in_arena(scenario)


def test_a_proc_that_is_not_the_root_of_a_procfs_is_refused() -> None:
    """A directory of procfs, bound on /proc, has the type but not the content."""

    def scenario() -> str:
        def mounts() -> None:
            syscalls.umount2(f"{ROOTFS}/proc/driver", syscalls.MNT_DETACH)
            syscalls.umount2(f"{ROOTFS}/proc", syscalls.MNT_DETACH)
            syscalls.mount("/proc/sys", f"{ROOTFS}/proc", None, syscalls.MS_BIND)

        with arena.container_process(mounts) as pid:
            return arena.run_hook(pid, arena.the_inventory()).line

    assert "not procfs" in in_arena(scenario)


def test_a_container_that_has_ended_is_never_taken_for_the_next_one_of_its_number() -> None:
    """The namespace is entered by the descriptor of the process, not by its number (SECURITY
    T26).
    """

    def scenario() -> str:
        with arena.container_process() as first:
            pidfd = containers.hold_process(first)
            container = containers.open_container(first, pidfd, str(ROOTFS))
        # The number is another container's now.
        with arena.container_process() as second:
            container.pid = second
            with pytest.raises(Refusal) as caught:
                containers.enter(container)
        return caught.value.line()

    assert "no such process" in in_arena(scenario)
