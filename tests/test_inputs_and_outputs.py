"""``-`` for standard input, and --output: the program itself, confined as users run it."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from bundles import EVERYTHING, make_bundle
from images import docker_save
from nvgraft_cli.shell.main import main
from nvgraft_specs import gallery

Captured = pytest.CaptureFixture[str]
PROGRAM = [sys.executable, "-m", "nvgraft_cli.shell.main"]
ENVIRONMENT = {"PYTHONPATH": os.pathsep.join(sys.path)}


def nvgraft(
    *words: str | Path, stdin: bytes = b"", code: int = 0, directory: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run nvgraft with a pipe as standard input, in a process of its own."""
    done = subprocess.run(
        [*PROGRAM, *words],
        input=stdin,
        capture_output=True,
        cwd=directory,
        env=ENVIRONMENT,
        timeout=60,
    )
    assert done.returncode == code, done.stderr
    return done


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """Return a bundle that asks for everything."""
    return Path(make_bundle(tmp_path / "b", *EVERYTHING))


def test_a_host_comes_from_standard_input(bundle: Path) -> None:
    """``--host -`` reads a document from a pipe, a file or a socket."""
    path = gallery.path("eks-t4")
    document = Path(path).read_bytes()
    words = ["plan", "--container", str(bundle), "--host"]
    expected = nvgraft(*words, path).stdout
    assert nvgraft(*words, "-", stdin=document).stdout == expected
    with open(path, "rb") as file:
        assert answered(file.fileno(), *words, "-") == (expected, b"")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(document)
        ours.shutdown(socket.SHUT_WR)
        assert answered(theirs.fileno(), *words, "-") == (expected, b"")


def answered(stdin: int, *words: str) -> tuple[bytes, bytes]:
    """Return standard output and stderr of nvgraft with a descriptor as standard input."""
    done = subprocess.run(
        [*PROGRAM, *words], stdin=stdin, capture_output=True, env=ENVIRONMENT, timeout=60
    )
    return done.stdout, done.stderr


def test_a_container_comes_from_standard_input(bundle: Path, tmp_path: Path) -> None:
    """``--container -`` reads an image archive or a config.json from a pipe."""
    archive = tmp_path / "image.tar"
    docker_save(archive, [("etc/os-release", b"ID=debian\n"), ("usr/lib/x86_64-linux-gnu", None)])
    for path in (archive, bundle / "config.json"):
        words = ["why", "libcuda.so.1", "--env", "NVIDIA_VISIBLE_DEVICES=all", "--host", "eks-t4"]
        expected = nvgraft(*words, "--container", path).stdout
        done = nvgraft(*words, "--container", "-", stdin=path.read_bytes(), directory=path.parent)
        assert done.stdout == expected


def test_a_side_comes_from_standard_input(bundle: Path) -> None:
    """diff takes ``-`` for a side, also for a plan, and explain-error for its text."""
    plan = nvgraft("plan", "--container", bundle, "--host", "eks-t4", "--format", "json").stdout
    assert nvgraft("diff", "-", "eks-t4", "--container", bundle, stdin=plan).stdout
    text = b"nvidia-container-cli: initialization error: nvml error: driver not loaded\n"
    assert b"driver-not-loaded" in nvgraft("explain-error", "-", stdin=text).stdout


@pytest.mark.requires("sh")
def test_an_empty_or_closed_standard_input_is_one_line(bundle: Path) -> None:
    """Standard input that is empty or closed is one line, and exit code 2."""
    words = ["plan", "--container", str(bundle), "--host", "-"]
    assert b"/dev/stdin: an empty file | " in nvgraft(*words, code=2).stderr
    done = subprocess.run(
        ["sh", "-c", '"$@" <&-', "sh", *PROGRAM, *words],
        capture_output=True,
        env=ENVIRONMENT | {"PATH": os.environ["PATH"]},
        timeout=60,
    )
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr


