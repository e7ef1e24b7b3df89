"""Replay recorded decisions of the reference hook through the pure functions."""

import gzip
import json
from pathlib import Path
from typing import TypedDict

from nvgraft.base.errors import Refusal
from nvgraft.request.argv import reference_argv
from nvgraft.request.config import config_from_settings
from nvgraft.request.decision import decide
from nvgraft.request.oci import parse_state
from nvgraft.request.toml_settings import settings_from_toml

FIXTURE = Path(__file__).parent / "fixtures" / "hook-decisions.jsonl.gz"

#: The directory in which decisions about relative root paths were recorded.
BUNDLE = "/bundle"


class Row(TypedDict):
    """One recorded decision: the three documents that the hook read, and its answer."""

    name: str
    toml: str
    state: dict[str, object]
    config: dict[str, object]
    rc: int
    stderr: str
    argv: list[str] | None


def rows() -> list[Row]:
    """Return the recorded decisions."""
    with gzip.open(FIXTURE, "rt") as lines:
        return [json.loads(line) for line in lines]


def replay(row: Row) -> tuple[int, list[str], list[str] | None]:
    """Return (exit code, lines on stderr, argv or None) of the hook on a plain Debian host."""
    try:
        settings = settings_from_toml(row["toml"].encode(), "config.toml")
        config = config_from_settings(
            settings, exists=lambda _: False, os_release=lambda: "ID=debian\n"
        )
        state = parse_state(json.dumps(row["state"]).encode())
    except Refusal as refusal:
        return refusal.exit_code, refusal.line().split("\n"), None
    decision = decide(json.dumps(row["config"]).encode(), config, BUNDLE)
    log = list(decision.log)
    if decision.refusal:
        return 1, [*log, *decision.refusal.line().split("\n")], None
    if not decision.request:
        return 0, log, None
    return 0, log, reference_argv(decision.request, config, state.pid, decision.rootfs)


def plain_argv(argv: list[str] | None) -> list[str] | None:
    """Return ``argv`` without the noise of the records: requirements sorted, empty ids removed."""
    if argv is None:
        return None
    plain = []
    for argument in argv:
        name, _, value = argument.partition("=")
        if name in ("--device", "--imex-channel"):
            argument = f"{name}={','.join(filter(None, value.split(',')))}"
        plain.append(argument.replace("@BUNDLE@", BUNDLE))
    requirements = sorted(argument for argument in plain if argument.startswith("--require="))
    return [argument for argument in plain if not argument.startswith("--require=")] + requirements


def key_words(line: str) -> str:
    """Return the words of an error line that must agree.

    These are the words before our hint, up to the first parenthesis or quote.
    """
    line = line.partition(" | ")[0]
    return line[
        : min((at for char in "('\"" if (at := line.find(char)) >= 0), default=len(line))
    ].strip()
