"""Generated CDI edits: which devices a request gets on a host, on a Tegra board and under WSL2."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import hosts
from nvgraft.base.errors import Refusal
from nvgraft.cdi.discovery import CdiFacts
from nvgraft.cdi.edits import CdiEdits, Generated
from nvgraft.cdi.generation import CdiRequest, CdiSettings, CdiSource, generate
from nvgraft.cdi.specification import HookProgram
from nvgraft.cdi.tegra import glob
from nvgraft.host.components import Host
from nvgraft.host.graphics_files import FileFinder
from nvgraft.host.snapshot import OFFLINE_PATH, snapshot_host
from nvgraft_specs import gallery

LIBDIR = "/usr/lib/x86_64-linux-gnu"
CSV = "/etc/nvidia-container-runtime/host-files-for-container.d"
EACH = HookProgram("/usr/bin/nvidia-cdi-hook")
ONE = HookProgram("/usr/bin/nvgraft-cdi-hook", together=True)

DRIVER = f"""
{LIBDIR}/libcuda.so.535.1 elf libcuda.so.1
{LIBDIR}/libcuda.so.1 -> libcuda.so.535.1
{LIBDIR}/libnvidia-ml.so.1 elf libnvidia-ml.so.1
/usr/bin/nvidia-smi mode=0755
/dev/nvidiactl char 195:255
/dev/nvidia-uvm char 510:0
"""
MIG_UUID = "MIG-11111111-2222-3333-4444-555555555555"
MIG = """
/proc/driver/nvidia-caps/mig-minors = gpu1/gi3/access 30\\ngpu1/gi3/ci0/access 31\\n
/dev/nvidia-caps/nvidia-cap30 char 234:30
/dev/nvidia-caps/nvidia-cap31 char 234:31
"""
GPUS = [hosts.gpu(0), hosts.gpu(1, migs=[f"{MIG_UUID} 3/0"]), hosts.gpu(2)]
NODES = "\n".join(f"/dev/nvidia{minor} char 195:{minor}" for minor in range(3))


class RecordedSource(CdiSource):
    """The host of a document; ``broken`` is the refusal of its NVML."""

    def __init__(self, document: dict[str, Any], broken: Refusal | None = None) -> None:
        host = snapshot_host(document)
        finder = FileFinder(host.tree, host.machine, lambda: host.entries)
        super().__init__(finder, host.root, host.tree, OFFLINE_PATH)
        self._host = host
        self._broken = broken

    def host(self) -> Host:
        if self._broken is not None:
            raise self._broken
        return self._host

    def facts(self) -> CdiFacts:
        return CdiFacts("6.1", {"0000:01:00.0": ["card0"]})


def edits(
    text: str,
    *devices: str,
    gpus: Sequence[dict[str, Any]] = GPUS,
    broken: Refusal | None = None,
    settings: dict[str, Any] | None = None,
    program: HookProgram = EACH,
    root: str = "/",
    **request: Any,
) -> Generated:
    document = hosts.host(text, gpus=gpus, root=root)
    made = CdiSettings(program, csv_directory=CSV, **(settings or {}))
    return generate(RecordedSource(document, broken), CdiRequest(devices, **request), made)


def nodes(generated: Generated) -> list[str]:
    return [node.path for part in generated.edits for node in part.nodes]


def mounts(generated: Generated) -> list[str]:
    return [mount.target for part in generated.edits for mount in part.mounts]


def steps(generated: Generated) -> list[tuple[str, ...]]:
    return [hook.args[1:] for part in generated.edits for hook in part.hooks]


def variables(generated: Generated) -> list[str]:
    return [variable for part in generated.edits for variable in part.env]


def refusal(*arguments: Any, **options: Any) -> str:
    with pytest.raises(Refusal) as error:
        edits(*arguments, **options)
    return error.value.line()


CONTROL = ["/dev/nvidia-uvm", "/dev/nvidiactl"]
CAPS = ["/dev/nvidia-caps/nvidia-cap30", "/dev/nvidia-caps/nvidia-cap31"]


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        (["0"], ["/dev/nvidia0"]),
        (["2", "0"], ["/dev/nvidia2", "/dev/nvidia0"]),
        ([GPUS[2]["uuid"]], ["/dev/nvidia2"]),
        (["1"], ["/dev/nvidia1"]),
        (["1:0"], ["/dev/nvidia1", *CAPS]),
        ([MIG_UUID], ["/dev/nvidia1", *CAPS]),
        ([f"MIG-{GPUS[1]['uuid']}/3/0"], ["/dev/nvidia1", *CAPS]),
        (["all"], ["/dev/nvidia0", "/dev/nvidia2", "/dev/nvidia1", *CAPS]),
        (["0", "all"], ["/dev/nvidia0", "/dev/nvidia2", "/dev/nvidia1", *CAPS]),
        (["none"], []),
    ],
    ids=str,
)
def test_ids_choose_devices(devices: list[str], expected: list[str]) -> None:
    """Indices and UUIDs choose GPUs and MIG devices; a GPU with MIG that is named itself comes
    without capability nodes; ``all`` has each MIG device in place of its GPU.
    """
    made = edits(DRIVER + NODES + MIG, *devices)
    assert nodes(made) == [*expected, *CONTROL]
    assert f"{LIBDIR}/libcuda.so.535.1" in mounts(made)
    empty = ["NVCT_EMPTY_DEVICE="] if devices == ["none"] else []
    assert variables(made) == [
        *empty,
        f"NVIDIA_CTK_LIBCUDA_DIR={LIBDIR}",
        "NVIDIA_VISIBLE_DEVICES=void",
    ]


@pytest.mark.parametrize(
    ("device", "said"),
    [
        ("3", "failed to get device handle from index: Invalid Argument"),
        ("99999999999999999999", "failed to get device handle from index: Invalid Argument"),
        ("7:0", "failed to get parent device handle: Invalid Argument"),
        ("1:4", "failed to get MIG handle by index: Not Found"),
        ("0:0", "failed to get MIG handle by index: Not Found"),
        ("gpu0", 'identifier is not a valid UUID or index: "gpu0"'),
        ("GPU-", 'identifier is not a valid UUID or index: "GPU-"'),
        ("\u0661", 'identifier is not a valid UUID or index: "\u0661"'),
        (
            "GPU-00000000-0000-0000-0000-000000000009",
            "failed to get device handle from UUID: Not Found",
        ),
    ],
)
def test_an_id_that_names_nothing_is_refused(device: str, said: str) -> None:
    """The refusal has the reference's words, and the ids that exist."""
    line = refusal(DRIVER + NODES, "0", device)
    prefix = (
        'failed to generate CDI spec for mode "auto": failed to construct device spec generators'
    )
    assert line.startswith(f"{prefix}: {said} | there is no {device}: ")
    assert f"request one of 0, {GPUS[0]['uuid']}, 1, {GPUS[1]['uuid']}, 1:0" in line


