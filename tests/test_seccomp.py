"""The filter program, run by an interpreter of classic BPF instead of a kernel."""

import errno
import struct

import pytest

from nvgraft.system import seccomp
from nvgraft_cli.shell.confine import DENIED

ALLOW, KILL = 0x7FFF0000, 0x80000000
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def _run(program: bytes, number: int, architecture: int, first: int = 0) -> int:
    """Return the filter's answer to a call with this first argument, by the rules of seccomp(2)."""
    data = struct.pack("=iIQ6Q", number, architecture, 0, first, *([0] * 5))
    steps = list(struct.iter_unpack("=HBBI", program))
    accumulator = at = 0
    while True:
        code, if_true, if_false, value = steps[at]
        at += 1
        if code == 0x20:
            accumulator = struct.unpack_from("=I", data, value)[0]
        elif code == 0x15:
            at += if_true if accumulator == value else if_false
        elif code == 0x35:
            at += if_true if accumulator >= value else if_false
        elif code == 0x45:
            at += if_true if accumulator & value else if_false
        elif code == 0x06:
            return int(value)
        else:
            raise AssertionError(f"instruction {code:#x}")


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_every_number_gets_its_answer(machine: str) -> None:
    """A listed call is allowed, a sync succeeds without being made, and any other number (x32's
    too) fails with EPERM.
    """
    column = list(ARCHITECTURES).index(machine)
    program = seccomp.program(machine)
    allowed = {numbers[column] for numbers in seccomp.ALLOWED.values()}
    skipped = {numbers[column] for numbers in seccomp.SKIPPED.values()}
    for number in (*range(600), *range(0x40000000, 0x40000258), 0x7FFFFFFF, -1):
        expected = (
            ALLOW if number in allowed else 0x50000 if number in skipped else 0x50000 | errno.EPERM
        )
        assert _run(program, number, ARCHITECTURES[machine]) == expected, number


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_denied_calls_fail_and_others_are_allowed(machine: str) -> None:
    """The filter of read-only commands gives EPERM for its calls and for x86-64's second set of
    numbers.
    """
    column = list(ARCHITECTURES).index(machine)
    program = seccomp.denying(machine, DENIED)
    denied = {numbers[column] for numbers in DENIED.values()}
    for number in (*range(600), 0x3FFFFFFF, 0x40000000, 0x40000001, 0x40000258, 0x7FFFFFFF, -1):
        expected = (
            0x50000 | errno.EPERM if number in denied or not 0 <= number < 0x40000000 else ALLOW
        )
        assert _run(program, number, ARCHITECTURES[machine]) == expected, number
    assert _run(program, 0, 0x40000003) == KILL


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_threads_may_be_started_but_not_processes(machine: str) -> None:
    """clone is allowed for threads and denied for processes; clone3, whose flags no filter sees,
    gives ENOSYS.
    """
    column = list(ARCHITECTURES).index(machine)
    program = seccomp.denying(machine, seccomp.POWERS, processes=False)
    architecture, clone = ARCHITECTURES[machine], (56, 220)[column]
    thread, fork = 0x3D0F00, 0x1200011  # as glibc's pthread_create and fork
    assert _run(program, clone, architecture, thread) == ALLOW
    assert _run(program, clone, architecture, fork) == 0x50000 | errno.EPERM
    assert _run(program, 435, architecture) == 0x50000 | errno.ENOSYS
    denied = {numbers[column] for numbers in seccomp.POWERS.values()} | (
        {57, 58} if column == 0 else set()
    )
    for number in (*range(600), 0x40000000 + clone, -1):
        if number not in (clone, 435):
            expected = (
                0x50000 | errno.EPERM if number in denied or not 0 <= number < 0x40000000 else ALLOW
            )
            assert _run(program, number, architecture) == expected, number


@pytest.mark.parametrize("machine", ARCHITECTURES)
@pytest.mark.parametrize("architecture", [0x40000003, 0xC000003E, 0xC00000B7, 0])
def test_another_architecture_is_killed(machine: str, architecture: int) -> None:
    """A call of another architecture kills the process: its number means another call (0 is read on
    x86-64, io_setup on arm64).
    """
    if architecture != ARCHITECTURES[machine]:
        assert _run(seccomp.program(machine), 0, architecture) == KILL


def test_an_unknown_machine_is_refused() -> None:
    """A machine without call numbers is refused."""
    with pytest.raises(ValueError, match="riscv64"):
        seccomp.program("riscv64")


@pytest.mark.parametrize("column", [0, 1])
def test_numbers_are_unique_and_none_leaves_the_jail(column: int) -> None:
    """Each number is listed once for each architecture, and no allowed call can start processes or
    leave the jail.
    """
    for table in (seccomp.ALLOWED | seccomp.SKIPPED, DENIED):
        numbers = [row[column] for row in table.values() if row[column] is not None]
        assert len(numbers) == len(set(numbers))
    both = seccomp.ALLOWED.keys() & DENIED.keys()
    assert all(seccomp.ALLOWED[name] == DENIED[name] for name in both)
    starting = {"clone", "fork", "vfork", "clone3", "execve", "kill"}
    reaching = {
        "mount",
        "setns",
        "unshare",
        "ptrace",
        "socket",
        "ioctl",
        "bpf",
        "mknod",
        "mknodat",
        "link",
        "linkat",
        "chroot",
    }
    assert not (starting | reaching) & seccomp.ALLOWED.keys()
