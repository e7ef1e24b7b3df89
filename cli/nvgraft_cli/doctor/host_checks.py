"""Checks of a host: its driver, its loader cache, its engines.

The docstring of each check names the threads that reported the failure.
"""

import os
import posixpath
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nvgraft.base import jsontext
from nvgraft.base.errors import WRONG_MODE, Refusal
from nvgraft.base.jsontext import JsonError
from nvgraft.cdi import platform
from nvgraft.cdi.edits import CdiSpec
from nvgraft.cdi.reader import SpecificationError
from nvgraft.formats.ldcache import ARCHITECTURES
from nvgraft.formats.tree import PathError
from nvgraft.host.ldconfig import USUAL_PROGRAMS
from nvgraft.host.snapshot import FactsNotRecorded
from nvgraft.plan.actions import Injection
from nvgraft.request.request import Skip, resolve_request
from nvgraft_cli.case.cdi_requests import unheard, write_command
from nvgraft_cli.case.driver import library_version, module_version
from nvgraft_cli.case.planning import NO_GPUS
from nvgraft_cli.case.rewritten import is_cdi_hook
from nvgraft_cli.case.specifications import read_specifications
from nvgraft_cli.doctor.cdi_checks import of_nvidia
from nvgraft_cli.doctor.gpu_health import FABRIC_WAITS
from nvgraft_cli.doctor.patient import (
    TEGRA_NODES,
    TEXT_LIMIT,
    WSL_NODE,
    Diagnosis,
    NotChecked,
    Patient,
)
from nvgraft_cli.prove.opened import opened_libraries

if TYPE_CHECKING:
    from nvgraft_cli.doctor.machine import Machine

_CUDA, _NVML = "libcuda.so.1", "libnvidia-ml.so.1"
_NVML_PROGRAMS = "nvidia-smi and other programs that use NVML"

#: Where else hosts keep the driver's libraries.
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
#: Programs that, as one of docker's runtimes, give a container its GPUs.
_RUNTIMES = {"nvgraft-runtime", "nvidia-container-runtime", "nvidia-container-runtime.cdi"}
_CDI_SUFFIXES = (".json", ".yaml", ".yml")

_PROC_GPUS = "/proc/driver/nvidia/gpus"
_MINOR = re.compile(r"^Device Minor:\s+(\d{1,4})$", re.MULTILINE)

#: Without persistence mode, NVML needs longer for this many GPUs than the reference waits.
_MANY_GPUS = 4

#: Kind of a host -> the nodes of its GPU, of which one is enough.
_NODES = {platform.WSL: (WSL_NODE,), platform.TEGRA: TEGRA_NODES}

_SWITCH = re.compile(r"nvidia-nvswitch\d+")
#: Fabric manager as the kernel shows it, with the 15 bytes that a process's name may have.
_FABRIC_MANAGER = "nv-fabricmanage"
#: Boards whose NVSwitches are reached through InfiniBand, not through the driver.
_NVLINK_5 = re.compile(r"\bG?B[23]00\b")


