"""Find the first rule that keeps a subject out of a container, in the order of the hook.

The rules are the planner's; this module asks them and puts their results into words.
"""

import difflib
import posixpath
from dataclasses import dataclass, replace

from nvgraft.base.errors import Refusal
from nvgraft.formats.elf import ElfFacts, NoFacts
from nvgraft.formats.ldcache import ARCHITECTURES
from nvgraft.formats.tree import PathError
from nvgraft.host.components import Host, Inventory
from nvgraft.host.graphics_files import matches
from nvgraft.host.libraries import rejection
from nvgraft.plan.actions import Injection, Plan
from nvgraft.plan.device_selection import select_devices
from nvgraft_cli.case.cdi_requests import trouble
from nvgraft_cli.case.planning import NO_GPUS, Case
from nvgraft_cli.why.subject import Subject
from nvgraft_specs import catalogue, graphics_files


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Why a subject is not in the container.

    :ivar rule: a stable id of the rule.
    :ivar text: the reason.
    :ivar advice: what to do where no change of the environment helps, or "".
    """

    rule: str
    text: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A library of the host that fits a catalogue row.

    :ivar entry: its path in the loader cache.
    :ivar path: the file to which that leads.
    :ivar verdict: "chosen", or why it was not.
    """

    entry: str
    path: str
    verdict: str


def candidates(host: Host, row: str) -> list[Candidate]:
    """Return the libraries in the host's loader cache that fit a row, in the cache's order."""
    wide, narrow = ARCHITECTURES.get(host.machine, ARCHITECTURES["x86_64"])
    rows = [row.name for row in catalogue.LIBRARIES]
    fitting: list[tuple[int, Candidate]] = []  # with the architecture of each
    for entry in host.entries:
        first = next((name for name in rows if entry.soname.startswith(name)), "")
        if first != row or entry.architecture not in {wide, narrow}:
            continue
        try:
            path = host.tree.resolve(entry.path)
            facts: ElfFacts | None = host.tree.elf(path, sections=True)
        except NoFacts:
            facts = None  # the planner then judges by the name alone
        except (PathError, OSError, ValueError) as error:
            verdict = f"cannot be read: {str(error).lower()}"
            fitting.append((entry.architecture, Candidate(entry.path, entry.path, verdict)))
            continue
        reason = rejection(
            path, facts.abi_tag if facts is not None else None, host.report.driver_version
        )
        fitting.append((entry.architecture, Candidate(entry.path, path, reason or _ACCEPTED)))
    return _with_choice(fitting)


#: The verdict on a candidate before one of each architecture is chosen.
_ACCEPTED = "accepted"


def _with_choice(fitting: list[tuple[int, Candidate]]) -> list[Candidate]:
    """Return the candidates with final verdicts.

    The last accepted one of an architecture is chosen (reference behaviour 5.3).
    """
    chosen = {
        architecture: candidate.path
        for architecture, candidate in fitting
        if candidate.verdict == _ACCEPTED
    }
    judged = []
    for architecture, candidate in fitting:
        if candidate.verdict == _ACCEPTED:
            path = chosen[architecture]
            verdict = (
                "chosen"
                if candidate.path == path
                else f"passed over for {path}, which the cache names later"
            )
            candidate = replace(candidate, verdict=verdict)
        judged.append(candidate)
    return judged


_RUNTIME_CLASS = "set runtimeClassName in the pod to a class of NVIDIA's or nvgraft's runtime"


def exclusion(subject: Subject, case: Case, plan: Plan, refusal: Refusal | None) -> Exclusion:
    """Return the first rule that keeps the subject out of the container of ``case``."""
    named = None if isinstance(plan, Injection) else trouble(case)
    if refusal is not None:
        if named is not None:
            text = f"the container does not start: {refusal.text}: {named.cause}"
            return Exclusion("refused", text, named.fix)
        return Exclusion("refused", f"the container does not start: {refusal.line()}")
    if not isinstance(plan, Injection):
        if case.edited_before:
            return Exclusion("not-recorded", plan.reason, "look into the mounts of config.json")
        handover = case.handover
        if handover is not None and handover.elsewhere:
            return Exclusion("not-recorded", handover.elsewhere, handover.advice)
        text = f"the container gets nothing: {plan.reason}"
        if named is not None:
            return Exclusion("nothing-requested", f"{text}: {named.cause}", named.fix)
        if handover is not None and not handover.allocated:
            return Exclusion("nothing-requested", text, handover.advice)
        advice = _RUNTIME_CLASS if case.before_runtime else ""
        return Exclusion("nothing-requested", text, advice)
    inventory = case.host.inventory
    if subject.kind == "capability":
        return _capability(subject, plan)
    if subject.kind == "device":
        if not case.host.gpus_known:
            return Exclusion(
                "not-recorded",
                "the document of the host has no GPUs: its devices are not known",
                NO_GPUS.hint,
            )
        return _device(subject, plan, inventory)
    if subject.kind in {"library", "binary"}:
        return _component(subject, case, plan, inventory)
    return _path(subject, case)


