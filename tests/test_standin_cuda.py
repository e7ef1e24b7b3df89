"""The stand-in for libcuda.so.1: which GPUs it shows, and what it answers or refuses.

It is compiled with functions of the C library replaced by others that know a made-up list of device
nodes, so that no test needs root or a node.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nvgraft_cli.simulate.standins import build
from standin_driver import ALL_NODES, gpu, library, mig_gpu, uuid, variables

pytestmark = pytest.mark.requires("gcc", "x86_64")

#: Asks the library in argv[1] what a script in argv[2] says; `answer` is printed as JSON.
ASK = """
import ctypes, json, sys
cuda = ctypes.CDLL(sys.argv[1])
def text(function, *arguments):
    buffer = ctypes.create_string_buffer(128)
    error = function(buffer, 128, *arguments)
    return error or buffer.value.decode()
def number(function, *arguments, kind=ctypes.c_int):
    value = kind(-1)
    error = function(ctypes.byref(value), *arguments)
    return (error, value.value)
def look_up(name, version, flags=0):
    address, status = ctypes.c_void_p(), ctypes.c_int(-1)
    error = cuda.cuGetProcAddress_v2(name.encode(), ctypes.byref(address), version, ctypes.c_uint64(flags), ctypes.byref(status))
    names = [symbol for symbol in SYMBOLS if ctypes.cast(getattr(cuda, symbol), ctypes.c_void_p).value == address.value]
    return [error, status.value, *names[:1]]
def uuid(device):
    buffer = (ctypes.c_ubyte * 16)()
    return cuda.cuDeviceGetUuid_v2(buffer, device) or bytes(buffer).hex()
