"""The stand-in for the queries of the CUDA runtime: over which drivers it answers, and in which
layout.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nvgraft_cli.case import dynamic
from nvgraft_cli.simulate import cuda_runtime
from nvgraft_cli.simulate.standins import build
from nvgraft_specs import names
from standin_driver import ALL_NODES, gpu, library, variables

pytestmark = pytest.mark.requires("gcc", "x86_64")

FUNCTIONS = re.findall(
    r"^(?:ANSWERS|REFUSES)\((\w+)\)$",
    (build.SOURCES / "runtime/functions.def").read_text(),
    re.MULTILINE,
)

#: A runtime of NVIDIA's as far as the stand-in asks it, linked by its SONAME.
REAL_RUNTIME = """
int cudaRuntimeGetVersion(int *version) { *version = VERSION; return 0; }
int cudaGetLastError(void) { return 500; }
"""

#: argv: the stand-in, a runtime or "", a script.
ASK = """
import ctypes, json, sys
runtime = ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
if sys.argv[2]: ctypes.CDLL(sys.argv[2])
def number(function, *arguments):
    value = ctypes.c_int(-1)
    return [function(ctypes.byref(value), *arguments), value.value]
def properties(version, device):
    find = ctypes.CDLL(None).dlvsym
    find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
    name = b"cudaGetDeviceProperties"
    address = find(runtime._handle, name, version.encode()) if version else ctypes.cast(runtime.cudaGetDeviceProperties_v2, ctypes.c_void_p).value
    buffer = ctypes.create_string_buffer(b"x" * 2048, 2048)
    return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_int)(address)(buffer, device), buffer.raw
exec(sys.argv[3])
print(json.dumps(answer))
"""


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the stand-in for the runtime."""
    path = tmp_path_factory.mktemp("runtime") / names.STANDIN_RUNTIME
    path.write_bytes(cuda_runtime.library())
    return str(path)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the directory of a driver with two GPUs and CUDA 12.4."""
    directory = tmp_path_factory.mktemp("driver")
    library(directory, [gpu(0), gpu(1)], cuda_version="12.4")
    return str(directory)


def compiled(directory: Path, name: str, source: str) -> str:
    """Compile a library from C; return its path."""
    path = directory / name
    command = ["cc", "-shared", "-fPIC", "-Wl,-soname," + name, "-x", "c", "-", "-o", str(path)]
    subprocess.run(command, input=source, text=True, check=True)
    return str(path)


def ask(runtime: str, directory: str, script: str, real: str = "", **more: str) -> tuple[Any, str]:
    """Run a script beside the stand-in; return its answer and what was printed on stderr.

    :param directory: that of libcuda.so.1.
    :param real: the runtime that a program has loaded.
    """
    nodes = ALL_NODES | {f"/dev/nvidia{number}": 6 for number in range(2)}
    done = subprocess.run(
        [sys.executable, "-I", "-c", ASK, runtime, real, script],
        capture_output=True,
        text=True,
        check=True,
        env=variables(nodes) | {"LD_LIBRARY_PATH": directory} | more,
    )
    return json.loads(done.stdout), done.stderr


COUNT = "answer = [number(runtime.cudaGetDeviceCount), number(runtime.cudaDriverGetVersion)]"


@pytest.mark.parametrize(
    ("version", "code"), [(11080, 0), (12000, 0), (12090, 0), (13000, 35), (13050, 35)]
)
def test_a_newer_major_version_needs_a_newer_driver(
    runtime: str, driver: str, version: int, code: int, tmp_path: Path
) -> None:
    """A driver with CUDA 12.4 serves runtimes up to 12.9; a runtime of CUDA 13 gets 35.

    The driver's version is answered all the same, from which programs tell "too old" from "none".
    """
    name = f"libcudart.so.{version // 1000}"
    real = compiled(tmp_path, name, REAL_RUNTIME.replace("VERSION", str(version)))
    script = f"{COUNT}\nanswer.append(number(runtime.cudaRuntimeGetVersion))"
    answer, errors = ask(runtime, driver, script, real)
    assert answer == [[code, 0 if code else 2], [0, 12040], [0, version]]
    assert errors == ""


#: A runtime that needs a driver to say its version, as those before CUDA 12 do.
SILENT = "int cudaRuntimeGetVersion(int *version) { return 35; }"
LAST_11 = "\nint cudaLaunchKernelExC(void) { return 0; }"


@pytest.mark.parametrize(
    ("file", "source", "version"),
    [
        ("libcudart.so.11.0", SILENT, 11000),
        ("libcudart.so.11.0", SILENT + LAST_11, 11080),
        ("libcudart.so.11.7.99", SILENT, 11070),
        ("libcudart.so.10.2.89", SILENT, 10020),
    ],
)
def test_the_version_of_a_runtime_that_does_not_tell_it(
    runtime: str, driver: str, file: str, source: str, version: int, tmp_path: Path
) -> None:
    """It is that of the file to which the SONAME leads, or 11.8 by a function of that version."""
    real = compiled(tmp_path, file, source)
    if file != "libcudart.so.11.0":
        real = str(tmp_path / "libcudart.so.11.0")
        (tmp_path / "libcudart.so.11.0").symlink_to(file)
    script = "answer = number(runtime.cudaRuntimeGetVersion)"
    assert ask(runtime, driver, script, real)[0] == [0, version]


def test_without_a_driver(runtime: str, tmp_path: Path) -> None:
    """Where no libcuda.so.1 is found, or one without functions, the error is 35 and the version
    0.
    """
    assert ask(runtime, "/nonexistent", COUNT)[0] == [[35, 0], [0, 0]]
    compiled(tmp_path, "libcuda.so.1", "")
    assert ask(runtime, str(tmp_path), COUNT)[0] == [[35, 0], [0, 0]]


def test_it_refuses_beside_another_driver(runtime: str, tmp_path: Path) -> None:
    """A libcuda.so.1 that is not nvgraft's is never called; each function fails with 3."""
    source = "__attribute__((noreturn)) void abort(void); int cuInit(unsigned f) { abort(); }"
    compiled(tmp_path, "libcuda.so.1", source)
    script = "answer = [number(runtime.cudaGetDeviceCount), runtime.cudaMalloc()]"
    answer, errors = ask(runtime, str(tmp_path), script)
    assert answer == [[3, 0], 3]
    assert "stand-in for simulated hosts, and libcuda.so.1 is not one | " in errors


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"CUDA_VISIBLE_DEVICES": ""}, 100),
        ({"NODES": "/dev/nvidiactl=6 /dev/nvidia0=6"}, 999),
        ({"NODES": "/dev/nvidia-uvm=6"}, 100),
    ],
)
def test_errors_of_the_driver_are_passed_on(
    runtime: str, driver: str, more: dict[str, str], code: int
) -> None:
    """What cuInit fails with is what a question fails with; the last error is kept by thread until
    it is asked for, and NVIDIA's library is not asked.
    """
    script = """
import threading
first, other = number(runtime.cudaGetDeviceCount), []
thread = threading.Thread(target=lambda: other.append(runtime.cudaGetLastError())); thread.start(); thread.join()
answer = [first, *other, runtime.cudaPeekAtLastError(), runtime.cudaGetLastError(), runtime.cudaGetLastError()]
"""
    assert ask(runtime, driver, script, **more)[0] == [[code, 0], 0, code, code, 0]


