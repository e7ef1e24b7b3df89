"""files: bounded reading of regular files, and the kernel's reason in the reference's spelling."""

import errno
import os
from pathlib import Path

import pytest

from nvgraft.base.files import open_file, read_fd, reason


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
    before = os.listdir("/proc/self/fd")
    for path, number in (
        (tmp_path, errno.EISDIR),
        (tmp_path / "fifo", errno.EINVAL),
        (tmp_path / "none", errno.ENOENT),
    ):
        with pytest.raises(OSError, match=os.strerror(number)) as error:
            open_file(str(path))
        assert error.value.errno == number
    assert os.listdir("/proc/self/fd") == before


def test_reasons_begin_in_lower_case() -> None:
    """Go prints the kernel's reasons in lower case; an error without a number gives its own text."""
    assert reason(FileNotFoundError(errno.ENOENT, "whatever")) == "no such file or directory"
    assert reason(OSError("Odd")) == "odd"
