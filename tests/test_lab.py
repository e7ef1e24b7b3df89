"""`nvgraft lab` as far as it needs no root; integration/test_lab.py tests the rest."""

import os
import re
import select
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nvgraft.system import userns
from nvgraft.system.launch import DEADLINE
from nvgraft_cli.lab import console, hand_node, page, text
from nvgraft_cli.lab.by_hand import explained
from nvgraft_cli.lab.command import say_plainly
from nvgraft_cli.lab.commands import LabCommands
from nvgraft_cli.lab.ground.cgroups import Janitor
from nvgraft_cli.lab.ground.lines import LabConsole
from nvgraft_cli.lab.looks import Look, differ
from nvgraft_cli.lab.observer import PhaseObserver
from nvgraft_cli.lab.phases import END, NAMES, PHASES
from nvgraft_cli.lab.run import LabError, Stop, how_it_ended
from nvgraft_cli.shell.main import main
from nvgraft_specs.models.host import parse_host

NOTHING = Look((), {}, frozenset(), False)
PLAN = {
    "actions": [
        {
            "op": "mount",
            "type": "bind",
            "source": f"/usr/bin/tool{number}",
            "target": f"/usr/bin/tool{number}",
            "options": ["nosuid", "ro"],
            "why": {"capability": "utility", "row": f"tool{number}", "found": "PATH"},
        }
        for number in range(20)
    ],
    "links": {},
    "findings": [],
}


class Standing:
    """A container that only has names."""

    def __init__(self) -> None:
        self.pid = 7
        self.bundle = "/run/lab/bundle"
        self.left_out = 0
        self.environment = ["NVIDIA_VISIBLE_DEVICES=all", "HOME=/"]
        self.arguments = ["nvidia-smi"]
        self.pivoted = False
        self.rootfs = "/run/lab/rootfs"

    def lives(self) -> bool:
        return True


class Walk:
    """A start of which every phase works, except ``failing``."""

    def __init__(self, failing: str = "") -> None:
        self.container: Any = Standing()
        self.stops = [stop(0, None)]
        self.failure = ""
        self.look = None
        self._failing = failing

    @property
    def number(self) -> int:
        return self.stops[-1].number

    @property
    def facts(self) -> dict[str, Any]:
        return self.stops[-1].facts

    def next(self) -> None:
        if self.number == END:
            raise LabError("there is no next phase | write quit")
        if NAMES[self.number] == self._failing:
            self.failure = "nvgraft: mount error: no | do it better"
            return
        self.stops.append(stop(self.number + 1, self.number))

    def back(self) -> None:
        self.stops.append(stop(self.number - 1, self.number - 1, "back"))


def stop(number: int, done: int | None, way: str = "next", **changes: Any) -> Stop:
    """Return a stop before the phase ``number``."""
    facts = {
        "decision": {"verdict": "inject", "reason": "asked"},
        "inventory": {
            "driver": "560.35.03",
            "cuda": "12.6",
            "gpus": [],
            "libraries": 1,
            "libraries32": 0,
            "binaries": 1,
            "missing": [],
        },
        "plan": PLAN,
    }
    empty = differ(NOTHING, NOTHING)
    return Stop(number, way, done, 1.5, empty, [], {}, [], facts)._replace(**changes)


@pytest.fixture
def follow() -> Callable[..., tuple[int, list[str]]]:
    """Return a function that runs a script on a walk, and returns exit code and lines."""

    def run(*script: str, failing: str = "") -> tuple[int, list[str]]:
        said: list[str] = []
        walk: Any = Walk(failing)
        lines = LabConsole(script, said.append)
        return console.follow(LabCommands(walk, os.environ, said.append, None), lines), said

    return run


def test_a_script_walks_through_all_phases(follow: Callable[..., tuple[int, list[str]]]) -> None:
    """A script goes on, back and to a phase; comments and empty lines are left out."""
    code, said = follow("# begin", "", "next", "n", "back", "run mounts", "run end")
    assert code == 0
    headings = [line for line in said if line.startswith("[")]
    assert [line.split("]")[0][1:].split("/")[0] for line in headings] == [
        "2",
        "3",
        "2",
        "7",
        "the end",
    ]
    assert "lab> # begin" not in said
    assert "taken back: request (1.5 ms)" in said


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("dance", "there is no command 'dance' | `help` lists them"),
        ("s", "there is no command 's' | did you mean shell or show?"),
        ("run around", "there is no phase 'around' | write one of state, request,"),
        ("why", "why of what? | write a path,"),
        ("show dev", "show which file? | write an absolute path"),
        ("shell", "there is no terminal for a shell | write a command behind it"),
    ],
)
def test_a_wrong_command_is_one_line(
    line: str,
    message: str,
    follow: Callable[..., tuple[int, list[str]]],
) -> None:
    """A command that cannot be obeyed says why and what to write, and the script fails."""
    code, said = follow(line, "next")
    assert code == 1
    assert said[1].startswith(f"lab: {message}")
    assert said[2] == "lab> next", "the script goes on"


