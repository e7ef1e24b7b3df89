"""IMEX channels as CDI devices.

Source: reference behaviour 10.4 and the rules of mode jit-cdi.
"""

from __future__ import annotations

from nvgraft.base.errors import Refusal
from nvgraft.base.jsontext import dumps
from nvgraft.cdi.discovery import Contents

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from nvgraft.host.graphics_files import FileFinder

DIRECTORY = "/dev/nvidia-caps-imex-channels"
_PREFIX = "channel"
#: A channel's id is a minor number: 20 bits.
_LAST = (1 << 20) - 1
_GENERATORS = "failed to construct device spec generators: "


def channel_contents(finder: FileFinder, channels: Sequence[str]) -> list[Contents]:
    """Return what each of the requested channels needs.

    :param channels: ids, also written as channelID.
    :raises Refusal: an id is not one, or the host lacks its node.
    """
    numbers = [_number(channel) for channel in dict.fromkeys(channels)]
    return [_contents(finder, number) for number in numbers]


def _number(channel: str) -> str:
    number = channel.removeprefix(_PREFIX)
    fix = f"NVIDIA_IMEX_CHANNELS takes decimal channel ids up to {_LAST}"
    if not (number.isascii() and number.isdecimal()):
        text = f"{channel}: strconv.ParseUint: parsing {dumps(number)}: invalid syntax"
        raise Refusal("", f"{_GENERATORS}invalid channel ID {text}", fix)
    if len(number.lstrip("0")) > 7 or int(number) > _LAST:
        text = f"{channel}: must be in the range [0, {_LAST}]"
        raise Refusal("", f"{_GENERATORS}invalid channel ID {text}", fix)
    return number


def _contents(finder: FileFinder, number: str) -> Contents:
    path = f"{DIRECTORY}/{_PREFIX}{number}"
    nodes = finder.char_devices([path])
    if nodes:
        return Contents(nodes=nodes)
    present = [
        name.removeprefix(_PREFIX) for name in finder.names(DIRECTORY) if name.startswith(_PREFIX)
    ]
    has = f"has the channels {', '.join(present[:16])}" if present else "has no channel"
    raise Refusal(
        "",
        f"IMEX channel {number} not found at {path}: stat {path}: no such file or directory",
        f"this host {has}: request one that exists, or make it with nvidia-modprobe -i {number}",
    )