def _capability(subject: Subject, plan: Injection) -> Exclusion:
    if subject.name in plan.request.capabilities:
        return Exclusion(
            "nothing-on-host",
            f"the container requests capability {subject.name}, but this host has no file that "
            "only this capability adds",
        )
    return Exclusion(
        "capability",
        f"the container does not request capability {subject.name}: {_capability_request(plan)}",
    )


def _capability_request(plan: Injection) -> str:
    requested = ", ".join(plan.request.capabilities) or "no capability"
    return f"it requests {requested} ({plan.request.capabilities_from})"


def _device(subject: Subject, plan: Injection, inventory: Inventory) -> Exclusion:
    path = subject.name
    gpus = inventory.report.gpus
    control = {node.path for node in inventory.devices.control}
    if path == "/dev/nvidia-modeset" and path in control:
        return Exclusion("capability", f"{path} needs capability display")
    if path.startswith("/dev/nvidia-uvm") and path in control:
        return Exclusion("capability", f"{path} is for CUDA and needs capability compute or video")
    if path.startswith("/dev/nvidia-caps-imex-channels/"):
        return Exclusion("imex", f"the container does not request {path} (NVIDIA_IMEX_CHANNELS)")
    if path.startswith("/dev/nvidia-caps"):
        return Exclusion(
            "mig", "MIG capability nodes are mounted only for the MIG devices of the request"
        )
    if runtime_advice := _runtime_advice(subject):
        return Exclusion(
            "not-in-catalogue", f"{path} is not a device that the hook mounts", runtime_advice
        )
    if path.startswith("/dev/"):
        index = next(
            (index for index, gpu in enumerate(gpus) if path == f"/dev/nvidia{gpu.minor}"),
            None,
        )
        if index is None:
            nodes = ", ".join(f"/dev/nvidia{gpu.minor}" for gpu in gpus) or "none"
            return Exclusion(
                "not-on-host",
                f"{path} is not a device of this host's driver; its GPUs are {nodes}",
                _LIST_GPUS,
            )
        return _not_requested(f"GPU {index} ({gpus[index].uuid})", plan)
    try:
        select_devices([path], gpus)
    except Refusal as refusal:
        return Exclusion("not-on-host", f"{refusal.text}: {refusal.hint}", _LIST_GPUS)
    if not gpus:
        return Exclusion("not-on-host", "NVML reports no GPU on this host", _LIST_GPUS)
    return _not_requested(path, plan)


_LIST_GPUS = "run nvidia-smi -L on the host"


def _not_requested(device: str, plan: Injection) -> Exclusion:
    requested = ",".join(plan.request.devices) or "no device"
    return Exclusion(
        "device",
        f"the container does not request {device}: it requests {requested} "
        f"({plan.request.devices_from})",
    )


