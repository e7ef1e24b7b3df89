"""The output of ``list`` and ``info`` (reference behaviour 4.3, 4.5)."""

from collections.abc import Iterator

from nvgraft.host.components import Inventory, device_file_minor, mig_access_path
from nvgraft.host.gpus import Gpu
from nvgraft.plan.device_selection import Selection, check_mig_request, select_devices
from nvgraft_cli.container_cli.options import ListOptions
from nvgraft_specs import brands

_CAPABILITIES = "/proc/driver/nvidia/capabilities"
_CAPS_DIRECTORY = "/dev/nvidia-caps"
_GPU_COLUMNS = (
    "Device Index",
    "Device Minor",
    "Model",
    "Brand",
    "GPU UUID",
    "Bus Location",
    "Architecture",
)


def info_text(inventory: Inventory, *, csv: bool) -> str:
    """Return the output of ``info``."""
    report = inventory.report
    rows = [_gpu_row(index, gpu) for index, gpu in enumerate(report.gpus)]
    if csv:
        versions = f"NVRM version,CUDA version\n{report.driver_version},{report.cuda_version}\n"
        return (
            "\n".join([versions, ",".join(_GPU_COLUMNS), *(",".join(row) for row in rows)]) + "\n"
        )
    blocks = [[("NVRM version", report.driver_version), ("CUDA version", report.cuda_version)]]
    blocks += [list(zip(_GPU_COLUMNS, row, strict=True)) for row in rows]
    return "\n".join(
        "".join(f"{name + ':':15} {value}\n" for name, value in block) for block in blocks
    )


def _gpu_row(index: int, gpu: Gpu) -> tuple[str, ...]:
    return (
        str(index),
        str(gpu.minor),
        gpu.model,
        brands.name(gpu.brand),
        gpu.uuid,
        gpu.bus_id,
        gpu.arch,
    )


def list_paths(inventory: Inventory, options: ListOptions) -> list[str]:
    """Return the output of ``list``: one path a line, relative to the driver root.

    :raises Refusal: stages ``device``, ``mig-config`` and ``mig-monitor``.
    """
    selection = select_devices(options.devices or (), inventory.report.gpus)
    administered = []
    for name, value in (("config", options.mig_config), ("monitor", options.mig_monitor)):
        check_mig_request(f"mig-{name}", value, selection)
        if any(value.split(",")):
            administered.append(name)
    paths: list[str] = []
    if options.devices is not None:
        paths += [node.path for node in inventory.devices.control]
        paths += [inventory.devices.gpus[index].node.path for index in selection.gpus]
        if not administered:
            paths += _mig_access(inventory, selection)
    paths += [
        f"/dev/nvidia-caps-imex-channels/channel{channel}"
        for channel in options.imex_channels.ids()
    ]
    for name in administered:
        paths += _mig_administration(inventory, selection, name)
    files = inventory.files
    if options.binaries:
        paths += [component.path for component in files.binaries]
    if options.libraries:
        paths += [component.path for component in files.libraries]
        if options.compat32:
            paths += [component.path for component in files.libraries32]
    if options.ipcs:
        paths += [socket.path for socket in (*files.sockets, files.mps) if socket is not None]
    if options.firmwares:
        paths += [firmware.target for firmware in files.firmware]
    return paths


def _mig_access(inventory: Inventory, selection: Selection) -> Iterator[str]:
    for selected in selection.migs:
        access = [
            mig_access_path(inventory.report.gpus[selected.gpu], selected.device, compute=compute)
            for compute in (False, True)
        ]
        yield from access
        for path in access:
            yield from _cap_node(inventory, path)


def _cap_node(inventory: Inventory, access: str) -> Iterator[str]:
    """Yield the device node of a capability; nothing for a driver that has capabilities only in
    /proc.
    """
    if inventory.mig.major is not None:
        minors = (
            device_file_minor(file) for file in inventory.mig.access_files if file.path == access
        )
        yield from (f"{_CAPS_DIRECTORY}/nvidia-cap{minor}" for minor in minors if minor is not None)


def _mig_administration(inventory: Inventory, selection: Selection, name: str) -> Iterator[str]:
    selected = [inventory.report.gpus[index] for index in selection.gpus]
    gpus = [gpu for gpu in selected if gpu.mig != "unsupported"]
    if not gpus:
        return
    yield f"{_CAPABILITIES}/mig/{name}"
    yield from _cap_node(inventory, f"{_CAPABILITIES}/mig/{name}")
    for gpu in gpus:
        yield f"{_CAPABILITIES}/gpu{gpu.minor}"
        if inventory.mig.major is not None:
            yield _CAPS_DIRECTORY
            for capability, minor in inventory.mig.minors:
                if capability.startswith(f"gpu{gpu.minor}/"):
                    yield f"{_CAPS_DIRECTORY}/nvidia-cap{minor}"
