"""Stub ELF files: their facts can be read back, and the loader, the kernel and readelf accept
them.
"""

import ctypes
import os
import struct
import subprocess
from pathlib import Path

import pytest

from nvgraft.formats import elf
from nvgraft_cli.simulate import stubs

INTERPRETER = "/lib64/ld-linux-x86-64.so.2"


def facts(tmp_path: Path, data: bytes) -> elf.ElfFacts:
    """Return the facts that the engine's reader finds in ``data``."""
    path = tmp_path / "stub"
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)
    try:
        return elf.read_facts(fd)
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("bits", "machine"), [(64, "EM_X86_64"), (32, "EM_386"), (64, "EM_AARCH64"), (32, "EM_ARM")]
)
@pytest.mark.parametrize("abi_tag", [None, (2, 3, 99)])
@pytest.mark.parametrize("needed", [(), ("libc.so.6", "libnvidia-glsi.so.535.0")])
def test_shared_object_keeps_its_facts(
    tmp_path: Path,
    bits: int,
    machine: str,
    needed: tuple[str, ...],
    abi_tag: tuple[int, int, int] | None,
) -> None:
    """Class, machine, SONAME, NEEDED in order, and ABI tag are read back as given."""
    stub = facts(tmp_path, stubs.shared_object(bits, machine, "libx.so.1", needed, abi_tag))
    assert (stub.bits, stub.machine, stub.soname, stub.needed, stub.abi_tag) == (
        bits,
        machine,
        "libx.so.1",
        needed,
        abi_tag,
    )
    assert stub.interp is None


@pytest.mark.parametrize("interp", [None, INTERPRETER])
def test_executable_keeps_its_facts(tmp_path: Path, interp: str | None) -> None:
    """A program has its interpreter and NEEDED, and no SONAME."""
    program = facts(
        tmp_path, stubs.executable("EM_X86_64", "hello", ["libc.so.6"], (3, 2, 0), interp)
    )
    assert (program.soname, program.needed, program.abi_tag, program.interp) == (
        None,
        ("libc.so.6",),
        (3, 2, 0),
        interp,
    )


def test_no_page_is_writable_and_executable() -> None:
    """No segment is writable and executable, which hardened kernels refuse, and PT_GNU_STACK is
    present.
    """
    image = stubs.executable("EM_X86_64", "hello")
    count = struct.unpack_from("<H", image, 56)[0]
    segments = [struct.unpack_from("<IIQQQQQQ", image, 64 + 56 * index) for index in range(count)]
    assert any(kind == 0x6474E551 for kind, *_ in segments)
    loads = [(flags, address // 0x10000) for kind, flags, _, address, *_ in segments if kind == 1]
    assert [flags for flags, _ in loads] == [6, 5]
    assert loads[0][1] != loads[1][1]


@pytest.mark.parametrize(("bits", "machine"), [(16, "EM_X86_64"), (64, "EM_VAX")])
def test_unknown_machines_are_refused(bits: int, machine: str) -> None:
    """An unknown machine or class raises ValueError."""
    with pytest.raises(ValueError, match="no stub can be made"):
        stubs.shared_object(bits, machine, None, [], None)
    with pytest.raises(ValueError, match="no program can be made for EM_386"):
        stubs.executable("EM_386", "hello")


@pytest.mark.requires("x86_64")
def test_loader_loads_a_stub(tmp_path: Path) -> None:
    """dlopen() loads a stub and its NEEDED libraries."""
    good, bad = tmp_path / "libx.so.1", tmp_path / "liby.so.1"
    good.write_bytes(
        stubs.shared_object(64, "EM_X86_64", "libx.so.1", ["libm.so.6", "libc.so.6"], (2, 3, 99))
    )
    ctypes.CDLL(str(good))
    bad.write_bytes(
        stubs.shared_object(64, "EM_X86_64", "liby.so.1", ["libdoes-not-exist.so.9"], None)
    )
    with pytest.raises(OSError, match=r"libdoes-not-exist\.so\.9"):
        ctypes.CDLL(str(bad))


@pytest.mark.requires("x86_64")
@pytest.mark.parametrize("dynamic", [False, True])
def test_program_prints_its_line(tmp_path: Path, *, dynamic: bool) -> None:
    """A program, static or with an interpreter, prints one line and exits with 0; the loader lists
    its libraries.
    """
    interp = INTERPRETER if dynamic else None
    path = tmp_path / "nvidia-smi"
    path.write_bytes(
        stubs.executable(
            "EM_X86_64",
            "nvgraft simulated nvidia-smi",
            ["libc.so.6"] if dynamic else [],
            None,
            interp,
        )
    )
    path.chmod(0o755)
    done = subprocess.run([path], capture_output=True, timeout=10)
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        b"nvgraft simulated nvidia-smi\n",
        b"",
    )
    if interp:
        traced = subprocess.run(
            [path], capture_output=True, timeout=10, env={"LD_TRACE_LOADED_OBJECTS": "1"}
        )
        assert b"libc.so.6 => " in traced.stdout


@pytest.mark.requires("gcc")  # readelf comes with gcc
@pytest.mark.parametrize(
    ("bits", "machine", "name"),
    [(64, "EM_X86_64", "X86-64"), (32, "EM_386", "80386"), (64, "EM_AARCH64", "AArch64")],
)
def test_readelf_gives_no_warning(tmp_path: Path, bits: int, machine: str, name: str) -> None:
    """readelf reads headers, dynamic section and notes of a stub without a warning."""
    path = tmp_path / "stub"
    path.write_bytes(stubs.shared_object(bits, machine, "libx.so.1", ["libc.so.6"], (2, 3, 99)))
    done = subprocess.run(
        ["readelf", "-aW", path],
        capture_output=True,
        text=True,
        env={"LC_ALL": "C", "PATH": os.environ["PATH"]},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert name in done.stdout
    assert "OS: Linux, ABI: 2.3.99" in done.stdout
    assert "Warning" not in done.stdout


def test_aarch64_program_encodes_write_and_exit() -> None:
    """The aarch64 instructions load the text's address, its length and the two call numbers."""
    image = stubs.executable("EM_AARCH64", "hi")
    code = image.index(struct.pack("<I", 0xD2800020))  # mov x0, #1
    words = struct.unpack_from("<8I", image, code)
    assert words[1] == 0x10000000 | (28 // 4) << 5 | 1  # adr x1, 28 bytes ahead of itself
    assert image[code + 4 + 28 :].startswith(b"hi\n")
    assert [words[index] for index in (2, 3, 4, 5, 6, 7)] == [
        0xD2800062,
        0xD2800808,
        0xD4000001,
        0xD2800000,
        0xD2800BC8,
        0xD4000001,
    ]


@pytest.mark.requires("x86_64")
def test_the_loader_checks_the_versions_of_a_stub(tmp_path: Path) -> None:
    """The loader accepts a version that this machine's C library has, and refuses another one."""
    for number, version in enumerate(("GLIBC_2.2.5", "GLIBC_9.9")):
        loading = stubs.Loading(
            versions_needed={"libc.so.6": ["GLIBC_2.3", version]},
            versions_defined=["libx.so.1", "X_1"],
        )
        path = tmp_path / f"libx{number}.so.1"
        path.write_bytes(
            stubs.shared_object(64, "EM_X86_64", path.name, ["libc.so.6"], None, None, loading)
        )
    assert ctypes.CDLL(str(tmp_path / "libx0.so.1"))
    with pytest.raises(
        OSError, match=r"version `GLIBC_9\.9' not found \(required by .*libx1\.so\.1\)"
    ):
        ctypes.CDLL(str(tmp_path / "libx1.so.1"))
