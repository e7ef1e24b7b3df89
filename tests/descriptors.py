"""A check for leaked descriptors, shared by the tests that open some."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def nothing_stays_open() -> Iterator[None]:
    """Fail when a descriptor is open afterwards that was not open before.

    Fewer are no failure: the garbage collector may close those of an earlier test meanwhile.
    """
    before = set(os.listdir("/proc/self/fd"))
    yield
    assert set(os.listdir("/proc/self/fd")) <= before
