"""Real programs ask the simulated driver in containers that the hook has configured: numba, NVIDIA's
Python bindings, and programs with NVIDIA's CUDA runtimes 11, 12 and 13.
"""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import CUDA_PACKAGES, Installed
from nvgraft_cli.explain_error.analysis import analyse
from nvgraft_cli.simulate import python_container, torch_demo

pytestmark = pytest.mark.requires("root", "runc", "gcc", "overlayfs", "x86_64", "cuda-packages")

PACKAGES = python_container.PACKAGES
#: Major version of CUDA -> directory in NVIDIA's package, and the function that fills the
#: structure of that version.
RUNTIMES = {
    "11": ("cuda_runtime", "cudaGetDeviceProperties"),
    "12": ("cuda_runtime", "cudaGetDeviceProperties_v2"),
    "13": ("cu13", "cudaGetDeviceProperties"),
}

#: What nvcc would make of a program that asks for the first GPU's name. The headers of NVIDIA's
#: packages cannot be compiled alone, so the functions are declared here.
QUERY = """
#include <stdio.h>
int cudaGetDeviceCount(int *), cudaRuntimeGetVersion(int *), cudaMalloc(void **, unsigned long), PROPERTIES(void *, int);
const char *cudaGetErrorString(int);
int main(int argc, char **argv) {
  int count = 0, version = 0, error = cudaGetDeviceCount(&count);
  char properties[4096];
  void *memory;
  if (!error) error = PROPERTIES(properties, 0);
  cudaRuntimeGetVersion(&version);
  if (error) { printf("error %d: %s\\n", error, cudaGetErrorString(error)); return 1; }
  printf("CUDA %d.%d: %d x %s\\n", version / 1000, version % 1000 / 10, count, properties);
  if (argc > 1) printf("memory: %s\\n", cudaGetErrorString(cudaMalloc(&memory, 1)));
}
"""


@pytest.fixture(scope="module")
def rootfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make an image with Python, programs for three CUDA runtimes, and one with the runtime inside.

    The runtime of CUDA 13 is where pip installs it, the others are in directories that only RPATH
    of their programs names.
    """
    root = tmp_path_factory.mktemp("image") / "rootfs"
    root.mkdir()
    torch_demo.make_rootfs(str(root))
    for major, (directory, properties) in RUNTIMES.items():
        place = PACKAGES if major == "13" else f"/opt/cuda-{major}"
        shutil.copytree(CUDA_PACKAGES / major, f"{root}{place}", dirs_exist_ok=True)
        (library,) = (CUDA_PACKAGES / major).glob(f"nvidia/{directory}/lib/libcudart.so.*")
        options = [str(library), f"-Wl,-rpath,{place}/nvidia/{directory}/lib"]
        _compile(f"{root}/usr/bin/query{major}", properties, options)
    static = str(CUDA_PACKAGES / "13/nvidia/cu13/lib/libcudart_static.a")
    options = [static, "-ldl", "-lpthread", "-lrt"]
    _compile(f"{root}/usr/bin/static", "cudaGetDeviceProperties", options)
    yield root
    shutil.rmtree(root)


def _compile(path: str, properties: str, options: list[str]) -> None:
    command = ["gcc", f"-DPROPERTIES={properties}", "-x", "c", "-", "-x", "none", *options]
    subprocess.run([*command, "-o", path], input=QUERY, text=True, check=True)


def run(
    rootfs: Path,
    installed: Installed,
    directory: Path,
    program: list[str],
    *,
    host: str = "runfile-a10x2",
    variables: tuple[str, ...] = (),
    mounts: dict[str, str] | None = None,
) -> list[str]:
    """Run a program in a container on a simulated host; return what it printed on both streams."""
    bundle = str(directory / "bundle")
    hook = str(installed.hook)
    python_container.make_bundle(
        bundle, str(rootfs), hook, program, mounts=mounts, variables=variables
    )
    name = f"nvgraft-cuda-{directory.name}"
    start = f"runc --root /run/runc run --bundle {bundle} {name} 2>&1"
    command = [str(installed.cli), "simulate", host, "--", "sh", "-c", start]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.stderr == ""
    return done.stdout.splitlines()


BINDINGS = """
from cuda.bindings import driver
driver.cuInit(0)
error, count = driver.cuDeviceGetCount()
for index in range(count):
    error, device = driver.cuDeviceGet(index)
    name, memory = driver.cuDeviceGetName(64, device)[1], driver.cuDeviceTotalMem(device)[1]
    print(name.rstrip(b"\\0").decode(), memory >> 30, "GiB", driver.cuDeviceGetUuid(device)[1].bytes.hex()[:8])