def test_no_room_for_standard_input_is_one_line(bundle: Path) -> None:
    """Where no temporary file can be made, one line names the variable to set."""
    words = ["plan", "--container", str(bundle), "--host", "-"]
    program = (
        "import tempfile; tempfile.tempdir = '/nonexistent'; from nvgraft_cli.shell import main"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{program}; raise SystemExit(main.main())", *words],
        input=b"{}",
        capture_output=True,
        env=ENVIRONMENT,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr.endswith(b"set TMPDIR to a directory with room\n")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "words",
    [
        ["plan", "--container", "{bundle}", "--host", "eks-t4"],
        ["plan", "--container", "{bundle}", "--host", "eks-t4", "--format", "json"],
        ["explain", "--container", "{bundle}", "--host", "eks-t4"],
        ["cdi", "generate", "--host", "eks-t4"],
        ["explain-error", "nvml error: driver not loaded"],
        ["matrix", "eks-t4", "--containers", "{bundle}"],
    ],
    ids=lambda words: " ".join(words[:1] + words[5:]),
)
def test_output_is_what_would_be_printed(words: list[str], bundle: Path, tmp_path: Path) -> None:
    """--output writes the bytes that standard output would get, and prints nothing."""
    words = [word.format(bundle=bundle) for word in words]
    expected = nvgraft(*words)
    done = nvgraft(*words, "--output", tmp_path / "answer")
    assert (done.stdout, done.stderr) == (b"", expected.stderr)
    assert (tmp_path / "answer").read_bytes() == expected.stdout
    assert nvgraft(*words, "-o", "-").stdout == expected.stdout


def test_output_without_colour(bundle: Path, tmp_path: Path) -> None:
    """A file gets no colours; --color always gives it some."""
    words = ["plan", "--container", str(bundle), "--host", "eks-t4", "-o", f"{tmp_path}/answer"]
    nvgraft(*words)
    assert b"\x1b[" not in (tmp_path / "answer").read_bytes()
    nvgraft(*words, "--color", "always")
    assert b"\x1b[" in (tmp_path / "answer").read_bytes()


def test_output_of_an_answer_with_exit_code_1(bundle: Path, tmp_path: Path) -> None:
    """Answers with exit code 1 are written too."""
    words = ["diff", "eks-t4", "mig-h100", "--container", str(bundle), "--format", "json"]
    nvgraft(*words, "--output", tmp_path / "answer", code=1)
    assert json.loads((tmp_path / "answer").read_text())["equal"] is False


def test_output_is_left_alone_without_an_answer(bundle: Path, tmp_path: Path) -> None:
    """Bad input leaves the file of --output as it is."""
    (tmp_path / "answer").write_text("before")
    words = ["plan", "--container", str(bundle), "--host", "nowhere"]
    nvgraft(*words, "--output", tmp_path / "answer", code=2)
    assert (tmp_path / "answer").read_text() == "before"


def test_an_output_that_cannot_be_written_is_one_line(bundle: Path, tmp_path: Path) -> None:
    """A file that cannot be written is one line and exit code 2, never that of the answer."""
    words = ["plan", "--container", str(bundle), "--host", "eks-t4"]
    done = nvgraft(*words, "--output", tmp_path / "none/answer", code=2)
    line = f"nvgraft plan: {tmp_path}/none/answer: cannot be written: no such file or directory"
    assert done.stderr.decode().startswith(line)
    assert len(done.stderr.splitlines()) == 1


def test_output_to_a_device_or_a_pipe(bundle: Path, tmp_path: Path) -> None:
    """A device or a pipe is written to, and never replaced by a file."""
    words = ["plan", "--container", str(bundle), "--host", "eks-t4"]
    expected = nvgraft(*words).stdout
    assert nvgraft(*words, "-o", "/proc/self/fd/1").stdout == expected
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        nvgraft(*words, "-o", pipe)
        assert os.read(reader, 1 << 16) == expected
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    full = tmp_path / "full"
    full.symlink_to("/dev/full")
    assert b"no space left on device" in nvgraft(*words, "-o", full, code=2).stderr
    assert full.is_symlink() and Path("/dev/full").is_char_device()


def test_output_keeps_the_mode_and_follows_no_link(bundle: Path, tmp_path: Path) -> None:
    """A file that is replaced keeps its mode. A link is replaced, not what it leads to."""
    words = ["plan", "--container", str(bundle), "--host", "eks-t4", "-o"]
    answer, target = tmp_path / "answer", tmp_path / "target"
    answer.touch(0o600)
    nvgraft(*words, answer)
    assert (answer.stat().st_mode & 0o777, answer.stat().st_size > 0) == (0o600, True)
    answer.unlink()
    target.write_text("before")
    answer.symlink_to(target)
    nvgraft(*words, answer)
    assert not answer.is_symlink()
    assert target.read_text() == "before"


def test_output_in_another_programs_process(bundle: Path, tmp_path: Path, capsys: Captured) -> None:
    """main() called by another program writes the file as well."""
    words = ["plan", "--container", str(bundle), "--host", "eks-t4"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert main([*words, "--output", str(tmp_path / "answer")]) == 0
    assert capsys.readouterr().out == ""
    assert (tmp_path / "answer").read_text() == printed
