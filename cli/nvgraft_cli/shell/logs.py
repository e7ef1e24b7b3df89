"""The log, on stderr, of commands that change something or keep running.

All of them use structlog, which is imported with the first line. Answers go to stdout and refusals
are lines of their own: neither is logged. The hook has a log of its own
(:mod:`nvgraft.report.debug_log`).

A command logs a short text and facts beside it::

    logs.get().info("inventory refreshed", gpus=8, reason="uevent")
    # nvgraft watch: inventory refreshed: gpus=8 reason=uevent
    logs.get().warning("cannot listen", error=str(error))
    # nvgraft watch: warning: cannot listen: error=...
    logs.get().info("/etc/x.json: registered", facts={"file": "/etc/x.json"})  # only in JSON
    # nvgraft register: /etc/x.json: registered
"""

from __future__ import annotations

import sys

from nvgraft.base.errors import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from typing import Any

    from structlog.typing import FilteringBoundLogger

_DEBUG, _INFO = 10, 20  # the levels of the standard library's logging


class _LogSettings:
    """What :func:`setup` was called with."""

    command = ""
    debug = False
    json = False
    configured = False


def setup(command: str, *, debug: bool = False, json: bool = False) -> None:
    """Configure the log of ``command`` (--debug, --log-format).

    :param debug: log debug lines too.
    :param json: write one object a line, with ``timestamp`` (UTC), ``level``, ``command`` and
        ``event``. Text has no timestamp, because a terminal or the journal adds one.
    """
    _LogSettings.command, _LogSettings.debug, _LogSettings.json = command, debug, json
    _LogSettings.configured = False


def get() -> FilteringBoundLogger:
    """Return the log. Call it in functions, not at import."""
    import structlog

    if not _LogSettings.configured:
        _configure()
    log: FilteringBoundLogger = structlog.get_logger(command=_LogSettings.command)
    return log


def _configure() -> None:
    import structlog

    level = _DEBUG if _LogSettings.debug else _INFO
    processors: list[Any] = [structlog.processors.add_log_level]
    if _LogSettings.json:
        processors += [
            _flat,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ]
    else:
        processors.append(_text)
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )
    _LogSettings.configured = True


def debug(text: str, **facts: object) -> None:
    """Log a debug line of any command: what is read, decided or skipped."""
    if _LogSettings.debug:
        get().debug(text, **facts)


def _flat(_logger: object, _method: str, event: MutableMapping[str, Any]) -> Any:
    """Put the facts that the text tells already beside the others."""
    return {**event.pop("facts", {}), **event}


def _text(_logger: object, _method: str, event: MutableMapping[str, Any]) -> str:
    """Render a line of text. Values may come from an image: control characters are escaped."""
    command, level, text = event.pop("command"), event.pop("level"), event.pop("event")
    label = "" if level == "info" else f"{level}: "
    event.pop("facts", None)
    facts = " ".join(f"{key}={value}" for key, value in event.items())
    return printable(f"nvgraft {command}: {label}{text}" + (f": {facts}" if facts else ""))