def test_a_start_that_fails_ends_the_script_with_1(
    follow: Callable[..., tuple[int, list[str]]],
) -> None:
    """The hook's refusal is shown whole, and `run` does not go on behind it."""
    code, said = follow("run end", failing="targets")
    assert code == 1
    assert said[-2] == "the start has failed: nvgraft: mount error: no | do it better"


def test_a_start_that_has_failed_has_nothing_ahead(
    follow: Callable[..., tuple[int, list[str]]],
) -> None:
    """`ahead` tells the failure, and not the phase that would have come."""
    _, said = follow("run end", "ahead", failing="plan")
    assert said[-1] == (
        "lab: the start has failed: nvgraft: mount error: no | do it better | write did or quit"
    )


def test_the_janitor_waits_for_the_end_of_the_node() -> None:
    """The pipe closes with a killed lab, and the rest of its node may still make a cgroup."""
    node = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    janitor = Janitor("nvgraft-lab-none")
    end = os.pidfd_open(janitor.process.pid)
    try:
        janitor.announce(node.pid, "0")
        os.close(janitor.writer)
        assert select.select([end], [], [], 0.5)[0] == []
        node.kill()
        assert select.select([end], [], [], 60)[0] == [end]
    finally:
        node.kill()
        node.wait()
        janitor.process.wait()
        os.close(end)


def test_quit_ends_a_script(follow: Callable[..., tuple[int, list[str]]]) -> None:
    """Nothing behind `quit` is obeyed."""
    assert follow("quit", "dance") == (0, ["lab> quit"])


def test_what_comes_next_has_the_reasons_of_the_plan() -> None:
    """A stop lists what the plan says of the phase, each with its reason, and shortens the list."""
    container: Any = Standing()
    sources = stop(NAMES.index("sources"), None)
    whole = list(text.ahead(sources, container, None))
    assert "  /usr/bin/tool19, because: utility, tool19, PATH" in whole
    short = list(text.ahead(sources, container))
    assert len(short) < len(whole)
    assert short[-1] == "  ... and 14 more: `ahead` shows all"
    for number in range(END):
        assert next(text.ahead(stop(number, None), container)) == PHASES[number].meaning


def test_names_of_an_image_cannot_write_to_the_terminal() -> None:
    """Control characters in what a container has and says are escaped."""
    bad = "/etc/\x1b[2J"
    difference = differ(NOTHING, Look(((bad, "tmpfs"),), {bad: "file"}, frozenset(), True))
    changed = stop(1, 0, difference=difference, lines=[bad], calls=[f"openat2({bad})"])
    assert "\x1b" not in "".join(text.did(changed, None))


def test_a_difference_is_what_one_look_has_more() -> None:
    """Mounts, files and rules that came and went; a file below a new mount has not changed."""
    before = Look(
        (("/", "overlay"), ("/a", "tmpfs")),
        {"/a": "directory", "/x": "file, 0 bytes", "/y": "file, 1 bytes", "/z": "link"},
        frozenset({"c 1:3 rwm"}),
        False,
    )
    after = Look(
        (("/", "overlay"), ("/x", "bind")),
        {"/a": "directory", "/x": "file, 9 bytes", "/y": "file, 2 bytes", "/n": "file"},
        frozenset({"c 1:3 rwm", "c 195:0 rw"}),
        False,
    )
    found = differ(before, after)
    assert found.mounts == ([("/x", "bind")], [("/a", "tmpfs")])
    assert found.files == ([("/n", "file")], [("/z", "link")])
    assert found.changed == [("/y", "file, 1 bytes", "file, 2 bytes")]
    assert found.points == {"/x": ("file, 0 bytes", "file, 9 bytes"), "/a": ("directory",) * 2}
    assert found.rules == (["c 195:0 rw"], [])
    assert differ(after, after).empty and not found.empty


