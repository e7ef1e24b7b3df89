"""`nvgraft lab by-hand` as root: the published experiment, and its recorded listings."""

import os
import re
import signal
import subprocess

import pytest

from harness import SHARED_RECORDS
from labs import ENVIRONMENT, LAB, processes, start, traces, wait_for
from terminals import NVGRAFT, Seen, talk

pytestmark = pytest.mark.requires("root", "bash", "overlayfs", "x86_64", "ldconfig")


def by_hand(*lines: str) -> subprocess.CompletedProcess[str]:
    """Run the experiment with a script."""
    return subprocess.run(
        [*LAB, "by-hand", "--script", "-"],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=60,
    )


def typed(*turns: tuple[str, str], program: tuple[str, ...] = NVGRAFT) -> Seen:
    """Run the experiment at a terminal, from the first prompt on."""
    return talk(["lab", "by-hand"], turns, program=program)


def changed(output: str, sign: str, kinds: str = "cdfl") -> set[str]:
    """Return the paths of the difference that came (>) or went (<)."""
    return set(re.findall(rf"^  \| {sign} [{kinds}] \d+ \.(\S+)$", output, re.MULTILINE))


def recorded(text: str) -> set[str]:
    """Return the paths that a sentence of the record lists. A name without a directory is beside
    the one before, and one that begins with a dot has its name.
    """
    paths: list[str] = []
    for word in re.split(r"[,;\s]+", re.sub(r"\([^)]*\)", "", text)):
        if word.startswith("/"):
            paths.append(word)
        elif word.startswith("."):
            paths.append(paths[-1].partition(".so")[0] + word)
        elif word and word != "and":
            paths.append(f"{paths[-1].rpartition('/')[0]}/{word}")
    return set(paths)


def test_every_command_works_and_every_line_is_explained() -> None:
    """All commands end with 0, each line of the difference has a meaning, one GPU is listed, and
    nothing is left.
    """
    before = traces()
    done = by_hand("all")
    assert (done.returncode, done.stderr) == (0, "")
    groups = re.findall(r"^((?:  \| [<>].*\n)+)(      \S.*)?", done.stdout, re.MULTILINE)
    assert groups and [lines for lines, meaning in groups if not meaning] == []
    assert re.findall(r"\| GPU \d", done.stdout) == ["| GPU 0"]
    assert "the user is 1000:1000" in done.stdout
    assert traces() == before


@pytest.mark.requires("shared-records")
def test_the_difference_is_the_recorded_one() -> None:
    """The listings before and after configure differ as in the published experiment."""
    record = (SHARED_RECORDS / "by-hand.md").read_text()
    found = re.search(r"Added: (.*?)\.\s+Gone from sight: (.*?)\.\n", record, re.DOTALL)
    assert found is not None
    output = by_hand("all").stdout
    added = recorded(found[1])
    assert len(added) == 14
    assert changed(output, ">", "cfl") == added
    gone = changed(output, "<")
    for name in re.findall(r"[\w:./-]{5,}", found[2].partition("(")[2]):
        assert any(path.endswith(f"/{name}") for path in gone), name


def test_readers_may_type_their_own_commands() -> None:
    """Other commands are run in the same shell; mistakes are told, and the experiment goes on."""
    done = by_hand(
        "skip", "cd /tmp && mkdir rootfs", "next", "echo $$", "echo )", "help", "step 2", "quit"
    )
    assert done.returncode == 1
    assert "  the directory is /tmp\n" in done.stdout
    assert "  | 1\n" in done.stdout
    assert done.stdout.count("[2/20] unshare") == 2
    assert "the shell does not understand this: " in done.stdout
    assert "[3/" in done.stdout and "[4/" not in done.stdout


