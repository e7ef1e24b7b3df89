"""Read facts from ELF files: class, machine, SONAME, NEEDED, ABI tag and interpreter.

No code of a file is run or mapped. A truncated file, or one with wrong tables, raises ValueError.
At most READ_LIMIT bytes of a file are read, even if many tables name the same bytes (SECURITY R17).
"""

from __future__ import annotations

from nvgraft.base._os import os
from nvgraft.base._stdlib import struct
from nvgraft.base.values import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

#: The most bytes read from one file; the driver's largest libraries need about 10 KiB.
READ_LIMIT = 1 << 20

#: e_machine -> its name in a host snapshot.
MACHINES = {3: "EM_386", 40: "EM_ARM", 21: "EM_PPC64", 62: "EM_X86_64", 183: "EM_AARCH64"}

_PT_DYNAMIC, _PT_INTERP, _PT_LOAD = 2, 3, 1
_DT_NEEDED, DT_STRTAB, DT_STRSZ, _DT_SONAME = 1, 5, 10, 14
_SHT_NOTE = 7
_ET_DYN = 3
_PT_GNU_PROPERTY, _NT_GNU_PROPERTY, _X86_ISA_1_NEEDED = 0x6474E553, 5, 0xC0008002

#: Sizes of a note's owner and text, and its type.
_NOTE_HEADER = struct.Struct("<III")

#: Bytes of the first read, which holds the headers of most files.
_HEAD = 1024


class ElfFacts(Value):
    """The facts of one ELF file that discovery needs. ``bits`` is 32 or 64; absent facts are
    None.
    """

    def __init__(
        self,
        bits: int,
        machine: str,
        soname: str | None,
        needed: tuple[str, ...],
        abi_tag: tuple[int, int, int] | None,
        interp: str | None,
    ) -> None:
        self.bits = bits
        self.machine = machine
        self.soname = soname
        self.needed = needed
        self.abi_tag = abi_tag
        self.interp = interp


class _StructFormats:
    """The struct formats of a 32-bit or a 64-bit file."""

    def __init__(self, bits: int) -> None:
        wide = bits == 64
        self.header = "<HHIQQQIHHHHHH" if wide else "<HHIIIIIHHHHHH"
        self.program = "<IIQQQQQQ" if wide else "<IIIIIIII"
        self.program_fields = (0, 2, 3, 5) if wide else (0, 1, 2, 4)  # type, offset, vaddr, filesz
        self.section = "<IIQQQQIIQQ" if wide else "<IIIIIIIIII"
        self.dynamic = "<qQ" if wide else "<iI"


class FileContent:
    """The bytes of a file that is not open, such as one in an archive. ``size`` is its length."""

    size: int

    def read(self, offset: int, length: int) -> bytes:
        """Return ``length`` bytes, or fewer at the end."""
        raise NotImplementedError


class NoFacts(ValueError):
    """A file that libelf opens without finding anything: it is not ELF, or its tables are
    damaged.
    """


def read_facts(file: int | FileContent, *, sections: bool = True) -> ElfFacts:
    """Return the facts of an open file, or of one in an archive.

    :param sections: false leaves out the ABI tag, the one fact that is in a section.
    :raises NoFacts: the file is not ELF, or is damaged; the text says what is wrong.
    :raises ValueError: the file is empty or not little-endian, which libelf refuses to open.
    :raises OSError: the file cannot be read.
    """
    opened = File(file)
    try:
        return _facts(opened, sections)
    except ValueError as error:
        raise NoFacts(str(error)) from error


def _facts(file: File, sections: bool) -> ElfFacts:
    segments = segments_of(file)
    soname, needed = _dynamic(file, segments)
    interp = None
    for kind, offset, _address, length in segments:
        if kind == _PT_INTERP:
            interp = file.read(offset, length).split(b"\0", 1)[0].decode("utf-8", "surrogateescape")
    machine = MACHINES.get(file.machine, f"EM_{file.machine}")
    return ElfFacts(
        file.bits, machine, soname, needed, _abi_tag(file) if sections else None, interp
    )


class Library(Value):
    """The facts of a shared object that ldconfig uses. ``machine`` and ``flags`` are e_machine and
    e_flags.
    """

    def __init__(
        self, bits: int, machine: int, flags: int, soname: str | None, isa_level: int
    ) -> None:
        self.bits = bits
        self.machine = machine
        self.flags = flags
        self.soname = soname
        self.isa_level = isa_level


