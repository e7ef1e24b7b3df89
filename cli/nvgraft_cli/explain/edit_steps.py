"""Tell the story of a container that gets its GPUs by CDI edits: nvgraft-runtime in the modes
jit-cdi, cdi and csv, an engine that applies them, or a config.json that has them already.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from nvgraft.base.errors import Refusal
from nvgraft.plan.actions import (
    AllowDevice,
    Bind,
    Injection,
    MakeDirectory,
    Plan,
    Symlink,
    WriteFile,
)
from nvgraft.plan.edit_actions import AddGroup, RunHook, SetVariable
from nvgraft.request.request import requirements_of
from nvgraft_cli.case.cdi_requests import source_of_edits, trouble
from nvgraft_cli.case.edits import Unmountable
from nvgraft_cli.case.planning import Case
from nvgraft_cli.explain.steps import (
    CHANGE,
    SONAME_LINK,
    file_entry,
    findings_step,
    host_step,
    kernel_entry,
    loader_facts,
    pod_step,
    with_trouble,
    without_driver,
)
from nvgraft_cli.explain.story import ALWAYS, Fact, Step, StoryEntry
from nvgraft_cli.prove.proof import Proof
from nvgraft_cli.shell.arguments import CDI_MODES
from nvgraft_cli.shell.text import size
from nvgraft_cli.why.change import smallest_change
from nvgraft_cli.why.subject import Subject
from nvgraft_specs import cdi_hooks, names

#: The sections to read about the steps.
_HOST = "cdi.md#a-host"
_WHY = "cdi.md#why-a-container-lacks-something"
_HOOKS = "cdi.md#the-hook-program"
_REQUEST = "reference-behaviour.md#93-mode"
_RUNTIME = "reference-behaviour.md#98-into-configjson"

#: Who carries out the edits of config.json.
_LOW = "the low-level runtime (runc, crun)"


def tells_edits(case: Case) -> bool:
    """Tell whether the story of a case is one of CDI edits, also where it ends early."""
    return case.by_edits or case.acting_mode in CDI_MODES


def headline(case: Case, plan: Plan, refusal: Refusal | None, proofs: Sequence[Proof]) -> str:
    """Return the first sentence."""
    if refusal is not None:
        who = _at_first(_refuser(case, refusal))
        return f"{who} refuses, and the container does not start: {refusal.text}"
    if not isinstance(plan, Injection):
        who = "nvgraft-runtime adds nothing, and the container starts without the driver"
        return without_driver(f"{who}: {plan.reason}", case)
    binds = [action for action in plan.actions if isinstance(action, Bind)]
    files = sum(action.kind == "file" for action in binds)
    nodes = sum(action.kind == "device" for action in binds)
    amount = size(sum(action.size for action in binds))
    links = len(plan.links) + sum(isinstance(action, Symlink) for action in plan.actions)
    words = (
        f"The container gets driver {plan.host.driver_version} by CDI edits "
        f"({source_of_edits(case)}): {files} files ({amount}), {nodes} device nodes, {links} links"
    )
    if not files and not nodes:
        given = "give the container no file and no device node"
        words = f"The CDI edits ({source_of_edits(case)}) {given}"
    return with_trouble(words, case, plan, proofs)


def edit_steps(
    case: Case, plan: Plan, refusal: Refusal | None, proofs: Sequence[Proof]
) -> Iterator[Step]:
    """Yield the steps of the story."""
    if case.handover is not None:
        yield pod_step(case, plan, refusal)
    yield _request_step(case)
    if not isinstance(plan, Injection):
        yield _end_step(case, plan, refusal)
        return
    yield _host_step(case)
    yield _edits_step(case, plan)
    yield _files_step(plan)
    yield _runtime_step(plan)
    yield _hooks_step(plan)
    yield _loader_step(plan, proofs)
    yield _original_step(case, plan)
    if plan.findings:
        yield findings_step(plan)


#: Mode -> how the runtime reads the request.
_READS = {
    "jit-cdi": "nvgraft-runtime reads config.json before the container is created: the ids come "
    "from NVIDIA_VISIBLE_DEVICES or from volume mounts. Annotations are not read in this mode.",
    "cdi": "nvgraft-runtime reads config.json before the container is created: CDI names in "
    "annotations come first, then NVIDIA_VISIBLE_DEVICES, where an id without a kind gets the "
    "default-kind of config.toml.",
    "csv": "nvgraft-runtime reads config.json before the container is created: the ids come from "
    "NVIDIA_VISIBLE_DEVICES, and a Tegra board has one device.",
}
_OF_CONFIG = (
    "An engine or a runtime has written the edits into this config.json before. What was asked for "
    "is not in it; the device nodes tell which GPUs the container got."
)
_OF_ENGINE = "The engine resolves the CDI names that it was given, and applies their edits itself."


def _request_step(case: Case) -> Step:
    try:
        facts = tuple(_request_facts(case))
    except Refusal:
        facts = ()  # config.json cannot be read: the last step tells it
    text = _OF_CONFIG if case.reads_config else _READS.get(case.acting_mode, _OF_ENGINE)
    return Step("asked", "What the container asks for", text, _REQUEST, facts)


def _request_facts(case: Case) -> Iterator[Fact]:
    env, request = case.given.spec.env, case.decision.request
    if request is not None:
        devices = ", ".join(request.devices) or "none: the driver's files without a device"
        yield Fact("devices", devices, request.devices_from)
    elif case.started is not None and case.started.names:
        yield Fact("devices", ", ".join(case.started.names), "CDI names")
    else:
        value = env.get(names.VISIBLE_DEVICES)
        devices = "not set" if value is None else value or "set to an empty value"
        yield Fact("devices", devices, names.VISIBLE_DEVICES)
    if case.started is not None:
        said = case.started.remarks[0].message if case.started.remarks else ""
        yield Fact("mode", case.started.mode, said)
    elif case.reads_config:
        yield Fact("mode", "not known", "what has made the edits does not write it down")
    value = env.get(names.DRIVER_CAPABILITIES)
    yield Fact(
        "capabilities",
        "not looked at" if value is None else f"{value}: not looked at",
        "CDI edits bring all of the driver, whatever a container asks for",
    )
    if case.acting_mode != "csv":
        for requirement in requirements_of(env, disabled=False):
            yield Fact("requires", f"{requirement}: not checked", "only mode legacy checks it")


def _host_step(case: Case) -> Step:
    """Return the step about the host. The catalogue of the hook has no part in it."""
    step = host_step(case.host)
    facts = tuple(fact for fact in step.facts if fact.name not in {"found", "not found"})
    text = (
        f"The driver on {case.host.label} reports its version and its GPUs. A specification has "
        "every library of that version in the driver's directories, under the same path, not "
        "those of the hook's catalogue alone."
    )
    return replace(step, text=text, doc=_HOST, facts=facts)


def _edits_step(case: Case, plan: Injection) -> Step:
    if case.reads_config:
        text = (
            "The edits are the bind mounts of the host's files, the device nodes and the calls of "
            "CDI hooks in config.json. Nothing is generated or looked up."
        )
    elif case.looks_up_devices:
        text = (
            "The devices are looked up by their names in the CDI specifications, the later "
            "directory before the earlier one. The edits that all devices of a file share come "
            "first, then those of each device."
        )
    elif case.acting_mode == "csv":
        text = "The runtime makes the edits from the CSV files of the board."
    elif case.started is not None:
        text = (
            "The runtime makes a specification in memory, of the kind runtime.nvidia.com/gpu and "
            "of these devices alone. Files in /etc/cdi and /var/run/cdi are not read."
        )
    else:
        text = "The device plugin has written the specification, and the engine reads it."
    facts = []
    for origin in case.origins:
        if origin.device:
            facts.append(Fact("device", f"{origin.kind}={origin.device}", origin.file))
        elif origin.file:
            facts.append(Fact("specification", origin.file, f"for every device of {origin.kind}"))
        else:
            facts.append(Fact("edits", str(origin)))
    entries = []
    for action in plan.actions:
        if isinstance(action, SetVariable):
            how = f"set to {action.value or 'an empty value'}"
            entries.append(StoryEntry(action.name, how, action.why.found))
        elif isinstance(action, AddGroup):
            entries.append(StoryEntry(f"group {action.gid}", "added", action.why.found))
    title = "Where the edits come from"
    return Step("edits", title, text, _WHY, tuple(facts), tuple(entries))


def _files_step(plan: Injection) -> Step:
    entries = [
        replace(entry, why=action.why.found)
        for action in plan.actions
        if isinstance(action, Bind) and (entry := file_entry(action)) is not None
    ]
    return Step(
        "files",
        "What goes where",
        "Each mount and each device node is an edit. A file keeps the path that it has on the "
        "host, whatever the layout of the image. They are shown by the capability for which the "
        "hook would mount them.",
        _HOST,
        (),
        tuple(entries),
        grouped=True,
    )


def _runtime_step(plan: Injection) -> Step:
    counts = [
        sum(isinstance(action, kind) for action in plan.actions)
        for kind in (Bind, MakeDirectory, AllowDevice)
    ]
    facts = (
        Fact("mounts and nodes", str(counts[0]), "as config.json lists them"),
        Fact("new directories", str(counts[1]), "parents that the image lacks"),
        Fact("device rules", str(counts[2]), "linux.resources.devices of config.json"),
    )
    entries = (
        kernel_entry(action) for action in plan.actions if isinstance(action, Bind | AllowDevice)
    )
    return Step(
        "kernel",
        "What the low-level runtime does",
        f"The edits are in config.json, and {_LOW} carries them out: it makes the device nodes, "
        "allows them in the container's cgroup, and mounts the files. No prestart hook is called.",
        _RUNTIME,
        facts,
        tuple(replace(entry, why="") for entry in entries if entry is not None),
    )


def _steps_of(hook: RunHook) -> list[list[str]]:
    """Return the steps of a hook, each as its name and arguments."""
    words = list(hook.args[1:])
    if words[:1] == [cdi_hooks.CTK_WORD]:
        del words[0]
    steps: list[list[str]] = []
    for word in words:
        if word in cdi_hooks.STEP_NAMES:
            steps.append([word])
        elif steps and word != "--":
            steps[-1].append(word)
    return steps


def _in_short(step: list[str]) -> str:
    """Return a step with its arguments, or their number if they are many."""
    links = step.count("--link")
    return f"{step[0]} with {links} links" if links > 2 else " ".join(step)


def _hooks_step(plan: Injection) -> Step:
    hooks = [action for action in plan.actions if isinstance(action, RunHook)]
    facts = [
        Fact(hook.stage, f"{hook.path}: {_in_short(step)}", hook.why.found)
        for hook in hooks
        for step in _steps_of(hook) or [["what it does is not known"]]
    ]
    if not hooks:
        facts.append(Fact("hooks", "none", "so nothing makes links, or writes the loader cache"))
    written = [
        StoryEntry(action.path, f"a file of {len(action.content.encode())} bytes", action.why.found)
        for action in plan.actions
        if isinstance(action, WriteFile)
    ]
    return Step(
        "hooks",
        "What the hooks of the edits do",
        f"CDI has no words for links and for the loader cache. {_at_first(_LOW)} starts "
        "these programs in the container's namespaces, after the mounts and before the root is "
        "changed.",
        _HOOKS,
        tuple(facts),
        tuple(written),
    )


def _loader_step(plan: Injection, proofs: Sequence[Proof]) -> Step:
    facts = loader_facts(
        plan,
        proofs,
        "the folders of update-ldcache, in addition to those that the image configures",
    )
    entries = [
        StoryEntry(action.path, f"-> {action.target}", "create-symlinks: programs open this name")
        for action in plan.actions
        if isinstance(action, Symlink)
    ]
    entries += [
        StoryEntry(path, f"-> {target}", f"update-ldcache: {SONAME_LINK}", ALWAYS)
        for path, target in plan.links
    ]
    return Step(
        "loader",
        "How programs find the driver",
        "create-symlinks makes the links that the host has, update-ldcache the missing SONAME "
        "links and /etc/ld.so.cache. Without these two hooks, no program would find the libraries.",
        _HOOKS,
        tuple(facts),
        tuple(entries),
    )


def _original_step(case: Case, plan: Injection) -> Step:
    facts = [
        Fact("hook", f"{cdi_hooks.REFERENCE_PROGRAM} {_in_short(step)}", hook.stage)
        for hook in plan.actions
        if isinstance(hook, RunHook)
        for step in _steps_of(hook)
    ]
    if case.looks_up_devices:
        file = next((one.file for one in case.origins if one.file), "")
        written = file if not case.specifications.made else "/etc/cdi/nvidia.yaml"
        facts.insert(0, Fact("command", f"nvidia-ctk cdi generate --output={written}", "once"))
    return Step(
        "original",
        "What NVIDIA's programs would do",
        "nvidia-container-runtime makes the same edits in this mode, with one hook for each step. "
        "Neither nvidia-container-runtime-hook nor nvidia-container-cli is called.",
        _HOOKS,
        tuple(facts),
    )


def _refuser(case: Case, refusal: Refusal) -> str:
    """Return the program that refuses."""
    if case.before_runtime:
        return "the engine"
    return _LOW if isinstance(refusal, Unmountable) or case.started is None else "nvgraft-runtime"


def _at_first(words: str) -> str:
    """Return words with a capital first letter, unless they begin with a program's name."""
    return words if words.startswith("nvgraft") else words[:1].upper() + words[1:]


def _end_step(case: Case, plan: Plan, refusal: Refusal | None) -> Step:
    facts = [Fact("because", plan.reason if refusal is None else refusal.line())]
    named = trouble(case)
    if named is not None:
        facts.append(Fact("cause", named.cause))
        facts.append(Fact("fix", named.fix))
    change = smallest_change(
        Subject("capability", "utility"), case, lambda other: other.decision == "inject"
    )
    if change:
        facts.append(
            Fact(
                CHANGE,
                " ".join(change),
                "tested: the smallest change of the environment that gives the container the "
                "driver",
            )
        )
    elif named is None:
        hint = refusal.hint if refusal is not None else ""
        advice = hint or "no change of the container's environment"
        facts.append(Fact(CHANGE, advice))
    if refusal is None:
        return Step(
            "end",
            "nvgraft-runtime adds nothing",
            "This is not a GPU container in this mode. config.json goes on without edits and "
            "without the prestart hook.",
            _REQUEST,
            tuple(facts),
        )
    who = _refuser(case, refusal)
    return Step(
        "end",
        f"{_at_first(who)} refuses",
        "The container is not created." if who != _LOW else "The container does not start.",
        _WHY,
        tuple(facts),
    )
