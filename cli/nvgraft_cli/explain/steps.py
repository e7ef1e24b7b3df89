"""Tell what the hook does with a case. Decisions are its own: each step reports one of them."""

import posixpath
from collections.abc import Iterator, Sequence

from nvgraft.base.errors import Refusal
from nvgraft.cdi import platform
from nvgraft.container.target import BINARIES_DIRECTORY, Target
from nvgraft.formats.tree import OutOfBounds, PathError
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
from nvgraft_cli.case.handover import ChainLink
from nvgraft_cli.case.hosts import HostSide
from nvgraft_cli.case.planning import Case
from nvgraft_cli.explain.story import ALWAYS, Fact, PodLayer, Step, StoryEntry
from nvgraft_cli.prove.opened import CaseProofs, needed_capabilities, opened_libraries
from nvgraft_cli.prove.proof import Proof
from nvgraft_cli.prove.start.architecture import start_error
from nvgraft_cli.shell.text import size
from nvgraft_cli.why.change import smallest_change
from nvgraft_cli.why.subject import Subject
from nvgraft_specs import names

#: The pages of docs/ to read about the steps.
_REQUEST = "guide/1-what-is-asked.md"
_HOST = "guide/2-what-the-host-has.md"
_PLACE = "guide/3-where-things-go.md"
_PLAN = "guide/4-the-plan.md"
_LOADER = "guide/6-what-the-loader-finds.md"
_FAILS = "guide/8-when-it-fails.md"

#: The libraries without which CUDA and nvidia-smi find no GPU.
_CUDA, _NVML = "libcuda.so.1", "libnvidia-ml.so.1"

#: How many missing files to name.
_MISSING_NAMES = 12

#: The name of the fact that says how a container gets the driver that does not get it.
CHANGE = "what would change it"

#: Why a SONAME link is created.
SONAME_LINK = "SONAME link: programs request the library by this name"


def driver_proofs(answers: CaseProofs, plan: Plan) -> list[Proof]:
    """Return what the container's program loads when it opens libraries of the driver.

    A library that neither the host nor the image has is left out, unless every driver has it.

    :param answers: those about the case of the plan.
    """
    if not isinstance(plan, Injection):
        return []
    mounted = tuple(action.target for action in plan.actions if isinstance(action, Bind))
    # JetPack 5 and older have no NVML.
    everywhere = {_CUDA} if answers.case.host.platform == platform.TEGRA else {_CUDA, _NVML}
    proofs = []
    for name in opened_libraries(plan.request.capabilities):
        proof = answers.opened(name)
        row = f"/{name.rpartition('.')[0]}."
        missed = name in everywhere or any(row in path for path in mounted)
        if proof is not None and (proof.final.path or missed):
            proofs.append(proof)
    return proofs


def headline(case: Case, plan: Plan, refusal: Refusal | None, proofs: list[Proof]) -> str:
    """Return the first sentence of the hook's story."""
    if refusal is not None:
        who = "Nobody creates the pod's container" if case.before_runtime else "The hook refuses"
        return f"{who}, and the container does not start: {refusal.text}"
    if case.before_runtime:
        return f"Nobody adds the driver, and the container starts without it: {plan.reason}"
    if not isinstance(plan, Injection):
        if case.edited_before:
            return f"The hook does nothing: {plan.reason}"
        return without_driver(
            f"The hook does nothing, and the container starts without the driver: {plan.reason}",
            case,
        )
    binds = [action for action in plan.actions if isinstance(action, Bind)]
    nodes = f"{sum(action.kind == 'device' for action in binds)} device nodes"
    if not case.host.gpus_known:
        nodes = "device nodes that are not known"
    files = sum(action.kind == "file" and action.origin == "driver" for action in binds)
    amount = size(sum(action.size for action in binds))
    counts = f"{files} files ({amount}), {nodes}, {len(plan.links)} SONAME links"
    words = f"The container gets driver {plan.host.driver_version}: {counts}"
    return with_trouble(words, case, plan, proofs)


