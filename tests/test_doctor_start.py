"""``nvgraft doctor`` foretells whether the runtime starts the container's program."""

from collections.abc import Callable
from pathlib import Path

import pytest

from loaders import Captured
from patients import ALL, Setup, doctor, run_doctor, setting, without


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path)


@pytest.mark.parametrize(
    ("change", "cause", "fix"),
    [
        (
            setting(env=[ALL, "NVIDIA_DRIVER_CAPABILITIES=compute"]),
            "the program that the container starts is not mounted",
            "set NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        ),
        (setting(env=[]), "of which this container gets nothing", "set NVIDIA_VISIBLE_DEVICES=all"),
        (
            lambda setup: without(setup, "/usr/bin/nvidia-smi"),
            "which this host does not have",
            "install nvidia-smi on the host",
        ),
    ],
)
def test_a_container_without_its_nvidia_smi_does_not_start(
    change: Callable[[Setup], None], cause: str, fix: str, setup: Setup, capsys: Captured
) -> None:
    """The verdict of a container whose nvidia-smi is neither mounted nor in the image is that it
    does not start, and one finding says why. With its own in the image, it starts.
    """
    setup.args = ["nvidia-smi"]
    change(setup)
    found, sentence = doctor(setup, capsys)
    words = 'exec: "nvidia-smi": executable file not found in $PATH'
    assert sentence.startswith(f"This container does not start: {words}")
    (finding,) = (one for name in found for one in found[name] if words in one["message"])
    assert cause in finding["cause"]
    assert fix in finding["fix"]
    setup.files["usr/bin/nvidia-smi"] = setup.files["usr/bin/app"]
    assert "does not start" not in doctor(setup, capsys)[1]


@pytest.mark.parametrize("args", [["/srv/bin/run"], ["../srv/run"], ["run"]])
def test_a_program_on_a_volume_is_not_missed(
    args: list[str], setup: Setup, capsys: Captured
) -> None:
    """What a volume of the container holds is not known, also where a link leads there."""
    setup.volumes = ("/srv",)
    setup.args = args
    setup.links = {"usr/bin/run": "../../srv/run"}
    setup.config["process"] = {"cwd": "/tmp"}
    assert "program-missing" not in doctor(setup, capsys)[0]


def test_a_directory_in_the_place_of_the_loader_cache(setup: Setup, capsys: Captured) -> None:
    """The hook replaces no directory: the container does not start, and the fix names it."""
    setup.files["etc/ld.so.cache/x"] = b""
    found = _fixes(setup, capsys)
    assert found == ["the loader cache was not written: /etc/ld.so.cache: not a regular file"]


def _fixes(setup: Setup, capsys: Captured) -> list[str]:
    _, results = run_doctor(setup, capsys)
    return [finding["fix"] for result in results.values() for finding in result["findings"]]
