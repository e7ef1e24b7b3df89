"""User namespaces: which ids belong to root."""

import pytest

from nvgraft.system import userns

FULL = "         0          0 4294967295\n"
MAPPED = "         0       1000          1\n"


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The texts of the kernel's files; a file without a text does not exist."""
    texts: dict[str, str] = {}
    monkeypatch.setattr(userns, "_read", lambda path: texts.get(path, ""))
    return texts


@pytest.mark.parametrize(
    ("text", "inside"),
    [(FULL, False), ("", False), (MAPPED, True), ("0 100000 65536\n1000 1000 1\n", True)],
)
def test_a_user_namespace_is_recognised_by_its_map(
    text: str, inside: bool, kernel: dict[str, str]
) -> None:
    """The first namespace maps every user and group id to itself; a kernel without namespaces has
    no map.
    """
    for kind in ("uid_map", "gid_map"):
        kernel.clear()
        kernel[f"/proc/self/{kind}"] = text
        assert userns.inside() is inside


@pytest.mark.parametrize(
    ("uid", "text", "root"),
    [(0, FULL, True), (65534, FULL, False), (65534, MAPPED, True), (1000, MAPPED, False)],
)
def test_an_owner_without_a_number_counts_as_root(
    uid: int, text: str, root: bool, kernel: dict[str, str]
) -> None:
    """The overflow uid counts as root inside a user namespace only; elsewhere it is an ordinary
    user.
    """
    kernel["/proc/self/uid_map"] = text
    assert userns.is_root(uid) is root


def test_the_overflow_uid_is_the_kernels(kernel: dict[str, str]) -> None:
    """The overflow uid is read from the kernel, where an administrator may have changed it."""
    assert userns.overflow_uid() == 65534
    kernel["/proc/sys/kernel/overflowuid"] = "99\n"
    kernel["/proc/self/uid_map"] = MAPPED
    assert userns.overflow_uid() == 99
    assert userns.is_root(99)
    assert not userns.is_root(65534)


@pytest.mark.parametrize(("text", "fixed"), [("deny\n", True), ("allow\n", False), ("", False)])
def test_groups_are_fixed_if_setgroups_is_denied(
    text: str, fixed: bool, kernel: dict[str, str]
) -> None:
    """Groups are fixed if the kernel denies setgroups, as in a namespace made without
    privileges.
    """
    kernel["/proc/self/setgroups"] = text
    assert userns.groups_are_fixed() is fixed


def test_the_kernels_files_are_read() -> None:
    """The kernel's files of this machine are read; a missing one is empty."""
    assert userns._read("/proc/self/uid_map").split()
    assert userns._read("/proc/self/nosuch") == ""