def members(layout: int) -> dict[str, tuple[int, str, int]]:
    """Return offset, kind and elements of each member of a layout, and its size under ""."""
    rows = re.findall(
        r"^PROPERTY\((\w+), (\w+), (\d+), (\d+), (\d+), .*\)$",
        (build.SOURCES / "runtime/device_prop.def").read_text(),
        re.MULTILINE,
    )
    found, end = {}, 0
    for name, kind, count, first, last in rows:
        if int(first) <= layout <= int(last):
            size = {"BYTES": 1, "INT": 4, "SIZE": 8}[kind]
            end = -(-end // size) * size
            found[name] = (end, kind, int(count))
            end += size * int(count)
    return found | {"": (-(-end // 8) * 8, "", 0)}


LAYOUTS = [
    ("libcudart.so.11.0", 11, 728),
    ("libcudart.so.12", 11, 728),
    ("", 12, 1032),
    ("libcudart.so.13", 13, 1008),
]


@pytest.mark.parametrize(("version", "layout", "size"), LAYOUTS)
def test_properties_have_the_layout_of_the_callers_version(
    runtime: str, driver: str, version: str, layout: int, size: int, tmp_path: Path
) -> None:
    """Each symbol version fills its own structure, to its last byte and no further."""
    name = "libcudart.so.13" if layout == 13 else "libcudart.so.12"
    number = {"libcudart.so.13": 13000, "libcudart.so.12": 12080}[name]
    # The driver with CUDA 12.4 serves no runtime of CUDA 13: ask another one.
    if layout == 13:
        library(tmp_path, [gpu(0), gpu(1)], cuda_version="13.0")
        driver = str(tmp_path)
    real = compiled(tmp_path, name, REAL_RUNTIME.replace("VERSION", str(number)))
    script = f"""
code, raw = properties({version!r}, 1)
answer = [code, raw.hex()]
"""
    (code, text), _ = ask(runtime, driver, script, real)
    raw = bytes.fromhex(text)
    places = members(layout)
    assert (code, places[""][0]) == (0, size)
    assert raw[size:] == b"x" * (2048 - size)
    assert b"x" * 5 not in raw[:size]  # but in the padding of up to four bytes

    def value(name: str) -> int:
        offset, kind, _ = places[name]
        return int.from_bytes(raw[offset : offset + (8 if kind == "SIZE" else 4)], "little")

    assert raw[: raw.index(0)] == b"GPU 1"
    assert raw[256:272].hex() == "00000001111122223333444444444444"
    expected = {"multiProcessorCount": 132, "major": 9, "minor": 0, "pciBusID": 0x11}
    expected |= {"warpSize": 32, "sharedMemPerBlockOptin": 227 * 1024, "maxGridSize": 2**31 - 1}
    assert {name: value(name) for name in expected} == expected
    assert value("totalGlobalMem") > 70 << 30


def test_what_computes_is_refused(runtime: str, driver: str) -> None:
    """Allocations, copies, events and launches fail with 801, and each says so once; cudaFree(NULL)
    makes a context.
    """
    script = """
answer = [runtime.cudaFree(None), runtime.cudaMalloc(), runtime.cudaMalloc(), runtime.cudaEventRecord(), runtime.__getattr__("__cudaLaunchKernel")(), runtime.cudaLaunchKernel(), runtime.cudaGetLastError()]
"""
    answer, errors = ask(runtime, driver, script)
    assert answer == [0, 801, 801, 801, 801, 801, 801]
    names = [line.split()[1] for line in errors.splitlines()]
    assert names == ["cudaMalloc:", "cudaEventRecord:", "__cudaLaunchKernel:", "cudaLaunchKernel:"]


def test_questions_make_no_context(runtime: str, driver: str) -> None:
    """Count, name and memory of devices are known without a context; a stream needs one, which is
    that of the thread's device.
    """
    script = """
def active(device):
    flags, found = ctypes.c_uint(), ctypes.c_int()
    cuda.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(found)); return found.value
cuda = ctypes.CDLL("libcuda.so.1")
stream = ctypes.c_void_p()
answer = [number(runtime.cudaGetDeviceCount)[1], properties("", 0)[0], runtime.cudaSetDevice(1), number(runtime.cudaGetDevice), active(1)]
answer += [runtime.cudaStreamCreate(ctypes.byref(stream)), active(0), active(1), runtime.cudaStreamQuery(stream), runtime.cudaDeviceSynchronize(), runtime.cudaStreamDestroy(stream), runtime.cudaSetDevice(2)]
"""
    assert ask(runtime, driver, script)[0] == [2, 0, 0, [0, 1], 0, 0, 0, 1, 0, 0, 0, 101]


def test_functions_of_the_driver_are_found(runtime: str, driver: str, tmp_path: Path) -> None:
    """cudaGetDriverEntryPoint has a status since CUDA 12, which older programs do not pass."""
    script = """
address, status = ctypes.c_void_p(), ctypes.c_int(-1)
def find(*arguments): return [runtime.cudaGetDriverEntryPoint(b"cuInit", ctypes.byref(address), ctypes.c_uint64(0), *arguments), bool(address.value)]
"""
    old = compiled(tmp_path, "libcudart.so.11.0", REAL_RUNTIME.replace("VERSION", "11080"))
    new = compiled(tmp_path, "libcudart.so.12", REAL_RUNTIME.replace("VERSION", "12080"))
    garbage = "answer = find(ctypes.c_void_p(8))"
    assert ask(runtime, driver, script + garbage, old)[0] == [0, True]
    proper = "answer = find(ctypes.byref(status)) + [status.value]"
    assert ask(runtime, driver, script + proper, new)[0] == [0, True, 0]


def test_every_public_name_is_exported(runtime: str) -> None:
    """All names of the runtime are symbols of the library, and nvgraft's own; no others."""
    command = ["nm", "--dynamic", "--defined-only", "--with-symbol-versions", runtime]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    exported = [line.split()[-1] for line in listed.splitlines() if " A " not in line]
    versioned = sorted(name for name in exported if "@" in name)
    assert versioned == [
        "cudaGetDeviceProperties@@libcudart.so.13",
        "cudaGetDeviceProperties@libcudart.so.11.0",
        "cudaGetDeviceProperties@libcudart.so.12",
    ]
    plain = {name.partition("@")[0] for name in exported}
    assert plain == {*FUNCTIONS, "cudaGetDeviceProperties_v2", "nvgraft_replaces"}
    assert len(FUNCTIONS) > 450


def test_it_loads_from_glibc_2_17_on(runtime: str) -> None:
    """No version of the C library that the library asks for is newer than 2.17."""
    with open(runtime, "rb") as file:
        found = dynamic.read_file(file.fileno())
    assert found.versions_needed
    versions = [version.removeprefix("GLIBC_") for _library, version in found.versions_needed]
    assert max(tuple(map(int, version.split("."))) for version in versions) <= (2, 17)
