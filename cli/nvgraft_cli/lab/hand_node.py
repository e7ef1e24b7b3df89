"""The node and the image of the experiment by hand: a published account's, as far as it tells."""

import json
import os
import shutil
import subprocess
from typing import Any

from nvgraft.system import syscalls
from nvgraft_cli.shell.errors import InputError
from nvgraft_cli.simulate import demo, recipe

_LINE = "2 x a10, driver 560.35.03"
_PROC = "/proc/driver/nvidia"
#: PCI devices of the two GPUs, on bus 0.
_ADDRESSES = (4, 5)
#: What the driver's directory has beside the files that a container gets.
_MORE_FILES = (
    "capabilities/fabric-imex-mgmt",
    "capabilities/mig/config",
    "capabilities/mig/monitor",
    "patches/README",
    "suspend",
    "suspend_depth",
    "warnings/README",
)
_MORE_DIRECTORIES = ("capabilities/gpu0/mig", "capabilities/gpu1/mig")
_GPU_FILES = ("power", "registry")

#: Programs of this machine that the image gets, and those that the shell on the node needs.
_IN_IMAGE = ("bash", "cat", "chroot", "env", "id", "ls", "umount")
_ON_NODE = ("bash", "diff", "find", "ldconfig", "mount", "pivot_root", "tar", "unshare", "wc")
_DIRECTORIES = "bin dev etc home/nvidia lib lib64 mnt proc root run sbin sys tmp usr/bin usr/sbin"
_SEARCH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def document() -> dict[str, Any]:
    """Return the document of a host with two GPUs and driver 560.35.03."""
    made = recipe.make_document(_LINE, "by-hand")
    files: dict[str, Any] = {
        path: entry for path, entry in made["files"].items() if not path.startswith(f"{_PROC}/gpus")
    }
    for index, (gpu, device) in enumerate(zip(made["nvml"]["gpus"], _ADDRESSES, strict=True)):
        gpu["pci"] = {"domain": 0, "bus": 0, "device": device}
        place = f"{_PROC}/gpus/0000:00:{device:02x}.0"
        lines = (f"Model: \t\t {gpu['model']}", f"GPU UUID: \t {gpu['uuid']}")
        _add(files, f"{place}/information", "\n".join((*lines, f"Device Minor: \t {index}", "")))
        for name in _GPU_FILES:
            _add(files, f"{place}/{name}")
    for name in _MORE_FILES:
        _add(files, f"{_PROC}/{name}")
    for name in _MORE_DIRECTORIES:
        _add_directory(files, f"{_PROC}/{name}")
    return {**made, "files": files}


def _add(files: dict[str, Any], path: str, content: str = "") -> None:
    _add_directory(files, os.path.dirname(path))
    files[path] = {"type": "file", "mode": "0444", "size": len(content), "content": content}


def _add_directory(files: dict[str, Any], path: str) -> None:
    while path not in files:
        files[path] = {"type": "dir", "mode": "0555"}
        path = os.path.dirname(path)


def host_text() -> bytes:
    """Return the text of the document."""
    return json.dumps(document()).encode()


def check() -> None:
    """Check that this machine has the programs of the experiment.

    :raises InputError: it has not.
    """
    if os.uname().machine != "x86_64":
        raise InputError(
            "the experiment by hand is made of programs for x86_64 | use such a machine"
        )
    missing = [name for name in {*_IN_IMAGE, *_ON_NODE} if _program(name) is None]
    if missing:
        raise InputError(
            f"missing in PATH: {', '.join(sorted(missing))} | install bash, coreutils, diffutils,"
            " findutils, libc-bin, mount, tar and util-linux"
        )


def keep_machine() -> None:
    """Make /sys of the node read-only. It is this machine's, and `rm -r /` would remove cgroups."""
    directory = os.open("/sys", os.O_PATH | os.O_CLOEXEC)
    syscalls.mount_setattr(directory, syscalls.MOUNT_ATTR_RDONLY, recursive=True)
    os.close(directory)


def _program(name: str) -> str | None:
    return shutil.which(name, path=_SEARCH)


def make_image(path: str, directory: str) -> None:
    """Write the archive of a small root file system to ``path``; ``directory`` is for its files.

    :raises nvgraft_cli.simulate.demo.DemoFailed: a program of this machine failed.
    """
    for place in (*_DIRECTORIES.split(), demo.LIBRARIES[1:]):
        os.makedirs(f"{directory}/{place}")
    programs = [found for name in _IN_IMAGE if (found := _program(name))]
    for program in programs:
        place = "usr/sbin" if program.endswith("chroot") else "bin"
        shutil.copy(program, f"{directory}/{place}/")
    shutil.copy(demo.LOADER, directory + demo.LOADER)
    more = {f"{demo.LIBRARIES}/{name}" for name in demo.C_LIBRARY}
    for library in demo.libraries_of(*programs) | more:
        shutil.copy(library, f"{directory}{demo.LIBRARIES}/")
    for name, text in (
        ("debian_version", "12.0\n"),
        ("ld.so.conf", f"{demo.LIBRARIES}\n"),
        ("passwd", "root:x:0:0::/root:/bin/bash\n"),
    ):
        with open(f"{directory}/etc/{name}", "w", encoding="ascii") as file:
            file.write(text)
    demo.run("ldconfig", "-r", directory)
    subprocess.run(["tar", "-C", directory, "-cf", path, "."], check=True)
    shutil.rmtree(directory)
