"""Facts about this node that no snapshot records: its files, and what its kernel lets a hook do.

The kernel is asked with the caller's own rights, before the command is confined. The checks judge
the answers.
"""

import argparse
import os
import re
import shutil
from dataclasses import dataclass, replace

from nvgraft.apply import bpf
from nvgraft.apply.bpf_verdict import look_at
from nvgraft.apply.cgroup import choose, device_mounts, open_mounts
from nvgraft.base.errors import Refusal
from nvgraft.base.files import open_file, read_fd, reason
from nvgraft.plan.actions import AllowDevice, Why
from nvgraft.system import privileges, syscalls, userns
from nvgraft.system.mountinfo import Mount, mounts_of_type
from nvgraft_cli.doctor.gpu_health import GpuHealth, ask_health
from nvgraft_cli.doctor.patient import TEXT_LIMIT
from nvgraft_cli.shell.errors import InputError
from nvgraft_cli.shell.output import is_simulated_host
from nvgraft_specs import names

#: A container's cgroup as an engine creates it, in either version: anywhere but in the root.
_CONTAINER_CGROUP = "/container"

#: r0 = 0; exit: the end of every device program of a runtime.
_DENY = bytes((0xB7, 0, 0, 0, 0, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0))
_NVIDIACTL = AllowDevice(195, 255, Why("", "nvidiactl", "control device"))

#: An error of a GPU in the kernel's log, and what tells it from others: PCI address and number.
_XID = re.compile(rb"NVRM: Xid (\(PCI:[0-9a-f:.]+\): [0-9]+)[^\n]*")
#: Records of the kernel's log that are read at most, and the bytes of one.
_LOG_RECORDS, _LOG_RECORD = 1 << 17, 1 << 16

#: The kernel's PROC_PID_INIT_INO.
_FIRST_PID_NAMESPACE = "pid:[4026531836]"


@dataclass(frozen=True, slots=True)
class Machine:
    """This node.

    :ivar root: the directory that holds its files; "" for the root of the file system.
    :ivar mounts: the reachable mounts that can hold device rules.
    :ivar mounts_error: why the mounts could not be read.
    :ivar uid: the caller's user id; the node's hooks run as root.
    :ivar privilege_error: why a hook that root starts here would stop before its first step.
    :ivar in_user_namespace: whether this is a user namespace other than the initial one.
    :ivar jit_hardened: whether the kernel hides the real device programs (the sysctl
        net.core.bpf_jit_harden is 2).
    :ivar filter_error: the error of listing and loading device programs as the engine does it, ""
        where both succeed; None where it was not tried: cgroup v1, or a caller who is not root.
    :ivar denied: what the device programs of the cgroups above all containers of this node deny, in
        the hook's words; "" where they deny nothing, or were not asked.
    :ivar shows_processes: whether /proc shows the node's processes, not those of a container.
    :ivar health: what NVML says of each GPU beside what containers need; None if it was not asked.
    :ivar xids: the driver's messages about GPU errors in the kernel's log, the last of each kind.
    """

    root: str = ""
    mounts: tuple[Mount, ...] = ()
    mounts_error: str = ""
    uid: int = 0
    privilege_error: str = ""
    in_user_namespace: bool = False
    jit_hardened: bool = False
    filter_error: str | None = None
    denied: str = ""
    shows_processes: bool = False
    health: tuple[GpuHealth, ...] | None = None
    xids: tuple[str, ...] = ()

    def device_cgroup(self) -> tuple[int, Mount]:
        """Return the version and the mount of the cgroups that decide about a container's devices.

        :raises ValueError: in the engine's words, when it would not find them.
        """
        version, _, mount = choose(_CONTAINER_CGROUP, _CONTAINER_CGROUP, self.mounts)
        return version, mount

    def text(self, path: str) -> str | None:
        """Return the text of one of the node's files, or None if it does not exist.

        :raises OSError: the file cannot be read, is not a regular file, or is too large.
        :raises ValueError: the file is not UTF-8 text.
        """
        try:
            fd = open_file(self.root + path)
        except FileNotFoundError:
            return None
        try:
            return read_fd(fd, TEXT_LIMIT).decode()
        finally:
            os.close(fd)

    def listdir(self, path: str) -> list[str]:
        """Return the sorted names in a directory of the node, none if it is not a directory."""
        try:
            return sorted(os.listdir(self.root + path))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def program(self, name: str) -> str | None:
        """Return the path of an executable, or None if there is none.

        :param name: a path, or a name to look up in the engines' search path.
        """
        if "/" in name:
            return name if os.access(self.root + name, os.X_OK) else None
        directories = [self.root + directory for directory in names.DEFAULT_PATH]
        path = shutil.which(name, path=":".join(directories))
        return None if path is None else path[len(self.root) :]


