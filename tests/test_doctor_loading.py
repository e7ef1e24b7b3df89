"""``nvgraft doctor`` foretells which libraries load, and from which file."""

from pathlib import Path

import pytest

from loaders import LOADER, X86, Captured
from nvgraft_cli.simulate.stubs import Loading, executable, shared_object
from patients import ALL, Setup, doctor, older_library, run_doctor, without_loader


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path)


@pytest.mark.parametrize(
    ("how", "fix"),
    [
        ("LD_PRELOAD", "remove /opt/old/libcuda.so.1 from LD_PRELOAD"),
        ("/etc/ld.so.preload", "remove /opt/old/libcuda.so.1 from /etc/ld.so.preload"),
        ("RUNPATH", "or build /usr/bin/app without the path"),
    ],
)
def test_the_way_out_names_why_the_images_library_comes_first(
    how: str, fix: str, setup: Setup, capsys: Captured
) -> None:
    """A library of the image that comes before the host's is named with its rule and the fix."""
    older_library(setup)
    setup.env.pop()
    if how == "LD_PRELOAD":
        setup.env.append("LD_PRELOAD=/opt/old/libcuda.so.1")
    elif how == "RUNPATH":
        loading = Loading(runpath="/opt/old")
        setup.files["usr/bin/app"] = executable(X86, "x", ["libc.so.6"], None, LOADER, loading)
    else:
        setup.files["etc/ld.so.preload"] = b"/opt/old/libcuda.so.1\n"
    _, results = run_doctor(setup, capsys)
    (finding,) = results["library-shadowed"]["findings"]
    assert how in finding["message"]
    assert fix in finding["fix"]
    assert "error 803" in finding["cause"]


def test_users_see_the_words_of_what_they_load(setup: Setup, capsys: Captured) -> None:
    """What users see of a stub, of another libnvidia-ml, and of a container without compute."""
    stub = "opt/cuda/lib64/stubs/libcuda.so.1"
    setup.files[stub] = shared_object(64, X86, "libcuda.so.1", [], None)
    setup.env.append("LD_LIBRARY_PATH=/opt/cuda/lib64/stubs:/opt/old")
    old = shared_object(64, X86, "libnvidia-ml.so.1", [], None)
    setup.files["opt/old/libnvidia-ml.so.1"] = old
    shadowed = doctor(setup, capsys)[0]["library-shadowed"]
    assert {finding["message"].partition(":")[0]: finding["phrase"] for finding in shadowed} == {
        "libcuda.so.1": "CUDA driver is a stub library",
        "libnvidia-ml.so.1": "Failed to initialize NVML: Driver/library version mismatch",
    }
    setup.env = [ALL, "NVIDIA_DRIVER_CAPABILITIES=utility"]
    (finding,) = doctor(setup, capsys)[0]["capability-not-requested"]
    assert finding["phrase"] == "Found no NVIDIA driver on your system"


def test_a_file_at_which_the_loader_stops_is_named(setup: Setup, capsys: Captured) -> None:
    """A linker script under the library's name stops the loader, and the library is not loaded."""
    older_library(setup)
    setup.files["opt/old/libcuda.so.1"] = b"INPUT(/usr/lib/libcuda.so)" * 9
    _, results = run_doctor(setup, capsys)
    (finding,) = results["library-shadowed"]["findings"]
    assert finding["message"] == "/opt/old/libcuda.so.1: invalid ELF header"
    assert finding["fix"] == "remove /opt/old/libcuda.so.1 from the image"


def test_a_library_that_the_image_lacks_is_named(setup: Setup, capsys: Captured) -> None:
    """A driver's library that needs a library which no image directory has does not load."""
    (path,) = (name for name in setup.host["files"] if name.endswith("/lib/libcuda.so.535.1"))
    setup.host["files"][path]["elf"]["needed"] = ["libm.so.6"]
    code, results = run_doctor(setup, capsys)
    assert code == 1
    (finding,) = results["library-shadowed"]["findings"]
    assert finding["message"].endswith("/libcuda.so.1 needs libm.so.6, which the image lacks")
    assert finding["fix"] == "add the package that contains libm.so.6 to the image"


@pytest.mark.parametrize(
    ("variable", "advice"),
    [
        ([], "set NVIDIA_DRIVER_CAPABILITIES=compute,utility,compat32"),
        (
            ["LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu"],
            "set NVIDIA_DRIVER_CAPABILITIES=compute,utility,compat32",
        ),
        (
            ["NVIDIA_DRIVER_CAPABILITIES=compute,utility,compat32"],
            "install all 32-bit libraries of the driver on the host",
        ),
    ],
)
def test_a_32_bit_program_needs_compat32(
    variable: list[str], advice: str, setup: Setup, capsys: Captured
) -> None:
    """A 32-bit image is told to ask for compat32, not to search the 64-bit directory; where it has
    asked, the host lacks the libraries.
    """
    loader = "/lib/ld-linux.so.2"
    setup.env += variable
    setup.files["usr/bin/app"] = shared_object(32, "EM_386", "app", ["libc.so.6"], None, loader)
    setup.files[loader.lstrip("/")] = (
        shared_object(32, "EM_386", "ld-linux.so.2", [], None)
        + b"\0/lib/i386-linux-gnu/\0/usr/lib/i386-linux-gnu/\0/etc/ld.so.cache\0"
    )
    setup.files["lib/i386-linux-gnu/libc.so.6"] = shared_object(32, "EM_386", "libc.so.6", [], None)
    _, results = run_doctor(setup, capsys)
    fixes = {
        finding["fix"]
        for name in ("library-path", "library-shadowed")
        for finding in results[name]["findings"]
    }
    (fix,) = fixes
    assert fix.startswith(advice)


def test_a_greater_version_beside_the_hosts_is_to_be_removed(
    setup: Setup, capsys: Captured
) -> None:
    """Where a directory of LD_LIBRARY_PATH is the driver's own, it is not to be removed from it."""
    libs = "usr/lib/x86_64-linux-gnu"
    setup.env.append(f"LD_LIBRARY_PATH=/{libs}")
    setup.files[f"{libs}/libcuda.so.999.1"] = shared_object(64, X86, "libcuda.so.1", [], None)
    setup.links = {f"{libs}/libcuda.so.1": "libcuda.so.999.1"}
    _, results = run_doctor(setup, capsys)
    (finding,) = results["library-shadowed"]["findings"]
    assert (
        "the link libcuda.so.1 leads to the greater version, libcuda.so.999.1"
        in (finding["message"])
    )
    assert finding["fix"] == f"remove the driver libraries in /{libs} from the image"
    assert not results["soname-links-missing"]["findings"]  # one report for one library


def test_musl_is_named(setup: Setup, capsys: Captured) -> None:
    """The message names musl's loader where the image has no other."""
    without_loader(setup)
    setup.files["lib/ld-musl-x86_64.so.1"] = b"musl"
    _, results = run_doctor(setup, capsys)
    assert (
        "musl's loader /lib/ld-musl-x86_64.so.1"
        in results["loader-missing"]["findings"][0]["message"]
    )
