"""FUSE file systems, whose servers may never answer, are told by the mount table and not looked at
(SECURITY R42).

Nothing is mounted here: directories stand for the volumes, and a look at one of them is an error.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bundles import EVERYTHING, make_bundle
from ldcaches import LIBS, container_at, plan_for
from nvgraft.apply import targets
from nvgraft.apply.cache.native import NativeCache
from nvgraft.apply.cache.shunning import ShunningRootfs
from nvgraft.apply.held_container import HeldContainer
from nvgraft.base.errors import Refusal
from nvgraft.container.container import Container
from nvgraft.container.fuse import OnFuse, ShunningTree, shunned_volumes
from nvgraft.container.live_target import LiveTarget
from nvgraft.container.offline_target import OfflineTarget
from nvgraft.formats.tree import Bounds
from nvgraft.plan.compat import compat_directory
from nvgraft.system import syscalls
from nvgraft.system.mountinfo import Mount
from nvgraft_cli.case import fuse as cli_fuse
from nvgraft_cli.shell import main

#: The library directory of Debian images on the recorded hosts.
X86_LIBS = "/usr/lib/x86_64-linux-gnu"


def volume(point: str, *, id: int = 1, fstype: str = "fuse.sshfs", by_root: bool = True) -> Mount:
    user = "rw,user_id=0" if by_root else "rw,user_id=01"
    return Mount(id, "/", point, "rw", False, fstype, "x", user)


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    root = tmp_path / "rootfs"
    for name in ("etc", "usr/lib64", "usr/bin", "proc", "vol/below"):
        (root / name).mkdir(parents=True)
    return root


@pytest.fixture
def container(rootfs: Path) -> Container:
    """A container with FUSE volumes at /vol and /volume, and one outside of it."""
    made = container_at(rootfs)
    made.fuse = [volume(str(rootfs / "vol")), volume(f"{rootfs}/volume"), volume(f"{rootfs}2")]
    return made


def shun(container: Container) -> None:
    container.shunned = shunned_volumes(container.rootfs, container.rootfs_fd, container.fuse)


def test_the_volumes_of_a_container_are_found(container: Container) -> None:
    """FUSE volumes below the root file system are shunned, by their paths in the container."""
    shun(container)
    assert container.shunned == ("/vol", "/volume")


@pytest.mark.parametrize(
    ("fstype", "by_root", "rootless", "accepted"),
    [
        ("fuse.sshfs", True, False, False),
        ("fuse.sshfs", False, True, True),
        ("fuse.fuse-overlayfs", True, False, True),
        ("fuse.fuse-overlayfs", False, False, False),
        ("fuse", False, False, False),
    ],
)
def test_a_root_file_system_on_fuse(
    container: Container,
    monkeypatch: pytest.MonkeyPatch,
    fstype: str,
    by_root: bool,
    rootless: bool,
    accepted: bool,
) -> None:
    """It is accepted rootless, and if root has mounted it for an engine; otherwise the refusal
    names type and fix.
    """
    monkeypatch.setattr("nvgraft.system.userns.inside", lambda: rootless)
    here = syscalls.mount_id(container.rootfs_fd)
    container.fuse.append(volume("/", id=here, fstype=fstype, by_root=by_root))
    if accepted:
        shun(container)
        return
    with pytest.raises(Refusal, match=rf"it is on a FUSE file system \({fstype}\)") as refusal:
        shun(container)
    assert refusal.value.stage == "container"
    assert "allow-fuse = true" in refusal.value.hint


@pytest.mark.parametrize(
    "path", ["/vol", "/vol/below/x", "/to-vol/below", "/etc/../vol/below", "/absolute"]
)
def test_nothing_on_a_volume_is_looked_at(rootfs: Path, path: str) -> None:
    """A path that is on a volume, or that the image's links lead there, is refused before it is
    looked up.
    """
    (rootfs / "to-vol").symlink_to("vol")
    (rootfs / "absolute").symlink_to("/vol/below")
    with pytest.raises(OnFuse, match=r"/vol[^ ]*: it is on the FUSE volume /vol, which may never"):
        tree(rootfs).find(path)


@pytest.mark.parametrize(
    "look",
    [
        lambda tree: tree.lstat("/vol/below"),
        lambda tree: tree.listdir("/vol"),
        lambda tree: tree.read("/vol/x", 1),
        lambda tree: tree.open("/vol"),
        lambda tree: tree.elf("/vol/x", sections=False),
        lambda tree: tree.directory("/vol/below"),
    ],
)
def test_every_look_is_refused(rootfs: Path, look: Callable[[ShunningTree], object]) -> None:
    """No method of the tree looks at a volume."""
    with pytest.raises(OnFuse):
        look(tree(rootfs))


def test_the_rest_is_as_ever(rootfs: Path) -> None:
    """What only begins like the name of a volume is looked at, and a listing has the volume's
    name.
    """
    (rootfs / "volumes").mkdir()
    assert tree(rootfs).find("/volumes")[1] is not None
    assert "vol" in tree(rootfs).listdir("/")


def tree(rootfs: Path) -> ShunningTree:
    return ShunningTree(os.open(rootfs, os.O_PATH), str(rootfs), ("/vol",))


def test_compatibility_libraries_on_a_volume_are_left_out(rootfs: Path) -> None:
    """CUDA's compatibility libraries on a FUSE volume are left out with a warning."""
    (rootfs / "usr/local").mkdir()
    (rootfs / "usr/local/cuda").symlink_to("/vol/below")
    target = OfflineTarget(tree(rootfs), "x86_64", (), module=True)
    directory, (finding,) = compat_directory(target, "535.1", "ldconfig")
    assert directory is None
    assert finding.id == "cuda-compat-on-volume"
    assert "is on the volume /vol" in finding.message


