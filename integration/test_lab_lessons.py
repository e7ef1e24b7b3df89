"""`nvgraft lab lesson` as root: every lesson is broken, resists a wrong repair, and can be
solved.
"""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from cgroups import FILTER, attach, hierarchy
from harness import CHECKOUT
from labs import ENVIRONMENT, LAB, processes, start, traces, wait_for
from nvgraft.apply.cgroup import DeviceCgroup
from nvgraft_cli.lab.lessons import library, systemd
from nvgraft_specs.models.lesson import Lesson
from terminals import NVGRAFT, talk

pytestmark = pytest.mark.requires("root", "runc", "busybox", "gcc", "overlayfs", "x86_64")

MARK = "== "


def lesson(name: str, *lines: str, state: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Begin a lesson with a script.

    :param state: the user's state directory.
    """
    return subprocess.run(
        [*LAB, "lesson", name, "--plain", "--script", "-"],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        env={**ENVIRONMENT, "XDG_STATE_HOME": str(state or "/nonexistent")},
        timeout=120,
    )


def checks(output: str) -> list[str]:
    """Return what followed each `check` of a script."""
    parts = re.split(r"^lesson> ", output, flags=re.MULTILINE)
    return [part for part in parts if part.startswith("check\n")]


def faults(check: str) -> list[str]:
    """Return what a check still wants."""
    return re.findall(r"^  not yet: (.*)", check, re.MULTILINE)


@pytest.mark.parametrize("name", library.names())
def test_a_lesson_can_be_solved_and_not_otherwise(name: str, tmp_path: Path) -> None:
    """The check fails before the repair and after each wrong one, and succeeds after the solution,
    which is noted.
    """
    found = library.find(name)
    script = ["check"]
    for wrong in found.wrong:
        script += [*wrong.commands, "check"]
    done = lesson(name, *script, *found.solution, "check", state=tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    *before, after = checks(done.stdout)
    assert len(before) == 1 + len(found.wrong)
    for check in before:
        assert faults(check) and "Not solved yet." in check, check
    assert faults(after) == [] and "\nSolved.\n" in after, after
    assert " ".join(found.explanation.split()).split("\n")[0][:60] in after
    noted = json.loads((tmp_path / "nvgraft/lessons.json").read_text())
    assert noted == {"solved": [name]}


#: Prints what a lesson waits for, and asks nobody.
FAKE = "printf '#!/bin/sh\\necho CUDA device 0: NVIDIA A10; echo CUDA device 1: NVIDIA A10\\n"
FAKE += "echo GPU 0: NVIDIA A10; echo GPU 1: NVIDIA A10\\n"
FAKE += "echo its libcuda.so.1: /usr/lib/x86_64-linux-gnu/libcuda.so.560.35.03\\n' >"
BACK = "rm -r /lesson/app; cp -a /keep/app /lesson/app"


def test_a_check_looks_past_what_programs_say() -> None:
    """A program that only says the right words, in the place of the image's or before it in PATH,
    solves nothing.
    """
    out = "app/rootfs/usr"
    done = lesson(
        "no-libcuda",
        "mkdir /keep; cp -a app /keep/app",
        f"{FAKE} {out}/bin/cuda-check", "check", BACK,
        f"mkdir -p {out}/local/bin; {FAKE} {out}/local/bin/cuda-check",
        f"chmod 755 {out}/local/bin/cuda-check", "check",
    )  # fmt: skip
    words = [faults(check) for check in checks(done.stdout)]
    assert words[0][0] == (
        "/usr/bin/cuda-check in the container is to be a program of the lesson or of the driver"
    ), done.stdout
    assert words[1][0].startswith("/usr/local/bin/cuda-check in the container is to be ")


def test_a_node_is_not_mended_in_one_container() -> None:
    """A container that may open every device, and one that asks for no GPU and has a program that
    says so, mend no node; the cgroup of a start is the lab's, whatever config.json says.
    """
    before = traces()
    config = "app/config.json"
    done = lesson(
        "unknown-error",
        "mkdir /keep; cp -a app /keep/app",
        f"""sed -i 's,"cgroupsPath": "[^"]*","cgroupsPath": "/nvgraft-lab-other/app",' {config}""",
        f"""sed -i 's/"allow": false/"allow": true/' {config}""", "check", BACK,
        f"sed -i 's/DEVICES=all/DEVICES=void/' {config}",
        f"{FAKE} app/rootfs/usr/bin/nvidia-smi",
        "chmod 755 app/rootfs/usr/bin/nvidia-smi", "check",
    )  # fmt: skip
    first, second = (faults(check) for check in checks(done.stdout))
    assert first[0] == "the container is not to open every device of the node", done.stdout
    assert "its exit code is to be 0" in first, "another container is as broken as before"
    assert second[0].startswith("/usr/bin/nvidia-smi in the container is to be ")
    assert traces() == before


def test_a_solved_lesson_stays_solved(tmp_path: Path) -> None:
    """What is tried after the success takes nothing back, but the script's exit code tells it."""
    found = library.find("no-tmp")
    undo = "rmdir app/rootfs/tmp"
    done = lesson("no-tmp", *found.solution, "check", undo, "check", state=tmp_path)
    assert done.returncode == 1
    assert json.loads((tmp_path / "nvgraft/lessons.json").read_text()) == {"solved": ["no-tmp"]}


def test_doctor_leads_to_the_cgroup_of_systemd() -> None:
    """Its finding names systemd and the mode that mends it, and is gone with the solution."""
    doctor = "nvgraft doctor --container app"
    found = library.find("after-daemon-reload")
    done = lesson("after-daemon-reload", doctor)
    assert "only the hook allows the GPU's devices, and systemd manages the cgroup" in done.stdout
    assert found.solution[0].split('"')[3] in done.stdout.split("fix ")[1]


def test_the_example_of_the_page_can_be_solved(tmp_path: Path) -> None:
    """The lesson that docs/lessons.md shows is broken, and its solution mends it."""
    path = tmp_path / "example.toml"
    text = (CHECKOUT / "docs/lessons.md").read_text()
    path.write_text(text.partition("```toml\n")[2].partition("```")[0])
    found = library.find(str(path))
    done = lesson(str(path), "check", *found.wrong[0].commands, "check", *found.solution, "check")
    assert done.returncode == 0, done.stdout
    assert [bool(faults(check)) for check in checks(done.stdout)] == [True, True, False]


def test_the_words_of_the_lessons_point_at_the_fault() -> None:
    """The symptom that a learner sees first is the one that users report."""
    symptoms = {
        "error-999": "CUDA error 999: unknown error",
        "another-loader": "libcuda.so.1: cannot open shared object file",
        "no-such-file": "exec /usr/bin/nvidia-smi: no such file or directory",
    }
    for name, words in symptoms.items():
        done = lesson(name, "start", "hint", "help", "task")
        assert words in done.stdout
        assert done.returncode == 1  # a script that does not solve it
        assert done.stdout.count(MARK) == 2
        assert "Hint 1 of" in done.stdout


def test_a_learner_makes_mistakes() -> None:
    """A shell that is killed, a broken config.json, a directory that is gone: each is one line, the
    lesson goes on, and nothing is left.
    """
    before = traces()
    done = lesson(
        "no-libcuda", "kill -9 $$", "cd app", "pwd", "echo { > config.json", "check", "start b",
        "cd rootfs/tmp", "rm -r /lesson/app/rootfs/tmp", "ls", "pwd", "false",
        "rm -r /lesson/app", "start", "cd /; exit 3", "pwd", "cat <<E",
    )  # fmt: skip
    assert done.stderr == ""
    answers = done.stdout.split("lesson> ")
    said = {answer.partition("\n")[0]: answer.partition("\n")[2] for answer in answers}
    assert said["kill -9 $$"] == "  (ended by signal 9)\n"
    assert "\nlesson: /lesson/app/config.json: not JSON: " in said["check"]
    assert said["start b"] == "lesson: there is no container b | name one of app\n"
    assert said["ls"] == "lesson: the directory is gone | this shell is in /lesson again\n"
    assert said["false"] == "  (exit code 1)\n"
    assert said["start"].startswith("lesson: /lesson/app/config.json: cannot be read: ")
    assert said["cd /; exit 3"] == "  (exit code 3)\n"
    assert done.stdout.endswith("lesson> pwd\n/\nlesson> cat <<E\n"), "no line of the lab's own"
    assert traces() == before


def test_a_node_without_its_runtime_is_one_line() -> None:
    """What the learner has removed from the node is named, and the lesson goes on."""
    done = lesson("no-tmp", "rm $(command -v runc)", "start", "check", "pwd")
    assert done.stderr == ""
    assert done.stdout.count("\nlesson: runc: no such file or directory\n") == 2
    assert done.stdout.endswith("lesson> pwd\n/lesson\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_end_in_the_middle_leaves_nothing(number: int) -> None:
    """Ctrl-C and SIGKILL, with a container of the learner's running, leave nothing."""
    before = traces()
    with start("lesson", "no-libcuda") as process:
        assert process.stdin is not None and process.stdout is not None
        config = "app/config.json"
        process.stdin.write(f'sed -i \'s/"cuda-check"/"sleep", "600"/\' {config}\n')
        process.stdin.write("runc run --detach --bundle app mine < /dev/null > /dev/null 2>&1\n")
        process.stdin.write("runc list -q; echo arrived\n")
        process.stdin.flush()
        seen = ""
        while not seen.endswith("arrived\nlesson> "):
            letter = process.stdout.read(1)
            assert letter, seen
            seen += letter
        assert "mine\n" in seen
        ends = [os.pidfd_open(int(line.split()[0])) for line in processes() - before[1]]
        assert len(ends) > 2
        os.killpg(process.pid, number)
        process.communicate(timeout=20)
        for end in ends:
            wait_for(end)
    assert process.returncode == (130 if number == signal.SIGINT else -number)
    assert traces() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            'path = "/dev/fd/x"\ntext = "a"',
            "/dev/fd/x: it is a file of this machine's kernel | name another path",
        ),
        (
            'path = "/nowhere"\nreplace = ["a", "b"]',
            "/nowhere: no such file or directory | correct the lesson",
        ),
    ],
)
def test_a_strangers_change_that_cannot_be_made_is_one_line(
    change: str, message: str, tmp_path: Path
) -> None:
    """A link that leads to a file of the kernel is not followed, and the lesson does not begin."""
    text = (library.DATA / "no-tmp.toml").read_text()
    path = tmp_path / "bad.toml"
    path.write_text(text.replace('path = "/lesson/app/rootfs/tmp"\nremove = true', change))
    done = lesson(str(path))
    assert done.returncode == 1
    assert done.stderr == f"nvgraft lab: the lesson's change of {message}\n"


