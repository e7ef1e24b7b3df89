"""What the kernel says of its devices and modules as it happens (NETLINK_KOBJECT_UEVENT), as far as it is NVIDIA's.

Which event means what is not decided here: whoever is told looks at the host.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

#: The PCI vendor id of NVIDIA, as uevents spell it.
_VENDOR = "10DE:"


def concerns_driver(event: Mapping[str, object]) -> bool:
    """Tell whether the event is about a GPU, a module of the driver, or a device that one of these serves."""
    subsystem, path = str(event.get("SUBSYSTEM", "")), str(event.get("DEVPATH", ""))
    if subsystem == "pci":
        return str(event.get("PCI_ID", "")).upper().startswith(_VENDOR)
    if subsystem in ("module", "drivers"):
        return path.rpartition("/")[2].startswith("nvidia")
    return subsystem.startswith("nvidia")


@asynccontextmanager
async def listening() -> AsyncIterator[AsyncIterator[Mapping[str, object]]]:
    """A context in which every event of the kernel is yielded, whatever it is about, from its beginning on.

    :raises OSError: no such socket here; ENOBUFS when events were lost, because they came faster than they were taken.
    """
    from pyroute2.netlink.uevent import MONITOR_GROUP_KERNEL, AsyncUeventSocket

    socket = AsyncUeventSocket()

    async def events() -> AsyncIterator[Mapping[str, object]]:
        while True:
            async for event in socket.get():
                yield event

    try:
        # Not udev's copies, which come later, and only where udev runs.
        await socket.bind(groups=MONITOR_GROUP_KERNEL)
        yield events()
    finally:
        socket.close()
