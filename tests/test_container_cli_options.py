"""The options of nvidia-container-cli and the values they set."""

import os
from collections.abc import Callable

import pytest

from nvgraft.base.errors import Refusal
from nvgraft_cli.container_cli.arguments import UsageFault
from nvgraft_cli.container_cli.options import (
    Answered,
    names_command,
    parse_configure,
    parse_global,
    parse_info,
    parse_list,
)

TRY = "Try `cli {0}--help' or `cli {0}--usage' for more information."


def refusal_of(parse: Callable[[list[str], str], object], *words: str) -> str:
    with pytest.raises(Refusal) as caught:
        parse([*words], "cli")
    return caught.value.line("cli").split(" | ")[0]


def test_global_options_stand_before_the_command() -> None:
    """Options before the command are the program's; those after it are left to the command."""
    words = [
        "-k",
        "--no-pivot",
        "--root",
        "/run/nvidia/driver",
        "-l/etc/x.cache",
        "-d",
        "/var/log/x",
        "--no-create-imex-channels",
        "list",
        "-l",
        "--device=0",
    ]
    options, command, rest = parse_global(words, "cli")
    assert (command, rest) == ("list", ["-l", "--device=0"])
    assert (options.load_kmods, options.pivot, options.create_imex_channels) == (True, False, False)
    assert (options.root, options.ldcache, options.debug, options.user) == (
        "/run/nvidia/driver",
        "/etc/x.cache",
        "/var/log/x",
        "",
    )


def test_defaults() -> None:
    """By default the driver root is /, no module is loaded, and NVML gets no user."""
    options, command, rest = parse_global(["info"], "cli")
    assert (command, rest) == ("info", [])
    assert (options.root, options.ldcache, options.user, options.debug) == ("/", "", "", "")
    assert (options.load_kmods, options.pivot, options.create_imex_channels) == (False, True, True)


@pytest.mark.parametrize(
    ("option", "ids"),
    [
        ("--user=root", "0:0"),
        ("-u0", "0:0"),
        ("--user=12:34", "12:34"),
        ("--user=root:34", "0:34"),
        ("--user=7:root", "7:0"),
    ],
)
def test_a_user_is_given_by_name_or_number(option: str, ids: str) -> None:
    """A user is a name or a number; without a group the user's primary group is used."""
    assert parse_global([option, "list"], "cli")[0].user == ids


def test_user_without_argument_is_the_caller() -> None:
    """--user without an argument means the caller, as enroot uses it.

    In a user namespace only the caller's own ids are sure to exist.
    """
    assert parse_global(["--user", "list"], "cli")[0].user == f"{os.geteuid()}:{os.getegid()}"


@pytest.mark.parametrize(
    ("user", "reason"),
    [
        ("nosuchuser", "no such file or directory"),
        ("root:nosuchgroup", "no such file or directory"),
        ("4294967290", "no such file or directory"),
        ("", "no such file or directory"),
        ("0:99999999999999999999x", "invalid argument"),
        ("-1", "numerical result out of range"),
    ],
)
def test_an_unknown_user_is_an_input_error(user: str, reason: str) -> None:
    """An unknown user is refused while options are read, with the reference's reason."""
    assert (
        refusal_of(parse_global, f"--user={user}", "list")
        == f"cli: input error: parse user/group failed: {reason}"
    )


@pytest.mark.parametrize("words", [[], ["-k"], ["lists"], ["plan"]])
def test_no_command_or_an_unknown_one_shows_the_usage(words: list[str]) -> None:
    """A missing or unknown command shows the usage, as argp_usage does."""
    with pytest.raises(UsageFault) as caught:
        parse_global(words, "cli")
    assert str(caught.value) == "Usage: cli [OPTION...] COMMAND [ARG...]\n" + TRY.format("")


