"""The stand-in NVML: what it exports, which devices it shows, and what it says of them.

The stand-in is compiled from its sources; the functions with which it looks at device nodes and
kernel modules are the test's. It is asked through nvidia-ml-py.
"""

import ctypes
import errno
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from nvgraft.host import nvml
from nvgraft_cli.simulate import stubs
from nvgraft_cli.simulate.standins import build, data, entry_points
from nvgraft_specs import gallery
from nvgraft_specs.models.gpu_profile import GpuValues
from nvgraft_specs.models.host import Host, load_host
from nvgraft_specs.models.host_gpus import Bridge, NumaNode, Topology
from standin_driver import ALL_NODES, library, variables
from standin_driver import gpu as made_gpu

pytestmark = pytest.mark.requires("gcc")

TRIAL = """
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int (*answer)(const char *path);

__attribute__((visibility("default"))) int trial_start(int (*callback)(const char *path)) {
  answer = callback;
  return 0;
}

static int trial_open(const char *path, int flags) {
  errno = answer(path);
  return errno ? -1 : open("/dev/null", flags);
}

static int trial_access(const char *path, int mode) {
  errno = answer(path);
  return errno ? -1 : 0;
}

static FILE *trial_fopen(const char *path, const char *mode) {
  static char modules[] = "nvidia_uvm 1 0 - Live 0x0\\nnvidia 1 0 - Live 0x0\\n";
  size_t size = answer("the line of nvidia in /proc/modules") ? 26 : sizeof modules - 1;
  return strcmp(path, "/proc/modules") ? fopen(path, mode) : fmemopen(modules, size, mode);
}

#define open trial_open
#define access trial_access
#define fopen trial_fopen
#include "nvml.c"
"""

CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p)
MODULE = {"/sys/module/nvidia": errno.ENOENT, "the line of nvidia in /proc/modules": errno.ENOENT}


class Driver:
    """A loaded stand-in. ``refused`` says which paths cannot be opened, and the errno for each."""

    def __init__(self, host: Host, path: Path) -> None:
        self.host = host
        self.path = path
        self.refused = dict(MODULE)
        self.asked: list[str] = []
        self.library = ctypes.CDLL(str(path))
        self._callback = CALLBACK(self._answer)  # C keeps no reference
        self.library.trial_start(self._callback)

    def _answer(self, path: bytes) -> int:
        self.asked.append(path.decode())
        return self.refused.get(path.decode(), 0)

    def has(self, name: str) -> bool:
        """Tell whether the library exports a function."""
        return hasattr(self.library, name)

    def call(self, name: str) -> int:
        """Call a function with pointers to nothing."""
        code: int = getattr(self.library, name)(None, None, None, None)
        return code


def compiler(host: Host) -> build.Compiler:
    """Return the compiler of a host, for this machine."""
    machine = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}[os.uname().machine]
    return build.Compiler(
        data.c_source(host), lambda soname: stubs.shared_object(64, machine, soname, (), None)
    )


def compile_trial(host: Host, directory: Path) -> Path:
    """Compile the stand-in of a host for trials."""
    source = directory / f"{host.name}.c"
    source.write_text(TRIAL)
    names = entry_points.read(entry_points.NVML, data.branch(host.nvml.driver_version))
    exports = build.Exports([*names, "trial_start"], "nvml_not_supported")
    path = directory / f"{host.name}-{host.nvml.driver_version}.so"
    path.write_bytes(compiler(host).library(source, "libnvidia-ml.so.1", (), exports))
    return path


def with_nvml(host: Host, **changes: object) -> Host:
    """Return a host with another part ``nvml``."""
    return host.model_copy(update={"nvml": host.nvml.model_copy(update=changes)})


def mig_host() -> Host:
    """Return a host whose first GPU has three MIG devices: 3g.40gb, 1g.10gb and half of a 2g.20gb."""
    host = load_host(gallery.path("mig-h100"))
    first, second = host.nvml.gpus
    sizes = ("3g.40gb", "1g.10gb", "1c.2g.20gb")
    devices = [
        device.model_copy(update={"profile": size})
        for device, size in zip(first.mig_devices, sizes, strict=True)
    ]
    return with_nvml(host, gpus=[first.model_copy(update={"mig_devices": devices}), second])


def unknown_host() -> Host:
    """Return a host with a model that has no profile."""
    host = load_host(gallery.path("runfile-a10x2"))
    gpu = host.nvml.gpus[0].model_copy(update={"model": "NVIDIA Of Tomorrow"})
    return with_nvml(host, gpus=[gpu]).model_copy(update={"name": "unknown"})


