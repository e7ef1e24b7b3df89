"""The devices that CUDA finds in a container, as doctor counts them and as the simulated driver
does.
"""

import pytest

from nvgraft.host.gpus import Gpu, MigDevice
from nvgraft_cli.doctor.cuda_devices import CudaDevice, find_devices
from standin_driver import uuid
from test_standin_cuda import MIG_VISIBLE, VISIBLE


def gpu(number: int, migs: tuple[MigDevice, ...] = ()) -> Gpu:
    """Return a GPU; with MIG devices it is in MIG mode."""
    mode = "enabled" if migs else "disabled"
    return Gpu(number, uuid("GPU", number), "", 2, "9.0", mode, f"GPU {number}", migs)


def names(devices: tuple[CudaDevice, ...]) -> list[str]:
    """Return the names of devices that are whole GPUs."""
    return [device.gpu.model for device in devices if device.gpu is not None]


@pytest.mark.parametrize(("value", "expected"), VISIBLE)
def test_the_variable_is_read_as_the_driver_reads_it(value: str, expected: object) -> None:
    """For each value doctor finds the devices that the simulated driver shows; where a list ends
    early the fault says so.
    """
    given = [CudaDevice(gpu(number)) for number in range(3)]
    found = find_devices(given, (), value)
    assert names(found.found) == ([] if expected == 100 else expected)
    assert bool(found.fault) == (len(found.found) < len(value.split(",")))


@pytest.mark.parametrize(("value", "kind", "number"), MIG_VISIBLE)
def test_one_mig_device_is_found(value: str | None, kind: str, number: int) -> None:
    """Of several MIG devices CUDA finds the first one that is named, and no GPU beside it."""
    migs = tuple(MigDevice(uuid("MIG", 16 + place), place, 0) for place in (1, 2))
    cut = gpu(1, migs)
    given = [CudaDevice(gpu(0)), *(CudaDevice(cut, mig) for mig in migs)]
    (device,) = find_devices(given, (), value).found
    assert device.gpu is not None
    assert uuid(kind, number) == (device.mig.uuid if device.mig else device.gpu.uuid)


def test_devices_that_nvml_does_not_know_are_numbered() -> None:
    """On a Tegra board, which has no NVML, a number names a GPU as well."""
    given = [CudaDevice(None), CudaDevice(None)]
    assert len(find_devices(given, (), "0,1").found) == 2
    assert find_devices(given, (), "2").fault == (
        "CUDA_VISIBLE_DEVICES=2 names no device: there is no GPU 2 in the container, which has GPUs"
        " 0 to 1"
    )
