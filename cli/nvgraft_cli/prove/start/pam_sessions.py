"""The variables that PAM sets in a session of su or runuser, usually those of /etc/environment."""

from collections.abc import Iterator

from nvgraft_cli.case.planned_tree import PlannedTree
from nvgraft_cli.prove.start.tree_files import text_of

#: The most files of /etc/pam.d that include one another.
_INCLUDED = 8


def session_variables(tree: PlannedTree, service: str, *, login: bool) -> dict[str, str]:
    """Return the variables that pam_env reads from files in a session of su or runuser.

    Sources: pam.conf(5), pam_env(8), su(1).
    """
    services = [f"{service}-l", service] if login else [service]
    there = [name for name in services if text_of(tree, f"/etc/pam.d/{name}") is not None]
    variables: dict[str, str] = {}
    for file in _files(tree, there[0], set()) if there else ():
        for line in (text_of(tree, file) or "").splitlines():
            name, equals, value = line.strip().removeprefix("export ").partition("=")
            if equals and name.isidentifier():
                variables[name] = value.strip().strip("\"'")
    return variables


def _files(tree: PlannedTree, service: str, known: set[str]) -> Iterator[str]:
    """Yield the files with variables that a service reads.

    :param known: services that are read already.
    """
    if service in known or len(known) >= _INCLUDED:
        return
    known.add(service)
    for line in (text_of(tree, f"/etc/pam.d/{service}") or "").splitlines():
        words = line.partition("#")[0].split()
        if words[:1] == ["@include"]:
            words = ["session", "include", *words[1:]]
        if len(words) < 3 or words[0].lstrip("-") != "session":
            continue
        if words[1] in {"include", "substack"}:
            yield from _files(tree, words[2], known)
        elif words[2].endswith("pam_env.so") and "readenv=0" not in words:
            named = (word[8:] for word in words if word.startswith("envfile="))
            yield next(named, "/etc/environment")
