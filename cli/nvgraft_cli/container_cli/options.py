"""The options of nvidia-container-cli, and their values (reference behaviour 4.1, 4.5)."""

import os
import re
from collections.abc import Iterator

from nvgraft import __version__
from nvgraft.base.errors import Refusal
from nvgraft.request.request import MAX_REQUIREMENTS, ImexChannels
from nvgraft_cli.container_cli import COMMANDS
from nvgraft_cli.container_cli.arguments import (
    Command,
    Option,
    UsageFault,
    fault,
    help_text,
    read,
    usage_fault,
    usage_text,
)

_GLOBAL = (
    Option("debug", "d", "FILE", "Append a log of what is done to FILE"),
    Option(
        "load-kmods", "k", "", "Load the kernel modules and make the device nodes that are missing"
    ),
    Option("no-pivot", "n", "", "Do not use pivot_root where the loader cache is made"),
    Option(
        "user",
        "u",
        "UID[:GID]",
        "Ask the driver as this user and group, by default as nobody",
        optional=True,
    ),
    Option("root", "r", "PATH", "The driver root, by default /"),
    Option(
        "ldcache",
        "l",
        "FILE",
        "The loader cache inside the driver root, by default /etc/ld.so.cache",
    ),
    Option("no-create-imex-channels", "", "", "With --load-kmods, make no nodes for IMEX channels"),
)

_INFO = (Option("csv", "", "", "Print comma-separated values"),)

_LIST = (
    Option(
        "device",
        "d",
        "ID",
        "List the nodes of these devices: UUIDs, indices, PCI addresses, or all",
    ),
    Option("libraries", "l", "", "List the driver's libraries"),
    Option("binaries", "b", "", "List the driver's programs"),
    Option("ipcs", "i", "", "List the sockets and directories of the driver's services"),
    Option("firmwares", "f", "", "List the GPU firmware"),
    Option("compat32", "", "", "With --libraries, list the 32-bit ones as well"),
    Option(
        "mig-config",
        "",
        "ID",
        "List what it takes to configure MIG on the listed devices; ID is all",
    ),
    Option(
        "mig-monitor",
        "",
        "ID",
        "List what it takes to monitor MIG on the listed devices; ID is all",
    ),
    Option("imex-channel", "", "CHANNEL", "List the nodes of these IMEX channels"),
    Option("no-persistenced", "", "", "Leave out the socket of nvidia-persistenced"),
    Option("no-fabricmanager", "", "", "Leave out the socket of nv-fabricmanager"),
)

_CONFIGURE = (
    Option(
        "pid",
        "p",
        "PID",
        "The container's process; without it ROOTFS is a directory of this mount namespace",
    ),
    Option("device", "d", "ID", "Give these devices: UUIDs, indices, PCI addresses, or all"),
    Option("require", "r", "EXPR", "Refuse unless the driver and the devices fulfil EXPR"),
    Option("ldconfig", "l", "PATH", "The host's ldconfig, with @ before its path"),
    Option("compute", "c", "", "Give what CUDA and OpenCL need"),
    Option("utility", "u", "", "Give nvidia-smi and NVML"),
    Option("video", "v", "", "Give what video coding needs"),
    Option("graphics", "g", "", "Give what OpenGL and Vulkan need"),
    Option("display", "D", "", "Give what a display server needs"),
    Option("ngx", "n", "", "Give what NGX needs"),
    Option("compat32", "", "", "Give the 32-bit libraries as well"),
    Option("mig-config", "", "ID", "Let the container configure MIG on its devices; ID is all"),
    Option("mig-monitor", "", "ID", "Let the container monitor MIG on its devices; ID is all"),
    Option("imex-channel", "", "CHANNEL", "Give these IMEX channels"),
    Option("no-cgroups", "", "", "Leave the container's device rules alone"),
    Option("no-devbind", "", "", "Mount no device nodes"),
    Option("no-persistenced", "", "", "Leave out the socket of nvidia-persistenced"),
    Option("no-fabricmanager", "", "", "Leave out the socket of nv-fabricmanager"),
    Option("no-gsp-firmware", "", "", "Leave out the GPU firmware"),
    Option("no-cntlibs", "", "", "The same as --cuda-compat-mode=disabled"),
    Option(
        "cuda-compat-mode",
        "",
        "MODE",
        "What to do with CUDA compatibility libraries of the image: mount, ldconfig or disabled",
    ),
)

_CAPABILITIES = frozenset({"compat32", "compute", "display", "graphics", "ngx", "utility", "video"})
_SERVICES = {
    "no-persistenced": "persistenced",
    "no-fabricmanager": "fabricmanager",
    "no-gsp-firmware": "gsp-firmware",
}
_MAX_PID = 2**31 - 1