def test_the_nearest_id_is_named() -> None:
    """An id with a typing error gets the one that was meant."""
    wrong = GPUS[2]["uuid"].replace("2", "8")
    assert f"did you mean {GPUS[2]['uuid']}?" in refusal(DRIVER + NODES, wrong)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (Refusal("initialization", "load library failed: libx"), "ERROR_LIBRARY_NOT_FOUND"),
        (
            Refusal("initialization", "nvml error: driver/library version mismatch"),
            "Driver/library version mismatch",
        ),
    ],
    ids=str,
)
def test_a_driver_that_does_not_answer_is_refused(broken: Refusal, said: str) -> None:
    """Without NVML there is no container, also for ``none``."""
    assert f"failed to initialize NVML: {said}" in refusal(DRIVER, "none", broken=broken)


def test_a_driver_without_gpus_gives_its_files() -> None:
    """With a driver and no GPU, ``all`` means the driver's files and control nodes."""
    assert nodes(edits(DRIVER, "all", gpus=[])) == CONTROL


def test_a_missing_node_is_a_warning() -> None:
    """A GPU whose node is missing leaves the container without it, as in the reference, and the log
    says so.
    """
    made = edits(DRIVER, "0")
    assert nodes(made) == CONTROL
    assert any("Could not locate /dev/nvidia0" in line for level, line in made.log)


