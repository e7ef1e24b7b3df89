"""Tell whether a test of a shell holds: ``[ ... ]``, ``[[ ... ]]`` and ``test``."""

from nvgraft.formats.tree import PathError
from nvgraft_cli.case.file_changes import UNKNOWN
from nvgraft_cli.prove.script.files import ShellFiles
from nvgraft_cli.prove.script.patterns import has_plain, is_pattern, matches
from nvgraft_cli.prove.script.state import ShellState

#: The operators of a list, those that bind least first, with the side that decides.
_LISTS = (("||", True), ("-o", True), ("&&", False), ("-a", False))
_OF_TYPE = {"-b": "block", "-c": "char", "-p": "fifo", "-S": "socket"}
_OF_FILES = {"-e", "-f", "-d", "-r", "-w", "-s", "-x", "-L", "-h", *_OF_TYPE}
#: The operators that compare numbers, with the signs of the difference for which they hold.
_ORDERS = {"-eq": (0,), "-ne": (-1, 1), "-lt": (-1,), "-le": (-1, 0), "-gt": (1,), "-ge": (0, 1)}


def holds(words: list[str], state: ShellState, files: ShellFiles) -> bool | None:
    """Return whether a test holds, None where that is not known."""
    for operator, decides in _LISTS:
        if operator in words[1:]:
            at = words.index(operator, 1)
            sides = [holds(words[:at], state, files), holds(words[at + 1 :], state, files)]
            if decides in sides:
                return decides
            return None if None in sides else not decides
    if words[:1] == ["!"]:
        status = holds(words[1:], state, files)
        return None if status is None else not status
    if any(UNKNOWN in word for word in words):
        return None
    if len(words) == 1:
        return bool(words[0])
    if len(words) == 2:
        return _holds_for(words[0], words[1], state, files)
    return _compare(*words) if len(words) == 3 else False if not words else None


def _holds_for(operator: str, word: str, state: ShellState, files: ShellFiles) -> bool | None:
    if operator in {"-n", "-z"}:
        return bool(word) is (operator == "-n")
    if operator == "-v":
        return word in state.variables
    if operator not in _OF_FILES:
        return None
    try:
        node = files.node(word, state)
    except (OSError, PathError):
        return None
    if node is None:
        return False
    if operator in _OF_TYPE:
        return node.type == _OF_TYPE[operator]
    if operator in {"-d", "-f"}:
        return (node.type == "dir") is (operator == "-d")
    if operator == "-x" and node.mode:
        return bool(node.mode & 0o111)
    if operator == "-s" and node.type == "file":
        return node.size > 0
    if operator == "-r":
        return files.is_readable(word, state)
    if operator == "-w":
        return files.is_writable(word, state)
    return True if operator == "-e" else None


def _compare(left: str, operator: str, right: str) -> bool | None:
    if operator in {"=", "==", "!="}:
        equal = matches(left, right) if is_pattern(right) else left == right
        return equal is (operator != "!=")
    if operator == "=~":
        return has_plain(left, right)
    if operator not in _ORDERS:
        return None
    try:
        difference = int(left) - int(right)
    except ValueError:
        return None
    return (difference > 0) - (difference < 0) in _ORDERS[operator]
