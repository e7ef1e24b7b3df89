"""``nvgraft doctor`` finds the CUDA runtime that the container's program uses: linked into it, needed
by it, or opened by its name.
"""

from pathlib import Path

import pytest

from nvgraft.formats.tree import open_tree_at
from nvgraft_cli.case.texts import texts_in
from nvgraft_cli.simulate.stubs import Loading, executable, shared_object
from test_doctor import LOADER, X86, Captured, Setup, doctor

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
    assert "cuda-too-new" not in doctor(setup, capsys)[0]
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
