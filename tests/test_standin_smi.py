"""nvgraft's nvidia-smi, over an NVML of a few functions."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from nvgraft_cli.simulate import stubs
from nvgraft_cli.simulate.standins import build, data
from nvgraft_specs import gallery
from nvgraft_specs.models.host import Host, load_host

pytestmark = pytest.mark.requires("gcc", "x86_64")

#: Two GPUs, of which the second knows little; INIT and COUNT are given to the compiler.
NVML = """
#include <stdio.h>
#include <string.h>
static int copy(char *to, unsigned size, const char *text) { snprintf(to, size, "%s", text); return 0; }
static int second(void *d) { return d == (void *)2 ? 3 : 0; }
int nvmlInit_v2(void) { return INIT; }
const char *nvmlErrorString(int code) { return code == 18 ? "Driver/library version mismatch" : "Unknown Error"; }
int nvmlSystemGetDriverVersion(char *to, unsigned size) { return copy(to, size, VERSION); }
int nvmlSystemGetNVMLVersion(char *to, unsigned size) { return copy(to, size, "12." VERSION); }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 12080; return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = COUNT; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **d) { *d = (void *)(index + 1L); return LOST == index ? 15 : 0; }
int nvmlDeviceGetName(void *d, char *to, unsigned size) { return copy(to, size, "NVIDIA A10"); }
int nvmlDeviceGetUUID(void *d, char *to, unsigned size) { return copy(to, size, second(d) ? "GPU-b" : "GPU-a"); }
int nvmlDeviceGetPciInfo_v3(void *d, char *pci) { strcpy(pci + 36, second(d) ? "00000000:06:00.0" : "00000000:05:00.0"); return 0; }
int nvmlDeviceGetPersistenceMode(void *d, unsigned *mode) { *mode = 1; return second(d); }
int nvmlDeviceGetDisplayActive(void *d, unsigned *mode) { *mode = 0; return second(d); }
int nvmlDeviceGetEccMode(void *d, unsigned *now, unsigned *next) { *now = *next = 1; return second(d); }
int nvmlDeviceGetTotalEccErrors(void *d, unsigned a, unsigned b, unsigned long long *n) { *n = 2; return second(d); }
int nvmlDeviceGetTemperature(void *d, unsigned sensor, unsigned *t) { *t = 41; return second(d); }
int nvmlDeviceGetPerformanceState(void *d, unsigned *p) { *p = 8; return second(d); }
int nvmlDeviceGetPowerUsage(void *d, unsigned *mw) { *mw = 16400; return second(d); }
int nvmlDeviceGetEnforcedPowerLimit(void *d, unsigned *mw) { *mw = 150000; return second(d); }
int nvmlDeviceGetMemoryInfo(void *d, unsigned long long *m) { m[0] = 23028ULL << 20; m[2] = 3ULL << 20; m[1] = m[0] - m[2]; return second(d); }
int nvmlDeviceGetMemoryInfo_v2(void *d, unsigned long long *m) { m[2] = 421ULL << 20; return (unsigned)*m == 0x2000028 ? 0 : 25; }
int nvmlDeviceGetPowerManagementMode(void *d, unsigned *mode) { *mode = 1; return second(d); }
int nvmlDeviceGetUtilizationRates(void *d, unsigned *u) { u[0] = 7; u[1] = 1; return second(d); }
int nvmlDeviceGetComputeMode(void *d, unsigned *mode) { *mode = 0; return second(d); }
int nvmlDeviceGetMigMode(void *d, unsigned *now, unsigned *next) { return 3; }
"""

TABLE = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 570.172.08             Driver Version: 570.172.08     CUDA Version: 12.8     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  NVIDIA A10                     On  |   00000000:05:00.0 Off |                    2 |
| N/A   41C    P8             16W /  150W |       3MiB /  23028MiB |      7%      Default |
|                                         |                        |                  N/A |
+-----------------------------------------+------------------------+----------------------+
|   1  NVIDIA A10                     N/A |   00000000:06:00.0 N/A |                  N/A |
| N/A   N/A   N/A             N/A /   N/A |        N/A /       N/A |     N/A          N/A |
|                                         |                        |                  N/A |
+-----------------------------------------+------------------------+----------------------+
"""
MARK = 'This is nvgraft\'s nvidia-smi: the GPUs of host "mig-h100" are simulated.\n'
MISSING = "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that"
UNREACHED = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure"
)


