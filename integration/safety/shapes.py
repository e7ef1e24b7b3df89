"""Inputs of any length that slow down a careless reader. A linear reader's time doubles with
them.
"""

import json
import struct
import tarfile
from collections.abc import Callable

import fuzzing


def ldcache_with_one_name(length: int) -> bytes:
    """Return a loader cache whose entries all point into one long name."""
    count = length // 24
    header = struct.pack("<20sIIB3xI12x", b"glibc-ld.so.cache1.1", count, length, 2, 0)
    base = len(header) + 24 * count
    rows = b"".join(struct.pack("<iIIIQ", 0x303, base, base, 0, 0) for _ in range(count))
    return header + rows + b"libcuda.so.1\0"


def host_with_path(path: bytes) -> bytes:
    """Return a host snapshot with a file at ``path``."""
    seed = (fuzzing.SEEDS / "snapshot" / "small").read_bytes()
    return seed.replace(
        b'"files": {', b'"files": {"' + path + b'": {"type": "dir", "mode": "0755"}, ', 1
    )


def tar_entry(name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, **members: str) -> bytes:
    """Return an entry of an archive with its headers."""
    info = tarfile.TarInfo(name)
    info.type = kind
    info.size = len(data)
    info.pax_headers = members
    return (
        info.tobuf(tarfile.PAX_FORMAT if members else tarfile.GNU_FORMAT)
        + data
        + bytes(-len(data) % 512)
    )


def image(layer: bytes) -> bytes:
    """Return an archive like those of ``docker save``, of an image with one layer."""
    manifest = json.dumps([{"Config": "c", "Layers": ["l"]}]).encode()
    return b"".join(
        tar_entry(*entry) for entry in (("manifest.json", manifest), ("c", b"{}"), ("l", layer))
    )


