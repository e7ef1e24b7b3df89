"""Load the driver's kernel modules and make its device nodes, if load-kmods is set (reference
behaviour 4.6).

Only this module runs the host's modprobe, in a child that may load modules, make nodes and do
nothing else (SECURITY R6). It runs before anything of the container is touched. A failure here does
not end the hook: it becomes a finding, and a container that needs the module or node is refused
later, when it is looked up.

Existing nodes are not changed, even if their owner or mode differ from what the driver prescribes:
an administrator may have set them.
"""

from __future__ import annotations

import errno
import os
import posixpath

from nvgraft.base._os import signal, stat
from nvgraft.base.files import open_file, read_fd, readable, reason
from nvgraft.base.finding import Finding
from nvgraft.base.values import Value
from nvgraft.host.inventory import parse_majors
from nvgraft.system import child, privileges, syscalls, userns
from nvgraft_specs.catalogue import CONTROL_MINOR, MODESET_MINOR, NVIDIA_MAJOR

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

#: Seconds for each step of the child; the longest is one run of modprobe.
TIMEOUT = 10.0

#: In the order of loading: the others depend on the first.
_MODULES = ("nvidia", "nvidia-uvm", "nvidia-modeset")
_PROGRAMS = ("/sbin/modprobe", "/usr/sbin/modprobe", "/bin/modprobe", "/usr/bin/modprobe")
_SETTING = "or set load-kmods = false under [nvidia-container-cli] in config.toml"
_DONE = "done"
_SYS = "/sys"
_TEXT_LIMIT = 1 << 18


class _KernelNode(Value):
    """A character device that should exist; ``major`` is None if the kernel does not list its
    driver.
    """

    def __init__(
        self, path: str, major: int | None, minor: int, uid: int, gid: int, mode: int
    ) -> None:
        self.path = path
        self.major = major
        self.minor = minor
        self.uid = uid
        self.gid = gid
        self.mode = mode


def load_modules(
    root: str, imex_channels: Sequence[int], create_imex_channels: bool
) -> list[Finding]:
    """Load the driver's missing modules, make its missing nodes in the driver root ``root``, and
    return what failed.

    No process is started if nothing is missing, or in a user namespace, where neither is possible.

    :param imex_channels: the requested channels; their nodes are made if ``create_imex_channels``.
    """
    if userns.inside() or userns.groups_are_fixed():
        return []
    channels = tuple(imex_channels) if create_imex_channels else ()
    gpus = _gpu_count()
    absent = [
        module
        for module in _MODULES
        if not os.path.exists(f"{_SYS}/module/{module.replace('-', '_')}")
    ]
    inside = root.rstrip("/")
    if not absent and all(
        _is_right(inside, node)
        for module in _MODULES
        for node in _nodes(inside, module, gpus, channels)
    ):
        return []
    try:
        return _in_child(lambda tell: _work(tell, root, absent, gpus, channels))
    except OSError as error:
        return [
            _finding(
                f"kernel modules were not loaded and device nodes were not made: {error}",
                f"run the hook as root, {_SETTING}",
            )
        ]


def _finding(message: str, hint: str) -> Finding:
    return Finding("load-kmods", "warning", message, hint)


def _gpu_count() -> int:
    """Count NVIDIA's display controllers on the PCI bus, whichever driver they have."""
    devices = [f"{_SYS}/bus/pci/devices/{name}" for name in _names(f"{_SYS}/bus/pci/devices")]
    return sum(
        _text(f"{path}/vendor").strip() == "0x10de" and _text(f"{path}/class").startswith("0x03")
        for path in devices
    )


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def _text(path: str) -> str:
    """Return a small text file of the kernel, or "" if it cannot be read."""
    try:
        fd = open_file(path)
    except OSError:
        return ""
    try:
        return read_fd(fd, _TEXT_LIMIT).decode("utf-8", "surrogateescape")
    except OSError:
        return ""
    finally:
        os.close(fd)


