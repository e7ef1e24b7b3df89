"""Checks of a host: its driver, its loader cache, its engines. Each docstring names the threads that reported the failure."""

import json
import re
from collections.abc import Iterator
from typing import Any

from nvgraft.base.errors import Refusal
from nvgraft.formats.tree import PathError
from nvgraft.request.request import Skip, resolve_request
from nvgraft_cli.doctor.machine import Machine
from nvgraft_cli.doctor.patient import Finding, NotChecked, Patient
from nvgraft_specs.models import DocumentError
from nvgraft_specs.models.cdi import Spec, load_cdi

_VERSION = re.compile(r"(?:Kernel Module(?: for \S+)?)\s+(\d+\.\d+(?:\.\d+)?)")
_SUFFIX = re.compile(r"\.so\.(\d+\.\d+(?:\.\d+)?)$")

#: Where hosts without a file system hierarchy of the usual kind keep the driver.
_OTHER_DIRECTORIES = (
    "/run/opengl-driver/lib",
    "/usr/local/glibc/usr/lib",
    "/usr/local/nvidia/lib64",
    "/home/kubernetes/bin/nvidia/lib64",
    "/opt/nvidia/lib64",
    "/opt/nvidia/lib",
    "/usr/lib/wsl/lib",
    "/usr/lib/aarch64-linux-gnu/tegra",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/usr/lib/nvidia",
)

_DAEMON = "/etc/docker/daemon.json"
_CDI_SUFFIXES = (".json", ".yaml", ".yml")

#: From this many GPUs on, asking NVML without persistence mode takes the original longer than it waits.
_MANY_GPUS = 4


def driver_library_mismatch(patient: Patient) -> Iterator[Finding]:
    """NVIDIA/nvidia-container-toolkit#394, #171; NVIDIA/nvidia-docker#1451, #1168."""
    text = patient.host_text("/proc/driver/nvidia/version")
    if text is None:
        raise NotChecked("the nvidia kernel module is not loaded")
    module = _VERSION.search(text)
    if module is None:
        raise NotChecked("/proc/driver/nvidia/version has another form than the driver gives it")
    found: dict[str, str] = {}
    for entry in patient.entries:
        if entry.soname in {"libnvidia-ml.so.1", "libcuda.so.1"}:
            try:
                path = patient.host_tree.resolve(entry.path)
            except PathError:
                continue
            suffix = _SUFFIX.search(path)
            if suffix is not None:
                found.setdefault(suffix[1], path)
    if found and module[1] not in found:
        version, path = next(iter(found.items()))
        yield Finding(
            f"loaded kernel module is {module[1]}, library selected is {version} ({path})",
            "the driver's packages were upgraded while the old module stayed loaded; every GPU container fails until it is reloaded",
            "reboot, or stop what uses the GPUs and reload the nvidia modules",
        )


def nvml_library_missing(patient: Patient) -> Iterator[Finding]:
    """NVIDIA/libnvidia-container#231; NVIDIA/nvidia-container-toolkit#154, #231; NixOS/nixpkgs#83713."""
    try:
        if any(entry.soname == "libnvidia-ml.so.1" for entry in patient.entries):
            return
        missing = "libnvidia-ml.so.1 is not in the host's loader cache"
    except NotChecked as lacking:
        if patient.driver_answers:
            raise
        missing = f"libnvidia-ml.so.1 is not found: {lacking}"
    for directory in _OTHER_DIRECTORIES:
        names = [
            name
            for name in patient.host_tree.listdir(directory)
            if name.startswith("libnvidia-ml.so")
        ]
        if names:
            yield Finding(
                f"{missing}; it is at {directory}/{names[0]}",
                "the driver lies in a directory that ldconfig does not look into",
                f"add {directory} to /etc/ld.so.conf.d on the host and run ldconfig",
            )
            return
    yield Finding(
        f"{missing}; {'it is in none of the' if patient.host.document is None else 'the snapshot has it in none of the other'} "
        "places where drivers are kept",
        "no NVIDIA driver is installed on this host (or below this driver root)",
        "install the driver, or set root under [nvidia-container-cli] in config.toml to where it is",
    )


def driver_not_loaded(patient: Patient) -> Iterator[Finding]:
    """NVIDIA/nvidia-docker#1786, #512; NVIDIA/enroot#106; ggml-org/llama.cpp#7218 (CUDA error 999)."""
    if patient.host_text("/proc/driver/nvidia/version") is None:
        yield Finding(
            "the nvidia kernel module is not loaded: there is no /proc/driver/nvidia/version",
            "no GPU in this machine, a module that was not built for the running kernel, or Secure Boot that refuses it",
            "lspci -d 10de:; dkms status; modprobe nvidia; dmesg | grep -i nvrm",
        )
        return
    tree = patient.host_tree
    for path, harm in (
        ("/dev/nvidiactl", "nothing works without it"),
        (
            "/dev/nvidia-uvm",
            "CUDA will fail with error 999 in containers that start before the node exists",
        ),
    ):
        if tree.lstat(path) is None:
            yield Finding(
                f"{path} is missing: {harm}",
                "the module that makes it has not been loaded since the machine started",
                "nvidia-modprobe -u -c0 on the host (load-kmods = true in config.toml does it at the next start)",
            )
    try:
        gpus = patient.host.host.report.gpus
    except Refusal as refusal:
        raise NotChecked(f"NVML does not answer: {refusal.text}") from refusal
    if not gpus:
        yield Finding(
            "NVML reports no GPU",
            "the driver is loaded and has no GPU that works",
            "nvidia-smi -L; dmesg | grep -i xid",
        )


