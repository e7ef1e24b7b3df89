"""`nvgraft lab lesson NAME` and `nvgraft lab lessons`."""

import os
import shutil
import uuid
from collections.abc import Callable

from nvgraft.base.errors import printable
from nvgraft_cli.lab.ground.cgroups import Janitor
from nvgraft_cli.lab.ground.lent_terminal import LentTerminal, terminal_of
from nvgraft_cli.lab.ground.lines import LabConsole
from nvgraft_cli.lab.lessons import library, progress
from nvgraft_cli.shell.errors import InputError
from nvgraft_cli.simulate import demo, running
from nvgraft_cli.simulate.standins import failures
from nvgraft_specs.models.host import Host
from nvgraft_specs.models.lesson import Lesson

#: What the record of a lesson says that was solved: at its end, or at an earlier check.
_SOLVED, _SOLVED_BEFORE = b"+", b"-"


def list_lessons(say: Callable[[str], None]) -> int:
    """List nvgraft's own lessons, with a mark for those that this user has solved."""
    done = progress.solved()
    for name in library.names():
        mark = "[x]" if name in done else "[ ]"
        say(f"{mark} {name:<22} {library.find(name).title}")
    say(_count())
    return 0


def _count() -> str:
    """Return how many of nvgraft's own lessons this user has solved."""
    names = library.names()
    return f"{len(progress.solved().intersection(names))} of {len(names)} lessons solved"


def check_machine() -> None:
    """Check that this machine can make the containers of lessons.

    :raises InputError: it cannot.
    """
    if os.uname().machine != "x86_64":
        raise InputError("the containers of lessons are for x86_64 | use such a machine")
    for name, package in (("busybox", "busybox-static"), ("cc", "gcc")):
        if shutil.which(name) is None:
            raise InputError(
                f"{name}: there is no such program in PATH, and lessons need it | run apt-get"
                f" install {package}"
            )
    if not os.path.exists(demo.LOADER):
        raise InputError(f"{demo.LOADER}: missing, and images are made of it | install libc6")


def teach(
    name: str,
    work: Callable[[Callable[[], int]], int],
    console: LabConsole,
    environment: Callable[[], dict[str, str]],
) -> int:
    """Make the node of a lesson, let the learner work there, and note a success.

    :param work: runs a function as the lab, and reports its errors.
    :param environment: makes the lab's part of the node; returns the environment of its shells.
    :returns: the exit code; of a script 1 if the lesson is not solved at its end.
    :raises InputError: there is no such lesson, or it cannot be used.
    """
    from nvgraft_cli.lab.lessons.scene import read_node

    lesson = library.find(name)
    text, host = read_node(lesson.node)
    try:
        broken = [failures.parse(word, host) for word in lesson.failures]
    except failures.UnknownFailure as error:
        raise InputError(f"failures: {error}") from error
    cgroup = f"nvgraft-lab-{uuid.uuid4().hex[:12]}"
    record = os.memfd_create("solved")
    with terminal_of(scripted=console.scripted) as terminal, Janitor(cgroup) as janitor:
        code = running.on_host(
            host,
            text,
            lambda: work(
                lambda: _learn(lesson, host, cgroup, console, environment, record, terminal)
            ),
            failures=broken,
            announce=janitor.announce,
        )
    solved, at_the_end = os.fstat(record).st_size > 0, os.pread(record, 1, 0) == _SOLVED
    os.close(record)
    if solved and name in library.names():
        trouble = progress.add(name)
        console.say(printable(f"nvgraft lab: {trouble}") if trouble else _count())
    return code or int(console.scripted and not at_the_end)


def _learn(
    lesson: Lesson,
    host: Host,
    cgroup: str,
    console: LabConsole,
    environment: Callable[[], dict[str, str]],
    record: int,
    terminal: LentTerminal | None,
) -> int:
    from nvgraft_cli.lab.lessons.scene import LessonScene
    from nvgraft_cli.lab.lessons.session import LessonSession

    variables = environment()
    scene = LessonScene(lesson, host, cgroup)

    def note() -> None:
        os.pwrite(record, _SOLVED, 0)

    session = LessonSession(lesson, scene.originals, variables, console.say, terminal, note)
    session.follow(console)
    if not session.solved and os.fstat(record).st_size:
        os.pwrite(record, _SOLVED_BEFORE, 0)
    return 0
