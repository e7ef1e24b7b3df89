"""What one image may cost, with bounds that config.toml has lowered: integration/test_bounds.py has
them at their full size.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import hosts
from bundles import EVERYTHING, make_bundle
from nvgraft.base.errors import Refusal
from nvgraft.formats.tree import Bounds, LiveTree, OutOfBounds, PathError
from nvgraft.plan.actions import Bind, Symlink
from nvgraft_cli.shell.main import main

HOST = "eks-t4"
LIBS = "usr/lib/x86_64-linux-gnu"
COMPAT = "usr/local/cuda/compat"


def many_names(rootfs: Path) -> None:
    """Files of any name in the library directory."""
    for number in range(60):
        (rootfs / LIBS / f"file{number}").touch()


def many_sonames(rootfs: Path) -> None:
    """Files that ldconfig would prefer to the driver's libcuda, if their SONAME were the same."""
    for number in range(12):
        (rootfs / LIBS / f"libcuda.so.9999.{number}").touch()


def many_compat_libraries(rootfs: Path) -> None:
    """Names of CUDA's compat libraries, which all are one file."""
    (rootfs / COMPAT).mkdir(parents=True)
    (rootfs / COMPAT / "libcuda.so.1").touch()
    for number in range(12):
        os.link(rootfs / COMPAT / "libcuda.so.1", rootfs / COMPAT / f"libx{number}.so.1")


def long_links(rootfs: Path) -> None:
    """A link that leads through many names."""
    (rootfs / "usr/bin").symlink_to("/" + "./" * 200 + "opt")


CASES = [
    (many_names, "names", "image-names", 50),
    (long_links, "names", "image-names", 50),
    (many_sonames, "libraries", "image-libraries", 10),
    (many_compat_libraries, "libraries", "image-libraries", 10),
]


def bundle(tmp_path: Path, fill: Callable[[Path], None]) -> str:
    made = make_bundle(tmp_path / "bundle", *EVERYTHING)
    (made / "rootfs" / LIBS).mkdir(parents=True)
    fill(made / "rootfs")
    return str(made)


@pytest.mark.parametrize(
    ("fill", "what", "key", "limit"), CASES, ids=[case[0].__name__ for case in CASES]
)
def test_a_bound_is_named_and_can_be_raised(
    fill: Callable[[Path], None],
    what: str,
    key: str,
    limit: int,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The refusal has what was found, the limit and the key of config.toml; a greater value of that
    key accepts the same image.
    """
    words = ["plan", "--bundle", bundle(tmp_path, fill), "--host", HOST, "--config"]
    config = tmp_path / "config.toml"
    config.write_text(f"[nvgraft]\n{key} = {limit}\n")
    assert main([*words, str(config)]) == 1
    line = capfd.readouterr().err
    found, words_found = line.partition("rootfs")[2].partition(": ")[2].split()[:2]
    assert int(found) > limit and words_found.strip(",") == what
    assert f"more than {key} = {limit} allows | " in line
    assert f"raise {key} under [nvgraft] in config.toml" in line
    config.write_text(f"[nvgraft]\n{key} = 2000\n")
    assert main([*words, str(config)]) == 0


def test_names_count_by_their_length_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long names count for more than short ones in a large directory: those of FUSE have up to 1024
    bytes.
    """
    monkeypatch.setattr("nvgraft.formats.tree._MANY", 0)
    (tmp_path / "large").mkdir()
    for number in range(20):
        (tmp_path / "large" / f"{number:0255}").touch()
    tree = LiveTree(os.open(tmp_path, os.O_PATH), "/rootfs", Bounds(names=20))
    with pytest.raises(OutOfBounds, match=r"^/rootfs/large: .* more than image-names = 20 allows"):
        tree.listdir("/large")
    tree.close()


def test_links_do_not_lead_down_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Links that lead deeper and deeper, or through more bytes than the kernel follows, are an
    error of the path.
    """
    monkeypatch.setattr("nvgraft.formats.tree._MAX_LEVELS", 20)
    for depth in (15, 30):
        place = tmp_path.joinpath(*["d"] * depth)
        place.mkdir(parents=True)
        (place / "link").symlink_to("d/" * 15 + "link")
    (tmp_path / "long").symlink_to("d/" * 2000)
    tree = LiveTree(os.open(tmp_path, os.O_PATH), "/rootfs", Bounds())
    for path in ("/" + "d/" * 15 + "link", "/long/" + "d" * 100):
        with pytest.raises(PathError, match="file name too long"):
            tree.resolve(path)
    tree.close()


def test_time_is_a_bound(tmp_path: Path) -> None:
    """An image that takes too long is refused where it is looked at next."""
    (tmp_path / "etc").mkdir()
    tree = LiveTree(os.open(tmp_path, os.O_PATH), "/rootfs", Bounds(seconds=-1))
    with pytest.raises(OutOfBounds, match=r"/rootfs/etc: 0.0 seconds, more than image-seconds"):
        tree.listdir("/etc")
    tree.close()


@pytest.mark.parametrize("there", [True, False])
def test_a_library_directory_on_a_volume_is_listed_if_it_is_mounted_in(
    there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A volume is listed only when the driver's libraries find their places there."""
    document = hosts.full_host()
    actions = hosts.plan(document).actions
    files = [action.target for action in actions if isinstance(action, Bind)]
    links = [f"{action.path} -> x" for action in actions if isinstance(action, Symlink)]
    names = [line for line in (*files, *links) if line.startswith(f"/{LIBS}/")]
    rootfs = "\n".join([hosts.DEBIAN, f"/{LIBS}/", *(names if there else ())])
    target = hosts.target(rootfs, volumes=(f"/{LIBS}",))
    listed: list[str] = []
    listdir = target.tree.listdir

    def noted(path: str) -> list[str]:
        listed.append(path)
        return listdir(path)

    monkeypatch.setattr(target.tree, "listdir", noted)
    try:
        hosts.plan(document, target)
    except Refusal as refusal:
        assert "would be made on the volume" in refusal.text and not there
    assert (f"/{LIBS}" in listed) == there


def test_plans_that_stop_at_a_bound_are_not_equal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two hosts on which the image is too large for a plan have no plans that could be equal."""
    config = tmp_path / "config.toml"
    config.write_text("[nvgraft]\nimage-names = 50\n")
    words = ["diff", HOST, "runfile-a10x2", "--bundle", bundle(tmp_path, many_names)]
    assert main([*words, "--config", str(config)]) == 2
    assert "more than image-names = 50 allows" in capfd.readouterr().err


def test_doctor_says_what_it_did_not_check(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A check that stops at a bound counts as not made, and says why."""
    config = tmp_path / "config.toml"
    config.write_text("[nvgraft]\nimage-libraries = 10\n")
    words = ["doctor", "--verbose", "--bundle", bundle(tmp_path, many_sonames), "--host", HOST]
    assert main([*words, "--config", str(config)]) == 1
    lines = capfd.readouterr().out.splitlines()
    (line,) = [line for line in lines if line.startswith("not checked: ") and "image-has" in line]
    assert "image-has-driver" in line and "more than image-libraries = 10 allows" in line
