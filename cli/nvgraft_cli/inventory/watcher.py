"""The watcher of ``nvgraft watch``: it decides when to read the host, and logs it.

The host is read after an event of the kernel about an NVIDIA device or module; after a change in
what the hook itself checks, which is checked every few seconds because MIG devices come and go
without an event; and at longer intervals for changes that neither shows. Only the kept inventory is
changed, and the hook does not rely on the watcher.
"""

import asyncio
import contextlib
import os
import signal
import socket
import time
from typing import TYPE_CHECKING

from nvgraft.base.errors import Refusal
from nvgraft.host import kept_inventory
from nvgraft_cli.inventory import uevents
from nvgraft_cli.inventory.refresh import NotKept, facts, hook_config, refresh
from nvgraft_cli.shell.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from structlog.typing import FilteringBoundLogger

#: Seconds without an event before the host is read: a driver that loads sends dozens of events.
QUIET = 1.0
#: Seconds after the first event after which the host is read in any case.
LONGEST = 10.0
#: Seconds until the next attempt to listen.
PAUSE = 5.0

#: What may fail, and is logged once each.
_READING, _WRITING = "reading", "writing"

#: The reason of a reading after which the follow-up is tried again.
_AGAIN = "nothing was written"


class Watcher:
    """Watch this host and keep its inventory up to date.

    :param check: seconds between two checks for changes; 0 for no checks.
    :param ask: seconds between two calls of NVML without a change; 0 for none.
    :param follow_up: called after each reading, also if its result was not kept. It may raise
        Refusal, InputError or OSError.
    :param lost: called at each check: says that what the follow-up has made is gone, or "".
    """

    def __init__(
        self,
        config: str | None,
        check: float,
        ask: float,
        log: "FilteringBoundLogger",
        follow_up: "Callable[[], None]" = lambda: None,
        lost: "Callable[[], str]" = lambda: "",
    ) -> None:
        self._config = config
        self._check = check
        self._ask = ask
        self._log = log
        self._follow_up = follow_up
        self._lost = lost
        self._asked = 0.0
        #: What failed -> the error that was logged last.
        self._said: dict[str, str] = {}
        self._reason = "start"
        self._ended = False
        self._wake = asyncio.Event()
        self._listening = asyncio.Event()

    async def run(self) -> None:
        """Watch until SIGTERM or SIGINT."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end, signal.Signals(number).name)
        loop.add_signal_handler(signal.SIGHUP, self._due, "SIGHUP")
        listener = asyncio.create_task(self._listen())
        self._log.info("watching", check=self._check, ask=self._ask)
        try:
            await self._listening.wait()  # events after the first reading must not be missed
            self._look()
            _tell_systemd()
            while not self._ended:
                await self._wait()
                if not self._ended:
                    self._look()
        finally:
            listener.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await listener

    def _end(self, name: str) -> None:
        self._log.info("ended", signal=name)
        self._ended = True
        self._wake.set()

    def _due(self, reason: str) -> None:
        self._reason = self._reason or reason
        self._wake.set()

    def heed(self, event: "Mapping[str, object]") -> None:
        """Handle an event of the kernel."""
        name = f"{event.get('ACTION')} {event.get('DEVPATH')}"
        self._log.debug("uevent", event_of=name, subsystem=event.get("SUBSYSTEM"))
        if uevents.concerns_driver(event):
            self._due(f"uevent {name}")

    async def _listen(self) -> None:
        error = ""
        while True:
            try:
                async with uevents.listening() as events:
                    if error:
                        error = ""
                        self._due("lost events")
                    self._listening.set()
                    async for event in events:
                        self.heed(event)
            except (OSError, UnicodeDecodeError) as problem:
                if str(problem) != error:
                    self._log.warning(
                        "events were lost, or cannot be received here", error=str(problem)
                    )
                error = str(problem)
            self._listening.set()  # without events there are the checks
            await asyncio.sleep(PAUSE)

    async def _wait(self) -> None:
        """Wait until the host is to be read or checked; after an event, until no more come."""
        timeout = self._check or (self._ask or None)
        if not self._reason and not await self._woken(timeout):
            return
        longest = time.monotonic() + LONGEST
        while not self._ended and await self._woken(
            min(QUIET, max(0.0, longest - time.monotonic()))
        ):
            continue

    async def _woken(self, timeout: float | None) -> bool:
        try:
            await asyncio.wait_for(self._wake.wait(), timeout)
        except TimeoutError:
            return False
        self._wake.clear()
        return True

    def _look(self) -> None:
        """Read the host if there is a reason, and log it."""
        reason, self._reason = self._reason, ""
        try:
            config = hook_config(self._config)
            if not reason and self._ask and time.monotonic() - self._asked >= self._ask:
                reason = "interval"
            if not reason:
                reason = kept_inventory.state(config)[1] or self._lost()
                self._log.debug("checked", difference=reason or "none")
            if not reason and _WRITING in self._said:
                reason = _AGAIN
            if not reason:
                return
            self._asked = time.monotonic()
            host = refresh(config)
        except Refusal as refusal:
            self._complain(_READING, "this host cannot be read, nothing is kept", refusal.line())
            return
        except (NotKept, OSError) as error:
            self._complain(_READING, "the result is not kept", str(error))
        else:
            self._said.pop(_READING, None)
            (self._log.debug if reason in ("interval", _AGAIN) else self._log.info)(
                "read", reason=reason, **facts(host)
            )
        try:
            self._follow_up()
        except Refusal as refusal:
            self._complain(_WRITING, "nothing is written", refusal.line())
        except (InputError, OSError) as error:
            self._complain(_WRITING, "nothing is written", str(error))
        else:
            self._said.pop(_WRITING, None)

    def _complain(self, what: str, text: str, error: str) -> None:
        """Log a problem once, although every check tries again."""
        if error != self._said.get(what):
            self._log.warning(text, error=error)
        self._said[what] = error


def _tell_systemd() -> None:
    """Tell systemd that this service is ready, if it waits for that (sd_notify(3))."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify,
    ):
        notify.sendto(b"READY=1", address)