def _rules(path: str) -> dict[str, int]:
    """Return the numbers in a file of ``name: number`` lines, in which the driver prescribes its
    nodes.
    """
    pairs = (line.partition(":") for line in _text(path).splitlines())
    return {name.strip(): int(value) for name, _, value in pairs if value.strip().isdecimal()}


def _nodes(root: str, module: str, gpus: int, channels: tuple[int, ...]) -> list[_KernelNode]:
    """Return, in the reference's order, the nodes of ``module`` that the driver lets other programs
    make.
    """
    majors = parse_majors(_text(f"{root}/proc/devices"))
    nodes: list[tuple[str, int | None, int]] = []
    capabilities: list[_KernelNode] = []
    if module == "nvidia":
        nodes.append(("/dev/nvidiactl", NVIDIA_MAJOR, CONTROL_MINOR))
        nodes += [(f"/dev/nvidia{minor}", NVIDIA_MAJOR, minor) for minor in range(gpus)]
        capabilities = list(_capability_nodes(root, majors.get("nvidia-caps")))
        major = majors.get("nvidia-caps-imex-channels")
        nodes += [
            (f"/dev/nvidia-caps-imex-channels/channel{channel}", major, channel)
            for channel in channels
        ]
    elif module == "nvidia-uvm":
        nodes += [
            ("/dev/nvidia-uvm", majors.get(module), 0),
            ("/dev/nvidia-uvm-tools", majors.get(module), 1),
        ]
    else:
        nodes.append(("/dev/nvidia-modeset", NVIDIA_MAJOR, MODESET_MINOR))
    rules = _rules(f"{root}/proc/driver/nvidia/params")
    if rules.get("ModifyDeviceFiles") == 0:
        return capabilities
    uid, gid, mode = (
        rules.get("DeviceFileUID", 0),
        rules.get("DeviceFileGID", 0),
        rules.get("DeviceFileMode", 0o666),
    )
    return [_KernelNode(*node, uid, gid, stat.S_IMODE(mode)) for node in nodes] + capabilities


def _capability_nodes(root: str, major: int | None) -> Iterator[_KernelNode]:
    """Yield the nodes of the MIG capabilities that exist now.

    The minors are read from the access files: mig-minors has them too, in 4,000 lines for all
    capabilities that could exist.
    """
    base = f"{root}/proc/driver/nvidia/capabilities"
    paths = [f"{base}/mig/config", f"{base}/mig/monitor"]
    for gpu in (name for name in _names(base) if name.startswith("gpu")):
        for instance in (f"{base}/{gpu}/mig/{name}" for name in _names(f"{base}/{gpu}/mig")):
            paths += [
                f"{instance}/access",
                *(
                    f"{instance}/{name}/access"
                    for name in _names(instance)
                    if name.startswith("ci")
                ),
            ]
    for path in paths:
        rules = _rules(path)
        if "DeviceFileMinor" in rules and rules.get("DeviceFileModify") != 0:
            minor, mode = rules["DeviceFileMinor"], rules.get("DeviceFileMode", 0o444)
            yield _KernelNode(
                f"/dev/nvidia-caps/nvidia-cap{minor}", major, minor, 0, 0, stat.S_IMODE(mode)
            )


def _is_right(root: str, node: _KernelNode) -> bool:
    try:
        status = os.stat(root + node.path)
    except OSError:
        return False
    rdev = (os.major(status.st_rdev), os.minor(status.st_rdev))
    return stat.S_ISCHR(status.st_mode) and rdev == (node.major, node.minor)


def _in_child(work: Callable[[Callable[[str], None]], None]) -> list[Finding]:
    """Run ``work`` in a child and return its findings.

    The child writes lines. ``message TAB hint`` is a finding; other lines name the current step,
    which may last TIMEOUT seconds.
    """

    def answer(writer: int) -> None:
        def tell(line: str) -> None:
            os.write(writer, (line + "\n").encode("utf-8", "surrogateescape"))

        work(tell)
        tell(_DONE)

    started = child.start(answer)
    try:
        return _listen(started.output)
    finally:
        started.end()