def test_questions_are_answered_whatever_follows() -> None:
    """--help, --usage and --version are answered for the program and for each command."""
    for words in (["--help"], ["-?"], ["--usage"]):
        with pytest.raises(Answered, match="Usage: cli "):
            parse_global(words, "cli")
    with pytest.raises(Answered) as caught:
        parse_global(["-V"], "cli")
    names = [line.partition(":")[0] for line in str(caught.value).splitlines()]
    assert names == [
        "cli-version",
        "lib-version",
        "build date",
        "build revision",
        "build compiler",
        "build platform",
        "build flags",
    ]
    for parse, name in ((parse_info, "info"), (parse_list, "list"), (parse_configure, "configure")):
        with pytest.raises(Answered, match=f"Usage: cli {name} .*\n"):
            parse(["--help", "--nosuch"], "cli")


@pytest.mark.parametrize(
    ("line", "ours"),
    [
        ("list", True),
        ("-k configure x", True),
        ("--root /list info", True),
        ("-d list", False),
        ("--version", False),
        ("plan list", False),
        ("--nosuch list", True),
        ("--format plan", False),
        ("", False),
    ],
)
def test_command_lines_of_the_original_are_recognised(line: str, ours: bool) -> None:
    """The first word that is not an option decides whose command line it is.

    A wrong option is the original's when one of its commands follows.
    """
    assert names_command(line.split()) is ours


def test_info_takes_csv_and_nothing_else() -> None:
    """`info` takes --csv, and refuses other words as argp does."""
    assert parse_info([], "cli") is False
    assert parse_info(["--csv"], "cli") is True
    with pytest.raises(UsageFault) as caught:
        parse_info(["x"], "cli")
    assert str(caught.value) == "cli info: Too many arguments\n" + TRY.format("info ")


@pytest.mark.parametrize("words", [[], ["--imex-channel=0,1"]])
def test_list_without_options_lists_everything(words: list[str]) -> None:
    """`list` without options lists everything; one --imex-channel= changes nothing, as in the
    original.
    """
    options = parse_list(words, "cli")
    assert options.devices == ["all"]
    assert all(
        (options.libraries, options.binaries, options.ipcs, options.firmwares, options.compat32)
    )


def test_list_with_options_lists_what_they_say() -> None:
    """`list` with options lists what they name, and repeated lists are joined."""
    options = parse_list(
        [
            "-d",
            "0,1",
            "--device=2",
            "-lb",
            "--imex",
            "3",
            "--imex-channel=4,5",
            "--mig-config=all",
            "--mig-config",
            "all",
            "--no-persistenced",
        ],
        "cli",
    )
    assert options.devices == ["0", "1", "2"]
    assert (
        options.libraries,
        options.binaries,
        options.ipcs,
        options.firmwares,
        options.compat32,
    ) == (True, True, False, False, False)
    assert options.imex_channels.ids() == (3, 4, 5)
    assert (options.mig_config, options.mig_monitor) == ("all,all", "")
    assert options.omit == {"persistenced"}


def test_a_bad_imex_channel_is_an_error_before_anything_else() -> None:
    """A bad IMEX channel is refused first, in the original's odd phrase."""
    expected = "cli: error parsing IMEX info: unsupported IMEX channel value: x"
    assert refusal_of(parse_list, "--imex-channel=x") == expected
    assert refusal_of(parse_configure, "--imex-channel=0,x", "/rootfs") == expected


def test_configure_reads_all_its_options() -> None:
    """`configure` reads all options that the reference hook writes."""
    words = [
        "--cuda-compat-mode=ldconfig",
        "--ldconfig=@/sbin/ldconfig",
        "--no-cgroups",
        "--device=0,GPU-1",
        "--mig-config=all",
        "--imex-channel=1",
        "--compat32",
        "--compute",
        "--display",
        "--graphics",
        "--ngx",
        "--utility",
        "--video",
        "--require=cuda>=11",
        "--require=",
        "--pid=4711",
        "/run/x/rootfs",
    ]
    options = parse_configure(words, "cli")
    assert (options.pid, options.rootfs, options.ldconfig, options.cuda_compat_mode) == (
        4711,
        "/run/x/rootfs",
        "@/sbin/ldconfig",
        "ldconfig",
    )
    assert (options.cgroups, options.devbind) == (False, True)
    assert options.devices == ["0", "GPU-1"]
    assert options.capabilities == {
        "compat32",
        "compute",
        "display",
        "graphics",
        "ngx",
        "utility",
        "video",
    }
    assert options.requirements == ["cuda>=11", ""]
    assert options.mig_config == "all"
    assert options.imex_channels.ids() == (1,)


