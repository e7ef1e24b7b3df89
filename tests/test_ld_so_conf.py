"""Reading ld.so.conf: directories, includes and their patterns, and the bounds of all three."""

import fnmatch
import os
import re
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvgraft.formats.ld_so_conf import Configuration, Pattern


def load(files: dict[str, str]) -> Configuration:
    """Read /etc/ld.so.conf of a file system that holds these files."""

    def read(path: str) -> bytes:
        try:
            return files[path].encode("utf-8", "surrogateescape")
        except KeyError:
            raise FileNotFoundError(path) from None

    def names(path: str) -> list[str]:
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
    """Without comments, blanks around them and slashes behind them; what is no absolute path is none."""
    text = "  /a/b  # with a comment\n\n#/c\n/d//\n/\nrelative\n\t/with space/x \nhwcap 1 nosegneg\ninclude\nincluded\n/e"
    assert load({"/etc/ld.so.conf": text}).directories == ["/a/b", "/d", "/", "/with space/x", "/e"]


def test_an_image_without_one_has_none() -> None:
    """No file, no directory, nothing left out."""
    configuration = load({})
    assert (configuration.directories, configuration.complete) == ([], True)


def test_includes_come_in_their_place_and_sorted() -> None:
    """Relative ones count from the file that includes; several in a line; hidden files and other names do not match."""
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


def test_a_directory_of_a_pattern_may_be_one_too() -> None:
    """As glob(3) has it."""
    files = {
        "/etc/ld.so.conf": "include /opt/*/lib?.conf",
        "/opt/b/lib1.conf": "/b1",
        "/opt/a/lib2.conf": "/a2",
        "/opt/a/x.conf": "/x",
    }
    assert load(files).directories == ["/a2", "/b1"]


def test_a_file_that_includes_itself_ends() -> None:
    """Each file counts once."""
    assert load(
        {"/etc/ld.so.conf": "/a\ninclude /etc/*.conf\n/b", "/etc/x.conf": "include ld.so.conf\n/x"}
    ).directories == [
        "/a",
        "/x",
        "/b",
    ]


def test_includes_are_followed_five_deep() -> None:
    """What lies deeper is left out, and said to be."""
    files = {"/etc/ld.so.conf": "include 1\n"} | {
        f"/etc/{depth}": f"/{depth}\ninclude {depth + 1}\n" for depth in range(1, 9)
    }
    configuration = load(files)
    assert configuration.directories == ["/1", "/2", "/3", "/4", "/5"]
    assert not configuration.complete


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
def test_too_much_of_anything_is_left_out(files: dict[str, str]) -> None:
    """Lines, patterns, files: a hostile image gets an end."""
    configuration = load(files)
    assert len(configuration.directories) <= 1024
    assert not configuration.complete or "/*/*" in files["/etc/ld.so.conf"]


@given(st.text(alphabet="ab.-]", max_size=6), st.text(alphabet="ab.*?[]!-^\\", max_size=8))
def test_patterns_match_as_fnmatch_does(name: str, pattern: str) -> None:
    """But for a leading dot, which has to be written, and a backslash, which Python's does not know."""
    if "\\" in pattern or "[^" in pattern:
        Pattern(pattern).fits(name)
        return
    wanted = fnmatch.fnmatchcase(name, pattern) and not (
        name.startswith(".") and not pattern.startswith(".")
    )
    assert Pattern(pattern).fits(name) == wanted


def test_a_backslash_takes_a_character_as_it_is() -> None:
    """And a caret negates as an exclamation mark does (glob(7))."""
    assert Pattern("a\\*").fits("a*")
    assert not Pattern("a\\*").fits("ab")
    assert Pattern("[^a]").fits("b")
    assert not Pattern("[^a]").fits("a")


def test_many_stars_end_soon() -> None:
    """A pattern made to be slow is not: what it costs is the name's length."""
    counted = Pattern("*" + "a" * 120 + "b")
    taking = counted._taking
    with mock.patch.object(Pattern, "_taking", side_effect=taking) as calls:
        assert not counted.fits("a" * 255)
    assert calls.call_count == 255
    assert not Pattern("*a" * 100 + "b").fits("a" * 255)


@given(st.binary(max_size=300))
def test_any_text_is_read(text: bytes) -> None:
    """No exception, whatever is in it; paths are absolute and without NUL."""
    configuration = Configuration(
        lambda _path: text, lambda _path: [os.fsdecode(b"\xff"), "a.conf"]
    )
    configuration.load()
    assert all(re.match(r"/[^\0]*\Z", path, re.DOTALL) for path in configuration.directories)


def test_names_of_many_characters_are_not_looked_up_without_end() -> None:
    """In brackets: then something may be left out, and that is said."""
    pattern = Pattern("[!x]*")
    names = [chr(number) for number in range(0x4E00, 0x4E00 + 4096)]
    answers = [(pattern.fits(name), pattern.complete) for name in [*names, "\u3042"]]
    assert answers == [*[(True, True)] * len(names), (False, False)]
    without = Pattern("?*")
    assert all(without.fits(name) for name in [*names, "\u3042"])
    assert without.complete
