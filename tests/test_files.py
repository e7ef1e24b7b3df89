"""files: bounded reading of regular files, and the kernel's reason in the reference's spelling."""

import errno
import os
from pathlib import Path

import pytest

from descriptors import nothing_stays_open
from nvgraft.base.files import open_file, read_fd, readable, reason


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    """A file of exactly the limit is read whole, one byte more is EFBIG; pieces larger than one read are joined."""
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


def test_what_is_no_regular_file_is_refused_and_closed(tmp_path: Path) -> None:
    """A directory is EISDIR, a FIFO EINVAL without waiting for a writer; no descriptor stays open."""
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
    """A silent pipe uses up the time; bytes, or the end of its writer, make it readable immediately."""
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
    """Go prints the kernel's reasons in lower case; an error without a number gives its own text."""
    assert reason(FileNotFoundError(errno.ENOENT, "whatever")) == "no such file or directory"
    assert reason(OSError("Odd")) == "odd"
