"""Checks of what lets a container open its device nodes: cgroups, modes, SELinux. Each docstring names the threads that
reported the failure."""

import re
from collections.abc import Iterator

from nvgraft.apply.cgroup import NO_CGROUPS
from nvgraft.base.errors import Refusal
from nvgraft_cli.doctor.machine import Machine
from nvgraft_cli.doctor.patient import Finding, NotChecked, Patient

#: systemd's form of linux.cgroupsPath: slice, prefix, name.
_SYSTEMD = re.compile(r"[^/:]*:[^:]+:[^:]+")
#: The slice that podman puts a user's own containers into; those of root are in machine.slice.
_USERS = "user.slice:"

#: What leaves access to the modes of the nodes: a rootless engine has no device rules of its own.
_ROOTLESS = (
    "no-cgroups = true in [nvidia-container-cli] of the config.toml that this user's hook reads"
)

#: SELinux's type of a confined container, and the booleans of which one lets it open the driver's nodes.
_CONFINED = "container_t"
_BOOLEANS = ("container_use_devices", "container_use_xserver_devices")


def _no_step(patient: Patient) -> bool:
    """Tell whether a container is given for which no device rule is planned.

    :raises NotChecked: for a container that gets nothing, or none is written for any.
    """
    if patient.host.config.cli_no_cgroups:
        raise NotChecked("no-cgroups = true: no device rule is written")
    if not patient.has_container or patient.refusal is not None:
        return False  # what is asked of the node can be told, whatever stands in this container's way before
    return not patient.rules


def _machine(patient: Patient, what: str) -> Machine:
    if patient.host.document is not None:
        raise NotChecked(f"{what} is not recorded in a snapshot: only on the node itself")
    if patient.machine.unseen:
        raise NotChecked(patient.machine.unseen)
    return patient.machine


def cgroup_not_found(patient: Patient) -> Iterator[Finding]:
    """NVIDIA/nvidia-docker#1447, #1486, #1660; NVIDIA/k8s-device-plugin#324."""
    if _no_step(patient):
        return
    machine = _machine(patient, "where cgroups are mounted")
    try:
        machine.device_cgroup()
    except ValueError as error:
        yield Finding(
            f"failed to get device cgroup mount path: {error}",
            "in this place, perhaps a container, the hook cannot find a container's device rules",
            "mount /sys/fs/cgroup, or set no-cgroups = true and name the devices for the engine (docker --device)",
        )


def device_filter(patient: Patient) -> Iterator[Finding]:
    """NVIDIA/nvidia-container-toolkit#678, #139, #1482; NVIDIA/libnvidia-container#209, #256, #313; NVIDIA/nvidia-docker#1688."""
    if _no_step(patient):
        return
    path = patient.member("linux", "cgroupsPath") if patient.has_container else None
    if isinstance(path, str) and path.startswith(_USERS):
        yield Finding(
            f"failed to add device rules: {path} is a cgroup of a user's own, made by a rootless engine",
            "the kernel takes device rules from root in the first user namespace alone: operation not permitted",
            _ROOTLESS,
        )
        return
    machine = _machine(patient, "what the kernel lets a hook change")
    if machine.powerless:
        raise NotChecked(f"a hook does not get that far: {machine.powerless}")
    try:
        version, mount = machine.device_cgroup()
    except ValueError as error:
        raise NotChecked(f"there is no device cgroup: {error}") from error
    if version == 2 and machine.filter_error:
        yield Finding(
            f"failed to add device rules: {machine.filter_error}", _cause(machine), _fix(patient)
        )
    elif machine.nested:
        what = f"{mount.point}: devices.allow" if version == 1 else "bpf()"
        yield Finding(
            f"failed to add device rules: {what}: operation not permitted",
            _cause(machine),
            _fix(patient),
        )
    elif version == 1 and "ro" in mount.options.split(","):
        cause = "cgroup v1 is mounted read-only here, as engines do it for the containers that they start"
        yield Finding(
            f"failed to add device rules: {mount.point}: devices.allow: read-only file system",
            cause,
            _fix(patient),
        )
    elif machine.uid != 0:
        raise NotChecked("what the kernel lets a hook change is for root to ask")


def _cause(machine: Machine) -> str:
    if machine.nested:
        return "this is a user namespace, of a rootless engine or a container: the kernel takes device rules from root in the first one alone"
    if machine.hardened:
        return "the sysctl net.core.bpf_jit_harden is 2: the kernel shows device programs in a form from which they cannot be loaded again"
    return (
        "in a container without the rights of a privileged one, or under a seccomp filter, bpf() is forbidden; "
        "a kernel without CONFIG_CGROUP_BPF has no device programs"
    )


