"""From a case to its story. Nothing is decided here: each step asks what the hook itself asks, and says what came back."""

import posixpath
from collections.abc import Iterator

from nvgraft.base.errors import Refusal
from nvgraft.container.target import BINARIES_DIRECTORY, Target
from nvgraft.formats.tree import PathError
from nvgraft.host.components import Inventory
from nvgraft.plan.actions import (
    Action,
    AllowDevice,
    Bind,
    Injection,
    MakeDirectory,
    Plan,
    Symlink,
    Tmpfs,
    UpdateLoaderCache,
    WriteFile,
)
from nvgraft.request.argv import reference_argv
from nvgraft.request.request import Request, check_request
from nvgraft_cli.case.planning import Case
from nvgraft_cli.explain.story import ALWAYS, Fact, Step, Story, StoryEntry
from nvgraft_cli.shell.text import size
from nvgraft_cli.why.change import smallest_change
from nvgraft_cli.why.subject import Subject
from nvgraft_specs import names

#: The pages of docs/ that teach the steps.
_ASKED = "guide/1-what-is-asked.md"
_HOST = "guide/2-what-the-host-has.md"
_PLACE = "guide/3-where-things-go.md"
_PLAN = "guide/4-the-plan.md"
_LOADER = "guide/6-what-the-loader-finds.md"
_FAILS = "guide/8-when-it-fails.md"

_SHOWN_MISSING = 12


def tell(case: Case) -> Story:
    """Return the story of a case.

    :raises nvgraft_cli.shell.errors.InputError: when the container cannot be read.
    """
    plan, refusal = case.outcome
    steps = tuple(_steps(case, plan, refusal))
    return Story(
        plan.decision, _headline(plan, refusal), case.host.label, case.container.label, steps
    )


def _headline(plan: Plan, refusal: Refusal | None) -> str:
    if refusal is not None:
        return f"The hook refuses, and the container does not start: {refusal.text}"
    if not isinstance(plan, Injection):
        return f"The hook does nothing, and the container starts without the driver: {plan.reason}"
    binds = [action for action in plan.actions if isinstance(action, Bind)]
    nodes = sum(action.kind == "device" for action in binds)
    files = sum(action.kind == "file" and action.origin == "driver" for action in binds)
    amount = size(sum(action.size for action in binds))
    things = f"{files} files ({amount}), {nodes} device nodes, {len(plan.links)} SONAME links"
    return f"The container gets driver {plan.host.driver_version}: {things}"


def _steps(case: Case, plan: Plan, refusal: Refusal | None) -> Iterator[Step]:
    yield _asked(case)
    request = case.decision.request
    if request is not None:
        try:
            check_request(request)
            yield _host(case.host.label, case.host.inventory)
            yield _place(case, case.target)
        except Refusal:
            pass  # it is the one in which the story ends
    if plan.decision == "inject" and request is not None:
        yield _files(plan)
        yield _kernel(plan)
        yield _loader(plan, case.host.config.ldcache_mode)
        yield _original(case, request)
        if plan.findings:
            yield _findings(plan)
    else:
        yield _end(case, plan, refusal)


# ---- 1: what was asked


def _asked(case: Case) -> Step:
    try:
        facts = tuple(_request_facts(case))
    except Refusal:
        facts = ()  # config.json cannot be read: the story ends with that
    return Step(
        "asked",
        "What the container asks for",
        "The hook reads config.json: variables, volume mounts and capabilities of the process. "
        "Image and engine cannot be told apart there: a variable may come from either.",
        f"{_ASKED}#the-variables",
        facts,
    )