def driver_library_mismatch(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``driver-library-mismatch``: the driver was upgraded while its old kernel module
    stayed loaded.

    Reported in NVIDIA/nvidia-container-toolkit#394, #171; NVIDIA/nvidia-docker#1451, #1168.
    """
    text = patient.host_text("/proc/driver/nvidia/version")
    if text is None:
        raise NotChecked("the nvidia kernel module is not loaded")
    module = module_version(text)
    if module is None:
        raise NotChecked("/proc/driver/nvidia/version does not have the form that the driver uses")
    libraries: dict[str, str] = {}  # version -> path
    for entry in patient.entries:
        if entry.soname in {_NVML, _CUDA}:
            try:
                path = patient.host_tree.resolve(entry.path)
            except PathError:
                continue
            version = library_version(path)
            if version is not None:
                libraries.setdefault(version, path)
    if libraries and module not in libraries:
        version, path = next(iter(libraries.items()))
        seen = f"the loaded kernel module has version {module}, the library {version} ({path})"
        yield Diagnosis(
            seen,
            "the driver's packages were upgraded while the old module stayed loaded; every GPU "
            "container fails until the new module is loaded",
            "reboot, or stop all programs that use the GPUs and reload the nvidia modules",
            sentence=f"CUDA fails with error 803, and NVML with 18, because {seen}",
        )


def nvml_library_missing(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``nvml-library-missing``: the host's loader does not find libnvidia-ml.so.1.

    Reported in NVIDIA/libnvidia-container#231; NVIDIA/nvidia-container-toolkit#154, #231;
    NixOS/nixpkgs#83713.
    """
    has_cuda = False
    try:
        sonames = _cached_sonames(patient)
        if _NVML in sonames:
            return
        has_cuda = _CUDA in sonames
        missing = f"{_NVML} is not in the host's loader cache"
    except NotChecked as error:
        if patient.driver_answers:
            raise
        missing = f"{_NVML} is not found: {error}"
    if patient.platform == platform.TEGRA:
        return  # JetPack 5 and older have no NVML: CSV files name what containers get
    breaks = _without(patient, _NVML, _NVML_PROGRAMS)
    elsewhere = _in_other_directory(patient, _NVML, missing)
    if elsewhere is not None:
        yield replace(elsewhere, breaks=breaks)
        return
    seen = f"{missing}, and {_nowhere(patient)}"
    if has_cuda:
        yield Diagnosis(
            f"{seen}: {_NVML_PROGRAMS} fail in containers, and a live host starts no GPU container",
            f"the driver is installed without its management library: {_CUDA} is there",
            f"install the package of the same version that has {_NVML} (Debian: libnvidia-ml1)",
            breaks=breaks,
        )
        return
    yield Diagnosis(
        seen,
        "no NVIDIA driver is installed on this host (or below this driver root)",
        "install the driver, or set root under [nvidia-container-cli] in config.toml to the "
        "directory that holds it",
        breaks=breaks,
    )


def cuda_library_missing(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``cuda-library-missing``: the host's loader does not find libcuda.so.1.

    Without libnvidia-ml.so.1 too it is ``nvml-library-missing``.

    Reported in NVIDIA/nvidia-docker#539; NVIDIA/libnvidia-container#8.
    """
    sonames = _cached_sonames(patient)
    if _CUDA in sonames or _NVML not in sonames:
        return
    missing = f"{_CUDA} is not in the host's loader cache"
    breaks = _without(patient, _CUDA, "CUDA programs")
    elsewhere = _in_other_directory(patient, _CUDA, missing)
    if elsewhere is not None:
        yield replace(elsewhere, breaks=breaks)
        return
    yield Diagnosis(
        f"{missing}, and {_nowhere(patient)}: no container can use CUDA",
        f"the driver is installed without its CUDA library: {_NVML} is there",
        f"install the package of the same version that has {_CUDA} (Debian: libcuda1)",
        breaks=breaks,
    )


def _cached_sonames(patient: Patient) -> set[str]:
    """Return the SONAMEs in the host's loader cache that are not for 32-bit programs alone.

    :raises NotChecked: the cache cannot be read.
    """
    recorded = patient.host.document is not None
    machine = patient.host.facts.machine if recorded else os.uname().machine
    wide = ARCHITECTURES.get(machine, ARCHITECTURES["x86_64"])[0]
    return {entry.soname for entry in patient.entries if entry.architecture == wide}


def _in_other_directory(patient: Patient, soname: str, missing: str) -> Diagnosis | None:
    """Report a library of the driver that is in a directory which ldconfig does not search."""
    stem = soname.removesuffix(".1")
    for directory in _OTHER_DIRECTORIES:
        names = [name for name in patient.host_tree.listdir(directory) if name.startswith(stem)]
        if names:
            return Diagnosis(
                f"{missing}; it is at {directory}/{names[0]}",
                "the driver is in a directory that ldconfig does not search",
                f"add {directory} to a file in /etc/ld.so.conf.d on the host, then run ldconfig",
            )
    return None


def _nowhere(patient: Patient) -> str:
    place = "on the host" if patient.host.document is None else "in the snapshot"
    return f"{place} it is in no other directory where drivers are usually kept"


def _without(patient: Patient, soname: str, programs: str) -> str:
    """Return what fails in a container whose programs need a library that it lacks, or "".

    :param programs: the programs that open the library.
    """
    if not (patient.has_container and patient.host_answers) or patient.refusal is not None:
        return ""
    if not isinstance(patient.plan, Injection):
        return ""
    if soname not in opened_libraries(patient.capabilities):
        return ""
    if patient.container.rootfs_known and patient.proof(soname).verdict != "no":
        return ""
    return f"{programs} fail because the host has no {soname}"


def driver_not_loaded(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``driver-not-loaded``: there is no GPU, or the driver is not fully loaded.

    Reported in NVIDIA/nvidia-docker#1786, #512; NVIDIA/enroot#106; ggml-org/llama.cpp#7218 (CUDA
    error 999).
    """
    patient.check_gpus_known()
    if patient.platform in _NODES:
        yield from _without_nodes(patient, _NODES[patient.platform])
        return
    if patient.host_text("/proc/driver/nvidia/version") is None:
        yield Diagnosis(
            "the nvidia kernel module is not loaded: there is no /proc/driver/nvidia/version",
            "this machine has no GPU, the module was not built for the running kernel, or Secure "
            "Boot refuses it",
            "look for the cause: lspci -d 10de:; dkms status; modprobe nvidia; "
            "dmesg | grep -i nvrm",
        )
        return
    tree = patient.host_tree
    for path, harm, sentence, phrase in (
        ("/dev/nvidiactl", "no program can use a GPU without it", "no program can use a GPU", ""),
        (
            "/dev/nvidia-uvm",
            "CUDA will fail with error 999 in containers that start before the node exists",
            "CUDA fails with error 999",
            "CUDA error: unknown error",
        ),
    ):
        if tree.lstat(path) is None:
            yield Diagnosis(
                f"{path} is missing: {harm}",
                "the module that makes this node has not been loaded since the machine booted",
                "run nvidia-modprobe -u -c0 on the host (with load-kmods = true in config.toml, "
                "the next container start does it)",
                sentence=f"{sentence} because the host has no {path}",
                phrase=phrase,
            )
    yield from _missing_nodes(patient)
    try:
        gpus = patient.host.facts.report.gpus
    except Refusal as refusal:
        raise NotChecked(f"NVML does not answer: {refusal.text}") from refusal
    if not gpus:
        yield Diagnosis(
            "NVML reports no GPU",
            "the driver is loaded, but no GPU works",
            "look for the cause: nvidia-smi -L; dmesg | grep -i xid",
            sentence="CUDA finds no GPU because NVML reports none",
            phrase="No devices were found",
        )


def _without_nodes(patient: Patient, nodes: tuple[str, ...]) -> Iterator[Diagnosis]:
    """Look for the GPU's nodes on a host whose driver has no nodes of the names /dev/nvidia*."""
    if not any(patient.host_tree.lstat(path) for path in nodes):
        missing = " and no ".join(nodes)
        yield Diagnosis(
            f"there is no {missing}",
            "the kernel does not offer the GPU to this system",
            "on WSL2, update Windows' driver and run wsl --update; on a Jetson, look for the cause:"
            " dmesg | grep -i nvgpu",
            sentence=f"CUDA finds no GPU because the host has no {missing}",
            phrase="no CUDA-capable device is detected",
        )


def _missing_nodes(patient: Patient) -> Iterator[Diagnosis]:
    """Find the GPUs of the loaded driver that have no device node."""
    tree = patient.host_tree
    addresses = tree.listdir(_PROC_GPUS)
    for address in addresses:
        try:
            information = tree.read(f"{_PROC_GPUS}/{address}/information", TEXT_LIMIT)
        except OSError:
            continue  # not recorded
        minor = _MINOR.search(information.decode("utf-8", "replace"))
        path = f"/dev/nvidia{minor[1]}" if minor else ""
        if minor and tree.lstat(path) is None:
            yield Diagnosis(
                f"{path} is missing: no program can use the GPU {address}",
                "the node was removed, or not made since the module was loaded",
                f"run nvidia-modprobe -c {minor[1]} on the host",
                sentence=f"a GPU is missing because the host has no {path}",
                phrase=f"{len(addresses) - 1}: unknown device",  # the last index is not given
            )


def gpus_not_recorded(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``gpus-not-recorded``: the document of the host is of a driver without GPUs."""
    if not patient.host.gpus_known:
        yield Diagnosis(
            NO_GPUS.message, "the driver was recorded from files", NO_GPUS.hint, NO_GPUS.level
        )


def host_layout(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``host-layout``: the host's driver is not where the loader cache says.

    Reported in NVIDIA/libnvidia-container#234, #146, #153; NVIDIA/nvidia-container-toolkit#71,
    #209, #751.
    """
    version = patient.host.facts.report.driver_version
    libraries = [
        entry for entry in patient.entries if entry.soname.startswith(("libcuda.so", "libnvidia-"))
    ]
    # On WSL2 the files of the driver store have no version in their names.
    versioned = patient.platform != platform.WSL
    if (
        versioned
        and libraries
        and not any(_resolves_to(patient, entry.path, version) for entry in libraries)
    ):
        yield Diagnosis(
            f"the loader cache names {len(libraries)} driver libraries, "
            f"none of them of the running driver {version}",
            "the loader cache was written for another driver",
            "run ldconfig on the host (in the driver root)",
        )
    for entry in libraries:
        try:
            resolved, node = patient.host_tree.find(entry.path)
            if node is None:
                yield Diagnosis(
                    f"the loader cache names {entry.path}, which does not exist",
                    "libraries were removed after ldconfig last ran",
                    "install the driver's packages anew, or run ldconfig on the host (in the driver"
                    " root) if another driver is installed",
                    phrase=f"open failed: {resolved}: no such file or directory",
                )
                return
        except PathError:
            continue


def _resolves_to(patient: Patient, path: str, version: str) -> bool:
    try:
        return patient.host_tree.resolve(path).endswith(version)
    except PathError:
        return False


def nvml_slow(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``nvml-slow``: NVML takes longer to answer than nvidia-container-cli waits.

    Reported in NVIDIA/nvidia-container-toolkit#183, #556, #202; NVIDIA/nvidia-docker#1203, #1252.
    """
    patient.check_gpus_known()
    inventory = patient.host.inventory
    count = len(inventory.report.gpus)
    if count >= _MANY_GPUS and not any(
        "persistenced" in socket.path for socket in inventory.files.sockets
    ):
        yield Diagnosis(
            f"{count} GPUs, and nvidia-persistenced is not running",
            "without persistence mode, every container start initialises all GPUs; "
            "nvidia-container-cli gives up after 10 seconds",
            "run systemctl enable --now nvidia-persistenced on the host",
            "warning",
        )


def fabric_manager(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``fabric-manager``: it does not run on a host with NVSwitches.

    NVIDIA's driver containers recognise such a host by the same directory of /proc.

    Reported in aws-samples/aws-deep-learning-ami-ubuntu-dcv-desktop#33, gpustack/gpustack#4154;
    NVIDIA/gpu-operator#2781 (B200); NVIDIA/gpu-driver-container#908.
    """
    machine = patient.machine
    switches = machine.listdir("/proc/driver/nvidia-nvswitch/devices") or [
        name for name in machine.listdir("/dev") if _SWITCH.fullmatch(name)
    ]
    if not switches:
        yield from _fabric_of_nvlink_5(patient)
        return
    processes = [name for name in machine.listdir("/proc") if name.isdecimal()]
    if not machine.shows_processes or "1" not in processes:
        raise NotChecked(
            "the host has NVSwitches, and not all of its processes are visible here: run this on "
            "the node as root"
        )
    if any(_name_of(machine, process) == _FABRIC_MANAGER for process in processes):
        return
    count = "1 NVSwitch" if len(switches) == 1 else f"{len(switches)} NVSwitches"
    yield _fabric_down(f"the host has {count}, and no process nv-fabricmanager")


def _fabric_of_nvlink_5(patient: Patient) -> Iterator[Diagnosis]:
    """Judge boards whose NVSwitches the driver does not list by the state of the GPUs' fabric, as
    nvidia-smi -q prints it.
    """
    if not any(_NVLINK_5.search(gpu.model) for gpu in patient.host.facts.report.gpus):
        return
    health = patient.machine.health
    if health is None:
        raise NotChecked("NVML was not asked for the state of the GPUs' fabric")
    waiting = [gpu for gpu in health if gpu.fabric in FABRIC_WAITS]
    if waiting:
        gpus = "1 GPU" if len(waiting) == 1 else f"{len(waiting)} GPUs"
        yield _fabric_down(f"NVML says that the fabric of {gpus} is not set up")
    elif all(gpu.fabric is None for gpu in health):
        raise NotChecked("NVML does not say the state of the GPUs' fabric")


def _fabric_down(seen: str) -> Diagnosis:
    error = "error 802 (system not yet initialized)"
    return Diagnosis(
        f"{seen}: CUDA fails with {error} in every container, and nvidia-smi works",
        "GPUs that are joined by NVSwitches wait until fabric manager has set up the fabric",
        "install nvidia-fabricmanager in exactly the version of the driver, start it (systemctl "
        "enable --now nvidia-fabricmanager), and look at journalctl -u nvidia-fabricmanager",
        sentence=f"CUDA fails with {error} because {seen}",
    )


def _name_of(machine: "Machine", process: str) -> str | None:
    """Return the name of a process, or None if it has ended or has no readable name."""
    try:
        name = machine.text(f"/proc/{process}/comm")
    except (OSError, ValueError):
        return None
    return name and name.strip()


def gpu_errors(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``gpu-errors``: a GPU has counted memory errors, or the driver has reported an Xid.

    Reported in NVIDIA/k8s-device-plugin#243, #267; NVIDIA/nvidia-docker#849.
    """
    machine = patient.machine
    for gpu in machine.health or ():
        if gpu.uncorrected:
            noun = "memory error" if gpu.uncorrected == 1 else "memory errors"
            yield Diagnosis(
                f"GPU {gpu.index} ({gpu.uuid}) has counted {gpu.uncorrected} uncorrected {noun}"
                " since its driver was loaded",
                "ECC has found errors that it cannot correct: programs that touched this memory "
                "were ended, and others may be until it is retired",
                "drain the node and reset the GPU (nvidia-smi -r) or reboot; replace the GPU if it "
                "counts more (nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT)",
            )
    for line in machine.xids:
        yield Diagnosis(
            line,
            "the driver has reported an error of this GPU since the machine was booted: of its "
            "hardware or link, or of a program; the number says which",
            "look the number up in NVIDIA's page XID Errors; drain the node, and reset the GPU if "
            "it is an error of the hardware",
            "warning",
            phrase=line.partition(",")[0],
        )
    if machine.health is None:
        raise NotChecked("NVML was not asked for memory errors")


def ldconfig_unusable(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``ldconfig-unusable``: the host's ldconfig cannot be run for the container.

    Reported in NVIDIA/nvidia-docker#587, #1424; NVIDIA/nvidia-container-toolkit#147;
    NVIDIA/enroot#128.
    """
    config = patient.host.config
    program = config.cli_ldconfig.removeprefix("@")
    native = config.ldcache_mode == "native"
    if native and (program in USUAL_PROGRAMS or not config.cli_ldconfig.startswith("@")):
        raise NotChecked(
            "the hook writes the loader cache itself and runs no ldconfig ([nvgraft] ldcache)"
        )
    if not config.cli_ldconfig.startswith("@"):
        yield Diagnosis(
            f'ldconfig = "{config.cli_ldconfig}" in config.toml names a program of the image',
            "the hook never runs a program of the image with privileges",
            f'set ldconfig = "@{program}" in config.toml',
        )
    node = patient.on_host(program)
    if node is None:
        yield Diagnosis(
            f"{program} does not exist on the host",
            "ldconfig in config.toml names a program that does not exist",
            'set ldconfig = "@/sbin/ldconfig" in config.toml',
        )
        return
    if native:
        return
    try:
        facts = patient.host_tree.elf(patient.host_tree.resolve(program), sections=False)
    except OSError as error:
        raise NotChecked(f"{program} cannot be read: {error}") from error
    except FactsNotRecorded as error:
        raise NotChecked(f"{program}: {error}") from error
    except ValueError:
        wrapper = "is" if patient.host.document is None else "may be"
        yield Diagnosis(
            f"{program} is not an ELF program: it {wrapper} a shell wrapper",
            "Ubuntu keeps the real program in /sbin/ldconfig.real; in a container the "
            "wrapper ends with error code 127",
            'set ldconfig = "@/sbin/ldconfig.real" in config.toml',
        )
        return
    if facts.interp is not None:
        yield Diagnosis(
            f"{program} is not statically linked",
            "in the container it would need libraries of the image",
            "name the distribution's own ldconfig in config.toml",
        )


def hook_not_installed(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``hook-not-installed``: the engine does not find the hook.

    Reported in NVIDIA/nvidia-docker#1034, #1682, #1637; NVIDIA/dcgm-exporter#33;
    containers/podman#16839 (a hook that does not match).
    """
    if patient.has_container and not patient.by_edits:
        yield from _not_hooked(patient)
    # A container of podman, or one that has the hook in its config.json, needs no Docker.
    docker = not (patient.has_container and (patient.by_podman or gpu_hooks(patient)))
    docker_calls_it = docker and not patient.by_edits
    for finding in _engines_lack_hook(patient.machine, docker=docker, called=docker_calls_it):
        yield replace(finding, of_host=True)
    if docker_calls_it and patient.machine.program("dockerd") and _gpus_may_be_cdi(patient.machine):
        raise NotChecked(
            "nvidia-container-runtime-hook is missing, and it depends on dockerd's version whether "
            "--gpus does with nvidia-cdi-hook alone"
        )


def _engines_lack_hook(machine: "Machine", *, docker: bool, called: bool) -> Iterator[Diagnosis]:
    if docker:
        yield from _docker_lacks_hook(machine, called=called)
    for directory in ("/usr/share/containers/oci/hooks.d", "/etc/containers/oci/hooks.d"):
        for name in machine.listdir(directory):
            yield from _hook_file(machine, f"{directory}/{name}")


def _docker_lacks_hook(machine: "Machine", *, called: bool) -> Iterator[Diagnosis]:
    runtimes: dict[str, object] = {}
    try:
        document = _json(machine, _DAEMON)
        member = document.get("runtimes") if isinstance(document, dict) else None
        runtimes = member if isinstance(member, dict) else {}
    except (OSError, ValueError, JsonError) as error:
        yield Diagnosis(
            f"{_DAEMON} cannot be read: {error}",
            "the file is damaged or not readable; dockerd will not start with it",
            f"correct {_DAEMON}",
        )
    for name, runtime in runtimes.items():
        program = runtime.get("path") if isinstance(runtime, dict) else None
        if isinstance(program, str) and machine.program(program) is None:
            yield Diagnosis(
                f"docker's runtime {name} is {program}, which is not in PATH",
                "the program was removed, or never installed",
                f"install it, or remove the runtime from {_DAEMON}; then restart docker",
            )
    if (
        called
        and machine.program("dockerd")
        and machine.program("nvidia-container-runtime-hook") is None
        and not _gpus_may_be_cdi(machine)
        and not any(map(_is_gpu_runtime, runtimes.values()))
    ):
        yield Diagnosis(
            "docker --gpus needs nvidia-container-runtime-hook, which is not in dockerd's PATH",
            "dockerd offers --gpus only if it finds this program when it starts",
            "run ./dev install --names PREFIX=/usr/local, or nvgraft register docker and start "
            "containers with its --runtime; then restart docker",
        )


def _gpus_may_be_cdi(machine: "Machine") -> bool:
    """Tell whether a newer dockerd would serve --gpus by CDI alone (moby/moby#50228)."""
    return (
        machine.program("nvidia-cdi-hook") is not None
        and machine.program("nvidia-container-runtime-hook") is None
    )


def _is_gpu_runtime(runtime: object) -> bool:
    path = runtime.get("path") if isinstance(runtime, dict) else None
    return isinstance(path, str) and posixpath.basename(path) in _RUNTIMES


def _not_hooked(patient: Patient) -> Iterator[Diagnosis]:
    """Check that podman added a hook or a CDI device: it writes both into config.json."""
    if not patient.by_podman:
        return
    outcome = resolve_request(patient.container.spec, patient.host.config)
    has_devices = any(
        str(device.get("path", "")).startswith("/dev/nvidia")
        for device in patient.objects("linux", "devices")
    )
    if not isinstance(outcome, Skip) and not has_devices and not gpu_hooks(patient):
        yield Diagnosis(
            "podman wrote this config.json and put no GPU hook into it: the container gets no GPU, "
            "and no error says so",
            "no file in podman's hooks directories names the hook, or its conditions under 'when' "
            "do not match this container",
            "run nvgraft register podman; check that podman --hooks-dir names the directory; where "
            "SELinux denies access, use --security-opt label=disable",
            sentence="it gets no GPU because podman put no hook into config.json",
        )


def gpu_hooks(patient: Patient) -> list[tuple[str, dict[str, Any]]]:
    """Return the GPU hooks of config.json, each with its stage."""
    stages = patient.member("hooks")
    if not isinstance(stages, dict):
        return []
    return [
        (stage, hook)
        for stage in stages
        for hook in patient.objects("hooks", stage)
        if re.search("nvidia-container|nvgraft", str(hook.get("path", ""))) or is_cdi_hook(hook)
    ]


def _json(machine: "Machine", path: str) -> Any:
    return jsontext.loads((machine.text(path) or "{}").encode(), TEXT_LIMIT)


def _hook_file(machine: "Machine", path: str) -> Iterator[Diagnosis]:
    try:
        program = _json(machine, path)["hook"]["path"]
    except (OSError, ValueError, JsonError, KeyError, TypeError):
        return  # not a hook of ours: podman skips it, or reports it itself
    if (
        isinstance(program, str)
        and ("nvidia" in program or "nvgraft" in program)
        and machine.program(program) is None
    ):
        yield Diagnosis(
            f"{path} names {program}, which cannot be executed",
            "the program was moved or removed",
            f"run nvgraft register podman, or remove {path}",
        )


def cdi_stale(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``cdi-stale``: a CDI specification names missing files, or cannot be read.

    Reported in NVIDIA/nvidia-container-toolkit#1456, #1967; containers/podman#23935.
    """
    paths = list(patient.cdi)
    if not paths:
        machine = patient.machine
        for directory in patient.host.config.runtime_cdi_spec_dirs:
            paths += [
                f"{machine.root}{directory}/{name}"
                for name in machine.listdir(directory)
                if name.endswith(_CDI_SUFFIXES)
            ]
    read = [
        found
        for found in read_specifications(paths)
        if patient.cdi or isinstance(found, SpecificationError) or of_nvidia(found.spec)
    ]
    if not read:
        raise NotChecked("no CDI specification was given (--cdi), and none is installed")
    for found in read:
        if isinstance(found, SpecificationError):
            yield Diagnosis(
                str(found),
                "engines refuse a specification that they cannot read",
                write_command(found.path),
                phrase="unresolvable CDI devices nvidia.com/gpu=all",
            )
        else:
            yield from _stale(patient, found.path, found.spec)


def _stale(patient: Patient, path: str, spec: CdiSpec) -> Iterator[Diagnosis]:
    host_paths = [
        mount.source
        for edits in (spec.edits, *(device.edits for device in spec.devices))
        for mount in edits.mounts
        if mount.type in ("", "bind")
    ]
    driver_version = patient.host.facts.report.driver_version
    versions = {
        version for host_path in host_paths if (version := library_version(host_path)) is not None
    }
    missing = []
    for host_path in dict.fromkeys(host_paths):
        try:
            if patient.on_host(host_path) is None:
                missing.append(host_path)
        except NotChecked:
            continue
    if missing or (versions and driver_version not in versions):
        fault = (
            f"{len(missing)} of {len(host_paths)} host paths do not exist, such as {missing[0]}"
            if missing
            else "its files are of another driver version"
        )
        if versions:
            fault += f" (specification {', '.join(sorted(versions))}, driver {driver_version})"
        used = (
            patient.has_container
            and patient.refusal is None
            and path in {origin.file for origin in patient.case.origins}
        )
        yield Diagnosis(
            f"CDI specification {path} is out of date: {fault}",
            "the driver was upgraded after the specification was written: containers that use it "
            f"{'get libraries that do not fit the kernel module' if used else 'will not start'}",
            write_command(path),
            sentence=""
            if missing or not used
            else "CUDA fails with error 803 (system has unsupported display driver / cuda driver "
            f"combination) because {path} is of driver {', '.join(sorted(versions))}",
        )


def mode_not_legacy(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``mode-not-legacy``: the hook is called in a mode that it does not support.

    Reported in dusty-nv/jetson-containers#1703; dstackai/dstack#2306.
    """
    patient.check_hook_acts()
    config = patient.host.config
    if patient.platform in _NODES and patient.has_container and patient.refusal is not None:
        kind = "WSL2" if patient.platform == platform.WSL else "a Tegra board"
        yield Diagnosis(
            f"{patient.refusal.reference_line()}: this host is {kind}",
            "the hook serves hosts whose driver has the nodes /dev/nvidia* alone",
            "start the container with nvgraft-runtime (docker --runtime=nvidia), whose mode auto "
            "adds what this host has",
            phrase=patient.refusal.text,
        )
        return
    if patient.has_container and patient.refusal is not None:
        named = unheard(patient.case)
        if named is not None and patient.refusal.kind == WRONG_MODE:
            yield Diagnosis(patient.refusal.reference_line(), *named, phrase=patient.refusal.text)
            return
    if config.runtime_mode not in {"auto", "legacy"} and not config.hook_skip_mode_detection:
        yield Diagnosis(
            f'mode = "{config.runtime_mode}" in [nvidia-container-runtime] of config.toml: in this '
            "mode the hook refuses every GPU container",
            "docker --gpus calls the hook directly, which only mode legacy supports",
            'set mode = "auto" in config.toml, or start containers with --runtime=nvidia',
            of_host=True,
        )
