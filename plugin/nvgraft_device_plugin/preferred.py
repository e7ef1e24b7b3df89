"""GetPreferredAllocation: which of the available devices a container should get.

Whole GPUs are chosen so that the GPUs that remain are near each other too; shares and MIG devices
are spread over GPUs, or packed.
"""

import heapq
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import combinations

from nvgraft_device_plugin.devices import SHARE, Device
from nvgraft_device_plugin.errors import RequestError

#: The sum of the scores of a division's sets, and the sets.
Division = tuple[int, tuple[int, ...]]

#: GPUs for which all ways to divide them are compared; more of them would take too long.
_MOST_COMPARED = 16


def choose(
    devices: Sequence[Device],
    available: Sequence[str],
    required: Sequence[str],
    size: int,
    scores: Mapping[tuple[str, str], int],
    *,
    packed: bool,
) -> list[str]:
    """Return ids of ``size`` devices, all ``required`` ones among them.

    :param scores: (UUID, UUID) -> how near two GPUs are.
    :raises RequestError: there is no answer.
    """
    known = {device.id: device for device in devices}
    plain = all(
        device.instances is None and device.paths and device.paths[0].startswith("/dev/nvidia")
        for device in devices
    )
    if plain and not any(SHARE in identifier for identifier in available):
        return _nearest(known, available, required, size, scores)
    return _spread(known, available, required, size, packed=packed)


def _nearest(
    known: Mapping[str, Device],
    available: Sequence[str],
    required: Sequence[str],
    size: int,
    scores: Mapping[tuple[str, str], int],
) -> list[str]:
    for identifier in (*available, *required):
        if identifier not in known:
            raise RequestError(f"no device with uuid: {identifier}")
    ids = list(dict.fromkeys(available))
    needed = set(required)
    if size <= 0 or len(ids) < size or len(needed) > size or not needed <= set(ids):
        return []
    if len(ids) > _MOST_COMPARED:
        return _grown(ids, list(dict.fromkeys(required)), size, scores)
    return _best_division(ids, needed, size, scores)


def _best_division(
    ids: list[str], needed: set[str], size: int, scores: Mapping[tuple[str, str], int]
) -> list[str]:
    """Divide ``ids`` into sets of ``size``, so that the sum of their scores is greatest, and return
    the best set that has all that is needed.

    If they do not come out even, one set is smaller. Of equal divisions the first counts: sets are
    formed around the first id that is left, and its partners are tried in order. A set of ids is a
    number with a bit for the place of each, since half a million sets are compared.
    """
    rest = len(ids) % size
    wanted = sum(1 << place for place, identifier in enumerate(ids) if identifier in needed)

    @cache
    def score(members: int) -> int:
        first, *others = _bits(members)
        near = sum(scores.get((ids[_place(first)], ids[_place(other)]), 0) for other in others)
        return near + score(members - first) if others else 0

    @cache
    def best(left: int, small_taken: bool, satisfied: bool) -> Division | None:
        if not left:
            return (0, ()) if satisfied else None
        found = best_with(left, size, small_taken, satisfied)
        if rest and not small_taken:
            smaller = best_with(left, rest, True, satisfied)
            if smaller is not None and (found is None or _comes_before(smaller, found)):
                found = smaller
        return found

    def best_with(left: int, length: int, small_taken: bool, satisfied: bool) -> Division | None:
        """Return the best division whose first set has ``length`` members."""
        first, *others = _bits(left)
        greatest, found = -1, None
        for partners in combinations(others, length - 1):
            members = sum(partners, first)
            holds = satisfied or (length == size and members & wanted == wanted)
            deeper = best(left - members, small_taken, holds)
            if deeper is not None and (total := score(members) + deeper[0]) > greatest:
                greatest, found = total, (total, (members, *deeper[1]))
        return found

    division = best((1 << len(ids)) - 1, rest == 0, False)
    if division is None:
        return []
    chosen = max(
        (one for one in division[1] if one.bit_count() == size and one & wanted == wanted),
        key=score,
    )
    return [ids[_place(bit)] for bit in _bits(chosen)]


def _bits(number: int) -> list[int]:
    """Return the bits that are set in a number, the lowest first, each as a number of its own."""
    return [1 << place for place in range(number.bit_length()) if number >> place & 1]


def _place(bit: int) -> int:
    return bit.bit_length() - 1


def _comes_before(smaller: Division, found: Division) -> bool:
    """Tell whether a division that begins with the smaller set is better, or as good and earlier.

    Sets are ordered by the places of their members; a blank of the smaller set comes last.
    """
    if smaller[0] != found[0]:
        return smaller[0] > found[0]
    short, whole = _bits(smaller[1][0]), _bits(found[1][0])
    return short < whole[: len(short)]


def _grown(
    ids: list[str], chosen: list[str], size: int, scores: Mapping[tuple[str, str], int]
) -> list[str]:
    """Add the nearest GPU to those that are chosen, until there are enough."""
    left = [identifier for identifier in ids if identifier not in chosen]
    while len(chosen) < size:
        nearest = max(
            left, key=lambda identifier: sum(scores.get((identifier, other), 0) for other in chosen)
        )
        chosen.append(nearest)
        left.remove(nearest)
    return chosen


def _spread(
    known: Mapping[str, Device],
    available: Sequence[str],
    required: Sequence[str],
    size: int,
    *,
    packed: bool,
) -> list[str]:
    """Choose from the GPU with the fewest devices taken, or the most if ``packed``."""
    chosen = list(dict.fromkeys(required))
    required_ids = set(chosen)
    free: dict[str, list[str]] = {}
    for identifier in dict.fromkeys(available):
        if identifier in known and identifier not in required_ids:
            free.setdefault(known[identifier].uuid, []).append(identifier)
    wanted = size - len(chosen)
    if wanted > sum(map(len, free.values())):
        raise RequestError("not enough available devices to satisfy allocation")
    total: dict[str, int] = {}
    for device in known.values():
        total[device.uuid] = total.get(device.uuid, 0) + 1
    sign = -1 if packed else 1
    # Entries: devices taken (negative if packed), picked in this call, place, GPU.
    queue = [
        (sign * (total[uuid] - len(ids)), 0, place, uuid)
        for place, (uuid, ids) in enumerate(free.items())
    ]
    heapq.heapify(queue)
    for _ in range(wanted):
        taken, picked, place, uuid = heapq.heappop(queue)
        chosen.append(free[uuid][picked])
        if picked + 1 < len(free[uuid]):
            heapq.heappush(queue, (taken + sign, picked + 1, place, uuid))
    return chosen
