"""The check of a lesson: start its containers for real, look at what they are made of, and at what
their programs say.
"""

import shlex
from collections.abc import Callable
from typing import Any

from nvgraft.base.errors import printable
from nvgraft_cli.lab.lessons import starts
from nvgraft_cli.lab.lessons.reality import LOADED, Originals, Seen
from nvgraft_specs.models.lesson import Lesson, LessonCheck

#: Lines of a program's output that are shown.
_SHOWN = 20


def solved(lesson: Lesson, originals: Originals, say: Callable[[str], None]) -> bool:
    """Make all looks of the check, tell what they show, and return whether all is as it should be.

    :param originals: the programs that may answer.
    :raises nvgraft_cli.shell.errors.InputError: a config.json cannot be used.
    """
    found = [_look(lesson, check, originals, say) for check in lesson.check]
    return all(found)


def show(ran: starts.Ran, say: Callable[[str], None]) -> None:
    """Show the output of a program, and its exit code."""
    for line in ran.lines[:_SHOWN]:
        say(printable(f"  | {line}"))
    if len(ran.lines) > _SHOWN:
        say(f"  | ({len(ran.lines) - _SHOWN} more lines)")
    if ran.code is None:
        say("  it went on for too long, and was ended")
    else:
        say(f"  exit code {ran.code}")


def _look(
    lesson: Lesson, check: LessonCheck, originals: Originals, say: Callable[[str], None]
) -> bool:
    name = check.container
    container = lesson.containers[name]
    program = check.run or container.program
    which = f"another container like {name}" if check.as_made else name
    say(printable(f"check: {which} runs `{shlex.join(program)}`: {check.why}"))

    def look(pid: int, config: dict[str, Any], made: dict[str, Any]) -> Seen:
        return originals.look(pid, config, made, program)

    try:
        if check.after is None:
            runs = [starts.run(name, container, program, as_made=check.as_made, look=look)]
        else:
            runs = list(starts.run_twice(name, container, program, look))
    except starts.NotStarted as error:
        say(printable(f"  it does not start: {error}"))
        say("  not yet: the container is to start")
        return False
    good = True
    for number, ran in enumerate(runs):
        if number:
            say(f"  after {check.after}:")
        show(ran, say)
        for fault in _faults(check, ran):
            say(printable(f"  not yet: {fault}"))
            good = False
    if good:
        say("  as it should be")
    return good


def _faults(check: LessonCheck, ran: starts.Ran) -> list[str]:
    text = "\n".join(ran.lines)
    found = [f"its output is to have {words!r}" for words in check.says if words not in text]
    found += [f"its output is not to have {words!r}" for words in check.never if words in text]
    if ran.code != check.code:
        found.append(f"its exit code is to be {check.code}")
    found += ran.seen.faults
    if check.driver and not found:
        loaded = [line.removeprefix(LOADED) for line in ran.lines if line.startswith(LOADED)]
        if not loaded or not ran.seen.libraries.issuperset(loaded):
            found.append("its libcuda.so.1 is to be the node's, which the container stack mounts")
    return found
