"""The container of an offline plan: where its rootfs is, and which directories cannot be one."""

from pathlib import Path

import pytest

from bundles import make_bundle
from descriptors import nothing_stays_open
from nvgraft.base.errors import Refusal
from nvgraft.request.oci import ContainerConfig
from nvgraft_cli.case.bundle import ContainerSide, find_rootfs, open_container, rootfs_label
from nvgraft_cli.shell.errors import InputError


def container(root: str, *mounts: str) -> ContainerConfig:
    return ContainerConfig({}, root_path=root, mounts=tuple(("/srv", path) for path in mounts))


@pytest.mark.parametrize(
    ("root", "label"),
    [
        ("rootfs", "{bundle}/rootfs"),
        ("./a/../rootfs/", "{bundle}/rootfs"),
        ("../other", "{parent}/other"),
        ("/abs/x", "/abs/x"),
        ("/a/../b", "/b"),
    ],
)
def test_the_rootfs_is_named_as_the_hook_names_it(tmp_path: Path, root: str, label: str) -> None:
    """A relative root.path counts from the bundle, the hook's working directory."""
    bundle = tmp_path / "b"
    assert rootfs_label(container(root), str(bundle)) == label.format(
        bundle=bundle, parent=tmp_path
    )


def test_a_relative_bundle_gives_an_absolute_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rootfs of a relative bundle has an absolute name, for messages and plans."""
    monkeypatch.chdir(tmp_path)
    assert rootfs_label(container("rootfs"), "b") == f"{tmp_path}/b/rootfs"


def test_an_absolute_rootfs_that_is_missing_is_looked_for_in_the_bundle(tmp_path: Path) -> None:
    """A missing absolute rootfs is looked for in the bundle by its whole path and its last name.

    A bundle that was copied from a node carries its rootfs along.
    """
    bundle = make_bundle(tmp_path / "b")
    assert find_rootfs(container("/run/no/such/place/rootfs"), str(bundle)) == f"{bundle}/rootfs"
    (bundle / "run/no/such/place/rootfs").mkdir(parents=True)
    assert (
        find_rootfs(container("/run/no/such/place/rootfs"), str(bundle))
        == f"{bundle}/run/no/such/place/rootfs"
    )


def test_an_absolute_rootfs_that_exists_is_taken(tmp_path: Path) -> None:
    """An existing absolute rootfs is used, even when the bundle has one of the same name."""
    bundle = make_bundle(tmp_path / "b")
    (tmp_path / "elsewhere/rootfs").mkdir(parents=True)
    assert (
        find_rootfs(container(f"{tmp_path}/elsewhere/rootfs"), str(bundle))
        == f"{tmp_path}/elsewhere/rootfs"
    )


@pytest.mark.parametrize("root", ["none", "/run/no/such/place", "config.json"])
def test_a_missing_rootfs_is_an_error(tmp_path: Path, root: str) -> None:
    """The error for a missing rootfs names the places where it was looked for."""
    bundle = make_bundle(tmp_path / "b")
    with pytest.raises(
        InputError, match=r"no such directory: the root\.path of .*/b/config\.json exists neither"
    ):
        find_rootfs(container(root), str(bundle))


def side(root: str, bundle: Path, *mounts: str) -> ContainerSide:
    make_bundle(bundle, root=root, mounts=mounts)
    return open_container(str(bundle))


def test_the_target_is_the_rootfs_under_its_own_name(tmp_path: Path) -> None:
    """Files are read in the bundle, and messages name the path that config.json gives.

    The volumes are config.json's mounts.
    """
    with side("/run/web/rootfs", tmp_path / "b", "/data") as container:
        target = container.target("x86_64", module=False)
        assert target.rootfs == "/run/web/rootfs"
        assert target.libs_dir == "/usr/lib/x86_64-linux-gnu"
        assert target.volume("/data/x") == "/data"
        assert target.proc_driver() is None


@pytest.mark.parametrize("root", ["/", "//", "/x/..", "../../../../../../../../../.."])
def test_the_hosts_own_root_is_refused(tmp_path: Path, root: str) -> None:
    """A plan refuses the host's root as rootfs, as the hook does."""
    with (
        side(root, tmp_path / "b") as container,
        pytest.raises(Refusal, match=r"^invalid rootfs directory$"),
    ):
        container.target("x86_64", module=True)


def test_an_unreadable_rootfs_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error for an unreadable rootfs has the kernel's reason."""

    def forbidden(path: str, *_: object) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("nvgraft_cli.case.bundle.open_tree", forbidden)
    with (
        side("rootfs", tmp_path / "b") as container,
        pytest.raises(InputError, match=r"rootfs: permission denied: "),
    ):
        container.target("x86_64", module=True)


def test_the_rootfs_is_opened_once_and_closed(tmp_path: Path) -> None:
    """The rootfs is opened once for plans on several hosts, and closed afterwards."""
    with nothing_stays_open(), side("rootfs", tmp_path / "b") as container:
        targets = [
            container.target(machine, module=True) for machine in ("x86_64", "aarch64", "x86_64")
        ]
        assert targets[0] is targets[2]
        assert targets[0].libs_dir != targets[1].libs_dir