def compiled(directory: Path, host: Host) -> Path:
    """Compile nvidia-smi for a host into a directory, and return its path."""
    compiler = build.Compiler(
        data.c_source(host), lambda soname: stubs.shared_object(64, "EM_X86_64", soname, (), None)
    )
    path = directory / "nvidia-smi"
    path.write_bytes(
        compiler.program(build.SOURCES / "nvidia_smi.c", "/lib64/ld-linux-x86-64.so.2")
    )
    path.chmod(0o755)
    return path


@pytest.fixture(scope="module")
def smi(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile nvidia-smi for a host with driver 570.172.08."""
    return compiled(tmp_path_factory.mktemp("smi"), load_host(gallery.path("mig-h100")))


def library(
    directory: Path, init: int = 0, count: int = 2, lost: int = 9, version: str = "570.172.08"
) -> Path:
    """Compile an NVML into a directory, and return the directory."""
    source = directory / "nvml.c"
    source.write_text(NVML)
    output = directory / "libnvidia-ml.so.1"
    defines = [f"-DINIT={init}", f"-DCOUNT={count}", f"-DLOST={lost}", f'-DVERSION="{version}"']
    command = ["gcc", "-w", "-shared", "-fPIC", *defines, str(source), "-o", str(output)]
    subprocess.run(command, check=True)
    return directory


@pytest.fixture(scope="module")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile an NVML with two GPUs."""
    return library(tmp_path_factory.mktemp("nvml"))


def run(program: Path, directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run nvidia-smi with the NVML of a directory."""
    environment = os.environ | {"LD_LIBRARY_PATH": str(directory)}
    return subprocess.run(
        [program, *arguments], env=environment, capture_output=True, text=True, check=False
    )


def test_the_table_ends_with_whose_it_is(smi: Path, nvml: Path) -> None:
    """The table has a row for each GPU, N/A for what is not known, and a last line that says that
    it is nvgraft's.
    """
    done = run(smi, nvml)
    assert (done.returncode, done.stderr) == (0, "")
    _date, _, rest = done.stdout.partition("\n")
    assert rest.startswith(TABLE)
    assert "|  No running processes found " in rest
    assert done.stdout.endswith(MARK)


def test_the_banner_of_newer_drivers(tmp_path: Path) -> None:
    """From 610 on, nvidia-smi calls the driver's version that of its kernel module (KMD)."""
    host = load_host(gallery.path("mig-h100"))
    newer = host.nvml.model_copy(update={"driver_version": "610.43.02"})
    program = compiled(tmp_path, host.model_copy(update={"nvml": newer}))
    nvml = library(tmp_path, version="610.43.02")
    assert run(program, nvml).stdout.splitlines()[2] == (
        "| NVIDIA-SMI 610.43.02              KMD Version: 610.43.02     CUDA UMD Version: 12.8     |"
    )


def test_what_programs_read_has_no_line_of_ours(smi: Path, nvml: Path) -> None:
    """Lists and csv are on standard output as NVIDIA's, and the line that says whose they are is
    on stderr.
    """
    done = run(smi, nvml, "-L")
    listed = "GPU 0: NVIDIA A10 (UUID: GPU-a)\nGPU 1: NVIDIA A10 (UUID: GPU-b)\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, listed, MARK)
    fields = "--query-gpu=index,gpu_name,memory.used,utilization.gpu,temperature.gpu,fan.speed"
    done = run(smi, nvml, fields, "--format=csv")
    assert (done.returncode, done.stderr) == (0, MARK)
    assert done.stdout == (
        "index, name, memory.used [MiB], utilization.gpu [%], temperature.gpu, fan.speed [%]\n"
        "0, NVIDIA A10, 3 MiB, 7 %, 41, [N/A]\n"
        "1, NVIDIA A10, [N/A], [N/A], [N/A], [N/A]\n"
    )
    done = run(smi, nvml, fields, "--format=csv,noheader,nounits", "-i", "GPU-a")
    assert done.stdout == "0, NVIDIA A10, 3, 7, 41, [N/A]\n"
    assert run(smi, nvml, fields, "--format=csv,noheader", "--id=00000000:05:00.0").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--foo"], 255, "ERROR: Option --foo is not recognized. Please run 'nvidia-smi -h'.\n\n"),
        (
            ["--query-gpu=index,foo", "--format=csv"],
            2,
            'Field "foo" is not a valid field to query.\n\n',
        ),
        (
            ["--query-gpu=name, index", "--format=csv"],
            2,
            'Field " index" is not a valid field to query.\n\n',
        ),
        (["--query-gpu=foo", "--format=xml"], 2, 'Field "foo" is not a valid field to query.\n\n'),
        (["--query-gpu=index", "--format=xml"], 2, "Format modifier is not recognized.\n"),
        (["--query-gpu=index", "--format=csv,NOHEADER"], 2, "Format modifier is not recognized.\n"),
        (
            ["--query-gpu=index", "--format=csv, noheader"],
            2,
            "Format modifier is not recognized.\n",
        ),
        (
            ["--query-gpu=index", "--format=noheader"],
            2,
            "Format modifier --format=csv is mandatory.\n",
        ),
        (
            ["--format=csv"],
            255,
            "ERROR: Option --format=csv is not recognized. Please run 'nvidia-smi -h'.\n\n",
        ),
        (
            ["--query-gpu=index"],
            2,
            "\"--format=\" switch is missing. Please run 'nvidia-smi -h' for help.\n\n",
        ),
        (["-i", "5"], 6, "No devices were found\n"),
    ],
)
def test_wrong_usage_is_as_nvidias(
    smi: Path, nvml: Path, arguments: list[str], code: int, text: str
) -> None:
    """Wrong options, fields and GPUs are answered in the words and with the exit codes of NVIDIA's
    program.
    """
    done = run(smi, nvml, *arguments)
    assert (done.returncode, done.stdout) == (code, text)


