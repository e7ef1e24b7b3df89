"""``nvgraft doctor`` finds the CUDA runtime that the container's program uses, linked into it, needed
by it, or opened by its name, and compares it with the driver's CUDA.
"""

import json
from pathlib import Path

import pytest

from loaders import LOADER, X86, Captured
from nvgraft.formats.tree import open_tree_at
from nvgraft.host.snapshot import snapshot_host
from nvgraft.request.config import Config
from nvgraft_cli.case.bundle import open_container
from nvgraft_cli.case.hosts import HostSide
from nvgraft_cli.case.texts import texts_in
from nvgraft_cli.doctor import cuda_runtimes
from nvgraft_cli.doctor.cuda_runtimes import find_runtimes
from nvgraft_cli.doctor.patient import Patient
from nvgraft_cli.shell.main import main
from nvgraft_cli.simulate.stubs import Loading, executable, shared_object
from patients import Setup, doctor, run_doctor

MARK = b"\0/cudart.shm.%x.%x.%llx\0"
#: The constants of a runtime that is linked into a program, by its major version.
INSIDE = {
    11: MARK,
    12: MARK + b"cudaErrorCdpVersionMismatch\0",
    13: MARK + b"cudaErrorCdpVersionMismatch\0cudaMemPrefetchBatchAsync\0",
}
RUNTIME = shared_object(64, X86, "libcudart.so.13", [], None)
#: What cudart 13 on the driver of the setup ends in.
TOO_NEW = "CUDA fails with error 35 (CUDA driver version is insufficient for CUDA runtime version)"


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path)


def program(*needed: str, loading: Loading | None = None) -> bytes:
    """Return a program that needs libraries."""
    return executable(X86, "x", ["libc.so.6", *needed], None, LOADER, loading or Loading())


@pytest.mark.parametrize("image", [False, True], ids=["bundle", "archive"])
@pytest.mark.parametrize(("major", "found"), [(11, False), (12, False), (13, True)])
def test_a_runtime_inside_the_program_is_found(
    major: int, image: bool, found: bool, setup: Setup, capsys: Captured
) -> None:
    """nvcc -cudart static: the program has the runtime, which names its major version; it decides,
    whatever else the image has.
    """
    setup.image = image
    setup.files["usr/bin/app"] += bytes(3 << 20) + INSIDE[major]
    setup.files["usr/local/cuda/lib64/libcudart.so.12.1.48"] = b"x"
    findings, verdict = doctor(setup, capsys)
    assert ("cuda-too-new" in findings) is found
    if found:
        assert f"{TOO_NEW} because /usr/bin/app has the CUDA runtime 13.x inside" in verdict


def test_a_runtime_that_the_program_needs_is_found(setup: Setup, capsys: Captured) -> None:
    """It is found by RUNPATH in any directory, and no other runtime of the image excuses it."""
    setup.files["usr/bin/app"] = program("libcudart.so.13", loading=Loading(None, "/opt/r"))
    setup.files["opt/r/libcudart.so.13"] = RUNTIME
    setup.files["usr/local/cuda/lib64/libcudart.so.12.1.48"] = b"x"
    assert (
        f"{TOO_NEW} because the image's CUDA runtime is 13.x (/opt/r/libcudart.so.13)"
        in (doctor(setup, capsys)[1])
    )


def _runpath(setup: Setup) -> None:
    setup.files["usr/bin/app"] = program(loading=Loading(None, "/opt/r"))


def _variable(setup: Setup) -> None:
    setup.files["usr/bin/env"] = setup.files["usr/bin/app"]
    setup.args = ["env", "LD_LIBRARY_PATH=/opt/r", "app"]


def _cache(setup: Setup) -> None:
    setup.files["etc/ld.so.conf"] = b"/opt/r\n"