SYMBOLS = []
exec(sys.argv[2])
print(json.dumps(answer))
"""

#: The names of all visible devices, or cuInit's error.
DEVICES = """
answer = cuda.cuInit(0) or [text(cuda.cuDeviceGetName, index) for index in range(number(cuda.cuDeviceGetCount)[1])]
"""
FUNCTIONS = re.findall(
    r"^(ANSWERS|REFUSES)\((\w+), (\w+), (\d+), (LEGACY|PER_THREAD)\)$",
    (build.SOURCES / "cuda/functions.def").read_text(),
    re.MULTILINE,
)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the stand-in of a host with three GPUs, CUDA 12.4."""
    gpus = [gpu(number) for number in range(3)]
    return library(tmp_path_factory.mktemp("plain"), gpus, cuda_version="12.4")


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the stand-in of a host with a GPU, and one with two MIG devices."""
    return library(tmp_path_factory.mktemp("mixed"), [gpu(0), mig_gpu(1, 2)])


def ask(
    path: str,
    script: str,
    nodes: dict[str, int] | None = None,
    files: str = "/nonexistent",
    **more: str,
) -> tuple[Any, str]:
    """Run a script beside a stand-in; return its answer and what was printed on stderr.

    :param nodes: changes of the device nodes, which are those of three GPUs.
    :param more: variables.
    """
    found = ALL_NODES | {f"/dev/nvidia{number}": 6 for number in range(3)} | (nodes or {})
    done = subprocess.run(
        [sys.executable, "-I", "-c", ASK, path, script],
        capture_output=True,
        text=True,
        check=True,
        env=variables(found, files) | more,
    )
    return json.loads(done.stdout), done.stderr


NODE_CASES = [
    ({}, ["GPU 0", "GPU 1", "GPU 2"]),
    ({"/dev/nvidia1": 1}, ["GPU 0", "GPU 2"]),  # EPERM: the device cgroup
    ({"/dev/nvidia0": 13, "/dev/nvidia2": 2}, ["GPU 1"]),
    ({"/dev/nvidia1": 19}, ["GPU 0", "GPU 1", "GPU 2"]),  # ENODEV, as ENXIO
    ({"/dev/nvidia1": 0}, ["GPU 0", "GPU 1", "GPU 2"]),
    ({"/dev/nvidia0": 2, "/dev/nvidia1": 1, "/dev/nvidia2": 13}, 100),
    ({"/dev/nvidiactl": 2}, 100),
    ({"/dev/nvidiactl": 1}, 100),
    ({"/dev/nvidia-uvm": 2}, 999),
    ({"/dev/nvidia-uvm": 1}, 999),
]


@pytest.mark.parametrize(("changes", "expected"), NODE_CASES)
def test_a_process_sees_the_gpus_whose_nodes_it_may_open(
    plain: str, changes: dict[str, int], expected: object
) -> None:
    """ENXIO and ENODEV are nodes without a driver, which count; any other error takes the GPU away.

    Without a GPU or nvidiactl cuInit fails with 100, without nvidia-uvm with 999.
    """
    assert ask(plain, DEVICES, changes) == (expected, "")


VISIBLE = [
    ("0,1,2", ["GPU 0", "GPU 1", "GPU 2"]),
    ("2,0", ["GPU 2", "GPU 0"]),
    (" 1 , 0 ", ["GPU 1", "GPU 0"]),
    ("", 100),
    ("-1", 100),
    ("NoDevFiles", 100),
    ("1,-1,0", ["GPU 1"]),
    ("0,3,1", ["GPU 0"]),
    ("0,0", 100),
    ("1,GPU-00000002", ["GPU 1"]),
    ("GPU-00000002,0", ["GPU 2"]),
    ("GPU-00000002,GPU-00000000", ["GPU 2", "GPU 0"]),
    ("GPU-00000002,GPU-000000020", ["GPU 2"]),
    (f"GPU-00000002,{uuid('GPU', 2)}", 100),
    ("MIG-00000002", 100),
    ("GPU-0000000", 100),  # of more than one
    ("GPU-00000009,0", 100),
    ("1;0", ["GPU 1"]),
    ("1gpu2,+2", ["GPU 1", "GPU 2"]),
    (",1", 100),
    ("1,,0", ["GPU 1"]),
    ("99999999999999999999", 100),
    (uuid("GPU", 1), ["GPU 1"]),
]


@pytest.mark.parametrize(("value", "expected"), VISIBLE)
def test_cuda_visible_devices_is_obeyed(plain: str, value: str, expected: object) -> None:
    """Numbers or beginnings of UUIDs; the list ends at the first bad one; twice gives none."""
    assert ask(plain, DEVICES, CUDA_VISIBLE_DEVICES=value) == (expected, "")


def test_numbers_count_the_gpus_of_the_container(plain: str) -> None:
    """Index 0 is the first GPU whose node can be opened, not the first of the host."""
    assert ask(plain, DEVICES, {"/dev/nvidia0": 2}, CUDA_VISIBLE_DEVICES="1")[0] == ["GPU 2"]


def test_the_order_of_devices(tmp_path: Path) -> None:
    """The default order has the fastest GPU first and the others as they stand; PCI_BUS_ID orders
    by address.
    """
    names = ["NVIDIA A10", "NVIDIA H100 80GB HBM3", "NVIDIA L4"]
    gpus = [gpu(number, model=name, profile=None) for number, name in enumerate(names)]
    late = gpus[0].pci.model_copy(update={"bus": 0x90})
    gpus[0] = gpus[0].model_copy(update={"pci": late})
    path = library(tmp_path, gpus)
    assert ask(path, DEVICES)[0] == [names[1], names[0], names[2]]
    in_order, _ = ask(path, DEVICES, CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert in_order == [names[1], names[2], names[0]]


MIG_VISIBLE = [
    (None, "MIG", 17),
    ("0", "GPU", 0),
    ("1", "MIG", 17),
    ("0,1", "MIG", 17),
    (uuid("MIG", 18), "MIG", 18),
    ("MIG-00000012", "MIG", 18),
    (f"{uuid('MIG', 18)},{uuid('MIG', 17)}", "MIG", 18),
    (uuid("GPU", 1), "MIG", 17),
    (f"MIG-{uuid('GPU', 1)}/2/0", "MIG", 18),
    ("MIG-GPU-00000001/2/0,1", "MIG", 18),
]


@pytest.mark.parametrize(("value", "kind", "number"), MIG_VISIBLE)
def test_a_process_sees_one_mig_device(
    mixed: str, value: str | None, kind: str, number: int
) -> None:
    """Of several MIG devices the first one is seen, and no GPU beside it; its UUID is its own."""
    more: dict[str, Any] = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    script = "answer = [cuda.cuInit(0), *number(cuda.cuDeviceGetCount), uuid(0)]"
    expected = uuid(kind, number).partition("-")[2].replace("-", "")
    assert ask(mixed, script, **more)[0] == [0, 0, 1, expected]


def version_file(directory: Path, version: str) -> str:
    """Write what the kernel module shows of its version; return the directory that stands for /."""
    place = directory / "proc/driver/nvidia"
    place.mkdir(parents=True)
    text = f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {version}  Release Build\n"
    (place / "version").write_text(f"{text}GCC version:  gcc version 12.2.0 (Debian 570.172.08)\n")
    return str(directory)


@pytest.mark.parametrize(
    ("version", "expected"),
    [("570.172.08", ["GPU 0", "GPU 1", "GPU 2"]), ("570.86.10", 803), ("570.172.0", 803)],
)
def test_another_module_version_is_803(
    plain: str, version: str, expected: object, tmp_path: Path
) -> None:
    """The version in /proc/driver/nvidia/version has to be that of the library."""
    files = version_file(tmp_path, version)
    assert ask(plain, DEVICES, files=files) == (expected, "")


@pytest.mark.parametrize("sign", ["sys/module/nvidia", "proc/modules"])
def test_beside_a_real_driver_everything_fails(plain: str, sign: str, tmp_path: Path) -> None:
    """Where the nvidia kernel module is loaded each function returns 3, with one line in all."""
    file = tmp_path / sign
    file.parent.mkdir(parents=True)
    file.write_text("nvidia_uvm 1 0 - Live 0x0\nnvidia 2 1 nvidia_uvm, Live 0x0\n")
    script = "answer = [cuda.cuInit(0), cuda.cuInit(0), cuda.cuMemAlloc_v2(), *number(cuda.cuDriverGetVersion)]"
    answer, errors = ask(plain, script, files=str(tmp_path))
    assert answer == [3, 3, 3, 3, -1]
    (line,) = errors.splitlines()
    assert "is a stand-in" in line
    assert "the nvidia kernel module is loaded | " in line


def test_a_nouveau_or_nvidiafb_is_no_driver(plain: str, tmp_path: Path) -> None:
    """Modules whose names only begin with nvidia do not count."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/modules").write_text("nvidiafb 1 0 - Live 0x0\nnouveau 1 0 - Live 0x0\n")
    assert ask(plain, DEVICES, files=str(tmp_path))[0] == ["GPU 0", "GPU 1", "GPU 2"]


