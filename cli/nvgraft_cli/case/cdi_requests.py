"""Say why a container does not get the CDI devices that it names, and what to do about it."""

from typing import NamedTuple

from nvgraft.cdi.nearest import no_such_device
from nvgraft.request.request import Skip, is_cdi_name, requested_devices
from nvgraft_cli.case.edits_plan import annotated_devices
from nvgraft_cli.case.planning import Case
from nvgraft_specs import names

_KIND = "nvidia.com/gpu"


class Trouble(NamedTuple):
    """What keeps a container from its CDI devices: the cause, and the fix as an instruction."""

    cause: str
    fix: str


def trouble(case: Case) -> Trouble | None:
    """Return what keeps a container from its CDI devices, None if nothing does."""
    return unresolved(case) or unheard(case)


def unresolved(case: Case) -> Trouble | None:
    """Return why a device is in no specification that counts, None if all are found."""
    started = case.started
    if started is None or started.refusal is None:
        return None
    registry = case.specifications.registry
    missing = next((name for name in started.names if name not in registry.devices), None)
    if missing is None:
        return None
    kind, _, device = missing.partition("=")
    if conflict := registry.conflicts.get(missing):
        return Trouble(
            f"{' and '.join(conflict)} both have {missing}, and engines then take neither",
            f"remove {missing} from all but one of them",
        )
    having = [file for file in registry.files if file.spec.kind == kind]
    if having:
        there = [f"{kind}={found.name}" for file in having for found in file.spec.devices]
        path = having[0].path
        again = "" if case.specifications.made else f", or {write_command(path)} if it is older"
        return Trouble(
            f"{path} has no device {device}, and no other specification has it",
            f"{no_such_device(missing, there)}{again}",
        )
    if registry.errors:
        error = registry.errors[0]
        return Trouble(
            f"{error.path}: {error.cause}", f"{error.fix}, or {write_command(error.path)}"
        )
    if case.specifications.made:
        return Trouble(
            f"a recorded host has no CDI specifications, and the one of {_KIND} that was made for "
            f"it has no devices of {kind}",
            "give the host's specifications with --cdi FILE, or ask on the host",
        )
    cause = f"no CDI specification of {kind} is in {case.specifications.places}"
    if kind == _KIND:
        directory = case.host.config.runtime_cdi_spec_dirs[0].rstrip("/")
        return Trouble(cause, write_command(f"{directory}/nvidia.yaml"))
    return Trouble(cause, f"install the program that writes the specification of {kind}")


def source_of_edits(case: Case) -> str:
    """Return what a container's edits are of, as the subject of a sentence."""
    files = dict.fromkeys(origin.file for origin in case.origins if origin.file)
    if files:
        return ", ".join(files)
    return str(case.origins[0]) if case.origins else f"mode {case.acting_mode}"


def to_make_again(case: Case) -> str:
    """Return the instruction to make the edits of a container anew."""
    file = next((origin.file for origin in case.origins if origin.file), "")
    if file and not case.specifications.made:
        return write_command(file)
    if case.reads_config:
        return "write the host's CDI specification again, and create the container again"
    return "start the container again"


def is_written(case: Case) -> bool:
    """Tell whether the edits of a container were written before, and can be made better."""
    written = any(origin.file for origin in case.origins) and not case.specifications.made
    return case.reads_config or written


def to_complete(case: Case) -> str:
    """Return the instruction to get what the host has and the edits lack."""
    if is_written(case):
        return to_make_again(case)
    return (
        'set mode = "legacy" under [nvidia-container-runtime] in config.toml: the hook finds what'
        " the runtime's generation does not"
    )


def write_command(path: str) -> str:
    """Return the instruction to write a specification of this host's GPUs."""
    return (
        f"write it with nvgraft cdi generate --output {path} (or nvidia-ctk cdi generate "
        f"--output={path})"
    )


def unheard(case: Case) -> Trouble | None:
    """Return why nobody looks at the CDI names of a container, None if it has none or somebody
    does.
    """
    if case.reads_config or case.handover is not None:
        return None
    container, config = case.given, case.host.config
    hook = case.acting_mode in {"hook", "legacy"}
    annotated = annotated_devices(container, config)
    if annotated and case.acting_mode != "cdi":
        found = ", ".join(name for value in annotated.values() for name in value)
        source = f"annotation {', '.join(annotated)}"
    else:
        asked = requested_devices(container.spec, config)
        ids = () if isinstance(asked, Skip) else asked.ids
        found = ", ".join(filter(is_cdi_name, ids))
        source = "" if isinstance(asked, Skip) else asked.source
        if not found or not hook:
            return None
    who = "the hook" if hook else f"nvgraft-runtime in mode {case.acting_mode}"
    does = "takes no CDI names" if hook else "reads no annotations"
    return Trouble(
        f"the container asks for {found} ({source}), and {who} {does}: an engine with CDI does, "
        "or nvgraft-runtime in the modes auto and cdi",
        "start it with nvgraft-runtime in mode auto or cdi (--mode cdi shows what it gets), or set "
        f"{names.VISIBLE_DEVICES} to indices or UUIDs",
    )
