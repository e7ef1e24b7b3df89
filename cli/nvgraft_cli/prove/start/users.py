"""Follow programs that start another one as a user: setpriv, runuser, su, sudo, gosu."""

from collections.abc import Mapping

from nvgraft_cli.case.planned_tree import PlannedTree
from nvgraft_cli.prove.loader.access import lacks_capability
from nvgraft_cli.prove.loader.user import User, groups_of, named_user, shell_of
from nvgraft_cli.prove.start.options import take_assignments, take_options, without_options
from nvgraft_cli.prove.start.pam_sessions import session_variables
from nvgraft_cli.prove.start.program_start import ProgramStart
from nvgraft_cli.prove.start.start_failure import StartCause, StartFailure, failure

#: Programs that become the command in their arguments as the user in the first of these.
_FIRST_NAMES_USER = {"gosu", "su-exec", "s6-setuidgid", "setuidgid"}
#: Options that take a value as a word of its own, of programs that start another one as a user.
_USER_VALUES = {
    "setpriv": {
        *("--reuid", "--regid", "--ruid", "--rgid", "--groups", "--inh-caps", "--ambient-caps"),
        *("--bounding-set", "--securebits", "--pdeathsig", "--selinux-label"),
    },
    "runuser": {"-u", "--user", "-g", "--group", "-G", "-c", "--command", "-s", "--shell"},
    "su": {"-g", "--group", "-G", "-c", "--command", "-s", "--shell"},
    "sudo": {"-u", "--user", "-g", "--group", "-C", "-D", "-h", "-p", "-r", "-t", "-T", "-U"},
}
#: Options of setpriv that change groups.
_CHANGING_GROUPS = {"--regid", "--rgid", "--groups", "--clear-groups", "--init-groups"}
#: PATH after `setpriv --reset-env`: of root, and of others.
_PATH_OF_ROOT = "/usr/local/sbin:/usr/local/bin:/sbin:/bin:/usr/sbin:/usr/bin"
_PATH_OF_OTHERS = "/usr/local/bin:/bin:/usr/bin"
#: The names of all programs that start another one as a user.
USER_STARTERS = {*_FIRST_NAMES_USER, *_USER_VALUES}


def started_as_user(
    tree: PlannedTree, name: str, words: list[str], start: ProgramStart
) -> ProgramStart | None:
    """Return the command that one of USER_STARTERS becomes; None if there is none.

    :param words: the words behind its name.
    """
    if name == "setpriv":
        following = _by_setpriv(tree, words, start)
    elif name in _USER_VALUES:
        following = _by_options(tree, name, words, start)
    else:
        words = without_options(words, set())
        user = named_user(tree, words[0], members=name != "setuidgid") if words else None
        following = _as(user, words[1:], start)
    if following is not None and following.error is None:
        following.error = _not_permitted(name, words, start, following)
    return following


def _not_permitted(
    name: str, words: list[str], start: ProgramStart, following: ProgramStart
) -> StartFailure | None:
    """Return how a program of root fails that may not change the user or the groups, if it does.

    What sudo does first is not followed. Sources: setuid(2), setgroups(2).
    """
    if start.uid != 0 or start.container is None or name == "sudo":
        return None
    options = {option for option, _ in take_options(list(words), _USER_VALUES.get(name, set()))}
    groups = name != "setpriv" or not options.isdisjoint(_CHANGING_GROUPS)
    needed = ["CAP_SETGID"] if groups else []
    needed += ["CAP_SETUID"] if following.uid != 0 else []
    missing = lacks_capability(start.container, needed)
    if not missing:
        return None
    reason = f"the container lacks the capability {missing}"
    return failure(f"{name}: operation not permitted ({reason})", StartCause.USER_NOT_CHANGED)


def _as(user: User | None, words: list[str], start: ProgramStart) -> ProgramStart | None:
    """Return the start of a command as a user; one that is not known is ignored."""
    following = start.then(words)
    if following is not None:
        following.become(user)
    return following


def _by_setpriv(tree: PlannedTree, words: list[str], start: ProgramStart) -> ProgramStart | None:
    """Return the command that setpriv becomes. Sources: setpriv(1), util-linux' setpriv.c."""
    words = list(words)
    options = dict(take_options(words, _USER_VALUES["setpriv"]))
    name, group = options.get("--reuid", ""), options.get("--regid", "")
    user = named_user(tree, f"{name}:{group}" if group else name, members=False)
    if user is not None and "--init-groups" in options:
        user = User(user.uid, user.groups + groups_of(tree, name))
    following = _as(user, words, start)
    if following is not None and "--reset-env" in options:
        shell, home = shell_of(tree, name or "root")
        kept = {key: start.environment[key] for key in {"TERM"} & start.environment.keys()}
        of_user = {"SHELL": shell, "HOME": home, "USER": name, "LOGNAME": name}
        path = _PATH_OF_OTHERS if following.uid else _PATH_OF_ROOT
        following.environment = {**kept, **of_user, "PATH": path}
    return following


def _by_options(
    tree: PlannedTree, name: str, words: list[str], start: ProgramStart
) -> ProgramStart | None:
    """Return the command that runuser, su or sudo becomes."""
    user, group, script, login, kept = "", "", None, False, {"PATH", "TERM"}
    logged_in: dict[str, str] = {}
    words = list(words)
    for option, value in take_options(words, _USER_VALUES[name]):
        user = value if option in {"-u", "--user"} else user
        group = value if option in {"-g", "--group"} else group
        script = value if option in {"-c", "--command"} else script
        login |= option in {"-", "-l", "--login", "-i"}
        if name == "sudo" and option in {"-E", "--preserve-env"}:
            kept |= set(value.split(",")) if value else _not_dropped(start.environment)
    if name == "su" or (name == "runuser" and not user):
        user = words.pop(0) if words and not words[0].startswith("-") else "root"
        while words:  # the options of su may stand behind the name as well
            option = words.pop(0)
            if option in {"-c", "--command"} and words:
                script = words.pop(0)
        shell, home = shell_of(tree, user)
        words = [shell, *(["-l"] if login else []), *([] if script is None else ["-c", script])]
        logged_in = {"HOME": home, "SHELL": shell, "USER": user, "LOGNAME": user}
    elif name == "sudo":
        user = user or "root"
    assigned = take_assignments(words) if name == "sudo" else {}
    following = _as(named_user(tree, f"{user}:{group}" if group else user), words, start)
    if following is not None and (name == "sudo" or login):
        kept = kept if name == "sudo" else {"TERM"}
        following.environment = {
            name: value for name, value in start.environment.items() if name in kept
        }
    if following is not None:
        session = {} if name == "sudo" else session_variables(tree, name, login=login)
        following.environment |= {**session, **logged_in, **assigned}
    return following


def _not_dropped(environment: Mapping[str, str]) -> set[str]:
    """Return the variables that sudo keeps on request: all but those of loaders (sudoers(5))."""
    return {name for name in environment if not name.startswith(("LD_", "_RLD"))}
