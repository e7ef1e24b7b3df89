"""Health: NVML's events of the node's GPUs, which devices they make unhealthy, and the way back."""

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import pynvml

from nvgraft_device_plugin.devices import Device

#: Xids that a program causes, not the GPU.
_IGNORED = frozenset({13, 31, 43, 45, 68, 109})

#: Milliseconds that one wait for events takes at most.
_WAIT = 1000

#: Seconds without an answer after which NVML is said to hang.
SILENCE = 15.0

#: Seconds after which an unhealthy GPU is asked again.
PROBE_AFTER = 60.0

#: No instance: the event is of the whole GPU.
_NONE = 0xFFFFFFFF


class WatchedXids(NamedTuple):
    """Which Xids make a device unhealthy.

    :ivar watching: false if none can.
    """

    watching: bool
    ignored: frozenset[int]
    all_but: bool
    enabled: frozenset[int]

    def counts(self, xid: int) -> bool:
        """Tell whether an Xid makes its GPU unhealthy."""
        return xid in self.enabled or (self.all_but and xid not in self.ignored)


def watched_xids(environ: Mapping[str, str]) -> tuple[WatchedXids, list[str]]:
    """Return what DP_DISABLE_HEALTHCHECKS and DP_ENABLE_HEALTHCHECKS say, and what is malformed.

    An Xid that is enabled counts, also where all are disabled.
    """
    problems: list[str] = []
    disabled = environ.get("DP_DISABLE_HEALTHCHECKS", "").strip().lower()
    enabled = environ.get("DP_ENABLE_HEALTHCHECKS", "").strip().lower()
    nothing = bool({"all", "xids"} & set(_words(disabled)))
    wanted = frozenset(_numbers(enabled, "DP_ENABLE_HEALTHCHECKS", problems))
    if "all" in _words(enabled):
        return WatchedXids(True, frozenset(), True, wanted), problems
    ignored = _IGNORED | frozenset(_numbers(disabled, "DP_DISABLE_HEALTHCHECKS", problems))
    return WatchedXids(bool(wanted) or not nothing, ignored, not nothing, wanted), problems


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _numbers(text: str, variable: str, problems: list[str]) -> Iterable[int]:
    for word in _words(text):
        if word.isascii() and word.isdecimal():
            yield int(word)
        elif word not in {"all", "xids"}:
            problems.append(
                f"ignoring malformed Xid {word!r} in {variable} | write numbers, or all"
            )


class Change(NamedTuple):
    """GPUs, or instances of one, that became unhealthy (with the reason) or healthy (without)."""

    gpus: frozenset[str]
    instances: tuple[int, int] | None
    reason: str

    def concerns(self, device: Device) -> bool:
        """Tell whether a device is one of them."""
        if device.gpu not in self.gpus:
            return False
        return self.instances is None or device.instances in {None, self.instances}


