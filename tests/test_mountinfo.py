"""Reading /proc/PID/mountinfo."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvgraft.system.mountinfo import (
    Mount,
    MountTable,
    fuse_mounts,
    mounts_of_type,
    parse_mountinfo,
)


def line(
    point: str = "/", optional: str = "", described: str = "ext4 /dev/sda1 rw", ids: str = "36 35"
) -> str:
    return f"{ids} 98:0 /root {point} rw,noatime{optional} - {described}\n"


def test_a_line_is_read_as_documented() -> None:
    """Id, root, mount point, options, type, source and the file system's options are read from
    their fields in proc_pid_mountinfo(5).
    """
    text = "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n"
    assert parse_mountinfo(text) == [
        Mount(36, "/mnt1", "/mnt2", "rw,noatime", False, "ext3", "/dev/root", "rw,errors=continue")
    ]


@pytest.mark.parametrize(
    ("optional", "shared"),
    [
        ("", False),
        (" shared:7", True),
        (" master:1", False),
        (" shared:7 master:1", True),
        (" master:1 shared:7", True),
        (" unbindable", False),
    ],
)
def test_only_shared_mounts_are_shared(optional: str, shared: bool) -> None:
    """Any number of optional fields is accepted, and only shared:N makes a mount shared."""
    assert [mount.shared for mount in parse_mountinfo(line(optional=optional))] == [shared]


def test_a_path_that_looks_like_an_optional_field_is_a_path() -> None:
    """A mount point with the name shared:1 does not make the mount shared."""
    assert not parse_mountinfo(line(point="shared:1"))[0].shared


def test_the_order_of_the_kernel_is_kept() -> None:
    """Mounts have the order of the file, including stacked ones."""
    assert [mount.point for mount in parse_mountinfo(line("/b") + line("/a") + line("/b"))] == [
        "/b",
        "/a",
        "/b",
    ]


def test_escapes_are_decoded() -> None:
    """Octal escapes of blank, tab, newline and backslash are decoded in root, mount point and
    source.
    """
    text = "1 2 0:1 /r\\040s /p\\011q\\012r\\134040 rw - tmpfs a\\040b rw\n"
    (mount,) = parse_mountinfo(text)
    assert (mount.root, mount.point, mount.source) == ("/r s", "/p\tq\nr\\040", "a b")


@pytest.mark.parametrize("separator", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\r"])
def test_only_newlines_end_a_line(separator: str) -> None:
    """Only newlines separate lines: the kernel escapes no other separator, so a volume's name must
    not forge a line.
    """
    point = f"/v{separator}9 9 9:9 / /forged rw - ext4 x rw"
    assert [mount.point for mount in parse_mountinfo(line(point.replace(" ", "\\040")))] == [point]


@pytest.mark.parametrize(
    "text",
    [
        "36 35 98:0 / / rw\n",
        "36 35 98:0 / - ext4 a rw\n",
        "36 35 98:0 / / rw - ext4\n",
        "x 35 98:0 / / rw - a b c\n",
    ],
)
def test_malformed_lines_are_refused(text: str) -> None:
    """A line without its dash, with too few fields or without a number is refused."""
    with pytest.raises(ValueError):
        parse_mountinfo(text)


def test_this_machines_own_mounts_are_read() -> None:
    """This machine's file gives one mount for each line."""
    text = Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    assert len(parse_mountinfo(text)) == text.count("\n") > 0


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_any_mount_point_survives(name: str) -> None:
    """A mount point with any name is read as the kernel wrote it."""
    point = f"/{name}"
    escaped = "".join(f"\\{ord(char):03o}" if char in " \t\n\\" else char for char in point)
    assert parse_mountinfo(line(escaped))[0].point == point


def test_one_mount_is_found_by_its_id_among_many() -> None:
    """A mount is found by the first number of its line, not by a parent's id or a part of a longer
    id.
    """
    table = MountTable(line("/a", ids="1 0") + line("/b", ids="12 1") + line("/c", ids="121 2"))
    assert [mount.point for number in (1, 12, 121) if (mount := table.get(number)) is not None] == [
        "/a",
        "/b",
        "/c",
    ]
    assert table.get(2) is None
    assert table.get(21) is None
    assert MountTable().get(1) is None


def test_only_the_requested_line_is_parsed() -> None:
    """A malformed line does not hide other mounts; only looking it up fails."""
    table = MountTable("7 nonsense\n" + line("/a", ids="1 0"))
    assert table.get(1) is not None
    with pytest.raises(ValueError, match="malformed"):
        table.get(7)


def test_mounts_of_a_type_match_the_whole_type() -> None:
    """Mounts are selected by their whole type, in order; a path that looks like a type does not
    match.
    """
    text = (
        line("/v2", described="cgroup2 cgroup rw")
        + line("/x\\040-\\040cgroup\\040")
        + line("/v1", described="cgroup cgroup rw")
    )
    assert [mount.point for mount in mounts_of_type(text, "cgroup")] == ["/v1"]
    assert [mount.point for mount in mounts_of_type(text, "cgroup", "cgroup2")] == ["/v2", "/v1"]


def test_fuse_mounts_are_told_by_their_types() -> None:
    """Types fuse, fuse.* and fuseblk are FUSE, and have options that name the user who mounted
    them; fusectl and virtiofs are not.
    """
    rows = {
        "/a": "fuse.sshfs h:/x rw,user_id=1000,group_id=0",
        "/b": "fuse x rw,user_id=0,group_id=0,allow_other",
        "/c": "fuseblk /dev/sdb1 rw,user_id=0,group_id=0",
        "/d": "fusectl fusectl rw",
        "/e": "virtiofs x rw",
        "/f": "ext4 fuse rw,user_id=0",
        "/g": "fuse.x y rw,user_id=01",
    }
    text = "".join(line(point, described=described) for point, described in rows.items())
    mounts = [(mount.point, mount.fs_options) for mount in fuse_mounts(text)]
    assert mounts == [(point, rows[point].rpartition(" ")[2]) for point in ("/a", "/b", "/c", "/g")]
    assert fuse_mounts(text.rstrip("\n"))[-1].fstype == "fuse.x"
    assert fuse_mounts("") == []
