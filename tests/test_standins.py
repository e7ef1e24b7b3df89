"""The stand-ins of a simulated host: the data that they answer from, and how they are compiled."""

import ctypes
import os
import posixpath
import subprocess
from pathlib import Path

import pytest

from nvgraft_cli.case import dynamic
from nvgraft_cli.simulate import stubs
from nvgraft_cli.simulate.standins import build, data
from nvgraft_specs import gallery
from nvgraft_specs.models.host import Host, load_host
from nvgraft_specs.models.host_gpus import MigDevice

#: Prints no text, answers with what the data says.
ECHO = """
__attribute__((visibility("default"))) const char *model(unsigned gpu) { return simulated.gpus[gpu].name; }
__attribute__((visibility("default"))) const char *magic(void) { return (const char *)sim_failures.magic; }
__attribute__((visibility("default"))) unsigned size(void) { return sizeof sim_failures; }
"""


def host(**changes: object) -> Host:
    """Return a host with one H100 in MIG mode and one without; ``changes`` are of its first GPU."""
    found = load_host(gallery.path("mig-h100"))
    first, *others = found.nvml.gpus
    gpus = [first.model_copy(update=changes), *others]
    return found.model_copy(update={"nvml": found.nvml.model_copy(update={"gpus": gpus})})


def compiler(of: Host) -> build.Compiler:
    """Return the compiler of a host, for this machine."""
    machine = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}[os.uname().machine]
    return build.Compiler(
        data.c_source(of), lambda soname: stubs.shared_object(64, machine, soname, (), None)
    )


HOSTILE = [
    '"; int evil; char *x = "',
    "\\",
    "??/",
    "a\\nb",
    "é\N{SNOWMAN}",
    "%s%n",
    "*/ */",
    'x"\\\\"9',
]


@pytest.mark.requires("gcc", "x86_64")
def test_a_text_of_a_document_stays_a_text(tmp_path: Path) -> None:
    """Any model name arrives in the stand-in as it stands in the document, and as nothing else."""
    source = tmp_path / "echo.c"
    source.write_text(ECHO)
    found = host()
    gpu = found.nvml.gpus[0]
    gpus = [
        gpu.model_copy(update={"model": text, "mig_devices": [], "minor": number})
        for number, text in enumerate(HOSTILE)
    ]
    hostile = found.model_copy(update={"nvml": found.nvml.model_copy(update={"gpus": gpus})})
    (tmp_path / "echo.so").write_bytes(compiler(hostile).library(source, "libecho.so.1"))
    library = ctypes.CDLL(str(tmp_path / "echo.so"))
    library.model.restype = library.magic.restype = ctypes.c_char_p
    assert [library.model(number).decode() for number in range(len(HOSTILE))] == HOSTILE
    assert library.magic() == b"nvgraft-failures"
    assert (tmp_path / "echo.so").read_bytes().count(library.magic()) == 1


def test_a_text_is_ascii_and_one_line() -> None:
    """A string literal has no character that ends it, starts a trigraph or is more than a byte."""
    assert data.text('a"?\\\n0é') == '"a\\042\\077\\134\\0120\\303\\251"'
    assert data.text(None) == "NULL"


def test_what_is_not_recorded_is_not_known() -> None:
    """Facts of a GPU that neither the document nor a profile has are unknown, not zero."""
    found = host(model="NVIDIA Z1", mig="disabled", mig_devices=[])
    nvml = found.nvml.model_copy(update={"gpus": found.nvml.gpus[:1]})
    source = data.c_source(found.model_copy(update={"nvml": nvml}))
    for field in ("sm_count", "memory_mib", "ecc_mode", "persistence_mode", "power_limit_mw"):
        assert f".{field} = SIM_UNKNOWN" in source
    assert ".temperature_c = {0}" in source
    assert ".cpus = NULL" in source


def test_the_driver_store_of_wsl2_answers() -> None:
    """The driver's files of WSL2, which have no version in their names, are known by SONAME; so the
    library that a CDI specification mounts answers in a container.
    """
    host = load_host(gallery.path("wsl2-rtx3090"))
    store = "/usr/lib/wsl/drivers/nv_dispi.inf_amd64_9c2f6e0b1a7d4c35/"
    names = {
        path.replace(store, ""): soname
        for path in host.files
        if (soname := data.library_of(path, host))
    }
    assert names == {
        "libcuda.so.1.1": "libcuda.so.1",
        "libcuda_loader.so": "libcuda.so.1",
        "libnvidia-ml.so.1": "libnvidia-ml.so.1",
        "libnvidia-ml_loader.so": "libnvidia-ml.so.1",
        "/usr/lib/wsl/lib/libcuda.so.1.1": "libcuda.so.1",
        "/usr/lib/wsl/lib/libnvidia-ml.so.1": "libnvidia-ml.so.1",
    }


@pytest.mark.parametrize("name", gallery.with_hook())
def test_each_host_has_a_library_that_answers(name: str) -> None:
    """On other hosts it is the 64-bit file of the driver's version."""
    host = load_host(gallery.path(name))
    version = host.nvml.driver_version
    files = {soname: path for path in host.files if (soname := data.library_of(path, host))}
    assert {soname: posixpath.basename(path) for soname, path in files.items()} == {
        "libnvidia-ml.so.1": f"libnvidia-ml.so.{version}",
        "libcuda.so.1": f"libcuda.so.{version}",
    }