class EventWatcher:
    """Waits for NVML's events of some GPUs, in a thread of its own, until it is stopped.

    :param changed: called with each change.
    :param xid: called with the GPU's UUID ("": NVML does not say) and the Xid, ignored ones too.
    :param probe_after: seconds after which an unhealthy GPU is asked again; 0: never.
    """

    def __init__(
        self,
        gpus: Iterable[str],
        xids: WatchedXids,
        changed: Callable[[Change], None],
        warn: Callable[[str], None],
        xid: Callable[[str, int], None] = lambda _gpu, _number: None,
        probe_after: float = PROBE_AFTER,
    ) -> None:
        self._gpus = tuple(gpus)
        self._xids = xids
        self._changed = changed
        self._warn = warn
        self._xid = xid
        self._probe_after = probe_after
        self._ill: dict[str, float] = {}
        self._unwatched: set[str] = set()
        self._stopped = False
        self._failure = ""
        self._answered = time.monotonic()

    @property
    def failure(self) -> str:
        """Say why NVML does not answer; empty if it does."""
        silent = time.monotonic() - self._answered
        return f"no answer for {silent:.0f} s" if silent > SILENCE else self._failure

    def stop(self) -> None:
        """End :meth:`run` within a second, unless NVML hangs. Nothing is called afterwards."""
        self._stopped = True

    def run(self) -> None:
        """Wait for events until :meth:`stop`."""
        try:
            events = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError as error:
            self._answered = math.inf  # nothing is waited for
            self._warn(
                f"no health checks: NVML makes no event set: {error} | run nvidia-smi on the node;"
                " start this container again when it works"
            )
            return
        try:
            for uuid in self._gpus:
                self._register(uuid, events)
            while not self._stopped:
                self._wait(events)
                self._probe(events)
                self._answered = time.monotonic()
        finally:
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlEventSetFree(events)

    def _register(self, uuid: str, events: object) -> None:
        """Ask for a GPU's events. One whose events cannot be had is unhealthy."""
        wanted = (
            pynvml.nvmlEventTypeXidCriticalError
            | pynvml.nvmlEventTypeDoubleBitEccError
            | pynvml.nvmlEventTypeSingleBitEccError
        )
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            supported = pynvml.nvmlDeviceGetSupportedEventTypes(handle)
            pynvml.nvmlDeviceRegisterEvents(handle, wanted & supported, events)
            self._unwatched.discard(uuid)
        except pynvml.NVMLError_NotSupported:
            self._warn(f"Device {uuid} is too old to support healthchecking.")
        except pynvml.NVMLError as error:
            self._unwatched.add(uuid)
            self._mark(frozenset({uuid}), None, f"NVML cannot watch it: {error}")

    def _wait(self, events: object) -> None:
        try:
            event = pynvml.nvmlEventSetWait_v2(events, _WAIT)
        except pynvml.NVMLError_Timeout:
            self._failure = ""
            return
        except pynvml.NVMLError as error:
            self._failure = f"waiting for events: {error}"
            silent = frozenset[str]()
            if isinstance(error, pynvml.NVMLError_GpuIsLost):  # NVML does not say which
                silent = frozenset(uuid for uuid in self._gpus if not _answers(uuid))
            self._mark(silent or frozenset(self._gpus), None, self._failure)
            time.sleep(_WAIT / 1000)
            return
        self._failure = ""
        if event.eventType != pynvml.nvmlEventTypeXidCriticalError or self._stopped:
            return
        number = int(event.eventData)
        gpus, instances = _place(event)
        self._xid(next(iter(gpus), ""), number)
        if self._xids.counts(number):
            self._mark(gpus, instances, f"Xid {number}")

    def _mark(self, gpus: frozenset[str], instances: tuple[int, int] | None, reason: str) -> None:
        for uuid in gpus or frozenset(self._gpus):
            self._ill[uuid] = time.monotonic()
        if not self._stopped:
            self._changed(Change(gpus or frozenset(self._gpus), instances, reason))

    def _probe(self, events: object) -> None:
        """Ask GPUs that have been unhealthy for some time; those that answer are healthy."""
        if not self._probe_after:
            return
        now = time.monotonic()
        for uuid, since in list(self._ill.items()):
            if now - since < self._probe_after:
                continue
            self._ill[uuid] = now
            if uuid in self._unwatched:
                self._register(uuid, events)
            if not self._stopped and uuid not in self._unwatched and _answers(uuid):
                del self._ill[uuid]
                self._changed(Change(frozenset({uuid}), None, ""))


def _place(event: Any) -> tuple[frozenset[str], tuple[int, int] | None]:
    """Return the GPU of an event (all of them if NVML does not say), and its instances."""
    try:
        uuid = pynvml.nvmlDeviceGetUUID(event.device)
    except pynvml.NVMLError:
        return frozenset(), None
    text = uuid.decode() if isinstance(uuid, bytes) else uuid
    instances = event.gpuInstanceId, event.computeInstanceId
    return frozenset({text}), None if _NONE in instances else instances


def _answers(uuid: str) -> bool:
    """Tell whether NVML reads a GPU's memory and its name."""
    try:
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        pynvml.nvmlDeviceGetName(handle)
        pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError:
        return False
    return True
