"""What a specification contains: the devices of a mode, on this host or on a recorded one, and the
hooks that make them usable.
"""

import argparse
import os
from collections.abc import Iterator
from functools import cached_property

from nvgraft.base.errors import Refusal
from nvgraft.cdi import platform
from nvgraft.cdi.checking import KIND_FIX, is_kind
from nvgraft.cdi.classes import (
    ClassDevices,
    gated_devices,
    imex_channels,
    management_devices,
    tegra_devices,
    wsl_devices,
)
from nvgraft.cdi.discovery import CdiFacts, InstalledDriver, discover, live_facts, recorded_facts
from nvgraft.cdi.edits import CdiSpec
from nvgraft.cdi.specification import HookProgram, class_spec, named_devices
from nvgraft.formats.tree import Tree, open_tree_at
from nvgraft.host.components import Host
from nvgraft.host.graphics_files import FileFinder
from nvgraft.host.snapshot import OFFLINE_PATH
from nvgraft.request.config import Config
from nvgraft_cli.case.hosts import open_host
from nvgraft_cli.cdi import DEFAULT_STRATEGIES, HOOK, MODES
from nvgraft_cli.cdi.roots import with_dev_root
from nvgraft_cli.shell.errors import InputError
from nvgraft_cli.shell.installed import default_prefix
from nvgraft_specs import cdi_hooks

#: Mode -> the variable of the gated component whose devices it has.
_GATES = {
    "gds": "NVIDIA_GDS",
    "mofed": "NVIDIA_MOFED",
    "gdrcopy": "NVIDIA_GDRCOPY",
    "nvswitch": "NVIDIA_NVSWITCH",
}

#: Where this machine has no device of a mode: what to look at.
_HINTS = {
    "nvml": "no GPU or MIG device has its nodes: check nvidia-smi -L and ls -l {}/dev/nvidia*",
    "management": "there is no device node of the driver: check ls -l {}/dev/nvidia*",
    "imex": "there is no channel: check ls -l {}/dev/nvidia-caps-imex-channels",
}
_NO_COMPONENT = "the component's kernel module is not loaded, or has not made its nodes in {}/dev"


class RecordedHost:
    """A host of a ``nvgraft.host/1`` document. Its device nodes are those of its own /dev."""

    def __init__(self, name: str, config_path: str | None, dev_root: str | None) -> None:
        side = open_host(name, config_path)
        side.require_gpus()
        self.label = side.label
        self.config = side.config
        self.host: Host = side.facts
        self.root = self.host.root
        self.dev_root = dev_root or "/"
        self.facts: CdiFacts | None = recorded_facts(side.document or {})
        self.search_path = OFFLINE_PATH
        self.kernel = self.facts.kernel if self.facts is not None else ""
        host = self.host
        self.finder = self.files = FileFinder(host.tree, host.machine, lambda: host.entries)
        self.tree: Tree = host.tree


class ThisHost:
    """This machine, of which only what is needed is read.

    :param driver_root: overrides that of ``config``.
    :param dev_root: the root of device nodes; by default the driver root, as the reference has it.
    :raises Refusal: a root is missing, or PATH is.
    """

    def __init__(self, config: Config, driver_root: str | None, dev_root: str | None) -> None:
        from nvgraft.host.inventory import path_missing
        from nvgraft.host.places import search_path

        if driver_root is not None:
            config = Config(**{**vars(config), "cli_root": driver_root})
        path = search_path(os.environ, config)
        if path is None:
            raise path_missing()
        self.label = os.uname().nodename
        self.root = config.cli_root or "/"
        self.dev_root = dev_root or self.root
        self.search_path = path
        self.kernel = os.uname().release
        self.config = config

    @cached_property
    def host(self) -> Host:
        """The host with the driver's report.

        :raises Refusal: there is no driver, or it reports an error.
        """
        from nvgraft.host.live import read_live_host

        # With its loader cache, which the kept inventory lacks.
        return read_live_host(self.config, in_root=False)

    @property
    def facts(self) -> CdiFacts:
        """The facts that are not files of the driver root."""
        return live_facts(self.host)

    @cached_property
    def finder(self) -> FileFinder:
        """Finds files and device nodes, after the driver was asked.

        :raises Refusal: as ``host``, or a root is missing.
        """
        host = self.host
        return FileFinder(host.tree, host.machine, lambda: host.entries, self._dev_tree())

    @cached_property
    def files(self) -> FileFinder:
        """Finds files and device nodes without asking the driver.

        :raises Refusal: a root is missing.
        """
        from nvgraft.host.live import file_finder

        if not os.path.isdir(self.root):
            raise _no_root("driver", self.root)
        return file_finder(self.config, self._dev_tree())

    @property
    def tree(self) -> Tree:
        """The host's own root."""
        return open_tree_at("/")

    def _dev_tree(self) -> Tree | None:
        if self.dev_root.rstrip("/") == self.root.rstrip("/"):
            return None
        try:
            return open_tree_at(self.dev_root)
        except OSError:
            raise _no_root("dev", self.dev_root) from None


