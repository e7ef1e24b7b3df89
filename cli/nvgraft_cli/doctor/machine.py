"""What the node alone can tell, and no snapshot: its own files, and what its kernel would let a hook do that is started from here.

The kernel is asked with the caller's own rights, before the command is confined; whether the answer is well is the checks' business.
"""

import argparse
import os
import shutil
from dataclasses import dataclass, replace

from nvgraft.apply import bpf
from nvgraft.apply.cgroup import DeviceRule, choose, device_mounts, open_mounts
from nvgraft.base.errors import Refusal
from nvgraft.base.files import reason
from nvgraft.system import privileges, syscalls, userns
from nvgraft.system.mountinfo import Mount, mounts_of_type
from nvgraft_specs import names

#: Where engines create the cgroup of a container, on either version: anywhere but in the root.
_SOMEWHERE = "/container"

#: r0 = 0; exit: what a runtime's device program ends with.
_DENY = bytes((0xB7, 0, 0, 0, 0, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0))
_NVIDIACTL = DeviceRule("c", 195, 255, "rw")


@dataclass(frozen=True, slots=True)
class Machine:
    """The node.

    :ivar root: the directory that its files are below; "" for the file system's own root.
    :ivar mounts: the mounts that can hold device rules and can be reached.
    :ivar unseen: why they could not be looked at.
    :ivar uid: who asks; the node's hooks run as root.
    :ivar powerless: why a hook that root starts from here would not even begin.
    :ivar nested: this is a user namespace other than the first one.
    :ivar hardened: the kernel does not show what the device programs really are (sysctl net.core.bpf_jit_harden is 2).
    :ivar filter_error: what the engine's own way to list and load device programs has ended with, "" where both went well; None
        where it was not gone: cgroup v1, or a caller who is not root.
    """

    root: str = ""
    mounts: tuple[Mount, ...] = ()
    unseen: str = ""
    uid: int = 0
    powerless: str = ""
    nested: bool = False
    hardened: bool = False
    filter_error: str | None = None

    def device_cgroup(self) -> tuple[int, Mount]:
        """Return the version of the cgroups that decide about a container's devices, and where they are mounted.

        :raises ValueError: the engine's own words for what stops it from finding them.
        """
        version, _, mount = choose(_SOMEWHERE, _SOMEWHERE, self.mounts)
        return version, mount

    def text(self, path: str) -> str | None:
        """Return the text of a file of the node; None where there is none.

        :raises OSError: when it cannot be read.
        :raises ValueError: when it is no text.
        """
        try:
            with open(self.root + path, encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def listdir(self, path: str) -> list[str]:
        """Return the names in a directory of the node, sorted; none where there is no such directory."""
        try:
            return sorted(os.listdir(self.root + path))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def program(self, name: str) -> str | None:
        """Return the path of a program, which ``name`` is or which the search path of engines leads to; None where nothing can be run."""
        if "/" in name:
            return name if os.access(self.root + name, os.X_OK) else None
        found = shutil.which(
            name, path=":".join(self.root + directory for directory in names.DEFAULT_PATH)
        )
        return None if found is None else found[len(self.root) :]


#: What was found out before the command was confined.
_looked: list[Machine] = []


def look_first(args: argparse.Namespace) -> None:
    """For ``open_first``: look at this machine, if it is the host."""
    if args.host is None:
        _looked[:] = [look()]


def this_machine() -> Machine:
    """Return this machine as it was before the command was confined, or, where it is not, as it is."""
    return _looked[0] if _looked else look()


def look() -> Machine:
    """Look at this machine. Nothing is changed: a device program that is loaded for the test is attached to nothing."""
    mounts: tuple[Mount, ...] = ()
    unseen = powerless = ""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            reachable = open_mounts(device_mounts(mounts_of_type(file.read(), "cgroup", "cgroup2")))
        for fd in reachable.values():
            syscalls.close(fd)
        mounts = tuple(reachable)
    except (OSError, ValueError) as error:
        unseen = f"the mounts of cgroups cannot be looked at: {reason(error) if isinstance(error, OSError) else error}"
    uid = os.geteuid()
    if uid == 0:
        try:
            privileges.demand()
        except Refusal as refusal:
            powerless = refusal.reference_line()
    machine = Machine("", mounts, unseen, uid, powerless, userns.inside(), _hardened())
    return replace(machine, filter_error=_try_filter(machine))


def _hardened() -> bool:
    try:
        with open("/proc/sys/net/core/bpf_jit_harden", encoding="ascii") as file:
            return file.read().strip() == "2"
    except OSError:
        return False  # not for everybody to read, and not on every kernel


def _try_filter(machine: Machine) -> str | None:
    try:
        version, mount = machine.device_cgroup()
    except ValueError:
        return None
    if version == 1 or machine.uid != 0 or machine.powerless:
        return None
    try:
        fd = os.open(mount.point, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            bpf.query(fd)
        finally:
            os.close(fd)
        syscalls.close(bpf.load(bpf.allow_code((_NVIDIACTL,)) + _DENY))
    except bpf.ProgramError as error:
        return str(error)
    except OSError as error:
        return f"unable to open the cgroup path: open {mount.point}: {reason(error)}"
    return ""
