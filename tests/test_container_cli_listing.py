"""The output of `list` and `info`."""

import json
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import TypedDict

import pytest

from hosts import Document
from nvgraft.base.errors import Refusal
from nvgraft.host.components import Inventory
from nvgraft.host.inventory import read_inventory
from nvgraft.host.snapshot import OFFLINE_PATH, snapshot_host
from nvgraft_cli.container_cli.listing import info_text, list_paths
from nvgraft_cli.container_cli.options import parse_global, parse_info, parse_list


class Row(TypedDict):
    """One recorded command line."""

    host: str
    args: str
    rc: int
    stdout: str
    stderr: str


REFERENCE = Path(__file__).parent / "fixtures" / "reference"
ROWS: list[Row] = [
    json.loads(line) for line in (REFERENCE / "list-info.jsonl").read_text().splitlines()
]


@cache
def document(host: str) -> Document:
    recorded: Document = json.loads((REFERENCE / "hosts" / f"{host}.json").read_text())
    return recorded


def inventory(host: str, omit: Collection[str] = (), **changes: object) -> Inventory:
    return read_inventory(snapshot_host(document(host) | changes), OFFLINE_PATH, omit=omit)


def list_of(host_inventory: Inventory, *words: str) -> list[str]:
    return list_paths(host_inventory, parse_list([*words], "cli"))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['host']}: {row['args']}")
def test_the_output_is_the_originals(row: Row) -> None:
    """Every recorded command line prints the recorded lines or the recorded error."""
    _, command, words = parse_global(row["args"].split(), "nvidia-container-cli")
    host_inventory = inventory(row["host"])
    try:
        if command == "info":
            output = info_text(host_inventory, csv=parse_info(words, "cli"))
        else:
            output = "".join(
                f"{path}\n" for path in list_paths(host_inventory, parse_list(words, "cli"))
            )
        code, error = 0, ""
    except Refusal as refusal:
        output, code, error = "", 1, refusal.reference_line("nvidia-container-cli")
    # The records lack the last newline.
    assert (output.removesuffix("\n"), code, error) == (row["stdout"], row["rc"], row["stderr"])


def test_the_records_are_all_there() -> None:
    """The fixture has all 84 records: a truncated one would make the test above pass too easily."""
    assert len(ROWS) == 84


def test_an_empty_device_list_lists_the_control_nodes() -> None:
    """`--device=` lists the control nodes, and no option lists none."""
    host_inventory = inventory("d470")
    assert list_of(host_inventory, "--device=") == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia-modeset",
    ]
    assert list_of(host_inventory, "--ipcs") == []


def test_a_mig_device_is_listed_with_its_access_files_and_nodes() -> None:
    """A MIG device is listed with its access files and nodes, after its GPU's node."""
    assert list_of(inventory("mig570"), "--device=0:1")[4:] == [
        "/dev/nvidia0",
        "/proc/driver/nvidia/capabilities/gpu0/mig/gi2/access",
        "/proc/driver/nvidia/capabilities/gpu0/mig/gi2/ci0/access",
        "/dev/nvidia-caps/nvidia-cap21",
        "/dev/nvidia-caps/nvidia-cap22",
    ]


def test_a_driver_that_keeps_capabilities_in_proc_has_no_nodes_for_them() -> None:
    """Without nvidia-caps in /proc/devices only the access files are listed."""
    host_inventory = inventory("mig570", char_majors={"nvidia": 195})
    assert list_of(host_inventory, "--device=0:1")[4:] == [
        "/dev/nvidia0",
        "/proc/driver/nvidia/capabilities/gpu0/mig/gi2/access",
        "/proc/driver/nvidia/capabilities/gpu0/mig/gi2/ci0/access",
    ]


@pytest.mark.parametrize(("name", "minor"), [("config", 1), ("monitor", 2)])
def test_the_administration_of_mig_takes_the_place_of_its_devices(name: str, minor: int) -> None:
    """--mig-config and --mig-monitor list the capability, its node, each GPU's directory and nodes.

    The access files of MIG devices are left out.
    """
    host_inventory = inventory("mig570")
    paths = list_of(host_inventory, "--device=all", f"--mig-{name}=all")[6:]
    minors = [row_minor for row, row_minor in host_inventory.mig.minors if row.startswith("gpu0/")]
    assert len(minors) > 20
    assert paths[: len(minors) + 4] == [
        f"/proc/driver/nvidia/capabilities/mig/{name}",
        f"/dev/nvidia-caps/nvidia-cap{minor}",
        "/proc/driver/nvidia/capabilities/gpu0",
        "/dev/nvidia-caps",
        *(f"/dev/nvidia-caps/nvidia-cap{number}" for number in minors),
    ]


def test_mig_administration_of_single_devices_is_refused() -> None:
    """MIG administration of single devices is refused in the original's words."""
    host_inventory = inventory("mig570")
    for words, text in (
        (("--mig-config=0",), "mig-config error: 0: only 'all' devices are currently supported"),
        (
            ("--device=0:1", "--mig-monitor=all"),
            "mig-monitor error: all: cannot enable mig-monitor with specific MIG devices selected",
        ),
    ):
        with pytest.raises(Refusal) as caught:
            list_of(host_inventory, *words)
        assert caught.value.reference_line("cli") == f"cli: {text}"


def test_services_can_be_left_out() -> None:
    """Each service and the firmware can be left out by its own option; MPS stays."""
    everything = [
        "/run/nvidia-persistenced/socket",
        "/run/nvidia-fabricmanager/socket",
        "/tmp/nvidia-mps",
    ]
    assert list_of(inventory("run560"), "--ipcs") == everything
    assert list_of(inventory("run560", omit={"persistenced"}), "--ipcs") == everything[1:]
    assert (
        list_of(inventory("run560", omit={"persistenced", "fabricmanager"}), "--ipcs")
        == everything[2:]
    )
    assert inventory("run560", omit={"gsp-firmware"}).files.firmware == ()


def test_a_host_without_gpus() -> None:
    """Without GPUs the versions are printed, and any device list is ignored."""
    nvml = document("d470")["nvml"] | {"gpus": []}
    host_inventory = inventory("d470", nvml=nvml)
    assert (
        info_text(host_inventory, csv=False) == "NVRM version:   470.256.02\nCUDA version:   11.4\n"
    )
    versions, blank, header = info_text(host_inventory, csv=True).splitlines()[-3:]
    assert (versions, blank) == ("470.256.02,11.4", "")
    assert header == "Device Index,Device Minor,Model,Brand,GPU UUID,Bus Location,Architecture"
    assert list_of(host_inventory, "--device=nosuch") == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia-modeset",
    ]