def _no_root(which: str, path: str) -> Refusal:
    return Refusal(
        "initialization",
        f"open failed: {path}: no such file or directory",
        f"--{which}-root must name a directory of this host",
    )


class SpecContent:
    """What the command line asks a specification to contain.

    :param config: what config.toml says about hooks.
    :raises InputError: engines would refuse the specification.
    """

    def __init__(self, args: argparse.Namespace, config: Config) -> None:
        self._mode: str = args.mode
        self._strategies = args.device_name_strategy or DEFAULT_STRATEGIES
        self._vendor: str | None = args.vendor
        self._class: str | None = getattr(args, "class")
        self._disabled = args.disable_hook or ()
        self._all_device = not args.no_all_device
        own = args.hooks == "nvgraft"
        path = args.nvidia_cdi_hook_path or (
            f"{default_prefix()}/bin/{cdi_hooks.PROGRAM}" if own else HOOK
        )
        if not os.path.isabs(path):
            raise InputError(
                f"--nvidia-cdi-hook-path: {path} is not an absolute path | engines refuse such"
                " hooks: name the program from / on"
            )
        self._program = HookProgram(
            path,
            together=own and config.cdi_hooks == "one",
            config=os.path.abspath(args.config) if own and args.config else "",
        )

    def specification(self, host: RecordedHost | ThisHost) -> tuple[CdiSpec, list[str]]:
        """Return the specification of a host, and a line for each device that it lacks.

        :raises Refusal: the host has no driver or no device.
        :raises InputError: engines would refuse the kind.
        """
        mode = self._mode
        if mode == "auto":
            mode = _mode_of(host)
        found, notes = self._find(mode, host)
        if not found.devices:
            root = host.dev_root.rstrip("/")
            hint = _HINTS.get(mode, _NO_COMPONENT).format(root)
            if root:
                hint += ", or name the root of the nodes: --dev-root /"
            for note in notes:
                hint += f"; {note}"
            raise Refusal("detection", "no devices", hint)
        written = class_spec(
            self._kind(mode),
            {
                device: contents.without_steps(self._disabled)
                for device, contents in found.devices.items()
            },
            found.common.without_steps(self._disabled),
            self._program,
            all_device=self._all_device,
        )
        if isinstance(host, ThisHost):
            notes = [*notes, *self._missing_program(written)]
        return with_dev_root(written, host.dev_root), notes

    def _missing_program(self, spec: CdiSpec) -> Iterator[str]:
        path = self._program.path
        parts = (spec.edits, *(device.edits for device in spec.devices))
        if any(part.hooks for part in parts) and not os.path.exists(path):
            yield (
                f"the hooks run {path}, which is not there: no container will start"
                " | install it, or write the specification with --hooks nvgraft"
            )

    def _kind(self, mode: str) -> str:
        vendor, _, name = MODES[mode].partition("/")
        kind = f"{self._vendor or vendor}/{self._class or name}"
        if not is_kind(kind):
            raise InputError(f"invalid kind {kind!r} | {KIND_FIX}")
        return kind

    def _find(self, mode: str, host: RecordedHost | ThisHost) -> tuple[ClassDevices, list[str]]:
        if mode == "nvml":
            found = discover(host.host, host.search_path, host.facts, host.finder)
            devices = ClassDevices(named_devices(found, self._strategies), found.common)
            return devices, [*found.missing]
        return self._without_nvml(mode, host), []

    def _without_nvml(self, mode: str, host: RecordedHost | ThisHost) -> ClassDevices:
        finder, root = host.files, host.root
        if mode in _GATES:
            return gated_devices(finder, root, _GATES[mode])
        if mode == "imex":
            return imex_channels(finder)
        if mode == "management":
            version = finder.driver_version() or "*.*"
            return management_devices(
                finder, InstalledDriver(finder, root, version, host.search_path, host.kernel)
            )
        if mode == "wsl":
            return wsl_devices(finder, root)
        return tegra_devices(finder, root, host.tree, host.config, self._strategies)


def _mode_of(host: RecordedHost | ThisHost) -> str:
    """Return the mode of a host's kind."""
    kind = platform.platform(host.files, lambda: [gpu.model for gpu in host.host.report.gpus])
    return {platform.TEGRA: "csv", platform.WSL: "wsl"}.get(kind, "nvml")
