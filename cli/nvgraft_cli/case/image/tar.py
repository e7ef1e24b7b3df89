"""Read tar archives that may be malicious: the standard library's reader with bounds.

Reading an archive ends, takes memory and time in proportion to its size, and fails with the errors
of
:data:`DAMAGE`.
"""

import tarfile
import zlib
from collections.abc import Callable, Iterator
from typing import IO

#: The errors of reading an archive, compressed or not.
DAMAGE = (tarfile.TarError, zlib.error, EOFError, OSError, ValueError, OverflowError)

#: The most bytes of a header that describes the next entry: a name, extended attributes.
_ATTRIBUTES = 1 << 20
#: The most bytes of headers that describe all following entries, because each entry gets a copy.
_COMMON_ATTRIBUTES = 4 << 10
#: The most reads at the end of the file; a complete archive needs fewer.
_EMPTY_READS = 64
#: The most headers of one entry: a long name, a long link and two sets of attributes.
_HEADERS = 4

_DESCRIBING = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.XGLTYPE,
)


class Stream:
    """A file whose end is an error after a while.

    tarfile skips an entry block by block, and an entry may claim any size.
    """

    def __init__(self, file: IO[bytes], check: Callable[[], None]) -> None:
        """Call ``check`` before each read: a small file may be decompressed to any size."""
        self._file = file
        self._check = check
        self._empty = 0

    def read(self, size: int) -> bytes:
        """Return the next bytes.

        :raises EOFError: the end was read too often.
        """
        self._check()
        data = self._file.read(size)
        self._empty = 0 if data else self._empty + 1
        if self._empty > _EMPTY_READS:
            raise EOFError("it ends within an entry")
        return data


class ArchiveEntry(tarfile.TarInfo):
    """One entry. The methods with an underscore override those that tarfile calls for each
    header.
    """

    def _block(self, count: int) -> int:
        # A negative size would move the reader backwards (CVE-2025-8194).
        if count < 0:
            raise tarfile.ReadError(f"an entry of {count} bytes")
        return -(-count // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE

    def _proc_member(self, archive: "Archive") -> tarfile.TarInfo:
        if self.type == tarfile.GNUTYPE_SPARSE:
            self._refuse_sparse()
        if self.type in _DESCRIBING:
            archive.headers += 1
            if archive.headers > _HEADERS:
                raise tarfile.ReadError("too many headers before an entry")
            if self.size > _ATTRIBUTES or (
                self.type == tarfile.XGLTYPE and archive.common(self.size) > _COMMON_ATTRIBUTES
            ):
                raise tarfile.ReadError(f"a header of {self.size} bytes")
        entry: tarfile.TarInfo = super()._proc_member(archive)  # type: ignore[misc]
        return entry

    def _refuse_sparse(self, *_: object) -> None:
        # The map of holes may be as long as the archive, and no program that makes images writes
        # one.
        raise tarfile.ReadError("an entry that is stored with holes")

    _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _refuse_sparse


class Archive(tarfile.TarFile):
    """A tar archive that is read from its beginning to its end."""

    tarinfo = ArchiveEntry
    #: Describing headers since the last entry.
    headers = 0
    _common = 0

    def common(self, size: int) -> int:
        """Count a header of ``size`` bytes that describes all following entries; return their total
        size.
        """
        self._common += size
        return self._common

    def entries(self) -> Iterator[tarfile.TarInfo]:
        """Yield every entry once, without keeping them as iteration does.

        :raises tarfile.TarError, OSError, ...: any of :data:`DAMAGE`.
        """
        while (entry := self.next()) is not None:
            self.members.clear()  # type: ignore[attr-defined]  # not among the declared ones
            self.headers = 0
            yield entry