@pytest.mark.parametrize("change", [_runpath, _variable, _cache])
def test_a_runtime_that_the_program_may_open_is_found(
    change: object, setup: Setup, capsys: Captured
) -> None:
    """A runtime that the loader finds by its name counts, wherever it is."""
    setup.files["opt/r/libcudart.so.13"] = RUNTIME
    assert "CUDA finds 2 GPUs" in doctor(setup, capsys)[1]
    change(setup)  # type: ignore[operator]
    assert (
        f"{TOO_NEW} because the image's CUDA runtime is 13.x (/opt/r/libcudart.so.13)"
        in (doctor(setup, capsys)[1])
    )


def test_a_runtime_inside_the_program_cannot_be_replaced(
    setup: Setup, capsys: Captured, tmp_path: Path
) -> None:
    """On a simulated host the preloaded stand-in serves a linked runtime, and none that is inside."""
    config = tmp_path / "simulated.toml"
    config.write_text("[nvgraft]\nsimulated-host = true\n")
    setup.env.append("LD_PRELOAD=/opt/libnvgraft-cudart.so.1")
    setup.files["opt/libnvgraft-cudart.so.1"] = RUNTIME
    setup.files["usr/bin/app"] = program("libcudart.so.13", loading=Loading(None, "/opt/r"))
    setup.files["opt/r/libcudart.so.13"] = RUNTIME
    words = ("--config", str(config), "--ignore", "cuda-too-new")
    assert "simulated-runtime" not in doctor(setup, capsys, *words)[0]
    setup.files["usr/bin/app"] = program() + INSIDE[12]
    found, verdict = doctor(setup, capsys, *words)
    assert "nvcc -cudart shared" in found["simulated-runtime"][0]["fix"]
    assert "CUDA fails with error 500 (named symbol not found) or 103" in verdict


def test_texts_are_found_across_steps_and_up_to_the_limit(tmp_path: Path) -> None:
    """A text may lie across two steps of reading; nothing behind the limit is read."""
    (tmp_path / "f").write_bytes(bytes((1 << 20) - 3) + b"needle" + bytes(2 << 20) + b"pin")
    tree = open_tree_at(str(tmp_path))
    try:
        assert texts_in(tree, "/f", [b"needle", b"pin"], 4 << 20) == {b"needle", b"pin"}
        assert texts_in(tree, "/f", [b"needle", b"pin"], 2 << 20) == {b"needle"}
    finally:
        tree.close()


def _compat_used(setup: Setup) -> None:
    """Add the forward compatibility libraries of CUDA 13.0, which the program loads."""
    setup.env.append("LD_LIBRARY_PATH=/usr/local/cuda/compat")
    setup.files["usr/local/cuda/compat/libcuda.so.580.65.06"] = shared_object(
        64, X86, "libcuda.so.1", [], None
    )
    setup.links["usr/local/cuda/compat/libcuda.so.1"] = "libcuda.so.580.65.06"


_WHEELS = "usr/local/lib/python3.12/dist-packages"
_NVCC = "usr/local/cuda-12.8/bin/nvcc"


