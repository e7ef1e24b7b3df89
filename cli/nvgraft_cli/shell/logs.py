"""The log of the commands that change something or keep running: what they do, on stderr, as lines for people or as JSON.

One set-up for all of them, on structlog, which is loaded when the first line may be written and not before. An answer goes
to stdout and a refusal is one line of its own: neither is a log line. The hook has its own logs (:mod:`nvgraft.report.debug_log`).

A command logs a short text and facts beside it::

    log = logs.get("watch")
    log.info("inventory refreshed", gpus=8, reason="uevent")      # nvgraft watch: inventory refreshed: gpus=8 reason=uevent
    log.warning("cannot listen", error=str(error))                # nvgraft watch: warning: cannot listen: error=...
"""

import sys
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from nvgraft.base.errors import printable

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

_DEBUG, _INFO = 10, 20  # the levels of the standard library's logging


def setup(debug: bool, json: bool = False) -> None:
    """Choose what is logged and how; without a call, no debug lines, for people.

    :param debug: debug lines as well.
    :param json: one object a line, with ``timestamp`` (UTC), ``level``, ``command`` and ``event``, instead of text. What
        reads a text (a terminal, the journal) knows the time.
    """
    import structlog

    processors: list[Any] = [structlog.processors.add_log_level]
    if json:
        processors += [
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ]
    else:
        processors.append(_text)
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(_DEBUG if debug else _INFO),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )


def get(name: str) -> "FilteringBoundLogger":
    """Return the log of the command ``name``. Call it where something is logged, not when a module is loaded."""
    import structlog

    if not structlog.is_configured():
        setup(debug=False)
    log: FilteringBoundLogger = structlog.get_logger(command=name)
    return log


def _text(_logger: object, _method: str, event: MutableMapping[str, Any]) -> str:
    """Write a line for people. Facts may come from an image or another machine: no control character reaches a terminal."""
    command, level, text = event.pop("command"), event.pop("level"), event.pop("event")
    label = "" if level == "info" else f"{level}: "
    facts = " ".join(f"{key}={value}" for key, value in event.items())
    return printable(f"nvgraft {command}: {label}{text}" + (f": {facts}" if facts else ""))
