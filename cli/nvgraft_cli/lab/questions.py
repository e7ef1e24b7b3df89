"""The questions that other commands answer, asked about the container of the lab."""

import os
import sys
from collections.abc import Callable, Sequence

from nvgraft.base.errors import Refusal, printable
from nvgraft_cli.lab.run import LabRun
from nvgraft_cli.shell import terminal
from nvgraft_cli.shell.errors import InputError


def why(run: LabRun, whats: Sequence[str]) -> list[str]:
    """Return why each of ``whats`` is in the plan, or is not."""
    from nvgraft_cli.case.bundle import open_container
    from nvgraft_cli.case.hosts import open_host
    from nvgraft_cli.case.planning import Case
    from nvgraft_cli.why.answer import answer

    with open_container(run.container.image, []) as container:
        case = Case(open_host(None, None), container)
        answers = [answer(what, case) for what in whats]
    return [line for answered in answers for line in answered.lines(colour=terminal.colour())]


def prove_now(run: LabRun, whats: Sequence[str]) -> list[str]:
    """Return what the loader finds in the container as it is now.

    The mounts of the plan that are attached already are read as the host's files that they are.
    """
    from nvgraft.plan.actions import Plan
    from nvgraft_cli.case.bundle import open_container
    from nvgraft_cli.case.hosts import open_host
    from nvgraft_cli.case.planned_tree import PlannedTree
    from nvgraft_cli.prove.proof import prove

    attached = {point for point, _ in run.look.mounts} if run.look is not None else set()
    plan = Plan("skip", "the container as it is now")
    host = open_host(None, None)
    root = host.facts.root.rstrip("/")
    with open_container(run.container.as_it_is(), []) as container:
        tree = PlannedTree(container.rootfs, plan, host.facts)
        for action in run.facts.get("plan", {}).get("actions", []):
            if action.get("type") == "bind" and action["target"] in attached:
                tree.sources[action["target"]] = action["source"].removeprefix(root)
        proofs = [prove(what, None, tree, plan, container, host.isa_level) for what in whats]
    return [line for proof in proofs for line in proof.lines(colour=terminal.colour())]


def asked(question: Callable[[], list[str]], say: Callable[[str], None]) -> int:
    """Ask ``question`` in a child, print the answer there, and return 0 if there is one.

    The rooms of other commands may fork and keep what they have read.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for line in question():
                say(line)
            code = 0
        except (InputError, Refusal) as error:
            say(f"lab: {error.line() if isinstance(error, Refusal) else printable(str(error))}")
        finally:
            sys.stdout.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)