def test_a_mig_device_without_capabilities_is_refused() -> None:
    """A MIG device whose capabilities the driver does not name is refused, as in the reference."""
    text = DRIVER + NODES + MIG.replace("gi3/ci0", "gi3/ci1")
    line = refusal(text, "1:0")
    assert "error getting MIG capability device paths: <nil> | " in line
    assert "mig-minors has no row gpu1/gi3/ci0/access" in line
    assert nodes(edits(text, "1"))[0] == "/dev/nvidia1"


def test_hooks_can_be_switched_off() -> None:
    """nvcdi-disable-hooks leaves out hooks by name, or all."""
    names = [step[0] for step in steps(edits(DRIVER + NODES, "0"))]
    assert names == [
        "create-symlinks",
        "enable-cuda-compat",
        "update-ldcache",
        "disable-device-node-modification",
        "update-application-profile",
    ]
    off = {"disabled_hooks": ["enable-cuda-compat", "chmod"]}
    some = edits(DRIVER + NODES, "0", settings=off)
    assert [step[0] for step in steps(some)] == [names[0], *names[2:]]
    assert steps(edits(DRIVER + NODES, "0", settings={"disabled_hooks": ["all"]})) == []


def test_a_library_with_one_number_has_its_soname_link() -> None:
    """libnvidia-nvvm70.so.4 is mounted whatever its version, with its SONAME link."""
    text = f"""{DRIVER}{NODES}
{LIBDIR}/libnvidia-nvvm70.so.4 elf libnvidia-nvvm70.so.3
{LIBDIR}/libnvidia-nvvm70.so.3 -> libnvidia-nvvm70.so.4
"""
    made = edits(text, "0")
    assert f"{LIBDIR}/libnvidia-nvvm70.so.4" in mounts(made)
    assert f"libnvidia-nvvm70.so.4::{LIBDIR}/libnvidia-nvvm70.so.3" in steps(made)[0]


def test_one_hook_has_the_steps_of_all_devices() -> None:
    """With one hook the links of a GPU's DRM nodes and the common steps are in its arguments, in
    their order; the rest is the same.
    """
    link = "/dev/dri/by-path/pci-0000:01:00.0-card"
    text = f"{DRIVER}{NODES}\n/dev/dri/card0 char 226:0\n{link} -> ../card0"
    each, one = (edits(text, "0", program=program) for program in (EACH, ONE))
    assert steps(each)[0] == ("create-symlinks", "--link", f"../card0::{link}")
    (words,) = steps(one)
    assert " ".join(words) == "steps " + " -- ".join(map(" ".join, steps(each)))
    assert (nodes(one), mounts(one), variables(one)) == (nodes(each), mounts(each), variables(each))


def test_features_of_the_generator() -> None:
    """nvcdi-feature-flags add the explicit libraries, and leave sockets out."""
    text = (
        DRIVER
        + NODES
        + f"""
{LIBDIR}/libEGL.so elf libEGL.so.1
/run/nvidia-persistenced/socket socket
"""
    )
    features = ["enable-explicit-driver-libraries", "disable-ipc-discoverer"]
    plain, flagged = edits(text, "0"), edits(text, "0", settings={"features": features})
    assert set(mounts(flagged)) ^ set(mounts(plain)) == {
        f"{LIBDIR}/libEGL.so",
        "/run/nvidia-persistenced/socket",
    }


def groups(generated: Generated) -> list[int]:
    return [gid for part in generated.edits for gid in part.gids]


