"""reference_argv(): the reference's command line, in its order, each argument only where it
applies.
"""

import pytest

from nvgraft.request.argv import reference_argv
from nvgraft.request.config import Config
from nvgraft.request.request import ImexChannels, Request

PLAIN = Request(("all",), ("compute", "utility"))


def test_the_plain_command_line() -> None:
    """Default settings give the shortest command line."""
    assert reference_argv(PLAIN, Config(), 7, "/r") == [
        "--load-kmods",
        "configure",
        "--cuda-compat-mode=ldconfig",
        "--ldconfig=@/sbin/ldconfig",
        "--device=all",
        "--compute",
        "--utility",
        "--pid=7",
        "/r",
    ]


def test_everything_in_order() -> None:
    """Every option stands at its place."""
    config = Config(
        cli_root="/drv",
        cli_no_pivot=True,
        cli_no_cgroups=True,
        cli_debug="/log",
        cli_ldcache="/cache",
        cli_user="root:video",
        features_disable_imex_channel_creation=True,
    )
    request = Request(
        ("1", "0"),
        ("utility",),
        requirements=("cuda>=1", ""),
        imex_channels=ImexChannels(("0", "2")),
        mig_config="all",
        mig_monitor="x",
    )
    assert reference_argv(request, config, 0, "/r") == [
        "--root=/drv",
        "--load-kmods",
        "--no-create-imex-channels",
        "--no-pivot",
        "--debug=/log",
        "--ldcache=/cache",
        "--user=root:video",
        "configure",
        "--cuda-compat-mode=ldconfig",
        "--ldconfig=@/sbin/ldconfig",
        "--no-cgroups",
        "--device=1,0",
        "--mig-config=all",
        "--mig-monitor=x",
        "--imex-channel=0,2",
        "--utility",
        "--require=cuda>=1",
        "--require=",
        "--pid=0",
        "/r",
    ]


def test_the_debug_flag_wins_over_the_configured_file() -> None:
    """With -debug the log goes to stderr, whatever file config.toml names."""
    assert "--debug=/dev/stderr" in reference_argv(
        PLAIN, Config(cli_debug="/log"), 1, "/r", debug=True
    )
    assert not [
        argument
        for argument in reference_argv(PLAIN, Config(), 1, "/r")
        if argument.startswith("--debug")
    ]


def test_no_device_and_no_kmods() -> None:
    """ "none" gives no --device, and load-kmods = false no --load-kmods."""
    argv = reference_argv(Request((), ()), Config(cli_load_kmods=False, cli_ldconfig=""), 1, "/r")
    assert argv == ["configure", "--cuda-compat-mode=ldconfig", "--pid=1", "/r"]


@pytest.mark.parametrize(
    ("mode", "allowed", "argument"),
    [
        ("ldconfig", False, "ldconfig"),
        ("mount", False, "mount"),
        ("disabled", True, "disabled"),
        ("hook", True, "disabled"),
        ("", False, "disabled"),
        ("bogus", False, "disabled"),
        ("", True, None),
        ("bogus", True, None),
    ],
)
def test_cuda_compat_mode(mode: str, allowed: bool, argument: str | None) -> None:
    """An unknown mode means disabled.

    Where libraries of the container are allowed it is left to the CLI.
    """
    config = Config(
        runtime_cuda_compat_mode=mode, features_allow_cuda_compat_libs_from_container=allowed
    )
    modes = [
        item.partition("=")[2]
        for item in reference_argv(PLAIN, config, 1, "/r")
        if item.startswith("--cuda-compat-mode=")
    ]
    assert modes == ([argument] if argument else [])