def test_a_lesson_of_a_stranger_is_not_noted(tmp_path: Path) -> None:
    """A file's lesson begins by its path, and can be solved; the list is of nvgraft's own."""
    found: Lesson = library.find("no-tmp")
    path = tmp_path / "mine.toml"
    path.write_text((library.DATA / "no-tmp.toml").read_text())
    done = lesson(str(path), *found.solution, "check", state=tmp_path / "state")
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "state").exists()


def test_progress_is_kept_as_the_user_who_called_sudo(tmp_path: Path) -> None:
    """The file is the user's own, and a link in its place is not followed with root's rights."""
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, 65534, 65534)
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_uid == 0 and parent != Path("/"):
            os.chmod(parent, parent.stat().st_mode | 0o011)
    program = (
        "from nvgraft_cli.lab.lessons import progress\n"
        "print(repr(progress.add('no-tmp')), sorted(progress.solved()))"
    )
    environment = {**ENVIRONMENT, "SUDO_UID": "65534", "XDG_STATE_HOME": str(home / "state")}

    def add() -> str:
        command = [LAB[0], "-c", program]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
        return done.stdout

    assert add() == "'' ['no-tmp']\n"
    written = home / "state/nvgraft/lessons.json"
    assert written.stat().st_uid == 65534
    target = tmp_path / "of-root"
    target.write_text("precious")
    written.unlink()
    written.symlink_to(target)
    assert add() == "'' ['no-tmp']\n"
    assert target.read_text() == "precious"
    home.chmod(0o500)
    (home / "state").rename(tmp_path / "moved")
    assert "your progress could not be kept in " in add()


