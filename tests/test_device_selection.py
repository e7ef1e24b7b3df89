"""The device grammar: which tokens name which GPUs and MIG devices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvgraft.base.errors import Refusal
from nvgraft.host.gpus import Gpu, MigDevice
from nvgraft.plan.device_selection import SelectedMig, Selection, check_mig_request, select_devices

A = MigDevice("MIG-aaaaaaaa-0000", 1, 0)
B = MigDevice("MIG-bbbbbbbb-0000", 2, 0)
OLD = MigDevice("MIG-GPU-33333333-0000/5/1", 5, 1)  # as drivers before 470 name them
GPUS = (
    Gpu(0, "GPU-11111111-aAaA", "00000000:1b:00.0", 2, "8.0", "unsupported", "plain"),
    Gpu(3, "GPU-22222222-0000", "00010000:aF:1F.0".lower(), 2, "9.0", "enabled", "cut", (A, B)),
    Gpu(1, "GPU-33333333-0000", "00000000:43:00.0", 2, "9.0", "enabled", "old", (OLD,)),
)


def _shortened(token: str) -> str:
    return ascii(token[:20])


def migs(*devices: tuple[int, MigDevice]) -> tuple[SelectedMig, ...]:
    return tuple(SelectedMig(gpu, device) for gpu, device in devices)


def chosen(*tokens: str) -> tuple[int, ...]:
    return select_devices(tokens, GPUS).gpus


@pytest.mark.parametrize(
    ("token", "index"),
    [
        ("0", 0),
        ("2", 2),
        ("00", 0),
        ("000000002", 2),
        ("0" * 30 + "2", 2),
        ("+1", 1),
        ("-0", 0),
        (" 02", 2),
        ("GPU-11111111-aAaA", 0),
        ("gpu-11111111-AAAA", 0),
        ("GPU-22222222-0000", 1),
        ("00000000:1b:00.0", 0),
        ("0000:1B:00.0", 0),
        ("0:1b:0.0", 0),
        ("0000:1b:00", 0),
        ("10000:AF:1f.0", 1),
    ],
)
def test_every_form_names_its_gpu(token: str, index: int) -> None:
    """A GPU is named by index with or without leading spaces, sign and zeros, by full UUID in any
    case, or by PCI address in any spelling.
    """
    assert select_devices([token], GPUS) == Selection((index,), (), False)


@pytest.mark.parametrize(
    ("token", "index", "mig"),
    [
        ("MIG-aaaaaaaa-0000", 1, A),
        ("mig-BBBBBBBB-0000", 1, B),
        ("MIG-GPU-33333333-0000/5/1", 2, OLD),
        ("1:0", 1, A),
        ("1:1", 1, B),
        ("01:01", 1, B),
        ("+1: +1", 1, B),
        ("2:0", 2, OLD),
    ],
)
def test_a_mig_device_brings_its_gpu(token: str, index: int, mig: MigDevice) -> None:
    """A MIG device, by UUID in any case or by an index pair (GPU, then its n-th MIG device), brings
    its GPU.
    """
    assert select_devices([token], GPUS) == Selection((index,), migs((index, mig)), False)


@pytest.mark.parametrize(
    "token",
    [
        "3",
        "-1",
        "+3",
        "+-1",
        "+",
        "-",
        "\t0",
        "0 ",
        "0.0",
        "0x0",
        "1_0",
        "gpu0",
        "GPU-11111111",
        "GPU-11111111-aAaAb",
        "11111111-aAaA",
        "GPU-",
        "MIG-aaaaaaaa",
        "MIG-GPU-22222222-0000/1/0",
        "MIG-aaaaaaaa-0000/1/0",
        "0:0",
        "1:2",
        "3:0",
        "1:",
        ":1",
        ":",
        "1:0:0",
        "1:-1",
        "0000:1b:00.1",
        "1b:00.0",
        "0000:1b:00.0.0",
        "0000:1b:00.0x",
        "000000000:1b:00.0",
        "0000::00.0",
        "0000:1g:00.0",
        "0000:1b:000.0",
        "all all",
        "none",
        "\u0660",
        "\uff10",
        "\u00b2",
        "1:\u0660",
        "\u00b9:0",
        "0000:\uff11b:00.0",
        "9" * 5000,
        "1:" + "9" * 5000,
        "../0",
        "*",
    ],
    ids=_shortened,
)
def test_other_tokens_are_unknown(token: str) -> None:
    """Prefixes, tails, digits of other scripts and indices out of range are refused in the
    reference's words, with the token.
    """
    with pytest.raises(Refusal) as caught:
        select_devices([token], GPUS)
    assert caught.value.reference_line() == f"nvgraft: device error: {token}: unknown device"
    assert "0 (GPU-11111111-aAaA)" in caught.value.hint


def test_the_first_unknown_token_is_named() -> None:
    """The first unknown token from the left is named."""
    with pytest.raises(Refusal, match=r"^x: unknown device$"):
        select_devices(["0", "x", "y"], GPUS)


def test_devices_have_the_order_of_first_mention() -> None:
    """Devices have the order of first mention; a device under several names counts once."""
    assert chosen("2", "0", "1") == (2, 0, 1)
    assert chosen("2", "0", "GPU-33333333-0000", "0000:43:00.0", "02", "0") == (2, 0)


def test_mig_devices_of_one_gpu_share_it() -> None:
    """Two MIG devices of one GPU bring it once, and each device once, in the requested order."""
    assert select_devices(["1:1", "MIG-aaaaaaaa-0000", "1:0"], GPUS) == Selection(
        (1,), migs((1, B), (1, A)), False
    )


def test_a_gpu_brings_no_mig_device() -> None:
    """Naming a partitioned GPU does not select its MIG devices."""
    assert select_devices(["1"], GPUS).migs == ()


@pytest.mark.parametrize("token", ["all", "ALL", "All"])
def test_all_is_every_gpu_and_every_mig_device(token: str) -> None:
    """ "all", in any case, selects every GPU and MIG device in NVML's order."""
    assert select_devices([token], GPUS) == Selection(
        (0, 1, 2), migs((1, A), (1, B), (2, OLD)), True
    )