def test_groups_of_nodes() -> None:
    """A node that only its group may open gives the container that group, unless config.toml or a
    feature switches this off.
    """
    document = hosts.host(f"{DRIVER}{NODES}\n/dev/nvidia0 char 195:0 mode=0660", gpus=GPUS)
    document["files"]["/dev/nvidia0"]["gid"] = 44
    request = CdiRequest(["0"])
    for settings, expected in (
        ({}, [44]),
        ({"groups": False}, []),
        ({"features": ["no-additional-gids-for-device-nodes"]}, []),
    ):
        made = CdiSettings(EACH, csv_directory=CSV, **settings)
        assert groups(generate(RecordedSource(document), request, made)) == expected


GATED = """
/dev/nvidia-fs1 char 240:1
/dev/nvidia-fs0 char 240:0
/run/udev/
/etc/cufile.json
"""


def test_gated_components_come_with_another_void() -> None:
    """A gated component has its nodes and files; each says void once more, also without nodes."""
    made = edits(DRIVER + NODES + GATED, "0", gates=["NVIDIA_GDS", "NVIDIA_MOFED"])
    assert nodes(made)[-2:] == ["/dev/nvidia-fs0", "/dev/nvidia-fs1"]
    assert mounts(made)[-2:] == ["/run/udev", "/etc/cufile.json"]
    assert variables(made).count("NVIDIA_VISIBLE_DEVICES=void") == 3


CHANNEL = "/dev/nvidia-caps-imex-channels/channel"


def test_imex_channels() -> None:
    """A channel has its node; ``none`` is no channel; a request says void once more."""
    text = f"{DRIVER}{NODES}\n{CHANNEL}0 char 507:0\n{CHANNEL}7 char 507:7"
    made = edits(text, "0", channels=["7", "channel0", "7"])
    assert nodes(made)[-2:] == [f"{CHANNEL}7", f"{CHANNEL}0"]
    assert variables(made).count("NVIDIA_VISIBLE_DEVICES=void") == 2
    assert nodes(edits(text, "0", channels=[])) == ["/dev/nvidia0", *CONTROL]


@pytest.mark.parametrize(
    ("channel", "said"),
    [
        ("../0", 'invalid channel ID ../0: strconv.ParseUint: parsing "../0": invalid syntax'),
        ("-1", "invalid channel ID -1"),
        ("1048576", "invalid channel ID 1048576: must be in the range [0, 1048575]"),
        ("9" * 40, "must be in the range"),
        ("5", f"IMEX channel 5 not found at {CHANNEL}5: stat {CHANNEL}5: no such file"),
    ],
)
def test_a_channel_that_is_not_there_is_refused(channel: str, said: str) -> None:
    """A channel that is no number, too large or missing is refused; the channels that exist are
    named.
    """
    line = refusal(f"{DRIVER}{NODES}\n{CHANNEL}7 char 507:7", "0", channels=[channel])
    assert line.startswith('failed to generate CDI spec for mode "imex": ')
    assert said in line
    if channel == "5":
        assert "this host has the channels 7" in line


# ---- Tegra

TEGRA = f"""
/etc/nv_tegra_release = # R36
{CSV}/l4t.csv = dev, /dev/nvhost-gpu\\nlib, /opt/tegra/libcuda.so.1.1\\nsym,/opt/tegra/libx.so\\n# c\\nlib, /no/such
{CSV}/devices.csv = dir, /opt/fw\\ndev,/dev/nvmap*\\nbogus, /etc/passwd\\nlib, etc/passwd\\nlib
{CSV}/extra.csv = lib , /opt/extra
{CSV}/notes.txt = lib, /opt/fw/x
/opt/tegra/libcuda.so.1.1 elf libcuda.so.1
/opt/tegra/libcuda.so.1 -> libcuda.so.1.1
/opt/tegra/libx.so -> libx.so.1
/opt/tegra/libx.so.1 -> ../real/libx.so.1.2
/opt/real/libx.so.1.2 elf libx.so.1
/opt/fw/x
/opt/extra
/dev/nvhost-gpu char 500:1
/dev/nvmap0 char 10:1
/dev/nvmap1 char 10:2
"""


def board(*devices: str, text: str = TEGRA, **options: Any) -> Generated:
    return edits(text, *devices, csv=True, **options)


