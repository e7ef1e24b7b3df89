"""Show the starts of containers until a signal comes, for ``nvgraft watch --starts``."""

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Callable

from nvgraft.base.errors import Refusal
from nvgraft.request.config import Config
from nvgraft.request.decision import REFUSE, Decision, decide
from nvgraft_cli.shell import logs
from nvgraft_cli.starts import events
from nvgraft_cli.starts.observer import RUNTIMES, ContainerStart, StartObserver


async def watch(read_config: Callable[[], Config], *, json_lines: bool) -> None:
    """Print each start as a line, or as a ``nvgraft.start/1`` document on one line.

    :param read_config: reads the configuration of the hook, which may change meanwhile.
    :raises nvgraft_cli.shell.errors.InputError: the kernel sends no events here.
    """

    def tell(start: ContainerStart) -> None:
        print(json.dumps(start.document()) if json_lines else start.text(), flush=True)

    def decided(config_json: bytes, bundle: str) -> Decision:
        try:
            return decide(config_json, read_config(), bundle)
        except Refusal as refusal:
            return Decision(REFUSE, refusal.line(), refusal=refusal)

    observer = StartObserver(tell, decided, RUNTIMES | _candidates(read_config))
    # A process is looked at while it lives, and a hook lives for some milliseconds.
    os.setpriority(os.PRIO_PROCESS, 0, -20)
    watching = asyncio.ensure_future(_watch(observer))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, watching.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await watching


def _candidates(read_config: Callable[[], Config]) -> frozenset[str]:
    try:
        return frozenset(path.rpartition("/")[2] for path in read_config().runtime_runtimes)
    except Refusal:
        return frozenset()


async def _watch(observer: StartObserver) -> None:
    while True:
        try:
            async with events.listening() as stream:
                logs.get().info("watching the starts of containers")
                async for event in stream:
                    observer.take(event)
        except OSError as error:
            logs.get().warning("events were lost, and starts with them", error=str(error))