def read_library(content: int | FileContent, *, isa_level: bool = False) -> Library:
    """Return the facts of an open file, or of one in an archive, that ldconfig uses.

    :param isa_level: also read which x86 ISA level the file needs.
    :raises ValueError: the file is not a shared object with a dynamic section, or as
        :func:`read_facts`.
    :raises OSError: the file cannot be read.
    """
    file = File(content)
    if file.header[0] != _ET_DYN:
        raise ValueError("it is not a shared object")
    segments = segments_of(file)
    if not any(kind == _PT_DYNAMIC and length for kind, _offset, _address, length in segments):
        raise ValueError("it has no dynamic section")
    soname, _needed = _dynamic(file, segments, needed=False)
    return Library(
        file.bits,
        file.machine,
        file.header[6],
        soname,
        _isa_level(file, segments) if isa_level else 0,
    )


def size_of(content: int | FileContent) -> int:
    """Return the length of an open file, or of one in an archive."""
    return os.fstat(content).st_size if isinstance(content, int) else content.size


def read_at(content: int | FileContent, offset: int, length: int) -> bytes:
    """Return bytes of an open file, or of one in an archive."""
    if isinstance(content, int):
        return os.pread(content, length, offset)
    return content.read(offset, length)


class File:
    """An ELF file whose tables are read when they are needed."""

    def __init__(self, content: int | FileContent) -> None:
        self._content = content
        self._left = READ_LIMIT
        self._size = size_of(content)
        self._head = read_at(content, 0, _HEAD)
        ident = self._head[:16]
        if not ident:
            raise ValueError("it is not an ELF file")
        if ident[:4] != b"\x7fELF" or len(ident) < 16:
            raise NoFacts("it is not an ELF file")
        if ident[4] not in {1, 2} or ident[5] != 1:
            raise ValueError("it is not for a little-endian machine")
        self.bits = 32 * ident[4]
        self.layout = _StructFormats(self.bits)
        self.header: tuple[int, ...] = struct.unpack(
            self.layout.header, self.read(16, struct.calcsize(self.layout.header))
        )
        self.machine = self.header[1]

    def read(self, offset: int, length: int) -> bytes:
        self._left -= length
        if self._left < 0:
            raise ValueError(f"its tables have more than {READ_LIMIT} bytes")
        end = offset + length
        if end <= len(self._head):
            return self._head[offset:end]
        data = read_at(self._content, offset, length) if end <= self._size else b""
        if len(data) != length:
            raise ValueError("it is cut short")
        return data


def segments_of(file: File) -> list[tuple[int, int, int, int]]:
    layout = file.layout
    offset, size, count = file.header[4], file.header[8], file.header[9]
    if not count:
        return []
    if size != struct.calcsize(layout.program):
        raise ValueError(f"its program headers have {size} bytes")
    kind, start, address, length = layout.program_fields
    rows = struct.iter_unpack(layout.program, file.read(offset, size * count))
    return [(row[kind], row[start], row[address], row[length]) for row in rows]