def elf_with_segments(length: int) -> bytes:
    """Return a program with very many segments, each the whole rest of the file, and one long
    name.
    """
    tags = b"".join(struct.pack("<QQ", 1, 0) for _ in range(length // 32))
    count = min(length // 112, 60000)
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 3, 62, 1, 0, 64, 0, 0, 64, 56, count, 64, 0, 0
    )
    start = 64 + 56 * count
    rows = struct.pack("<IIQQQQQQ", 2, 4, start, start, 0, len(tags), len(tags), 8) * count
    return header + rows + tags


def journal_of(length: int) -> bytes:
    """Return a journal with one long record of many entries."""
    seed = (fuzzing.SEEDS / "kept_journal" / "records").read_bytes()
    return seed.partition(b"\n\n")[0] + b"\n\n" + b"dir\0/a\0" * (length // 7)


#: Target -> shapes that slow down a careless reader: the input by its length. The time should be
#: proportional to it.
SHAPES: dict[str, dict[str, Callable[[int], bytes]]] = {
    "json": {
        "nested to the limit": lambda n: b"[" + b"[],{}," * (n // 6) + b"0]",
        "an escape at the end": lambda n: b'["' + b"\\\\" * (n // 2) + b'\\x"]',
        "brackets, then an error": lambda n: b"[" * 60 + b"[]," * (n // 3),
        "quotes, then NaN": lambda n: b"[" + b'"\\"",' * (n // 5) + b"NaN]",
        "one number": lambda n: b"[" + b"1" * n + b"]",
    },
    "config": {
        "variables": lambda n: (
            b'{"process":{"env":['
            + b'"A=B",' * (n // 6)
            + b'"A=B"]},"ociVersion":"1.0.2","root":{}}'
        ),
        "mounts": lambda n: (
            b'{"mounts":[' + b"{}," * (n // 3) + b'{}],"ociVersion":"1.0.2","root":{},"process":{}}'
        ),
    },
    "runc": {"other members": lambda n: b'{"ociVersion":"1.0.2","x":[' + b"0," * (n // 2) + b"0]}"},
    "toml": {
        "keys": lambda n: b"".join(b"key%d = 1\n" % i for i in range(n // 12)),
        "a dotted key": lambda n: b"a" + b".a" * min(n // 2, 400) + b" = 1\n" + b"# " * (n // 4),
        "a string": lambda n: b'x = "' + b"y" * n + b'"',
    },
    "requirements": {
        "terms": lambda n: b"cuda>=99 " * (n // 9),
        "factors": lambda n: b"cuda>=1," * (n // 8),
        "digits": lambda n: b"cuda>=" + b"0" * n,
        "signs": lambda n: b"=" * n,
    },
    "ldcache": {"overlapping names": ldcache_with_one_name},
    "paste": {
        "backslashes": lambda n: b"\\" * n,
        "blanks": lambda n: b" " * n,
        "letters": lambda n: b"a" * n,
        "stages": lambda n: b"nvidia-container-cli: mount error: " * (n // 35),
        "unclosed escapes": lambda n: b"\x1b]" * (n // 2),
    },
    "diff": {
        "YAML levels": lambda n: b"cdiVersion: 0.6.0\nx: " + b"[" * (n // 2) + b"]" * (n // 2),
        "log lines": lambda n: b"I0101 00:00:00.0 1 nvc_mount.c:1] mounting /a at /b\n" * (n // 52),
        "a long log line": lambda n: b"I0101 00:00:00.0 1 a:1] mounting " + b"a" * n,
        "mounts": lambda n: (
            b"41 36 8:1 /x /usr/lib/libcuda.so.1 ro - ext4 /dev/sda1 rw\n" * (n // 58)
        ),
    },
    "ld_so_conf": {
        "patterns": lambda n: b"include *a*a*a*\n" * (n // 16),
        "directories": lambda n: b"/a\n" * (n // 3),
    },
    "image": {
        "entries": lambda n: image(b"".join(tar_entry(f"d/{i}") for i in range(n // 512))),
        "deep names": lambda n: image(tar_entry("a/" * 45 + "b") * (n // 512)),
        "headers before an entry": lambda n: image(
            tar_entry("x", b"10 path=a\n", tarfile.XHDTYPE) * (n // 1024)
        ),
        "a header for all entries": lambda n: image(
            tar_entry(
                "x",
                b"".join(b"6 %c%c=\n" % (65 + i % 26, 65 + i // 26) for i in range(500)),
                tarfile.XGLTYPE,
            )
            + b"".join(tar_entry(f"d/{i}") for i in range(n // 512))
        ),
        "whiteouts of what the layer brings": lambda n: image(
            b"".join(tar_entry(f"d/{i}") for i in range(n // 1024))
            + tar_entry(".wh.d") * (n // 1024)
        ),
        "directories to be emptied": lambda n: image(
            b"".join(tar_entry(f"d/{i}") for i in range(n // 1024))
            + tar_entry("d/.wh..wh..opq") * (n // 1024)
        ),
    },
    "layers": {"a deep path": lambda n: b"f " + b"a/" * min(n // 2, 2000) + b"b x\n\nf .wh.a"},
    "elf": {"segments": elf_with_segments},
    "loader": {
        "slashes": lambda n: b"/" * n,
        "directories": lambda n: b"/lib/\0" * (n // 6),
        "levels": lambda n: b"\0" + b"x86-64-v2:" * (n // 10),
    },
    "nvml": {
        "MIG devices": lambda n: (
            b"driver\t1\t2\ngpu\t0\t\t00000000:17:00.0\t2\t9\tenabled\t\n"
            + b"mig\t\t1\t1\n" * (n // 9)
            + b"end"
        )
    },
    "kept_journal": {"entries": journal_of},
    "ldcache_table": {"overlapping names": ldcache_with_one_name},
    "cgroup": {
        "hierarchies": lambda n: b"1:name=x:/a\n" * (n // 12) + b"0::/",
        "rules": lambda n: b"0::/\0\0" + b"c 195:1 rw\n" * (n // 11),
    },
    "mountinfo": {
        "escapes": lambda n: b"36 35 98:0 /" + b"\\040" * (n // 4) + b" /mnt rw - ext3 /dev/root rw"
    },
    "environment": {
        "devices": lambda n: (
            b"NVIDIA_VISIBLE_DEVICES=" + b",".join(b"%d" % i for i in range(n // 6))
        ),
        "requirements": lambda n: b"".join(
            b"NVIDIA_REQUIRE_%d=%s\n" % (i, b"cuda>=99 " * 200) for i in range(n // 1800)
        ),
    },
    "snapshot": {
        "a deep path": lambda n: host_with_path(b"/a" * min(n // 2, 2000)),
        "files": lambda n: host_with_path(b'/a":{"type":"dir","mode":"0755"},"/b'),
    },
}
