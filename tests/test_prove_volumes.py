"""Libraries in volumes of a container, of this machine and of others."""

import json
from pathlib import Path

import pytest

from bundles import put
from loaders import Captured, library, run_prove, starters_bundle
from nvgraft_cli.case.hosts import read_snapshot
from nvgraft_cli.shell.main import main


def test_a_file_that_is_mounted_over_the_link_is_loaded(tmp_path: Path, capsys: Captured) -> None:
    """The hook replaces no file that is mounted, so a volume on libcuda.so.1 hides the host's."""
    path = starters_bundle(tmp_path / "b")
    place = "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
    config = json.loads(Path(path, "config.json").read_text())
    source = f"{path}/rootfs/opt/x/libcuda.so.1"
    mount = {"destination": place, "type": "bind", "source": source, "options": ["bind"]}
    config["mounts"] = [mount]
    Path(path, "config.json").write_text(json.dumps(config))
    code, (proof,) = run_prove(capsys, "--bundle", path)
    assert (code, proof["file"]["path"]) == (4, place)


@pytest.mark.parametrize(
    ("mount", "code", "unknown"),
    [
        ({"destination": "/opt/x", "type": "tmpfs"}, 0, False),
        ({"destination": "/opt/link", "type": "tmpfs"}, 0, False),
        ({"destination": "/opt/x", "type": "tmpfs", "options": ["tmpcopyup"]}, 4, False),
        ({"destination": "/opt", "type": "nfs", "source": "server:/none"}, 0, True),
        ({"destination": "/opt/x/libcuda.so.1", "type": "nfs", "source": "server:/x"}, 0, True),
        ({"destination": "/opt/xy", "type": "tmpfs"}, 4, False),
        ({"destination": "/dev/shm", "type": "tmpfs"}, 4, False),
    ],
)
def test_a_volume_covers_files_of_the_image(
    mount: dict[str, str], code: int, unknown: bool, tmp_path: Path, capsys: Captured
) -> None:
    """A tmpfs hides the image's files. What another volume has is not known, and is said."""
    path = starters_bundle(tmp_path / "b", "LD_LIBRARY_PATH=/opt/x")
    (tmp_path / "b/rootfs/opt/link").symlink_to("x")
    config = json.loads(Path(path, "config.json").read_text())
    config["mounts"] = [mount]
    Path(path, "config.json").write_text(json.dumps(config))
    found, (proof,) = run_prove(capsys, "--bundle", path)
    assert found == code
    place = mount["destination"]
    fact = f"which libraries the volume {place} has, which comes first in the search"
    assert [text for text in proof["unknown"] if "volume" in text] == [fact] * unknown


@pytest.mark.parametrize("read_only", [False, True])
def test_a_script_copies_a_library_to_a_tmpfs(
    read_only: bool, tmp_path: Path, capsys: Captured
) -> None:
    """What a script has put on a volume is there, also under a read-only root file system."""
    words = "cp /opt/x/libcuda.so.1 /scratch/; export LD_LIBRARY_PATH=/scratch; exec app"
    path = starters_bundle(tmp_path / "b", args=["sh", "-c", words])
    (tmp_path / "b/rootfs/scratch").mkdir()
    config = json.loads(Path(path, "config.json").read_text())
    config["mounts"] = [{"destination": "/scratch", "type": "tmpfs"}]
    config["root"]["readonly"] = read_only
    Path(path, "config.json").write_text(json.dumps(config))
    code, (proof,) = run_prove(capsys, "--bundle", path)
    assert (code, proof["file"]["path"]) == (4, "/scratch/libcuda.so.1")


def test_files_that_the_runtime_mounts_are_those_of_the_host(
    tmp_path: Path, capsys: Captured
) -> None:
    """Graphics files that mode legacy adds for a recorded host need not exist on this machine."""
    env = ["NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=all"]
    words = ["--host", "debian-a10g-index", "--mode", "legacy"]
    main(["doctor", "--bundle", starters_bundle(tmp_path / "b", *env), *words])
    assert "error mounting" not in capsys.readouterr().out


