"""``nvgraft-device-plugin labels``: print the labels of a node, or keep them in a file for node
feature discovery (NFD), as NVIDIA's GPU feature discovery does.
"""

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence

from nvgraft_device_plugin import configuration
from nvgraft_device_plugin.configuration import LABEL_FLAGS, VENDOR_PREFIX, Configuration
from nvgraft_device_plugin.devices import Node
from nvgraft_device_plugin.errors import ConfigurationError, NodeError
from nvgraft_device_plugin.files import write_whole
from nvgraft_device_plugin.labels import node_labels
from nvgraft_device_plugin.node import NvmlError
from nvgraft_device_plugin.source import open_source

_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_PART = r"(\d+(?:\.\d+)?)(h|ms|m|s)"


def text(words: Sequence[str], environ: Mapping[str, str]) -> tuple[str, Configuration]:
    """Return the lines of the labels, and the configuration by which they were made.

    :raises ConfigurationError: the configuration cannot be used.
    :raises NodeError: the node cannot be described, or NVML does not answer.
    """
    given = configuration.load(words, environ, flags=LABEL_FLAGS)
    seconds(given.text("sleep-interval"))
    source = open_source(given)
    try:
        configuration.check(given, has_nvml=source.loads)
        source.start()
        read = source.read()
    except NvmlError as error:
        if given.switch("fail-on-init-error"):
            raise NodeError(str(error)) from error
        read = Node("nvml")
    finally:
        source.stop()
    machine = _machine(given.text("machine-type-file")) if source.watched else "unknown"
    labels = node_labels(read, given, machine)
    if not given.switch("no-timestamp"):
        labels[f"{VENDOR_PREFIX}gfd.timestamp"] = str(int(time.time()))
    return "".join(f"{name}={value}\n" for name, value in sorted(labels.items())), given


def _machine(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(200).strip()
    except OSError:
        return "unknown"


def seconds(duration: str) -> float:
    """Return the seconds of a duration such as 60s or 1m30s.

    :raises ConfigurationError: it is none.
    """
    if not re.fullmatch(f"(?:{_PART})+", duration):
        raise ConfigurationError(
            f"invalid value {duration!r} for --sleep-interval | write a duration such as 60s"
        )
    return sum(float(number) * _UNITS[unit] for number, unit in re.findall(_PART, duration))


def run(words: Sequence[str], environ: Mapping[str, str], log: Callable[[str], None]) -> int:
    """Print the labels, or keep them in the file that is named; return the exit code."""
    kept = ""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        while True:
            lines, given = text(words, environ)
            path = given.text("output-file")
            if not path:
                print(lines, end="")
                return 0
            write_whole(path, lines)
            if given.switch("oneshot"):
                return 0
            kept = path
            log(f"wrote {lines.count(chr(10))} labels to {path}")
            caught = signal.sigtimedwait(_SIGNALS, seconds(given.text("sleep-interval")))
            if caught is not None and caught.si_signo != signal.SIGHUP:
                return 0
    except (ConfigurationError, NodeError) as error:
        log(str(error))
    except OSError as error:
        log(f"{error.filename}: {error.strerror} | mount its directory writable")
    finally:
        if kept:
            with contextlib.suppress(OSError):
                os.unlink(kept)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    return 1
