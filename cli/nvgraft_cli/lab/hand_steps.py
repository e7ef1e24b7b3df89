"""The steps of a container built by hand, and what the lines of its listings mean."""

import re
from typing import NamedTuple


class HandStep(NamedTuple):
    """One command, and what it is for."""

    command: str
    meaning: str


_LIST = (
    r"find . \( -path './proc/[0-9]*' -o -path ./sys \) -prune -o"
    r" -printf '%y %D %p\n' | sort -k3"
)

STEPS = (
    HandStep(
        'cd "$(mktemp -d)" && mkdir rootfs',
        "A container is a process with its own view of the system. Its files will be here.",
    ),
    HandStep(
        "unshare --mount --pid --fork",
        "A new shell in new namespaces: what it mounts, nobody else sees; it is process 1 of its"
        " own process table.",
    ),
    HandStep(
        "tar -C rootfs -xf $IMAGE",
        "An image is an archive of files. This one has a shell, some programs and a C library, and"
        " nothing of NVIDIA.",
    ),
    HandStep(
        "echo 'nvidia:x:1000:1000::/home/nvidia:/bin/bash' >> rootfs/etc/passwd",
        "The container's program will not run as root, but as user 1000.",
    ),
    HandStep(
        "mount --bind rootfs rootfs",
        "pivot_root wants a mount point: the directory is mounted on itself.",
    ),
    HandStep(
        "mount --make-private rootfs",
        "What is mounted below it does not appear in other mount namespaces. unshare has seen to it"
        " already, so nothing changes.",
    ),
    HandStep("cd rootfs", "All that follows is about this directory."),
    HandStep(
        "mount -t proc none proc",
        "The processes of the new pid namespace, and settings of the kernel.",
    ),
    HandStep(
        "mount --rbind /proc/driver proc/driver",
        "On a real node this step does not exist: the kernel module shows its directory in every"
        " procfs. The lab's node has no kernel module.",
    ),
    HandStep("mount -t sysfs none sys", "The devices of the machine."),
    HandStep("mount -t tmpfs none tmp", "An empty directory in memory."),
    HandStep(
        "mount -t tmpfs none run",
        "Another one. It hides /run of the image, so no socket of the host's nvidia-persistenced"
        " gets in: its place is not there when the next program looks.",
    ),
    HandStep(
        f"{_LIST} > ../before; wc -l ../before",
        "All files: kind (d directory, f file, l link, c device), number of the file system, path."
        " Processes and /sys are left out.",
    ),
    HandStep(
        "nvidia-container-cli --load-kmods configure --ldconfig=@/sbin/ldconfig --no-cgroups"
        ' --utility --device 0 "$(pwd)"',
        "The one step that is about the GPU: files of the class utility, and GPU 0. This is"
        " nvgraft's program of that name. No device rules: this container has no cgroup.",
    ),
    HandStep(f"{_LIST} > ../after; wc -l ../after", "The same list again."),
    HandStep(
        "diff ../before ../after",
        "What that step has changed: lines with > came, lines with < are gone from sight. The"
        " others are diff's own and tell where in the lists.",
    ),
    HandStep(
        "pivot_root . mnt",
        "The image becomes the root of the mount namespace; the host's files move to /mnt.",
    ),
    HandStep(
        "umount -l mnt",
        "Without this the container could read all of the host.",
    ),
    HandStep(
        "exec chroot --userspec 1000:1000 . env -i bash",
        "The shell becomes the container's program: another user, an empty environment.",
    ),
    HandStep(
        "nvidia-smi -L",
        "A program of the host's driver, with a library of the host, in a file system that has"
        " neither. It lists the GPU that was given, not the other one.",
    ),
)

#: What a line of the difference means; the first pattern that matches counts. A line has a sign and
#: a path.
_MEANINGS = (
    (r"> /dev/nvidia\d+$", "the GPU's device node, mounted from the host"),
    (r"> /dev/nvidiactl$", "the node through which NVML and CUDA ask for GPUs"),
    (
        r"> /proc/driver/nvidia/params$",
        "a copy in a tmpfs; ModifyDeviceFiles is 0 there, so that the libraries make no nodes",
    ),
    (r"> /proc/driver/nvidia/(version|registry)$", "a copy in a tmpfs, for the driver's libraries"),
    (
        r"> /proc/driver/nvidia(/gpus)?$",
        "a tmpfs covers the host's directory of the driver; below gpus is the GPU that was given",
    ),
    (r"< /proc/driver/nvidia/gpus/", "the GPU that was not asked for"),
    (r"< /proc/driver/nvidia/capabilities", "access to MIG devices, which was not asked for"),
    (r"< /proc/driver/nvidia", "the host's directory of the driver, below the tmpfs"),
    (r"> /lib/firmware/.*\.bin$", "firmware of the GPU's system processor, for the driver"),
    (r"> /lib/firmware", "a directory on the way to the firmware"),
    (r"> .*\.so\.\d+$", "the SONAME link by which programs open the library"),
    (r"> .*\.so\.[\d.]+$", "a library of the class utility, mounted from the host"),
    (r"> /usr/bin/nvidia-smi$", "the program that lists GPUs"),
    (r"> /usr/bin/", "a program of the class utility, mounted from the host"),
)

_LINE = re.compile(r"([<>]) \S \d+ \.(/.*)")


def meaning_of(line: str) -> str:
    """Return what a line of the difference means; "" for any other line."""
    found = _LINE.fullmatch(line)
    if found is None:
        return ""
    row = f"{found[1]} {found[2]}"
    return next((text for pattern, text in _MEANINGS if re.match(pattern, row)), "")
