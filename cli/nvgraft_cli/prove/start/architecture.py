"""Tell whether the kernel of a host runs a program of an image."""

from nvgraft.formats.tree import PathError, Tree
from nvgraft_cli.case.bundle import ContainerSide
from nvgraft_cli.case.dynamic import BadElf, Dynamic, read_dynamic
from nvgraft_cli.case.planned_tree import PlannedTree
from nvgraft_cli.prove.start.program import (
    StartedProgram,
    missing_loader,
    missing_program,
    started_program,
)

#: The kernel's name of an architecture -> machines of the ELF files that it runs.
_RUNS = {
    "x86_64": {"EM_X86_64", "EM_386"},
    "aarch64": {"EM_AARCH64", "EM_ARM"},
    "ppc64le": {"EM_PPC64"},
}
_NAMES = {
    "EM_X86_64": "x86_64",
    "EM_386": "i386",
    "EM_AARCH64": "aarch64",
    "EM_ARM": "arm",
    "EM_PPC64": "ppc64le",
}
#: Stands for all programs of an image whose own program is not found.
_SHELL = "/bin/sh"


def foreign_architecture(facts: Dynamic, machine: str) -> str:
    """Return the architecture of a program that a host does not run, or "" if it runs it.

    :param machine: the kernel's name of the host's architecture; "" if it is not known.
    """
    if machine not in _RUNS or facts.machine in _RUNS[machine]:
        return ""
    return _NAMES.get(facts.machine, facts.machine)


def exec_format_error(program: str, architecture: str, machine: str) -> str:
    """Return the kernel's words for a foreign program, with the reason."""
    return f"{program}: exec format error (a program for {architecture}; the host is {machine})"


def foreign_program(
    tree: PlannedTree, started: StartedProgram, machine: str
) -> tuple[str, str] | None:
    """Return the path and the architecture of the container's program if a host does not run it.

    :param started: the container's program.
    """
    for candidate in (started.path, _SHELL):
        facts = _facts(tree, candidate)
        if facts is not None:
            architecture = foreign_architecture(facts, machine)
            return (candidate, architecture) if architecture else None
    return None


def start_error(tree: PlannedTree, container: ContainerSide, machine: str) -> str:
    """Return why a container's program does not start, in the kernel's or runtime's words, or "".

    :param machine: the kernel's name of the host's architecture.
    """
    started = started_program(tree, container)
    foreign = foreign_program(tree, started, machine)
    if foreign is not None:
        return exec_format_error(*foreign, machine)
    missing = missing_program(tree, container)
    return missing.words if missing is not None else missing_loader(tree, container, started)


def _facts(tree: Tree, path: str) -> Dynamic | None:
    if not path:
        return None
    try:
        return read_dynamic(tree, tree.resolve(path))
    except (BadElf, OSError, PathError):
        return None
