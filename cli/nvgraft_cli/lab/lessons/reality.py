"""What a container of a check is made of, seen from outside while it waits to begin.

A check hears what a program says, and the learner may replace programs, libraries and rules. So it
also looks whether the programs are those that the lesson and the driver have brought, which
libcuda.so.1 is the node's, and whether the container may open every device.
"""

import hashlib
import os
import stat
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nvgraft.apply.targets import open_in_root
from nvgraft.system.mountinfo import parse_mountinfo
from nvgraft_cli.lab.ground.bundles import member
from nvgraft_cli.lab.lessons import systemd
from nvgraft_cli.simulate.standins import data
from nvgraft_specs.models.host import Host

#: How cuda-check begins the line with the library that it has loaded.
LOADED = "its libcuda.so.1: "
_SMI = "nvidia-smi"
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Seen(NamedTuple):
    """A container before its program begins.

    :ivar faults: what is not as the lesson has made it, and makes an answer worthless.
    :ivar libraries: the paths at which it has the node's libcuda.so.1, mounted.
    """

    faults: tuple[str, ...] = ()
    libraries: frozenset[str] = frozenset()


class Originals:
    """The programs of the lesson's images and of the node's driver, as the learner has got them."""

    def __init__(self, host: Host, rootfs: Sequence[str], programs: Sequence[str]) -> None:
        """Read them.

        :param rootfs: the directories of the images.
        :param programs: paths in the images.
        """
        root = host.root.rstrip("/")
        self._programs = tuple(dict.fromkeys(programs))
        self._libraries = [
            root + path for path in host.files if data.library_of(path, host) == data.CUDA
        ]
        found = [_digest_at(directory, path) for directory in rootfs for path in self._programs]
        found += [
            _digest_at("/", root + path) for path in host.files if os.path.basename(path) == _SMI
        ]
        self._digests = frozenset(filter(None, found))

    def look(
        self, pid: int, config: Mapping[str, Any], made: Mapping[str, Any], program: Sequence[str]
    ) -> Seen:
        """Look at a container that the runtime has created.

        :param config: config.json as the runtime has read it; ``made``: as the lesson has made it.
        :param program: what the check is about to run.
        """
        root = f"/proc/{pid}/root"
        place = _find(root, program[0], config)
        replaced = [
            path
            for path in dict.fromkeys((*self._programs, *([place] if place else [])))
            if (found := _digest_at(root, path)) and found not in self._digests
        ]
        faults = [
            f"{path} in the container is to be a program of the lesson or of the driver"
            for path in replaced
        ]
        if systemd.EVERYTHING in systemd.rules(config) and systemd.EVERYTHING not in systemd.rules(
            made
        ):
            faults.append("the container is not to open every device of the node")
        return Seen(tuple(faults), self._mounted(pid))

    def _mounted(self, pid: int) -> frozenset[str]:
        ours = {_identity(path) for path in self._libraries} - {None}
        with open(f"/proc/{pid}/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            points = [mount.point for mount in parse_mountinfo(file.read())]
        return frozenset(point for point in points if _identity(f"/proc/{pid}/root{point}") in ours)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def _find(root: str, name: str, config: Mapping[str, Any]) -> str:
    """Return the path of a program in the container, as execvp finds it; "" if it does not."""
    if "/" in name:
        return name
    entries = [str(entry) for entry in member(config, "process").get("env") or ()]
    search = [entry.partition("=")[2] for entry in entries if entry.startswith("PATH=")]
    for directory in (search[-1] if search else _DEFAULT_PATH).split(":"):
        path = f"{directory}/{name}"
        if _digest_at(root, path):
            return path
    return ""


def _digest_at(root: str, path: str) -> bytes:
    """Return the digest of a program of a root file system; empty if there is none."""
    try:
        directory = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        # Nothing of the learner's is waited for: a named pipe is no program.
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        with open(open_in_root(directory, path, flags, follow=True), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return b""
            return hashlib.file_digest(file, "sha256").digest()
    except OSError:
        return b""
    finally:
        os.close(directory)