def test_the_page_of_a_run_escapes_everything() -> None:
    """A file name of the image does not become an element of the page."""
    walk: Any = Walk()
    difference = differ(NOTHING, Look((), {"/<img src=x>": "file"}, frozenset(), False))
    walk.stops.append(stop(1, 0, difference=difference))
    made = page.render(walk, "<b>host</b>")
    assert "<img" not in made and "<b>" not in made
    assert "<code>&lt;img src=x&gt;</code>" in made
    assert made.count("<section") == 2


def test_the_page_of_a_run_may_load_nothing() -> None:
    """Its policy forbids everything but its own style, and it names no other document."""
    walk: Any = Walk("state")
    made = page.render(walk, "host")
    assert "default-src 'none'" in made and "script-src" not in made
    assert re.findall(r"(?:src|href)=\"(?!#|data:,)", made) == []
    assert "Left before: state" in made


def test_a_tree_of_the_page_has_each_directory_once() -> None:
    """Directories of several files, changed directories, and the root itself."""
    mark = (("new", "new"),)
    marked = {"/a/b": mark, "/a/b/c": mark, "/a/d": mark, "/a-x": mark, "/": mark}
    lines = [(line.kind, line.name, line.marks) for line in page.tree(marked)]
    assert lines == [
        ("leaf", "/", mark),
        ("open", "a/", ()),
        ("open", "b/", mark),
        ("leaf", "c", mark),
        ("close", "", ()),
        ("leaf", "d", mark),
        ("close", "", ()),
        ("leaf", "a-x", mark),
    ]


def test_phases_begin_at_functions_of_the_engine() -> None:
    """Every function at which a phase begins exists, and one is of one phase."""
    begins = [name for phase in PHASES for name in phase.begins]
    assert len(set(begins)) == len(begins)
    PhaseObserver(lambda _: None)


def test_the_observer_stops_in_the_engines_stack_and_decodes_calls() -> None:
    """The engine's own functions stop before their phase, and their system calls are recorded."""
    program = """
import os, sys
from nvgraft.base.errors import Refusal
from nvgraft.request.config import Config
from nvgraft.request.decision import decide
from nvgraft.system import syscalls
from nvgraft_cli.lab.observer import PhaseObserver
stops = []
observer = PhaseObserver(stops.append)
observer.watch()
decide(b"{}", None, "/")
try:
    syscalls.openat2(-100, "/nowhere", os.O_RDONLY, syscalls.RESOLVE_NO_SYMLINKS)
except OSError:
    os.close(syscalls.openat2(-100, "/", os.O_PATH, 0))
sys.setprofile(None)
print(stops, observer.calls, observer.results["decision"].verdict)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stderr == ""
    stops, _, rest = done.stdout.partition("] ")
    assert stops == "[1"
    assert "openat2(-100, '/nowhere', 0, NO_SYMLINKS) = -1 No such file or directory" in rest
    assert "openat2(-100, '/', O_PATH, 0) = " in rest
    assert rest.endswith("refuse\n")


def test_the_hook_has_no_line_for_the_lab_and_keeps_its_deadline() -> None:
    """The engine names neither the lab nor the profiler, and its hook sets the deadline."""
    engine = Path(__file__).parent.parent / "hook/nvgraft"
    sources = {path: path.read_text() for path in engine.rglob("*.py")}
    assert [path for path, source in sources.items() if "setprofile" in source] == []
    program = """
import posix, sys
from nvgraft import hook
from nvgraft.system import launch
launch.check_interpreter = launch.check_identity = lambda: None
launch.check_environment = lambda environ: None
hook.begin()
import signal
posix.write(1, repr(signal.getitimer(signal.ITIMER_REAL)[0]).encode())
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert DEADLINE - 30 < float(done.stdout) <= DEADLINE, done.stderr


def test_each_line_of_the_listings_difference_is_explained() -> None:
    """Lines with one meaning share it; the other lines of an output stay as they are."""
    lines = [
        "9a10,11",
        "> c 60 ./dev/nvidia3",
        "> c 60 ./dev/nvidiactl",
        "< d 63 ./proc/driver/nvidia/gpus/0000:00:07.0",
        "< f 63 ./proc/driver/nvidia/gpus/0000:00:07.0/power",
    ]
    assert list(explained(lines)) == [
        "  | 9a10,11",
        "  | > c 60 ./dev/nvidia3",
        "      the GPU's device node, mounted from the host",
        "  | > c 60 ./dev/nvidiactl",
        "      the node through which NVML and CUDA ask for GPUs",
        "  | < d 63 ./proc/driver/nvidia/gpus/0000:00:07.0",
        "  | < f 63 ./proc/driver/nvidia/gpus/0000:00:07.0/power",
        "      the GPU that was not asked for",
    ]


