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
    "CHAR_P_OR_NULL",
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

    #: The C type of a result.
    Result = type[_ctypes._SimpleCData[Any]]


class LONG(_ctypes._SimpleCData):  # type: ignore[type-arg]  # it accepts none at run time
    """A C long, which also holds an address: 0 is a null pointer. ctypes calls it c_long."""

    _type_ = "l"


class Argument:
    """The type of an argument for which no C object is made.

    _ctypes passes an int as a C int, the address of bytes, and None as a null pointer. A C type
    would make an object for each value: a call with six arguments would take 1.4 times as long.

    :param from_param: returns the value to pass, or raises TypeError.
    """

    def __init__(self, from_param: Callable[[Any], object]) -> None:
        self.from_param = from_param


if TYPE_CHECKING:
    #: The type of an argument: a C type, or what checks the value alone.
    Type = Result | Argument

#: A C int: an int of Python, of which the lower 32 bits are passed. No method of int that returns
#: the number itself is called faster than conjugate().
INT = Argument(int.conjugate)
#: A ``const char *`` to immutable bytes: a text, or a structure that C only reads.
CHAR_P = Argument(bytes.__bytes__)
#: As CHAR_P, and None is a null pointer.
CHAR_P_OR_NULL = Argument(lambda text: None if text is None else bytes.__bytes__(text))

# These are for arguments alone: an unsigned number has the bits of the signed one of its size.
UINT = INT
ULONG = SIZE = VOID_P = LONG


class _Function(_ctypes.CFuncPtr):
    """A function of the C library. Each call saves its errno for get_errno()."""

    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO


def find_function(
    name: str, arguments: Sequence[Type], result: Result | None = None
) -> Callable[..., int]:
    """Find a function in this process, that is, in the C library.

    :param result: the type of its result; None for a C int, which is what _ctypes expects of a
        function whose type nobody has set.
    :raises OSError: the C library does not have it.
    """
    program: Any = None
    function = _Function(_ctypes.dlsym(_ctypes.dlopen(program, os.RTLD_NOW), name))
    function.argtypes = arguments  # type: ignore[assignment]  # typeshed knows C types alone
    if result is not None:
        function.restype = result
    return function


def address(memory: bytearray) -> int:
    """Return the address of ``memory``, which has eight bytes or more. Keep it for as long as the
    address is used, and leave its size as it is.
    """
    return _ctypes.addressof(LONG.from_buffer(memory))