def a100_host() -> Host:
    """Return a host with eight A100 on two CPUs, in whose memory something is reserved and used."""
    host = load_host(gallery.path("debian-a100x8"))
    topology = Topology(
        nvlink="switch",
        numa=[
            NumaNode(node=0, cpus="0-3,8", gpus=[0, 1, 2, 3]),
            NumaNode(node=1, cpus="64-65", gpus=[4, 5, 6, 7]),
        ],
    )
    host = host.model_copy(update={"topology": topology})
    values = GpuValues(memory_reserved_mib=571, memory_used_mib=1024)
    gpus = [gpu.model_copy(update={"values": values}) for gpu in host.nvml.gpus]
    return with_nvml(host, gpus=gpus)


#: Compute capability -> nvmlDeviceArchitecture_t, of the products of NVIDIA's public table.
ARCHITECTURES = {
    "3.7": 2,
    "5.2": 3,
    "6.1": 4,
    "7.0": 5,
    "7.5": 6,
    "8.0": 7,
    "8.6": 7,
    "8.7": 7,
    "8.9": 8,
    "9.0": 9,
    "10.0": 10,
    "11.0": 10,
    "12.0": 10,
}


def unprofiled_host() -> Host:
    """Return a host with a GPU without profile for each compute capability."""
    host = unknown_host()
    [gpu] = host.nvml.gpus
    gpus = [
        gpu.model_copy(update={"compute_capability": capability, "minor": minor})
        for minor, capability in enumerate(ARCHITECTURES)
    ]
    return with_nvml(host, gpus=gpus).model_copy(update={"name": "unprofiled"})


HOSTS: dict[str, Callable[[], Host]] = {
    "wsl": lambda: load_host(gallery.path("wsl2-rtx3090")),
    "a100": a100_host,
    "mig": mig_host,
    "unknown": unknown_host,
    "unprofiled": unprofiled_host,
}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Driver]:
    """Compile each host once; every driver is a copy of the file, so that nothing is left of
    another test's.
    """
    directory = tmp_path_factory.mktemp("standins")
    paths: dict[str, Path] = {}
    count = 0

    def driver(name: str) -> Driver:
        nonlocal count
        host = HOSTS[name]()
        if name not in paths:
            paths[name] = compile_trial(host, directory)
        count += 1
        copy = directory / f"{count}.so"
        copy.write_bytes(paths[name].read_bytes())
        return Driver(host, copy)

    return driver


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Driver], Any]]:
    """Return a function that gives a driver to nvidia-ml-py, initialised."""

    def begin(driver: Driver) -> Any:
        monkeypatch.setattr(pynvml, "nvmlLib", driver.library)
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        pynvml.nvmlInit()
        return pynvml

    yield begin


def fail(driver: Driver, offset: int, value: bytes) -> Driver:
    """Return the driver with a failure, whose offset is that in struct sim_failures."""
    content = bytearray(driver.path.read_bytes())
    start = content.index(b"nvgraft-failures") + offset
    content[start : start + len(value)] = value
    path = driver.path.with_suffix(".failing.so")
    path.write_bytes(content)
    return Driver(driver.host, path)


# ---- what it exports


@pytest.mark.parametrize("version", ["460.106.00", "470.256.02", "550.163.01", "580.65.06"])
def test_it_exports_what_the_branch_does(version: str, tmp_path: Path) -> None:
    """Every name of the branch is there, and none of a later one, as programs look names up."""
    host = with_nvml(load_host(gallery.path("eks-t4")), driver_version=version)
    driver = Driver(host, compile_trial(host, tmp_path))
    names = set(entry_points.read(entry_points.NVML, data.branch(version)))
    later = set(entry_points.read(entry_points.NVML, 999)) - names
    assert [name for name in names if not driver.has(name)] == []
    assert [name for name in later if driver.has(name)] == []
    assert driver.has("nvgraft_standin")


def test_a_branch_between_two_lists_has_the_older_one() -> None:
    """A branch without a list has the names of the one before; before the first, those of the
    first.
    """
    assert entry_points.read(entry_points.NVML, 565) == entry_points.read(entry_points.NVML, 560)
    assert entry_points.read(entry_points.NVML, 1) == entry_points.read(entry_points.NVML, 390)
    newest = entry_points.read(entry_points.NVML, 999)
    assert "nvmlInit_v2" in newest
    assert "nvmlDeviceGetPowerMode" not in newest  # CUDA 11.8's header had it


@pytest.mark.parametrize("branch", [460, 470, 535, 550, 570, 580])
def test_what_the_hook_asks_for_is_exported(branch: int) -> None:
    """The functions that the hook calls through nvidia-ml-py are of every branch."""
    functions = set(re.findall(r"pynvml\.(nvml[A-Z]\w+)\(", Path(str(nvml.__file__)).read_text()))
    assert len(functions) > 10
    names = set(entry_points.read(entry_points.NVML, branch))
    assert [name for name in functions if name not in names] == []


