"""The limits on an image's ld.so.conf: each pattern is compared with every name of a directory."""

import errno

import pytest

from nvgraft.formats.ld_so_conf import Configuration


def load(text: str, names: list[str]) -> Configuration:
    def read(path: str) -> bytes:
        if path == "/etc/ld.so.conf":
            return text.encode()
        raise FileNotFoundError(errno.ENOENT, "", path)

    configuration = Configuration(read, lambda _: names)
    configuration.load()
    return configuration


@pytest.mark.parametrize("part", ["*a" * 128, "[" + "a" * 5000 + "]*"])
def test_a_long_pattern_is_left_out(part: str) -> None:
    """A pattern longer than any file name is left out, and the rest of the file is read."""
    configuration = load(f"include /etc/{part}\n/usr/lib\n", ["a"])
    assert configuration.directories == ["/usr/lib"]
    assert configuration.beyond.endswith("one that is no pattern of file names")
    assert not load("include /etc/[a-c]*.conf\n", ["a"]).beyond


def test_comparisons_of_names_are_limited() -> None:
    """The number of names that all includes together are compared with is limited."""
    few = load("include d/*.conf\n" * 3, [f"{number}.conf" for number in range(100)])
    assert (len(few.files), few.beyond) == (101, "")
    many = load("include d/*.x\n" * 50, [f"{number}.conf" for number in range(1000)])
    assert many.beyond == "includes from directories with more than 4096 names"
    assert many._compared == 4096


def test_no_directory_is_listed_beyond_the_limit() -> None:
    """Behind the limit on names, an include costs no listing: a directory may be large."""
    listed: list[str] = []

    def names(directory: str) -> list[str]:
        listed.append(directory)
        return [str(number) for number in range(5000)]

    text = "include /d/*.x\n" * 200 + "/usr/lib\n"
    configuration = Configuration(lambda _path: text.encode(), names)
    configuration.load()
    assert listed == ["/d"]
    assert configuration.directories == ["/usr/lib"]
    assert configuration.beyond == "includes from directories with more than 4096 names"