def test_the_loader_cache_leaves_volumes_out(rootfs: Path, container: Container) -> None:
    """Directories of ld.so.conf on a FUSE volume, and files that are one, count as absent; a
    warning names the volumes.
    """
    (rootfs / LIBS[1:]).mkdir(parents=True, exist_ok=True)
    (rootfs / "etc/ld.so.conf").write_text("/vol/below\n/link\n")
    (rootfs / "link").symlink_to("vol/below")
    shun(container)
    cache = NativeCache("/sbin/ldconfig", shunning=True)
    cache.prepare()
    cache.survey(container, plan_for(rootfs).actions[-1])  # type: ignore[arg-type]
    assert list(cache._skipped) == ["/vol"]
    cache.close()


def test_a_file_that_is_a_volume_is_not_opened(rootfs: Path, container: Container) -> None:
    """A file of a library directory that is itself a FUSE mount is told by its mount, and neither
    examined nor opened.
    """
    (rootfs / "usr/lib64/libx.so").touch()
    shun(container)
    own_fds = os.open("/proc/self/fd", os.O_PATH)
    files = ShunningRootfs(container, own_fds, Bounds())
    directory = files.directory("/usr/lib64")
    assert directory.kind("libx.so") == "file"
    assert directory.kind("missing") is None
    files._mounts[syscalls.mount_id(container.rootfs_fd)] = volume("/usr/lib64/libx.so")
    assert directory.kind("libx.so") == "other"
    with pytest.raises(PermissionError):
        directory.library("libx.so")
    directory.close()
    os.close(own_fds)


@pytest.mark.parametrize("allowed", [True, False])
def test_config_toml_can_allow_them(
    container: Container, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, allowed: bool
) -> None:
    """With allow-fuse nothing is shunned; the setting is asked for only if there are FUSE mounts."""
    monkeypatch.setattr("nvgraft.system.lock.DIRECTORY", str(tmp_path / "nvgraft/lock"))
    monkeypatch.setattr("nvgraft.apply.journal.DIRECTORY", str(tmp_path / "nvgraft/journal"))
    monkeypatch.setattr("nvgraft.apply.held_container.hold_signals", lambda: None)
    table = Path("/proc/self/mountinfo").read_text() + (
        f"998 1 0:9 / {container.rootfs}/vol rw - fuse.x y rw,user_id=0\n"
    )
    monkeypatch.setattr("nvgraft.container.container.read_text", lambda *_: table)
    with HeldContainer(container, print, lambda: allowed):
        assert container.shunned == (() if allowed else ("/vol",))
    monkeypatch.setattr("nvgraft.container.container.read_text", lambda *_: "")
    container.read_mounts(lambda: pytest.fail("asked"))


def test_the_target_refuses_required_places(rootfs: Path, container: Container) -> None:
    """A library directory on a FUSE volume is refused when the target is made."""
    (rootfs / "usr/lib").symlink_to("/vol/below")
    shun(container)
    with pytest.raises(OnFuse):
        LiveTarget(container, "x86_64")


# ---- deleted files that stay until they are closed