def openable(cgroup: Path, *paths: str) -> list[str]:
    """Return those device nodes that a process in a cgroup can open."""
    program = "import os, sys\nopen(sys.argv[1], 'w').write('0')\n"
    program += "for path in sys.argv[2:]:\n"
    program += "    try:\n        os.open(path, os.O_RDWR)\n        print(path)\n"
    program += "    except PermissionError:\n        pass\n"
    command = [LAB[0], "-c", program, str(cgroup / "cgroup.procs"), *paths]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.requires("cgroup-v2")
def test_a_reload_replaces_the_device_program_of_cgroup_v2() -> None:
    """What was allowed besides config.json is gone, and what config.json has is allowed."""
    directory = hierarchy(2) / f"nvgraft-lab-reload-{os.getpid()}"
    directory.mkdir()
    fd = os.open(directory, os.O_RDONLY)
    cgroup = DeviceCgroup(2, str(directory), fd, is_root=False)
    try:
        attach(fd, FILTER)
        nodes = ("/dev/null", "/dev/zero", "/dev/full")
        assert openable(directory, *nodes) == ["/dev/zero"]
        systemd.apply(cgroup, ["c *:* m", "c 1:3 rwm", "c 1:7 m"])
        assert openable(directory, *nodes) == ["/dev/null"]
    finally:
        cgroup.close()
        directory.rmdir()