def dynamic_entries(
    file: File, segments: list[tuple[int, int, int, int]]
) -> Iterator[tuple[int, int]]:
    """Yield tag and value of each entry of the dynamic section; nothing where there is none."""
    table = next(
        ((offset, length) for kind, offset, _address, length in segments if kind == _PT_DYNAMIC),
        None,
    )
    if table is None:
        return
    entry = struct.calcsize(file.layout.dynamic)
    for tag, value in struct.iter_unpack(
        file.layout.dynamic, file.read(table[0], table[1] // entry * entry)
    ):
        if tag == 0:
            return
        yield tag, value


class Names:
    """The string table of a dynamic section. Each name is read from the file on its own.

    A real libcuda has 100 KiB of strings, with its SONAME at their end.
    """

    def __init__(
        self, file: File, segments: list[tuple[int, int, int, int]], address: int, size: int
    ) -> None:
        self._file = file
        self._start = file_offset(address, segments)
        self._size = size

    def name(self, offset: int, limit: int = 256) -> str:
        """Return the name at ``offset`` of the table. ``limit`` is in bytes, with the NUL."""
        if offset >= self._size:
            raise ValueError("a name outside of its string table")
        text = self._file.read(self._start + offset, min(limit, self._size - offset)).split(
            b"\0", 1
        )
        if len(text) == 1:
            raise ValueError(f"a name longer than {limit - 1} bytes")
        return text[0].decode("utf-8", "surrogateescape")


def _dynamic(
    file: File, segments: list[tuple[int, int, int, int]], *, needed: bool = True
) -> tuple[str | None, tuple[str, ...]]:
    soname_at = None
    needed_at: list[int] = []
    strings = strings_size = 0
    for tag, value in dynamic_entries(file, segments):
        if tag == _DT_NEEDED and needed:
            needed_at.append(value)
        elif tag == _DT_SONAME:
            soname_at = value
        elif tag == DT_STRTAB:
            strings = value
        elif tag == DT_STRSZ:
            strings_size = value
    if soname_at is None and not needed_at:
        return None, ()
    names = Names(file, segments, strings, strings_size)
    return None if soname_at is None else names.name(soname_at), tuple(
        names.name(offset) for offset in needed_at
    )


def file_offset(address: int, segments: list[tuple[int, int, int, int]]) -> int:
    """Return the file offset of a virtual address."""
    for kind, offset, start, length in segments:
        if kind == _PT_LOAD and start <= address < start + length:
            return address - start + offset
    raise ValueError("a table of its dynamic section lies in no segment")


def _isa_level(file: File, segments: list[tuple[int, int, int, int]]) -> int:
    """Return the highest x86 ISA level in the file's GNU property note, counted from 0."""
    align = file.bits // 8
    for kind, offset, _address, length in segments:
        if kind != _PT_GNU_PROPERTY:
            continue
        note = file.read(offset, length)
        if len(note) < 16:
            return 0
        name_size, size, note_type, name = struct.unpack_from("<III4s", note)
        if (name_size, note_type, name) != (4, _NT_GNU_PROPERTY, b"GNU\0"):
            return 0
        end = min(len(note), 16 + size)
        at = 16
        while at + 8 <= end:
            property_type, size = struct.unpack_from("<II", note, at)
            if property_type == _X86_ISA_1_NEEDED and size == 4 and at + 12 <= end:
                return max(0, int(struct.unpack_from("<I", note, at + 8)[0]).bit_length() - 1)
            at += 8 + -(-size // align) * align
    return 0


def read_note(content: int | FileContent, section: str, owner: bytes) -> bytes:
    """Return what the first note of ``section`` says; nothing if there is no such section, or if
    the note belongs to another ``owner``.

    :raises ValueError: the file is not ELF, or is damaged.
    :raises OSError: the file cannot be read.
    """
    file = File(content)
    for offset, length, alignment in _note_sections(file, section.encode()):
        if length < _NOTE_HEADER.size:
            return b""
        data = file.read(offset, length)
        name_size, size, _kind = _NOTE_HEADER.unpack_from(data)
        start = _NOTE_HEADER.size + -(-name_size // alignment) * alignment
        name = data[_NOTE_HEADER.size : _NOTE_HEADER.size + name_size]
        return data[start : start + size] if name.strip(b"\0") == owner else b""
    return b""


def _note_sections(file: File, name: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield offset, length and alignment of each note section called ``name``."""
    layout, header, read = file.layout, file.header, file.read
    offset, size, count, names_index = header[5], header[10], header[11], header[12]
    if not count or size != struct.calcsize(layout.section) or names_index >= count:
        return
    rows = list(struct.iter_unpack(layout.section, read(offset, size * count)))
    names_offset, names_size = rows[names_index][4], rows[names_index][5]
    for row in rows:
        if row[1] != _SHT_NOTE or row[0] >= names_size:
            continue
        found = read(names_offset + row[0], min(len(name) + 2, names_size - row[0]))
        if found.split(b"\0", 1)[0] == name:
            yield row[4], row[5], max(1, row[8])


def _abi_tag(file: File) -> tuple[int, int, int] | None:
    for offset, length, _alignment in _note_sections(file, b".note.ABI-tag"):
        if length < 32:
            continue
        name_size, _length, kind, name, system, major, minor, patch = struct.unpack(
            "<III4sIIII", file.read(offset, 32)
        )
        # The first note decides: it must be GNU's ABI tag for Linux.
        if (name_size, kind, name, system) == (4, 1, b"GNU\0", 0):
            return major, minor, patch
        return None
    return None