def _request_facts(case: Case) -> Iterator[Fact]:
    spec, request = case.container.spec, case.decision.request
    if request is None:
        value = spec.env.get(names.VISIBLE_DEVICES)
        said = "not set" if value is None else value or "set, and empty"
        yield Fact("devices", said, names.VISIBLE_DEVICES)
        yield Fact(
            "capabilities",
            spec.env.get(names.DRIVER_CAPABILITIES) or "not set",
            names.DRIVER_CAPABILITIES,
        )
    else:
        yield Fact(
            "devices",
            ", ".join(request.devices) or "none: driver files without a device",
            request.origin.devices,
        )
        source = request.origin.capabilities
        if source == "default":
            source = f"default: {names.DRIVER_CAPABILITIES} is {'empty' if names.DRIVER_CAPABILITIES in spec.env else 'not set'}"
        yield Fact("capabilities", ", ".join(request.capabilities) or "none", source)
        variables = [
            name
            for name in sorted(spec.env)
            if name.startswith(names.REQUIRE_PREFIX)
            and not name.startswith(names.REQUIRE_JETPACK_PREFIX)
        ]
        # One for each variable; what is left over is what an old image means by its CUDA_VERSION.
        for number, requirement in enumerate(request.requirements):
            yield Fact(
                "requires",
                requirement,
                variables[number] if number < len(variables) else names.CUDA_VERSION,
            )
        for name, value, variable in (
            ("MIG config", request.mig_config, names.MIG_CONFIG_DEVICES),
            ("MIG monitor", request.mig_monitor, names.MIG_MONITOR_DEVICES),
            (
                "IMEX channels",
                ", ".join(request.imex_channels.written),
                f"{names.IMEX_CHANNELS}, or volume mounts",
            ),
        ):
            if value:
                yield Fact(name, value, variable)
        if request.legacy_image:
            yield Fact(
                "old CUDA image",
                "yes",
                f"{names.CUDA_VERSION} is set, {names.REQUIRE_CUDA} is not: it asks for everything",
            )
    privileged = names.PRIVILEGED_CAPABILITY in spec.bounding
    yield Fact(
        "privileged",
        "yes" if privileged else "no",
        f"{names.PRIVILEGED_CAPABILITY} is {'in' if privileged else 'not in'} the bounding set",
    )
    for line in case.decision.log:
        yield Fact("the hook logs", line)


# ---- 2: what the host has


def _host(label: str, inventory: Inventory) -> Step:
    report, files = inventory.report, inventory.files
    facts = [
        Fact("driver", report.driver_version, "as the driver itself says, through NVML"),
        Fact("CUDA", report.cuda_version, "the newest version that this driver serves"),
        Fact("driver root", inventory.root, "files are looked up below it"),
    ]
    for index, gpu in enumerate(report.gpus):
        mig = "" if gpu.mig != "enabled" else f", MIG with {len(gpu.mig_devices)} devices"
        facts.append(
            Fact(
                f"GPU {index}", gpu.model + mig, f"{gpu.uuid}, /dev/nvidia{gpu.minor}, {gpu.bus_id}"
            )
        )
    if not report.gpus:
        facts.append(Fact("GPUs", "none", "NVML reports no GPU"))
    counts = (
        ("libraries", len(files.libraries)),
        ("32-bit libraries", len(files.libraries32)),
        ("programs", len(files.binaries)),
        ("firmware files", len(files.firmware)),
        ("sockets", len(files.sockets)),
    )
    facts.append(
        Fact(
            "found",
            ", ".join(f"{count} {what}" for what, count in counts if count)
            or "no file of the driver",
        )
    )
    if files.missing:
        rows = [row.name for row in files.missing]
        more = f" and {len(rows) - _SHOWN_MISSING} more" if len(rows) > _SHOWN_MISSING else ""
        facts.append(
            Fact(
                "not here",
                ", ".join(rows[:_SHOWN_MISSING]) + more,
                "no driver version or package has everything",
            )
        )
    return Step(
        "host",
        "What the host has",
        f"On {label} the driver is asked for its version and its GPUs; its libraries are those entries of the host's loader cache "
        "whose name ends in that version.",
        f"{_HOST}#what-is-looked-for",
        tuple(facts),
    )


# ---- 3: where things go


