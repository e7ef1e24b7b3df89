"""Make stand-ins for the driver's ELF files, without a compiler.

A stub is as small as the kernel, the loader and ldconfig allow. It has the facts that discovery
reads (class, machine, SONAME, NEEDED, ABI tag, interpreter) and those that decide whether it can be
loaded (search paths, versions). A library has no symbols; a program prints one line and exits.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

#: Machine -> (e_machine, e_flags). ARM has EABI version 5 with hard float.
_MACHINES = {
    "EM_386": (3, 0),
    "EM_ARM": (40, 0x05000400),
    "EM_X86_64": (62, 0),
    "EM_AARCH64": (183, 0),
    "EM_RISCV": (243, 0),
}

_ET_DYN = 3
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP, _PT_NOTE, _PT_PHDR, _PT_GNU_STACK = 1, 2, 3, 4, 6, 0x6474E551
_PF_X, _PF_W, _PF_R = 1, 2, 4
_SHT_PROGBITS, _SHT_STRTAB, _SHT_HASH, _SHT_DYNAMIC, _SHT_NOTE, _SHT_DYNSYM = 1, 3, 5, 6, 7, 11
_SHF_WRITE, _SHF_ALLOC, _SHF_EXECINSTR = 1, 2, 4
_SHT_VERDEF, _SHT_VERNEED, _SHT_VERSYM = 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF
_DT_NULL, _DT_NEEDED, _DT_HASH, _DT_STRTAB, _DT_SYMTAB = 0, 1, 4, 5, 6
_DT_STRSZ, _DT_SYMENT, _DT_SONAME, _DT_RPATH = 10, 11, 14, 15
_DT_RUNPATH, _DT_VERSYM, _DT_FLAGS_1 = 29, 0x6FFFFFF0, 0x6FFFFFFB
_DT_VERDEF, _DT_VERDEFNUM = 0x6FFFFFFC, 0x6FFFFFFD
_DT_VERNEED, _DT_VERNEEDNUM = 0x6FFFFFFE, 0x6FFFFFFF
_VER_FLG_BASE = 1

#: Segments are aligned to the largest page size in use (64 KiB on some aarch64 kernels).
_PAGE = 0x10000
#: The address of the code: on a page of its own, because no page may be writable and executable.
_CODE_BASE = _PAGE


class _Class(NamedTuple):
    """The struct formats of 32-bit or 64-bit files."""

    header: str
    program: str
    section: str
    symbol_size: int
    dynamic: str
    flags_early: bool  # p_flags stands before p_offset in 64-bit files, near the end in 32-bit ones


_CLASSES = {
    32: _Class("<HHIIIIIHHHHHH", "<IIIIIIII", "<IIIIIIIIII", 16, "<iI", False),
    64: _Class("<HHIQQQIHHHHHH", "<IIQQQQQQ", "<IIQQQQIIQQ", 24, "<qQ", True),
}


class _Section(NamedTuple):
    name: str
    type: int
    flags: int
    data: bytes
    link: str = ""
    info: int = 0
    entry_size: int = 0


class Loading(NamedTuple):
    """Entries of the dynamic section that influence loading: search paths, DT_FLAGS_1 and versions.

    Needed versions are listed by library.
    """

    rpath: str | None = None
    runpath: str | None = None
    flags_1: int = 0
    versions_needed: Mapping[str, Sequence[str]] = {}
    versions_defined: Sequence[str] = ()


_ORDINARY = Loading()


def shared_object(
    bits: int,
    machine: str,
    soname: str | None,
    needed: Sequence[str],
    abi_tag: Sequence[int] | None,
    interp: str | None = None,
    loading: Loading = _ORDINARY,
) -> bytes:
    """Return a shared object without symbols, which dlopen(), ldconfig and readelf accept.

    :param bits: 32 or 64.
    :param machine: EM_X86_64, EM_386, EM_AARCH64, EM_ARM or EM_RISCV.
    :param abi_tag: the three numbers of .note.ABI-tag, for Linux; None: no such note.
    :raises ValueError: an unknown machine or class.
    """
    return _image(bits, machine, soname, needed, abi_tag, interp, loading, b"")


def executable(
    machine: str,
    line: str,
    needed: Sequence[str] = (),
    abi_tag: Sequence[int] | None = None,
    interp: str | None = None,
    loading: Loading = _ORDINARY,
) -> bytes:
    """Return a program that prints ``line`` and exits with 0; static unless ``interp`` is given.

    :param machine: EM_X86_64 or EM_AARCH64.
    :raises ValueError: another machine, or a line longer than its code can say.
    """
    text = line.encode() + b"\n"
    if machine == "EM_X86_64":
        code = _x86_64_print(text)
    elif machine == "EM_AARCH64":
        code = _aarch64_print(text)
    else:
        raise ValueError(f"no program can be made for {machine}: only for EM_X86_64 and EM_AARCH64")
    return _image(64, machine, None, needed, abi_tag, interp, loading, code)


def _x86_64_print(text: bytes) -> bytes:
    # mov eax, write; mov edi, 1; lea rsi, [rip + text]; mov edx, length; syscall
    head = struct.pack("<B I B I", 0xB8, 1, 0xBF, 1)
    middle = struct.pack("<B I", 0xBA, len(text)) + b"\x0f\x05"
    # mov eax, exit_group; xor edi, edi; syscall
    tail = struct.pack("<B I", 0xB8, 231) + b"\x31\xff\x0f\x05"
    load_address = b"\x48\x8d\x35" + struct.pack("<I", len(middle + tail))
    return head + load_address + middle + tail + text


def _aarch64_print(text: bytes) -> bytes:
    if len(text) > 0xFFFF:
        raise ValueError("the line is longer than 65535 bytes")
    # movz xN, #value; adr xN, #offset; svc #0
    move, address, call = 0xD2800000, 0x10000000, 0xD4000001
    words = [
        move | 1 << 5,
        0,
        move | len(text) << 5 | 2,
        move | 64 << 5 | 8,
        call,
        move,
        move | 94 << 5 | 8,
        call,
    ]
    # The text follows the code, a whole number of words away.
    words[1] = address | (len(words) - 1) << 5 | 1
    return struct.pack(f"<{len(words)}I", *words) + text


def _image(
    bits: int,
    machine: str,
    soname: str | None,
    needed: Sequence[str],
    abi_tag: Sequence[int] | None,
    interp: str | None,
    loading: Loading,
    code: bytes,
) -> bytes:
    if bits not in _CLASSES or machine not in _MACHINES:
        raise ValueError(
            f"no stub can be made for {bits}-bit {machine}: there are"
            f" {', '.join(_MACHINES)}, of 32 or 64 bits"
        )
    layout = _CLASSES[bits]
    strings = _Strings()
    names = [(_DT_NEEDED, strings.add(name)) for name in needed] + (
        [(_DT_SONAME, strings.add(soname))] if soname else []
    )
    names += [(_DT_RPATH, strings.add(loading.rpath))] if loading.rpath is not None else []
    names += [(_DT_RUNPATH, strings.add(loading.runpath))] if loading.runpath is not None else []
    names += [(_DT_FLAGS_1, loading.flags_1)] if loading.flags_1 else []
    versions = _versions(loading, strings)
    dynamic_size = (len(names) + 6 + len(versions) * 2) * struct.calcsize(layout.dynamic)
    one_bucket = struct.pack("<4I", 1, 1, 0, 0)  # which holds the null symbol only
    sections = [
        _Section(".hash", _SHT_HASH, _SHF_ALLOC, one_bucket, ".dynsym", entry_size=4),
        _Section(
            ".dynsym",
            _SHT_DYNSYM,
            _SHF_ALLOC,
            bytes(layout.symbol_size),
            ".dynstr",
            1,
            layout.symbol_size,
        ),
        _Section(".dynstr", _SHT_STRTAB, _SHF_ALLOC, bytes(strings.data)),
        _Section(
            ".dynamic",
            _SHT_DYNAMIC,
            _SHF_ALLOC | _SHF_WRITE,
            bytes(dynamic_size),
            ".dynstr",
            0,
            struct.calcsize(layout.dynamic),
        ),
    ]
    sections += [section for section, _tags in versions]
    if abi_tag is not None:
        note = struct.pack("<III4sIIII", 4, 16, 1, b"GNU\0", 0, *abi_tag)
        sections.insert(0, _Section(".note.ABI-tag", _SHT_NOTE, _SHF_ALLOC, note))
    if interp is not None:
        sections.insert(0, _Section(".interp", _SHT_PROGBITS, _SHF_ALLOC, interp.encode() + b"\0"))
    if code:
        sections.append(_Section(".text", _SHT_PROGBITS, _SHF_ALLOC | _SHF_EXECINSTR, code))
    section_names = _Strings()
    name_offsets = [section_names.add(section.name) for section in sections] + [
        section_names.add(".shstrtab")
    ]
    sections.append(_Section(".shstrtab", _SHT_STRTAB, 0, bytes(section_names.data)))

    header_size, program_size = 16 + struct.calcsize(layout.header), struct.calcsize(layout.program)
    program_count = 3 + (abi_tag is not None) + 2 * (interp is not None) + bool(code)
    offsets: dict[str, int] = {}
    end = header_size + program_size * program_count
    for section in sections:
        offsets[section.name] = end = _align(end)
        end += len(section.data)
    table = _align(end)
    loaded = offsets[".text"] if code else offsets[".shstrtab"]

    def segment(kind: int, flags: int, name: str, align: int) -> bytes:
        size = next(len(section.data) for section in sections if section.name == name)
        base = _CODE_BASE if name == ".text" else 0
        return _program(layout, kind, flags, offsets[name], offsets[name] + base, size, align)

    # With PT_PHDR the loader finds its own address; PT_GNU_STACK avoids an executable stack.
    programs = (
        [
            _program(
                layout, _PT_PHDR, _PF_R, header_size, header_size, program_size * program_count, 8
            )
        ]
        if interp
        else []
    )
    programs += [segment(_PT_INTERP, _PF_R, ".interp", 1)] if interp else []
    # glibc before 2.36 relocates the dynamic section in place, so its segment is writable.
    programs.append(_program(layout, _PT_LOAD, _PF_R | _PF_W, 0, 0, loaded, _PAGE))
    programs += [segment(_PT_LOAD, _PF_R | _PF_X, ".text", _PAGE)] if code else []
    programs.append(segment(_PT_DYNAMIC, _PF_R | _PF_W, ".dynamic", 8))
    programs += [segment(_PT_NOTE, _PF_R, ".note.ABI-tag", 4)] if abi_tag is not None else []
    programs.append(_program(layout, _PT_GNU_STACK, _PF_R | _PF_W, 0, 0, 0, 16))

    tags = [
        (_DT_HASH, offsets[".hash"]),
        (_DT_STRTAB, offsets[".dynstr"]),
        (_DT_SYMTAB, offsets[".dynsym"]),
        (_DT_STRSZ, len(strings.data)),
        (_DT_SYMENT, layout.symbol_size),
    ]
    for section, (place_tag, count_tag) in versions:
        tags += [(place_tag, offsets[section.name])] + (
            [(count_tag, section.info)] if count_tag else []
        )
    tags.append((_DT_NULL, 0))
    dynamic = b"".join(struct.pack(layout.dynamic, *tag) for tag in names + tags)
    number, flags = _MACHINES[machine]
    identity = b"\x7fELF" + bytes([bits // 32, 1, 1]) + bytes(9)
    entry = offsets[".text"] + _CODE_BASE if code else 0
    section_size = struct.calcsize(layout.section)
    counts = (
        header_size,
        program_size,
        program_count,
        section_size,
        len(sections) + 1,
        len(sections),
    )
    image = bytearray(table + section_size * (len(sections) + 1))
    _place(
        image,
        0,
        identity
        + struct.pack(layout.header, _ET_DYN, number, 1, entry, header_size, table, flags, *counts),
    )
    _place(image, header_size, b"".join(programs))
    order = {section.name: index for index, section in enumerate(sections, 1)}
    for index, section in enumerate(sections):
        offset = offsets[section.name]
        _place(image, offset, dynamic if section.name == ".dynamic" else section.data)
        address = (
            0 if not section.flags else offset + (_CODE_BASE if section.name == ".text" else 0)
        )
        place = (
            name_offsets[index],
            section.type,
            section.flags,
            address,
            offset,
            len(section.data),
        )
        row = struct.pack(
            layout.section, *place, order.get(section.link, 0), section.info, 8, section.entry_size
        )
        _place(image, table + section_size * (index + 1), row)
    return bytes(image)


def _versions(loading: Loading, strings: "_Strings") -> list[tuple[_Section, tuple[int, int]]]:
    """Return the version sections, each with its tag and the tag of its number of rows (0 for
    none).
    """
    sections = []
    if loading.versions_defined:
        rows = [
            (name, _VER_FLG_BASE if number == 1 else 0, number)
            for number, name in enumerate(loading.versions_defined, 1)
        ]
        size = struct.calcsize("<HHHHIIIII")
        data = b"".join(
            struct.pack(
                "<HHHHIIIII",
                1,
                flags,
                number,
                1,
                _hash(name),
                20,
                size if number < len(rows) else 0,
                strings.add(name),
                0,
            )
            for name, flags, number in rows
        )
        sections.append(
            (
                _Section(".gnu.version_d", _SHT_VERDEF, _SHF_ALLOC, data, ".dynstr", len(rows)),
                (_DT_VERDEF, _DT_VERDEFNUM),
            )
        )
    if loading.versions_needed:
        data = b""
        index = len(loading.versions_defined) + 1
        for number, (library, names) in enumerate(loading.versions_needed.items(), 1):
            following = 16 * (1 + len(names)) if number < len(loading.versions_needed) else 0
            data += struct.pack("<HHIII", 1, len(names), strings.add(library), 16, following)
            for place, name in enumerate(names, 1):
                index += 1
                data += struct.pack(
                    "<IHHII",
                    _hash(name),
                    0,
                    index,
                    strings.add(name),
                    16 if place < len(names) else 0,
                )
        rows_count = len(loading.versions_needed)
        sections.append(
            (
                _Section(".gnu.version_r", _SHT_VERNEED, _SHF_ALLOC, data, ".dynstr", rows_count),
                (_DT_VERNEED, _DT_VERNEEDNUM),
            )
        )
    if sections:
        # One number for each symbol; the null symbol is the only one.
        sections.append(
            (
                _Section(".gnu.version", _SHT_VERSYM, _SHF_ALLOC, bytes(2), ".dynsym", 0, 2),
                (_DT_VERSYM, 0),
            )
        )
    return sections


def _hash(name: str) -> int:
    """Return the System V ABI hash of a name."""
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ high >> 24) & ~high & 0xFFFFFFFF
    return value


class _Strings:
    """A string table under construction."""

    def __init__(self) -> None:
        self.data = bytearray(b"\0")

    def add(self, text: str) -> int:
        offset = len(self.data)
        self.data += text.encode() + b"\0"
        return offset


def _program(
    layout: _Class, kind: int, flags: int, offset: int, address: int, size: int, align: int
) -> bytes:
    if layout.flags_early:
        return struct.pack(layout.program, kind, flags, offset, address, address, size, size, align)
    return struct.pack(layout.program, kind, offset, address, address, size, size, flags, align)


def _place(image: bytearray, offset: int, data: bytes) -> None:
    image[offset : offset + len(data)] = data


def _align(offset: int) -> int:
    return (offset + 15) // 16 * 16