def with_trouble(words: str, case: Case, plan: Injection, proofs: Sequence[Proof]) -> str:
    """Return what the container gets, with what has been done before, and which of the libraries
    that its programs need does not load.
    """
    if case.edited_before:
        words = f"{words}; {case.edited_before}"
    if error := _start_error(case, case.host.facts.machine):
        return words + error
    needed = set(opened_libraries(needed_capabilities(case, plan.request)))
    trouble = next((one.trouble for one in proofs if one.trouble and one.what in needed), "")
    return f"{words}; but {trouble}" if trouble else words


def without_driver(words: str, case: Case) -> str:
    """Return that the container gets nothing, and whether its program starts nevertheless.

    The architecture of the host is not asked for: this is told without its driver.
    """
    return words + _start_error(case, "")


def _start_error(case: Case, machine: str) -> str:
    if not case.container.rootfs_known:
        return ""
    try:
        error = start_error(case.planned_tree, case.container, machine)
    except OutOfBounds:
        return ""
    return f"; but its program does not start: {error}" if error else ""


def hook_steps(
    case: Case, plan: Plan, refusal: Refusal | None, proofs: list[Proof]
) -> Iterator[Step]:
    """Yield the steps of the hook's story."""
    if case.handover is not None:
        yield pod_step(case, plan, refusal)
    yield _request_step(case)
    request = case.decision.request
    if request is not None:
        try:
            check_request(request)
            yield host_step(case.host)
            yield _target_step(case, case.target)
        except Refusal:
            pass  # the last step tells this refusal
    if plan.decision == "inject" and request is not None:
        yield _files_step(plan)
        yield _kernel_step(plan)
        yield _loader_step(plan, case.host.config.ldcache_mode, proofs)
        yield _original_step(case, request)
        if plan.findings:
            yield findings_step(plan)
    else:
        yield _end_step(case, plan, refusal)


# ---- 0: the pod

#: Decision -> what the container comes to by it.
_OUTCOMES = {
    "inject": "gets the driver",
    "skip": "starts without the driver",
    "refuse": "does not start",
}

#: PodLayer -> its title.
_LAYERS = {
    "pod": "Pod",
    "kubelet": "Kubelet and device plugin",
    "engine": "Engine",
    "runtime": "Runtime",
    "hook": "Hook",
    "container": "Container",
}


def pod_step(case: Case, plan: Plan, refusal: Refusal | None) -> Step:
    """Return the step about the way from a pod to its container."""
    links = list(case.chain)
    end = plan.reason if refusal is None else refusal.text
    links.append(ChainLink("container", _OUTCOMES[plan.decision], end))
    layers = [
        PodLayer(
            layer,
            title,
            tuple(Fact(link.step, link.how) for link in links if link.layer == layer),
            next((link.fault for link in links if link.layer == layer and link.fault), ""),
        )
        for layer, title in _LAYERS.items()
    ]
    return Step(
        "pod",
        "From the pod to the container",
        "The scheduler counts resources, the kubelet chooses devices, the device plugin answers "
        "with variables, mounts or CDI names, and the engine hands them to a runtime. Each layer "
        "sees only what the layer before it has written.",
        "kubernetes.md#from-the-pod-to-the-mounted-file",
        tuple(Fact(link.step, link.how, link.fault) for link in links),
        layers=tuple(layers),
    )


# ---- 1: what the container asks for


def _request_step(case: Case) -> Step:
    try:
        facts = tuple(_request_facts(case))
    except Refusal:
        facts = ()  # config.json cannot be read: the last step tells it
    reader = "Nobody reads" if case.before_runtime else "The hook reads"
    return Step(
        "asked",
        "What the container asks for",
        f"{reader} the request from config.json: environment variables, volume mounts and "
        "capabilities of the process. config.json does not say whether a variable comes from the "
        "image or from the engine.",
        f"{_REQUEST}#the-variables",
        facts,
    )