def _listen(reader: int) -> list[Finding]:
    output = b""
    cause = f"not done after {TIMEOUT:g} seconds: the driver hangs, see dmesg"
    while readable(reader, TIMEOUT):
        chunk = os.read(reader, 1 << 16)
        if not chunk:
            cause = "ended before it was done"
            break
        output += chunk
    findings = []
    doing = "starting"
    for line in output.decode("utf-8", "surrogateescape").split("\n")[:-1]:
        message, tab, hint = line.partition("\t")
        if tab:
            findings.append(_finding(message, hint))
        else:
            doing = message
    if doing != _DONE:
        findings.append(
            _finding(
                f"load-kmods: {doing}: {cause}", f"load the driver's modules at boot, {_SETTING}"
            )
        )
    return findings


# ---- the functions below run only in the child


def _work(
    tell: Callable[[str], None],
    root: str,
    absent: Sequence[str],
    gpus: int,
    channels: tuple[int, ...],
) -> None:
    tell("giving up privileges")
    try:
        _confine(root)
    except OSError as error:
        hint = f"set root in config.toml to the driver root, and run the hook as root, {_SETTING}"
        tell(f"kernel modules were not loaded: {root}: {reason(error)}\t{hint}")
        return
    prefix = root.rstrip("/")
    for module in _MODULES:
        tell(f"modprobe {module}")
        if module in absent and (problem := _modprobe(module)):
            by_hand = f"modprobe {module}" if not prefix else f"chroot {prefix} modprobe {module}"
            tell(
                f"the kernel module {module} was not loaded: {problem}\trun {by_hand} on"
                f" the host to see why, {_SETTING}"
            )
            if module == _MODULES[0]:
                return
            continue
        tell(f"nodes of {module}")
        for node in _nodes("", module, gpus, channels):
            if not _is_right("", node) and (problem := _make(node)):
                command = (
                    f"mknod -m {node.mode:o} {prefix}{node.path} c"
                    f" {'MAJOR' if node.major is None else node.major} {node.minor}"
                )
                tell(
                    f"the device node {prefix}{node.path} is missing or wrong:"
                    f" {problem}\tremove a wrong node and run {command}, {_SETTING}"
                )


def _confine(root: str) -> None:
    """Enter the driver root and keep two capabilities, for this process and for the programs that
    it executes.
    """
    child.silence()
    os.umask(0)
    if root != "/":
        os.chroot(root)
    os.chdir("/")
    privileges.keep(privileges.MODULES)
    syscalls.set_no_new_privs()


def _modprobe(module: str) -> str:
    """Run modprobe and return why it failed, or "". It cannot outlive this process, the init of its
    PID namespace.
    """
    program = next((path for path in _PROGRAMS if os.path.exists(path)), None)
    if program is None:
        return f"there is no {', '.join(_PROGRAMS)}"
    pid = os.fork()
    if pid == 0:
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            os.execve(program, [program, module], {})  # noqa: S606 - no shell is the point
        finally:
            os._exit(127)
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        return f"{program} was ended by signal {os.WTERMSIG(status)}"
    code = os.WEXITSTATUS(status)
    return f"{program} failed with exit code {code}" if code else ""


def _make(node: _KernelNode) -> str:
    """Make ``node`` and return what went wrong, or ""."""
    if node.major is None:
        return "/proc/devices does not list its driver"
    directory = posixpath.dirname(node.path)
    try:
        if not os.path.isdir(directory):
            os.mkdir(directory, 0o755)
        os.mknod(node.path, stat.S_IFCHR | node.mode, os.makedev(node.major, node.minor))
        if (node.uid, node.gid) != (0, 0):
            os.chown(node.path, node.uid, node.gid)
    except FileExistsError:
        # Another process may have made the node meanwhile. Another file in its place is not
        # removed.
        if _is_right("", node):
            return ""
        return f"it is not a character device {node.major}:{node.minor}"
    except OSError as error:
        failure = f"owner {node.uid}:{node.gid} not set" if _is_right("", node) else "not made"
        return f"{failure}: {reason(error)} ({errno.errorcode.get(error.errno or 0)})"
    return ""
