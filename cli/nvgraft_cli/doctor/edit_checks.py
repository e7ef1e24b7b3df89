"""Checks of the CDI edits that give a container its GPUs.

The docstring of each check names the threads that reported the failure.
"""

import os
import posixpath
from collections.abc import Iterator

from nvgraft.cdi import platform
from nvgraft.plan.actions import UpdateLoaderCache
from nvgraft.plan.edit_actions import RunHook
from nvgraft_cli.case.cdi_requests import is_written, source_of_edits, to_complete
from nvgraft_cli.doctor.patient import Diagnosis, NotChecked, Patient
from nvgraft_cli.prove.opened import opened_libraries
from nvgraft_specs import catalogue, names

#: Nodes that CUDA needs beside those of the GPUs, and how it fails without them.
_CONTROL = (
    ("/dev/nvidiactl", "error 100 (no CUDA-capable device is detected)", "no CUDA-capable device"),
    ("/dev/nvidia-uvm", "error 999 (unknown error)", "CUDA error: unknown error"),
)


def cdi_incomplete(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``cdi-incomplete``: the CDI edits lack a part of the driver that the host has.

    Reported in NVIDIA/nvidia-container-toolkit#50, #128, #944.
    """
    if not patient.by_edits:
        raise NotChecked("the container gets its GPUs from the hook, not by CDI edits")
    source, again = source_of_edits(patient.case), to_complete(patient.case)
    programs = [*_missing_programs(patient, source)]
    asked = patient.injected.request.devices
    if asked and not programs and not patient.binds() and not patient.rules:
        yield _nothing(patient, source, again)
        return
    if patient.platform != platform.NVML:
        raise NotChecked("the edits of this platform are of other files and nodes")
    binds = patient.binds()
    targets = {bind.target for bind in binds}
    yield from programs
    cause = "they were made before the driver was complete, changed by hand, or by another program"
    nodes = {path for path in targets if path.startswith("/dev/nvidia")}
    for path, error, phrase in _CONTROL if nodes else ():
        if path not in nodes and patient.host_tree.lstat(path) is not None:
            yield Diagnosis(
                f"{source}: there is no device node {path}, which the host has",
                cause,
                again,
                sentence=f"CUDA fails with {error} because {source} lacks {path}",
                phrase=phrase,
            )
    _ = patient.rootfs
    chosen = {
        component.row.name: component.path for component in patient.host.inventory.files.libraries
    }
    rows = [row.name for row in catalogue.LIBRARIES]
    lacking: dict[str, str] = {}
    for soname in opened_libraries(names.DEFAULT_CAPABILITIES):
        row = next(row for row in rows if soname.startswith(f"{row}."))
        proof = patient.proof(soname)
        if proof.final.path or row not in chosen:
            continue
        phrase = f"{soname}: cannot open shared object file: No such file or directory"
        mounted = [path for path in targets if posixpath.basename(path).startswith(f"{row}.")]
        if not mounted:
            lacking[row] = phrase
        elif not any(isinstance(action, UpdateLoaderCache) for action in patient.injected.actions):
            hooks = sum(isinstance(action, RunHook) for action in patient.injected.actions)
            which = f"none of its {hooks} hooks" if hooks else "no hook"
            yield Diagnosis(
                f"{source}: {mounted[0]} is mounted, and {which} makes the link {soname} or writes "
                "the loader cache (create-symlinks, update-ldcache)",
                "the edits were made without these hooks (--disable-hook), or by another program",
                again,
                phrase=phrase,
            )
    if lacking:
        first = next(iter(lacking))
        yield Diagnosis(
            f"{source}: {' and '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} not mounted,"
            f" and the host has {', '.join(chosen[row] for row in lacking)}",
            cause if is_written(patient.case) else "who makes these edits does not find the files",
            again,
            phrase=lacking[first],
        )


def _nothing(patient: Patient, source: str, again: str) -> Diagnosis:
    """Report edits that mount nothing."""
    message = f"{source}: they give the container no file and no device node"
    if patient.case.acting_mode == "csv":
        return Diagnosis(
            message,
            "mode csv takes what the CSV files of a Tegra board name, and this host has none",
            'set mode = "auto" under [nvidia-container-runtime] in config.toml, the default: it '
            "takes what this host has",
        )
    return Diagnosis(message, "they were made where no driver was found", again)


def _missing_programs(patient: Patient, source: str) -> Iterator[Diagnosis]:
    """Find hooks whose program this machine does not have."""
    case = patient.case
    if patient.host.document is not None or not (case.looks_up_devices or case.reads_config):
        return
    hooks = [action for action in patient.injected.actions if isinstance(action, RunHook)]
    for path in dict.fromkeys(hook.path for hook in hooks):
        if not os.path.exists(f"{patient.machine.root}{path}"):
            yield Diagnosis(
                f"{source}: the hook {path} is not on this host",
                "the edits name the hook program of a toolkit that is not installed, or is "
                "installed elsewhere",
                "install it, or write the specification again with nvgraft cdi generate --hooks "
                "nvgraft",
                stops=True,
                phrase=f"fork/exec {path}: no such file or directory",
            )
