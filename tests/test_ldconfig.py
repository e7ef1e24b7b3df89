"""The host programs that may run as ldconfig, and the sealed copy that runs. Running it needs root
(integration).
"""

import errno
import mmap
import os
import posix
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from descriptors import nothing_stays_open
from nvgraft.apply.cache import ldconfig
from nvgraft.apply.cache.ldconfig import LoaderCache
from nvgraft.base.errors import Refusal
from nvgraft.formats import elf
from nvgraft.system import seccomp
from nvgraft_cli.simulate.stubs import executable


@pytest.fixture(autouse=True)
def _owned_by_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make files of the user who runs the tests appear as root's."""
    real = os.fstat

    def fstat(fd: int) -> os.stat_result:
        status = real(fd)
        return (
            os.stat_result((*status[:4], 0, 0, *status[6:]))
            if stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid()
            else status
        )

    monkeypatch.setattr(posix, "fstat", fstat)


def _static(path: Path) -> bytes:
    data = executable("EM_X86_64", "hello")
    path.write_bytes(data)
    path.chmod(0o755)
    return data


def test_the_copy_equals_the_program_and_is_sealed(tmp_path: Path) -> None:
    """The copy has the program's bytes and is sealed against writing, resizing and further seals,
    so that a process that reaches it through /proc cannot change the next run.
    """
    data = _static(tmp_path / "ldconfig")
    cache = LoaderCache.prepare(str(tmp_path / "ldconfig"))
    image = cache._image
    assert os.pread(image, len(data) + 1, 0) == data
    changes: list[Callable[[], object]] = [
        lambda: os.pwrite(image, b"x", 0),
        lambda: os.ftruncate(image, 0),
        lambda: os.ftruncate(image, 1 << 20),
        lambda: mmap.mmap(image, len(data)),
    ]
    for change in changes:
        with pytest.raises(PermissionError):
            change()
    assert not os.get_inheritable(image)
    cache.close()


def test_a_missing_program_is_named_in_the_references_words(tmp_path: Path) -> None:
    """A missing program is refused in the reference's words, before anything is started."""
    with pytest.raises(Refusal) as caught:
        LoaderCache.prepare(str(tmp_path / "ldconfig"))
    line = caught.value.line()
    assert line.startswith(
        f"nvgraft: ldcache error: open failed: {tmp_path}/ldconfig: no such file or directory | "
    )
    assert "config.toml" in line


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"#!/bin/sh\nexec ldconfig.real", "ldconfig.real the program itself?"),
        (b"", "it is not an ELF file"),
        (b"\x7fELF\x02\x01\x01" + b"\0" * 20, "it is cut short"),
        (
            executable("EM_X86_64", "x", ["libc.so.6"], None, "/lib64/ld-linux-x86-64.so.2"),
            "it is dynamically linked",
        ),
    ],
)
def test_a_program_that_is_not_static_is_refused(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    """A script, a dynamic program or a damaged one is refused with the reference's code 127: the
    image's interpreter or loader would run it.
    """
    path = tmp_path / "ldconfig"
    path.write_bytes(content)
    path.chmod(0o755)
    with nothing_stays_open(), pytest.raises(Refusal) as caught:
        LoaderCache.prepare(str(path))
    assert caught.value.line().startswith(
        f"nvgraft: ldcache error: process {path} failed with error code: 127 | it was not started: "
    )
    assert reason in caught.value.hint


@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_a_program_that_others_may_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    """A program that group or others may write to is refused: it would run as root in every
    container's set-up.
    """
    _static(tmp_path / "ldconfig")
    (tmp_path / "ldconfig").chmod(mode)
    with pytest.raises(Refusal) as caught:
        LoaderCache.prepare(str(tmp_path / "ldconfig"))
    assert f"(mode {mode:04o})" in caught.value.hint


def test_a_program_of_another_owner_is_refused() -> None:
    """A program that root does not own is refused."""
    with pytest.raises(Refusal) as caught:
        ldconfig._check_owner("/x", os.stat_result((0o100755, 0, 0, 1, 1000, 0, 10, 0, 0, 0)))
    assert "uid 1000" in caught.value.hint


def test_a_fifo_is_refused_without_waiting(tmp_path: Path) -> None:
    """A FIFO in the program's place is refused without waiting for a writer."""
    os.mkfifo(tmp_path / "ldconfig")
    with pytest.raises(Refusal) as caught:
        LoaderCache.prepare(str(tmp_path / "ldconfig"))
    assert "not a regular file" in caught.value.hint


@pytest.mark.parametrize("supported", [True, False])
def test_executable_memory_on_new_and_old_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, supported: bool
) -> None:
    """The copy is made with MFD_EXEC, and again without it where the kernel does not know the
    flag.
    """
    real = os.memfd_create
    calls: list[int] = []

    def memfd_create(name: str, flags: int) -> int:
        calls.append(flags)
        if flags & 0x10 and not supported:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(name, flags & ~0x10)

    monkeypatch.setattr(posix, "memfd_create", memfd_create)
    data = _static(tmp_path / "ldconfig")
    cache = LoaderCache.prepare(str(tmp_path / "ldconfig"))
    assert os.pread(cache._image, len(data) + 1, 0) == data
    assert [bool(flags & 0x10) for flags in calls] == ([True] if supported else [True, False])
    cache.close()


def test_a_host_that_forbids_executable_memory_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vm.memfd_noexec=2 is refused by name: there is no fallback to running the host's file
    itself.
    """

    def memfd_create(_name: str, _flags: int) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(posix, "memfd_create", memfd_create)
    _static(tmp_path / "ldconfig")
    with pytest.raises(Refusal) as caught:
        LoaderCache.prepare(str(tmp_path / "ldconfig"))
    assert "vm.memfd_noexec" in caught.value.hint


def test_a_machine_without_a_filter_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a system call filter for the machine, ldconfig is refused."""

    def program(machine: str) -> bytes:
        raise ValueError(f"no numbers for {machine}")

    monkeypatch.setattr(seccomp, "program", program)
    _static(tmp_path / "ldconfig")
    with pytest.raises(Refusal) as caught:
        LoaderCache.prepare(str(tmp_path / "ldconfig"))
    assert "cannot be confined" in caught.value.hint


@pytest.mark.requires("ldconfig")
def test_the_hosts_own_ldconfig_is_static() -> None:
    """The ldconfig that this distribution ships is static, so it passes the check."""
    path = "/sbin/ldconfig.real" if os.path.exists("/sbin/ldconfig.real") else "/sbin/ldconfig"
    fd = os.open(path, os.O_RDONLY)
    facts = elf.read_facts(fd, sections=False)
    os.close(fd)
    assert (facts.interp, facts.needed) == (None, ())