def test_a_program_may_say_anything() -> None:
    """A program that writes without end, and goes on without end, is ended; what it says is
    bounded.
    """
    done = lesson(
        "no-libcuda",
        """sed -i 's,"cuda-check","sh"\\, "-c"\\, "while :; do echo y; done",' app/config.json""",
        "start",
    )
    assert done.stderr == ""
    said = done.stdout.partition("lesson> start\n")[2].splitlines()
    assert said[:20] == ["  | y"] * 20
    assert said[-2:] == ["  | (32748 more lines)", "  it went on for too long, and was ended"]


PROMPT = "lesson> "
#: Prints a text with `}`, and goes on: one process, so that the signal after it ends all.
JOB = "busybox tail -f /lesson/app/config.json\n"
LESSON = ["lab", "--no-pager", "lesson", "no-libcuda"]


def test_a_lesson_lends_its_terminal_to_programs(tmp_path: Path) -> None:
    """Shells with job control and an editor work in a lesson, Ctrl-C and signals end a command
    only, and lines that are pasted behind a shell are for the shell and then for the lesson.
    """
    turns = [
        (PROMPT, "sh\n"),
        ("# ", JOB),
        ("}", "\x03"),
        ("# ", "exit 3\n"),
        ("(exit code 3)", ""),
        (PROMPT, "bash --norc -i\n"),
        ("# ", JOB),
        ("}", "\x1a"),
        ("Stopped", "exit\n"),
        ("There are stopped jobs.", "exit\n"),
        (PROMPT, JOB),
        ("}", "\x03"),
        ("(ended by signal 2)", ""),
        (PROMPT, "bash --norc -i\nkill -9 $$\n"),
        ("(exit code 137)", ""),
        (PROMPT, "bash --norc -i\necho b$((6 * 7))\nexit\necho c$((6 * 7))\ncheck\n"),
        *[("b42", ""), (PROMPT, ""), ("c42", ""), ("Not solved yet.", "")],
        (PROMPT, "busybox vi app/config.json\n"),
        ("ociVersion", ":%s/CAPABILITIES=[a-z,]*/CAPABILITIES=compute,utility/\r:wq\r"),
        (PROMPT, "check\n"),
        ("Solved.", ""),
        (PROMPT, "quit\n"),
    ]
    before = traces()
    seen = talk(LESSON, turns, env={"XDG_STATE_HOME": str(tmp_path)})
    assert seen.code == 0, seen.text
    assert "1 of 15 lessons solved" in seen.text
    assert "job control" not in seen.text
    assert traces() == before


def test_a_lesson_is_stopped_and_continued_with_its_command() -> None:
    """Ctrl-Z in a command, and at the prompt, gives the terminal to the shell that has started the
    lesson; `fg` goes on with both; a lesson that is killed meanwhile leaves nothing.
    """
    turns = [
        ("# ", " ".join([*NVGRAFT, *LESSON, "\n"])),
        (PROMPT, "echo a$((6 * 7)); read word; echo got $word\n"),
        ("a42", "\x1a"),
        ("Stopped", "echo b$((6 * 7))\n"),
        ("b42", "fg\n"),
        ("lesson no-libcuda", "it\n"),
        ("got it", ""),
        (PROMPT, "\x1a"),
        ("Stopped", "fg\n"),
        ("lesson no-libcuda", JOB),
        ("}", "\x1a"),
        ("Stopped", "kill -9 %1; while kill -0 %1; do :; done 2> /dev/null; echo c$((6 * 7))\n"),
        ("c42", "exit\n"),
    ]
    before = traces()
    seen = talk(["--norc", "-i"], turns, program=["bash"])
    assert traces() == before, seen.text