def test_versions_before_anything_else(plain: str) -> None:
    """The driver's version is known before cuInit; all else fails with 3 until then, and in a child
    of the process too.
    """
    script = """
import os
before = [*number(cuda.cuDriverGetVersion), cuda.cuDeviceGetCount(None), cuda.cuMemAlloc_v2(), cuda.cuInit(1)]
after = [cuda.cuInit(0), cuda.cuInit(0)]
child = os.fork()
if not child: os._exit(cuda.cuInit(0) * 10 + number(cuda.cuDeviceGetCount)[0])
answer = before + after + [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]
"""
    assert ask(plain, script)[0] == [0, 12040, 3, 3, 1, 0, 0, 33]


LOOKUPS = [
    # CUDA 12.4: a variant must be in the asked version, and in the driver's.
    (("cuCtxCreate", 3020), [0, 0, "cuCtxCreate_v2"]),
    (("cuCtxCreate", 11030), [0, 0, "cuCtxCreate_v2"]),
    (("cuCtxCreate", 11040), [0, 0, "cuCtxCreate_v3"]),
    (("cuCtxCreate", 13000), [0, 0, "cuCtxCreate_v3"]),
    (("cuDeviceGetUuid", 11030), [0, 0, "cuDeviceGetUuid"]),
    (("cuDeviceGetUuid", 12000), [0, 0, "cuDeviceGetUuid_v2"]),
    (("cuStreamGetCaptureInfo", 12030), [0, 0, "cuStreamGetCaptureInfo_v3"]),
    (("cuMemcpyHtoD", 12000), [0, 0, "cuMemcpyHtoD_v2"]),
    (("cuMemcpyHtoD", 12000, 2), [0, 0, "cuMemcpyHtoD_v2_ptds"]),
    (("cuCtxGetDevice", 13000), [0, 0, "cuCtxGetDevice"]),
    (("cuDeviceGetHostAtomicCapabilities", 13000), [0, 2]),
    (("cuDeviceGetUuid", 9000), [0, 2]),
    (("cuMakeCoffee", 12000), [0, 1]),
    (("cuGetProcAddress", 13000), [0, 0, "cuGetProcAddress_v2"]),
]