def _fix(patient: Patient) -> str:
    try:
        allowed = patient.has_container and patient.devices_allowed
    except (NotChecked, Refusal):
        allowed = False
    if allowed:
        return f"{NO_CGROUPS}: config.json allows the GPU's device numbers already"
    return f"{NO_CGROUPS}, and name the devices for the engine (podman --device, docker --device)"


def device_rules_lost(patient: Patient) -> Iterator[Finding]:
    """NVIDIA/nvidia-container-toolkit#48, #1227, #251; NVIDIA/nvidia-docker#1730, #1671; NVIDIA/gpu-operator#485."""
    if patient.devices_allowed:
        return
    path = patient.member("linux", "cgroupsPath")
    rootless = isinstance(path, str) and path.startswith(_USERS)
    if patient.host.config.cli_no_cgroups:
        if rootless or patient.member("linux", "uidMappings"):
            raise NotChecked(
                "config.json does not tell whether the engine is rootless, and then without device rules of its own"
            )
        yield Finding(
            "no-cgroups = true, and config.json does not allow the GPU's device numbers: NVML will say Unknown Error at once",
            "with no-cgroups nobody adds them to the container's device cgroup: the nodes are there, and may not be opened",
            "no-cgroups = false, or name the devices for the engine (docker --device)",
        )
    elif isinstance(path, str) and _SYSTEMD.fullmatch(path) and not rootless:
        yield Finding(
            f"GPU devices are allowed only by the hook, and {path} is a cgroup of systemd's: 'systemctl daemon-reload' will revoke them",
            "systemd writes the rules that it knows, which are those of config.json",
            "name the devices for the engine (docker --device), make links in /dev/char, or use the cgroupfs driver",
            "warning",
        )


def device_permissions(patient: Patient) -> Iterator[Finding]:
    """NVIDIA/nvidia-container-toolkit#210, #179, #33, #268; NVIDIA/nvidia-docker#1547, #1523; VirtualGL/virtualgl#10."""
    uid = patient.member("process", "user", "uid") or 0
    more = patient.member("process", "user", "additionalGids")
    groups = [
        patient.member("process", "user", "gid") or 0,
        *(more if isinstance(more, list) else ()),
    ]
    devices = patient.host.inventory.devices
    nodes = {
        device.path: device.node
        for device in (*devices.control, *(gpu.node for gpu in devices.gpus))
    }
    for action in patient.binds():
        node = nodes.get(action.source)
        if node is None or action.kind != "device" or uid == node.uid or node.mode & 0o006 == 0o006:
            continue
        if node.gid in groups and node.mode & 0o060 == 0o060:
            continue
        yield Finding(
            f"insufficient permissions expected: {action.source} is {node.mode:04o} {node.uid}:{node.gid}; "
            f"the process runs as uid {uid} without gid {node.gid}",
            "the modes of the host's device nodes hold in the container as well",
            f"additionalGids {node.gid} (docker --group-add {node.gid}), or NVreg_DeviceFileMode=0666 for the nvidia module",
        )
        break
    label = patient.member("process", "selinuxLabel")
    if isinstance(label, str) and label.split(":")[2:3] == [_CONFINED]:
        yield from _selinux(_machine(patient, "whether SELinux is enforcing"), label)


def _selinux(machine: Machine, label: str) -> Iterator[Finding]:
    switches = [machine.text(f"/sys/fs/selinux/booleans/{name}") for name in _BOOLEANS]
    # A boolean is its value now and the one that is pending.
    if machine.text("/sys/fs/selinux/enforce") == "1" and not any(
        (value or "").startswith("1") for value in switches
    ):
        yield Finding(
            f"SELinux is enforcing, and {label} may not open xserver_misc_device_t, the type of /dev/nvidia*",
            f"the boolean {_BOOLEANS[0]} is off",
            f"setsebool -P {_BOOLEANS[0]} 1, or start the container with --security-opt label=disable",
            "warning",
        )


def rootless(patient: Patient) -> Iterator[Finding]:
    """NVIDIA/libnvidia-container#49, #104; containers/crun#665; opencontainers/runc#2952."""
    if patient.host.document is None and patient.machine.powerless:
        yield Finding(
            f"root lacks CAP_SYS_ADMIN here: {patient.machine.powerless}",
            "this is a container without that capability, and so will be the hook that an engine starts in it",
            "start the engine on the node itself, or in a privileged container",
        )
    sizes = [row.get("size") for row in patient.rows("linux", "uidMappings")]
    if sizes == [1] and not patient.host.config.cli_no_cgroups:
        yield Finding(
            "the container's user namespace has a single id: a rootless engine, and no-cgroups is not set",
            "device rules cannot be written by a user, and groups cannot be changed",
            f"{_ROOTLESS}; ranges in /etc/subuid and /etc/subgid",
        )
