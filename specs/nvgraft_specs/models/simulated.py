"""What a host document says of a simulated host, and whether it is possible."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nvgraft_specs import profiles
from nvgraft_specs.documents import DocumentError
from nvgraft_specs.models.gpu_profile import GpuProfile, MigProfile, load_profile, profile_of_model

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvgraft_specs.models.host_gpus import Gpu, MigDevice, Topology

#: Compute slices and memory slices of a GPU with MIG.
_COMPUTE_SLICES, _MEMORY_SLICES = 7, 8


class Impossible(Exception):
    """A document says what no host can be.

    :param where: JSON path of the member.
    """

    def __init__(self, where: str, cause: str, fix: str) -> None:
        super().__init__(where, cause, fix)
        self.where = where
        self.cause = cause
        self.fix = fix


def check(gpus: Sequence[Gpu], topology: Topology | None, path: str) -> None:
    """Check what a document says of the simulation; a document without such keys is not looked at.

    :param path: the path to name in the error.
    :raises DocumentError: something is unknown or impossible.
    """
    try:
        for index, gpu in enumerate(gpus):
            _check_gpu(gpu, f"$.nvml.gpus[{index}]")
        if topology is not None:
            _check_topology(topology, gpus)
    except Impossible as error:
        raise DocumentError(path, error.where, error.cause, error.fix) from None


def profile_of(gpu: Gpu) -> GpuProfile | None:
    """Return the profile of a GPU: the one that it names, else that of its model."""
    return load_profile(gpu.profile) if gpu.profile else profile_of_model(gpu.model)


def values_of(gpu: Gpu) -> dict[str, Any]:
    """Return what a GPU answers: the values of its profile, and its own in their place."""
    profile = profile_of(gpu)
    values = profile.values() if profile else {}
    values.pop("compute_capability", None)
    return values | (
        {key: getattr(gpu.values, key) for key in gpu.values.model_fields_set} if gpu.values else {}
    )


def mig_profile(profile: GpuProfile | None, name: str) -> tuple[MigProfile | None, int]:
    """Return the GPU instance profile of a MIG device's profile, and its compute slices.

    :param name: 3g.40gb, or 1c.3g.40gb for a part of its compute slices.
    """
    part = re.match(r"([1-8])c\.", name)
    whole = name[part.end() :] if part else name
    rows = profile.mig.profiles if profile and profile.mig else []
    found = next((row for row in rows if row.name == whole), None)
    slices = int(part.group(1)) if part else found.slices if found else 0
    return found, slices


def _check_gpu(gpu: Gpu, where: str) -> None:
    if gpu.profile is None:
        if any(device.profile for device in gpu.mig_devices):
            _check_mig(gpu, profile_of(gpu), where)
        return
    if gpu.profile not in profiles.names():
        raise Impossible(
            f"{where}.profile",
            f"there is no GPU profile {gpu.profile!r}",
            f"name one of {', '.join(profiles.names())}; or leave it out, and state values",
        )
    profile = load_profile(gpu.profile)
    capability = profile.values().get("compute_capability")
    if capability not in (None, gpu.compute_capability):
        raise Impossible(
            f"{where}.compute_capability",
            f"a {profile.title} has {capability}, not {gpu.compute_capability}",
            f"set it to {capability}, or name another profile",
        )
    if gpu.mig != "unsupported" and profile.mig is None:
        raise Impossible(
            f"{where}.mig",
            f"a {profile.title} has no MIG",
            'set it to "unsupported", or name a profile with MIG',
        )
    _check_mig(gpu, profile, where)


def _check_mig(gpu: Gpu, profile: GpuProfile | None, where: str) -> None:
    instances: dict[int, MigProfile] = {}
    compute: dict[int, int] = {}
    for index, device in enumerate(gpu.mig_devices):
        if device.profile is None:
            continue
        here = f"{where}.mig_devices[{index}].profile"
        row, slices = mig_profile(profile, device.profile)
        if profile is None or profile.mig is None or row is None:
            known = [row.name for row in profile.mig.profiles] if profile and profile.mig else []
            raise Impossible(
                here,
                f"{device.profile!r} is not a MIG profile of this GPU",
                f"name one of {', '.join(known)}"
                if known
                else "name a GPU profile with MIG in `profile` of the GPU",
            )
        if instances.setdefault(device.gpu_instance, row) != row:
            raise Impossible(
                here,
                f"GPU instance {device.gpu_instance} has two profiles",
                "give each GPU instance a number of its own",
            )
        compute[device.gpu_instance] = compute.get(device.gpu_instance, 0) + slices
        if compute[device.gpu_instance] > row.slices:
            raise Impossible(
                here,
                f"GPU instance {device.gpu_instance} has {row.slices} compute slices, its compute"
                f" instances {compute[device.gpu_instance]}",
                "take smaller compute instances, or fewer",
            )
    if gpu.mig != "enabled" and instances:
        raise Impossible(
            f"{where}.mig", "the GPU has MIG devices without MIG mode", 'set it to "enabled"'
        )
    if (
        sum(row.slices for row in instances.values()) > _COMPUTE_SLICES
        or sum(row.size for row in instances.values()) > _MEMORY_SLICES
    ):
        names = ", ".join(row.name for row in instances.values())
        raise Impossible(
            f"{where}.mig_devices",
            f"{names} do not fit on one GPU ({_COMPUTE_SLICES} compute slices,"
            f" {_MEMORY_SLICES} memory slices)",
            "take smaller instances, or fewer",
        )


def _check_topology(topology: Topology, gpus: Sequence[Gpu]) -> None:
    count = len(gpus)
    named = [
        (f"$.topology.numa[{index}].gpus", gpu)
        for index, node in enumerate(topology.numa or ())
        for gpu in node.gpus
    ]
    bridges = topology.nvlink if isinstance(topology.nvlink, list) else []
    named += [
        (f"$.topology.nvlink[{index}].gpus", gpu)
        for index, bridge in enumerate(bridges)
        for gpu in bridge.gpus
    ]
    for where, gpu in named:
        if gpu >= count:
            raise Impossible(
                where, f"there is no GPU {gpu}", f"name GPUs by their index, 0 to {count - 1}"
            )
    if topology.levels is not None and (
        len(topology.levels) != count or any(len(row) != count for row in topology.levels)
    ):
        raise Impossible(
            "$.topology.levels",
            f"it should have {count} rows of {count} levels",
            "write a row and a column for each GPU",
        )
    users = (
        range(count) if topology.nvlink == "switch" else {gpu for b in bridges for gpu in b.gpus}
    )
    for index in users:
        linked = gpus[index]
        if not values_of(linked).get("nvlinks"):
            raise Impossible(
                "$.topology.nvlink",
                f"GPU {index}, {linked.model}, has no NVLink",
                "leave nvlink out, or state `nvlinks` in the values of the GPU",
            )


def device_of(gpu: Gpu, device: MigDevice) -> tuple[MigProfile | None, int]:
    """Return the GPU instance profile of a MIG device and its compute slices, as far as known."""
    if device.profile is None:
        return None, 0
    return mig_profile(profile_of(gpu), device.profile)


def multiprocessors(rows: Sequence[MigProfile], row: MigProfile, slices: int) -> int:
    """Return the multiprocessors of a compute instance with so many slices.

    A larger GPU instance can have more of them than its slices, which only the whole of it uses.

    :param rows: the GPU instance profiles of the GPU, the smallest first.
    :param row: the profile of the GPU instance.
    """
    return row.sm_count if slices == row.slices else rows[0].sm_count * slices


def placed(gpu: Gpu) -> list[tuple[int, MigProfile | None, int | None]]:
    """Return each GPU instance with its profile and the memory slice at which it starts.

    The document's places are kept; the others are the first free ones, large instances first.
    """
    found: dict[int, tuple[MigProfile | None, int | None]] = {}
    for device in gpu.mig_devices:
        found.setdefault(device.gpu_instance, (device_of(gpu, device)[0], device.start))
    taken: set[int] = set()
    order = sorted(found, key=lambda number: (found[number][1] is None, -_size(found[number][0])))
    for number in order:
        row, start = found[number]
        if row is None:
            continue
        if start is None:
            free = (at for at in row.starts if taken.isdisjoint(range(at, at + row.size)))
            start = next(free, None)
            found[number] = row, start
        if start is not None:
            taken |= set(range(start, start + row.size))
    return [(number, *found[number]) for number in sorted(found)]


def _size(row: MigProfile | None) -> int:
    return row.size if row else 0