def host_layout(patient: Patient) -> Iterator[Finding]:
    """NVIDIA/libnvidia-container#234, #146, #153; NVIDIA/nvidia-container-toolkit#71, #209, #751."""
    version = patient.host.host.report.driver_version
    named = [
        entry for entry in patient.entries if entry.soname.startswith(("libcuda.so", "libnvidia-"))
    ]
    if named and not any(_resolves_to(patient, entry.path, version) for entry in named):
        yield Finding(
            f"the loader cache names {len(named)} driver libraries, and none of them is of the running driver {version}",
            "the cache belongs to another driver than the one that runs",
            "run ldconfig on the host (in the driver root)",
        )
    for entry in named:
        try:
            if patient.host_tree.find(entry.path)[1] is None:
                yield Finding(
                    f"the loader cache names {entry.path}, which does not exist",
                    "libraries were removed after ldconfig last ran",
                    "run ldconfig on the host (in the driver root)",
                )
                return
        except PathError:
            continue


def _resolves_to(patient: Patient, path: str, version: str) -> bool:
    try:
        return patient.host_tree.resolve(path).endswith(version)
    except PathError:
        return False


def nvml_slow(patient: Patient) -> Iterator[Finding]:
    """NVIDIA/nvidia-container-toolkit#183, #556, #202; NVIDIA/nvidia-docker#1203, #1252."""
    inventory = patient.host.inventory
    count = len(inventory.report.gpus)
    if count >= _MANY_GPUS and not any(
        "persistenced" in socket.path for socket in inventory.files.sockets
    ):
        yield Finding(
            f"{count} GPUs, and nvidia-persistenced is not running",
            "without persistence mode every start initialises all GPUs; the original CLI waits 10 seconds for that",
            "systemctl enable --now nvidia-persistenced",
            "warning",
        )


def ldconfig_unusable(patient: Patient) -> Iterator[Finding]:
    """NVIDIA/nvidia-docker#587, #1424; NVIDIA/nvidia-container-toolkit#147; NVIDIA/enroot#128."""
    config = patient.host.config
    if config.ldcache_mode == "native":
        raise NotChecked(
            "the hook writes the loader cache itself and runs no ldconfig ([nvgraft] ldcache)"
        )
    program = config.cli_ldconfig.removeprefix("@")
    wrapper = (
        "it is a shell wrapper" if patient.host.document is None else "it may be a shell wrapper"
    )
    if not config.cli_ldconfig.startswith("@"):
        yield Finding(
            f'ldconfig = "{config.cli_ldconfig}" in config.toml names a program of the image',
            "a program of an image is never run with privilege",
            f'ldconfig = "@{program}"',
        )
    node = patient.on_host(program)
    if node is None:
        yield Finding(
            f"{program} does not exist on the host",
            "ldconfig in config.toml names a program that is not there",
            'ldconfig = "@/sbin/ldconfig"',
        )
        return
    try:
        facts = patient.host_tree.elf(patient.host_tree.resolve(program), sections=False)
    except OSError as error:
        raise NotChecked(f"{program} cannot be read: {error}") from error
    except ValueError as error:
        if "not recorded" in str(error):
            raise NotChecked(f"{program}: {error}") from error
        yield Finding(
            f"{program} is no program of the kernel's own kind: {wrapper}",
            "Debian and Ubuntu keep the program in /sbin/ldconfig.real; the wrapper ends with error code 127",
            'ldconfig = "@/sbin/ldconfig.real" in config.toml',
        )
        return
    if facts.interp is not None:
        yield Finding(
            f"{program} is not static",
            "it would need libraries of the image",
            "use the distribution's own ldconfig",
        )


def hook_not_installed(patient: Patient) -> Iterator[Finding]:
    """NVIDIA/nvidia-docker#1034, #1682, #1637; NVIDIA/dcgm-exporter#33; containers/podman#16839 (a hook that does not match)."""
    if patient.has_container:
        yield from _not_hooked(patient)
    machine = patient.machine
    runtimes: dict[str, object] = {}
    try:
        document = json.loads(machine.text(_DAEMON) or "{}")
        named = document.get("runtimes") if isinstance(document, dict) else None
        runtimes = named if isinstance(named, dict) else {}
    except (OSError, ValueError) as error:
        yield Finding(
            f"{_DAEMON} cannot be read: {error}",
            "dockerd does not start with it either",
            f"mend {_DAEMON}",
        )
    for name, runtime in runtimes.items():
        program = runtime.get("path") if isinstance(runtime, dict) else None
        if isinstance(program, str) and machine.program(program) is None:
            yield Finding(
                f"docker's runtime {name} is {program}, which is not in PATH",
                "it was removed, or never installed",
                f"mend {_DAEMON}, restart docker",
            )
    if (
        machine.program("dockerd")
        and machine.program("nvidia-container-runtime-hook") is None
        and "nvidia" not in runtimes
    ):
        yield Finding(
            "docker --gpus needs 'nvidia-container-runtime-hook' in dockerd's PATH: not found",
            "the engine raises this error before any hook runs",
            "./dev install --names PREFIX=/usr/local, or nvgraft register docker; then restart docker",
        )
    for directory in ("/usr/share/containers/oci/hooks.d", "/etc/containers/oci/hooks.d"):
        for name in machine.listdir(directory):
            yield from _hook_file(machine, f"{directory}/{name}")