def _place(case: Case, target: Target) -> Step:
    facts = [
        Fact(
            "root file system",
            target.rootfs,
            "" if case.container.rootfs_known else "its files are not known: it counts as empty",
        )
    ]
    debian = target.tree.find("/etc/debian_version")[1] is not None
    marker = (
        "the image has /etc/debian_version" if debian else "the image has no /etc/debian_version"
    )
    facts.append(Fact("libraries", target.libs_dir, marker))
    request = case.decision.request
    if request is not None and "compat32" in request.capabilities:
        facts.append(Fact("32-bit libraries", target.libs32_dir, marker))
    facts.append(Fact("programs", BINARIES_DIRECTORY, "in every image"))
    for path in (target.libs_dir, BINARIES_DIRECTORY, "/etc", "/run", "/var/run"):
        try:
            resolved = target.tree.resolve(path)
        except PathError as error:
            resolved = error.text
        if resolved != path:
            facts.append(
                Fact(f"{path} leads to", resolved, "a link of the image, followed inside it")
            )
    for _, destination in case.container.spec.mounts:
        if not f"{posixpath.normpath(destination)}/".startswith(("/proc/", "/sys/", "/dev/")):
            facts.append(
                Fact("volume", destination, "nothing is made on it: it is not the container's own")
            )
    facts.append(
        Fact(
            "owner of what is made",
            f"{target.uid}:{target.gid}",
            "the container's root, as the host numbers it",
        )
    )
    return Step(
        "place",
        "Where things go in this container",
        "The image decides by its layout: the same driver goes to other directories in a Debian image than in the rest. "
        "Links of the image are followed inside it, component by component.",
        f"{_PLACE}#the-image-decides",
        tuple(facts),
    )


# ---- 4 and 5: what goes where, and what the kernel is told


def _capability(action: Action) -> str:
    why = getattr(action, "why", None)
    return (why.capability or ALWAYS) if why is not None else ALWAYS


def reason(action: Action) -> str:
    """Return why an action is in a plan, in one line."""
    why = getattr(action, "why", None)
    if why is None:
        return ""
    return f"{why.row}: {why.found}" if why.row != why.found else str(why.row)


def _files(plan: Plan) -> Step:
    entries = []
    for action in plan.actions:
        if isinstance(action, Bind) and action.origin != "proc":
            how = (
                "same path on the host"
                if action.source == action.target
                else f"the host's {action.source}"
            )
            if action.rdev is not None:
                how = "character device {}:{}".format(*action.rdev)
            amount = action.size if action.kind == "file" else None
            entries.append(
                StoryEntry(action.target, how, reason(action), _capability(action), amount)
            )
    return Step(
        "files",
        "What goes where",
        "Each file is there because a capability that was asked for switches its row of the catalogue on, and the host has it.",
        f"{_PLAN}#what-goes-where",
        (),
        tuple(entries),
        grouped=True,
    )


def _kernel(plan: Plan) -> Step:
    made = sum(isinstance(action, MakeDirectory) for action in plan.actions)
    binds = sum(isinstance(action, Bind) for action in plan.actions)
    rules = sum(isinstance(action, AllowDevice) for action in plan.actions)
    tmpfs = sum(isinstance(action, Tmpfs) for action in plan.actions)
    facts = (
        Fact("bind mounts", str(binds), "each on a placeholder that is made where nothing is"),
        Fact("tmpfs", str(tmpfs), "where the container must see something else than the host"),
        Fact("directories made", str(made), "parents that the image lacks"),
        Fact(
            "device rules",
            str(rules),
            "in the container's cgroup"
            if rules
            else "none: no device, or no-cgroups = true in config.toml",
        ),
    )
    return Step(
        "kernel",
        "What the kernel is told",
        "All sources are opened on the host's side first, then all targets on the container's; only then is anything mounted, "
        "in this order. If one step fails, all is undone.",
        f"{_PLAN}#what-the-kernel-is-told",
        facts,
        tuple(entry for action in plan.actions if (entry := kernel_entry(action)) is not None),
    )


