"""Checks of what lets a container open its device nodes: cgroups, modes, SELinux.

The docstring of each check names the threads that reported the failure.
"""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nvgraft.base.errors import Refusal
from nvgraft.plan.edit_actions import AddGroup
from nvgraft_cli.doctor.cuda_devices import VARIABLE, CudaDevices
from nvgraft_cli.doctor.patient import GPU_NODE, Diagnosis, NotChecked, Patient
from nvgraft_specs import names

if TYPE_CHECKING:
    from nvgraft_cli.doctor.machine import Machine

#: systemd's form of linux.cgroupsPath: slice, prefix, name.
_SYSTEMD = re.compile(r"[^/:]*:[^:]+:[^:]+")
#: podman's slice for the containers of ordinary users; those of root are in machine.slice.
_USER_SLICE = "user.slice:"

#: A rootless engine sets no device rules: the modes of the device nodes then decide alone.
_ROOTLESS = (
    "set no-cgroups = true in [nvidia-container-cli] of the config.toml that this user's hook reads"
)

#: SELinux's type of a confined container, and the booleans that let it open the driver's nodes.
_CONFINED = "container_t"
_BOOLEANS = ("container_use_devices", "container_use_xserver_devices")


def _no_rules_planned(patient: Patient) -> bool:
    """Tell whether the plan of the container has no device rule.

    False without a container, and for a container that is refused: the node is checked anyway.

    :raises NotChecked: when the container gets nothing, when its runtime writes the rules of CDI
        edits, or when the configuration forbids device rules.
    """
    patient.check_hook_acts()
    if patient.host.config.cli_no_cgroups:
        raise NotChecked("no-cgroups = true: no device rule is written")
    if not patient.has_container or patient.refusal is not None:
        return False
    return not patient.rules


def _machine(patient: Patient, fact: str) -> "Machine":
    """Return the facts about this node.

    :param fact: what the check needs of them, for the error.
    :raises NotChecked: when the host is a snapshot, or the cgroup mounts could not be read.
    """
    if patient.host.document is not None:
        raise NotChecked(f"a snapshot does not record {fact}: run this on the node")
    if patient.machine.mounts_error:
        raise NotChecked(patient.machine.mounts_error)
    return patient.machine


