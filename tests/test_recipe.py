"""`nvgraft simulate --make`: the document of a host from one line."""

import json
from typing import Any

import pytest

from nvgraft_cli.shell.main import main
from nvgraft_cli.simulate import recipe
from nvgraft_specs import profiles
from nvgraft_specs.models.gpu_profile import Node, load_profile
from nvgraft_specs.models.host import Device, Host, RegularFile, parse_host

Captured = pytest.CaptureFixture[str]


def made(line: str) -> Host:
    """Return the host that a line describes, as its document is read."""
    return parse_host(json.dumps(recipe.make_document(line)).encode(), "made")


@pytest.mark.parametrize("name", profiles.names())
@pytest.mark.parametrize("driver", ["550.163.01", "570.172.08", "580.95.05"])
def test_each_profile_makes_a_host(name: str, driver: str) -> None:
    """Two GPUs of any product, with any branch that serves it and whose files are known, are a valid
    document.
    """
    node = load_profile(name).node or Node(source="no limits")
    driver = driver if int(driver[:3]) >= (node.first_driver or 0) else "570.172.08"
    machine = node.machine or "x86_64"
    host = made(f"2 x {name}, driver {driver}, {machine}")
    assert [gpu.profile for gpu in host.nvml.gpus] == [name, name]
    assert f"/usr/lib/{machine}-linux-gnu/libcuda.so.{driver}" in host.files
    assert host.nvml.cuda_version in {"12.4", "12.8", "13.0"}


def test_a_branch_has_its_own_files() -> None:
    """A library that a branch added is not in the branches before it."""
    names = [
        {path.rpartition("/")[2] for path in made(f"1 x l4, driver {driver}").files}
        for driver in ("550.163.01", "580.95.05")
    ]
    assert "libnvidia-sandboxutils.so.1" not in names[0]
    assert "libnvidia-sandboxutils.so.1" in names[1]


def test_the_parts_of_a_line() -> None:
    """NVSwitches, NUMA nodes, IMEX channels, MIG devices and the machine are made as named."""
    host = made(
        "8 x h100-sxm, driver 570.172.08, nvswitches 4, numa 2, imex 1, mig 3g.40gb 1g.10gb, aarch64"
    )
    assert host.machine == "aarch64"
    assert host.topology
    assert host.topology.nvlink == "switch"
    assert [node.gpus for node in host.topology.numa or ()] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert host.char_majors["nvidia-nvswitch"] == host.files["/dev/nvidia-nvswitch3"].rdev[0]  # type: ignore[union-attr]
    assert "/dev/nvidia-caps-imex-channels/channel0" in host.files
    last = host.nvml.gpus[7].mig_devices[1]
    assert last.profile == "1g.10gb"
    access = host.files[f"/proc/driver/nvidia/capabilities/gpu7/mig/gi{last.gpu_instance}/access"]
    assert isinstance(access, RegularFile)
    minor = (access.content or "").split()[1]
    assert isinstance(host.files[f"/dev/nvidia-caps/nvidia-cap{minor}"], Device)
    library = host.files["/usr/lib/aarch64-linux-gnu/libcuda.so.570.172.08"]
    assert isinstance(library, RegularFile)
    assert library.elf
    assert library.elf.machine == "EM_AARCH64"


