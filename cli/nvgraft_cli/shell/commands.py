"""The table of commands: groups, modules and summaries. It is read without loading a command.

Each module has ``add_arguments(parser)``, which declares the arguments of the command and sets
``run`` (see :mod:`nvgraft_cli.shell.parser`). The commands of nvidia-container-cli have none: they
have a parser of their own.
"""

from nvgraft_cli.container_cli import COMMANDS as ORIGINAL_COMMANDS

#: Group -> command -> its module in this package, and its summary; in the order of the help text.
GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "look at a container": {
        "plan": ("plan.command", "show what the hook would do, without doing it"),
        "why": (
            "why.command",
            "tell why a file or device is in the container, or which rule keeps it out",
        ),
        "explain": (
            "explain.command",
            "explain the whole decision about a container, step by step",
        ),
        "prove": (
            "prove.command",
            "tell whether a library or program will load in the container, and from where",
        ),
        "doctor": (
            "doctor.command",
            "find what will make a GPU container fail, before it starts",
        ),
        "explain-error": ("explain_error.command", "explain a pasted error of a GPU container"),
        "last-error": (
            "last_error.command",
            "show why the hook refused a container, or its warnings",
        ),
    },
    "compare": {
        "diff": (
            "diff.command",
            "compare plans, hosts, CDI specifications, live containers and debug logs",
        ),
        "matrix": (
            "matrix.command",
            "plan many containers on many hosts: which run, which are refused and why, warnings",
        ),
    },
    "a node": {
        "snapshot": (
            "snapshot.command",
            "record this host, or a driver that is not installed yet, for planning elsewhere",
        ),
        "cdi": (
            "cdi.command",
            "write a CDI specification (Container Device Interface) of a host",
        ),
        "export": (
            "export.command",
            "write what other systems read of a host: Kubernetes pods and nodes",
        ),
        "dra": (
            "dra.command",
            "write what NVIDIA's DRA driver publishes of a host, and prepares for a claim",
        ),
        "simulate": ("simulate.command", "run a command on a simulated GPU host"),
        "inventory": (
            "inventory.command",
            "show, refresh or drop what the hook keeps of this host",
        ),
        "watch": (
            "inventory.watch",
            "keep the kept inventory up to date, or show the starts of containers",
        ),
        "recover": (
            "recover.command",
            "remove what a killed hook has left in a container's root file system",
        ),
    },
    "learn": {
        "lab": (
            "lab.command",
            "walk through a container's start, phase by phase, or build one by hand",
        ),
        "docker-v1": (
            "docker_v1.command",
            "run docker as nvidia-docker 1.0 did, or serve its volume",
        ),
    },
    "set up": {
        "register": ("register.command", "register nvgraft with a container engine"),
        "unregister": ("register.unregister", "remove a registration"),
        "help": ("shell.help", "explain a command, a term or a failure"),
    },
    "as nvidia-container-cli": {name: ("", text) for name, text in ORIGINAL_COMMANDS.items()},
}
