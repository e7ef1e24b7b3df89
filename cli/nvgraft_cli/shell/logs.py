"""The log, on stderr, of commands that change something or keep running.

All of them use structlog, which is imported with the first line. Answers go to stdout and refusals
are lines of their own: neither is logged. The hook has a log of its own
(:mod:`nvgraft.report.debug_log`).

A command logs a short text and facts beside it::

    log = logs.get("watch") log.info("inventory refreshed", gpus=8, reason="uevent")      # nvgraft
    watch: inventory refreshed: gpus=8 reason=uevent log.warning("cannot listen", error=str(error))
    # nvgraft watch: warning: cannot listen: error=...
"""

import sys
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from nvgraft.base.errors import printable

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

_DEBUG, _INFO = 10, 20  # the levels of the standard library's logging


def setup(debug: bool, json: bool = False) -> None:
    """Configure the log. Without this call it is text without debug lines.

    :param debug: log debug lines too.
    :param json: write one object a line, with ``timestamp`` (UTC), ``level``, ``command`` and
        ``event``. Text has no timestamp, because a terminal or the journal adds one.
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
    """Return the log of the command ``name``. Call it in functions, not at import."""
    import structlog

    if not structlog.is_configured():
        setup(debug=False)
    log: FilteringBoundLogger = structlog.get_logger(command=name)
    return log


def _text(_logger: object, _method: str, event: MutableMapping[str, Any]) -> str:
    """Render a line of text. Values may come from an image: control characters are escaped."""
    command, level, text = event.pop("command"), event.pop("level"), event.pop("event")
    label = "" if level == "info" else f"{level}: "
    facts = " ".join(f"{key}={value}" for key, value in event.items())
    return printable(f"nvgraft {command}: {label}{text}" + (f": {facts}" if facts else ""))
