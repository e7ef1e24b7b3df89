"""CUDA's forward compatibility libraries: their directory comes first for the loader, none is
mounted.
"""

import json
import re
from pathlib import Path

import pytest

from bundles import EVERYTHING, make_bundle
from nvgraft.base.errors import Refusal
from nvgraft.container.offline_target import OfflineTarget
from nvgraft.host.snapshot import SnapshotTree
from nvgraft.plan.actions import Bind, UpdateLoaderCache
from nvgraft.plan.compat import compat_directory
from nvgraft_specs import gallery
from planned import plan_bundle

LOOP = "too many levels of symbolic links"
DRIVER = "535.104.05"


def image(
    *libraries: str, links: dict[str, str] | None = None, volumes: tuple[str, ...] = ()
) -> OfflineTarget:
    files = {path: {"type": "file", "mode": "0644"} for path in libraries}
    files |= {path: {"type": "symlink", "target": target} for path, target in (links or {}).items()}
    return OfflineTarget(SnapshotTree(files), "x86_64", volumes, module=True)


COMPAT = "/usr/local/cuda-12.4/compat"
LINKS = {
    "/usr/local/cuda": "cuda-12.4",
    f"{COMPAT}/libcuda.so.1": "libcuda.so.550.54.14",
    f"{COMPAT}/libcuda.so": "libcuda.so.1",
}


@pytest.mark.parametrize(
    ("version", "mode", "taken"),
    [
        ("550.54.14", "ldconfig", True),
        ("535.104.05", "ldconfig", False),
        ("535.54.03", "ldconfig", False),
        ("470.57.02", "ldconfig", False),
        ("550.54.14", "mount", True),
        ("535.54.03", "mount", False),
        ("470.57.02", "mount", True),
        ("550.54.14", "disabled", False),
    ],
)
def test_the_major_version_decides(version: str, mode: str, taken: bool) -> None:
    """Mode ldconfig takes newer majors only, mount all majors but the driver's, disabled none."""
    tree = image(
        f"{COMPAT}/libcuda.so.{version}",
        links={"/usr/local/cuda": "cuda-12.4", f"{COMPAT}/libcuda.so.1": f"libcuda.so.{version}"},
    )
    directory, findings = compat_directory(tree, DRIVER, mode)
    assert directory == (COMPAT if taken else None)
    assert [finding.id for finding in findings] == (
        ["cuda-compat-not-mounted"] if mode == "mount" and taken else []
    )