print(driver.cuMemAlloc(1)[0].name)
from numba import cuda
cuda.detect()
"""


def test_numba_and_the_bindings_find_the_gpus(
    rootfs: Path, installed: Installed, tmp_path: Path
) -> None:
    """NVIDIA's bindings and numba ask the driver API alone, and need nothing preloaded."""
    program = ["/usr/bin/python3", "-B", "-W", "ignore", "-c", BINDINGS]
    lines = run(
        rootfs,
        installed,
        tmp_path,
        program,
        variables=("LD_PRELOAD=", "PYTHONPATH=/opt/python"),
        mounts={str(CUDA_PACKAGES / "python"): "/opt/python"},
    )
    # runc passes both streams on, in any order.
    found = [line for line in lines if "GiB" in line]
    assert found == ["NVIDIA A10 22 GiB 1704f16f", "NVIDIA A10 22 GiB 9982b158"]
    assert "nvgraft: cuMemAlloc_v2: a simulated GPU computes nothing (error 801)" in "\n".join(
        lines
    )
    assert "CUDA_ERROR_NOT_SUPPORTED" in lines
    assert "Found 2 CUDA devices" in lines
    assert "2/2 devices are supported" in [line.strip() for line in lines]


ALL_QUERIES = "import subprocess\nfor major in 11, 12, 13: subprocess.run([f'/usr/bin/query{major}', 'memory'])"


def test_programs_of_three_runtimes_find_the_gpus(
    rootfs: Path, installed: Installed, tmp_path: Path
) -> None:
    """Each program gets the structure of its version; a driver of CUDA 13 serves all of them."""
    program = ["/usr/bin/python3", "-c", ALL_QUERIES]
    lines = run(rootfs, installed, tmp_path, program, host="l40s-580")
    gpus = "4 x NVIDIA L40S"
    expected = [f"CUDA {version}: {gpus}" for version in ("11.8", "12.9", "13.5")]
    assert [line for line in lines if line.startswith("CUDA")] == expected
    assert lines.count("memory: operation not supported") == 3


@pytest.mark.parametrize(
    ("program", "variables"),
    [("static", ()), ("query12", ("LD_PRELOAD=",))],
    ids=["inside", "real"],
)
def test_nvidias_own_runtime_ends_with_an_error_that_is_explained(
    program: str, variables: tuple[str, ...], rootfs: Path, installed: Installed, tmp_path: Path
) -> None:
    """A runtime that is linked into the program, or not replaced, fails with 500 or 103; one line
    says why, and explain-error knows it.
    """
    lines = run(
        rootfs, installed, tmp_path, [f"/usr/bin/{program}"], host="l40s-580", variables=variables
    )
    said, told = sorted(lines)
    assert said in {"error 500: named symbol not found", "error 103: integrity checks failed"}
    assert told.startswith("nvgraft: cuGetExportTable: a simulated driver has no private interface")
    (meaning,) = analyse(f"CUDA {said}").meanings
    assert "nvgraft simulate" in f"{meaning.cause} {meaning.otherwise}"
    assert [meaning.id for meaning in analyse(told).meanings] == ["cuda-simulated-runtime"]


@pytest.mark.parametrize("preload", [True, False], ids=["stand-in", "real"])
@pytest.mark.parametrize("program", ["query11", "query12", "query13", "static"])
def test_doctor_foretells_what_a_runtime_answers(
    program: str, preload: bool, rootfs: Path, installed: Installed, tmp_path: Path
) -> None:
    """Beside a driver of CUDA 12.6: runtimes of CUDA 13 end in 35, others in 500 or 103 unless the
    stand-in is preloaded; doctor's last line says so, wherever the runtime is.
    """
    bundle = str(tmp_path / "bundle")
    variables = () if preload else ("LD_PRELOAD=",)
    python_container.make_bundle(
        bundle, str(rootfs), str(installed.hook), [f"/usr/bin/{program}"], variables=variables
    )
    start = f"runc --root /run/runc run --bundle {bundle} nvgraft-{tmp_path.name} 2>/dev/null"
    script = f"{start}; {installed.cli} doctor --bundle {bundle} | tail -1"
    done = subprocess.run(
        [installed.cli, "simulate", "runfile-a10x2", "--", "sh", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    seen, foretold = done.stdout.splitlines()
    if program in {"query13", "static"}:
        assert seen.startswith("error 35: ")
        assert "CUDA fails with error 35 (" in foretold
    elif preload:
        assert seen.startswith("CUDA 1")
        assert "CUDA finds 2 GPUs" in foretold
    else:
        assert seen.startswith(("error 500: ", "error 103: "))
        assert "CUDA fails with error 500 (named symbol not found) or 103" in foretold


@pytest.mark.parametrize("scene", torch_demo.SCENES, ids=lambda scene: scene.title[:40])
def test_what_is_foretold_comes_true(
    scene: torch_demo.Scene, rootfs: Path, installed: Installed, tmp_path: Path
) -> None:
    """The scenes of ./dev torch with a program of CUDA 13 in PyTorch's place."""
    node, older = torch_demo.NODES["13"]
    where = older if scene.older_node else node
    answers = torch_demo.play(
        scene, str(installed.prefix), str(rootfs), where, str(tmp_path), ["/usr/bin/query13"]
    )
    assert torch_demo.not_foretold(scene, answers) == []
    expected = f"error {scene.code}: " if scene.code else "CUDA 13.5: "
    assert answers.container.startswith(expected)