@pytest.mark.parametrize(
    ("files", "levels"),
    [
        (["usr/local/cuda-12.2/lib64/libcudart.so.12.2.140"], []),
        (["usr/lib/x86_64-linux-gnu/libcudart.so.11.8.89", _NVCC], []),
        (["usr/local/cuda-12.8/targets/x86_64-linux/lib/libcudart.so.12.8.90"], []),
        (["usr/local/cuda-12.8/lib64/libcudart.so.12.8.90", _NVCC], ["warning"]),
        ([f"{_WHEELS}/nvidia/cuda_runtime/lib/libcudart.so.12"], []),
        ([f"{_WHEELS}/nvidia/cu13/lib/libcudart.so.13"], ["error"]),
        ([f"{_WHEELS}/torch/lib/libcudart-d0da41ae.so.11.0"], []),
        (["opt/conda/lib/python3.11/site-packages/torch/lib/libcudart.so.13"], ["error"]),
        (["opt/app/lib/libcudart.so.14.1.7"], ["error"]),
        (
            [
                "usr/local/cuda-13.0/lib64/libcudart.so.13.0.48",
                f"{_WHEELS}/nvidia/cuda_runtime/lib/libcudart.so.12",
            ],
            ["warning"],
        ),
    ],
    ids=[
        *("equal", "older", "minor", "minor-with-nvcc", "wheel-12", "wheel-13", "bundled"),
        *("conda", "search-path", "two"),
    ],
)
def test_the_cuda_of_the_image_is_compared_with_the_drivers(
    files: list[str], levels: list[str], setup: Setup, capsys: Captured
) -> None:
    """Where another major version is needed, CUDA fails; minor-version compatibility works."""
    setup.env.append("LD_LIBRARY_PATH=/opt/app/lib")
    setup.files |= dict.fromkeys(files, b"x")
    code, results = run_doctor(setup, capsys)
    result = results["cuda-too-new"]
    assert [finding["level"] for finding in result["findings"]] == levels
    assert not result["lacking"]
    assert code == bool(levels)


@pytest.mark.parametrize(
    ("files", "levels"),
    [
        (["srv/app/third/lib/libcudart.so.13.0.48"], ["warning"]),
        (
            ["home/me/app/.venv/lib/python3.11/site-packages/nvidia/cu13/lib/libcudart.so.13"],
            ["warning"],
        ),
        (["usr/lib/runner/cuda_v13/libcudart.so.13.0.48"], ["warning"]),
        (["opt/a/libcudart.so.13.0.48", "opt/b/libcudart.so.12.8.90"], []),
        (["srv/app/libcudart.so.12.8.90"], []),
        (["var/lib/old/libcudart.so.13.0.48"], None),
    ],
    ids=["directory", "venv", "runner", "two", "minor", "not-searched"],
)
def test_a_runtime_anywhere_in_the_image_is_a_warning(
    files: list[str], levels: list[str] | None, setup: Setup, capsys: Captured
) -> None:
    """A runtime in no usual place may be that of a part that is not used; of several, a program
    takes the one that works.
    """
    setup.files |= dict.fromkeys(files, b"x")
    result = run_doctor(setup, capsys)[1]["cuda-too-new"]
    assert bool(result["lacking"]) is (levels is None)
    assert [finding["level"] for finding in result["findings"]] == (levels or [])


