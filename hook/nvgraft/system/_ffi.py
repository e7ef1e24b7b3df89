"""Functions of the C library, called by ``_ctypes``: the C half of ctypes, without the package
around it.

The package makes about forty types, loads ``struct`` and opens the interpreter's C interface, which
takes 2 to 4 ms of every start (docs/decisions/0002). The names used here are those that the package
of Python 3.8 to 3.14 itself imports.

:mod:`nvgraft.system.syscalls` declares the functions and reports their errors.
"""

from __future__ import annotations

import _ctypes
from _ctypes import get_errno

from nvgraft.base._os import os

__all__ = ["WORD", "address", "find_function", "get_errno"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


# ctypes calls this type c_void_p. The base class accepts no type argument at run time.
class WORD(_ctypes._SimpleCData):  # type: ignore[type-arg]
    """An argument as wide as an address: an address, a ``size_t`` or a ``long``.

    Without a declaration, ctypes passes a number as ``int``, bytes as ``const char *`` and None as
    a null pointer. A result is an ``int``.
    """

    _type_ = "P"


class _Function(_ctypes.CFuncPtr):
    """A function of the C library. Each call saves its errno for get_errno()."""

    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO


def find_function(name: str) -> Callable[..., int]:
    """Find a function in this process, that is, in the C library.

    :raises OSError: the C library does not have it.
    """
    program: Any = None
    return _Function(_ctypes.dlsym(_ctypes.dlopen(program, os.RTLD_NOW), name))


def address(memory: bytearray) -> int:
    """Return the address of ``memory``, for a field of a structure. Keep ``memory`` for as long as
    the address is used, and leave its size as it is, at least eight bytes.
    """
    return _ctypes.addressof(WORD.from_buffer(memory))
