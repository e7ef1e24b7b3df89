"""Stand-ins for the programs that load kernel modules: lsmod, modprobe, rmmod, nvidia-modprobe and
reboot of a simulated node. The node has no kernel of its own; its state is in one file.

Loading the driver anew mends what an upgrade under a loaded module breaks. Loading nvidia_uvm adds
its line to /proc/devices, and lets CUDA work; nvidia-modprobe -c makes its nodes.
"""

import json
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path

from nvgraft_cli.lab.ground import node
from nvgraft_cli.simulate import running, sandbox
from nvgraft_cli.simulate.standins import failures
from nvgraft_specs.documents import read_bytes
from nvgraft_specs.models.host import Device, Host, RegularFile, parse_host

NAMES = ("lsmod", "modprobe", "rmmod", "nvidia-modprobe", "reboot")

#: Module -> the modules that it needs.
_NEEDS = {
    "nvidia": (),
    "nvidia_modeset": ("nvidia",),
    "nvidia_drm": ("nvidia_modeset", "nvidia"),
    "nvidia_uvm": ("nvidia",),
}
_STATE = f"{node.WORK}/modules.json"
#: What NVML says without the module nvidia, and CUDA without nvidia_uvm, whatever nodes there are.
_NOT_LOADED, _UNKNOWN = 9, 999
_UVM_NODES = ("/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")


class ModuleError(Exception):
    """What a program of kernel modules says when it fails."""


class Modules:
    """The kernel modules of the node.

    :ivar loaded: those that are loaded, in the order of lsmod.
    :ivar at_boot: those that the node loads when it is booted.
    """

    def __init__(self, host: Host, loaded: Sequence[str], at_boot: Sequence[str]) -> None:
        self._host = host
        self.loaded = list(loaded)
        self.at_boot = list(at_boot)

    def save(self) -> None:
        """Write the state."""
        Path(_STATE).write_text(json.dumps([self.loaded, self.at_boot]), encoding="ascii")

    def load(self, name: str) -> None:
        """Load a module and those that it needs.

        :raises ModuleError: there is no such module.
        """
        name = _known(name, "modprobe: FATAL: Module {} not found in directory /lib/modules.")
        for needed in (*reversed(_NEEDS[name]), name):
            if needed not in self.loaded:
                self._insert(needed)

    def remove(self, name: str) -> None:
        """Remove a module.

        :raises ModuleError: it is not loaded, or another one needs it.
        """
        name = _known(name, "rmmod: ERROR: Module {} is not currently loaded")
        if name not in self.loaded:
            raise ModuleError(f"rmmod: ERROR: Module {name} is not currently loaded")
        users = [other for other in self.loaded if name in _NEEDS[other]]
        if users:
            raise ModuleError(f"rmmod: ERROR: Module {name} is in use by: {' '.join(users)}")
        self.loaded.remove(name)
        if name == "nvidia":
            Path(failures.PROC_VERSION).unlink(missing_ok=True)
            failures.apply([failures.HostFailure("nvml-init", _NOT_LOADED)], self._host)
        elif name == "nvidia_uvm":
            failures.apply([failures.HostFailure("no-uvm")], self._host)
            failures.change_cuda(self._host, 0, _UNKNOWN)

    def make_nodes(self) -> None:
        """Make the nodes of nvidia_uvm that are missing, or are another device."""
        for path in _UVM_NODES:
            entry = self._host.files.get(path)
            if not isinstance(entry, Device):
                continue
            if os.path.lexists(path):
                if os.lstat(path).st_rdev == os.makedev(*entry.rdev):
                    continue
                os.unlink(path)
            sandbox.make_node(path, stat.S_IFCHR, 0o666, entry.rdev)

    def listing(self) -> list[str]:
        """Return the lines of lsmod."""
        lines = [f"{'Module':<23} {'Size':>7}  Used by"]
        for name in self.loaded:
            users = [other for other in self.loaded if name in _NEEDS[other]]
            lines.append(f"{name:<23} {_SIZES[name]:>7}  {len(users)} {','.join(users)}".rstrip())
        return lines

    def _insert(self, name: str) -> None:
        self.loaded.insert(0, name)
        if name == "nvidia":
            version = self._host.files.get(failures.PROC_VERSION)
            if isinstance(version, RegularFile) and version.content:
                Path(failures.PROC_VERSION).write_text(version.content, encoding="utf-8")
            failures.clear(self._host)
            failures.change_cuda(self._host, 0, _UNKNOWN)  # nvidia_uvm is not loaded yet
        elif name == "nvidia_uvm":
            self._register_uvm()
            failures.change_cuda(self._host, _UNKNOWN, 0)

    def _register_uvm(self) -> None:
        """Add the line of nvidia-uvm to /proc/devices, in place: other mounts show the file."""
        major = self._host.char_majors.get("nvidia-uvm")
        with open("/proc/devices", "r+", encoding="ascii") as file:
            text = file.read()
            if major is not None and not re.search(r"^ *[0-9]+ nvidia-uvm$", text, re.MULTILINE):
                heading, _, rest = text.partition("\n")
                file.seek(0)
                file.write(f"{heading}\n{major:3d} nvidia-uvm\n{rest}")


_SIZES = {"nvidia": 62771200, "nvidia_modeset": 1355776, "nvidia_drm": 94208, "nvidia_uvm": 1789952}


def prepare(host: Host, failed: Sequence[str]) -> None:
    """Begin with all modules loaded, or without nvidia_uvm where it has failed."""
    loaded = [] if "no-uvm" in failed else ["nvidia_uvm"]
    loaded += ["nvidia_drm", "nvidia_modeset", "nvidia"]
    Modules(host, loaded, loaded).save()
    if "nvidia_uvm" not in loaded:
        failures.change_cuda(host, 0, _UNKNOWN)


def main(argv: Sequence[str]) -> int:
    """Be one of :data:`NAMES`; return the exit code."""
    program = os.path.basename(argv[0])
    host = parse_host(read_bytes(running.DOCUMENT), running.DOCUMENT)
    modules = Modules(host, *json.loads(Path(_STATE).read_text(encoding="ascii")))
    options = [word for word in argv[1:] if word.startswith("-")]
    words = [word for word in argv[1:] if not word.startswith("-")]
    try:
        _act(program, modules, options, words)
    except ModuleError as error:
        print(error)
        return 1
    finally:
        modules.save()
    return 0


def _act(program: str, modules: Modules, options: list[str], words: list[str]) -> None:
    if program == "lsmod":
        print("\n".join(modules.listing()))
    elif program == "reboot":
        for name in list(modules.loaded):
            modules.remove(name)
        for name in reversed(modules.at_boot):
            modules.load(name)
        if "nvidia_uvm" in modules.loaded:
            modules.make_nodes()
        print("The node is simulated: its driver is loaded anew, as after a reboot.")
    elif program == "nvidia-modprobe":
        modules.load("nvidia_uvm" if "-u" in options else "nvidia")
        if any(option.startswith("-c") for option in options):
            modules.make_nodes()
    elif program == "rmmod" or {"-r", "--remove"} & set(options):
        for name in words:
            modules.remove(name)
    else:
        for name in words:
            modules.load(name)


def _known(name: str, message: str) -> str:
    found = name.replace("-", "_")
    if found not in _NEEDS:
        raise ModuleError(message.format(name))
    return found
