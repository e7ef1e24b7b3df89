"""Start a container through nvgraft-runtime, from documents alone: what the hook then gets to see.

The wrapper's own code rewrites config.json (:mod:`nvgraft.wrapper.rewrite`); nothing is written.
"""

import json
import os
import posixpath
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from nvgraft.base.finding import Finding
from nvgraft.host.snapshot import OFFLINE_PATH
from nvgraft.wrapper.rewrite import rewrite
from nvgraft_cli.case.bundle import ContainerSide
from nvgraft_cli.case.hosts import HostSide
from nvgraft_specs import names

if TYPE_CHECKING:
    from nvgraft.wrapper.additions import Additions

#: --mode -> the mode of the runtime; None stands for that of config.toml.
RUNTIME_MODES: dict[str, str | None] = {"runtime": None, "legacy": "legacy"}

#: What the runtime inserts. Only its name matters here, by which the hook is found again.
_HOOK: dict[str, object] = {"path": f"/usr/bin/{names.HOOK_NAMES[-1]}", "args": ["prestart"]}


class Started(NamedTuple):
    """A container after the runtime's changes.

    :ivar remarks: what the runtime logs about them.
    :ivar left_out: why the hook is not called; "" if it is.
    """

    container: ContainerSide
    remarks: tuple[Finding, ...]
    left_out: str


def start(container: ContainerSide, host: HostSide, mode: str) -> Started:
    """Return the container as nvgraft-runtime passes it on.

    :param mode: a key of :data:`RUNTIME_MODES`.
    :raises nvgraft.base.errors.Refusal: the runtime refuses it.
    """

    def look(gates: Sequence[str], devices: Sequence[str] | None) -> "Additions":
        return _additions(host, gates, devices)

    done = rewrite(
        container.data,
        host.config,
        RUNTIME_MODES[mode] or host.config.runtime_mode,
        _HOOK,
        look,
        lambda _: _HOOK,
    )
    remarks = tuple(_remark(level, line) for level, line in done.log)
    called = _calls_hook(done.data)
    reason = "" if called else "nvgraft-runtime leaves the hook out: " + _why_not(remarks)
    return Started(container.rewritten(done.data), remarks, reason)


def _remark(level: str, line: str) -> Finding:
    message, _, hint = line.partition(" | ")
    return Finding("runtime", level, message, hint)


def _why_not(remarks: Sequence[Finding]) -> str:
    """Return the reason in the runtime's line about the hook."""
    told = next(remark.message for remark in remarks if "prestart hook is" in remark.message)
    return told.partition(": ")[2]


def _calls_hook(data: bytes) -> bool:
    hooks = json.loads(data).get("hooks") or {}
    return any(
        posixpath.basename(hook.get("path", "")) in names.HOOK_NAMES
        and "prestart" in (arguments if isinstance(arguments := hook.get("args"), list) else ())
        for hook in hooks.get("prestart") or ()
        if isinstance(hook, dict)  # the runtime keeps a null
    )


def _additions(host: HostSide, gates: Sequence[str], devices: Sequence[str] | None) -> "Additions":
    """Return what the runtime adds on this machine, or on a recorded host."""
    from nvgraft.wrapper import additions

    if host.document is None:
        from nvgraft.runtime import search_path

        return additions.look_at_host(
            host.config, search_path(os.environ.get("PATH")), gates, devices
        )
    from nvgraft.host.graphics_files import FileFinder

    facts = host.facts
    finder = FileFinder(facts.tree, facts.machine, lambda: facts.entries)
    drm = (host.document.get("cdi") or {}).get("drm", {})
    found = additions.find(
        finder, OFFLINE_PATH.split(":"), gates, devices, lambda address: drm.get(address, ())
    )
    return additions.below_root(found, facts.root, finder)