def test_a_host_has_one_numa_node_unless_told_otherwise() -> None:
    """All GPUs are near CPUs of node 0, as on a machine with one CPU; `numa 0` leaves it unknown."""
    topology = made("3 x l4, driver 550.163.01").topology
    assert topology
    assert [(node.node, node.cpus, node.gpus) for node in topology.numa or ()] == [
        (0, "0-31", [0, 1, 2])
    ]
    unknown = made("3 x l4, driver 550.163.01, numa 0").topology
    assert unknown is None or unknown.numa is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("8 x h100, driver 570.172.08", r"there is no GPU profile 'h100' \| name one of a10, "),
        ("8 x h100-sxm", r"the GPUs or the driver are missing \| write for example"),
        ("driver 570.172.08", r"the GPUs or the driver are missing"),
        (
            "8 x h100-sxm, driver 570",
            r"driver 570: not the version of a driver \| write it in full",
        ),
        ("8 x h100-sxm, driver 999.10", r"files of branch 999 are not known \| take one of 550,"),
        ("8 x h100-sxm, driver 610.43.02", r"files of branch 610 are not known \| .*, 590, or"),
        (
            "8 x h100-sxm, driver 535.10.05",
            r"files of branch 535 are not known .* nvgraft snapshot",
        ),
        ("99 x t4, driver 570.10", r"count 99: not a number from 1 to 16 \| change it"),
        ("1 x t4, driver 570.10, numa x", r"numa x: not a number from 0 to 8"),
        ("1 x t4, driver 570.10, mig 1g.5gb", r"a NVIDIA T4 has no MIG \| leave mig out"),
        ("1 x l40s, driver 570.10, nvlink", r"a NVIDIA L40S has no NVLink \| leave nvlink"),
        ("2 x b200, driver 565.57.01", r"does not know a NVIDIA B200 .* \| take .* 570 or newer"),
        (
            "1 x v100-sxm2-16gb, driver 590.44.01",
            r"does not serve .* V100 .* \| take .* 580 or older",
        ),
        ("4 x gb200, driver 580.65.06", r"in aarch64 nodes alone \| add aarch64"),
        (
            "8 x gb200, driver 580.65.06, aarch64",
            r"count 8: a node has 4 of NVIDIA GB200 .* at most",
        ),
        (
            "8 x b200, driver 580.65.06, nvswitches 2",
            r"does not list the NVSwitches .* \| write nvlink",
        ),
        ("8 x t4, 2 x l4, driver 570.10", r"'2 x l4' says again what .* \| write one product"),
        ("1 x t4, driver 570.10, driver 550.10", r"'driver 550.10' says again"),
        ("1 x t4, driver 570.10, fast", r"'fast' is not a part of a host \| write for example"),
        ("", r"'' is not a part of a host"),
    ],
)
def test_a_wrong_line_has_cause_and_fix(line: str, message: str) -> None:
    """What is unknown, missing or impossible in a line is named with a fix."""
    with pytest.raises(recipe.WrongRecipe, match=message):
        recipe.make_document(line)


def test_mig_devices_have_minor_numbers() -> None:
    """A GPU that can do MIG has the table of all minor numbers, which CDI specifications need."""
    line = "2 x h100-sxm, driver 570.172.08, mig 3g.40gb 1g.10gb"
    host = made(line)
    table = host.files["/proc/driver/nvidia-caps/mig-minors"]
    assert isinstance(table, RegularFile)
    rows = dict(row.split() for row in (table.content or "").splitlines())
    for index, gpu in enumerate(host.nvml.gpus):
        for device in gpu.mig_devices:
            place = f"gpu{index}/gi{device.gpu_instance}"
            for name in (f"{place}/access", f"{place}/ci{device.compute_instance}/access"):
                assert f"/dev/nvidia-caps/nvidia-cap{rows[name]}" in host.files


def test_make_prints_the_document(capsys: Captured) -> None:
    """`--make` prints a document that can be read, with the name of --name."""
    assert main(["simulate", "--make", "2 x l4, driver 570.172.08", "--name", "node17"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert document["name"] == "node17"
    assert document == recipe.make_document("2 x l4, driver 570.172.08", "node17")


def test_make_refuses_what_does_not_fit(capsys: Captured) -> None:
    """MIG devices that do not fit on a GPU are refused, as in a document."""
    line = "1 x h100-sxm, driver 570.172.08, mig 4g.40gb 4g.40gb"
    assert main(["simulate", "--make", line]) == 2
    assert "4g.40gb, 4g.40gb do not fit on one GPU" in capsys.readouterr().err