@pytest.mark.parametrize("elsewhere", ["bundle", "host"])
def test_volumes_of_another_machine(elsewhere: str, tmp_path: Path, capsys: Captured) -> None:
    """Sources of mounts are not known if the bundle is a copy, whose root.path is on another
    machine, and if the host is another one.
    """
    path = starters_bundle(tmp_path / "b")
    config = json.loads(Path(path, "config.json").read_text())
    host = "runfile-a10x2"
    if elsewhere == "bundle":
        config["root"]["path"] = "/srv/other-machine/rootfs"
    else:
        document = put(tmp_path / "node.json", json.dumps(read_snapshot(host)))
        host = str(document)
    config["mounts"] = [{"destination": "/opt", "source": "/srv/none", "options": ["rbind"]}]
    Path(path, "config.json").write_text(json.dumps(config))
    assert run_prove(capsys, "--bundle", path, host=host)[0] == 0


@pytest.mark.parametrize("source", ["volume", "link", "volume/libcuda.so.470.57.02"])
def test_a_volume_of_this_machine_is_read(source: str, tmp_path: Path, capsys: Captured) -> None:
    """The files of a bundle's volume count where they are here, the driver's mounts before them."""
    path = starters_bundle(tmp_path / "b", "LD_LIBRARY_PATH=/opt/x")
    volume = tmp_path / "volume"
    volume.mkdir()
    (tmp_path / "link").symlink_to("volume")
    (volume / "libcuda.so.470.57.02").write_bytes(library("libcuda.so.1"))
    (volume / "libcuda.so.1").symlink_to("libcuda.so.470.57.02")
    file = "." in source
    (tmp_path / "b/rootfs/opt/x/libcuda.so.1").unlink()
    if file:
        (tmp_path / "b/rootfs/opt/x/libcuda.so.1").touch()
    place = "/opt/x/libcuda.so.1" if file else "/opt/x"
    mount = {"destination": place, "source": str(tmp_path / source), "options": ["rbind", "ro"]}
    config = json.loads(Path(path, "config.json").read_text())
    config["mounts"] = [mount]
    Path(path, "config.json").write_text(json.dumps(config))
    code, (proof,) = run_prove(capsys, "--bundle", path)
    final = "/opt/x/libcuda.so.1" if file else "/opt/x/libcuda.so.470.57.02"
    assert (code, proof["file"]["path"]) == (4, final)
    assert proof["file"]["from"] == "image"
    assert f"the volume {place} is read from {tmp_path / source} of this machine" in proof["notes"]


@pytest.mark.parametrize("place", ["/opt/x/libcuda.so.1", "/etc/ld.so.preload"])
def test_a_device_without_bytes_hides_a_file(place: str, tmp_path: Path, capsys: Captured) -> None:
    """/dev/null, bound over a file, is empty: no library loads from it, and no list names one."""
    variable = "LD_LIBRARY_PATH=/opt/x" if place.startswith("/opt") else "MODE=x"
    path = starters_bundle(tmp_path / "b", variable)
    put(tmp_path / "b/rootfs/etc/ld.so.preload", "/opt/x/libcuda.so.1\n")
    if place.startswith("/opt"):
        (tmp_path / "b/rootfs/etc/ld.so.preload").unlink()
    config = json.loads(Path(path, "config.json").read_text())
    mount = {"destination": place, "source": "/dev/null", "options": ["bind", "ro"]}
    config["mounts"] = [mount]
    Path(path, "config.json").write_text(json.dumps(config))
    code, (proof,) = run_prove(capsys, "--bundle", path)
    assert not [text for text in proof["unknown"] if "volume" in text or "ld.so.preload" in text]
    words = [failure["words"] for failure in proof["failures"]]
    of_library = place.startswith("/opt")
    assert (code, words) == ((1, [f"{place}: file too short"]) if of_library else (0, []))
