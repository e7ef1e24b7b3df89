"""Answer why a subject is, or is not, in a container that gets its GPUs by CDI edits."""

import posixpath
from collections.abc import Iterator, Sequence

from nvgraft.base.errors import Refusal
from nvgraft.cdi import platform
from nvgraft.plan.actions import Action, AllowDevice, Bind, Injection, Symlink, Tmpfs, WriteFile
from nvgraft.plan.edit_actions import RunHook
from nvgraft_cli.case.cdi_requests import source_of_edits, to_complete, to_make_again
from nvgraft_cli.case.planning import Case
from nvgraft_cli.why.exclusion import Exclusion, candidates
from nvgraft_cli.why.subject import Subject, device_paths
from nvgraft_specs import cdi_hooks, names


def mode_words(case: Case) -> str:
    """Return how the edits come to the container."""
    if case.reads_config:
        return "config.json has the edits already"
    assert case.started is not None
    return f"{case.started.mode} ({case.started.remarks[0].message})"


def chain(
    subject: Subject, case: Case, plan: Injection, parts: Sequence[Action | tuple[str, str]]
) -> Iterator[tuple[str, str]]:
    """Yield the steps that lead to a subject.

    :param parts: its actions and SONAME links, as ``matching()`` returns them.
    """
    request = plan.request
    yield "asked for", f"{','.join(request.devices) or 'no device'} ({request.devices_from})"
    if case.handover is None:
        yield "mode", mode_words(case)
    binds = [action for action in parts if isinstance(action, Bind | Tmpfs | WriteFile)]
    for found in dict.fromkeys(action.why.found for action in binds):
        yield "edit", found
    if subject.kind == "capability":
        rows = sorted({posixpath.basename(action.why.row) for action in binds})
        yield "brings", f"{len(binds)} mounts and files: {', '.join(rows)}"
        return
    for action in parts:
        if isinstance(action, tuple):
            yield "SONAME link", f"{action[0]} -> {action[1]}, made by {_maker(plan, action[0])}"
        elif isinstance(action, Bind):
            yield "mounted", f"{action.source} on {action.target} ({','.join(action.options)})"
        elif isinstance(action, AllowDevice):
            yield "allowed", f"c {action.major}:{action.minor} {action.access} in config.json"
        elif isinstance(action, Symlink):
            yield "link", f"{action.path} -> {action.target}, made by {_maker(plan, action.path)}"
        elif isinstance(action, WriteFile):
            yield "written", f"{action.path}: {action.why.found}"


def _maker(plan: Injection, link: str) -> str:
    """Return the hook that makes a link in the container."""
    for action in plan.actions:
        if isinstance(action, RunHook):
            for step in (cdi_hooks.CREATE_SYMLINKS, cdi_hooks.UPDATE_LDCACHE):
                if step in action.args and (
                    step == cdi_hooks.UPDATE_LDCACHE
                    or any(word.endswith(f"::{link}") for word in action.args)
                ):
                    return f"the hook {step} ({posixpath.basename(action.path)}, {action.stage})"
    return "a hook of the edits"


def exclusion(subject: Subject, case: Case, plan: Injection) -> Exclusion:
    """Return the first rule that keeps a subject out of the container."""
    source = source_of_edits(case)
    if subject.kind == "capability":
        return Exclusion(
            "not-in-edits",
            f"{source} {_has(case)} no file of capability {subject.name}; CDI edits do not look at "
            f"{names.DRIVER_CAPABILITIES}",
            _advice_of_capability(subject, case),
        )
    if subject.kind == "device":
        return _device(subject, case, plan)
    if subject.kind in {"library", "binary"}:
        return _component(subject, case, plan, source)
    if _in_image(subject, case):
        return Exclusion(
            "image", f"{subject.name} is a file of the image: {source} mounts nothing there"
        )
    return _missing_path(subject, case, source)


def _has(case: Case) -> str:
    return "have" if not any(origin.file for origin in case.origins) and case.started else "has"


def _advice_of_capability(subject: Subject, case: Case) -> str:
    if subject.name == "compat32":
        return "32-bit libraries are mounted in mode legacy alone: start the container with it"
    return _install(case, "the driver's packages that have it")