def _request_facts(case: Case) -> Iterator[Fact]:
    spec, request = case.container.spec, case.decision.request
    if request is None:
        value = spec.env.get(names.VISIBLE_DEVICES)
        devices = "not set" if value is None else value or "set to an empty value"
        yield Fact("devices", devices, names.VISIBLE_DEVICES)
        yield Fact(
            "capabilities",
            spec.env.get(names.DRIVER_CAPABILITIES) or "not set",
            names.DRIVER_CAPABILITIES,
        )
    else:
        yield Fact(
            "devices",
            ", ".join(request.devices) or "none: the driver's files without a device",
            request.devices_from,
        )
        source = request.capabilities_from
        if source == "default":
            state = "empty" if names.DRIVER_CAPABILITIES in spec.env else "not set"
            source = f"default: {names.DRIVER_CAPABILITIES} is {state}"
        yield Fact("capabilities", ", ".join(request.capabilities) or "none", source)
        variables = [
            name
            for name in sorted(spec.env)
            if name.startswith(names.REQUIRE_PREFIX)
            and not name.startswith(names.REQUIRE_JETPACK_PREFIX)
        ]
        # One requirement for each variable; a further one comes from an old image's CUDA_VERSION.
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
                f"{names.CUDA_VERSION} is set and {names.REQUIRE_CUDA} is not: the image asks for "
                "all devices and capabilities",
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


def host_step(host: HostSide) -> Step:
    """Return the step about the host."""
    report, files = host.inventory.report, host.inventory.files
    known = host.gpus_known
    says = "as the driver reports through NVML" if known else "in the names of the driver's files"
    facts = [
        Fact("driver", report.driver_version, says),
        Fact("CUDA", report.cuda_version, "the newest version that this driver supports"),
        Fact("driver root", host.inventory.root, "the directory below which files are looked up"),
    ]
    for index, gpu in enumerate(report.gpus):
        mig = "" if gpu.mig != "enabled" else f", MIG with {len(gpu.mig_devices)} devices"
        facts.append(
            Fact(
                f"GPU {index}", gpu.model + mig, f"{gpu.uuid}, /dev/nvidia{gpu.minor}, {gpu.bus_id}"
            )
        )
    if not known:
        facts.append(Fact("GPUs", "not known", "the document of the host has no GPUs"))
    elif not report.gpus:
        facts.append(Fact("GPUs", "none", "NVML reports no GPU"))
    counts = (
        ("libraries", files.libraries),
        ("32-bit libraries", files.libraries32),
        ("programs", files.binaries),
        ("firmware files", files.firmware),
        ("sockets", files.sockets),
    )
    amounts = [f"{kind}: {len(paths)}" for kind, paths in counts if paths]
    facts.append(Fact("found", ", ".join(amounts) or "no file of the driver"))
    if files.missing:
        rows = [row.name for row in files.missing]
        more = f" and {len(rows) - _MISSING_NAMES} more" if len(rows) > _MISSING_NAMES else ""
        facts.append(
            Fact(
                "not found",
                ", ".join(rows[:_MISSING_NAMES]) + more,
                "no driver version or package contains all files",
            )
        )
    reports = f"The driver on {host.label} reports its version and its GPUs through NVML."
    if not known:
        reports = f"{host.label} was recorded from the files of a driver that does not run."
    return Step(
        "host",
        "What the host has",
        f"{reports} Its libraries are the entries of the host's loader cache whose file names end "
        "in that version.",
        f"{_HOST}#what-is-looked-for",
        tuple(facts),
    )


# ---- 3: where things go


