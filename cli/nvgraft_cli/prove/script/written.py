"""What commands of a script do to files: the texts that they write, copy and remove."""

import posixpath

from nvgraft_cli.case.file_changes import UNKNOWN
from nvgraft_cli.case.planned_cache import CACHE
from nvgraft_cli.prove.script.files import ShellFiles
from nvgraft_cli.prove.script.state import ShellState

#: Programs that bring files or take them away by what is not known, and which of their options
#: name a place.
_BRINGING = {"tar", "unzip", "wget", "curl", "mount", "dpkg", "apt-get", "git", "rsync"}


def follow_change(words: list[str], text: str | None, state: ShellState, files: ShellFiles) -> str:
    """Follow what a command that changes files does to them; return why it certainly fails, or "".

    :param text: what the command reads from its standard input; None if it is not known.
    """
    name = posixpath.basename(words[0])
    plain = [word for word in words[1:] if not word.startswith("-")]
    options = [word for word in words[1:] if word.startswith("-")]
    if name == "install" and not {"-d", "--directory"}.isdisjoint(options):
        for place in plain:
            files.make_directory(place, state)
    elif name in {"cp", "install", "mv"} and len(plain) > 1:
        *sources, target = plain
        inside = target.endswith("/") or len(sources) > 1 or files.is_directory(target, state)
        for source in sources:
            place = posixpath.join(target, posixpath.basename(source)) if inside else target
            if name == "cp" and not _replaces(options) and files.is_mounted(place, state):
                continue
            if why := files.prevents(place, state, replaces=name != "cp"):
                return why
            files.copy(source, place, state)
            if name == "mv":
                files.remove(source, state)
    elif name == "ln" and len(plain) == 2:
        inside = plain[1].endswith("/") or files.is_directory(plain[1], state)
        place = posixpath.join(plain[1], posixpath.basename(plain[0])) if inside else plain[1]
        if why := files.prevents(place, state):
            return why
        files.link(plain[0], place, state)
    elif name in {"rm", "unlink"}:
        for place in plain:
            if files.exists(place, state) and (why := files.prevents(place, state)):
                return why
            files.remove(place, state)
    elif name == "touch":
        for place in plain:
            if not files.exists(place, state):
                if why := files.prevents(place, state):
                    return why
                files.write(place, "", state)
    elif name == "mkdir":
        for place in plain:
            if not files.exists(place, state) and (why := files.prevents(place, state)):
                return why
            files.make_directory(place, state)
    elif name == "tee":
        for place in plain:
            if why := files.prevents(place, state, replaces=False):
                return why
            files.write(place, text, state, append="-a" in options)
    elif name == "sed" and any(option.startswith(("-i", "--in-place")) for option in options):
        for place in plain:
            if files.exists(place, state):
                if why := files.prevents(place, state):
                    return why
                files.write(place, None, state)
    elif name in _BRINGING:
        state.touched |= {files.place(word, state) for word in plain if UNKNOWN not in word}
    elif name == "ldconfig" and set(options) <= {"-v", "-X"}:
        return files.prevents(CACHE, state)
    return ""


def _replaces(options: list[str]) -> bool:
    """Tell whether cp removes a file into which it cannot write."""
    letters = "".join(option for option in options if not option.startswith("--"))
    return "f" in letters or not {"--force", "--remove-destination"}.isdisjoint(options)
