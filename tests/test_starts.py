"""What ``nvgraft watch --starts`` makes of process events, on a /proc that the tests write."""

import json
import os
from pathlib import Path

import pytest

from bundles import make_bundle
from descriptors import nothing_stays_open
from documents import read_document
from nvgraft.report.last_error import DIRECTORY, directory_of, file_name
from nvgraft.request.config import Config
from nvgraft.request.decision import decide
from nvgraft_cli.starts.events import ProcessEvent
from nvgraft_cli.starts.observer import ContainerStart, StartObserver

RUNC, HOOK, INIT = 100, 110, 120
HOOK_WORDS = ("/usr/bin/python3", "-ISB", "/usr/local/bin/nvgraft-hook", "prestart")


class Node:
    """A node with processes, whose events are given to an observer."""

    def __init__(self, path: Path) -> None:
        self.root = path / "root"
        self.root.mkdir()
        self.proc = path / "proc"
        self.told: list[ContainerStart] = []
        self.now = 0
        self.observer = StartObserver(
            self.told.append,
            lambda data, bundle: decide(data, Config(runtime_mode="legacy"), bundle),
            proc=str(self.proc),
        )

    def process(
        self, pid: int | str, words: tuple[str, ...], parent: int = 1, namespace: int = 1
    ) -> None:
        place = self.proc / str(pid)
        (place / "ns").mkdir(parents=True, exist_ok=True)
        (place / "cmdline").write_text("".join(f"{word}\0" for word in words))
        (place / "stat").write_text(f"{pid} (a ) b) S {parent} 1 1")
        for name, target in (
            ("root", str(self.root)),
            ("cwd", "/bundles"),
            ("ns/pid", f"pid:[{namespace}]"),
        ):
            (place / name).unlink(missing_ok=True)
            (place / name).symlink_to(target)

    def executes(self, pid: int, *words: str, parent: int = 1, namespace: int = 1) -> None:
        self.process(pid, words, parent, namespace)
        self.event(pid, None)

    def event(self, pid: int, status: int | None) -> None:
        self.now += 5_000_000
        self.observer.take(ProcessEvent(pid, status, self.now))

    def ends(self, pid: int, code: int = 0) -> None:
        (self.proc / str(pid) / "cmdline").unlink()
        self.event(pid, code << 8)

    def bundle(self, *env: str) -> str:
        make_bundle(self.root / "b", *env)
        return "/b"

    def record(
        self, container: str, *lines: str, directory: str = DIRECTORY, code: int = 1
    ) -> Path:
        path = self.root / directory.lstrip("/") / file_name(container)
        path.parent.mkdir(parents=True, exist_ok=True)
        head = f"2026-11-22T06:00:00Z exit {code} container {container!r}"
        path.write_text("\n".join([head, *lines, ""]))
        return path

    def start(self, *words: str) -> None:
        self.executes(RUNC, "/usr/bin/runc", *words)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def create(node: Node, *env: str) -> None:
    """Begin the start of container c1, whose hook has begun."""
    bundle = node.bundle(*env)
    node.start("--root", "/run/x", "create", "--bundle", bundle, "--pid-file", "/p", "c1")
    node.executes(HOOK, *HOOK_WORDS, parent=RUNC)


def test_a_container_that_gets_the_driver(node: Node) -> None:
    """The end of the hook tells what it gave, and how long it ran."""
    create(node, "NVIDIA_VISIBLE_DEVICES=0,1", "NVIDIA_DRIVER_CAPABILITIES=utility")
    node.ends(HOOK)
    node.ends(RUNC)
    (start,) = node.told
    assert (start.container, start.runtime, start.command) == ("c1", "runc", "create")
    assert (start.bundle, start.hook, start.exit_code) == ("/b", "configured", 0)
    assert (start.message, start.milliseconds) == ("0,1; utility", 5.0)
    assert start.text().endswith("c1            configured: 0,1; utility (5 ms)")
    assert read_document(json.dumps(start.document()))["hook"] == "configured"