def test_all_ends_the_list() -> None:
    """Devices before "all" keep their place, and tokens behind it are ignored."""
    assert select_devices(["2:0", "all", "no such device"], GPUS) == Selection(
        (2, 0, 1), migs((2, OLD), (1, A), (1, B)), True
    )


def test_empty_tokens_are_skipped() -> None:
    """Empty tokens are skipped: ",0," is 0, and only separators select nothing."""
    assert select_devices(["", "0", ""], GPUS) == Selection((0,), (), False)
    assert select_devices(["", ""], GPUS) == select_devices([], GPUS) == Selection((), (), False)


def test_a_host_without_gpus_selects_nothing() -> None:
    """On a host without GPUs the list is ignored, as in the reference: no token is unknown, and
    "all" does not count.
    """
    assert select_devices(["0", "x", "all"], ()) == Selection((), (), False)


@given(st.text(max_size=40))
def test_only_full_names_select(token: str) -> None:
    """Any token selects a device by a form of the grammar, or is refused."""
    try:
        selection = select_devices([token], GPUS)
    except Refusal:
        return
    if token and token.lower() != "all":
        assert token.isascii()
        assert len(selection.gpus) == 1


@pytest.mark.parametrize("stage", ["mig-config", "mig-monitor"])
def test_mig_administration_is_for_all_devices(stage: str) -> None:
    """mig-config and mig-monitor accept only "all", in any case; empty tokens request nothing."""
    nothing = Selection((0,), (), False)
    for value in ("", ",", "all", "ALL", ",All,all"):
        check_mig_request(stage, value, nothing)
    for value in ("0", "all,0", "all ", "none"):
        with pytest.raises(Refusal) as caught:
            check_mig_request(stage, value, nothing)
        token = value.split(",")[-1]
        assert (
            caught.value.reference_line()
            == f"nvgraft: {stage} error: {token}: only 'all' devices are currently supported"
        )


@pytest.mark.parametrize("stage", ["mig-config", "mig-monitor"])
def test_single_mig_devices_exclude_mig_administration(stage: str) -> None:
    """A container with single MIG devices may not administer MIG, unless it requested "all"."""
    with pytest.raises(Refusal) as caught:
        check_mig_request(stage, "all", Selection((1,), migs((1, A)), False))
    assert (
        caught.value.reference_line()
        == f"nvgraft: {stage} error: all: cannot enable {stage} with specific MIG devices selected"
    )
    check_mig_request(stage, "all", Selection((1,), migs((1, A)), True))
    check_mig_request(stage, "", Selection((1,), migs((1, A)), False))
