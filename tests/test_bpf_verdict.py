"""The verdict of device programs that are evaluated instead of asked."""

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvgraft.apply import bpf, bpf_verdict
from nvgraft.apply.bpf_verdict import Unknown, allows
from nvgraft.apply.cgroup import DeviceCgroup
from nvgraft.plan.actions import AllowDevice, Why

_INSN = struct.Struct("<BBhi")
MOV_R0_0, MOV_R0_1 = (0xB7, 0, 0, 0), (0xB7, 0, 0, 1)
EXIT = (0x95, 0, 0, 0)
#: How systemd begins: the type, the access, and the numbers, each in a register of its own.
SYSTEMD = [
    (0x61, 0x12, 0, 0),  # r2 = *(u32 *)(r1 + 0)
    (0x54, 0x02, 0, 0xFFFF),  # w2 &= 0xffff
    (0x61, 0x13, 0, 0),
    (0x74, 0x03, 0, 16),  # w3 >>= 16
    (0x61, 0x14, 4, 0),
    (0x61, 0x15, 8, 0),
]


def code(*instructions: tuple[int, int, int, int]) -> bytes:
    return b"".join(_INSN.pack(*instruction) for instruction in instructions)


def rule(major: int, minor: int, access: str = "rw") -> AllowDevice:
    return AllowDevice(major, minor, Why("", "test", "test"), access)


def test_programs_of_our_own_are_evaluated() -> None:
    """Exactly the nodes and the access of the rules are allowed."""
    program = bpf.allow_code([rule(195, 0), rule(195, 255, "r"), rule(510, 1)])
    program += code(MOV_R0_0, EXIT)
    assert allows(program, 195, 0, "rw")
    assert allows(program, 195, 0, "r")
    assert allows(program, 195, 255, "r")
    assert not allows(program, 195, 255, "rw")
    assert not allows(program, 195, 1, "rw")
    assert allows(program, 510, 1, "rw")


def test_a_program_like_systemds() -> None:
    """Programs that test type, access mask and major number, as systemd makes them, are evaluated."""
    program = code(
        *SYSTEMD,
        (0x55, 0x02, 4, 2),  # if r2 != BPF_DEVCG_DEV_CHAR goto +4
        (0xBF, 0x31, 0, 0),  # r1 = r3
        (0x57, 0x01, 0, 6),  # r1 &= 6
        (0x5D, 0x31, 1, 0),  # if r1 != r3 goto +1
        (0x15, 0x04, 2, 195),  # if r4 == 195 goto +2
        MOV_R0_0,
        EXIT,
        MOV_R0_1,
        EXIT,
    )
    assert allows(program, 195, 7, "rw")
    assert not allows(program, 196, 7, "rw")


@pytest.mark.parametrize(
    "instruction",
    [
        (0x85, 0, 0, 1),  # a call
        (0x18, 0x11, 0, 0),  # an address
        (0x7B, 0x1A, -8, 0),  # the stack
        (0x61, 0x12, 12, 0),  # beyond the context
        (0xBF, 0x30, 0, 0),  # a register without a value
        (0x0F, 0x12, 0, 0),  # arithmetic with an address
        (0x05, 0, -1, 0),  # a loop without end
        (0x05, 0, 9, 0),  # beyond the end
        (0x00, 0, 0, 0),
    ],
)
def test_other_programs_are_not_known(instruction: tuple[int, int, int, int]) -> None:
    """What cannot be evaluated is not taken for an answer."""
    with pytest.raises(Unknown):
        allows(code(instruction, MOV_R0_1, EXIT), 195, 0, "rw")


@given(st.binary(max_size=400))
def test_any_bytes_have_a_verdict_or_none(data: bytes) -> None:
    """Any instructions end with a verdict or as unknown, soon."""
    with suppress(Unknown):
        allows(data[: len(data) // 8 * 8], 195, 0, "rw")


DENY, ALLOW = code(MOV_R0_0, EXIT), code(MOV_R0_1, EXIT)


@pytest.mark.parametrize(
    ("programs", "said"),
    [
        ({1: ALLOW}, ""),
        ({1: ALLOW, 2: DENY}, "denies the device 195:0 and 1 more: programs in the container"),
        ({1: code((0x85, 0, 0, 1))}, "that cannot be evaluated (1): they may deny the GPU"),
        ({}, ""),
    ],
)
def test_a_warning_names_what_the_cgroups_above_deny(
    monkeypatch: pytest.MonkeyPatch, programs: dict[int, bytes], said: str
) -> None:
    """The programs of the cgroups above are those that decide and are not the cgroup's own; one
    warning tells of the first node that they deny.
    """

    def query(_fd: int, *, effective: bool = False) -> tuple[int, tuple[int, ...]]:
        return 2, (*programs, 9) if effective else (9,)

    monkeypatch.setattr(bpf, "query", query)
    monkeypatch.setattr(bpf_verdict, "read_code", programs.__getitem__)
    found = DeviceCgroup(2, "/cg/x", -1, is_root=False).look_above([rule(195, 0), rule(195, 255)])
    if said:
        (finding,) = found
        assert (finding.id, finding.level) == ("cgroup-denies", "warning")
        assert finding.message.startswith("a cgroup above /cg/x ")
        assert said in finding.message
    else:
        assert found == []


def test_where_the_kernel_lists_no_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the kernel is left to the step that adds the rules; cgroup v1 is not asked."""

    def refused(_fd: int, *, effective: bool = False) -> tuple[int, tuple[int, ...]]:
        raise bpf.ProgramError("operation not permitted")

    monkeypatch.setattr(bpf, "query", refused)
    assert DeviceCgroup(2, "/cg/x", -1, is_root=False).look_above([rule(195, 0)]) == []
    assert DeviceCgroup(1, "/cg/x", -1, is_root=False).look_above([rule(195, 0)]) == []
