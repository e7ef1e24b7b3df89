"""The start of one program on the way to the container's own: its words and what it inherits."""

from nvgraft.base.errors import printable
from nvgraft_cli.case.bundle import ContainerSide
from nvgraft_cli.case.planned_tree import PlannedTree
from nvgraft_cli.prove.loader.user import User
from nvgraft_cli.prove.start.path_search import EXECVP_PATH, find_named
from nvgraft_cli.prove.start.start_failure import StartFailure


class ProgramStart:
    """The words of a command, and what it gets from the one that starts it.

    :ivar usual_path: where its program is searched without PATH; "" for nowhere.
    :ivar uid: the number of its user.
    """

    def __init__(
        self, words: list[str], environment: dict[str, str], before: "ProgramStart | None" = None
    ) -> None:
        self.words = words
        self.environment = environment
        self.directory: str = before.directory if before else "/"
        self.user: User | None = before.user if before else None
        self.uid: int = before.uid if before else 0
        self.unknown: tuple[str, ...] = before.unknown if before else ()
        self.loader = ""
        self.usual_path = EXECVP_PATH if before else ""
        self.error: StartFailure | None = before.error if before else None
        self.changes: tuple[tuple[str, ...], ...] = before.changes if before else ()
        #: The container's files after the scripts before; None where they are the planned ones.
        self.tree: PlannedTree | None = before.tree if before else None
        #: The container, by which its user's rights are known.
        self.container: ContainerSide | None = before.container if before else None
        #: Names of variables that a script computes, which are left out.
        self.computed: tuple[str, ...] = before.computed if before else ()
        self.read_only: bool = before.read_only if before else False

    def then(self, words: list[str]) -> "ProgramStart | None":
        """Return the start of a command with the same variables; None if there are no words."""
        return ProgramStart(words, self.environment, self) if words else None

    def become(self, user: User | None) -> None:
        """Start the program as a user; None changes nothing."""
        if user is not None:
            self.user, self.uid = user, user.uid

    def note_unknown(self, fact: str) -> None:
        """Note a fact about the variables of the program that is not known."""
        self.unknown += (printable(fact),)

    def note_not_followed(self) -> None:
        """Note that it is not known what the program of this start starts."""
        self.note_unknown(f"what `{' '.join(self.words)}` starts, with which variables")


def find_program(tree: PlannedTree, start: ProgramStart) -> str | None:
    """Return the path of a command's program, or None if it is not in PATH."""
    name = start.words[0]
    return find_named(tree, name, start.environment, start.directory, start.usual_path)
