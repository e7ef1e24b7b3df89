"""The phases of a start, in order, and the functions of the engine at which they begin."""

from typing import NamedTuple


class Phase(NamedTuple):
    """One phase of a start.

    :ivar name: the word for it in commands.
    :ivar task: what it does, as an order.
    :ivar result: what is true after it.
    :ivar begins: the functions, as ``module:name``, at whose first call it begins; none for what
        the runtime does.
    """

    name: str
    task: str
    result: str
    begins: tuple[str, ...]
    meaning: str


_CACHE_STEPS = (
    "nvgraft.apply.cache.native:NativeCache.update",
    "nvgraft.apply.cache.ldconfig:ConfinedLdconfig.update",
)

PHASES = (
    Phase(
        "state",
        "read the state",
        "state read",
        (),
        "The runtime has made the container's namespaces and mounts, and waits in a prestart hook."
        " The hook gets the OCI state on standard input: the pid of the process that becomes the"
        " container, and the path of the bundle. It reads config.toml and the bundle's"
        " config.json.",
    ),
    Phase(
        "request",
        "decide what is asked for",
        "request known",
        ("nvgraft.request.decision:decide",),
        "The variables of the process in config.json say which GPUs and which parts of the driver"
        " the container asks for. A container that asks for none is left alone, and the hook ends"
        " here.",
    ),
    Phase(
        "inventory",
        "look at the host and the container",
        "host and container looked at",
        ("nvgraft.graft:graft",),
        "The hook drops capabilities, holds the container's process by a pidfd, asks NVML for the"
        " GPUs in a confined child, finds the driver's files in the host's loader cache, opens the"
        " root file system once, and locks it.",
    ),
    Phase(
        "plan",
        "make the plan",
        "plan made",
        ("nvgraft.plan.planner:make_plan",),
        "A pure function of request, inventory and target makes an ordered list of actions. Nothing"
        " is changed by it; `nvgraft plan` prints the same list.",
    ),
    Phase(
        "sources",
        "open the sources",
        "sources opened",
        ("nvgraft.apply.executor:_carry_out",),
        "Still in the host's mount namespace, each source is cloned into a detached mount and gets"
        " its options; each tmpfs is made and filled. Then the hook enters the container's mount"
        " namespace for good: from there on it has only descriptors.",
    ),
    Phase(
        "targets",
        "make the targets",
        "targets made",
        ("nvgraft.apply.targets:Targets.prepare",),
        "Directories, empty placeholders and links are made on the container's root file system,"
        " owned by its root, and every target is opened. A symbolic link in the way is refused, not"
        " followed.",
    ),
    Phase(
        "mounts",
        "attach the mounts",
        "mounts attached",
        ("nvgraft.apply.executor:_attach",),
        "Each detached mount is attached to its open target, descriptor to descriptor: no path is"
        " looked up any more.",
    ),
    Phase(
        "devices",
        "allow the devices",
        "devices allowed",
        ("nvgraft.apply.cgroup:DeviceCgroup.allow",),
        "A device node in the container is not enough: the device cgroup denies to open it. The"
        " rules of the plan's nodes are added.",
    ),
    Phase(
        "cache",
        "write the loader cache",
        "loader cache written",
        _CACHE_STEPS,
        "The dynamic loader finds a library in /etc/ld.so.cache by its SONAME. The SONAME links are"
        " made, and the new cache takes the place of the old one by a rename.",
    ),
    Phase(
        "pivot",
        "let the runtime change the root",
        "root changed",
        (),
        "The hook ends with exit code 0, and the container stays as it is. The runtime makes the"
        " root file system the root of the mount namespace (pivot_root) and drops the host's. There"
        " is no way back from it.",
    ),
    Phase(
        "program",
        "start the program",
        "program started",
        (),
        "The process that has waited since the beginning executes the program of config.json.",
    ),
)

NAMES = tuple(phase.name for phase in PHASES)
MOUNTS, PIVOT, PROGRAM = NAMES.index("mounts"), NAMES.index("pivot"), NAMES.index("program")
END = len(PHASES)

#: What the hook calls when everything is carried out, before it keeps it; and its caller then.
KEPT = "nvgraft.apply.journal:Journal.end"
KEPT_BY = "nvgraft.apply.executor:apply_plan"
