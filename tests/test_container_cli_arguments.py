"""Command lines as GNU argp reads them."""

import pytest

from nvgraft_cli.container_cli.arguments import (
    Command,
    Option,
    UsageFault,
    fault,
    help_text,
    read,
    usage_fault,
    usage_text,
)

COMMAND = Command(
    "tool",
    "FILE",
    "Does things.",
    (
        Option("device", "d", "ID", "A device"),
        Option("user", "u", "UID[:GID]", "A user", optional=True),
        Option("compute", "c", "", "Compute"),
        Option("no-cgroups", "", "", "No cgroups"),
        Option("no-devbind", "", "", "No nodes"),
        Option("no-devbind-at-all", "", "", "Not at all"),
    ),
    "example: tool x",
)


@pytest.mark.parametrize(
    ("line", "events"),
    [
        (
            "--device=0 --device 1 -d2 -d 3 --device=",
            [("device", "0"), ("device", "1"), ("device", "2"), ("device", "3"), ("device", "")],
        ),
        ("--dev=0 --com", [("device", "0"), ("compute", None)]),
        ("-cd0", [("compute", None), ("device", "0")]),
        (
            "-u --user -u5:5 --user=5",
            [("user", None), ("user", None), ("user", "5:5"), ("user", "5")],
        ),
        ("--no-devbind", [("no-devbind", None)]),
        ("-?", [("help", None)]),
        ("-d -c", [("device", "-c")]),
    ],
)
def test_options_are_read_as_getopt_long_does(
    line: str, events: list[tuple[str, str | None]]
) -> None:
    """Arguments may be attached, long names shortened, short ones joined.

    An option with an optional argument takes only an attached one.
    """
    assert list(read(line.split(), COMMAND)) == events


def test_options_may_follow_other_words() -> None:
    """Options are read before other words, wherever they stand; after -- there are none."""
    assert list(read(["/a", "-c", "--", "-x"], COMMAND)) == [
        ("compute", None),
        ("", "/a"),
        ("", "-x"),
    ]


def test_in_order_the_first_word_ends_the_options() -> None:
    """Words after a command belong to the command."""
    assert list(read(["-c", "list", "-c"], COMMAND, in_order=True)) == [
        ("compute", None),
        ("", "list"),
        ("", "-c"),
    ]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("--nosuch=1", "unrecognized option '--nosuch=1'"),
        (
            "--no",
            (
                "option '--no' is ambiguous; possibilities: "
                "'--no-cgroups' '--no-devbind' '--no-devbind-at-all'"
            ),
        ),
        ("--compute=1", "option '--compute' doesn't allow an argument"),
        ("--dev", "option '--device' requires an argument"),
        ("-cd", "option requires an argument -- 'd'"),
        ("-x", "invalid option -- 'x'"),
    ],
)
def test_faults_have_getopts_words(line: str, text: str) -> None:
    """The message names the word at fault, and the options that explain the usage."""
    with pytest.raises(UsageFault) as caught:
        list(read(line.split(), COMMAND))
    assert (
        str(caught.value)
        == f"tool: {text}\nTry `tool --help' or `tool --usage' for more information."
    )


def test_options_before_a_fault_are_read() -> None:
    """Options before a fault are acted on, so that the first of several faults is reported."""
    events = read(["-c", "-x"], COMMAND)
    assert next(events) == ("compute", None)
    with pytest.raises(UsageFault):
        next(events)


def test_faults_of_arguments() -> None:
    """A missing word shows the short usage; a superfluous word is named."""
    assert str(usage_fault(COMMAND)).startswith("Usage: tool [OPTION...] FILE\nTry `tool --help'")
    assert str(fault(COMMAND, "Too many arguments")).startswith("tool: Too many arguments\nTry")


def test_help_lists_every_option() -> None:
    """--help has the short and long name with the argument, the description and an example."""
    text = help_text(COMMAND)
    assert text.startswith("Usage: tool [OPTION...] FILE\nDoes things.\n")
    assert "\n  -d, --device=ID            A device\n" in text
    assert "\n  -u, --user[=UID[:GID]]     A user\n" in text
    assert "\n      --no-cgroups           No cgroups\n" in text
    assert text.endswith("\nexample: tool x\n")


def test_usage_lists_every_option_once() -> None:
    """--usage is wrapped between options, never inside of one."""
    text = usage_text(COMMAND)
    first, second, *_ = text.splitlines()
    assert first == "Usage: tool [-c?V] [-d ID] [-u[UID[:GID]]] [--device=ID] [--user[=UID[:GID]]]"
    assert second.startswith("            [--compute]")
    assert text.endswith(" FILE\n")
    assert max(map(len, text.splitlines())) < 80