def kernel_entry(action: Action) -> StoryEntry | None:
    """Return what the kernel is told by an action that mounts or allows something."""
    why, capability = reason(action), _capability(action)
    if isinstance(action, Bind):
        return StoryEntry(
            action.target, f"bind {action.source} ({','.join(action.options)})", why, capability
        )
    if isinstance(action, Tmpfs):
        return StoryEntry(
            action.target,
            f"tmpfs ({','.join(action.options)}, mode {action.mode:04o})",
            why,
            capability,
        )
    if isinstance(action, WriteFile):
        return StoryEntry(
            action.path,
            f"a file of {len(action.content.encode())} bytes in that tmpfs",
            why,
            capability,
        )
    if isinstance(action, AllowDevice):
        return StoryEntry(
            f"c {action.major}:{action.minor}", f"may be opened ({action.access})", why, capability
        )
    return None


# ---- 6: links and the loader cache


def _loader(plan: Plan, mode: str) -> Step:
    entries = [
        StoryEntry(action.path, f"-> {action.target}", reason(action), _capability(action))
        for action in plan.actions
        if isinstance(action, Symlink)
    ]
    brings = {
        action.target: _capability(action) for action in plan.actions if isinstance(action, Bind)
    }
    for path, target in plan.links:
        library = posixpath.join(posixpath.dirname(path), target)
        entries.append(
            StoryEntry(
                path,
                f"-> {target}",
                "SONAME: the name by which programs ask for it",
                brings.get(library, ALWAYS),
            )
        )
    facts = tuple(
        Fact(
            "loader cache",
            ", ".join(action.directories),
            "searched besides what the image's own configuration names",
        )
        for action in plan.actions
        if isinstance(action, UpdateLoaderCache)
    )
    maker = (
        "The host's ldconfig, run in a jail inside the container's root,"
        if mode == "ldconfig"
        else "The hook itself, running no program,"
    )
    return Step(
        "loader",
        "How programs find it",
        f"{maker} makes a link for each SONAME and puts the driver's libraries into /etc/ld.so.cache; "
        "without this the driver would be there and no program would find it.",
        f"{_LOADER}#links-and-the-cache",
        facts,
        tuple(entries),
    )


# ---- 7: the original


def _original(case: Case, request: Request) -> Step:
    argv = reference_argv(request, case.host.config, 0, case.decision.rootfs)
    words = ["--pid=PID" if word == "--pid=0" else word for word in argv]
    return Step(
        "original",
        "What the original hook would have executed",
        "The same decision as a command line: nvidia-container-runtime-hook becomes nvidia-container-cli with these arguments. "
        "PID is the container's process, known when it starts.",
        f"{_PLAN}#the-originals-command-line",
        (Fact("command", " ".join(["nvidia-container-cli", *words])),),
    )


def _findings(plan: Plan) -> Step:
    return Step(
        "findings",
        "What you should know",
        "None of this keeps the container from starting.",
        f"{_FAILS}#before-it-starts",
        (),
        tuple(
            StoryEntry(finding.id, f"{finding.level}: {finding.message}", finding.hint)
            for finding in plan.findings
        ),
    )


# ---- the end of a story without a plan


def _end(case: Case, plan: Plan, refusal: Refusal | None) -> Step:
    change = smallest_change(
        Subject("capability", "utility"), case, lambda other: other.decision == "inject"
    )
    mend = refusal.hint if refusal is not None else ""
    facts = [Fact("because", refusal.line() if refusal is not None else plan.reason)]
    if change:
        facts.append(
            Fact(
                "what would change it",
                " ".join(change),
                "the smallest change of the environment with which the driver is given: tried out",
            )
        )
    elif mend:
        facts.append(Fact("what would change it", mend, "no change of the environment does"))
    else:
        facts.append(
            Fact(
                "what would change it",
                "no change of the container's environment",
                "look at config.toml and at how it was started",
            )
        )
    if refusal is None:
        text = "This is no GPU container. The hook ends here, with exit code 0 and without a word: nothing is looked up, made or mounted."
        return Step(
            "end",
            "The hook does nothing",
            text,
            f"{_ASKED}#a-container-that-asks-for-nothing",
            tuple(facts),
        )
    text = "The hook ends here with exit code 1, before anything is made, and the runtime does not start the container."
    return Step("end", "The hook refuses", text, f"{_FAILS}#a-refusal", tuple(facts))
