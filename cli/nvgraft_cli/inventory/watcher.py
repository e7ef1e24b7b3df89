"""The watcher behind ``nvgraft watch``: when it looks at the host, and what it says.

Three things make it look: an event of the kernel about an NVIDIA device or module; a check every few seconds of all that the hook
itself checks, since MIG devices come and go without an event; and, more rarely, NVML, for what neither shows. It changes nothing but
the cache, and the hook does not rely on it.
"""

import asyncio
import contextlib
import signal
import time
from typing import TYPE_CHECKING

from nvgraft.base.errors import Refusal
from nvgraft.host import kept_inventory
from nvgraft_cli.inventory import uevents
from nvgraft_cli.inventory.refresh import NotKept, facts, hook_config, refresh

if TYPE_CHECKING:
    from collections.abc import Mapping

    from structlog.typing import FilteringBoundLogger

#: Seconds of silence after an event before the host is looked at: a driver that loads sends dozens of events in a row.
QUIET = 1.0
#: Seconds after which it is looked at in any case.
LONGEST = 10.0
#: Seconds until it is tried again to listen.
PAUSE = 5.0


class Watcher:
    """What is watched, how often, and what was last said about it.

    :param check: seconds between two looks at what the hook checks; 0 for none.
    :param ask: seconds between two questions to NVML; 0 for none.
    """

    def __init__(
        self, config: str | None, check: float, ask: float, log: "FilteringBoundLogger"
    ) -> None:
        self._config = config
        self._check = check
        self._ask = ask
        self._log = log
        self._asked = 0.0
        self._said = ""
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
            await self._listening.wait()  # what happens after the first look has to be heard
            while not self._ended:
                self._look()
                await self._wait()
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
        """Take note of an event of the kernel."""
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
                        "events were lost, or cannot be heard here", error=str(problem)
                    )
                error = str(problem)
            self._listening.set()  # or never: then there are the checks
            await asyncio.sleep(PAUSE)

    async def _wait(self) -> None:
        """Wait until something is due; after an event, until there is silence."""
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
        """Read the host if there is a reason to, and say so."""
        reason, self._reason = self._reason, ""
        try:
            config = hook_config(self._config)
            if not reason and self._ask and time.monotonic() - self._asked >= self._ask:
                reason = "interval"
            if not reason:
                reason = kept_inventory.state(config)[1]
                self._log.debug("checked", difference=reason or "none")
            if not reason:
                return
            self._asked = time.monotonic()
            host = refresh(config)
        except Refusal as refusal:
            self._complain("this host cannot be read, nothing is cached", refusal.line())
        except (NotKept, OSError) as error:
            self._complain("what was read is not cached", str(error))
        else:
            self._said = ""
            (self._log.debug if reason == "interval" else self._log.info)(
                "read", reason=reason, **facts(host)
            )

    def _complain(self, text: str, error: str) -> None:
        """Say what is wrong when it begins; it is tried again at every check."""
        if error != self._said:
            self._log.warning(text, error=error)
        self._said = error
