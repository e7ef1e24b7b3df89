"""The failures of GPU containers that users report, each with a stable id.

``nvgraft doctor`` looks for them before a container starts, ``nvgraft explain-error`` recognises
them in printed errors, and docs/failures.md has a section for each id. How a failure is found or
recognised is written there, not here.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure that users report.

    :ivar id: a stable id.
    :ivar phrase: what users see and search for, word for word as the reference prints it.
    """

    id: str
    title: str
    phrase: str


FAILURES = (
    Failure(
        "driver-library-mismatch",
        "the driver was upgraded while its old kernel module stayed loaded",
        "nvml error: driver/library version mismatch",
    ),
    Failure(
        "nvml-library-missing",
        "the host's loader does not find libnvidia-ml.so.1",
        "load library failed: libnvidia-ml.so.1",
    ),
    Failure(
        "cuda-library-missing",
        "the host's loader does not find libcuda.so.1",
        "load library failed: libcuda.so.1",
    ),
    Failure(
        "devices-not-requested",
        "the container asks for no GPU, so it gets none, and no error says so",
        "NVIDIA_VISIBLE_DEVICES",
    ),
    Failure(
        "capability-not-requested",
        "the container does not request a driver capability that it needs",
        'exec: "nvidia-smi": executable file not found in $PATH',
    ),
    Failure(
        "device-rules-lost",
        "the container's device rules are missing, or systemd will remove them",
        "Failed to initialize NVML: Unknown Error",
    ),
    Failure(
        "ldconfig-unusable",
        "the host's ldconfig cannot be run for the container",
        "ldcache error: process /sbin/ldconfig failed",
    ),
    Failure(
        "soname-links-missing",
        "libraries are mounted, but no SONAME link leads to them",
        "NVIDIA-SMI couldn't find libnvidia-ml.so library",
    ),
    Failure(
        "library-shadowed",
        "a program of the container does not load the host's library",
        "system has unsupported display driver / cuda driver combination",
    ),
    Failure(
        "device-permissions",
        "the container's user may not open the device nodes",
        "Failed to initialize NVML: Insufficient Permissions",
    ),
    Failure(
        "hook-not-installed",
        "the engine does not find the hook",
        'could not select device driver "" with capabilities: [[gpu]]',
    ),
    Failure(
        "requirement-unmet",
        "the image requires a newer CUDA or driver than the host has",
        "requirement error: unsatisfied condition: cuda>=",
    ),
    Failure(
        "cuda-too-new",
        "the image's CUDA is newer than the driver can run",
        "CUDA driver version is insufficient for CUDA runtime version",
    ),
    Failure(
        "target-is-symlink",
        "something in the image is in the way of a driver file",
        "file creation failed: file exists",
    ),
    Failure(
        "image-has-driver",
        "the image contains driver libraries of its own",
        "Failed to initialize NVML: Driver/library version mismatch",
    ),
    Failure(
        "rootless",
        "the hook is configured for more than a rootless engine may do",
        "capability change failed: operation not permitted",
    ),
    Failure(
        "cgroup-not-found",
        "the hook does not find the container's devices cgroup",
        "cgroup subsystem devices not found",
    ),
    Failure(
        "device-filter",
        "the device program of cgroup v2 cannot be read or replaced",
        "failed to add device rules",
    ),
    Failure(
        "nvml-slow",
        "NVML takes longer to answer than nvidia-container-cli waits",
        "driver rpc error: timed out",
    ),
    Failure("stderr-hidden", "the engine hides the hook's error message", "error executing hook"),
    Failure(
        "devices-from-image",
        "the image, not the orchestrator, asks for GPUs",
        "insufficient privileges to read device list",
    ),
    Failure(
        "graphics-incomplete",
        "Vulkan, EGL or GLX need a file that the hook does not mount",
        "Failed loading library associated with ICD JSON",
    ),
    Failure(
        "compat-libraries",
        "the image's CUDA compatibility libraries do not fit this host",
        "forward compatibility was attempted on non supported HW",
    ),
    Failure(
        "host-layout",
        "the host's driver is not where the loader cache says",
        "unsupported file format: /etc/ld.so.cache",
    ),
    Failure(
        "cdi-incomplete",
        "the CDI edits lack a part of the driver",
        "libcuda.so.1: cannot open shared object file: No such file or directory",
    ),
    Failure(
        "cdi-stale", "a CDI specification is out of date or cannot be read", "error stat'ing file"
    ),
    Failure(
        "cdi-directories",
        "an engine does not read the directories of the CDI specifications",
        "unresolvable CDI devices nvidia.com/gpu=all",
    ),
    Failure(
        "cdi-and-legacy",
        "CDI edits and the prestart hook both act on the container",
        "NVIDIA_VISIBLE_DEVICES=void",
    ),
    Failure(
        "unknown-device",
        "the container asks for a device that the host does not have",
        "device error: unknown device",
    ),
    Failure(
        "repeated-ids",
        "the container names a GPU more than once",
        "unresolvable CDI devices nvidia.com/gpu=none",
    ),
    Failure(
        "gpus-not-recorded",
        "the document of the host has no GPUs",
        "this document has no GPUs",
    ),
    Failure(
        "socket-in-the-way",
        "a volume covers the place of a driver service's socket",
        "nvidia-persistenced/socket: no such device or address",
    ),
    Failure(
        "driver-not-loaded",
        "there is no GPU, or the driver is not fully loaded",
        "nvml error: driver not loaded",
    ),
    Failure(
        "fabric-manager",
        "fabric manager does not run on a host with NVSwitches",
        "system not yet initialized",
    ),
    Failure(
        "loader-missing",
        "the image lacks the dynamic linker of the driver's programs",
        "exec /usr/bin/nvidia-smi: no such file or directory",
    ),
    Failure(
        "program-missing",
        "the program of the container is not there, or may not be executed",
        'exec: "nvidia-smi": executable file not found in $PATH',
    ),
    Failure(
        "loader-cache-mounted",
        "a volume covers the loader cache that the hook writes",
        "ldcache error: process /sbin/ldconfig failed with error code: 1",
    ),
    Failure(
        "library-path",
        "the image's loader does not search the driver's directory",
        "libcuda.so.1: cannot open shared object file",
    ),
    Failure(
        "tmp-missing",
        "the image has no /tmp",
        "/tmp: no such file or directory",  # noqa: S108 - a phrase
    ),
    Failure("hook-registration", "the hook is registered in an unsafe way", "LD_PRELOAD"),
    Failure(
        "mode-not-legacy",
        "the hook is called in a mode that it does not support",
        "invoking the NVIDIA Container Runtime Hook directly",
    ),
    Failure(
        "mig-privilege",
        "MIG administration needs a privileged container",
        "cannot set MIG_CONFIG_DEVICES in non privileged container",
    ),
    Failure(
        "read-only-rootfs",
        "the root file system is read-only when the hook runs",
        "file creation failed: read-only file system",
    ),
    Failure(
        "glibc-too-old",
        "a library needs a newer glibc than the image has",
        "version `GLIBC_2.34' not found",
    ),
    Failure(
        "gpu-errors",
        "a GPU has counted memory errors, or reported an Xid",
        "uncorrectable ECC error encountered",
    ),
    Failure(
        "image-architecture",
        "the image is for another architecture than the host",
        "exec format error",
    ),
    Failure(
        "mig-devices",
        "CUDA finds less of GPUs in MIG mode than the container has",
        "no CUDA-capable device is detected",
    ),
    Failure(
        "cuda-visible-devices",
        "CUDA_VISIBLE_DEVICES hides GPUs that the container has",
        "No CUDA GPUs are available",
    ),
    Failure(
        "simulated-driver",
        "the libraries of a simulated host have no functions",
        "Found no NVIDIA driver on your system",
    ),
    Failure(
        "simulated-runtime",
        "a program uses NVIDIA's CUDA runtime on a simulated host",
        "integrity checks failed",
    ),
    Failure(
        "pod-runtime-class",
        "the runtime of the pod's runtime class, or the engine's default, adds no driver",
        "nvidia-smi: command not found",
    ),
    Failure(
        "pod-strategy",
        "the way in which the device plugin hands devices on is not heeded",
        "NVIDIA_VISIBLE_DEVICES=/var/run/nvidia-container-devices",
    ),
    Failure(
        "pod-all-gpus",
        "a pod gets GPUs that it has not asked the kubelet for",
        "NVIDIA_VISIBLE_DEVICES=all",
    ),
    Failure(
        "pod-cpu-manager",
        "the kubelet's static CPU manager takes the devices away",
        "cpu-manager-policy=static",
    ),
    Failure(
        "pod-dra-and-plugin",
        "a node gives the same GPUs by the device plugin and by DRA",
        "the device-plugin and DRA driver for GPUs cannot both be enabled",
    ),
)