def _not_hooked(patient: Patient) -> Iterator[Finding]:
    """podman writes the hooks that match into config.json, and what a CDI specification adds as device nodes."""
    if not patient.by_podman:
        return
    outcome = resolve_request(patient.container.spec, patient.host.config)
    given = any(
        str(row.get("path", "")).startswith("/dev/nvidia")
        for row in patient.rows("linux", "devices")
    )
    if not isinstance(outcome, Skip) and not given and not gpu_hooks(patient):
        yield Finding(
            "podman wrote this config.json, and no hook for GPUs is in it: the container gets nothing, without a word",
            "no file in its hooks directories names the hook, or the conditions under 'when' do not match this container",
            "nvgraft register podman; podman --hooks-dir names the directory; --security-opt label=disable where SELinux is in the way",
        )


def gpu_hooks(patient: Patient) -> list[tuple[str, dict[str, Any]]]:
    """Return the hooks for GPUs in config.json, each with its stage."""
    hooks = patient.member("hooks")
    return [
        (stage, hook)
        for stage, rows in (hooks.items() if isinstance(hooks, dict) else ())
        for hook in (rows if isinstance(rows, list) else ())
        if isinstance(hook, dict)
        and re.search("nvidia-container|nvgraft", str(hook.get("path", "")))
    ]


def _hook_file(machine: Machine, path: str) -> Iterator[Finding]:
    try:
        program = json.loads(machine.text(path) or "{}")["hook"]["path"]
    except (OSError, ValueError, KeyError, TypeError):
        return  # podman skips, or complains of, what is no hook of ours
    if (
        isinstance(program, str)
        and ("nvidia" in program or "nvgraft" in program)
        and machine.program(program) is None
    ):
        yield Finding(
            f"{path} names {program}, which cannot be executed",
            "the program was moved or removed",
            "nvgraft register podman, or remove the file",
        )


def cdi_stale(patient: Patient) -> Iterator[Finding]:
    """NVIDIA/nvidia-container-toolkit#1456, #1967; containers/podman#23935."""
    paths = list(patient.cdi)
    if not paths:
        machine = patient.machine
        for directory in patient.host.config.runtime_cdi_spec_dirs:
            paths += [
                f"{machine.root}{directory}/{name}"
                for name in machine.listdir(directory)
                if name.endswith(_CDI_SUFFIXES)
            ]
    if not paths:
        raise NotChecked("no CDI specification was given (--cdi), and none is installed here")
    for path in paths:
        try:
            spec = load_cdi(path)
        except DocumentError as error:
            yield Finding(
                str(error), "engines refuse a specification that they cannot read", "write it again"
            )
            continue
        yield from _stale(patient, path, spec)


def _stale(patient: Patient, path: str, spec: Spec) -> Iterator[Finding]:
    wanted = [
        mount.host_path
        for edits in (spec.edits, *(device.edits for device in spec.devices))
        for mount in edits.mounts
    ]
    version = patient.host.host.report.driver_version
    named = {
        match[1]
        for name in wanted
        if (match := _SUFFIX.search(name)) and int(match[1].partition(".")[0]) > 300
    }
    gone = []
    for name in dict.fromkeys(wanted):
        try:
            if patient.on_host(name) is None:
                gone.append(name)
        except NotChecked:
            continue
    if gone or (named and version not in named):
        spoken = f" (specification {', '.join(sorted(named))}, driver {version})" if named else ""
        missing = (
            f"{len(gone)} of {len(wanted)} host paths are missing, such as {gone[0]}"
            if gone
            else "its files are of another driver version"
        )
        yield Finding(
            f"CDI specification {path} is stale: {missing}{spoken}",
            "the driver was upgraded after the specification was written: containers will not start",
            f"nvgraft cdi generate --output {path}",
        )


def mode_not_legacy(patient: Patient) -> Iterator[Finding]:
    """dusty-nv/jetson-containers#1703; dstackai/dstack#2306."""
    config = patient.host.config
    if config.runtime_mode not in {"auto", "legacy"} and not config.hook_skip_mode_detection:
        yield Finding(
            f'mode = "{config.runtime_mode}" under [nvidia-container-runtime]: the hook alone refuses to work in it',
            "docker --gpus calls the hook directly, which is for mode legacy",
            'mode = "auto", or start containers with --runtime=nvidia',
        )