def test_a_board_gets_what_its_csv_files_name() -> None:
    """dev, dir, lib and sym lines become nodes, mounts of the files behind links, and links; lines
    of another form, other files and paths that are missing are passed over.
    """
    made = board("all", gpus=[])
    assert nodes(made) == ["/dev/nvmap0", "/dev/nvmap1", "/dev/nvhost-gpu"]
    assert mounts(made) == [
        "/opt/fw",
        "/opt/tegra/libcuda.so.1.1",
        "/opt/real/libx.so.1.2",
        "/etc/nv_tegra_release",
    ]
    assert steps(made) == [
        (
            "create-symlinks",
            *("--link", "libcuda.so.1::/opt/tegra/libcuda.so"),
            *("--link", "libcuda.so.1.1::/opt/tegra/libcuda.so.1"),
        ),
        (
            "create-symlinks",
            *("--link", "libx.so.1::/opt/tegra/libx.so"),
            *("--link", "../real/libx.so.1.2::/opt/tegra/libx.so.1"),
        ),
        ("update-ldcache", "--folder", "/opt/tegra", "--folder", "/opt/real"),
    ]
    assert variables(made) == ["NVIDIA_VISIBLE_DEVICES=void"]
    assert "/opt/extra" in mounts(board("0", gpus=[], every_csv_file=True))


def test_a_board_without_csv_files_starts() -> None:
    """Without CSV files a container gets the board's release and void."""
    made = board("0", text="/etc/nv_tegra_release = x", gpus=[])
    assert (nodes(made), mounts(made), steps(made)) == ([], ["/etc/nv_tegra_release"], [])


@pytest.mark.parametrize("device", ["1", "nvidia.com/gpu=0", "GPU-x"])
def test_a_board_has_one_device(device: str) -> None:
    """Another id than 0 and all is refused, ``none`` too in mode jit-cdi; mode csv makes no
    difference between none and 0.
    """
    line = refusal(TEGRA, device, csv=True, gpus=[])
    assert f"unsupported device id: {device} | a Tegra board has one device" in line
    assert "unsupported device id: none" in refusal(TEGRA, "none", gpus=[])
    assert nodes(board(gpus=[])) == nodes(board("0", gpus=[]))


ORIN = hosts.gpu(0) | {"model": "Orin (nvgpu)"}
NVML = f"{LIBDIR}/libnvidia-ml.so.1 elf libnvidia-ml.so.1"


def test_nvml_of_a_board_says_its_cuda_version() -> None:
    """With NVML the compatibility libraries are chosen by the CUDA version, on Orin in a directory
    of their own, which config.toml may replace; NVML that fails is not needed.
    """
    text = TEGRA + NVML
    for gpu, settings, words in (
        (hosts.gpu(0), {}, []),
        (ORIN, {}, ["--cuda-compat-container-root=/usr/local/cuda/compat_orin"]),
        (ORIN, {"compat_root": "/c"}, ["--cuda-compat-container-root=/c"]),
    ):
        made = board("0", text=text, gpus=[gpu], settings=settings)
        assert ("enable-cuda-compat", "--host-cuda-version=12.2", *words) in steps(made)
    broken = Refusal("initialization", "nvml error: unknown error")
    assert len(steps(board("0", text=text, gpus=[ORIN], broken=broken))) == 3


def test_auto_takes_an_integrated_gpu_for_a_board() -> None:
    """Generated devices of a host with an integrated GPU, or without NVML, are the board's."""
    assert nodes(edits(TEGRA + NVML, "0", gpus=[ORIN])) == nodes(board("0", gpus=[ORIN]))
    assert nodes(edits(TEGRA, "all", gpus=[])) == nodes(board("all", gpus=[]))


DISCRETE = f"""
{TEGRA}{NVML}
{CSV}/drivers.csv = dev, /dev/nvidia0\\ndev, /dev/nvidia1\\ndev, /dev/nvidiactl
/dev/nvidia0 char 195:0
/dev/nvidia1 char 195:1
/dev/nvidia2 char 195:2
/dev/nvidiactl char 195:255
{LIBDIR}/libcuda.so.535.1 elf libcuda.so.1
"""
TWO = [ORIN, hosts.gpu(1)]