def test_every_entry_point_needs_nvml_init(compiled: Callable[[str], Driver]) -> None:
    """Before nvmlInit every question is answered with "uninitialized", also what has no answer."""
    driver = compiled("a100")
    names = entry_points.read(entry_points.NVML, 535)
    free = ("nvmlInit", "nvmlErrorString", "nvmlInternalGetExportTable")
    answers = {name: driver.call(name) for name in names if not name.startswith(free)}
    # Arguments may be looked at before.
    assert {name: code for name, code in answers.items() if code not in (1, 2)} == {}
    assert answers["nvmlDeviceSetGpuLockedClocks"] == 1


def test_what_has_no_answer_is_not_supported(
    compiled: Callable[[str], Driver], ask: Callable[[Driver], Any]
) -> None:
    """A name of the branch that the stand-in does not answer says "not supported"."""
    api = ask(compiled("a100"))
    gpu = api.nvmlDeviceGetHandleByIndex(0)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        api.nvmlDeviceSetGpuLockedClocks(gpu, 210, 210)


# ---- which devices there are


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errno.ENXIO, 0),
        (errno.ENODEV, 0),
        (errno.ENOENT, 9),
        (errno.EACCES, 4),
        (errno.EPERM, 999),
    ],
)
def test_the_control_node_decides_about_nvml_init(
    error: int, code: int, compiled: Callable[[str], Driver]
) -> None:
    """nvmlInit opens /dev/nvidiactl; that no driver is behind it comes after all permissions."""
    driver = compiled("a100")
    driver.refused["/dev/nvidiactl"] = error
    assert driver.library.nvmlInit_v2() == code
    if code:
        assert driver.library.nvmlShutdown() == 1


def test_gpus_are_counted_by_their_nodes(
    compiled: Callable[[str], Driver], ask: Callable[[Driver], Any]
) -> None:
    """A GPU is there if its node can be opened, and the indices have no gaps."""
    driver = compiled("a100")
    errors = [errno.EPERM, 0, errno.EACCES, errno.ENXIO, errno.ENOENT, errno.ENODEV, errno.EPERM]
    driver.refused |= {f"/dev/nvidia{minor}": error for minor, error in enumerate(errors)}
    api = ask(driver)
    uuids = [
        api.nvmlDeviceGetUUID(api.nvmlDeviceGetHandleByIndex(index))
        for index in range(api.nvmlDeviceGetCount())
    ]
    assert uuids == [driver.host.nvml.gpus[place].uuid for place in (1, 3, 5, 7)]
    with pytest.raises(pynvml.NVMLError_NotFound):
        api.nvmlDeviceGetHandleByUUID(driver.host.nvml.gpus[0].uuid)


@pytest.mark.parametrize(("error", "code"), [(errno.ENXIO, 0), (errno.ENOENT, 9)])
def test_wsl2_has_one_node_for_all_gpus(
    error: int, code: int, compiled: Callable[[str], Driver]
) -> None:
    """On WSL2 /dev/dxg alone decides, for nvmlInit and for each GPU."""
    driver = compiled("wsl")
    driver.refused["/dev/dxg"] = error
    count = ctypes.c_uint(7)
    assert driver.library.nvmlInit_v2() == code
    if not code:
        assert driver.library.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0
        assert count.value == 1
    assert {path for path in driver.asked if path.startswith("/dev")} == {"/dev/dxg"}


def test_no_gpu_is_not_an_error(
    compiled: Callable[[str], Driver], ask: Callable[[Driver], Any]
) -> None:
    """Without a GPU node nvmlInit succeeds, and there are no GPUs."""
    driver = compiled("unknown")
    driver.refused["/dev/nvidia0"] = errno.ENOENT
    assert ask(driver).nvmlDeviceGetCount() == 0


@pytest.mark.parametrize(
    ("refused", "left"),
    [([], 3), ([12], 2), ([13], 2), ([12, 22], 1), ([12, 21, 84], 0)],
)
def test_mig_devices_are_counted_by_their_capabilities(
    refused: list[int],
    left: int,
    compiled: Callable[[str], Driver],
    ask: Callable[[Driver], Any],
) -> None:
    """A MIG device is there if the nodes of both of its instances can be opened."""
    driver = compiled("mig")
    driver.refused |= {f"/dev/nvidia-caps/nvidia-cap{minor}": errno.EPERM for minor in refused}
    api = ask(driver)
    gpu = api.nvmlDeviceGetHandleByIndex(0)
    found = 0
    while True:
        try:
            device = api.nvmlDeviceGetMigDeviceHandleByIndex(gpu, found)
        except pynvml.NVMLError_NotFound:
            break
        assert api.nvmlDeviceIsMigDeviceHandle(device)
        found += 1
    assert found == left


