"""Path functions: the answers of ``os`` and ``posixpath`` without importing them."""

import os
import posixpath
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from nvgraft.base import paths

names = st.text("/.ab", max_size=12)


@given(names, names)
def test_join_and_split_equal_posixpaths(directory: str, name: str) -> None:
    """join, split, dirname and basename equal posixpath's for any slashes and dots."""
    assert paths.join(directory, name) == posixpath.join(directory, name)
    assert paths.split(name) == posixpath.split(name)
    assert (paths.dirname(name), paths.basename(name)) == (
        posixpath.dirname(name),
        posixpath.basename(name),
    )


@given(names)
def test_clean_equals_go_s(path: str) -> None:
    """clean() is ``normpath``, except that two leading slashes become one."""
    assert paths.clean(path) == posixpath.normpath(path).replace("//", "/")


def test_clean_by_example() -> None:
    """clean() gives Go's answers."""
    assert [paths.clean(path) for path in ("", "//a//b/", "/a/../../b", "a/./b/..", "///")] == [
        ".",
        "/a/b",
        "/b",
        "a",
        "/",
    ]


@given(st.binary(max_size=20))
def test_undecodable_names_survive(name: bytes) -> None:
    """fsdecode() and fsencode() are inverse for any bytes."""
    assert paths.fsdecode(name) == os.fsdecode(name)
    assert paths.fsencode(paths.fsdecode(name)) == name


def test_exists_follows_links(tmp_path: Path) -> None:
    """exists() follows links; it is false for a dangling link and for an impossible name."""
    (tmp_path / "good").symlink_to(".")
    (tmp_path / "bad").symlink_to("nothing")
    assert [paths.exists(f"{tmp_path}/{name}") for name in ("good", "bad", "a\0b")] == [
        True,
        False,
        False,
    ]
