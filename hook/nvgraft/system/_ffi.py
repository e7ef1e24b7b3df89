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

__all__ = [
    "CHAR_P",
    "INT",
    "LONG",
    "SIZE",
    "UINT",
    "ULONG",
    "VOID_P",
    "address",
    "find_function",
    "get_errno",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    #: A C type of an argument or a result.
    Type = type[_ctypes._SimpleCData[Any]]


# ctypes calls these types c_int, c_uint and so on. The base class accepts no type argument at run
# time.


class INT(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "i"


class LONG(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "l"


class CHAR_P(_ctypes._SimpleCData):  # type: ignore[type-arg]
    """A ``const char *`` to immutable bytes: a text, or a structure that C only reads. None is a
    null pointer.
    """

    _type_ = "z"


class VOID_P(_ctypes._SimpleCData):  # type: ignore[type-arg]
    """An address. None is a null pointer."""

    _type_ = "P"


class _Char(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "c"


# These are for arguments alone: an unsigned number has the bits of the signed one of its size, and
# ctypes accepts the values of both.
UINT = INT
ULONG = SIZE = LONG


class _Function(_ctypes.CFuncPtr):
    """A function of the C library. Each call saves its errno for get_errno()."""

    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO


def find_function(name: str, arguments: Sequence[Type], result: Type) -> Callable[..., int]:
    """Find a function in this process, that is, in the C library.

    :raises OSError: the C library does not have it.
    """
    program: Any = None
    function = _Function(_ctypes.dlsym(_ctypes.dlopen(program, os.RTLD_NOW), name))
    function.argtypes = arguments
    function.restype = result
    return function


def address(memory: bytearray) -> int:
    """Return the address of ``memory``, for a field of a structure. Keep ``memory`` for as long as
    the address is used, and leave its size as it is.
    """
    return _ctypes.addressof(_Char.from_buffer(memory))
