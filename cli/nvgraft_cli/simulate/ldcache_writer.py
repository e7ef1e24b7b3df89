"""Write loader caches for simulated hosts from rows in the form of `ldconfig -p`."""

import os
from collections.abc import Iterable

from nvgraft.formats.ldcache_table import Places, Row, Table

_LIBC6 = 0x0003
#: Flags as `ldconfig -p` prints them -> architecture bits. "64bit" is ppc64le.
_ARCHITECTURES = {
    "libc6": 0x0000,
    "libc6,x86-64": 0x0300,
    "libc6,64bit": 0x0500,
    "libc6,x32": 0x0800,
    "libc6,hard-float": 0x0900,
    "libc6,AArch64": 0x0A00,
    "libc6,soft-float": 0x0B00,
}


def cache(rows: Iterable[tuple[str, str, str]]) -> bytes:
    """Return a loader cache with ``rows``: SONAME, flags as `ldconfig -p` prints them, path.

    Rows of one SONAME and one architecture keep their order.

    :raises ValueError: a row has unknown flags.
    """
    packed = [
        Row(os.fsencode(soname), _flags(text), os.fsencode(path)) for soname, text, path in rows
    ]
    return Table().with_rows(packed, Places({})).data()


def _flags(text: str) -> int:
    if text not in _ARCHITECTURES:
        raise ValueError(
            f"unknown loader cache flags {text!r}: known are {'; '.join(_ARCHITECTURES)}"
        )
    return _ARCHITECTURES[text] | _LIBC6
