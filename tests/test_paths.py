"""Names of files: the same answers as ``os`` and ``posixpath`` give, without them."""

import os
import posixpath
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from nvgraft.base import paths

names = st.text("/.ab", max_size=12)


@given(names, names)
def test_joined_and_taken_apart_as_posixpath_does(directory: str, name: str) -> None:
    """Any number of slashes and dots, at any place."""
    assert paths.join(directory, name) == posixpath.join(directory, name)
    assert paths.split(name) == posixpath.split(name)
    assert (paths.dirname(name), paths.basename(name)) == (
        posixpath.dirname(name),
        posixpath.basename(name),
    )


@given(names)
def test_clean_is_go_s(path: str) -> None:
    """As ``normpath``, but two leading slashes are one."""
    assert paths.clean(path) == posixpath.normpath(path).replace("//", "/")


def test_clean_by_example() -> None:
    """Go's own answers."""
    assert [paths.clean(path) for path in ("", "//a//b/", "/a/../../b", "a/./b/..", "///")] == [
        ".",
        "/a/b",
        "/b",
        "a",
        "/",
    ]


@given(st.binary(max_size=20))
def test_a_name_of_the_kernel_s_is_not_changed(name: bytes) -> None:
    """Bytes that are no text come back as they were."""
    assert paths.fsdecode(name) == os.fsdecode(name)
    assert paths.fsencode(paths.fsdecode(name)) == name


def test_exists_follows_links(tmp_path: Path) -> None:
    """A link to nothing, and a name that no file can have, are nothing."""
    (tmp_path / "good").symlink_to(".")
    (tmp_path / "bad").symlink_to("nothing")
    assert [paths.exists(f"{tmp_path}/{name}") for name in ("good", "bad", "a\0b")] == [
        True,
        False,
        False,
    ]
