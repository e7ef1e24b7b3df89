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