def test_configure_reads_short_options() -> None:
    """-n means ngx after `configure`, and no-pivot before it."""
    options = parse_configure(
        ["-p", "5", "-cuvgDn", "-d", "all", "-r", "cuda>=1", "-l", "@/x", "/r"], "cli"
    )
    assert options.capabilities == {"compute", "utility", "video", "graphics", "display", "ngx"}
    assert (options.pid, options.devices, options.requirements, options.ldconfig) == (
        5,
        ["all"],
        ["cuda>=1"],
        "@/x",
    )


def test_services_are_left_out_by_name() -> None:
    """Each --no-SERVICE adds its name to the parts that are left out; --no-devbind does not."""
    options = parse_configure(
        [
            "--no-devbind",
            "--no-persistenced",
            "--no-fabricmanager",
            "--no-gsp-firmware",
            "--no-cntlibs",
            "/r",
        ],
        "cli",
    )
    assert options.omit == {"persistenced", "fabricmanager", "gsp-firmware"}
    assert options.devbind is False
    assert options.cuda_compat_mode == "disabled"


@pytest.mark.parametrize("words", [["-c"], ["/a", "/b"]])
def test_configure_wants_exactly_one_rootfs(words: list[str]) -> None:
    """`configure` shows its usage unless it gets exactly one rootfs."""
    with pytest.raises(UsageFault) as caught:
        parse_configure(words, "cli")
    assert str(caught.value) == "Usage: cli configure [OPTION...] ROOTFS\n" + TRY.format(
        "configure "
    )


@pytest.mark.parametrize("path", ["/", "//", "rootfs", ""])
def test_a_rootfs_is_absolute_and_not_the_hosts(path: str) -> None:
    """A rootfs that is relative or the host's is refused while options are read."""
    assert refusal_of(parse_configure, path) == "cli: input error: invalid rootfs directory"


@pytest.mark.parametrize(
    ("pid", "cause"),
    [
        ("x", "invalid argument"),
        ("1x", "invalid argument"),
        ("-1", "numerical result out of range"),
        ("2147483648", "numerical result out of range"),
    ],
)
def test_a_pid_is_a_number(pid: str, cause: str) -> None:
    """A pid that is not a number is refused in the original's words, with the kernel's reason."""
    assert (
        refusal_of(parse_configure, f"--pid={pid}", "/r")
        == f"cli: input error: parse pid failed: {pid}: {cause}"
    )


@pytest.mark.parametrize(
    ("pid", "number"), [("0", 0), ("", 0), (" 12", 12), ("+12", 12), ("2147483647", 2147483647)]
)
def test_a_pid_is_read_as_c_does(pid: str, number: int) -> None:
    """A pid is read as C reads it; 0 means standalone mode."""
    assert parse_configure([f"--pid={pid}", "/r"], "cli").pid == number


def test_at_most_32_requirements() -> None:
    """The 33rd requirement is refused."""
    assert len(parse_configure([*["--require=cuda>=1"] * 32, "/r"], "cli").requirements) == 32
    assert (
        refusal_of(parse_configure, *["--require=cuda>=1"] * 33, "/r")
        == "cli: input error: too many requirements"
    )


def test_one_compat_mode() -> None:
    """A second compat mode is refused unless it equals the first."""
    assert (
        parse_configure(
            ["--no-cntlibs", "--cuda-compat-mode=disabled", "/r"], "cli"
        ).cuda_compat_mode
        == "disabled"
    )
    text = refusal_of(parse_configure, "--no-cntlibs", "--cuda-compat-mode=mount", "/r")
    assert text == "cli: input error: only one cuda-compat-mode can be specified at a time"