def test_a_container_that_asks_for_nothing(node: Node) -> None:
    """A hook that has nothing to do is shown with the reason."""
    create(node)
    node.ends(HOOK)
    (start,) = node.told
    assert start.hook == "nothing-to-do"
    assert "NVIDIA_VISIBLE_DEVICES" in start.message


def test_a_refused_container_is_shown_with_the_refusal(node: Node) -> None:
    """The record of the hook has the refusal; it is the last line."""
    create(node, "NVIDIA_VISIBLE_DEVICES=7")
    node.record("c1", "Using requested mode 'legacy'", "nvgraft: device error: 7: unknown device")
    node.ends(HOOK, 1)
    (start,) = node.told
    assert (start.hook, start.exit_code) == ("refused", 1)
    assert start.message == "nvgraft: device error: 7: unknown device"


@pytest.mark.parametrize("kind", ["none", "old"])
def test_a_refusal_without_a_record(node: Node, kind: str) -> None:
    """Without a record of this start, the exit code is shown: an old record is another's."""
    create(node, "NVIDIA_VISIBLE_DEVICES=7")
    if kind == "old":
        os.utime(node.record("c1", "nvgraft: of another container"), (1, 1))
    node.ends(HOOK, 3)
    assert (node.told[0].exit_code, node.told[0].message) == (3, "exit code 3, without a record")


def test_a_killed_hook(node: Node) -> None:
    """A hook that a signal has ended is shown with the signal, and with what cleans up."""
    create(node, "NVIDIA_VISIBLE_DEVICES=all")
    node.event(HOOK, 9)
    (start,) = node.told
    assert (start.hook, start.exit_code) == ("killed", None)
    assert start.message == "by signal 9 | run nvgraft recover"


def test_a_node_in_a_container_is_like_any_other(node: Node) -> None:
    """Hooks in the runtime's own pid namespace are not the container, whichever namespace it is."""
    bundle = node.bundle("NVIDIA_VISIBLE_DEVICES=all")
    node.executes(RUNC, "crun", "create", "-b", bundle, "f" * 64, namespace=7)
    node.executes(HOOK, "/bin/sh", "/run/hook", parent=RUNC, namespace=7)
    node.executes(HOOK, *HOOK_WORDS, parent=RUNC, namespace=7)
    node.ends(HOOK)
    (start,) = node.told
    assert start.hook == "configured"
    assert f"  {'f' * 12}  configured" in start.text()


def test_warnings_are_shown(node: Node) -> None:
    """Warnings of a hook that has succeeded are lines of their own, without control characters."""
    create(node, "NVIDIA_VISIBLE_DEVICES=all")
    node.record("c1", "Using requested mode", "nvgraft: warning: odd \x1b[2J", code=0)
    node.ends(HOOK)
    (start,) = node.told
    assert start.warnings == ["nvgraft: warning: odd \x1b[2J"]
    assert start.text().splitlines()[1] == "    nvgraft: warning: odd \\x1b[2J"


def test_a_hook_that_was_too_fast_is_known_by_its_record(node: Node) -> None:
    """A refusal is shown although the hook ended before it could be looked at."""
    node.start("create", "--bundle", node.bundle("NVIDIA_VISIBLE_DEVICES=7"), "c1")
    node.record("c1", "nvgraft: device error: 7: unknown device")
    node.ends(RUNC, 1)
    (start,) = node.told
    assert (start.hook, start.exit_code, start.milliseconds) == ("refused", 1, None)
    assert start.message == "nvgraft: device error: 7: unknown device"


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ((), "no hook ran, or it ended before it could be seen"),
        (
            ("NVIDIA_VISIBLE_DEVICES=all",),
            "no hook ran, or it ended before it could be seen, although the container asks for all",
        ),
    ],
)
def test_a_start_without_a_hook(node: Node, env: tuple[str, ...], message: str) -> None:
    """A start without the hook is shown when the runtime has created the container."""
    node.start("create", "--bundle", node.bundle(*env), "c1")
    node.executes(INIT, "runc", "init", parent=RUNC, namespace=2)
    assert node.told == []
    node.ends(RUNC)
    assert [(start.hook, start.message) for start in node.told] == [("not-seen", message)]