# ---- guards


@pytest.mark.parametrize("sign", MODULE)
def test_beside_a_real_module_nothing_is_answered(
    sign: str, compiled: Callable[[str], Driver], capfd: pytest.CaptureFixture[str]
) -> None:
    """Where the nvidia module is loaded every entry point says "driver not loaded", and the first
    one why, in one line.
    """
    driver = compiled("a100")
    del driver.refused[sign]
    names = entry_points.read(entry_points.NVML, 535)
    codes = {driver.call(name) for name in names if name != "nvmlErrorString"}
    assert codes <= {9, 2}
    assert driver.library.nvmlInit_v2() == driver.call("nvmlDeviceSetGpuLockedClocks") == 9
    assert capfd.readouterr().err == (
        "nvgraft: this libnvidia-ml.so.1 is a stand-in of the simulated host debian-a100x8, and the"
        " nvidia kernel module is loaded | use the driver's own library\n"
    )
    assert "/dev/nvidiactl" not in driver.asked


# ---- what it says


def test_a_gpu_is_as_described(
    compiled: Callable[[str], Driver], ask: Callable[[Driver], Any]
) -> None:
    """Facts of the document and of the GPU's profile are answered in NVML's units."""
    driver = compiled("a100")
    api = ask(driver)
    gpu = api.nvmlDeviceGetHandleByPciBusId("00000000:0F:00.0")
    recorded = driver.host.nvml.gpus[1]
    assert api.nvmlDeviceGetUUID(gpu) == recorded.uuid
    assert api.nvmlDeviceGetIndex(gpu) == 1
    assert api.nvmlDeviceGetPciInfo(gpu).busId == "00000000:0F:00.0"
    assert api.nvmlDeviceGetName(gpu) == recorded.model
    assert api.nvmlDeviceGetPowerManagementLimit(gpu) == 400_000
    assert api.nvmlDeviceGetMaxClockInfo(gpu, pynvml.NVML_CLOCK_SM) == 1410
    assert api.nvmlDeviceGetEccMode(gpu) == [1, 1]
    assert api.nvmlDeviceGetTotalEccErrors(gpu, 1, 1) == 0
    assert api.nvmlDeviceGetComputeRunningProcesses(gpu) == []
    old = api.nvmlDeviceGetMemoryInfo(gpu)
    new = api.nvmlDeviceGetMemoryInfo(gpu, version=pynvml.nvmlMemory_v2)
    assert old.total == new.total == 40960 << 20
    assert (new.used >> 20, new.reserved >> 20) == (1024, 571)
    assert old.used == new.used + new.reserved
    assert old.free == new.free == new.total - new.reserved - new.used
    assert api.nvmlSystemGetDriverVersion() == driver.host.nvml.driver_version
    assert api.nvmlSystemGetCudaDriverVersion() == 12020


#: Functions about a GPU without another argument, whose answers only a document or a profile knows.
UNKNOWN = (
    "MemoryInfo",
    "BAR1MemoryInfo",
    "PowerUsage",
    "EnforcedPowerLimit",
    "FanSpeed",
    "PerformanceState",
    "Serial",
    "UtilizationRates",
    "VbiosVersion",
    "MaxPcieLinkWidth",
    "EccMode",
    "NumGpuCores",
    "BoardPartNumber",
)


def test_what_is_not_known_is_not_supported(
    compiled: Callable[[str], Driver], ask: Callable[[Driver], Any]
) -> None:
    """For a GPU of unknown model no number is made up."""
    api = ask(compiled("unknown"))
    gpu = api.nvmlDeviceGetHandleByIndex(0)
    for name in UNKNOWN:
        with pytest.raises(pynvml.NVMLError_NotSupported):
            getattr(api, f"nvmlDeviceGet{name}")(gpu)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        api.nvmlDeviceGetTemperature(gpu, 0)
    assert api.nvmlDeviceGetName(gpu) == "NVIDIA Of Tomorrow"


def test_the_architecture_follows_from_the_compute_capability(
    compiled: Callable[[str], Driver], ask: Callable[[Driver], Any]
) -> None:
    """A GPU without a profile has the architecture of its compute capability: `nvidia-smi topo -m`
    ends without it.
    """
    api = ask(compiled("unprofiled"))
    gpus = [api.nvmlDeviceGetHandleByIndex(index) for index in range(len(ARCHITECTURES))]
    found = [api.nvmlDeviceGetArchitecture(gpu) for gpu in gpus]
    assert dict(zip(ARCHITECTURES, found, strict=True)) == ARCHITECTURES