def test_a_board_with_a_discrete_gpu_has_two_devices() -> None:
    """The integrated GPU has the nodes of the CSV files without the discrete one's, and its
    display; the discrete one its own node, control nodes and the others. An unknown id falls back
    to one device, as the reference.
    """
    own = ["/dev/nvmap0", "/dev/nvmap1", "/dev/nvhost-gpu"]
    integrated, discrete = (nodes(board(i, text=DISCRETE, gpus=TWO)) for i in "01")
    assert integrated == [*own[:2], "/dev/nvidia0", "/dev/nvidiactl", own[2], "/dev/nvidia2"]
    assert discrete == ["/dev/nvidia1", "/dev/nvidiactl", *own]
    assert nodes(board(TWO[1]["uuid"], text=DISCRETE, gpus=TWO)) == discrete
    assert nodes(board("all", text=DISCRETE, gpus=TWO)) == integrated + discrete
    assert "unsupported device id: 2" in refusal(DISCRETE, "2", csv=True, gpus=TWO)
    single = {"features": ["disable-multiple-csv-devices"]}
    assert "/dev/nvidia1" in nodes(board("0", text=DISCRETE, gpus=TWO, settings=single))


@pytest.mark.parametrize(
    ("requirement", "text", "said"),
    [
        ("cuda>=12.0", TEGRA + NVML, ""),
        ("cuda>=99.0", TEGRA + NVML, "requirements not met: unsatisfied condition: cuda>=99.0"),
        ("cuda>=1.0", TEGRA, ""),
        ("cuda>=1.0", "/etc/nv_tegra_release = x", "requirements not met: invalid value for cuda"),
        ("  ", "/etc/nv_tegra_release = x", ""),
    ],
)
def test_requirements_are_checked_on_a_board(requirement: str, text: str, said: str) -> None:
    """Requirements are compared with NVML's version; without NVML they are not checked, unless
    there is no libcuda.
    """
    text += f"\n{LIBDIR}/libcuda.so.1 elf libcuda.so.1" if "libcuda" in text else ""
    options: dict[str, Any] = {"csv": True, "gpus": [], "requirements": [requirement]}
    broken = None if "libnvidia-ml" in text else Refusal("initialization", "none")
    if said:
        assert said in refusal(text, "0", broken=broken, **options)
    else:
        edits(text, "0", broken=broken, **options)


def test_a_csv_file_beyond_the_bounds_is_refused() -> None:
    """A CSV file with too many lines is refused by name."""
    text = f"{CSV}/l4t.csv = " + "x\\n" * 20_001
    assert f"failed to parse CSV file: {CSV}/l4t.csv" in refusal(text, "0", csv=True, gpus=[])


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("/a/*.so", ["/a/x.so", "/a/y.so"]),
        ("/a/?.so", ["/a/x.so", "/a/y.so"]),
        ("/*/x*", ["/a/x.so", "/b/x"]),
        ("/a/.h*", ["/a/.hid"]),
        ("/a/*", ["/a/x.so", "/a/y.so"]),
        ("/a/**o", ["/a/x.so", "/a/y.so"]),
        ("/a", ["/a"]),
        ("/a/??.so", []),
        ("/no/*", []),
    ],
)
def test_patterns(pattern: str, found: list[str]) -> None:
    """``*`` and ``?`` match inside of one name, and no leading dot."""
    tree = snapshot_host(hosts.host("/a/x.so\n/a/y.so\n/a/.hid\n/b/x\n", gpus=[])).tree
    assert glob(tree, pattern) == found


# ---- WSL2