def test_each_command_has_its_effect() -> None:
    """Namespaces, directory, user, mounts, and files of the shell's directory that came or changed
    are told; a command without any of them says so.
    """
    done = by_hand("all")
    parts = re.split(r"^\[\d+/\d+\] ", done.stdout, flags=re.MULTILINE)[1:]
    effects = {part.partition("\n")[0]: part.split("\n", 2)[2] for part in parts}
    assert "the shell is in another pid namespace" in effects["unshare --mount --pid --fork"]
    assert re.search(r"^  \+ \d+ files", effects["tar -C rootfs -xf $IMAGE"])
    bind = effects["mount --bind rootfs rootfs"].splitlines()
    assert [line.split("  of ")[0].split()[:3] for line in bind] == [["+", "mount", "./rootfs"]]
    assert effects["mount -t tmpfs none tmp"] == "  + mount ./tmp  tmpfs (rw)\n"
    (configure,) = (text for command, text in effects.items() if " configure " in command)
    assert "  + mount ./dev/nvidia0  tmpfs of /nvidia0 (ro,nosuid,noexec)\n" in configure
    assert "  ~ file ./etc/ld.so.cache: " in configure
    assert effects["mount --make-private rootfs"] == "  (done; there is nothing to see)\n"
    assert "; the first is ./mnt  overlay" in effects["umount -l mnt"]


def test_a_command_that_fails_is_mended() -> None:
    """`all` stops at a command that fails, which is shown again and can be run again."""
    done = by_hand("next", "next", "GOOD=$IMAGE IMAGE=/gone", "all", "IMAGE=$GOOD", "all")
    assert done.returncode == 1
    shown = re.findall(r"^\[(\d+)/", done.stdout, re.MULTILINE)
    assert shown == [str(number) for number in (1, 2, 3, *range(3, 21))]
    assert "  (exit code 2)\n[3/" in done.stdout
    assert "| GPU 0: NVIDIA A10" in done.stdout


def test_a_command_may_have_several_lines() -> None:
    """A command that is not complete gets the next lines, comments and empty lines too; one that
    never is complete is told.
    """
    done = by_hand("for i in 1 2", "do cat <<END", "# $i", "", "END", "done", "echo 'open", "quit")
    assert done.returncode == 1
    assert "  | # 1\n  | \n  | # 2\n  | \n" in done.stdout
    assert "the shell does not understand this: unexpected EOF" in done.stdout


def test_a_job_in_the_background_is_not_the_shell() -> None:
    """The effect of a command is that on the shell which reads the commands."""
    done = by_hand("cd /opt; (cd /; exec sleep 300) &", "cd /etc", "quit")
    assert re.findall("the directory is (.*)", done.stdout) == ["/opt", "/etc"]


def test_the_cgroups_of_this_machine_cannot_be_removed() -> None:
    """/sys of the node, which is this machine's, is read-only: `rm -r /` would remove cgroups."""
    done = by_hand("find /sys/fs/cgroup -maxdepth 1 -writable -type d", "quit")
    assert "(done; there is nothing to see)" in done.stdout


def test_a_shell_that_ends_is_one_line() -> None:
    """`exit` in the outermost shell ends the experiment, and nothing is left."""
    before = traces()
    done = by_hand("exit", "next")
    assert (done.returncode, done.stderr) == (
        1,
        "nvgraft lab: the shell has ended | start nvgraft lab by-hand again\n",
    )
    assert traces() == before


@pytest.mark.parametrize(
    ("number", "code", "words"),
    [
        (signal.SIGINT, 130, "nvgraft lab: interrupted | everything was taken back\n"),
        (signal.SIGKILL, -signal.SIGKILL, ""),
    ],
)
def test_an_end_in_the_middle_leaves_nothing(number: int, code: int, words: str) -> None:
    """Ctrl-C and SIGKILL, with the container's mounts in place, leave nothing on this machine."""
    before = traces()
    with start("by-hand") as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("\n" * 14 + "echo arrived\n")
        process.stdin.flush()
        while not (line := process.stdout.readline()).endswith("| arrived\n"):
            assert line
        ends = [os.pidfd_open(int(line.split()[0])) for line in processes() - before[1]]
        assert len(ends) > 2
        os.killpg(process.pid, number)
        _, said = process.communicate(timeout=20)
        for end in ends:
            wait_for(end)
    assert (process.returncode, said) == (code, words)
    assert traces() == before


