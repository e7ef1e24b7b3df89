"""What the driver reports about its GPUs, as values.

:mod:`nvgraft.host.nvml` asks the driver, :mod:`nvgraft.host.snapshot` reads a recorded report.
"""

from __future__ import annotations

from nvgraft.base.values import Value

#: One more than the kernel's largest minor number.
MINORS = 1 << 20


def parse_information(text: bytes) -> dict[str, str]:
    """Parse /proc/driver/nvidia/gpus/ADDRESS/information: label -> value. Labels are "GPU UUID",
    "Device Minor", ...
    """
    lines = (line.partition(":") for line in text.decode("utf-8", "replace").splitlines())
    return {label.strip(): value.strip() for label, _, value in lines}


class MigDevice(Value):
    """One MIG device: its UUID from NVML, and the ids of its GPU instance and compute instance.
    ``profile`` is the name of its profile, such as 1g.10gb; empty if it was not asked for or is not
    known.
    """

    def __init__(
        self, uuid: str, gpu_instance: int, compute_instance: int, profile: str = ""
    ) -> None:
        self.uuid = uuid
        self.gpu_instance = gpu_instance
        self.compute_instance = compute_instance
        self.profile = profile


class Gpu(Value):
    """One GPU. ``bus_id`` is DDDDDDDD:BB:DD.0 in lower-case hex; ``mig`` is unsupported, disabled
    or enabled.
    """

    def __init__(
        self,
        minor: int,
        uuid: str,
        bus_id: str,
        brand: int,
        arch: str,
        mig: str,
        model: str,
        mig_devices: tuple[MigDevice, ...] = (),
    ) -> None:
        self.minor = minor
        self.uuid = uuid
        self.bus_id = bus_id
        self.brand = brand
        self.arch = arch
        self.mig = mig
        self.model = model
        self.mig_devices = mig_devices


class DriverReport(Value):
    """The driver's report: its version, the CUDA version that it provides, and the GPUs in NVML's
    index order.
    """

    def __init__(self, driver_version: str, cuda_version: str, gpus: tuple[Gpu, ...]) -> None:
        self.driver_version = driver_version
        self.cuda_version = cuda_version
        self.gpus = gpus


def bus_id(domain: int, bus: int, device: int) -> str:
    """Return the PCI address in the form that the reference prints and compares."""
    return f"{domain:08x}:{bus:02x}:{device:02x}.0"
