"""Words for ids that do not exist."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def no_such_device(device: str, known: Sequence[str]) -> str:
    """Return a hint for an id that does not exist: the nearest id that does, and which ones
    there are.
    """
    if not known:
        return f"there is no {device}: this host has no device"
    from difflib import get_close_matches  # only for bad input

    nearest = get_close_matches(device, known, 1)
    meant = f"did you mean {nearest[0]}? " if nearest else ""
    shown = ", ".join(known[:16]) + (f" and {len(known) - 16} more" if len(known) > 16 else "")
    return f"there is no {device}: {meant}request one of {shown}"
