"""Follow a supervisor to the one command that it starts."""

import posixpath
from functools import partial

from nvgraft_cli.case.planned_tree import PlannedTree
from nvgraft_cli.prove.loader.user import named_user
from nvgraft_cli.prove.start.first_line import interpreter_of
from nvgraft_cli.prove.start.program_start import ProgramStart
from nvgraft_cli.prove.start.shells import SHELLS
from nvgraft_cli.prove.start.supervisor_files import services_of
from nvgraft_cli.prove.start.tree_files import names_in, text_of


def started_by_supervisor(tree: PlannedTree, path: str, start: ProgramStart) -> ProgramStart | None:
    """Return the one command that a supervisor starts, or None.

    Of several it is not known which one opens a library; the supervisor stands for them.
    """
    interpreter = interpreter_of(tree, path) or [""]
    if path != "/init" and posixpath.basename(interpreter[0]) in SHELLS:
        return None
    services = services_of(
        start.words,
        path,
        start.environment,
        lambda place: text_of(tree, place),
        partial(names_in, tree),
    )
    if services is None:
        return None
    user = named_user(tree, services[0].user) if services and services[0].user else start.user
    if len(services) != 1 or (services[0].user and user is None):
        fact = f"which of the programs that {path} starts opens the library, with which variables"
        start.note_unknown(fact)
        return None
    (service,) = services
    environment = {**start.environment, **service.environment}
    following = ProgramStart(list(service.words), environment, start)
    following.directory = service.directory or start.directory
    following.become(user)
    return following