#: Structures of nvml/abi.h, and what they are in nvidia-ml-py.
STRUCTURES = {
    "pci_info": pynvml.nvmlPciInfo_t,
    "pci_info_ext": pynvml.nvmlPciInfoExt_v1_t,
    "memory": pynvml.c_nvmlMemory_t,
    "memory_v2": pynvml.c_nvmlMemory_v2_t,
    "utilization": pynvml.c_nvmlUtilization_t,
    "temperature_v1": pynvml.c_nvmlTemperature_v1_t,
    "sram_ecc_v1": pynvml.c_nvmlEccSramErrorStatus_v1_t,
    "violation_time": pynvml.c_nvmlViolationTime_t,
    "dynamic_states": pynvml.c_nvmlGpuDynamicPstatesInfo_t,
    "process_list_v1": pynvml.c_nvmlProcessDetailList_v1_t,
    "branch_info_v1": pynvml.c_nvmlSystemDriverBranchInfo_v1_t,
    "fabric_info": pynvml.c_nvmlGpuFabricInfo_t,
    "fabric_info_v2": pynvml.c_nvmlGpuFabricInfo_v2_t,
    "fabric_info_v3": pynvml.c_nvmlGpuFabricInfo_v3_t,
    "event": pynvml.c_nvmlEventData_t,
    "attributes": pynvml.c_nvmlDeviceAttributes,
    "placement": pynvml.c_nvmlGpuInstancePlacement_t,
    "gi_profile": pynvml.c_nvmlGpuInstanceProfileInfo_t,
    "gi_profile_v2": pynvml.c_nvmlGpuInstanceProfileInfo_v2_t,
    "gi_info": pynvml.c_nvmlGpuInstanceInfo_t,
    "ci_profile": pynvml.c_nvmlComputeInstanceProfileInfo_t,
    "ci_profile_v2": pynvml.c_nvmlComputeInstanceProfileInfo_v2_t,
    "ci_info": pynvml.c_nvmlComputeInstanceInfo_t,
    "field": pynvml.c_nvmlFieldValue_t,
}


def test_structures_are_as_large_as_nvidia_ml_pys(tmp_path: Path) -> None:
    """The stand-in writes structures of the size that programs pass."""
    source = tmp_path / "sizes.c"
    sizes = ", ".join(f"sizeof(struct {name})" for name in STRUCTURES)
    attribute = '__attribute__((visibility("default")))'
    source.write_text(f'#include "nvml/abi.h"\n{attribute} unsigned sizes[] = {{{sizes}}};\n')
    path = tmp_path / "sizes.so"
    path.write_bytes(compiler(unknown_host()).library(source, "libsizes.so.1"))
    found = (ctypes.c_uint * len(STRUCTURES)).in_dll(ctypes.CDLL(str(path)), "sizes")
    expected = {name: ctypes.sizeof(structure) for name, structure in STRUCTURES.items()}
    assert dict(zip(STRUCTURES, found, strict=True)) == expected


def test_structures_of_another_version_are_refused(
    compiled: Callable[[str], Driver], ask: Callable[[Driver], Any]
) -> None:
    """A structure whose version or size the stand-in does not know is a version mismatch, and stays
    as it is.
    """
    api = ask(compiled("a100"))
    gpu = api.nvmlDeviceGetHandleByIndex(0)
    memory = pynvml.c_nvmlMemory_v2_t(version=pynvml.nvmlMemory_v2 + (1 << 24))
    assert api.nvmlLib.nvmlDeviceGetMemoryInfo_v2(gpu, ctypes.byref(memory)) == 25
    assert memory.total == 0


def test_texts_that_do_not_fit_are_not_written(
    compiled: Callable[[str], Driver], ask: Callable[[Driver], Any]
) -> None:
    """A buffer that is too small gets nothing, and the answer says so."""
    api = ask(compiled("a100"))
    gpu = api.nvmlDeviceGetHandleByIndex(0)
    buffer = ctypes.create_string_buffer(b"x" * 8, 8)
    assert api.nvmlLib.nvmlDeviceGetName(gpu, buffer, 8) == 7
    assert buffer.raw == b"x" * 8


@pytest.mark.parametrize("invented", [0, 1, 1 << 40])
def test_an_invented_handle_is_an_invalid_argument(
    invented: int, compiled: Callable[[str], Driver], ask: Callable[[Driver], Any]
) -> None:
    """A handle that NVML did not give is refused, not followed."""
    api = ask(compiled("a100"))
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        api.nvmlDeviceGetUUID(ctypes.c_void_p(invented))