def test_commands_have_the_terminal() -> None:
    """A command reads from the terminal, Ctrl-C ends it and Ctrl-Z stops it; what it has not read
    is for the prompt. So it is in the first shell, and in the container.
    """
    tries = [
        ("by-hand> ", "test -t 0 -a -t 1 && read word && echo got $word\n"),
        ("got $word\r\n", "it\n"),
        ("got it\r\n", ""),
        ("by-hand> ", "bash -c 'echo begun; cat'\n"),
        ("'\r\nbegun\r\n", "\x03"),
        ("(exit code 130)", ""),
        ("by-hand> ", "bash -c 'echo begun; cat'\n"),
        ("'\r\nbegun\r\n", "\x1a"),
        ("Stopped", ""),
        ("by-hand> ", "fg\n"),
        ("fg\r\nbash -c", "read\n"),
        ("read\r\nread\r\n", "\x04"),
        ("by-hand> ", "echo begun; until read -t 0; do :; done\n"),
        ("done\r\nbegun\r\n", "echo later\n\n"),
        ("by-hand> echo later\r\nlater\r\n", ""),
    ]
    seen = typed(
        *tries, ("by-hand> ", "all\n"), ("Look around", ""), *tries, ("by-hand> ", "quit\n")
    )
    assert seen.code == 0, seen.text
    assert "| GPU 0: NVIDIA A10" in seen.text


def test_a_prompt_of_the_terminal() -> None:
    """Ctrl-C gives a new prompt, a block that is pasted is obeyed line by line, and a shell other
    than bash has the terminal until it ends.
    """
    seen = typed(
        ("by-hand> ", "unfinished\x03"),
        ("(quit or Ctrl-D ends)", ""),
        (
            "by-hand> ",
            "\x1b[200~where\necho $((6 * 7))\nfor i in 1\ndo echo $i$i\ndone\n\x1b[201~\n",
        ),
        ("\r\n42\r\n", ""),
        ("\r\n11\r\n", ""),
        ("by-hand> ", "PS1=other: sh\n"),
        ("\nother:", "echo $((7 * 7))\nexit\n"),
        ("49\r\n", ""),
        ("by-hand> ", "exec bash\n"),
        ("by-hand> ", "echo $((8 * 8))\n"),
        ("\r\n64\r\n", ""),
        ("by-hand> ", "\x04"),
    )
    assert seen.code == 0, seen.text
    assert seen.text.count("[1/20] ") == 2


@pytest.mark.parametrize(
    ("command", "keys", "code", "words"),
    [
        ("trap '' INT; echo begun; while :; do :; done", "\x1d\x1d\x1d", 130, "interrupted"),
        ("echo begun; kill -9 $PPID", "", 137, ""),
        ("echo begun; kill -TERM $PPID; cat", "", 130, "interrupted"),
        ("echo begun; exit", "", 1, "the shell has ended"),
    ],
)
def test_an_end_during_a_command_gives_the_terminal_back(
    command: str, keys: str, code: int, words: str
) -> None:
    """A command that cannot be ended, and the death of the lab, leave nothing and the terminal in
    its mode.
    """
    before = traces()
    program = ("sh", "-c", '"$@"; echo "code $?"; stty -a', "sh", *NVGRAFT)
    seen = typed(("by-hand> ", f"{command}\n"), ("\nbegun\r\n", keys), program=program)
    assert f"code {code}\n" in seen.text
    assert words in seen.text
    assert re.search(r"[^-]icanon", seen.text) and re.search(r"[^-]echo ", seen.text)
    assert traces() == before
