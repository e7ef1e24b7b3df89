"""Listen to the kernel's process connector: programs that start, and processes that end."""

import asyncio
import os
import socket as sockets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from nvgraft_cli.shell.errors import InputError

#: Seconds to wait for the kernel's answer that it sends events.
PATIENCE = 2.0
#: The inode of the initial pid namespace (PROC_PID_INIT_INO of the kernel).
_FIRST_PID_NAMESPACE = 0xEFFFFFFC
#: Bytes for events that are not yet read: a node that compiles has thousands a second.
_BUFFER = 16 << 20


class ProcessEvent(NamedTuple):
    """A program that process ``pid`` executes, or the end of the process.

    :ivar status: the wait status of an ended process; None for a program that starts.
    :ivar nanoseconds: when it happened, by the monotonic clock.
    """

    pid: int
    status: int | None
    nanoseconds: int


@asynccontextmanager
async def listening() -> AsyncIterator[AsyncIterator[ProcessEvent]]:
    """Open a context that yields every event that comes while it is open.

    :raises InputError: the kernel sends none here.
    :raises OSError: ENOBUFS: events were lost because they came too fast.
    """
    if os.stat("/proc/self/ns/pid").st_ino != _FIRST_PID_NAMESPACE:
        raise InputError(
            "process events have the numbers of the initial pid namespace | run this on the node"
            " itself, or in a container with the host's pid and network namespaces"
        )
    from pyroute2.netlink import NETLINK_CONNECTOR, NLMSG_DONE
    from pyroute2.netlink.connector import cn_proc
    from pyroute2.netlink.nlsocket import AsyncNetlinkSocket

    try:
        socket = AsyncNetlinkSocket(NETLINK_CONNECTOR)
    except OSError as error:
        raise InputError(
            "the kernel has no process connector: use a kernel with CONFIG_PROC_EVENTS"
        ) from error
    socket.set_marshal(cn_proc.ProcEventMarshal())
    request = cn_proc.proc_event_control()
    request["action"] = cn_proc.PROC_CN_MCAST_LISTEN
    request["idx"], request["val"], request["len"] = cn_proc.CN_IDX_PROC, cn_proc.CN_VAL_PROC, 4

    async def messages() -> AsyncIterator[Mapping[str, Any]]:
        while True:
            async for message in socket.get():
                yield message

    # One reader from the beginning on: pyroute2 has no place for messages that nobody waits for.
    stream = messages()
    try:
        await socket.bind(groups=cn_proc.CN_IDX_PROC)
        socket.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, _BUFFER)
        # Not 0: pyroute2 closes the queue of a request's number, and events have 0.
        await socket.put(request, NLMSG_DONE, msg_flags=0, msg_seq=1)
        await asyncio.wait_for(anext(stream), PATIENCE)
        yield (event async for message in stream if (event := _event(message)) is not None)
    except TimeoutError as error:
        raise InputError(
            "the kernel sends no process events here | run this as the node's root, not in a"
            " container"
        ) from error
    except ConnectionRefusedError as error:
        raise InputError(
            "process events are in the initial network namespace alone | run this there:"
            " nsenter --target 1 --net nvgraft watch --starts"
        ) from error
    finally:
        socket.close()


def _event(message: Mapping[str, Any]) -> ProcessEvent | None:
    moment = message["timestamp_ns"]
    match message["event"]:
        case "PROC_EVENT_EXEC":
            return ProcessEvent(message["process_tgid"], None, moment)
        # A thread that ends is not its process.
        case "PROC_EVENT_EXIT" if message["process_pid"] == message["process_tgid"]:
            return ProcessEvent(message["process_tgid"], message["exit_code"], moment)
    return None