@pytest.mark.parametrize(
    ("fstype", "stay"),
    [("fuse.fuse-overlayfs", True), ("nfs4", True), ("cifs", True), ("overlay", False)],
)
def test_a_directory_is_removed_when_its_closed_files_are_gone(
    container: Container, rootfs: Path, monkeypatch: pytest.MonkeyPatch, fstype: str, stay: bool
) -> None:
    """Where deleted files stay until a server knows that they are closed, an undo waits for that;
    elsewhere a directory that is not empty is an error at once.
    """
    mount = Mount(1, "/", "/", "rw", False, fstype, "x")
    monkeypatch.setattr(container.mounts, "get", lambda _id: mount)
    hidden = rootfs / "opt/.nfs0001"
    hidden.parent.mkdir()
    hidden.touch()
    monkeypatch.setattr("time.sleep", lambda _: hidden.unlink())
    if stay:
        targets.remove_directory("opt", container.rootfs_fd, container)
        assert not hidden.parent.exists()
    else:
        with pytest.raises(OSError, match="not empty"):
            targets.remove_directory("opt", container.rootfs_fd, container)


# ---- commands


@pytest.fixture
def mounted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that makes this process's mount table show a FUSE mount."""

    def show(point: str, fstype: str = "fuse.sshfs", user: int = 0) -> None:
        line = f"99 1 0:9 / {point} rw - {fstype} x rw,user_id={user},group_id=0\n"
        monkeypatch.setattr(cli_fuse, "_mountinfo", lambda: line)

    return show


@pytest.mark.parametrize("below", ["", "/vol", "/../.."])
def test_a_command_looks_at_no_path_on_fuse(
    rootfs: Path, mounted: Callable[..., None], capsys: pytest.CaptureFixture[str], below: str
) -> None:
    """A container on a FUSE file system is refused with the fix, whatever leads there."""
    mounted(os.path.normpath(f"{rootfs}{below}"))
    link = rootfs.parent.parent / f"link-{rootfs.parent.name}"
    link.symlink_to(rootfs / "vol")
    assert main.main(["plan", "--host", "runfile-a10x2", "--bundle", str(link)]) == 2
    error = capsys.readouterr().err
    assert f"nvgraft plan: {link}: it is on the FUSE file system " in error
    assert "allow-fuse = true" in error


def test_a_volume_that_is_mounted_already_makes_no_difference(
    tmp_path: Path, mounted: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    """A FUSE volume of config.json that is also mounted in the bundle's root file system is refused
    only where the plan needs it.
    """
    for number, (place, code) in enumerate((("/data", 0), (X86_LIBS, 1))):
        files = ("etc/debian_version", "data/x", f"{X86_LIBS[1:]}/x")
        bundle = make_bundle(tmp_path / str(number), *EVERYTHING, files=files, mounts=(place,))
        mounted(f"{bundle}/rootfs{place}")
        assert main.main(["plan", "--host", "runfile-a10x2", "--bundle", str(bundle)]) == code
        assert ("FUSE" in capsys.readouterr().err) == bool(code)


@pytest.mark.parametrize(("fstype", "user"), [("ext4", 0), ("fusectl", 0)])
def test_other_mounts_are_no_hindrance(
    rootfs: Path, mounted: Callable[..., None], fstype: str, user: int
) -> None:
    """Other file systems, and the kernel's own fusectl, are looked at."""
    mounted(str(rootfs), fstype, user)
    cli_fuse.check_path(str(rootfs))


@pytest.mark.parametrize(("user", "root"), [(0, True), (1000, False)])
def test_an_engines_root_is_looked_at(
    rootfs: Path,
    mounted: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    user: int,
    root: bool,
) -> None:
    """A root file system that fuse-overlayfs serves for root, or for this user, is looked at."""
    monkeypatch.setattr(os, "geteuid", lambda: 0 if root else 1000)
    mounted(str(rootfs), "fuse.fuse-overlayfs", user)
    cli_fuse.check_path(str(rootfs))


def test_config_toml_allows_commands_too(
    rootfs: Path, mounted: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """allow-fuse in this host's config.toml holds for commands as well."""
    mounted(str(rootfs))
    config = tmp_path / "config.toml"
    config.write_text("[nvgraft]\nallow-fuse = true\n")
    monkeypatch.setenv("NVIDIA_CTK_CONFIG_FILE_PATH", str(config))
    cli_fuse.check_path(str(rootfs))