def test_functions_are_found_by_version(plain: str) -> None:
    """The newest variant of both versions; too new is status 2, unknown is 1, with result 0."""
    script = f"""
SYMBOLS[:] = {[symbol for _, symbol, *_ in FUNCTIONS]!r}
answer = [look_up(*arguments) for arguments in {[question for question, _ in LOOKUPS]!r}]
address = ctypes.c_void_p()
answer += [cuda.cuGetProcAddress(name, ctypes.byref(address), 11080, ctypes.c_uint64(0)) for name in (b"cuInit", b"cuMakeCoffee")]
"""
    answer, _ = ask(plain, script)
    assert answer == [expected for _, expected in LOOKUPS] + [0, 500]


def test_every_public_name_is_exported(plain: str) -> None:
    """All names of the driver API are symbols of the library, and nvgraft's marker; no others."""
    listed = subprocess.run(
        ["nm", "--dynamic", "--defined-only", plain], capture_output=True, text=True, check=True
    ).stdout
    exported = {line.split()[-1] for line in listed.splitlines()}
    assert exported == {symbol for _, symbol, *_ in FUNCTIONS} | {"nvgraft_standin"}
    assert len(FUNCTIONS) > 700


def test_what_computes_is_refused(plain: str) -> None:
    """Each such function fails with 801, and says so once."""
    script = "answer = [cuda.cuInit(0), *[cuda.cuEventRecord(None, None) for _ in range(3)], cuda.cuLaunchKernel()]"
    answer, errors = ask(plain, script)
    assert answer == [0, 801, 801, 801, 801]
    assert [line.split()[1] for line in errors.splitlines()] == [
        "cuEventRecord:",
        "cuLaunchKernel:",
    ]
    assert "computes nothing (error 801) | run this on a node with a GPU" in errors


def test_private_tables_are_refused(plain: str) -> None:
    """cuGetExportTable gives no table whatever it is asked for, and one line says what follows."""
    script = """
table = ctypes.c_void_p(1)
answer = [cuda.cuGetExportTable(ctypes.byref(table), bytes([n] * 16)) for n in range(3)] + [table.value]
"""
    answer, errors = ask(plain, script)
    assert answer == [500, 500, 500, None]
    (line,) = errors.splitlines()
    assert "NVIDIA's CUDA runtime ends in error 500 or 103 | " in line