def _component(subject: Subject, case: Case, plan: Injection, inventory: Inventory) -> Exclusion:
    library = subject.kind == "library"
    classes = catalogue.LIBRARY_CLASSES if library else catalogue.BINARY_CLASSES
    capabilities = [
        name for name, switched in classes.items() if subject.component_class in switched
    ]
    missing_rows = {row.name for row in inventory.files.missing}
    if not set(capabilities) & set(plan.request.capabilities) and subject.row not in missing_rows:
        return Exclusion(
            "capability",
            f"{subject.row} needs capability {' or '.join(capabilities)}, which the container does "
            f"not request: {_capability_request(plan)}",
        )
    if not library:
        return Exclusion(
            "not-on-host",
            f"{subject.row} is not in the search path of this host",
            "install the package that contains it on the host",
        )
    fitting = candidates(case.host.facts, subject.row)
    if not fitting:
        elsewhere = _elsewhere(subject, case)
        text = f"the host's loader cache has no entry that starts with {subject.row}"
        if elsewhere:
            return Exclusion(
                "not-in-cache",
                f"{text}, but the file exists at {elsewhere}",
                "add its directory to a file in /etc/ld.so.conf.d on the host, then run ldconfig",
            )
        return Exclusion(
            "not-on-host",
            text,
            "install the package that contains it on the host, then run ldconfig; not every "
            "driver version has it",
        )
    if all(candidate.verdict != "chosen" for candidate in fitting):
        return Exclusion(
            "rejected",
            "; ".join(f"{candidate.path}: {candidate.verdict}" for candidate in fitting),
            "reinstall the driver on the host, then run ldconfig",
        )
    if (
        "compat32" not in plan.request.capabilities
        and posixpath.dirname(subject.name) == plan.target.libs32_dir
        and any(library.row.name == subject.row for library in inventory.files.libraries32)
    ):
        return Exclusion(
            "capability",
            "32-bit libraries need capability compat32, which the container does not request: "
            f"{_capability_request(plan)}",
        )
    chosen = next(candidate for candidate in fitting if candidate.verdict == "chosen")
    if posixpath.basename(chosen.path) != subject.basename and subject.basename not in {
        subject.row,
        "",
    }:
        others = [
            f"{candidate.path}: {candidate.verdict}"
            for candidate in fitting
            if posixpath.basename(candidate.path) == subject.basename
        ]
        return Exclusion(
            "another-file",
            "; ".join(others)
            or f"on this host {subject.row} is {chosen.path}, and is mounted under that name",
        )
    return Exclusion(
        "another-architecture",
        f"{subject.row} is mounted for another architecture or in another directory: it is "
        f"{chosen.path}",
    )


def _elsewhere(subject: Subject, case: Case) -> str:
    """Return the path of a recorded file of the row that the loader cache does not list, or ""."""
    document = case.host.document
    if document is None:
        return ""
    return next(
        (path for path in document["files"] if posixpath.basename(path).startswith(subject.row)), ""
    )


def _path(subject: Subject, case: Case) -> Exclusion:
    rows = [row.name for row in (*catalogue.LIBRARIES, *catalogue.BINARIES)]
    similar = difflib.get_close_matches(subject.basename, rows, n=3, cutoff=0.6)
    hint = f"; the catalogue has {', '.join(similar)}" if similar else ""
    container = case.container
    if container.rootfs_known and "/" in subject.name and container.rootfs.is_there(subject.name):
        return Exclusion(
            "image", f"{subject.name} is a file of the image: the hook mounts nothing there{hint}"
        )
    document = case.host.document
    on_host = (
        ""
        if document is None or subject.name not in document["files"]
        else ", although the host has it"
    )
    return Exclusion(
        "not-in-catalogue",
        f"{subject.name} is not in the catalogue of files that the hook mounts{on_host}{hint}",
        _runtime_advice(subject)
        or "mount it with the engine (docker -v), or use a CDI specification",
    )


def _runtime_advice(subject: Subject) -> str:
    """Return the way to get a file or node that the runtime mounts, not the hook; else "".

    Reference behaviour 9.5.
    """
    paths = {
        f"{target}/{name}" for target, names in graphics_files.CONFIGS.items() for name in names
    }
    paths |= {
        f"/etc/{name.format(machine=machine)}"
        for name in graphics_files.VULKAN_CONFIGS
        for machine in graphics_files.VULKAN_MACHINES
    }
    libraries = [
        f"{name.partition('.so')[0]}.so"
        for name in (*graphics_files.EGL_LIBRARIES, graphics_files.VULKAN_PRODUCER)
    ]
    condition = ""
    if (
        subject.name in paths
        or subject.name.startswith("/dev/dri/")
        or subject.basename.startswith(tuple(libraries))
    ):
        condition = "capability graphics or display"
    for variable, (patterns, files) in graphics_files.GATED.items():
        if subject.name in files or any(matches(subject.name, pattern) for pattern in patterns):
            condition = f"{variable}=enabled"
    if not condition:
        return ""
    return (
        f"start the container with nvgraft-runtime, which adds it for {condition} (nvgraft "
        "register), or use a CDI specification"
    )