_MAIN_NOTES = """\
 Commands:
{commands}

The options stand before COMMAND. `{program} COMMAND --help' tells of its own ones.

example: {program} --root=/run/nvidia/driver list --libraries"""


class Answered(Exception):
    """An option such as ``--help`` that prints a text instead of running a command."""


class GlobalOptions:
    """The values of the options before COMMAND."""

    def __init__(self) -> None:
        self.debug = ""
        self.load_kmods = False
        self.pivot = True
        #: "" for the default, else numbers UID:GID.
        self.user = ""
        self.root = "/"
        self.ldcache = ""
        self.create_imex_channels = True


class Selectors:
    """The options that ``list`` and ``configure`` share. ``devices`` is None without the option.

    Lists are split at commas.
    """

    def __init__(self) -> None:
        self.devices: list[str] | None = None
        self.mig_config = ""
        self.mig_monitor = ""
        self.imex_channels = ImexChannels()
        self.compat32 = False
        #: As ``nvgraft.host.inventory.read_inventory`` takes it.
        self.omit: set[str] = set()

    def take(self, name: str, argument: str | None) -> bool:
        """Set an option if it is one of these, and return whether it is."""
        value = argument or ""
        if name == "device":
            self.devices = [*(self.devices or ()), *value.split(",")]
        elif name == "mig-config":
            self.mig_config = _joined(self.mig_config, value)
        elif name == "mig-monitor":
            self.mig_monitor = _joined(self.mig_monitor, value)
        elif name == "imex-channel":
            more = [channel for channel in value.split(",") if channel]
            self.imex_channels = ImexChannels((*self.imex_channels.written, *more))
        elif name in _SERVICES:
            self.omit.add(_SERVICES[name])
        else:
            return False
        return True


class ListOptions(Selectors):
    """The options of ``list``."""

    def __init__(self) -> None:
        super().__init__()
        self.libraries = False
        self.binaries = False
        self.ipcs = False
        self.firmwares = False


class ConfigureOptions(Selectors):
    """The options of ``configure``; ``pid`` is 0 in standalone mode."""

    def __init__(self) -> None:
        super().__init__()
        self.pid = 0
        self.rootfs = ""
        self.capabilities: set[str] = set()
        self.requirements: list[str] = []
        self.ldconfig = ""
        self.cgroups = True
        self.devbind = True
        self.cuda_compat_mode = ""


def _joined(before: str, value: str) -> str:
    return f"{before},{value}" if before else value


def _main_command(program: str) -> Command:
    commands = "\n".join(
        f"  {name:26} {text[0].upper()}{text[1:]}" for name, text in COMMANDS.items()
    )
    notes = _MAIN_NOTES.format(program=program, commands=commands)
    return Command(
        program,
        "COMMAND [ARG...]",
        "Look at the NVIDIA driver of this host, or give it to a container.",
        _GLOBAL,
        notes,
    )


def names_command(words: list[str]) -> bool:
    """Tell whether ``words`` (without the program) are meant for nvidia-container-cli, valid or
    not.
    """
    try:
        return (
            next(
                (word for name, word in read(words, _main_command(""), in_order=True) if not name),
                "",
            )
            in COMMANDS
        )
    except UsageFault:
        return not COMMANDS.keys().isdisjoint(words)


def _events(
    words: list[str], command: Command, *, in_order: bool = False
) -> Iterator[tuple[str, str | None]]:
    """Yield the options as :func:`read` does, and handle argp's own options."""
    for name, argument in read(words, command, in_order=in_order):
        if name == "help":
            raise Answered(help_text(command))
        if name == "usage":
            raise Answered(usage_text(command))
        if name == "version":
            raise Answered(_version())
        yield name, argument


def _version() -> str:
    system = os.uname()
    rows = (
        ("cli-version", __version__),
        ("lib-version", __version__),
        ("build date", ""),
        ("build revision", "nvgraft"),
        ("build compiler", "python"),
        ("build platform", system.machine),
        ("build flags", ""),
    )
    return "".join(f"{name}: {value}".rstrip() + "\n" for name, value in rows)


def parse_global(words: list[str], program: str) -> tuple[GlobalOptions, str, list[str]]:
    """Return the global options, the command, and the words of the command.

    :raises UsageFault: for an unknown option, or no or an unknown command.
    :raises Refusal: for a user who does not exist.
    :raises Answered: for ``--help`` and the like.
    """
    command = _main_command(program)
    options = GlobalOptions()
    others: list[str] = []
    for name, argument in _events(words, command, in_order=True):
        value = argument or ""
        if not name:
            others.append(value)
        elif name == "debug":
            options.debug = os.path.abspath(value)
        elif name == "load-kmods":
            options.load_kmods = True
        elif name == "no-pivot":
            options.pivot = False
        elif name == "user":
            from nvgraft.host.nvml import user_ids  # seldom needed

            ids = (os.geteuid(), os.getegid()) if argument is None else user_ids(value)
            options.user = "{}:{}".format(*ids)
        elif name == "root":
            options.root = os.path.abspath(value or "/")
        elif name == "ldcache":
            options.ldcache = value
        else:
            options.create_imex_channels = False
    if not others or others[0] not in COMMANDS:
        raise usage_fault(command)
    return options, others[0], others[1:]