@pytest.mark.parametrize("volume", ["/usr/local/cuda", COMPAT, "/data"])
def test_a_directory_on_a_volume_is_not_listed(
    volume: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compat directory on a volume, or one to which its links lead, is left out with a warning,
    and no volume is listed: it may have any number of names.
    """
    links = {"/usr/local/cuda": "cuda-12.4", f"{COMPAT}/libcuda.so.1": "/data/libcuda.so.550.1"}
    target = image("/data/libcuda.so.550.1", links=links, volumes=(volume,))
    listed = []

    def listdir(path: str) -> list[str]:
        listed.append(path)
        return ["libcuda.so.1"]

    monkeypatch.setattr(target.tree, "listdir", listdir)
    directory, (finding,) = compat_directory(target, DRIVER, "ldconfig")
    assert directory is None
    assert (finding.id, finding.level) == ("cuda-compat-on-volume", "warning")
    assert volume in finding.message or volume == "/usr/local/cuda"
    assert listed == ([COMPAT] if volume == "/data" else [])


def test_another_mode_is_refused() -> None:
    """A mode that the reference CLI does not know is a container error."""
    with pytest.raises(Refusal, match="invalid option: cuda-compat-mode=bogus"):
        compat_directory(image("/etc/x"), DRIVER, "bogus")


def test_majors_compare_as_text() -> None:
    """As in the reference, "1000" is compared with as many characters of the driver's version."""
    tree = image("/usr/local/cuda/compat/libcuda.so.1000.1")
    assert compat_directory(tree, "535.104.05", "ldconfig")[0] is None


def test_an_image_without_compat_libraries() -> None:
    """An image without compat libraries has no compat directory."""
    assert compat_directory(image("/etc/x"), DRIVER, "ldconfig") == (None, [])


def test_two_directories_are_refused() -> None:
    """Links to libraries in different directories are a container error."""
    links = {
        "/usr/local/cuda/compat/libcuda.so.1": "/a/libcuda.so.550.1",
        "/usr/local/cuda/compat/libnvidia-nvvm.so.4": "/b/libnvidia-nvvm.so.550.1",
    }
    tree = image("/a/libcuda.so.550.1", "/b/libnvidia-nvvm.so.550.1", links=links)
    with pytest.raises(Refusal, match="more than one directory: /a, /b") as refusal:
        compat_directory(tree, DRIVER, "ldconfig")
    assert refusal.value.stage == "container"


@pytest.mark.parametrize(
    ("link", "target", "text", "leads"),
    [
        ("", "../../../../x", "path error: /usr/local/cuda resolves outside of /", "out of the"),
        ("", "cuda", f"path error: ///usr/local/cuda: {LOOP}", "in a circle"),
        ("", "f/x", "path error: ///usr/local/cuda: not a directory", "through a file"),
        ("/compat", "compat", f"glob search failed: /usr/local/cuda/compat/lib*.so.*: {LOOP}", "in a"),
        ("/compat", "../../../../../x", "path error: /usr/local/cuda/compat resolves", "out of the"),
        ("/compat/libx.so.9", "f/x", "/usr/local/cuda/compat/libx.so.9: not a directory", "through"),
    ],
)  # fmt: skip
def test_links_that_lead_nowhere_are_refused(link: str, target: str, text: str, leads: str) -> None:
    """A link above the root, in a circle or through a file is a container error in the
    reference's words, and the hint says what the link does.
    """
    files = ("/usr/local/f", "/usr/local/cuda/compat/f") if link else ("/usr/local/f",)
    tree = image(*files, links={f"/usr/local/cuda{link}": target})
    with pytest.raises(Refusal, match=re.escape(text)) as refusal:
        compat_directory(tree, DRIVER, "ldconfig")
    assert f"leads {leads}" in refusal.value.hint


@pytest.mark.parametrize(
    ("files", "links"),
    [
        (("/usr/local/cuda",), {}),
        (("/usr/local/f",), {"/usr/local/cuda": "f"}),
        (("/usr/local/cuda/compat",), {}),
        (("/usr/local/cuda/f",), {"/usr/local/cuda/compat": "f/x"}),
    ],
)
def test_a_file_in_the_place_of_a_directory_has_no_libraries(
    files: tuple[str, ...], links: dict[str, str]
) -> None:
    """A regular file at /usr/local/cuda or compat, or behind a link there, means no libraries."""
    assert compat_directory(image(*files, links=links), DRIVER, "ldconfig") == (None, [])


def test_the_container_is_refused_before_the_drivers_files(tmp_path: Path) -> None:
    """Of a fault of the image and one of the host's loader cache the first one is named, as by the
    reference. Without the image's fault the other one is.
    """
    document = json.loads(Path(gallery.path("eks-t4")).read_text())
    document["ld_so_cache"].insert(0, ["libcuda.so.1", "libc6,x86-64", "/gone/libcuda.so.1"])
    host = tmp_path / "host.json"
    host.write_text(json.dumps(document))
    bundle = make_bundle(tmp_path / "b", *EVERYTHING)
    for stage in ("detection", "container"):
        _, refusal = plan_bundle(str(bundle), str(host), None)
        assert refusal is not None
        assert refusal.stage == stage
        if stage == "detection":
            (bundle / "rootfs/usr/local").mkdir(parents=True)
            (bundle / "rootfs/usr/local/cuda").symlink_to("cuda")


@pytest.mark.parametrize(
    ("capabilities", "first"), [("compute", COMPAT), ("video", COMPAT), ("graphics", None)]
)
def test_the_loader_looks_there_first(tmp_path: Path, capabilities: str, first: str | None) -> None:
    """With compute libraries the loader cache step begins with the compat directory.

    No mount has a source in the image.
    """
    root = tmp_path / "rootfs"
    (root / COMPAT[1:]).mkdir(parents=True)
    (root / COMPAT[1:] / "libcuda.so.999.1").touch()
    (root / "usr/local/cuda").symlink_to("cuda-12.4")
    env = ["NVIDIA_VISIBLE_DEVICES=all", f"NVIDIA_DRIVER_CAPABILITIES={capabilities}"]
    (tmp_path / "config.json").write_text(
        json.dumps({"ociVersion": "1.0.2", "process": {"env": env}, "root": {"path": "rootfs"}})
    )
    plan, refusal = plan_bundle(str(tmp_path), "debian-a100x8", None)
    assert refusal is None
    (update,) = [action for action in plan.actions if isinstance(action, UpdateLoaderCache)]
    assert (update.directories[0] == COMPAT) == (first is not None)
    assert not [
        action for action in plan.actions if isinstance(action, Bind) and "compat" in action.source
    ]
