"""Bounded reading of regular files, and the kernel's reasons in the reference's spelling."""

import errno
import os
from pathlib import Path

import pytest

from descriptors import nothing_stays_open
from nvgraft.base.files import open_file, read_fd, readable, reason


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    """A file of exactly the limit is read whole, over several reads; one byte more is EFBIG."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * 600_000)
    for limit in (600_000, 599_999):
        fd = open_file(str(path))
        if limit == 600_000:
            assert read_fd(fd, limit) == b"x" * limit
        else:
            with pytest.raises(OSError, match="File too large"):
                read_fd(fd, limit)
        os.close(fd)


def test_a_file_that_is_not_regular_is_refused_and_closed(tmp_path: Path) -> None:
    """A directory is EISDIR, and a FIFO EINVAL without a wait for its writer.

    No descriptor stays open.
    """
    os.mkfifo(tmp_path / "fifo")
    for path, number in (
        (tmp_path, errno.EISDIR),
        (tmp_path / "fifo", errno.EINVAL),
        (tmp_path / "none", errno.ENOENT),
    ):
        with nothing_stays_open(), pytest.raises(OSError, match=os.strerror(number)) as error:
            open_file(str(path))
        assert error.value.errno == number


def test_a_pipe_is_waited_for_until_it_has_bytes_or_ends() -> None:
    """A silent pipe uses up the time; with bytes or without a writer it is readable immediately."""
    reader, writer = os.pipe()
    assert not readable(reader, 0.001)
    os.write(writer, b"x")
    assert readable(reader, 60)
    os.read(reader, 1)
    assert not readable(reader, 0)
    os.close(writer)
    assert readable(reader, 60)
    os.close(reader)


def test_reasons_begin_in_lower_case() -> None:
    """Reasons begin in lower case, as Go prints them.

    An error without a number gives its own text.
    """
    assert reason(FileNotFoundError(errno.ENOENT, "whatever")) == "no such file or directory"
    assert reason(OSError("Odd")) == "odd"
