"""User namespaces: who is who there."""

import pytest

from nvgraft.system import userns

FULL = "         0          0 4294967295\n"
MAPPED = "         0       1000          1\n"


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What the kernel says; a file that is not set does not exist."""
    texts: dict[str, str] = {}
    monkeypatch.setattr(userns, "_read", lambda path: texts.get(path, ""))
    return texts


@pytest.mark.parametrize(
    ("text", "inside"),
    [(FULL, False), ("", False), (MAPPED, True), ("0 100000 65536\n1000 1000 1\n", True)],
)
def test_a_namespace_is_told_by_its_map(text: str, inside: bool, kernel: dict[str, str]) -> None:
    """The first namespace maps every id to itself, users and groups; a kernel without namespaces has no map."""
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
    """Only inside a user namespace: elsewhere the overflow uid is an ordinary user."""
    kernel["/proc/self/uid_map"] = text
    assert userns.is_root(uid) is root


def test_the_overflow_uid_is_the_kernels(kernel: dict[str, str]) -> None:
    """An administrator may have changed it."""
    assert userns.overflow_uid() == 65534
    kernel["/proc/sys/kernel/overflowuid"] = "99\n"
    kernel["/proc/self/uid_map"] = MAPPED
    assert userns.overflow_uid() == 99
    assert userns.is_root(99)
    assert not userns.is_root(65534)


@pytest.mark.parametrize(("text", "fixed"), [("deny\n", True), ("allow\n", False), ("", False)])
def test_groups_are_fixed_where_the_kernel_says_so(
    text: str, fixed: bool, kernel: dict[str, str]
) -> None:
    """Who made the namespace without privileges cannot change groups in it."""
    kernel["/proc/self/setgroups"] = text
    assert userns.groups_are_fixed() is fixed


def test_the_kernels_files_are_read() -> None:
    """On the machine itself; a file that is missing is empty."""
    assert userns._read("/proc/self/uid_map").split()
    assert userns._read("/proc/self/nosuch") == ""
