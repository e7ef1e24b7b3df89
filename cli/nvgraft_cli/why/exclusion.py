"""The first rule that keeps something out of a container, in the order in which the hook comes to them.

Each rule is the engine's own; here it is asked, and its answer put into words. Nothing is decided anew.
"""

import difflib
import posixpath
from dataclasses import dataclass

from nvgraft.base.errors import Refusal
from nvgraft.formats.elf import ElfFacts, NoFacts
from nvgraft.formats.ldcache import ARCHITECTURES
from nvgraft.formats.tree import PathError
from nvgraft.host.components import Host, Inventory
from nvgraft.host.graphics_files import matches
from nvgraft.host.libraries import rejection
from nvgraft.plan.actions import Injection, Plan
from nvgraft.plan.selection import select_devices
from nvgraft_cli.case.planning import Case
from nvgraft_cli.why.subject import Subject
from nvgraft_specs import catalogue, graphics_files


@dataclass(frozen=True, slots=True)
class Exclusion:
    """``rule`` is a stable word for machines, ``text`` says it to people; ``mend`` is advice where no variable helps."""

    rule: str
    text: str
    mend: str = ""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A file that a catalogue row could have been: where the host names it, where that leads, and what became of it."""

    entry: str
    path: str
    verdict: str


def candidates(host: Host, row: str) -> list[Candidate]:
    """Return what the host's loader cache has for a row, in the cache's order, and the selector's verdict on each."""
    wide, narrow = ARCHITECTURES.get(host.machine, ARCHITECTURES["x86_64"])
    rows = [row.name for row in catalogue.LIBRARIES]
    found: list[tuple[int, Candidate]] = []
    for entry in host.entries:
        first = next((name for name in rows if entry.soname.startswith(name)), "")
        if first != row or entry.architecture not in {wide, narrow}:
            continue
        try:
            path = host.tree.resolve(entry.path)
            facts: ElfFacts | None = host.tree.elf(path, sections=True)
        except NoFacts:
            facts = None  # the selector goes by the name alone
        except (PathError, OSError, ValueError) as error:
            found.append(
                (
                    entry.architecture,
                    Candidate(entry.path, entry.path, f"cannot be read: {str(error).lower()}"),
                )
            )
            continue
        verdict = rejection(
            path, facts.abi_tag if facts is not None else None, host.report.driver_version
        )
        found.append((entry.architecture, Candidate(entry.path, path, verdict or "accepted")))
    # Of several accepted ones the last of an architecture wins (reference behaviour 5.3).
    last = {
        architecture: index
        for index, (architecture, one) in enumerate(found)
        if one.verdict == "accepted"
    }
    return [
        Candidate(one.entry, one.path, "chosen")
        if one.verdict == "accepted"
        and (last[architecture] == index or found[last[architecture]][1].path == one.path)
        else Candidate(
            one.entry,
            one.path,
            f"passed over for {found[last[architecture]][1].path}, which the cache names later",
        )
        if one.verdict == "accepted"
        else one
        for index, (architecture, one) in enumerate(found)
    ]


def exclusion(subject: Subject, case: Case, plan: Plan, refusal: Refusal | None) -> Exclusion:
    """Return the first rule that keeps the subject out of the container of ``case``."""
    if refusal is not None:
        return Exclusion("refused", f"the container does not start: {refusal.line()}")
    if not isinstance(plan, Injection):
        return Exclusion("nothing-requested", f"the container gets nothing at all: {plan.reason}")
    inventory = case.host.inventory
    if subject.kind == "capability":
        return _capability(subject, plan)
    if subject.kind == "device":
        return _device(subject, plan, inventory)
    if subject.kind in {"library", "binary"}:
        return _component(subject, case, plan, inventory)
    return _path(subject, case)


def _capability(subject: Subject, plan: Injection) -> Exclusion:
    if subject.name in plan.request.capabilities:
        return Exclusion(
            "nothing-on-host",
            f"capability {subject.name} is asked for, and this host has nothing that only it brings",
        )
    asked = ", ".join(plan.request.capabilities) or "none"
    return Exclusion(
        "capability",
        f"capability {subject.name} is not asked for: the container has {asked} ({plan.request.origin.capabilities})",
    )


def _device(subject: Subject, plan: Injection, inventory: Inventory) -> Exclusion:
    path = subject.name
    gpus = inventory.report.gpus
    control = {node.path for node in inventory.devices.control}
    if path == "/dev/nvidia-modeset" and path in control:
        return Exclusion("capability", "only the capability display brings /dev/nvidia-modeset")
    if path.startswith("/dev/nvidia-uvm") and path in control:
        return Exclusion("capability", f"{path} is for CUDA: only compute and video bring it")
    if path.startswith("/dev/nvidia-caps-imex-channels/"):
        return Exclusion("imex", "IMEX channels come with NVIDIA_IMEX_CHANNELS alone")
    if path.startswith("/dev/nvidia-caps"):
        return Exclusion(
            "mig", "nodes of MIG capabilities come with the MIG devices that are asked for"
        )
    if by_runtime := _by_runtime(subject):
        return Exclusion(
            "not-in-catalogue", f"{path} is none of the devices that the hook brings", by_runtime
        )
    if path.startswith("/dev/"):
        index = next(
            (index for index, gpu in enumerate(gpus) if path == f"/dev/nvidia{gpu.minor}"),
            None,
        )
        if index is None:
            known = ", ".join(f"/dev/nvidia{gpu.minor}" for gpu in gpus) or "none"
            return Exclusion(
                "not-on-host",
                f"{path} is no device of this host's driver; its GPUs are {known}",
                "nvidia-smi -L on the host",
            )
        return _not_asked(f"GPU {index} ({gpus[index].uuid})", plan)
    try:
        select_devices([path], gpus)
    except Refusal as refusal:
        return Exclusion(
            "not-on-host", f"{refusal.text}: {refusal.hint}", "nvidia-smi -L on the host"
        )
    if not gpus:
        return Exclusion(
            "not-on-host", "NVML reports no GPU on this host", "nvidia-smi -L on the host"
        )
    return _not_asked(path, plan)


