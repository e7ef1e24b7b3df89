"""What is read of this machine before it is copied; the copy itself is tested in integration/test_simulate.py."""

from nvgraft_cli.sandbox import Mount, read_mountinfo


def test_mountinfo_is_read_with_its_escapes() -> None:
    """Optional fields are skipped, and blanks, tabs, newlines and backslashes in a mount point come back as they are."""
    text = (
        "27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
        "28 27 0:25 /a /mnt/two\\040words rw master:2 propagate_from:3 - fuse.sshfs host rw\n"
        "29 27 0:26 / /mnt/\\134040\\011\\012 rw - tmpfs tmpfs rw\n"
    )
    assert read_mountinfo(text) == [Mount("/", "ext4"), Mount("/mnt/two words", "fuse.sshfs"), Mount("/mnt/\\040\t\n", "tmpfs")]