def test_numbers_of_gpus_and_mig_devices_are_limited() -> None:
    """More GPUs or MIG devices than hardware has are an error, not a large C file."""
    mig = MigDevice(uuid="MIG-x", gpu_instance=1, compute_instance=0)
    with pytest.raises(ValueError, match="has 8 MIG devices: at most 7 are possible"):
        data.c_source(host(mig_devices=[mig] * 8))
    found = host()
    many = found.nvml.model_copy(update={"gpus": found.nvml.gpus * 40})
    with pytest.raises(ValueError, match="80 GPUs: a simulated host has at most 64"):
        data.c_source(found.model_copy(update={"nvml": many}))


def test_the_capabilities_of_a_mig_device_are_its_nodes() -> None:
    """The nodes of a MIG device's two instances are those that /proc names; else unknown."""
    source = data.c_source(host())
    assert ".gi_capability = 12, .ci_capability = 13" in source
    absent = host().model_copy(update={"files": {}})
    assert ".gi_capability = SIM_UNKNOWN, .ci_capability = SIM_UNKNOWN" in data.c_source(absent)


def facts(tmp_path: Path, content: bytes) -> dynamic.Dynamic:
    """Return the dynamic section of a file with ``content``."""
    path = tmp_path / "built"
    path.write_bytes(content)
    path.chmod(0o755)
    with path.open("rb") as file:
        return dynamic.read_file(file.fileno())


def newest_glibc(built: dynamic.Dynamic) -> tuple[int, ...]:
    """Return the newest version of glibc that a file asks for."""
    assert built.versions_needed
    return max(
        tuple(int(part) for part in version.removeprefix("GLIBC_").split("."))
        for _library, version in built.versions_needed
    )


@pytest.mark.requires("gcc", "x86_64")
@pytest.mark.parametrize("name", ["nvml.c", "cuda.c", "stub.c"])
def test_a_library_is_named_and_needs_as_recorded(name: str, tmp_path: Path) -> None:
    """SONAME and needed libraries are as asked, whether this machine has them or not; those in
    which older glibc keeps its functions follow, and no version is newer than glibc 2.17.
    """
    needed = ["libm.so.6", "libmissing,-z.so.9", "libpthread.so.0", "libc.so.6"]
    source = build.SOURCES / name
    built = facts(tmp_path, compiler(host()).library(source, "libexample.so.1", needed))
    assert built.soname == "libexample.so.1"
    assert built.needed[:5] == (*needed[:3], "libdl.so.2", "libc.so.6")
    # The loader is named where a library has variables of threads.
    assert set(built.needed[5:]) <= {"ld-linux-x86-64.so.2"}
    assert newest_glibc(built) <= (2, 17)


PROGRAM = """
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include "start.h"
static pthread_once_t once = PTHREAD_ONCE_INIT;
static void hello(void) { printf("%s of %u\\n", simulated.version, simulated.gpu_count); }
int main(int argc, char **argv) {
  pthread_once(&once, hello);
  return dlopen(argv[1], RTLD_NOW) ? 0 : argc;
}
"""


@pytest.mark.requires("gcc", "x86_64")
def test_a_program_starts_with_old_versions_of_glibc_alone(tmp_path: Path) -> None:
    """A program runs, its arguments arrive, its interpreter is the given one, and of glibc it asks
    for nothing newer than 2.17.
    """
    (tmp_path / "program.c").write_text(PROGRAM)
    interp = "/lib64/ld-linux-x86-64.so.2"
    built = facts(tmp_path, compiler(host()).program(tmp_path / "program.c", interp))
    assert built.interp == interp
    assert newest_glibc(built) <= (2, 17)
    for argument, code in (("libm.so.6", 0), ("/absent", 2)):
        done = subprocess.run(
            [str(tmp_path / "built"), argument], capture_output=True, text=True, check=False
        )
        assert (done.stdout, done.stderr, done.returncode) == ("570.172.08 of 2\n", "", code)


@pytest.mark.requires("gcc", "x86_64")
@pytest.mark.parametrize("name", ["nvml.c", "cuda.c"])
def test_the_stand_ins_load_from_glibc_2_17_on(tmp_path: Path, name: str) -> None:
    """No stand-in asks for a version of glibc that an image with 2.17 lacks."""
    built = facts(tmp_path, compiler(host()).library(build.SOURCES / name, "libx.so.1"))
    assert newest_glibc(built) <= (2, 17)


@pytest.mark.requires("gcc", "x86_64")
def test_nvidia_smi_starts_from_glibc_2_17_on(tmp_path: Path) -> None:
    """nvidia-smi asks for no version of glibc that an image with 2.17 lacks."""
    interp = "/lib64/ld-linux-x86-64.so.2"
    built = facts(tmp_path, compiler(host()).program(build.SOURCES / "nvidia_smi.c", interp))
    assert newest_glibc(built) <= (2, 17)


@pytest.mark.requires("gcc", "x86_64")
def test_an_interpreter_is_not_more_than_an_interpreter(tmp_path: Path) -> None:
    """Commas in a recorded interpreter do not become options of the linker."""
    (tmp_path / "program.c").write_text(PROGRAM)
    odd = "/lib/ld.so,-o,/tmp/x"
    assert facts(tmp_path, compiler(host()).program(tmp_path / "program.c", odd)).interp == odd
