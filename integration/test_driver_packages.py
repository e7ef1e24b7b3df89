"""``nvgraft snapshot --root`` of real drivers that are not installed: Debian's packages, unpacked."""

import json
import shutil
from pathlib import Path

import pytest

from harness import CHECKOUT
from nvgraft_cli.shell.main import main

pytestmark = pytest.mark.requires("driver-packages", "x86_64")

Captured = pytest.CaptureFixture[str]
CONTAINER = ["--container", str(CHECKOUT / "docs/examples/training")]
HOST = "debian-a100x8"
#: NVIDIA's drivers, unpacked by ./dev: one directory for each release of Debian.
DRIVER_PACKAGES = CHECKOUT / ".cache/drivers"


@pytest.mark.parametrize(
    ("release", "branch", "firmware"),
    [("bullseye", "470", 0), ("bookworm", "535", 2), ("trixie", "550", 2)],
)
@pytest.mark.parametrize("gpus", [[], ["--gpus", HOST]], ids=["without GPUs", "with GPUs"])
def test_a_packaged_driver_answers_before_it_is_installed(
    release: str, branch: str, firmware: int, gpus: list[str], tmp_path: Path, capsys: Captured
) -> None:
    """A plan has the libraries, nvidia-smi behind the alternatives and the firmware of the
    packages; libcuda loads; no text of the old driver is in the document; diff tells the versions.
    """
    new = str(tmp_path / "new.json")
    assert main(["snapshot", "--root", str(DRIVER_PACKAGES / release), *gpus, "-o", new]) == 0
    host = json.loads(Path(new).read_text())
    version = host["nvml"]["driver_version"]
    assert version.startswith(f"{branch}.")
    assert "535.309.01" not in json.dumps(host)
    case = [*CONTAINER, "--host", new, "--env", "NVIDIA_DISABLE_REQUIRE=1"]
    capsys.readouterr()
    assert main(["plan", *case, "--format", "json"]) == 0
    actions = json.loads(capsys.readouterr().out)["actions"]
    sources = {action["source"]: action["target"] for action in actions if "source" in action}
    libraries = "/usr/lib/x86_64-linux-gnu"
    cuda = sources[f"{libraries}/nvidia/current/libcuda.so.{version}"]
    assert cuda == f"{libraries}/libcuda.so.{version}"
    assert sources["/usr/lib/nvidia/current/nvidia-smi"] == "/usr/bin/nvidia-smi"
    images = [path for path in sources.values() if path.startswith("/lib/firmware/nvidia/")]
    assert len(images) == firmware
    assert ("/dev/nvidia0" in sources) == bool(gpus)
    assert main(["prove", *case]) == 0
    capsys.readouterr()
    main(["doctor", *case])
    lines = capsys.readouterr().out.splitlines()
    errors = [line.split(": ")[1] for line in lines if line.startswith("error: ")]
    # The image's CUDA 12 needs branch 525 or newer.
    assert errors == (["cuda-too-new"] if branch == "470" else [])
    assert main(["diff", HOST, new]) == 1
    assert f"  535.309.01 → {version}\n" in capsys.readouterr().out


@pytest.mark.requires("old-driver-packages")
@pytest.mark.parametrize(
    ("place", "branch", "firmware"), [("legacy-390xx", "390", 0), ("tesla", "525", 2)]
)
def test_an_older_driver_in_a_directory_of_its_own_is_found(
    place: str, branch: str, firmware: int, tmp_path: Path, capsys: Captured
) -> None:
    """Debian's legacy and tesla drivers have other names and directories; diff tells which driver
    moves, a newer GPU than the driver's is refused, and a mixture with another driver, too.
    """
    root, new = DRIVER_PACKAGES / place, str(tmp_path / "new.json")
    words = ["snapshot", "--root", str(root), "-o", new]
    if branch == "390":
        assert main([*words, "--gpus", HOST]) == 2
        assert "does not support NVIDIA A100-SXM4-40GB" in capsys.readouterr().err
    else:
        words += ["--gpus", HOST]
    assert main(words) == 0
    case = [*CONTAINER, "--host", new, "--env", "NVIDIA_DISABLE_REQUIRE=1"]
    capsys.readouterr()
    assert main(["plan", *case, "--format", "json"]) == 0
    actions = json.loads(capsys.readouterr().out)["actions"]
    sources = {action["source"]: action["target"] for action in actions if "source" in action}
    version = json.loads(Path(new).read_text())["nvml"]["driver_version"]
    assert version.startswith(f"{branch}.")
    libraries = "/usr/lib/x86_64-linux-gnu"
    cuda = sources[f"{libraries}/nvidia/{place}/libcuda.so.{version}"]
    assert cuda == f"{libraries}/libcuda.so.{version}"
    assert sources[f"/usr/lib/nvidia/{place}/nvidia-smi"] == "/usr/bin/nvidia-smi"
    images = [path for path in sources.values() if path.startswith("/lib/firmware/nvidia/")]
    assert len(images) == firmware
    assert main(["prove", *case]) == 0
    mixture = tmp_path / "mixture"
    for driver in (place, "trixie"):
        shutil.copytree(DRIVER_PACKAGES / driver, mixture, symlinks=True, dirs_exist_ok=True)
    capsys.readouterr()
    assert main(["snapshot", "--root", str(mixture)]) == 2
    assert f"{version} (in {libraries}/nvidia/{place})" in capsys.readouterr().err