def test_the_fields_are_listed_as_scripts_read_them(smi: Path, nvml: Path) -> None:
    """--help-query-gpu has each field and its other name in quotation marks, and each is answered."""
    listed = run(smi, nvml, "--help-query-gpu").stdout
    assert '\n"name" or "gpu_name"\n' in listed
    names = re.findall(r'^"([^"]+)"(?: or "[^"]+")?$', listed, re.MULTILINE)
    assert len(names) > 50
    done = run(smi, nvml, f"--query-gpu={','.join(names)},", "--format=csv,")
    assert done.returncode == 0
    header = [name.partition(" ")[0] for name in done.stdout.splitlines()[0].split(", ")]
    assert header == names
    done = run(smi, nvml, "--query-gpu=memory.reserved,power.management", "--format=csv,noheader")
    assert done.stdout.splitlines() == ["421 MiB, Enabled", "421 MiB, [N/A]"]


@pytest.mark.parametrize(
    ("init", "code", "text"),
    [
        (9, 9, UNREACHED),
        (18, 18, "Failed to initialize NVML: Driver/library version mismatch\n"),
        (999, 255, "Failed to initialize NVML: Unknown Error\n"),
    ],
)
def test_failures_are_in_nvidias_words(
    smi: Path, tmp_path: Path, init: int, code: int, text: str
) -> None:
    """An NVML that does not start ends the program with its words and exit code."""
    done = run(smi, library(tmp_path, init=init))
    assert done.returncode == code
    assert done.stdout.startswith(text)


def test_without_nvml(smi: Path, tmp_path: Path) -> None:
    """A missing library is exit code 12, help works without it, and an empty one has no functions."""
    done = run(smi, tmp_path)
    assert done.returncode == 12
    assert done.stdout.startswith(MISSING)
    assert run(smi, tmp_path, "--help").returncode == 0
    empty = stubs.shared_object(64, "EM_X86_64", "libnvidia-ml.so.1", ["libc.so.6"], None)
    (tmp_path / "libnvidia-ml.so.1").write_bytes(empty)
    done = run(smi, tmp_path)
    assert (done.returncode, done.stdout) == (13, "Failed to initialize NVML: Function Not Found\n")


def test_an_nvml_of_another_version_is_a_mismatch(smi: Path, tmp_path: Path) -> None:
    """The library has to be of the program's own version."""
    directory = library(tmp_path)
    path = directory / "libnvidia-ml.so.1"
    path.write_bytes(path.read_bytes().replace(b"12.570.172.08", b"12.570.158.01"))
    done = run(smi, directory)
    text = "Failed to initialize NVML: Driver/library version mismatch\n"
    assert (done.returncode, done.stdout) == (18, text)


def test_lost_and_absent_gpus(smi: Path, tmp_path: Path) -> None:
    """A GPU that is lost ends the table and leaves the list; without a GPU there is no table."""
    directory = library(tmp_path, lost=1)
    done = run(smi, directory)
    assert done.returncode == 15
    done = run(smi, directory, "-L")
    assert done.returncode == 15
    assert done.stdout.startswith("GPU 0: NVIDIA A10 (UUID: GPU-a)\nUnable to determine the device")
    done = run(smi, library(tmp_path, count=0))
    assert (done.returncode, done.stdout) == (6, "No devices were found\n")
    done = run(smi, tmp_path, "-L")
    assert (done.returncode, done.stdout) == (0, "No devices found.\n")