def parse_info(words: list[str], program: str) -> bool:
    """Parse the options of ``info``, and return whether CSV is requested."""
    example = f"example: {program} info --csv"
    command = Command(
        f"{program} info", "", "Show the driver's version and the GPUs.", _INFO, example
    )
    csv = False
    for name, _ in _events(words, command):
        if not name:
            raise fault(command, "Too many arguments")
        csv = True
    return csv


def parse_list(words: list[str], program: str) -> ListOptions:
    """Parse the options of ``list``; without any, everything is listed.

    :raises Refusal: for a bad IMEX channel.
    """
    example = f"example: {program} list --device=0 --libraries"
    command = Command(
        f"{program} list",
        "",
        "List the driver's files and device nodes, one path a line.",
        _LIST,
        example,
    )
    options = ListOptions()
    for name, argument in _events(words, command):
        if not name:
            raise fault(command, "Too many arguments")
        if name == "compat32":
            options.compat32 = True
        elif not options.take(name, argument):
            setattr(options, name, True)
    if not words or (len(words) == 1 and words[0].startswith("--imex-channel=")):
        options.devices = ["all"]
        options.libraries = options.binaries = options.ipcs = options.firmwares = (
            options.compat32
        ) = True
    options.imex_channels.ids()  # refuses what is not a channel
    return options


def parse_configure(words: list[str], program: str) -> ConfigureOptions:
    """Parse the options of ``configure``.

    :raises UsageFault: for an unknown option, or not exactly one ROOTFS.
    :raises Refusal: stages ``input`` and ``container``, for values that cannot be.
    """
    example = (
        f"example: {program} configure --pid=4711 --device=0 --compute --utility"
        " /run/bundles/web/rootfs"
    )
    description = (
        "Give the driver and the chosen devices to a container whose root file system is"
        " ROOTFS, before it is started."
    )
    command = Command(f"{program} configure", "ROOTFS", description, _CONFIGURE, example)
    options = ConfigureOptions()
    for name, argument in _events(words, command):
        value = argument or ""
        if not name:
            if options.rootfs:
                raise usage_fault(command)
            options.rootfs = _rootfs(value)
        elif name in _CAPABILITIES:
            options.capabilities.add(name)
        elif name == "pid":
            options.pid = _pid(value)
        elif name == "require":
            if len(options.requirements) == MAX_REQUIREMENTS:
                raise Refusal(
                    "input", "too many requirements", f"at most {MAX_REQUIREMENTS} are evaluated"
                )
            options.requirements.append(value)
        elif name == "ldconfig":
            options.ldconfig = value
        elif name == "no-cgroups":
            options.cgroups = False
        elif name == "no-devbind":
            options.devbind = False
        elif name in {"cuda-compat-mode", "no-cntlibs"}:
            _set_compat_mode(options, value if name == "cuda-compat-mode" else "disabled")
        else:
            options.take(name, argument)
    if not options.rootfs:
        raise usage_fault(command)
    options.imex_channels.ids()  # refuses what is not a channel
    return options


def _set_compat_mode(options: ConfigureOptions, mode: str) -> None:
    if options.cuda_compat_mode not in ("", mode):
        raise Refusal(
            "input",
            "only one cuda-compat-mode can be specified at a time",
            f"the options ask for {options.cuda_compat_mode} and {mode}: remove one of them",
        )
    options.cuda_compat_mode = mode


def _pid(text: str) -> int:
    # Like strtoimax: leading blanks and a sign are accepted; an empty text is 0.
    if text and not re.fullmatch(r"[ \t\n\v\f\r]*[+-]?[0-9]{1,19}", text):
        raise Refusal(
            "input",
            f"parse pid failed: {text}: invalid argument",
            "give --pid the number of the container's first process",
        )
    pid = int(text or 0)
    if not 0 <= pid <= _MAX_PID:
        raise Refusal(
            "input",
            f"parse pid failed: {text}: numerical result out of range",
            "give the number of the container's first process: no process has this number",
        )
    return pid


def _rootfs(path: str) -> str:
    if not path.startswith("/") or not path.strip("/"):
        raise Refusal(
            "input",
            "invalid rootfs directory",
            f"{path!r}: it must be an absolute path other than /",
        )
    return path