def _not_asked(name: str, plan: Injection) -> Exclusion:
    asked = ",".join(plan.request.devices) or "none"
    return Exclusion(
        "device",
        f"{name} is not asked for: the container has {asked} ({plan.request.origin.devices})",
    )


def _component(subject: Subject, case: Case, plan: Injection, inventory: Inventory) -> Exclusion:
    library = subject.kind == "library"
    classes = catalogue.LIBRARY_CLASSES if library else catalogue.BINARY_CLASSES
    bringing = [name for name, switched in classes.items() if subject.component_class in switched]
    if not set(bringing) & set(plan.request.capabilities):
        asked = ", ".join(plan.request.capabilities) or "none"
        text = f"{subject.row} belongs to {' and '.join(bringing)}, which is not asked for: the container has {asked}"
        if subject.row not in {row.name for row in inventory.files.missing}:
            return Exclusion("capability", f"{text} ({plan.request.origin.capabilities})")
    if not library:
        return Exclusion(
            "not-on-host",
            f"{subject.row} is in no directory of the search path of this host",
            "install the package that has it on the host",
        )
    tried = candidates(case.host.facts, subject.row)
    if not tried:
        elsewhere = _elsewhere(subject, case)
        text = f"the host's loader cache has no entry that starts with {subject.row}"
        if elsewhere:
            return Exclusion(
                "not-in-cache",
                f"{text}; the file is there, at {elsewhere}",
                "add its directory to /etc/ld.so.conf.d on the host and run ldconfig",
            )
        return Exclusion(
            "not-on-host",
            text,
            "not every driver version or package has it: install the package on the host, then run ldconfig",
        )
    if all(candidate.verdict != "chosen" for candidate in tried):
        return Exclusion(
            "rejected",
            "; ".join(f"{candidate.path}: {candidate.verdict}" for candidate in tried),
            "reinstall the driver, then run ldconfig",
        )
    chosen = next(candidate for candidate in tried if candidate.verdict == "chosen")
    if posixpath.basename(chosen.path) != subject.basename and subject.basename not in {
        subject.row,
        "",
    }:
        others = [
            f"{candidate.path}: {candidate.verdict}"
            for candidate in tried
            if posixpath.basename(candidate.path) == subject.basename
        ]
        return Exclusion(
            "another-file",
            "; ".join(others)
            or f"{subject.row} is {chosen.path} on this host, and mounted under that name",
        )
    return Exclusion(
        "another-architecture",
        f"{subject.row} is there for another architecture only, or another directory: it is {chosen.path}",
    )


def _elsewhere(subject: Subject, case: Case) -> str:
    """Return where the host has a file of the row that its loader cache does not know; a snapshot lists what was recorded."""
    document = case.host.document
    if document is None:
        return ""
    return next(
        (path for path in document["files"] if posixpath.basename(path).startswith(subject.row)), ""
    )


def _path(subject: Subject, case: Case) -> Exclusion:
    rows = [row.name for row in (*catalogue.LIBRARIES, *catalogue.BINARIES)]
    close = difflib.get_close_matches(subject.basename, rows, n=3, cutoff=0.6)
    near = f"; the catalogue has {', '.join(close)}" if close else ""
    if case.container.rootfs_known:
        try:
            if case.container.rootfs.find(subject.name)[1] is not None and "/" in subject.name:
                return Exclusion(
                    "image",
                    f"{subject.name} is the image's own file: the hook brings nothing there{near}",
                )
        except (PathError, OSError):
            pass
    document = case.host.document
    on_host = (
        ""
        if document is None or subject.name not in document["files"]
        else ", although the host has it"
    )
    return Exclusion(
        "not-in-catalogue",
        f"{subject.name} is in no table of what the hook brings{on_host}{near}",
        _by_runtime(subject) or "mount it by the engine (docker -v), or use a CDI specification",
    )


def _by_runtime(subject: Subject) -> str:
    """Return what to do for a file or node that the runtime adds to config.json and no hook brings (reference behaviour 9.5)."""
    places = {
        f"{target}/{name}" for target, names in graphics_files.CONFIGS.items() for name in names
    }
    places |= {
        f"/etc/{name.format(machine=machine)}"
        for name in graphics_files.VULKAN_CONFIGS
        for machine in graphics_files.VULKAN_MACHINES
    }
    libraries = [
        f"{name.partition('.so')[0]}.so"
        for name in (*graphics_files.EGL_LIBRARIES, graphics_files.VULKAN_PRODUCER)
    ]
    asked = ""
    if (
        subject.name in places
        or subject.name.startswith("/dev/dri/")
        or subject.basename.startswith(tuple(libraries))
    ):
        asked = "capability graphics or display"
    for variable, (patterns, files) in graphics_files.GATED.items():
        if subject.name in files or any(matches(subject.name, pattern) for pattern in patterns):
            asked = f"{variable}=enabled"
    return (
        asked
        and f"start it by nvgraft-runtime, which adds it for {asked} (nvgraft register), or use a CDI specification"
    )