def test_contexts_belong_to_threads(plain: str) -> None:
    """Each thread has a current context of its own; a primary context lives as long as it is
    retained; a destroyed one is recognised; memory and streams need one.
    """
    script = """
import threading
cuda.cuInit(0)
pointer = ctypes.c_void_p
def get():
    found = pointer(); return found.value if not cuda.cuCtxGetCurrent(ctypes.byref(found)) else None
primary, own, stream = pointer(), pointer(), pointer()
free, total, flags, active = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_uint(), ctypes.c_int()
answer = [cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)), cuda.cuStreamCreate(ctypes.byref(stream), 0)]
answer += [cuda.cuDevicePrimaryCtxRetain(ctypes.byref(primary), 1), cuda.cuCtxSetCurrent(primary), number(cuda.cuCtxGetDevice)]
inner = []
other = pointer()
thread = threading.Thread(target=lambda: inner.extend([get(), cuda.cuCtxSynchronize(), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(other), 0), cuda.cuCtxSetCurrent(other)])); thread.start(); thread.join()
answer += inner + [get() == primary.value, cuda.cuCtxSynchronize()]
answer += [cuda.cuStreamCreate(ctypes.byref(stream), 0), cuda.cuStreamQuery(stream), cuda.cuStreamSynchronize(None), cuda.cuStreamDestroy_v2(stream)]
answer += [cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)), 0 < free.value <= total.value]
answer += [cuda.cuCtxCreate_v2(ctypes.byref(own), 0, 0), number(cuda.cuCtxGetDevice), cuda.cuCtxDestroy_v2(own), cuda.cuCtxDestroy_v2(own), cuda.cuCtxSetCurrent(own), get() == primary.value]
answer += [cuda.cuDevicePrimaryCtxRelease_v2(1), cuda.cuCtxSynchronize(), cuda.cuDevicePrimaryCtxRelease_v2(1)]
"""
    answer, _ = ask(plain, script)
    expected: list[object] = [201, 201, 0, 0, [0, 1], None, 201, 0, 0, True, 0, 0, 0, 0, 0, 0, True]
    expected += [0, [0, 0], 0, 201, 201, True, 0, 201, 201]
    assert answer == expected


def test_threads_may_start_it_at_once(plain: str) -> None:
    """Thirty-two threads that start the driver and retain a context all get the same one."""
    script = """
import threading
gate, found = threading.Barrier(32), []
def start():
    context = ctypes.c_void_p()
    gate.wait()
    found.append([cuda.cuInit(0), number(cuda.cuDeviceGetCount)[1], cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), context.value])
threads = [threading.Thread(target=start) for _ in range(32)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
answer = [len(found), len(set(map(tuple, found))), found[0][:3]]
"""
    assert ask(plain, script)[0] == [32, 1, [0, 3, 0]]


def test_errors_have_names(plain: str) -> None:
    """An error has its name and text from the headers; an unknown one is an invalid value."""
    script = """
def name(function, error):
    found = ctypes.c_char_p(); return function(error, ctypes.byref(found)) or found.value.decode()
answer = [name(cuda.cuGetErrorName, 100), name(cuda.cuGetErrorString, 100), name(cuda.cuGetErrorName, 12345)]
"""
    expected = ["CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected", 1]
    assert ask(plain, script)[0] == expected


def test_a_device_is_what_the_document_says(plain: str) -> None:
    """Name, PCI address and compute capability are those of the document; a device that is not
    there is an error.
    """
    script = """
cuda.cuInit(0)
answer = [text(cuda.cuDeviceGetName, 1), text(cuda.cuDeviceGetPCIBusId, 1), number(cuda.cuDeviceGetByPCIBusId, b"0000:12:00.0"), number(cuda.cuDeviceGetAttribute, 75, 1), number(cuda.cuDeviceGetAttribute, 33, 2), text(cuda.cuDeviceGetName, 3), text(cuda.cuDeviceGetName, -1), number(cuda.cuDeviceGetAttribute, 9999, 0)]
"""
    expected = ["GPU 1", "0000:11:00.0", [0, 2], [0, 9], [0, 0x12], 101, 101, [1, -1]]
    assert ask(plain, script)[0] == expected