def test_run_without_a_hook_is_shown_when_the_container_runs(node: Node) -> None:
    """`runc run` lives as long as its container: the container's first program tells."""
    node.start("run", "--bundle", node.bundle(), "c1")
    node.executes(130, "/usr/bin/some-hook", "prestart", parent=RUNC)
    node.executes(131, "ls", namespace=3)
    assert node.told == []
    node.executes(INIT, "sleep", "9", parent=RUNC, namespace=2)
    node.executes(INIT + 1, "ls", parent=INIT, namespace=2)
    node.ends(RUNC)
    assert [start.command for start in node.told] == ["run"]


@pytest.mark.parametrize(
    "words",
    [
        ("/usr/bin/runc", "start", "c1"),
        ("/usr/bin/runc", "--root", "create", "delete", "run"),
        ("/usr/bin/runc",),
        ("cat", "runc", "create"),
        (),
    ],
)
def test_other_programs_are_no_starts(node: Node, words: tuple[str, ...]) -> None:
    """Other commands of runtimes and other programs are left out."""
    node.executes(RUNC, *words)
    node.executes(HOOK, *HOOK_WORDS, parent=RUNC)
    node.ends(HOOK)
    node.ends(RUNC)
    assert node.told == []


def test_nvgraft_runtime_becomes_the_runtime(node: Node) -> None:
    """The process of nvgraft-runtime executes runc: this is one start."""
    bundle = node.bundle("NVIDIA_VISIBLE_DEVICES=all")
    words = ("create", "--bundle", bundle, "c1")
    node.executes(RUNC, "/usr/bin/python3", "-ISB", "/usr/bin/nvgraft-runtime", *words)
    node.executes(RUNC, "/usr/bin/crun", *words)
    node.executes(HOOK, "/usr/bin/nvgraft-hook", "prestart", parent=RUNC)
    node.executes(HOOK, *HOOK_WORDS, parent=RUNC)
    node.ends(HOOK)
    node.ends(RUNC)
    assert [(start.runtime, start.milliseconds) for start in node.told] == [("crun", 10.0)]


@pytest.mark.requires("root")
def test_a_rootless_container_has_its_record_with_its_user(node: Node) -> None:
    """The record of a rootless container is below its user's directory, and belongs to the user."""
    uid = 4711
    (node.proc / str(RUNC)).mkdir(parents=True)
    os.chown(node.proc / str(RUNC), uid, -1)
    create(node, "NVIDIA_VISIBLE_DEVICES=7")
    path = node.record("c1", "nvgraft: mount error: x", directory=directory_of(uid))
    os.chown(path, uid, -1)
    node.ends(HOOK, 1)
    assert node.told.pop().message == "nvgraft: mount error: x"
    os.chown(path, uid + 1, -1)
    node.executes(HOOK, *HOOK_WORDS, parent=RUNC)
    node.ends(HOOK, 1)
    assert node.told.pop().message == "exit code 1, without a record"


def test_a_bundle_that_cannot_be_read(node: Node) -> None:
    """A start is shown although its config.json has gone or is damaged."""
    node.start("create", "--bundle", "/gone", "c1")
    node.executes(HOOK, *HOOK_WORDS, parent=RUNC)
    node.ends(HOOK)
    assert (node.told[0].hook, node.told[0].bundle) == ("configured", "/gone")


def test_the_working_directory_is_the_bundle(node: Node) -> None:
    """Without --bundle, and for a relative one, the runtime's working directory counts."""
    node.start("create", "c1")
    node.ends(RUNC)
    node.start("create", "-b", "x", "c2")
    node.ends(RUNC)
    assert [start.bundle for start in node.told] == ["/bundles", "/bundles/x"]


def test_nothing_is_kept_of_what_has_ended(node: Node) -> None:
    """A long-running watcher keeps neither entries nor descriptors."""
    with nothing_stays_open():
        for _ in range(2):
            create(node, "NVIDIA_VISIBLE_DEVICES=all")
            node.ends(HOOK)
            node.ends(RUNC)
            (node.root / "b").rename(node.root / f"b{node.now}")
    assert (node.observer._runtimes, node.observer._hooks) == ({}, {})
