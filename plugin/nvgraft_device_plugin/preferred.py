"""GetPreferredAllocation: which of the available devices a container should get.

Whole GPUs are chosen so that the GPUs that remain are near each other too; shares and MIG devices
are spread over GPUs, or packed.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import combinations

from nvgraft_device_plugin.devices import SHARE, Device
from nvgraft_device_plugin.errors import RequestError

#: A set of a division, and whether the one smaller set is taken with it.
Choice = tuple[tuple[str, ...], bool]

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


def _score(ids: Iterable[str], scores: Mapping[tuple[str, str], int]) -> int:
    return sum(scores.get(pair, 0) for pair in combinations(ids, 2))


def _best_division(
    ids: list[str], needed: set[str], size: int, scores: Mapping[tuple[str, str], int]
) -> list[str]:
    """Divide ``ids`` into sets of ``size``, so that the sum of their scores is greatest, and return
    the best set that has all that is needed.

    If they do not come out even, one set is smaller. Of equal divisions the first counts: sets are
    formed around the first id that is left, and its partners are tried in order.
    """
    rest = len(ids) % size

    def partners(left: tuple[str, ...], *, small_taken: bool) -> Iterator[Choice]:
        for others in combinations(left[1:], size - 1):
            yield (left[0], *others), small_taken
        if rest and not small_taken:
            for others in combinations(left[1:], rest - 1):
                yield (left[0], *others), True

    @cache
    def best(
        left: tuple[str, ...], small_taken: bool, satisfied: bool
    ) -> tuple[int, tuple[tuple[str, ...], ...]] | None:
        if not left:
            return (0, ()) if satisfied else None
        found: tuple[int, tuple[tuple[str, ...], ...]] | None = None
        for members, small in sorted_by_place(partners(left, small_taken=small_taken), left):
            whole = len(members) == size
            holds = whole and needed <= set(members)
            remaining = tuple(identifier for identifier in left if identifier not in members)
            deeper = best(remaining, small, satisfied or holds)
            if deeper is None:
                continue
            total = _score(members, scores) + deeper[0]
            if found is None or total > found[0]:
                found = total, (members, *deeper[1])
        return found

    division = best(tuple(ids), rest == 0, False)
    if division is None:
        return []
    sets = [members for members in division[1] if len(members) == size and needed <= set(members)]
    return list(max(sets, key=lambda members: _score(members, scores)))


def sorted_by_place(choices: Iterator[Choice], left: tuple[str, ...]) -> list[Choice]:
    """Sort sets by the places of their members; a set that is cut short is filled with blanks,
    which come last.
    """
    place = {identifier: number for number, identifier in enumerate(left)}
    return sorted(
        choices, key=lambda choice: [*(place[identifier] for identifier in choice[0]), len(left)]
    )


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
