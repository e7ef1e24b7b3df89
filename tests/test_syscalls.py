"""System calls check the types of their arguments, and say what failed."""

import errno
import os
from typing import Any

import pytest

from nvgraft.system import syscalls


@pytest.mark.parametrize("wrong", ["3", 3.0, None, b"3"])
def test_a_descriptor_is_an_int(wrong: Any) -> None:
    """A value of another type is refused before the call is made: C would take an address for a
    number.
    """
    with pytest.raises(Exception, match="argument 1"):
        syscalls.setns(wrong, 0)
    with pytest.raises(Exception, match="argument 2"):  # behind the number of the call
        syscalls.pidfd_open(wrong)


@pytest.mark.parametrize("wrong", [3, 3.0, None])
def test_a_text_is_bytes(wrong: Any) -> None:
    """C would take an int for the address of a text; None would be a null pointer."""
    with pytest.raises(Exception, match="argument 3"):
        syscalls._openat2("", syscalls.AT_FDCWD, wrong, b"", 0)


def test_negative_and_unsigned_numbers_reach_the_kernel() -> None:
    """The lower 32 bits of a number are passed, whatever its sign: AT_FDCWD is -100, and the last
    descriptor of close_range is unsigned.
    """
    fd = syscalls.openat2(syscalls.AT_FDCWD, "/", os.O_PATH, 0)
    copy = 1000
    os.dup2(fd, copy)
    os.close(fd)
    syscalls.close_range(copy, ~0)
    with pytest.raises(OSError, match=str(errno.EBADF)):
        os.fstat(copy)


def test_an_error_is_the_call_in_words() -> None:
    """The text of an error has the decoded arguments and the name of the error."""
    with pytest.raises(syscalls.SyscallError) as caught:
        syscalls.openat2(syscalls.AT_FDCWD, "/nothing", os.O_PATH, syscalls.RESOLVE_NO_SYMLINKS)
    assert str(caught.value) == (
        "openat2(-100, '/nothing', O_PATH, NO_SYMLINKS): ENOENT: No such file or directory"
    )
