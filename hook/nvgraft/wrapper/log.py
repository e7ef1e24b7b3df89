"""The runtime wrapper's log: lines in the formats that engines know from runc (logrus text or
JSON).

Lines go to the file of config.toml and to the one that the engine names with ``--log``. Errors also
go to stderr. Warnings do not: stderr is already the container's own.
"""

from __future__ import annotations

import os
import posixpath
import time

from nvgraft.base import files
from nvgraft.base.jsontext import dumps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

#: From the most to the least verbose. A line is written unless its level is before the configured
#: one.
_LEVELS = ("trace", "debug", "info", "warning", "error", "fatal", "panic")


class LogOptions:
    """The options for runc's log on a command line, read as the reference does: at any position,
    and the last one counts.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self.debug = False
        self.version = False
        values = {"log": "", "log-format": ""}
        rest = list(arguments)
        while rest:
            word, equals, value = rest.pop(0).partition("=")
            name = word.lstrip("-")
            if name == word:
                continue
            if name == "version":
                self.version = True
            elif name == "debug":
                self.debug = True
            elif name in values and (equals or rest):
                values[name] = value if equals else rest.pop(0)
        self.file = values["log"]
        self.format = values["log-format"]


class Log:
    """The log. Before :meth:`open` is called, lines only go to stderr."""

    def __init__(self) -> None:
        self._files: list[int] = []
        self._format = ""
        self._level = _LEVELS.index("info")

    def open(self, configured: str, level: str, options: LogOptions) -> None:
        """Open the log files. A failure is logged to the others and does not keep the container
        from starting.
        """
        level = "debug" if options.debug else level.lower()
        level = {"warn": "warning"}.get(level, level)
        valid = level in _LEVELS
        self._level = _LEVELS.index(level if valid else "info")
        self._format = options.format
        failures = []
        if not options.version:
            for path in (configured, options.file):
                if path in ("", "/dev/null"):
                    continue
                try:
                    self._files.append(_open(path))
                except OSError as error:
                    failures.append(f"Failed to open log file: open {path}: {files.reason(error)}")
        if not valid:
            self.write("warning", f"invalid log-level '{level}'")
        for failure in failures:
            self.write("warning", failure)

    def write(self, level: str, message: str) -> None:
        """Write one line, unless its level is below the configured one."""
        if _LEVELS.index(level) < self._level:
            return
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        text = f"time={dumps(now)} level={level} msg={dumps(message)}"
        line = (
            dumps({"level": level, "msg": message, "time": now}) if self._format == "json" else text
        )
        for fd in self._files:
            _put(fd, line)
        if level == "error":
            _put(2, text)


def _open(path: str) -> int:
    directory = posixpath.dirname(path)
    if directory:
        os.makedirs(directory, 0o755, exist_ok=True)
    # O_NONBLOCK: a FIFO without a reader is an error, and does not block every start of a
    # container.
    return os.open(
        path,
        os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY,
        0o644,
    )


def _put(fd: int, line: str) -> None:
    try:
        os.write(fd, (line + "\n").encode("utf-8", "backslashreplace"))
    except OSError:
        return  # the disk is full, or the reader has closed its end