def _target_step(case: Case, target: Target) -> Step:
    facts = [
        Fact(
            "root file system",
            target.rootfs,
            "" if case.container.rootfs_known else "its files are not known: taken as empty",
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
                Fact(
                    "volume",
                    destination,
                    "nothing is created on it: it does not belong to the container",
                )
            )
    facts.append(
        Fact(
            "owner of new files",
            f"{target.uid}:{target.gid}",
            "the container's root user, as ids of the host",
        )
    )
    return Step(
        "place",
        "Where things go in this container",
        "The layout of the image decides: libraries go to one directory in a Debian image, and to "
        "another in all others. Symbolic links of the image are followed inside its root file "
        "system, component by component.",
        f"{_PLACE}#the-image-decides",
        tuple(facts),
    )


# ---- 4 and 5: what goes where, and what the kernel is told


def capability_of(action: Action) -> str:
    """Return the capability that an action belongs to."""
    why = getattr(action, "why", None)
    return (why.capability or ALWAYS) if why is not None else ALWAYS


def reason(action: Action) -> str:
    """Return in one line why an action is in a plan."""
    why = getattr(action, "why", None)
    if why is None:
        return ""
    return f"{why.row}: {why.found}" if why.row != why.found else str(why.row)


def file_entry(action: Action) -> StoryEntry | None:
    """Return the entry of a file or device of the host that is mounted, else None."""
    if not isinstance(action, Bind) or action.origin == "proc":
        return None
    how = (
        "same path on the host" if action.source == action.target else f"the host's {action.source}"
    )
    if action.rdev is not None:
        how = "character device {}:{}".format(*action.rdev)
    amount = action.size if action.kind == "file" else None
    return StoryEntry(action.target, how, reason(action), capability_of(action), amount)


def _files_step(plan: Plan) -> Step:
    return Step(
        "files",
        "What goes where",
        "Each file or device is mounted because the container requests the capability of its row "
        "in the catalogue, and the host has it.",
        f"{_PLAN}#what-goes-where",
        (),
        tuple(entry for action in plan.actions if (entry := file_entry(action)) is not None),
        grouped=True,
    )


def _kernel_step(plan: Plan) -> Step:
    directories = sum(isinstance(action, MakeDirectory) for action in plan.actions)
    binds = sum(isinstance(action, Bind) for action in plan.actions)
    rules = sum(isinstance(action, AllowDevice) for action in plan.actions)
    tmpfs = sum(isinstance(action, Tmpfs) for action in plan.actions)
    facts = (
        Fact("bind mounts", str(binds), "on empty files, created where the image has no file"),
        Fact("tmpfs", str(tmpfs), "where the container must not see the host's files"),
        Fact("new directories", str(directories), "parents that the image lacks"),
        Fact(
            "device rules",
            str(rules),
            "in the container's cgroup"
            if rules
            else "no device is requested, or config.toml has no-cgroups = true",
        ),
    )
    return Step(
        "kernel",
        "What the kernel is told",
        "The hook opens all sources on the host, then all targets in the container, and then "
        "mounts them in this order. If one step fails, it undoes all.",
        f"{_PLAN}#what-the-kernel-is-told",
        facts,
        tuple(entry for action in plan.actions if (entry := kernel_entry(action)) is not None),
    )


def kernel_entry(action: Action) -> StoryEntry | None:
    """Return the entry of an action that mounts something or allows a device, else None."""
    why, capability = reason(action), capability_of(action)
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


def loader_facts(plan: Plan, proofs: Sequence[Proof], meaning: str) -> list[Fact]:
    """Return the directories that are added to the loader cache, and what the loader finds.

    :param meaning: what the directories are.
    """
    facts = [
        Fact("loader cache", ", ".join(action.directories), meaning)
        for action in plan.actions
        if isinstance(action, UpdateLoaderCache)
    ]
    return facts + [Fact(proof.what, *proof.in_words()) for proof in proofs]


def _loader_step(plan: Plan, mode: str, proofs: list[Proof]) -> Step:
    entries = [
        StoryEntry(action.path, f"-> {action.target}", reason(action), capability_of(action))
        for action in plan.actions
        if isinstance(action, Symlink)
    ]
    capabilities = {
        action.target: capability_of(action) for action in plan.actions if isinstance(action, Bind)
    }
    for path, target in plan.links:
        library = posixpath.join(posixpath.dirname(path), target)
        capability = capabilities.get(library, ALWAYS)
        entries.append(StoryEntry(path, f"-> {target}", SONAME_LINK, capability))
    facts = loader_facts(
        plan, proofs, "scanned in addition to the directories that the image configures"
    )
    maker = (
        "The host's ldconfig, which the hook runs in a jail inside the container's root,"
        if mode == "ldconfig"
        else "The hook, which runs no program for this,"
    )
    return Step(
        "loader",
        "How programs find the driver",
        f"{maker} creates a link for each SONAME and adds the driver's libraries to "
        "/etc/ld.so.cache. Without these, no program would find the libraries.",
        f"{_LOADER}#links-and-the-cache",
        tuple(facts),
        tuple(entries),
    )


# ---- 7: the command line of NVIDIA's hook


def _original_step(case: Case, request: Request) -> Step:
    argv = reference_argv(request, case.host.config, 0, case.decision.rootfs)
    words = ["--pid=PID" if word == "--pid=0" else word for word in argv]
    return Step(
        "original",
        "What NVIDIA's hook would execute",
        "The same decision as a command line: nvidia-container-runtime-hook executes "
        "nvidia-container-cli with these arguments. PID stands for the container's process.",
        f"{_PLAN}#the-originals-command-line",
        (Fact("command", " ".join(["nvidia-container-cli", *words])),),
    )


def findings_step(plan: Plan) -> Step:
    """Return the step about a plan's findings."""
    return Step(
        "findings",
        "What you should know",
        "The hook and the runtime go on in spite of these findings.",
        f"{_FAILS}#before-it-starts",
        (),
        tuple(
            StoryEntry(finding.id, f"{finding.level}: {finding.message}", finding.hint)
            for finding in plan.findings
        ),
    )


# ---- the end of a story without a plan


def _end_step(case: Case, plan: Plan, refusal: Refusal | None) -> Step:
    if case.before_runtime:
        return _end_before_runtime(plan, refusal)
    change = smallest_change(
        Subject("capability", "utility"), case, lambda other: other.decision == "inject"
    )
    hint = refusal.hint if refusal is not None else ""
    facts = [Fact("because", refusal.line() if refusal is not None else plan.reason)]
    if change:
        facts.append(
            Fact(
                CHANGE,
                " ".join(change),
                "tested: the smallest change of the environment that gives the container the "
                "driver",
            )
        )
    elif hint:
        facts.append(Fact(CHANGE, hint, "no change of the environment does"))
    else:
        facts.append(
            Fact(
                CHANGE,
                "no change of the container's environment",
                "look at config.toml, and at how the container was started",
            )
        )
    if refusal is None:
        return Step(
            "end",
            "The hook does nothing",
            "This is not a GPU container. The hook ends with exit code 0 and prints nothing: it "
            "looks up, creates and mounts nothing.",
            f"{_REQUEST}#a-container-that-asks-for-nothing",
            tuple(facts),
        )
    return Step(
        "end",
        "The hook refuses",
        "The hook ends with exit code 1 before it creates anything, and the runtime does not "
        "start the container.",
        f"{_FAILS}#a-refusal",
        tuple(facts),
    )


def _end_before_runtime(plan: Plan, refusal: Refusal | None) -> Step:
    """Return the end of a pod whose container comes to no runtime of NVIDIA's or nvgraft's."""
    if refusal is None:
        because, hint = plan.reason, "runtimeClassName of a RuntimeClass with the runtime's handler"
    else:
        because, hint = refusal.text, refusal.hint
    return Step(
        "end",
        "The driver is not added",
        "The way from the pod ends before nvgraft-runtime or the hook is called.",
        "kubernetes.md#what-goes-wrong",
        (Fact("because", because), Fact(CHANGE, hint)),
    )