def cgroup_not_found(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``cgroup-not-found``: the hook does not find the container's devices cgroup.

    Reported in NVIDIA/nvidia-docker#1447, #1486, #1660; NVIDIA/k8s-device-plugin#324.
    """
    if _no_rules_planned(patient):
        return
    machine = _machine(patient, "where cgroups are mounted")
    try:
        machine.device_cgroup()
    except ValueError as error:
        yield Diagnosis(
            f"failed to get device cgroup mount path: {error}",
            "the cgroup file system is not mounted here as the hook needs it to find a "
            "container's device rules; perhaps this is a container itself",
            "mount /sys/fs/cgroup, or set no-cgroups = true and pass the devices to the engine "
            "(docker --device)",
            stops=True,
        )


def device_filter(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``device-filter``: the device program of cgroup v2 cannot be read or replaced.

    Reported in NVIDIA/nvidia-container-toolkit#678, #139, #1482; NVIDIA/libnvidia-container#209,
    #256, #313; NVIDIA/nvidia-docker#1688.
    """
    if _no_rules_planned(patient):
        return
    path = patient.member("linux", "cgroupsPath") if patient.has_container else None
    if isinstance(path, str) and path.startswith(_USER_SLICE):
        yield Diagnosis(
            f"failed to add device rules: a rootless engine created the cgroup {path}",
            "the kernel accepts device rules only from root in the initial user namespace: "
            "operation not permitted",
            _ROOTLESS,
            stops=True,
        )
        return
    machine = _machine(patient, "what the kernel lets a hook change")
    if machine.privilege_error:
        raise NotChecked(f"a hook would stop earlier: {machine.privilege_error}")
    try:
        version, mount = machine.device_cgroup()
    except ValueError as error:
        raise NotChecked(f"there is no device cgroup: {error}") from error
    if version == 2 and machine.filter_error:
        yield Diagnosis(
            f"failed to add device rules: {machine.filter_error}",
            _cause(machine),
            _fix(patient),
            stops=True,
        )
    elif version == 2 and machine.denied:
        from nvgraft.apply.bpf_verdict import ABOVE

        yield Diagnosis(
            machine.denied,
            "the device programs of all cgroups above a container's have to allow an access as"
            " well, and a hook does not change them; perhaps this is a container itself",
            ABOVE,
            "warning",
        )
    elif machine.in_user_namespace:
        operation = f"{mount.point}: devices.allow" if version == 1 else "bpf()"
        yield Diagnosis(
            f"failed to add device rules: {operation}: operation not permitted",
            _cause(machine),
            _fix(patient),
            stops=True,
        )
    elif version == 1 and "ro" in mount.options.split(","):
        yield Diagnosis(
            f"failed to add device rules: {mount.point}: devices.allow: read-only file system",
            "cgroup v1 is mounted read-only here, as engines mount it in their containers",
            _fix(patient),
            stops=True,
        )
    elif machine.uid != 0:
        raise NotChecked("only root can find out what the kernel lets a hook change: run as root")


def _cause(machine: "Machine") -> str:
    if machine.in_user_namespace:
        return (
            "this is the user namespace of a rootless engine or of a container: the kernel "
            "accepts device rules only from root in the initial user namespace"
        )
    if machine.jit_hardened:
        return (
            "the sysctl net.core.bpf_jit_harden is 2: the kernel does not show device programs "
            "in a form that can be loaded again"
        )
    return (
        "bpf() is forbidden in a container that is not privileged and by some seccomp filters; a "
        "kernel without CONFIG_CGROUP_BPF has no device programs"
    )


def _fix(patient: Patient) -> str:
    from nvgraft.apply.cgroup import NO_CGROUPS

    try:
        allowed = patient.has_container and patient.devices_allowed
    except (NotChecked, Refusal):
        allowed = False
    if allowed:
        return f"{NO_CGROUPS}: config.json allows the GPU's device numbers already"
    return f"{NO_CGROUPS}, and pass the devices to the engine (podman --device, docker --device)"


def device_rules_lost(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``device-rules-lost``: the container's device rules are missing, or systemd will
    remove them.

    Reported in NVIDIA/nvidia-container-toolkit#48, #1227, #251; NVIDIA/nvidia-docker#1730, #1671;
    NVIDIA/gpu-operator#485.
    """
    patient.check_hook_acts()
    if patient.devices_allowed:
        return
    path = patient.member("linux", "cgroupsPath")
    rootless = isinstance(path, str) and path.startswith(_USER_SLICE)
    if patient.host.config.cli_no_cgroups:
        if rootless or patient.member("linux", "uidMappings"):
            raise NotChecked(
                "config.json does not say whether the engine is rootless; a rootless engine needs "
                "no device rules"
            )
        yield Diagnosis(
            "no-cgroups = true, and config.json does not allow the GPU's device numbers: NVML will "
            "report Unknown Error from the start",
            "with no-cgroups the hook does not allow them in the container's device cgroup: the "
            "nodes exist, but opening them is forbidden",
            "set no-cgroups = false, or pass the devices to the engine (docker --device)",
            sentence="CUDA finds no GPU because the container may not open the device nodes "
            "(no-cgroups = true)",
        )
    elif isinstance(path, str) and _SYSTEMD.fullmatch(path) and not rootless:
        yield Diagnosis(
            f"only the hook allows the GPU's devices, and systemd manages the cgroup {path}: "
            "'systemctl daemon-reload' will revoke them",
            "systemd writes only the rules that it knows, which are those of config.json",
            "let config.json list the devices (docker --device, or nvgraft-runtime in mode "
            "jit-cdi), with links in /dev/char, or use the cgroupfs driver",
            "warning",
        )


def device_permissions(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``device-permissions``: the container's user may not open the device nodes.

    Reported in NVIDIA/nvidia-container-toolkit#210, #179, #33, #268; NVIDIA/nvidia-docker#1547,
    #1523; VirtualGL/virtualgl#10.
    """
    uid, groups = patient.container.user
    added = [action.gid for action in patient.injected.actions if isinstance(action, AddGroup)]
    groups = [*groups, *added]
    devices = patient.host.inventory.devices
    nodes = {
        device.path: device.node
        for device in (*devices.control, *(gpu.node for gpu in devices.gpus))
    }
    closed = []
    for action in patient.binds():
        node = nodes.get(action.source)
        if node is None or action.kind != "device" or uid == node.uid or node.mode & 0o006 == 0o006:
            continue
        if node.gid in groups and node.mode & 0o060 == 0o060:
            continue
        closed.append(
            _closed_node(
                action.source,
                f"{action.source} is {node.mode:04o} {node.uid}:{node.gid}; the process runs as uid"
                f" {uid} without gid {node.gid}",
                f"add group {node.gid} to the process (docker --group-add {node.gid}), or set "
                "NVreg_DeviceFileMode=0666 for the nvidia module",
            )
        )
    # What keeps CUDA from its GPUs comes first; a node that CUDA does not need is a warning.
    yield from sorted(closed, key=lambda finding: (not finding.sentence, bool(finding.phrase)))[:1]
    label = patient.member("process", "selinuxLabel")
    if isinstance(label, str) and label.split(":")[2:3] == [_CONFINED]:
        yield from _selinux(_machine(patient, "whether SELinux is enforcing"), label)


def _closed_node(path: str, seen: str, fix: str) -> Diagnosis:
    """Report a device node that the container's user may not open.

    CUDA answers 999 without /dev/nvidia-uvm, which NVML does not open.
    """
    cause = "owner and mode of the host's device nodes also apply in the container"
    because = f"because the container's user may not open {path}"
    if path == "/dev/nvidia-uvm":
        return Diagnosis(
            f"expect CUDA error 999 (unknown error): {seen}",
            cause,
            fix,
            sentence=f"CUDA fails with error 999 (unknown error) {because}",
            phrase="CUDA unknown error",
        )
    message = f"expect insufficient permissions: {seen}"
    if path != "/dev/nvidiactl" and not GPU_NODE.fullmatch(path):
        return Diagnosis(message, cause, fix, "warning")
    return Diagnosis(message, cause, fix, sentence=f"CUDA finds no GPU {because}")


def _selinux(machine: "Machine", label: str) -> Iterator[Diagnosis]:
    # The file of a boolean holds its current value, then the pending one.
    booleans = [machine.text(f"/sys/fs/selinux/booleans/{name}") for name in _BOOLEANS]
    if machine.text("/sys/fs/selinux/enforce") == "1" and not any(
        (text or "").startswith("1") for text in booleans
    ):
        yield Diagnosis(
            f"SELinux is enforcing, and {label} may not open xserver_misc_device_t, the type of "
            "/dev/nvidia*",
            f"the SELinux boolean {_BOOLEANS[0]} is off",
            f"run setsebool -P {_BOOLEANS[0]} 1, or start the container with "
            "--security-opt label=disable",
            "warning",
        )


def mig_devices(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``mig-devices``: CUDA finds less of GPUs in MIG mode than the container has.

    Reported in sylabs/singularity#471 (a whole GPU in MIG mode); NVIDIA/k8s-device-plugin#446,
    pytorch/pytorch#102715 (several MIG devices).
    """
    devices = patient.cuda_devices
    if devices.closed:
        yield _closed_gpus(devices)
    migs = [device.mig.uuid for device in devices.named if device.mig is not None]
    if len(devices.named) > 1 and migs:
        whole = len(devices.named) - len(migs)
        has = f"{len(migs)} MIG device{'s' * (len(migs) > 1)}"
        if whole:
            has += f" and {whole} whole GPU{'s' * (whole > 1)}"
        yield Diagnosis(
            f"the container has {has}, and CUDA finds one device in each process: {migs[0]}",
            "a CUDA process enumerates a single compute instance, and no other GPU beside it",
            f"request one device for each container, or start one process for each with {VARIABLE}="
            "UUID (nvidia-smi -L lists them)",
            "warning",
            phrase="CUDA error: invalid device ordinal",
        )


def _closed_gpus(devices: CudaDevices) -> Diagnosis:
    """Report GPUs in MIG mode of which the container has no MIG device."""
    gpus = ", ".join(f"/dev/nvidia{gpu.minor}" for gpu in devices.closed)
    seen = (
        f"{gpus} {'is' if len(devices.closed) == 1 else 'are'} in MIG mode, and the container has "
        "no MIG device of it"
    )
    cut = next((gpu.mig_devices for gpu in devices.closed if gpu.mig_devices), None)
    fix = (
        f"request a MIG device: {names.VISIBLE_DEVICES}={cut[0].uuid}, GPU:DEVICE (0:0 is the first"
        " one of GPU 0), or all"
        if cut
        else "create MIG devices on the host (nvidia-smi mig -cgi PROFILE -C) and request one, or"
        " end MIG mode (nvidia-smi -mig 0)"
    )
    error = "error 100 (no CUDA-capable device is detected)"
    alone = not devices.given
    return Diagnosis(
        f"{seen}: {f'CUDA fails with {error}' if alone else 'CUDA does not find it'}",
        "CUDA computes on the MIG devices of such a GPU alone, and nvidia-smi shows the GPU anyway",
        fix,
        "error" if alone else "warning",
        sentence=f"CUDA fails with {error} because {seen}" if alone else "",
    )


def cuda_visible_devices(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``cuda-visible-devices``: CUDA_VISIBLE_DEVICES hides GPUs of the container.

    Reported in NVIDIA/nvidia-container-toolkit#73; devitocodes/devito#2710.
    """
    devices = patient.cuda_devices
    if not devices.given or not devices.fault:
        return
    error = "error 100 (no CUDA-capable device is detected)"
    count = len(devices.named)
    left = f"CUDA finds the {'device' if count == 1 else f'{count} devices'} before it"
    yield Diagnosis(
        f"{devices.fault}; {left if count else f'CUDA fails with {error}'}",
        "CUDA counts the container's GPUs from 0, whichever they are on the host; the list ends at "
        "the first identifier that names none, and one that is repeated leaves none at all",
        f"unset {VARIABLE}, or set it to numbers from 0 or to UUIDs that nvidia-smi -L prints in "
        "the container",
        "warning" if count else "error",
        sentence="" if count else f"CUDA fails with {error} because {devices.fault}",
        phrase="CUDA error: invalid device ordinal" if count else "",
    )


def rootless(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``rootless``: the hook is configured for more than a rootless engine may do.

    Reported in NVIDIA/libnvidia-container#49, #104; containers/crun#665; opencontainers/runc#2952.
    """
    if patient.host.document is None and patient.machine.privilege_error:
        yield Diagnosis(
            f"root lacks CAP_SYS_ADMIN here: {patient.machine.privilege_error}",
            "this is a container without that capability, so a hook that an engine starts here "
            "lacks it too",
            "start the engine on the node itself, or in a privileged container",
            stops=True,
        )
    patient.check_hook_acts()
    sizes = [mapping.get("size") for mapping in patient.objects("linux", "uidMappings")]
    if sizes == [1] and not patient.host.config.cli_no_cgroups:
        yield Diagnosis(
            "the container's user namespace has a single id, as a rootless engine makes it, and "
            "no-cgroups is not set",
            "an ordinary user can neither write device rules nor change groups",
            f"{_ROOTLESS}; give the user ranges in /etc/subuid and /etc/subgid",
            stops=True,
        )
