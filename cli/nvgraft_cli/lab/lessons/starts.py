"""Start a container of a lesson as its config.json is now, and see what its program says."""

import fcntl
import json
import os
import select
import signal
import subprocess
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from nvgraft.system import syscalls
from nvgraft_cli.lab.ground import node
from nvgraft_cli.lab.ground.bundles import bundle_config, last_line, private_root
from nvgraft_cli.lab.lessons import systemd
from nvgraft_cli.lab.lessons.reality import Seen
from nvgraft_cli.lab.lessons.scene import MADE, RUNTIME
from nvgraft_specs.models.lesson import DIRECTORY, LessonContainer

#: Seconds that a program may take.
_PATIENCE = 10.0
#: Bytes of a program's output that are looked at.
_OUTPUT = 1 << 16
_IDLE = ["sleep", "600"]


class NotStarted(Exception):
    """The container does not start; the text is the last line of the runtime."""


class Ran(NamedTuple):
    """What a program of a container has said, and its exit code; None: it was ended, since it went
    on for too long. ``seen`` is the container before the program began.
    """

    lines: list[str]
    code: int | None
    seen: Seen = Seen()


#: Looks at a created container: its number, config.json as the runtime has read it, and as the
#: lesson has made it.
Look = Callable[[int, dict[str, Any], dict[str, Any]], Seen]


def _no_look(_pid: int, _config: dict[str, Any], _made: dict[str, Any]) -> Seen:
    return Seen()


def run(
    name: str,
    container: LessonContainer,
    program: Sequence[str] = (),
    *,
    as_made: bool = False,
    look: Look = _no_look,
) -> Ran:
    """Start a container with its program, or another one, and wait for the end of the program.

    :param as_made: with the config.json that the lesson has made.
    :raises NotStarted: the runtime has refused.
    :raises InputError: config.json cannot be used.
    """
    with _LessonStart(name, container, program, as_made=as_made).created() as start:
        seen = look(start.pid, start.config(), start.made)
        return start.follow()._replace(seen=seen)


def run_twice(
    name: str, container: LessonContainer, program: Sequence[str], look: Look
) -> tuple[Ran, Ran]:
    """Run a program twice in one container, and do between what systemd does when it reloads.

    :raises NotStarted: the runtime has refused.
    :raises InputError: config.json cannot be used.
    """
    with _LessonStart(name, container, _IDLE).created() as start:
        seen = look(start.pid, start.config(), start.made)
        start.begin()
        before = start.execute(program)
        systemd.reload(start.pid, start.config())
        return before._replace(seen=seen), start.execute(program)._replace(seen=seen)


class _LessonStart:
    """One start of a container, on a root file system whose changes are thrown away.

    :ivar pid: the container's first process, once it is created.
    :ivar made: config.json as the lesson has made it.
    """

    def __init__(
        self,
        name: str,
        container: LessonContainer,
        program: Sequence[str],
        *,
        as_made: bool = False,
    ) -> None:
        self._id = f"{name}-{uuid.uuid4().hex[:8]}"
        self._work = f"{node.WORK}/starts/{self._id}"
        config = bundle_config(f"{MADE if as_made else DIRECTORY}/{name}")
        with open(f"{MADE}/{name}/config.json", "rb") as file:
            self.made: dict[str, Any] = json.load(file)
        if program:
            config["process"]["args"] = list(program)
        config["process"]["terminal"] = False
        if isinstance(config.get("linux"), dict):
            # Whatever the learner has written there, the lab removes the cgroup by this name.
            config["linux"]["cgroupsPath"] = f"{self.made['linux']['cgroupsPath']}-{self._id}"
        os.makedirs(self._work)
        self._image = config["root"]["path"]
        config["root"]["path"] = private_root(self._image, self._work)
        self._config = config
        self._runtime = [
            f"{node.PROGRAMS}/{RUNTIME}" if container.starts_with == "runtime" else "runc",
            *("--root", f"{node.WORK}/runc"),
        ]
        self._output = _bounded_file()
        self.pid = 0

    def config(self) -> dict[str, Any]:
        """Return config.json as the runtime has read it."""
        with open(f"{self._work}/config.json", "rb") as file:
            document: dict[str, Any] = json.load(file)
        return document

    @contextmanager
    def created(self) -> Iterator["_LessonStart"]:
        """Create the container, and take everything back at the end."""
        with open(f"{self._work}/config.json", "w", encoding="utf-8") as file:
            json.dump(self._config, file)
        try:
            errors = self._do("create", "--bundle", self._work, self._id, output=self._output)
            if errors is not None:
                raise NotStarted(errors)
            state = subprocess.run(
                [*self._runtime, "state", self._id], capture_output=True, check=True
            )
            self.pid = json.loads(state.stdout)["pid"]
            yield self
        finally:
            self._do("delete", "--force", self._id)
            root = self._config["root"]["path"]
            if root != self._image:
                syscalls.umount2(root, syscalls.MNT_DETACH)
            os.close(self._output)

    def begin(self) -> None:
        """Start the program.

        :raises NotStarted: the runtime has refused.
        """
        errors = self._do("start", self._id)
        if errors is not None:
            raise NotStarted(errors)

    def follow(self) -> Ran:
        """Start the program, and wait for its end. This process must be the reaper of orphans.

        :raises NotStarted: the runtime has refused.
        """
        ended = syscalls.pidfd_open(self.pid)
        try:
            self.begin()
            over = bool(select.select([ended], [], [], _PATIENCE)[0])
        finally:
            os.close(ended)
        if not over:
            os.kill(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        return Ran(_lines(self._output), (code if code >= 0 else 128 - code) if over else None)

    def execute(self, program: Sequence[str]) -> Ran:
        """Run another program in the container."""
        command = [*self._runtime, "exec", self._id, *program]
        # Two files: `runc exec` copies the two streams at the same time, and would write one over
        # the other.
        outputs = (_bounded_file(), _bounded_file())
        try:
            code: int | None = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=outputs[0],
                stderr=outputs[1],
                timeout=_PATIENCE,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            code = None
        try:
            return Ran([line for output in outputs for line in _lines(output)], code)
        finally:
            for output in outputs:
                os.close(output)

    def _do(self, *words: str, output: int = subprocess.DEVNULL) -> str | None:
        """Let the runtime do something; return its complaint, or None."""
        # The container's program has the streams of `create`, and outlives it: a pipe would not
        # end. What the runtime itself writes goes to a log.
        log = f"{self._work}/log"
        command = [*self._runtime, "--log", log, *words]
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            check=False,
        )
        if done.returncode == 0:
            return None
        text = ""
        if os.path.exists(log):
            with open(log, encoding="utf-8", errors="replace") as file:
                text = file.read(_OUTPUT)
            os.unlink(log)
        if not text and output >= 0:
            text = "\n".join(_lines(output))
        complaint = _words(last_line(text))
        return complaint or f"{os.path.basename(command[0])} ended with exit code {done.returncode}"


def _words(line: str) -> str:
    """Return the last line of a hook in the runtime's line about it, or the whole line."""
    said = [part for part in line.rpartition(", stderr: ")[2].split("\\n") if part.strip()]
    return said[-1] if said else line


def _bounded_file() -> int:
    """Return a file in memory that takes :data:`_OUTPUT` bytes, and fails to take more."""
    file = os.memfd_create("output", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.truncate(file, _OUTPUT)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
    return file


def _lines(output: int) -> list[str]:
    """Return the lines in a file of :func:`_bounded_file`."""
    data = os.pread(output, _OUTPUT, 0).rstrip(b"\0")
    return data.decode("utf-8", "replace").splitlines()