def test_the_host_of_the_experiment_by_hand_is_a_document() -> None:
    """It has driver 560.35.03, two GPUs on bus 0, and what the driver's directory has of each."""
    host = parse_host(hand_node.host_text(), "by-hand")
    assert host.nvml.driver_version == "560.35.03"
    assert [gpu.pci.device for gpu in host.nvml.gpus] == [4, 5]
    for place in ("0000:00:04.0", "0000:00:05.0"):
        assert f"/proc/driver/nvidia/gpus/{place}/registry" in host.files


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be root, with runc, and fail if a child is started."""

    def refused(*_: object) -> int:
        raise AssertionError("a child was started")

    monkeypatch.setattr(os, "fork", refused)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(userns, "inside", lambda: False)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")


def complaint(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return the one line that `nvgraft lab` says before it ends with 2."""
    assert main(["lab", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    return captured.err


def test_only_root_can_run_the_lab(
    root: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another user gets the command line to write."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "only root can make containers" in complaint(capsys)


def test_root_of_a_user_namespace_cannot_run_the_lab(
    root: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It could not make device nodes, which the kernel would refuse later in other words."""
    monkeypatch.setattr(userns, "inside", lambda: True)
    assert "root of a user namespace cannot make device nodes" in complaint(capsys)
    assert "root of a user namespace cannot make device nodes" in complaint(capsys, "by-hand")


def test_the_lab_needs_runc(
    root: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without runc the package is named."""
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert "runc: there is no such program in PATH | run apt-get" in complaint(capsys)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, "config.json: cannot be read: no such file or directory"),
        ("{", "config.json: "),
        ("[]", "it has no root.path or process.args"),
        ('{"root": {"path": 3}, "process": {"args": ["x"]}}', "it has no root.path"),
        ('{"root": {"path": "gone"}, "process": {"args": ["x"]}}', "is not a directory"),
        ('{"root": {"path": "."}, "process": {"args": []}}', "it has no root.path"),
        ('{"root": {"path": "."}, "process": {"args": ["x"]}}', "has no mount namespace"),
    ],
)
def test_a_bundle_that_cannot_be_used_is_one_line(
    config: str | None,
    message: str,
    root: None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Cause and fix of a wrong bundle."""
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    assert message in complaint(capsys, "runfile-a10x2", str(tmp_path))


def test_inputs_are_looked_at_before_anything_is_made(
    root: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A host, a script or a page that cannot be used ends the lab before it begins."""
    assert "there is no simulated host and no file 'nohost'" in complaint(capsys, "nohost")
    gone = str(tmp_path / "gone" / "file")
    assert "--script" in complaint(capsys, "--script", gone)
    assert "--record" in complaint(capsys, "--record", gone)
    assert "is a directory" in complaint(capsys, "--record", str(tmp_path))
    assert "by-hand takes no BUNDLE" in complaint(capsys, "by-hand", str(tmp_path))


def test_the_page_of_a_failed_start_ends_with_the_failure() -> None:
    """What comes after a failed phase is not reached; that there was nothing to do is not said."""
    walk = Walk()
    walk.stops.append(stop(NAMES.index("pivot"), NAMES.index("plan"), failed=True))
    walk.failure = "nvgraft: detection error: 7: unknown device"
    written = page.render(walk, "runfile-a10x2")  # type: ignore[arg-type]
    assert "There was nothing to do" not in written
    assert "exit code 0" not in written
    assert "`" not in written.split("<body>")[1]
    left = written.split('<section id="left"')[1].split("</section>")[0]
    rows = re.findall("<li>(.*?)</li>", left)
    assert rows == [phase.task for phase in PHASES[NAMES.index("sources") :]]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (None, "(the program runs)"),
        (3, "(the program ended, exit code 3)"),
        (-11, "(the program was ended by signal 11 (SIGSEGV))"),
        (-40, "(the program was ended by signal 40)"),
    ],
)
def test_the_end_of_a_program_is_told_by_its_signal(code: int | None, words: str) -> None:
    """A signal is named; those for real time have a number only."""
    assert how_it_ended(code) == words


def test_a_tree_is_spoken_by_its_indentation(capsys: pytest.CaptureFixture[str]) -> None:
    """With --plain, the characters that draw a tree are blanks."""
    say_plainly("libcuda.so.1\n├─ libc.so.6\n│  └─ ld.so")
    assert capsys.readouterr().out == "libcuda.so.1\n   libc.so.6\n      ld.so\n"
