"""Describe an error for programs: what a person reads on stderr, and its id and cause.

The ids are those of docs/failures.md, or the stage of the refusal, or ``input``.
"""

import re
from functools import cache
from importlib import import_module

from nvgraft.base.errors import Refusal
from nvgraft_cli.shell.errors import InputError

SCHEMA = "nvgraft.error/1"

#: Stage and text of the hook's line.
_STAGE = re.compile(r"nvgraft: ([a-z-]+) error: (.*)", re.DOTALL)


def describe(error: Refusal | InputError) -> dict[str, str]:
    """Return id, stage, message, cause and fix of an error."""
    if isinstance(error, InputError):
        message, bar, fix = str(error).partition(" | ")
        if not bar and message.count(": ") > 1:
            message, _, fix = message.rpartition(": ")
        return {"id": "input", "stage": "input", "message": message, "cause": message, "fix": fix}
    message = "\n".join(part for part in (error.first_line, error.reference_line()) if part)
    known, cause, fix = _look_up(message)
    stage = error.stage or "hook"
    return {
        "id": known or stage,
        "stage": stage,
        "message": message,
        "cause": cause or error.text,
        "fix": error.hint or fix,
    }


def describe_line(line: str) -> dict[str, str]:
    """Return id, stage, message, cause and fix of an error that the hook has printed."""
    message, _, fix = line.partition(" | ")
    match = _STAGE.fullmatch(message)
    refusal = Refusal(match[1], match[2], fix) if match else Refusal("", message, fix)
    return describe(refusal)


@cache
def _look_up(message: str) -> tuple[str, str, str]:
    """Return id, cause and fix of the first known error in ``message``, or empty texts."""
    # By name, as commands are: the catalogue of known errors is a command's.
    meanings = import_module("nvgraft_cli.explain_error.analysis").analyse(message).meanings
    for meaning in meanings:
        return meaning.failure, meaning.cause, "; ".join(meaning.next)
    return "", "", ""


def document(command: str, error: Refusal | InputError, exit_code: int) -> dict[str, object]:
    """Return the document with which ``command`` answers in place of its own."""
    return {
        "schema": SCHEMA,
        "command": command,
        "exit_code": exit_code,
        **describe(error),
    }
