"""Reading ld.so.conf: directories, includes and their patterns, and the limits of all three."""

import fnmatch
import os
import re
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvgraft.formats.ld_so_conf import Configuration, Pattern


def load(files: dict[str, str]) -> Configuration:
    """Read /etc/ld.so.conf of a file system with these files."""

    def read(path: str) -> bytes:
        try:
            return files[path].encode("utf-8", "surrogateescape")
        except KeyError:
            raise FileNotFoundError(path) from None

    def names(path: str) -> list[str]:
        if path in files:
            raise NotADirectoryError(path)
        start = path.rstrip("/") + "/"
        return list(
            dict.fromkeys(
                name[len(start) :].partition("/")[0] for name in files if name.startswith(start)
            )
        )

    configuration = Configuration(read, names)
    configuration.load()
    return configuration


def test_lines_are_directories() -> None:
    """Each line with an absolute path is a directory, without comment, blanks and trailing
    slashes.
    """
    text = (
        "  /a/b  # with a comment\n\n#/c\n/d//\n/\nrelative\n\t/with space/x \nhwcap 1"
        " nosegneg\ninclude\nincluded\n/e"
    )
    assert load({"/etc/ld.so.conf": text}).directories == ["/a/b", "/d", "/", "/with space/x", "/e"]


def test_an_image_without_ld_so_conf_has_no_directories() -> None:
    """Without ld.so.conf there are no directories, and nothing was left out."""
    configuration = load({})
    assert (configuration.directories, configuration.beyond) == ([], "")


def test_files_in_the_place_of_directories_include_nothing() -> None:
    """A pattern that goes on behind a file matches nothing there, as for ldconfig."""
    files = {
        "/etc/ld.so.conf": "include /etc/*/*.conf /etc/version/x.conf\n/last",
        "/etc/version": "12",
        "/etc/x/a.conf": "/a",
    }
    assert load(files).directories == ["/a", "/last"]


def test_includes_are_read_in_place_and_sorted() -> None:
    """Includes are read in place, sorted for each pattern, relative to the including file. Hidden
    files do not match.
    """
    files = {
        "/etc/ld.so.conf": "/first\ninclude ld.so.conf.d/*.conf /opt/one.conf\n/last",
        "/etc/ld.so.conf.d/b.conf": "/b",
        "/etc/ld.so.conf.d/a.conf": "/a\ninclude more/[x-y]?.inc",
        "/etc/ld.so.conf.d/more/xx.inc": "/more",
        "/etc/ld.so.conf.d/more/zz.inc": "/not",
        "/etc/ld.so.conf.d/.hidden.conf": "/hidden",
        "/etc/ld.so.conf.d/b.conf.dpkg-old": "/old",
        "/opt/one.conf": "/one",
    }
    assert load(files).directories == ["/first", "/a", "/more", "/b", "/one", "/last"]


def test_directories_of_a_path_may_be_patterns() -> None:
    """A directory in an include may be a pattern as well, as in glob(3)."""
    files = {
        "/etc/ld.so.conf": "include /opt/*/lib?.conf",
        "/opt/b/lib1.conf": "/b1",
        "/opt/a/lib2.conf": "/a2",
        "/opt/a/x.conf": "/x",
    }
    assert load(files).directories == ["/a2", "/b1"]


def test_a_file_that_includes_itself_is_read_once() -> None:
    """A file that includes itself is read once."""
    assert load(
        {"/etc/ld.so.conf": "/a\ninclude /etc/*.conf\n/b", "/etc/x.conf": "include ld.so.conf\n/x"}
    ).directories == ["/a", "/x", "/b"]


def test_includes_are_followed_five_deep() -> None:
    """Includes deeper than five are left out, and the configuration is marked as incomplete."""
    files = {"/etc/ld.so.conf": "include 1\n"} | {
        f"/etc/{depth}": f"/{depth}\ninclude {depth + 1}\n" for depth in range(1, 9)
    }
    configuration = load(files)
    assert configuration.directories == ["/1", "/2", "/3", "/4", "/5"]
    assert configuration.beyond.endswith("files included more than 5 levels deep")


@pytest.mark.parametrize(
    "files",
    [
        {"/etc/ld.so.conf": "".join(f"/{number}\n" for number in range(10_000))},
        {"/etc/ld.so.conf": "include /x/*\n" * 10_000},
        {"/etc/ld.so.conf": "include /etc/*"}
        | {f"/etc/{number}": "/a" for number in range(10_000)},
        {"/etc/ld.so.conf": "include " + "/*" * 20} | {"/a" * depth: "" for depth in range(1, 20)},
    ],
)
def test_lines_patterns_and_files_have_limits(files: dict[str, str]) -> None:
    """Lines, patterns and files beyond their limits are left out, so that a hostile image cannot
    cost more.
    """
    configuration = load(files)
    assert len(configuration.directories) <= 1024
    assert configuration.beyond or "/*/*" in files["/etc/ld.so.conf"]


@given(st.text(alphabet="ab.-]", max_size=6), st.text(alphabet="ab.*?[]!-^\\", max_size=8))
def test_patterns_match_as_fnmatch_does(name: str, pattern: str) -> None:
    """Patterns match as in fnmatch, except that a leading dot must be written and a backslash
    escapes.
    """
    if "\\" in pattern or "[^" in pattern:
        Pattern(pattern).fits(name)
        return
    matches = fnmatch.fnmatchcase(name, pattern) and not (
        name.startswith(".") and not pattern.startswith(".")
    )
    assert Pattern(pattern).fits(name) == matches


def test_a_backslash_escapes_a_character() -> None:
    """A backslash escapes the next character, and a caret negates a set as `!` does (glob(7))."""
    assert Pattern("a\\*").fits("a*")
    assert not Pattern("a\\*").fits("ab")
    assert Pattern("[^a]").fits("b")
    assert not Pattern("[^a]").fits("a")


def test_many_stars_cost_no_more_than_the_name() -> None:
    """A pattern with many stars costs one step for each character of the name."""
    counted = Pattern("*" + "a" * 120 + "b")
    taking = counted._taking
    with mock.patch.object(Pattern, "_taking", side_effect=taking) as calls:
        assert not counted.fits("a" * 255)
    assert calls.call_count == 255
    assert not Pattern("*a" * 100 + "b").fits("a" * 255)


@given(st.binary(max_size=300))
def test_any_bytes_are_read(text: bytes) -> None:
    """Any bytes are read without an exception; directories are absolute and without NUL."""
    configuration = Configuration(
        lambda _path: text, lambda _path: [os.fsdecode(b"\xff"), "a.conf"]
    )
    configuration.load()
    assert all(re.match(r"/[^\0]*\Z", path, re.DOTALL) for path in configuration.directories)


def test_characters_compared_with_a_set_are_limited() -> None:
    """Beyond a limit of different characters compared with a set, the pattern no longer fits and is
    incomplete.
    """
    pattern = Pattern("[!x]*")
    names = [chr(number) for number in range(0x4E00, 0x4E00 + 4096)]
    answers = [(pattern.fits(name), pattern.complete) for name in [*names, "\u3042"]]
    assert answers == [*[(True, True)] * len(names), (False, False)]
    without = Pattern("?*")
    assert all(without.fits(name) for name in [*names, "\u3042"])
    assert without.complete
