"""create-symlinks: the links that a command line asks for, and the plan for them in an image."""

import pytest

import hosts
from nvgraft.base.errors import Refusal
from nvgraft.base.usage import UsageError
from nvgraft.create_symlinks import parse_links, plan_links
from nvgraft.plan.actions import MakeDirectory, Plan, Symlink

CARD = ("../card1", "/dev/dri/by-path/pci-0000:05:00.0-card")
GBM = ("../libnvidia-allocator.so.1", "/usr/lib/gbm/nvidia-drm_gbm.so")


def planned(rootfs: str, *links: tuple[str, str], volumes: tuple[str, ...] = ()) -> Plan:
    return plan_links(hosts.target(rootfs, volumes=volumes), links)


def actions(plan: Plan) -> list[tuple[str, str]]:
    """Return the kind and path of each action."""
    return [(type(action).__name__, getattr(action, "path")) for action in plan.actions]  # noqa: B009


@pytest.mark.parametrize(
    ("arguments", "links"),
    [
        ([], []),
        (["--link", "a::/b"], [("a", "/b")]),
        (["-link=a::/b", "--link", "../c::/d/e"], [("a", "/b"), ("../c", "/d/e")]),
        (["--link", "a::/b", "--link", "a::/b"], [("a", "/b")]),
        (["--link", "a::/b::c"], [("a", "/b::c")]),
    ],
)
def test_the_links_of_a_command_line(arguments: list[str], links: list[tuple[str, str]]) -> None:
    """Links keep their order, and a repeated one counts once."""
    assert parse_links(arguments) == links


@pytest.mark.parametrize(
    "arguments",
    [
        ["--link"],
        ["--other", "a::/b"],
        ["link", "a::/b"],
        ["--link", "a"],
        ["--link", "a:/b"],
        ["--link", "::/b"],
        ["--link", "a::b"],
        ["--link", "a::/"],
        ["--link", "a::/b/../c"],
        ["--link", "a::/b\n"],
        ["--link", "a\udcff::/b"],
        ["--link", f"a::/{'b' * 256}"],
    ],
)
def test_malformed_links_are_usage_errors(arguments: list[str]) -> None:
    """An argument that is not a link with an absolute path is a usage error."""
    with pytest.raises(UsageError):
        parse_links(arguments)


def test_links_and_their_directories_are_made() -> None:
    """Missing parents are made before the link, once each."""
    plan = planned("/usr/lib/", CARD, ("../renderD128", CARD[1].replace("card", "render")), GBM)
    assert actions(plan) == [
        ("MakeDirectory", "/dev/dri"),
        ("MakeDirectory", "/dev/dri/by-path"),
        ("Symlink", CARD[1]),
        ("Symlink", CARD[1].replace("card", "render")),
        ("MakeDirectory", "/usr/lib/gbm"),
        ("Symlink", GBM[1]),
    ]
    assert isinstance(plan.actions[0], MakeDirectory) and plan.actions[0].mode == 0o755
    assert isinstance(plan.actions[2], Symlink) and plan.actions[2].target == CARD[0]
    assert plan.findings == ()


def test_existing_links_and_files() -> None:
    """An equal link stays, and another link is replaced, wherever it leads.

    A file or directory belongs to the image and stays, with a finding.
    """
    assert planned(f"{GBM[1]} -> {GBM[0]}", GBM).actions == ()
    [action] = planned(f"{GBM[1]} -> /etc/passwd", GBM).actions
    assert isinstance(action, Symlink) and action.replaces
    assert (action.path, action.target) == (GBM[1], GBM[0])
    for there in (GBM[1], f"{GBM[1]}/"):
        plan = planned(there, GBM)
        assert plan.actions == ()
        assert hosts.finding_ids(plan.findings) == ["link-skipped"]
        assert GBM[1] in plan.findings[0].message


def test_links_of_the_image_on_the_way() -> None:
    """Links of the image are followed inside of it.

    One that leads out of it, into /proc or away from /dev is a refusal.
    """
    assert actions(planned("/usr/lib -> lib64\n/usr/lib64/gbm/", GBM)) == [
        ("Symlink", "/usr/lib64/gbm/nvidia-drm_gbm.so")
    ]
    for rootfs in ("/usr/lib -> ../../..", "/usr/lib -> /proc/1/root", "/usr/lib -> /usr/lib"):
        with pytest.raises(Refusal, match=r"^path error: "):
            planned(rootfs, GBM)
    with pytest.raises(Refusal, match="not a directory"):
        planned("/usr/lib/gbm", GBM)


def test_volumes_are_left_alone() -> None:
    """A link on a volume is neither made nor replaced, and a finding names it.

    Links elsewhere are made.
    """
    for rootfs in ("/usr/lib/", f"{GBM[1]} -> other"):
        plan = planned(rootfs, GBM, CARD, volumes=("/usr/lib",))
        assert actions(plan)[-1] == ("Symlink", CARD[1])
        assert "gbm" not in str(plan.actions)
        assert "it would be made on the volume /usr/lib" in plan.findings[0].message
    assert planned(f"{GBM[1]} -> {GBM[0]}", GBM, volumes=("/usr/lib",)) == planned("", volumes=())
    plan = planned("", GBM, volumes=("/usr/lib",))
    assert plan.actions == (), "directories are made for a link that is left out"