#: This machine, as it was before the command was confined.
_probed: list[Machine] = []


def probe_first(args: argparse.Namespace) -> None:
    """Probe this machine, which is the host. For ``open_first``: before the command is confined."""
    from nvgraft_cli.case.hosts import open_host

    try:
        health = ask_health(open_host(None, args.config))
    except (Refusal, InputError):
        health = None  # the command itself says why the host cannot be read
    _probed[:] = [replace(probe(), health=health)]


def this_machine() -> Machine:
    """Return this machine as it was before the command was confined, or else as it is now."""
    return _probed[0] if _probed else probe()


def probe() -> Machine:
    """Probe this machine. Nothing changes: the device program of the test is attached nowhere."""
    mounts: tuple[Mount, ...] = ()
    mounts_error = privilege_error = ""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            reachable = open_mounts(device_mounts(mounts_of_type(file.read(), "cgroup", "cgroup2")))
        for fd in reachable.values():
            syscalls.close(fd)
        mounts = tuple(reachable)
    except (OSError, ValueError) as error:
        words = reason(error) if isinstance(error, OSError) else str(error)
        mounts_error = f"the cgroup mounts cannot be read: {words}"
    uid = os.geteuid()
    if uid == 0:
        try:
            privileges.demand()
        except Refusal as refusal:
            privilege_error = refusal.reference_line()
    machine = Machine(
        mounts=mounts,
        mounts_error=mounts_error,
        uid=uid,
        privilege_error=privilege_error,
        in_user_namespace=userns.inside(),
        jit_hardened=_jit_hardened(),
        # A simulated host has a pid namespace with all of its processes.
        shows_processes=_in_first_pid_namespace() or is_simulated_host(),
        xids=read_xids(),
    )
    machine = replace(machine, filter_error=_try_filter(machine))
    return replace(machine, denied=_look_above(machine)) if machine.filter_error == "" else machine


def read_xids(path: str = "/dev/kmsg") -> tuple[str, ...]:
    """Return the driver's messages about GPU errors in the kernel's log, the last one of each GPU
    and number; none where the log may not be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ()
    found: dict[bytes, str] = {}
    try:
        for _ in range(_LOG_RECORDS):
            try:
                records = os.read(descriptor, _LOG_RECORD)
            except BrokenPipeError:
                continue  # the oldest records were overwritten
            for match in _XID.finditer(records):
                found[match[1]] = match[0].decode("utf-8", "replace")
            if not records:
                break
    except OSError:
        pass  # the end of the log
    finally:
        os.close(descriptor)
    return tuple(found.values())


def _in_first_pid_namespace() -> bool:
    try:
        return os.readlink("/proc/self/ns/pid") == _FIRST_PID_NAMESPACE
    except OSError:
        return False


def _jit_hardened() -> bool:
    try:
        with open("/proc/sys/net/core/bpf_jit_harden", encoding="ascii") as file:
            return file.read().strip() == "2"
    except OSError:
        return False  # not every user may read it, and not every kernel has it


def _look_above(machine: Machine) -> str:
    """Return what the device programs deny that decide about every container of this node.

    On the node itself there are none. In a container they are its own.
    """
    point = machine.device_cgroup()[1].point
    try:
        fd = os.open(point, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            programs = bpf.query(fd, effective=True)[1]
        finally:
            os.close(fd)
    except (OSError, bpf.ProgramError):
        return ""
    found = look_at(programs, (_NVIDIACTL,), point + _CONTAINER_CGROUP)
    return found[0].message if found else ""


def _try_filter(machine: Machine) -> str | None:
    """List and load device programs as the engine does; return the error, as ``filter_error``."""
    try:
        version, mount = machine.device_cgroup()
    except ValueError:
        return None
    if version == 1 or machine.uid != 0 or machine.privilege_error:
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
