"""Start a container through nvgraft-runtime, from documents alone: what the hook then gets to see.

The wrapper's own code rewrites config.json (:mod:`nvgraft.wrapper.rewrite`); nothing is written.
"""

import json
import os
import posixpath
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from nvgraft.base.errors import Refusal
from nvgraft.base.finding import Finding
from nvgraft.cdi.discovery import CdiFacts, live_facts, recorded_facts
from nvgraft.cdi.edits import CdiEdits, Generated, links_step
from nvgraft.cdi.generation import CdiRequest, CdiSource
from nvgraft.cdi.specification import HookProgram
from nvgraft.host.components import Host
from nvgraft.host.snapshot import OFFLINE_PATH
from nvgraft.wrapper.host_look import SourceLook
from nvgraft.wrapper.rewrite import rewrite
from nvgraft_cli.case.bundle import ContainerSide
from nvgraft_cli.case.handover import HOOK_IS
from nvgraft_cli.case.hosts import HostSide
from nvgraft_specs import cdi_hooks, names

if TYPE_CHECKING:
    from nvgraft.cdi.classes import ClassDevices
    from nvgraft.wrapper.additions import Additions

#: The --mode that stands for the mode of config.toml; the others are the runtime's own.
_AS_CONFIGURED = "runtime"

#: What the runtime inserts. Only its name matters here, by which the hook is found again.
_HOOK: dict[str, object] = {"path": f"/usr/bin/{names.HOOK_NAMES[-1]}", "args": ["prestart"]}
#: How a specification of a recorded host names its devices, as nvidia-ctk does by default.
_STRATEGIES = ("index", "uuid")
_PROGRAM = HookProgram(f"/usr/bin/{cdi_hooks.PROGRAM}", together=True)


class Started(NamedTuple):
    """A container after the runtime's changes.

    :ivar remarks: what the runtime logs about them.
    :ivar left_out: why the hook is not called; "" if it is.
    :ivar edits: the CDI edits that the runtime applies in the place of the hook. ``container`` is
        without them then.
    """

    container: ContainerSide
    remarks: tuple[Finding, ...]
    left_out: str
    edits: tuple[CdiEdits, ...]


def start(container: ContainerSide, host: HostSide, mode: str) -> Started:
    """Return the container as nvgraft-runtime passes it on.

    :param mode: ``runtime``, or one of :data:`nvgraft_cli.shell.arguments.RUNTIME_MODES`.
    :raises nvgraft.base.errors.Refusal: the runtime refuses it.
    """

    look = _CaseLook(host)
    done = rewrite(
        container.data,
        host.config,
        host.config.runtime_mode if mode == _AS_CONFIGURED else mode,
        _HOOK,
        lambda: look,
        lambda links: _PROGRAM.hooks(links_step(links)),
    )
    remarks = tuple(_remark(level, line) for level, line in done.log)
    called = _calls_hook(done.data)
    if look.edits:
        return Started(container, remarks, _why_not(remarks), tuple(look.edits))
    reason = "" if called else "nvgraft-runtime leaves the hook out: " + _why_not(remarks)
    return Started(container.rewritten(done.data), remarks, reason, ())


def _remark(level: str, line: str) -> Finding:
    message, _, hint = line.partition(" | ")
    return Finding("runtime", level, message, hint)


def _why_not(remarks: Sequence[Finding]) -> str:
    """Return the reason in the runtime's line about the hook."""
    told = next(remark.message for remark in remarks if HOOK_IS in remark.message)
    return told.partition(": ")[2]


def _calls_hook(data: bytes) -> bool:
    hooks = json.loads(data).get("hooks") or {}
    return any(
        posixpath.basename(hook.get("path", "")) in names.HOOK_NAMES
        and "prestart" in (arguments if isinstance(arguments := hook.get("args"), list) else ())
        for hook in hooks.get("prestart") or ()
        if isinstance(hook, dict)  # the runtime keeps a null
    )


class _CaseSource(CdiSource):
    """The host of a case: this machine, or a recorded one."""

    def __init__(self, host: HostSide) -> None:
        facts = host.facts
        if host.document is None:
            from nvgraft.host.live import file_finder
            from nvgraft.runtime import search_path

            finder = file_finder(host.config)
            path = ":".join(search_path(os.environ.get("PATH")))
        else:
            finder = host.finder
            path = OFFLINE_PATH
        super().__init__(finder, facts.root, facts.tree, path)
        self._side = host

    def host(self) -> Host:
        return self._side.facts

    def facts(self) -> CdiFacts | None:
        if self._side.document is None:
            return live_facts(self._side.facts)
        return recorded_facts(self._side.document)


class _CaseLook(SourceLook):
    def __init__(self, host: HostSide) -> None:
        super().__init__(host.config, lambda: _PROGRAM)
        self._side = host
        #: What the runtime has asked for.
        self.edits: list[CdiEdits] = []

    def generated(self, request: CdiRequest) -> Generated:
        found = super().generated(request)
        self.edits += found.edits
        return found

    def open_source(self) -> CdiSource:
        return _CaseSource(self._side)

    def additions(self, gates: Sequence[str], devices: Sequence[str] | None) -> "Additions":
        from nvgraft.wrapper import additions

        source = self._source()
        directories = source.search_path.split(":")
        if self._side.document is None:
            return additions.look_at_host(self._side.config, directories, gates, devices)
        facts = source.facts()
        drm = {} if facts is None else facts.drm
        found = additions.find(
            source.finder, directories, gates, devices, lambda address: drm.get(address, ())
        )
        return additions.below_root(found, source.root, source.finder)

    def registered(self, devices: Sequence[str]) -> Generated:
        if self._side.document is None:
            from nvgraft_cli.case.specifications import inject

            found = inject(self._side.config.runtime_cdi_spec_dirs, devices)
            self.edits += found.edits
            return found
        found = self._generated_specification(devices)
        self.edits += found.edits
        return found

    def _generated_specification(self, devices: Sequence[str]) -> Generated:
        """Return the edits of devices from the specification that a recorded host would have."""
        from nvgraft.cdi.nearest import no_such_device
        from nvgraft.cdi.specification import KIND, class_spec

        found = self._all_devices()
        spec = class_spec(KIND, found.devices, found.common, _PROGRAM)
        known = {f"{KIND}={device.name}": device.edits for device in spec.devices}
        unknown = [name for name in devices if name not in known]
        if unknown:
            text = f"unresolvable CDI devices {', '.join(unknown)}"
            hint = no_such_device(unknown[0], list(known))
            raise Refusal("", f"failed to inject CDI devices: {text}", hint)
        line = "a recorded host has no CDI specifications: one that was just generated is taken"
        return Generated([spec.edits, *(known[name] for name in devices)], [("info", line)])

    def _all_devices(self) -> "ClassDevices":
        """Return the devices of the host as ``nvgraft cdi generate`` finds them."""
        from nvgraft.cdi import classes, platform
        from nvgraft.cdi.discovery import discover
        from nvgraft.cdi.specification import named_devices

        source = self._source()
        kind = source.platform()
        if kind == platform.WSL:
            return classes.wsl_devices(source.finder, source.root)
        if kind == platform.TEGRA:
            return classes.tegra_devices(
                source.finder, source.root, source.host_tree, self._side.config, _STRATEGIES
            )
        found = discover(source.host(), source.search_path, source.facts(), source.finder)
        return classes.ClassDevices(named_devices(found, _STRATEGIES), found.common)
