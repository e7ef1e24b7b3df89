"""What goes wrong with GPUs in containers: one row for each failure that users report, with a stable id.

``nvgraft doctor`` looks for these before a container starts, ``nvgraft explain-error`` recognises them in what was printed,
and docs/failures.md has a section for each id. The ``phrase`` is what people paste into a search engine, word for word as
the original stack prints it. How a failure is found or recognised is not written here.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure: its stable id, a title, and the phrase that users see and search for."""

    id: str
    title: str
    phrase: str


FAILURES = (
    Failure(
        "driver-library-mismatch",
        "the driver was upgraded under a loaded kernel module",
        "nvml error: driver/library version mismatch",
    ),
    Failure(
        "nvml-library-missing",
        "the host has no libnvidia-ml.so.1 that the loader finds",
        "load library failed: libnvidia-ml.so.1",
    ),
    Failure(
        "devices-not-requested",
        "the container asks for no GPU, so it gets nothing, without a word",
        "NVIDIA_VISIBLE_DEVICES",
    ),
    Failure(
        "capability-not-requested",
        "the driver files of a capability are not asked for",
        'exec: "nvidia-smi": executable file not found in $PATH',
    ),
    Failure(
        "device-rules-lost",
        "systemd takes the hook's device rules away on daemon-reload",
        "Failed to initialize NVML: Unknown Error",
    ),
    Failure(
        "ldconfig-unusable",
        "the host's ldconfig cannot be run for the container",
        "ldcache error: process /sbin/ldconfig failed",
    ),
    Failure(
        "soname-links-missing",
        "libraries are mounted but no SONAME link leads to them",
        "NVIDIA-SMI couldn't find libnvidia-ml.so library",
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
        "the image wants a newer CUDA than the driver has",
        "requirement error: unsatisfied condition: cuda>=",
    ),
    Failure(
        "target-is-symlink",
        "the image has a symbolic link where a driver file goes",
        "file creation failed: file exists",
    ),
    Failure(
        "image-has-driver",
        "the image carries driver libraries of its own",
        "Failed to initialize NVML: Driver/library version mismatch",
    ),
    Failure(
        "rootless",
        "a rootless engine cannot do what the hook is configured for",
        "capability change failed: operation not permitted",
    ),
    Failure(
        "cgroup-not-found",
        "the devices cgroup is not where it is looked for",
        "cgroup subsystem devices not found",
    ),
    Failure(
        "device-filter",
        "the device program of cgroup v2 cannot be read or replaced",
        "failed to add device rules",
    ),
    Failure(
        "nvml-slow",
        "asking NVML takes longer than the original waits",
        "driver rpc error: timed out",
    ),
    Failure("stderr-hidden", "the engine does not show what the hook says", "error executing hook"),
    Failure(
        "devices-from-image",
        "the image, not the orchestrator, asks for all GPUs",
        "insufficient privileges to read device list",
    ),
    Failure(
        "graphics-incomplete",
        "Vulkan, EGL or GLX lack a file that the hook does not bring",
        "Failed loading library associated with ICD JSON",
    ),
    Failure(
        "compat-libraries",
        "CUDA compatibility libraries of the image do not fit",
        "forward compatibility was attempted on non supported HW",
    ),
    Failure(
        "host-layout",
        "the host's driver is not where the loader cache says",
        "unsupported file format: /etc/ld.so.cache",
    ),
    Failure("cdi-stale", "a CDI specification names files that are gone", "error stat'ing file"),
    Failure(
        "unknown-device",
        "a device is asked for that the host lacks",
        "device error: unknown device",
    ),
    Failure(
        "socket-in-the-way",
        "a service's socket exists already in the container",
        "nvidia-persistenced/socket: no such device or address",
    ),
    Failure(
        "driver-not-loaded",
        "there is no GPU, or the driver is half loaded",
        "nvml error: driver not loaded",
    ),
    Failure(
        "loader-missing",
        "the image lacks the dynamic linker of the driver's programs",
        "exec /usr/bin/nvidia-smi: no such file or directory",
    ),
    Failure(
        "library-path",
        "the driver's directory is not searched by the image's loader",
        "libcuda.so.1: cannot open shared object file",
    ),
    Failure("tmp-missing", "the image has no /tmp", "/tmp: no such file or directory"),  # noqa: S108 - a phrase
    Failure("hook-registration", "the hook is registered in an unsafe way", "LD_PRELOAD"),
    Failure(
        "mode-not-legacy",
        "the engine's mode is not the hook's",
        "invoking the NVIDIA Container Runtime Hook directly",
    ),
    Failure(
        "mig-privilege",
        "administering MIG needs a privileged container",
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
)
