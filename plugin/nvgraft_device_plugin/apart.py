"""Run beside the event loop what may never return, such as NVML while a GPU hangs."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: The name of the threads.
NAME = "nvgraft-apart"


def apart(function: Callable[[], T]) -> "asyncio.Future[T]":
    """Run a function in a daemon thread. Neither the loop nor the process's end waits for it."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def deliver(settle: Callable[[], None]) -> None:
        if not future.done():
            settle()

    def run() -> None:
        try:
            result = function()
        except Exception as error:  # noqa: BLE001 - the future carries it
            settle = _with(future.set_exception, error)
        else:
            settle = _with(future.set_result, result)
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(deliver, settle)

    threading.Thread(target=run, name=NAME, daemon=True).start()
    return future


def _with(settle: Callable[[T], None], value: T) -> Callable[[], None]:
    return lambda: settle(value)
