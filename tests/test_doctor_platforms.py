"""``nvgraft doctor`` of hosts whose driver has other files and nodes: Tegra boards and WSL2."""

import json
from pathlib import Path
from typing import Any

import pytest

from loaders import Captured
from nvgraft_cli.shell.main import main
from nvgraft_specs import gallery
from patients import Document, Setup


def recorded(name: str, directory: Path, without: tuple[str, ...] = ()) -> str:
    """Write a host of the gallery without some of its files, and return its path."""
    document: dict[str, Any] = json.loads(Path(gallery.path(name)).read_text())
    for path in without:
        del document["files"][path]
    written = directory / "host.json"
    written.write_text(json.dumps(document))
    return str(written)


def findings(capsys: Captured, *words: str) -> dict[str, list[Document]]:
    """Return doctor's findings by their ids."""
    main(["doctor", *words, "--format", "json"])
    results = json.loads(capsys.readouterr().out)["results"]
    return {result["id"]: result["findings"] for result in results if result["findings"]}


@pytest.mark.parametrize("name", gallery.names())
def test_the_hosts_of_the_gallery_are_in_order(name: str, capsys: Captured) -> None:
    """A Tegra board without NVML, and WSL2, whose libraries have no version in their names, are in
    order as the others are: no finding is an error.
    """
    found = findings(capsys, "--host", name)
    assert [one for results in found.values() for one in results if one["level"] == "error"] == []


@pytest.mark.parametrize(
    ("name", "nodes", "message"),
    [
        ("wsl2-rtx3090", ("/dev/dxg",), "there is no /dev/dxg"),
        (
            "jetson-orin",
            ("/dev/nvhost-gpu", "/dev/nvgpu/igpu0/ctrl"),
            "there is no /dev/nvhost-gpu and no /dev/nvgpu/igpu0/ctrl",
        ),
    ],
)
def test_a_host_without_its_own_gpu_nodes(
    name: str, nodes: tuple[str, ...], message: str, capsys: Captured, tmp_path: Path
) -> None:
    """The nodes that such a host needs are looked for in the place of /dev/nvidiactl."""
    (finding,) = findings(capsys, "--host", recorded(name, tmp_path, nodes))["driver-not-loaded"]
    assert finding["message"] == message


@pytest.mark.parametrize(
    ("name", "kind"), [("wsl2-rtx3090", "WSL2"), ("jetson-orin", "a Tegra board")]
)
def test_the_hook_is_not_for_such_a_host(
    name: str, kind: str, capsys: Captured, tmp_path: Path
) -> None:
    """A container that the hook refuses there is told to start with the runtime; the host is in
    order.
    """
    setup = Setup(tmp_path)
    words = setup.arguments()
    words[words.index("--host") + 1] = name
    found = findings(capsys, *words, "--mode", "hook")
    (finding,) = found["mode-not-legacy"]
    assert finding["message"].endswith(
        f"/dev/nvidiactl: no such file or directory: this host is {kind}"
    )
    assert "nvgraft-runtime" in finding["fix"]
    assert "driver-not-loaded" not in found
    main(["doctor", *words])
    assert capsys.readouterr().out.splitlines()[-2].startswith("This host can serve GPU containers")
    assert "mode-not-legacy" not in findings(capsys, *words, "--mode", "runtime")


ONE_GPU = Path(__file__).parent.parent / "docs" / "examples" / "one-gpu"
NOTHING = ("--env", "NVIDIA_VISIBLE_DEVICES=void", "--container", str(ONE_GPU))


@pytest.mark.parametrize("name", ["wsl2-rtx3090", "jetson-orin", "eks-t4"])
@pytest.mark.parametrize("mode", ["hook", "legacy", "jit-cdi", "runtime"])
def test_a_container_without_devices_is_told_a_way_that_this_host_has(
    name: str, mode: str, capsys: Captured
) -> None:
    """Where the hook does not serve the host, the variable alone would not do: the fix names the
    runtime too, unless the container is started with it in a mode that does.
    """
    found = findings(capsys, *NOTHING, "--host", name, "--mode", mode)
    (finding,) = found["devices-not-requested"]
    assert finding["fix"].startswith("set NVIDIA_VISIBLE_DEVICES=all")
    runtime = name != "eks-t4" and mode in {"hook", "legacy"}
    assert ("in mode auto: the hook does not serve this host" in finding["fix"]) is runtime


@pytest.mark.parametrize(
    ("mode", "read"), [("jit-cdi", False), ("legacy", False), ("cdi", True), ("runtime", True)]
)
def test_an_annotation_is_a_way_in_modes_that_read_it(
    mode: str, read: bool, capsys: Captured
) -> None:
    """CDI names in annotations are offered where the runtime reads them."""
    found = findings(capsys, *NOTHING, "--host", "eks-t4", "--mode", mode)
    (finding,) = found["devices-not-requested"]
    assert ("annotation" in finding["fix"]) is read


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("jetson-orin", "start another program: JetPack 5 and older have none of the driver's"),
        ("wsl2-rtx3090", "set NVIDIA_VISIBLE_DEVICES=all (docker -e, or ENV in the image)"),
    ],
)
def test_a_program_that_the_host_lacks_does_not_come_with_a_gpu(
    name: str, fix: str, capsys: Captured
) -> None:
    """A container without devices that starts nvidia-smi: GPUs bring it where the host has it."""
    found = findings(capsys, *NOTHING, "--host", name, "--mode", "cdi")
    (finding,) = found["program-missing"]
    assert finding["fix"].startswith(fix)