def test_the_search_for_a_runtime_is_bounded(
    setup: Setup, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond a number of names the rest of the image is not searched."""
    monkeypatch.setattr(cuda_runtimes, "_SEARCHED", 100)
    setup.files |= {f"srv/{number:03}/x/libcudart.so.13": b"x" for number in range(120)}
    assert run_doctor(setup, capsys)[1]["cuda-too-new"]["lacking"]


@pytest.mark.parametrize(
    ("runtime", "driver", "cuda", "found"),
    [
        ("11.4.148", "450.51.06", "11.0", True),
        ("11.4.148", "450.80.02", "11.0", False),
        ("10.2.89", "418.87.00", "10.1", True),
        ("10.2.89", "440.33.01", "10.1", False),
        ("10.1.243", "560.35.03", "12.6", False),
    ],
)
def test_the_table_of_minimum_drivers_decides(
    runtime: str, driver: str, cuda: str, found: bool, setup: Setup, capsys: Captured
) -> None:
    """Before CUDA 11 every version has a minimum driver, from 11 on every major version."""
    text = json.dumps(setup.host).replace("535.1", driver).replace('"12.2"', f'"{cuda}"')
    setup.host = json.loads(text)
    setup.files[f"usr/local/cuda/lib64/libcudart.so.{runtime}"] = b"x"
    _, results = run_doctor(setup, capsys)
    assert bool(results["cuda-too-new"]["findings"]) is found
    assert not results["cuda-too-new"]["lacking"]


def test_forward_compatibility_counts_where_it_is_loaded(setup: Setup, capsys: Captured) -> None:
    """The CUDA of a compat library that the program loads decides, not that of the host."""
    setup.files["usr/local/cuda/lib64/libcudart.so.13.0.48"] = b"x"
    _compat_used(setup)
    _, results = run_doctor(setup, capsys)
    assert results["cuda-too-new"]["status"] == "ok"


def test_an_image_without_a_runtime_is_not_called_ok(setup: Setup, capsys: Captured) -> None:
    """A program may contain the runtime: where no libcudart is found, nothing is known."""
    _, results = run_doctor(setup, capsys)
    assert results["cuda-too-new"]["lacking"].startswith("no CUDA runtime (libcudart) was found")


def test_a_runtime_of_nvidias_fails_on_a_simulated_host(
    setup: Setup, capsys: Captured, tmp_path: Path
) -> None:
    """On a simulated host the last line names CUDA's errors, unless the stand-in for the runtime is
    preloaded; a cupy is a warning all the same. Elsewhere nothing is said.
    """
    setup.files["usr/local/cuda/lib64/libcudart.so.12.1.48"] = b"x"
    config = tmp_path / "config.toml"
    config.write_text("[nvgraft]\nsimulated-host = true\n")

    def doctor(*more: str) -> tuple[list[str], str]:
        words = ["doctor", *setup.arguments(), *more]
        main([*words, "--format", "json"])
        document = json.loads(capsys.readouterr().out)
        (result,) = (one for one in document["results"] if one["id"] == "simulated-runtime")
        return [finding["level"] for finding in result["findings"]], document["verdict"]

    simulated = ["--config", str(config)]
    preload = ["--env", "LD_PRELOAD=/x.so:/opt/libnvgraft-cudart.so.1"]
    assert doctor()[0] == []
    levels, verdict = doctor(*simulated)
    assert levels == ["error"]
    assert "CUDA fails with error 500 (named symbol not found) or 103" in verdict
    assert doctor(*simulated, *preload)[0] == []
    setup.files["usr/lib/python3.11/site-packages/cupy/__init__.py"] = b""
    assert doctor(*simulated, *preload)[0] == ["warning"]
    assert doctor()[0] == []


def test_a_newer_wheel_tells_its_minor_version(setup: Setup, capsys: Captured) -> None:
    """The name of a wheel's file has the major version only; its metadata has the whole."""
    setup.files[f"{_WHEELS}/nvidia/cu14/lib/libcudart.so.14"] = b"x"
    setup.files[f"{_WHEELS}/nvidia_cuda_runtime-14.2.7.dist-info/METADATA"] = b"x"
    _, results = run_doctor(setup, capsys)
    assert "CUDA runtime is 14.2 (" in results["cuda-too-new"]["findings"][0]["message"]


def test_the_python_of_the_program_is_searched(setup: Setup, capsys: Captured) -> None:
    """A virtual environment outside of PATH is found by the program that the container starts."""
    setup.files["srv/env/bin/python"] = setup.files["usr/bin/app"]
    setup.files["srv/env/lib/python3.12/site-packages/nvidia/cu13/lib/libcudart.so.13"] = b"x"
    setup.args = ["/srv/env/bin/python", "serve.py"]
    _, results = run_doctor(setup, capsys)
    assert "CUDA runtime is 13.x (/srv/env/" in results["cuda-too-new"]["findings"][0]["message"]


def test_only_so_many_directories_are_searched_for_cuda(setup: Setup, capsys: Captured) -> None:
    """An image with very many Pythons costs no more time: the first 32 are looked at."""
    for number in range(100, 140):
        packages = f"usr/local/lib/python3.{number}/site-packages"
        setup.files[f"{packages}/nvidia/cu13/lib/libcudart.so.13"] = b"x"
    words = setup.arguments()
    with open_container(words[-1]) as container:
        side = HostSide("node", Config(), None)
        side.facts = snapshot_host(setup.host)
        assert len(find_runtimes(Patient(side, container, []))) == 32