def _install(case: Case, packages: str) -> str:
    """Return the instruction to get what the host lacks."""
    again = to_make_again(case)
    if case.host.platform == platform.TEGRA:
        return (
            "JetPack 5 and older have no NVML and no nvidia-smi; name what your JetPack has in a"
            f" CSV file of the host, then {again}"
        )
    return f"install {packages} on the host, then {again}"


def _device(subject: Subject, case: Case, plan: Injection) -> Exclusion:
    requested = ", ".join(plan.request.devices) or "no device"
    asks = f"it requests {requested} ({plan.request.devices_from})"
    having = _devices_with(subject, case)
    if having:
        annotated = plan.request.devices_from.startswith("annotation ")
        return Exclusion(
            "device",
            f"the container does not request {having[0]} of {_file_of(having[0], case)}: {asks}",
            f"add {having[0]} to {plan.request.devices_from}" if annotated else "",
        )
    try:
        gpus = case.host.inventory.report.gpus
    except Refusal:
        gpus = ()
    paths = device_paths(subject, gpus)
    if paths & {node.path for node in case.host.inventory.devices.control}:
        text = (
            f"{source_of_edits(case)} {_has(case)} no node {subject.name}, although the host has it"
        )
        return Exclusion("not-in-edits", text, to_make_again(case))
    if paths & {f"/dev/nvidia{gpu.minor}" for gpu in gpus}:
        if case.looks_up_devices:
            text = f"no device of {case.specifications.places} has {subject.name}; {asks}"
            return Exclusion("not-in-edits", text, to_make_again(case))
        return Exclusion("device", f"the container does not request {subject.name}: {asks}")
    text = f"{subject.name} is not a device of this host's driver, and the edits have none either"
    return Exclusion("not-on-host", text, "run nvidia-smi -L on the host")


def _devices_with(subject: Subject, case: Case) -> list[str]:
    """Return the devices of the specifications whose own edits have the node."""
    if not case.looks_up_devices:
        return []
    try:
        paths = device_paths(subject, case.host.inventory.report.gpus) | {subject.name}
    except Refusal:
        paths = {subject.name}
    return [
        name
        for name, found in case.specifications.registry.devices.items()
        if paths & {node.path for node in found.device.edits.nodes}
    ]


def _file_of(name: str, case: Case) -> str:
    return case.specifications.registry.devices[name].file.path


def _component(subject: Subject, case: Case, plan: Injection, source: str) -> Exclusion:
    """Answer for a library or a program of the driver."""
    path = _on_host(subject, case)
    mounted = [
        action.target
        for action in plan.actions
        if isinstance(action, Bind) and f"/{subject.row}." in action.target
    ]
    if mounted:
        return Exclusion(
            "not-in-edits",
            f"{source} {_has(case)} a mount of {mounted[0]}, and no hook makes the link "
            f"{subject.name} (create-symlinks, update-ldcache)",
            to_make_again(case),
        )
    text = f"{source} {_has(case)} no mount of {subject.row}"
    if path:
        return Exclusion("not-in-edits", f"{text}, although the host has {path}", to_complete(case))
    return Exclusion(
        "not-on-host",
        f"{text}, and the host does not have it either",
        _install(case, "the package that contains it"),
    )


def _on_host(subject: Subject, case: Case) -> str:
    """Return the host's file for the subject's row, "" if it has none."""
    if subject.kind == "library":
        fitting = candidates(case.host.facts, subject.row)
        return next((found.path for found in fitting if found.verdict == "chosen"), "")
    files = case.host.inventory.files
    return next((one.path for one in files.binaries if one.row.name == subject.row), "")


def _in_image(subject: Subject, case: Case) -> bool:
    if not case.container.rootfs_known or "/" not in subject.name:
        return False
    return case.container.rootfs.is_there(subject.name)


def _missing_path(subject: Subject, case: Case, source: str) -> Exclusion:
    """Answer for a path that is no row of the catalogue."""
    on_host = "/" in subject.name and case.host.facts.tree.is_there(subject.name)
    although = ", although the host has it" if on_host else ""
    return Exclusion(
        "not-in-edits",
        f"{source} {_has(case)} no mount of {subject.name}{although}",
        "mount it with the engine (docker -v), or by a CDI specification of your own",
    )
