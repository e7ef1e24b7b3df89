"""Listen to the kernel's events about NVIDIA devices and modules (NETLINK_KOBJECT_UEVENT)."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

#: The PCI vendor id of NVIDIA, as uevents spell it.
_VENDOR = "10DE:"


def concerns_driver(event: Mapping[str, object]) -> bool:
    """Tell whether the event is about a GPU, a driver module, or a device of a driver module."""
    subsystem, path = str(event.get("SUBSYSTEM", "")), str(event.get("DEVPATH", ""))
    if subsystem == "pci":
        return str(event.get("PCI_ID", "")).upper().startswith(_VENDOR)
    if subsystem in ("module", "drivers"):
        return path.rpartition("/")[2].startswith("nvidia")
    return subsystem.startswith("nvidia")


@asynccontextmanager
async def listening() -> AsyncIterator[AsyncIterator[Mapping[str, object]]]:
    """Open a context that yields every event of the kernel that comes while it is open.

    :raises OSError: there is no such socket; ENOBUFS: events were lost because they came too fast.
    """
    from pyroute2.netlink.uevent import MONITOR_GROUP_KERNEL, AsyncUeventSocket

    socket = AsyncUeventSocket()

    async def events() -> AsyncIterator[Mapping[str, object]]:
        while True:
            async for event in socket.get():
                yield event

    try:
        # The kernel's events, not udev's copies, which come later and only where udev runs.
        await socket.bind(groups=MONITOR_GROUP_KERNEL)
        yield events()
    finally:
        socket.close()
