"""Take one step from a program to the one that it starts: choose the family that follows it."""

import posixpath
import re

from nvgraft_cli.case.planned_tree import PlannedTree
from nvgraft_cli.prove.script.conda import PROGRAMS, run_by
from nvgraft_cli.prove.start.environments import (
    CHAINING,
    started_by_chaining,
    started_by_conda,
    started_by_env,
)
from nvgraft_cli.prove.start.loaders import LOADER, started_by_loader
from nvgraft_cli.prove.start.program_start import ProgramStart
from nvgraft_cli.prove.start.scripts import (
    INTERPRETERS,
    started_by_first_line,
    started_by_interpreted,
)
from nvgraft_cli.prove.start.shells import SHELLS, started_by_shell
from nvgraft_cli.prove.start.supervisors import started_by_supervisor
from nvgraft_cli.prove.start.users import USER_STARTERS, started_as_user
from nvgraft_cli.prove.start.wrappers import (
    COMMAND_WITHIN,
    WRAPPERS,
    started_behind_dashes,
    started_by_flock,
    started_by_option,
    started_by_wrapper,
)

#: Programs that are many programs, of which the first argument names one: busybox under each name
#: that begins so.
_MULTI_CALL = re.compile(r"busybox|toybox\Z")
#: Shells with another language, which is not followed, and other programs whose files tell what
#: they start.
_NOT_FOLLOWED = {
    *("csh", "tcsh", "fish", "rc", "es", "elvish", "nu", "xonsh", "pwsh", "expect", "make", "just"),
    *("npm", "npx", "yarn", "pnpm", "task", "rake", "invoke", "fab", "uv", "poetry", "pdm"),
    *("hatch", "pipenv", "pixi", "rye", "tox", "nox", "bazel", "gradle", "mvn", "ansible-playbook"),
}


def started_by(tree: PlannedTree, path: str, name: str, start: ProgramStart) -> ProgramStart | None:
    """Return the command that a program becomes, or None if it runs itself."""
    words = start.words
    if name in PROGRAMS and (run := run_by(words)):
        return started_by_conda(tree, path, run, start)
    chained = started_by_chaining(tree, name, start) if name in CHAINING else None
    if chained is not None:
        return chained
    services = started_by_supervisor(tree, path, start)
    if services is not None:
        return services
    if name != "with-contenv" and (script := started_by_first_line(tree, path, start)):
        return script
    if name in WRAPPERS:
        return started_by_wrapper(name, words[1:], start)
    if name in USER_STARTERS:
        return started_as_user(tree, name, words[1:], start)
    if name in COMMAND_WITHIN:
        return started_by_option(tree, name, start)
    if name == "flock":
        return started_by_flock(words[1:], start)
    if _MULTI_CALL.match(name) and len(words) > 1:
        applet = ProgramStart(words[1:], start.environment, start)
        return started_by(tree, path, posixpath.basename(words[1]), applet)
    if name == "env":
        return started_by_env(words[1:], start)
    if name in SHELLS:
        return started_by_shell(tree, path, start)
    if name in _NOT_FOLLOWED and len(words) > 1:
        start.note_not_followed()
        return None
    if INTERPRETERS.fullmatch(name):
        return started_by_interpreted(tree, path, name, start)
    if LOADER.fullmatch(posixpath.basename(path)):
        return started_by_loader(words[1:], start, path)
    return started_behind_dashes(tree, start)
