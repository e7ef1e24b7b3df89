"""Closed, full and broken standard streams: what a person and a script see, and the exit code."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bundles import EVERYTHING, make_bundle
from nvgraft_cli.shell import progress, stdin
from nvgraft_cli.shell.errors import InputError
from nvgraft_cli.shell.output import write_whole
from nvgraft_cli.simulate.stubs import shared_object

MAIN = [sys.executable, "-m", "nvgraft_cli.shell.main"]
ENVIRONMENT = {"PYTHONPATH": os.pathsep.join(sys.path), "PATH": os.environ["PATH"]}
#: Command lines that print little, much, or nothing but a line on stderr, by their exit code.
ANSWERS: dict[str, tuple[tuple[str, ...], int]] = {
    "a short answer": (("simulate", "--list"), 0),
    "a long answer": (("plan", "--bundle", "{bundle}", "--host", "debian-a100x8"), 0),
    "an answer of 1": (("why", "nothing", "--bundle", "{bundle}", "--host", "eks-t4"), 1),
    "help": (("--help",), 0),
    "the version": (("--version",), 0),
    "a document": (("explain", "--bundle", "{bundle}", "--host", "eks-t4", "--format", "json"), 0),
}


def nvgraft(words: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    return subprocess.run(
        [*MAIN, *words],
        **{"env": ENVIRONMENT, "timeout": 60, "stdin": subprocess.DEVNULL, **options},
    )


@pytest.fixture
def bundle(tmp_path: Path) -> str:
    return str(make_bundle(tmp_path / "b", *EVERYTHING))


def closing(*fds: int) -> Any:
    def close() -> None:
        for fd in fds:
            os.close(fd)

    return close


@pytest.mark.parametrize("name", ANSWERS)
def test_a_reader_that_has_gone_is_sigpipe(name: str, bundle: str) -> None:
    """`nvgraft plan | true` ends as git does: by SIGPIPE (141 in a shell), and without a message."""
    words = [word.format(bundle=bundle) for word in ANSWERS[name][0]]
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as pipe:
        done = nvgraft(words, stdout=pipe)
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, "")


def test_a_reader_of_messages_that_has_gone_is_sigpipe() -> None:
    """Stderr is like standard output here: `nvgraft plan ... 2>&1 | true`."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as pipe:
        done = nvgraft(["plan", "--host", "nowhere"], stdout=pipe, stderr=pipe)
    assert done.returncode == -signal.SIGPIPE


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("kind", ["full", "closed"])
def test_standard_output_that_cannot_be_written(name: str, kind: str, bundle: str) -> None:
    """A full or closed standard output is one line, and exit code 2: never that of an answer."""
    words = [word.format(bundle=bundle) for word in ANSWERS[name][0]]
    if kind == "full":
        with open("/dev/full", "w") as full:
            done = nvgraft(words, stdout=full)
    else:
        done = nvgraft(words, preexec_fn=closing(1))
    assert done.returncode == 2
    cause = "no space left on device" if kind == "full" else "closed"
    assert done.stderr.startswith(f"nvgraft: standard output: {cause} | write to another file")
    assert done.stderr.count("\n") == 1


def test_a_message_that_cannot_be_shown_changes_nothing(bundle: str) -> None:
    """A full or closed stderr loses the message, but not the answer and the exit code."""
    words = ["plan", "--host", "nowhere"]
    with open("/dev/full", "w") as full:
        assert nvgraft(words, stderr=full).returncode == 2
    assert nvgraft(words, preexec_fn=closing(2)).returncode == 2
    shown = ["--debug", "plan", "--bundle", bundle, "--host", "eks-t4"]
    plain = nvgraft(shown[1:]).stdout
    done = nvgraft(shown, preexec_fn=closing(0, 2))
    assert (done.returncode, done.stdout) == (0, plain)
    with open("/dev/full", "w") as full:
        done = nvgraft(shown, stderr=full)
    assert (done.returncode, done.stdout) == (0, plain)


def test_closed_streams_are_never_a_file(tmp_path: Path) -> None:
    """With all streams closed, no file that is opened gets the number of a stream."""
    target = tmp_path / "document.json"
    driver = tmp_path / "driver/usr/lib64"
    driver.mkdir(parents=True)
    library = shared_object(64, "EM_X86_64", "libcuda.so.1", [], None)
    (driver / "libcuda.so.550.1").write_bytes(library)
    words = ["snapshot", "--root", str(tmp_path / "driver"), "-o", str(target), "--debug"]
    assert nvgraft(words, preexec_fn=closing(0, 1, 2)).returncode == 0
    assert target.read_text().startswith("{")


@pytest.mark.parametrize("format", ["text", "json"])
def test_an_open_file_is_written_and_its_name_stays(
    format: str, bundle: str, tmp_path: Path
) -> None:
    """`-o /dev/stdout > FILE` writes to the file that is open: the name in /dev is never replaced.

    The test uses what /dev/stdout leads to, so that a failure does no harm.
    """
    words = ["plan", "--container", bundle, "--host", "eks-t4", "--format", format]
    with (tmp_path / "answer").open("w") as answer:
        done = nvgraft([*words, "-o", "/proc/self/fd/1"], stdout=answer)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "answer").read_text() == nvgraft(words).stdout
    with pytest.raises(InputError, match="/dev/none/x: cannot be written"):
        write_whole("/dev/none/x", b"")


def test_a_closed_standard_input_is_empty() -> None:
    """`nvgraft explain-error <&-` says that there is no text."""
    done = nvgraft(["explain-error"], preexec_fn=closing(0))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("nvgraft explain-error: no text | ")


def test_reading_standard_input_shows_progress(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A pipe that takes long is not silent: stderr says how much was read, and how fast."""
    monkeypatch.setattr(progress, "_QUIET", 0.0)
    standard_input = os.dup(0)
    reading, writing = os.pipe()
    os.write(writing, b"x" * 3000)
    os.close(writing)
    os.dup2(reading, 0)
    with open(reading, encoding="utf-8") as pipe:
        monkeypatch.setattr(sys, "stdin", pipe)
        try:
            stdin.keep(copied=False)
            content = os.pread(0, 4000, 0)
        finally:
            os.dup2(standard_input, 0)
            os.close(standard_input)
    assert content == b"x" * 3000
    assert capfd.readouterr().err.startswith("nvgraft: reading standard input: 0 MiB, ")


@pytest.mark.parametrize("encoding", ["ascii", "iso-8859-1"])
def test_what_the_locale_cannot_encode_is_escaped(encoding: str, tmp_path: Path) -> None:
    """In a locale without UTF-8, other characters are escapes, in answers as in messages."""
    bundle = make_bundle(tmp_path / "b", "NVIDIA_VISIBLE_DEVICES=all")
    other = bundle.rename(tmp_path / "\u0416")
    environment = {**ENVIRONMENT, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    done = nvgraft(["plan", "--bundle", str(other), "--host", "eks-t4"], env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "/\\u0416/rootfs" in done.stdout
    done = nvgraft(["plan", "--bundle", f"{other}2", "--host", "eks-t4"], env=environment)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "/\\u04162: no such file or directory" in done.stderr