STORE = "/usr/lib/wsl/drivers/nv_dispi.inf_amd64_2"
WSL = f"""
/dev/dxg char 10:125
/usr/lib/wsl/lib/libdxcore.so elf libdxcore.so
/usr/lib/wsl/drivers/iigd_dch.inf/x
/usr/lib/wsl/drivers/nv_dispi.inf_amd64_1/libcuda.so.1.1 elf libcuda.so.1
{STORE}/libcuda.so.1.1 elf libcuda.so.1
{STORE}/nvidia-smi mode=0755
{STORE}/libnvwgf2umx.so elf -
{STORE}/nvcubins.bin
{STORE}/nv.dll
{STORE}/readme.txt
"""


def test_wsl_has_one_device() -> None:
    """Any id gives /dev/dxg, DXCore, the files of the driver's store at their place, and a link to
    nvidia-smi; NVML is not asked.
    """
    made = edits(WSL, "3", gpus=[], broken=Refusal("initialization", "asked"))
    assert nodes(made) == ["/dev/dxg"]
    assert mounts(made) == [
        "/usr/lib/wsl/lib/libdxcore.so",
        f"{STORE}/libcuda.so.1.1",
        f"{STORE}/nvcubins.bin",
        f"{STORE}/nvidia-smi",
        f"{STORE}/libnvwgf2umx.so",
        f"{STORE}/nv.dll",
    ]
    assert steps(made) == [
        ("create-symlinks", "--link", f"{STORE}/nvidia-smi::/usr/bin/nvidia-smi"),
        ("update-ldcache", "--folder", STORE, "--folder", "/usr/lib/wsl/lib"),
    ]
    assert ("info", "Auto-detected mode as 'wsl'") in made.log


def test_none_gives_no_device_under_wsl() -> None:
    """A container that asks for no GPU gets the driver's files without /dev/dxg."""
    made, everything = (edits(WSL, device, gpus=[]) for device in ("none", "all"))
    assert nodes(made) == []
    assert "NVCT_EMPTY_DEVICE=" in [variable for part in made.edits for variable in part.env]
    assert (mounts(made), steps(made)) == (mounts(everything), steps(everything))


def test_wsl_without_the_drivers_store_is_refused() -> None:
    """Without libcuda in a store the refusal says where it was looked for."""
    line = refusal("/dev/dxg char 10:125", "0", gpus=[])
    assert "failed to locate libcuda.so.1.1 at WSL driver store paths | no directory of" in line


def gallery_host(name: str, **request: Any) -> Generated:
    document = json.loads(Path(gallery.path(name)).read_text())
    settings = CdiSettings(EACH, csv_directory=CSV)
    return generate(RecordedSource(document), CdiRequest(["all"], **request), settings)


def test_the_board_of_the_gallery() -> None:
    """A Jetson has the nodes, libraries and links of its CSV files; CUDA's directory only if all
    files are asked for.
    """
    made = gallery_host("jetson-orin")
    tegra = "/usr/lib/aarch64-linux-gnu/tegra"
    assert len(nodes(made)) == 13
    assert {f"{tegra}/libcuda.so.1.1", "/lib/firmware/tegra23x"} <= set(mounts(made))
    links = [word for step in steps(made) for word in step if "::" in word]
    assert f"libcuda.so.1::{tegra}/libcuda.so" in links
    assert "tegra/libcuda.so::/usr/lib/aarch64-linux-gnu/libcuda.so" in links
    assert not any("cuda-11.4" in path for path in mounts(made))
    everything = gallery_host("jetson-orin", every_csv_file=True)
    assert "/usr/local/cuda-11.4" in mounts(everything)


def test_wsl_of_the_gallery() -> None:
    """WSL2 has /dev/dxg and the driver's store, not Intel's."""
    made = gallery_host("wsl2-rtx3090")
    assert nodes(made) == ["/dev/dxg"]
    assert len(mounts(made)) == 14
    assert all("iigd" not in path for path in mounts(made))


def test_edits_are_values() -> None:
    """Equal requests of equal hosts have equal edits."""
    one, other = (edits(DRIVER + NODES, "0").edits for _ in range(2))
    assert one == other
    assert all(isinstance(part, CdiEdits) for part in one)