def test_topology_is_as_described(
    compiled: Callable[[str], Driver], ask: Callable[[Driver], Any]
) -> None:
    """Levels, CPUs and memory nodes are those of the document, as NVML counts them."""
    api = ask(compiled("a100"))
    gpus = [api.nvmlDeviceGetHandleByIndex(index) for index in range(8)]
    levels = [api.nvmlDeviceGetTopologyCommonAncestor(gpus[0], gpu) for gpu in gpus]
    assert levels == [0, *[pynvml.NVML_TOPOLOGY_NODE] * 3, *[pynvml.NVML_TOPOLOGY_SYSTEM] * 4]
    near = api.nvmlDeviceGetTopologyNearestGpus(gpus[5], pynvml.NVML_TOPOLOGY_NODE)
    assert [api.nvmlDeviceGetIndex(gpu) for gpu in near] == [4, 6, 7]
    of_cpu = api.nvmlSystemGetTopologyGpuSet(8)
    assert [api.nvmlDeviceGetIndex(gpu) for gpu in of_cpu] == [0, 1, 2, 3]
    assert list(api.nvmlDeviceGetCpuAffinity(gpus[0], 2)) == [0x10F, 0]
    assert list(api.nvmlDeviceGetCpuAffinity(gpus[7], 2)) == [0, 3]
    assert list(api.nvmlDeviceGetCpuAffinity(gpus[7], 1)) == [0]  # more CPUs than asked for
    assert list(api.nvmlDeviceGetMemoryAffinity(gpus[7], 1, 0)) == [2]


def test_nvlinks_are_as_described(
    compiled: Callable[[str], Driver], ask: Callable[[Driver], Any]
) -> None:
    """All twelve links of an A100 lead to NVSwitches, and by them to every other GPU."""
    api = ask(compiled("a100"))
    one, other = (api.nvmlDeviceGetHandleByIndex(index) for index in (0, 7))
    numbers = range(18)
    assert [api.nvmlDeviceGetNvLinkState(one, number) for number in numbers] == [1] * 12 + [0] * 6
    assert api.nvmlDeviceGetNvLinkRemoteDeviceType(one, 11) == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
    for kind in (0, 1, 2):  # read, write, NVLink
        assert api.nvmlDeviceGetP2PStatus(one, other, kind) == pynvml.NVML_P2P_STATUS_OK
    fields = [
        pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT,
        pynvml.NVML_FI_DEV_NVSWITCH_CONNECTED_LINK_COUNT,
        (pynvml.NVML_FI_DEV_NVLINK_GET_STATE, 11),
        (pynvml.NVML_FI_DEV_NVLINK_GET_SPEED, 12),
    ]
    answers = api.nvmlDeviceGetFieldValues(one, fields)
    assert [(field.nvmlReturn, field.value.uiVal) for field in answers] == [
        (0, 12),
        (0, 12),
        (0, 1),
        (pynvml.NVML_ERROR_NOT_SUPPORTED, 0),
    ]


OK, CHIPSET_NOT_SUPPORTED, NOT_SUPPORTED = (
    pynvml.NVML_P2P_STATUS_OK,
    pynvml.NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED,
    pynvml.NVML_P2P_STATUS_NOT_SUPPORTED,
)
OVER_PCIE = [OK, OK, NOT_SUPPORTED, NOT_SUPPORTED, OK]
NO_PEERS = [CHIPSET_NOT_SUPPORTED] * 2 + [NOT_SUPPORTED] + [CHIPSET_NOT_SUPPORTED] * 2
ON_TWO_CPUS = Topology(
    numa=[NumaNode(node=node, cpus=str(node), gpus=[node]) for node in (0, 1)],
)


