"""Start a container through nvgraft-runtime, from documents alone: what the hook then gets to see.

The wrapper's own code rewrites config.json (:mod:`nvgraft.wrapper.rewrite`); nothing is written.
"""

import json
import os
import posixpath
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from nvgraft.base.errors import Refusal
from nvgraft.base.finding import Finding
from nvgraft.cdi.discovery import CdiFacts, live_facts, recorded_facts
from nvgraft.cdi.edits import Generated, links_step
from nvgraft.cdi.generation import CdiRequest, CdiSource
from nvgraft.cdi.reader import SpecificationFile
from nvgraft.cdi.registry import Registry, registry_of
from nvgraft.cdi.specification import KIND, HookProgram, class_spec
from nvgraft.host.components import Host
from nvgraft.host.snapshot import OFFLINE_PATH
from nvgraft.wrapper.host_look import SourceLook
from nvgraft.wrapper.rewrite import RefusedRewrite, RewriteLog, rewrite
from nvgraft_cli.case.bundle import ContainerSide
from nvgraft_cli.case.edits import GENERATED, Edited, Origin
from nvgraft_cli.case.hosts import HostSide
from nvgraft_cli.case.specifications import inject, read_trusted_registry, registry_in
from nvgraft_cli.shell.installed import default_prefix
from nvgraft_specs import names

if TYPE_CHECKING:
    from nvgraft.cdi.classes import ClassDevices
    from nvgraft.wrapper.additions import Additions

#: The --mode that stands for the mode of config.toml; the others are the runtime's own.
_AS_CONFIGURED = "runtime"

#: What the runtime inserts. Only its name matters here, by which the hook is found again.
_HOOK: dict[str, object] = {"path": f"/usr/bin/{names.HOOK_NAMES[-1]}", "args": ["prestart"]}
#: How a specification of a recorded host names its devices, as nvidia-ctk does by default.
_STRATEGIES = ("index", "uuid")
_AT_THE_START = Origin(maker="the edits that the runtime generates at the start")
#: The runtime of a recorded host. Its hooks are beside it.
_RUNTIME = "/usr/bin/nvgraft-runtime"


class Started(NamedTuple):
    """A container after the runtime's changes.

    :ivar log: what the runtime decides and logs about them.
    :ivar left_out: why the hook is not called; "" if it is.
    :ivar edits: the CDI edits that the runtime applies in the place of the hook. ``container`` is
        without them then.
    :ivar names: the devices that are looked up in specifications.
    :ivar refusal: why the runtime refuses the container, or None.
    """

    container: ContainerSide
    log: RewriteLog
    left_out: str = ""
    edits: tuple[Edited, ...] = ()
    names: tuple[str, ...] = ()
    refusal: Refusal | None = None

    @property
    def mode(self) -> str:
        """The one in which the runtime acts; "" if it refuses before it has decided."""
        return self.log.mode

    @property
    def remarks(self) -> tuple[Finding, ...]:
        """What the runtime logs, the line about the mode first."""
        return tuple(_remark(level, line) for level, line in self.log.lines)


def start(
    container: ContainerSide, host: HostSide, mode: str, specifications: "HostSpecifications"
) -> Started:
    """Return the container as nvgraft-runtime passes it on, or its refusal.

    :param mode: ``runtime``, or one of :data:`nvgraft_cli.shell.arguments.RUNTIME_MODES`.
    """

    program = _hook_program(host)
    look = _CaseLook(host, specifications, program)
    try:
        done = rewrite(
            container.data,
            host.config,
            host.config.runtime_mode if mode == _AS_CONFIGURED else mode,
            _HOOK,
            lambda: look,
            lambda links: program.hooks(links_step(links)),
        )
    except RefusedRewrite as refusal:
        return Started(container, refusal.log, names=look.names, refusal=refusal)
    log = done.log
    if look.edits:
        return Started(container, log, log.hook_reason, tuple(look.edits), look.names)
    called = _calls_hook(done.data)
    reason = "" if called else "nvgraft-runtime leaves the hook out: " + log.hook_reason
    rewritten = container.rewritten(done.data, elsewhere=host.document is not None)
    return Started(rewritten, log, reason)


def _hook_program(host: HostSide) -> HookProgram:
    """Return the program of the hooks as nvgraft-runtime writes it into config.json."""
    from nvgraft.runtime import hook_program

    if host.document is not None:
        return hook_program(host.config, {}, _RUNTIME)
    runtime = f"{os.path.realpath(default_prefix())}/bin/{posixpath.basename(_RUNTIME)}"
    return hook_program(host.config, os.environ, runtime)


def _remark(level: str, line: str) -> Finding:
    message, _, hint = line.partition(" | ")
    return Finding("runtime", level, message, hint)


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


class HostSpecifications:
    """The CDI specifications by which a case answers.

    :param given: files in the place of the host's own; none: those of the directories that
        config.toml names. A recorded host has none: there it is the one that nvgraft cdi generate
        would write.
    """

    def __init__(self, host: HostSide, given: Sequence[str]) -> None:
        self._host = host
        self._given = tuple(given)

    @property
    def places(self) -> str:
        """Where they are, for people."""
        if self._given:
            return ", ".join(self._given)
        if self.made:
            return GENERATED
        return ", ".join(self._host.config.runtime_cdi_spec_dirs)

    @property
    def made(self) -> bool:
        """Whether the host has none, and one is made."""
        return not self._given and self._host.document is not None

    @cached_property
    def registry(self) -> Registry:
        """Their devices."""
        if self._given:
            return registry_in(self._given)
        if not self.made:
            return read_trusted_registry(self._host.config.runtime_cdi_spec_dirs)
        found = _all_devices(_CaseSource(self._host), self._host)
        spec = class_spec(KIND, found.devices, found.common, _hook_program(self._host))
        return registry_of([(SpecificationFile(GENERATED, spec), 0)], ())


class _CaseLook(SourceLook):
    def __init__(
        self, host: HostSide, specifications: HostSpecifications, program: HookProgram
    ) -> None:
        super().__init__(host.config, lambda: program)
        self._side = host
        self._specifications = specifications
        #: What the runtime has asked for.
        self.edits: list[Edited] = []
        self.names: tuple[str, ...] = ()

    def generated(self, request: CdiRequest) -> Generated:
        found = super().generated(request)
        self.edits += [Edited(part, _AT_THE_START) for part in found.edits]
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
        self.names = tuple(devices)
        tree = None if self._side.document is None else self._side.facts.tree
        found, log = inject(self._specifications.registry, devices, tree)
        self.edits += found
        if self._specifications.made:
            line = "a recorded host has no CDI specifications: one that was just generated is taken"
            log = (*log, ("info", line))
        return Generated([part.edits for part in found], log)


def _all_devices(source: CdiSource, host: HostSide) -> "ClassDevices":
    """Return the devices of a host as ``nvgraft cdi generate`` finds them."""
    from nvgraft.cdi import classes, platform
    from nvgraft.cdi.discovery import discover
    from nvgraft.cdi.specification import named_devices

    kind = source.platform()
    if kind == platform.WSL:
        return classes.wsl_devices(source.finder, source.root)
    if kind == platform.TEGRA:
        return classes.tegra_devices(
            source.finder, source.root, source.host_tree, host.config, _STRATEGIES
        )
    found = discover(source.host(), source.search_path, source.facts(), source.finder)
    return classes.ClassDevices(named_devices(found, _STRATEGIES), found.common)