@pytest.mark.parametrize(
    ("changes", "topology", "statuses"),
    [
        ([{"profile": "l4", "brand": 14}] * 2, None, OVER_PCIE),
        ([{"profile": "l4", "brand": 14}] * 2, ON_TWO_CPUS, OVER_PCIE),
        ([{"profile": "t4", "brand": 2}] * 2, None, OVER_PCIE),
        ([{"profile": "rtx-4090", "brand": 5}] * 2, None, NO_PEERS),
        ([{"model": "NVIDIA L4"}, {"model": "Tesla T4"}], None, NO_PEERS),
        ([{}, {}], Topology(nvlink="switch"), [OK] * 5),
        (
            [{"model": "A", "brand": 5}, {"model": "B", "brand": 5}],
            Topology(nvlink=[Bridge(gpus=(0, 1), links=4)]),
            [*[OK] * 4, CHIPSET_NOT_SUPPORTED],
        ),
    ],
    ids=["l4", "two-cpus", "t4", "geforce", "two-models", "switch", "bridge"],
)
def test_nvml_and_cuda_agree_who_can_access_whom(
    changes: list[dict[str, object]],
    topology: Topology | None,
    statuses: list[int],
    ask: Callable[[Driver], Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Boards of one model reach each other over PCIe, on two CPUs too; GeForce cards do not. CUDA
    says 1 where NVML says OK.
    """
    gpus = [
        made_gpu(number, **({"model": "NVIDIA"} | change)) for number, change in enumerate(changes)
    ]
    host = with_nvml(load_host(gallery.path("mig-h100")), gpus=gpus)
    host = host.model_copy(update={"topology": topology})
    api = ask(Driver(host, compile_trial(host, tmp_path)))
    one, other = (api.nvmlDeviceGetHandleByIndex(index) for index in (0, 1))
    assert [api.nvmlDeviceGetP2PStatus(one, other, kind) for kind in range(5)] == statuses
    for name, value in variables(ALL_NODES | {"/dev/nvidia0": 6, "/dev/nvidia1": 6}).items():
        monkeypatch.setenv(name, value)
    cuda = ctypes.CDLL(library(tmp_path, gpus, topology))
    assert cuda.cuInit(0) == 0
    can = ctypes.c_int(-1)
    assert cuda.cuDeviceCanAccessPeer(ctypes.byref(can), 0, 1) == 0
    atomics = ctypes.c_int(-1)
    assert cuda.cuDeviceGetP2PAttribute(ctypes.byref(atomics), 3, 0, 1) == 0
    assert [can.value, atomics.value] == [statuses[0] == OK, statuses[3] == OK]


def test_a_gpu_in_mig_mode_reaches_no_other(ask: Callable[[Driver], Any], tmp_path: Path) -> None:
    """MIG mode cuts a GPU off from the others, over NVLink too."""
    gpus = [made_gpu(0, mig="enabled"), made_gpu(1)]
    host = with_nvml(load_host(gallery.path("mig-h100")), gpus=gpus)
    host = host.model_copy(update={"topology": Topology(nvlink="switch")})
    api = ask(Driver(host, compile_trial(host, tmp_path)))
    one, other = (api.nvmlDeviceGetHandleByIndex(index) for index in (0, 1))
    assert [api.nvmlDeviceGetP2PStatus(one, other, kind) for kind in range(5)] == NO_PEERS


def test_mig_devices_have_their_share(
    compiled: Callable[[str], Driver], ask: Callable[[Driver], Any]
) -> None:
    """A MIG device has the memory and the multiprocessors of its profile, and no temperature."""
    api = ask(compiled("mig"))
    gpu = api.nvmlDeviceGetHandleByIndex(0)
    device = api.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)
    attributes = api.nvmlDeviceGetAttributes(device)
    assert (attributes.multiprocessorCount, attributes.gpuInstanceSliceCount) == (60, 3)
    assert api.nvmlDeviceGetMemoryInfo(device).total == attributes.memorySizeMB << 20
    assert api.nvmlDeviceGetName(device).endswith(" MIG 3g.40gb")
    with pytest.raises(pynvml.NVMLError_NotSupported):
        api.nvmlDeviceGetTemperature(device, 0)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        api.nvmlDeviceGetUtilizationRates(gpu)


@pytest.mark.parametrize(
    ("refused", "code"), [([], 0), ([1], 0), ([2], 0), ([1, 2], pynvml.NVML_ERROR_NO_PERMISSION)]
)
def test_instances_are_shown_to_those_who_may_monitor_mig(
    refused: list[int],
    code: int,
    compiled: Callable[[str], Driver],
    ask: Callable[[Driver], Any],
) -> None:
    """Listing GPU instances needs the capability to configure or to monitor MIG."""
    driver = compiled("mig")
    driver.refused |= {f"/dev/nvidia-caps/nvidia-cap{minor}": errno.EACCES for minor in refused}
    api = ask(driver)
    gpu = api.nvmlDeviceGetHandleByIndex(0)
    count = ctypes.c_uint()
    handles = (ctypes.c_void_p * 8)()
    profile = 9  # 3g.40gb
    assert api.nvmlLib.nvmlDeviceGetGpuInstances(gpu, profile, handles, ctypes.byref(count)) == code
    assert count.value == (code == 0)


# ---- failures on purpose


def test_a_lost_gpu_says_so(
    compiled: Callable[[str], Driver], ask: Callable[[Driver], Any]
) -> None:
    """Every question about a lost GPU, and its handle, gives "GPU is lost"; others answer."""
    api = ask(fail(compiled("a100"), 64 + 40, b"\1\0\0\0"))
    assert api.nvmlDeviceGetCount() == 8
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        api.nvmlDeviceGetHandleByIndex(1)
    assert api.nvmlDeviceGetTemperature(api.nvmlDeviceGetHandleByIndex(0), 0) > 0


def test_an_xid_is_one_event(
    compiled: Callable[[str], Driver], ask: Callable[[Driver], Any]
) -> None:
    """An Xid is told once to those who registered for it; then the wait ends with its time."""
    api = ask(fail(compiled("a100"), 64 + 4, (79).to_bytes(4, "little")))
    events = api.nvmlEventSetCreate()
    gpu = api.nvmlDeviceGetHandleByIndex(0)
    api.nvmlDeviceRegisterEvents(gpu, pynvml.nvmlEventTypeXidCriticalError, events)
    assert api.nvmlEventSetWait_v2(events, 0).eventData == 79
    with pytest.raises(pynvml.NVMLError_Timeout):
        api.nvmlEventSetWait_v2(events, 0)
    api.nvmlEventSetFree(events)


def test_ecc_errors_on_purpose_are_counted(
    compiled: Callable[[str], Driver], ask: Callable[[Driver], Any]
) -> None:
    """Uncorrected errors are counted in total and in the device memory."""
    api = ask(fail(compiled("a100"), 64 + 16, (5).to_bytes(8, "little")))
    gpu = api.nvmlDeviceGetHandleByIndex(0)
    assert api.nvmlDeviceGetTotalEccErrors(gpu, 1, 0) == 5
    assert api.nvmlDeviceGetMemoryErrorCounter(gpu, 1, 0, 2) == 5
    assert api.nvmlDeviceGetTotalEccErrors(gpu, 0, 0) == 0


# ---- the table that nvidia-smi asks for

TABLE = bytes.fromhex("c4fe3e6cc98f6c4ea327ee696e12f7c4")


def test_the_export_table_answers_as_nvidia_smi_needs(
    compiled: Callable[[str], Driver], ask: Callable[[Driver], Any]
) -> None:
    """The table says its size; slots give handles, no processes, the host's PCIe generation, the
    enforced power limit, paths, PCI addresses, and that the GPU can be monitored; the rest is not
    supported for a device and ignored otherwise.
    """
    api = ask(compiled("a100"))
    table = ctypes.POINTER(ctypes.c_void_p)()
    assert api.nvmlLib.nvmlInternalGetExportTable(ctypes.byref(table), TABLE) == 0
    assert table[0] == 0xC00
    slot = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    handle = ctypes.c_void_p()
    assert slot(table[81])(3, ctypes.addressof(handle), 0x22) == 0
    assert handle.value == ctypes.cast(api.nvmlDeviceGetHandleByIndex(3), ctypes.c_void_p).value
    for number in (213, 214, 215):
        count = ctypes.c_uint(250)
        assert slot(table[number])(handle, ctypes.addressof(count), None) == 0
        assert count.value == 0
    generation = ctypes.c_uint()
    assert slot(table[230])(handle, ctypes.addressof(generation), None) == 0
    assert generation.value == 4
    path = ctypes.c_uint()
    places = [ctypes.create_string_buffer(gpu) for gpu in (b"00000000:07:00.0", b"0:87:0.0")]
    one, other = (ctypes.addressof(place) for place in places)
    assert slot(table[23])(one, one, ctypes.addressof(path)) == path.value == 0
    assert slot(table[23])(one, other, ctypes.addressof(path)) == 0
    assert path.value == 4  # SYS
    read = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 5)(table[12])
    address = (ctypes.c_uint * 4)(9, 9, 9, 9)
    numbers = [ctypes.addressof(address) + 4 * number for number in range(4)]
    text = ctypes.create_string_buffer(b"0001:87:02.0")
    assert read(ctypes.addressof(text), *numbers) == 0
    assert list(address) == [1, 0x87, 2, 0]
    assert read(ctypes.addressof(ctypes.create_string_buffer(b"GPU-1")), *numbers) == 2
    of_index = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint, *[ctypes.c_void_p] * 3)(table[75])
    assert of_index(4, *numbers[:3]) == 0
    assert list(address) == [0, 0x87, 0, 0]
    assert of_index(8, *numbers[:3]) == 2
    monitored = ctypes.c_uint()
    assert slot(table[72])(handle, ctypes.addressof(monitored), None) == 0
    assert monitored.value == 1
    limit = ctypes.c_uint()
    assert slot(table[108])(handle, ctypes.addressof(limit), None) == 0
    assert limit.value == 400_000
    assert slot(table[165])(handle, None, None) == 3
    assert slot(table[26])(None, None, None) == slot(table[383])(None, None, None) == 0


def test_other_export_tables_are_refused(
    compiled: Callable[[str], Driver], ask: Callable[[Driver], Any]
) -> None:
    """A table that is not known is not supported."""
    api = ask(compiled("a100"))
    table = ctypes.c_void_p()
    assert api.nvmlLib.nvmlInternalGetExportTable(ctypes.byref(table), TABLE[::-1]) == 3
    assert not table
