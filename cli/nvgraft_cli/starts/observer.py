"""Make container starts out of process events: which runtime, which container, what the hook did.

A start is a runtime (runc, crun) that is executed with ``create`` or ``run``; the hook is executed
below it. What the hook did follows from its exit code, from the decision about config.json, which
the hook's own code makes, and from the record that the hook keeps of refusals and warnings.
"""

import os
import posixpath
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from nvgraft.base import files
from nvgraft.base.errors import Refusal, printable
from nvgraft.report.last_error import DIRECTORY, SIZE_LIMIT, directory_of, file_name
from nvgraft.request.decision import INJECT, Decision
from nvgraft.request.oci import read_config
from nvgraft.runtime import bundle_directory, subcommand
from nvgraft_cli.shell import logs
from nvgraft_cli.starts.events import ProcessEvent

SCHEMA = "nvgraft.start/1"

#: Programs that start containers, besides those of config.toml.
RUNTIMES = frozenset({"runc", "crun", "youki", "nvgraft-runtime", "nvidia-container-runtime"})
HOOKS = frozenset({"nvgraft-hook", "nvidia-container-runtime-hook"})
_STARTING = ("create", "run")
#: nvgraft's programs are scripts: they stand behind Python and one word of options.
_PLACES = 3
#: An id whose first 12 characters podman and docker show.
_LONG_ID = re.compile(r"[0-9a-f]{64}")
#: The exit code in the first line of a record.
_EXIT = re.compile(r" exit (\d+) container ")
#: The most generations between a runtime and a process that it starts.
_GENERATIONS = 6


@dataclass
class ContainerStart:
    """The start of one container.

    :ivar hook: configured, nothing-to-do, refused, killed, or not-seen.
    :ivar exit_code: of the hook; None if it was killed or not seen.
    :ivar message: what the hook gave, or why it gave nothing.
    :ivar milliseconds: how long the hook ran; None if it was not seen.
    """

    time: str
    container: str
    runtime: str
    command: str
    bundle: str
    hook: str = "not-seen"
    exit_code: int | None = None
    message: str = ""
    warnings: list[str] = field(default_factory=list)
    milliseconds: float | None = None

    def document(self) -> dict[str, object]:
        return {"schema": SCHEMA, **asdict(self)}

    def text(self) -> str:
        """Return one line, and one for each warning. Control characters are escaped."""
        took = "" if self.milliseconds is None else f" ({self.milliseconds:.0f} ms)"
        name = self.container[:12] if _LONG_ID.fullmatch(self.container) else self.container or "?"
        lines = [f"{self.time}  {name:<12}  {self.hook}: {self.message}{took}"]
        return "\n".join(map(printable, [*lines, *(f"    {line}" for line in self.warnings)]))


@dataclass
class _Pending:
    """A start that goes on. ``root`` is the runtime's root directory, or -1: it stays open, because
    the record is read when the runtime may have ended.
    """

    start: ContainerStart
    root: int
    uid: int = 0
    decision: Decision | None = None
    began: float = field(default_factory=time.time)
    hook_began: int = 0
    told: bool = False


class StartObserver:
    """The starts that are going on.

    :param tell: called with each start as soon as it is known what the hook did.
    :param decide: the hook's decision for a config.json and the directory of its bundle.
    :param proc: the directory of the processes.
    """

    def __init__(
        self,
        tell: Callable[[ContainerStart], None],
        decide: Callable[[bytes, str], Decision],
        runtimes: frozenset[str] = RUNTIMES,
        proc: str = "/proc",
    ) -> None:
        self._tell = tell
        self._decide = decide
        self._names = runtimes
        self._proc = proc
        self._runtimes: dict[int, _Pending] = {}
        self._hooks: dict[int, int] = {}

    def take(self, event: ProcessEvent) -> None:
        """Handle an event of the kernel."""
        if event.status is None:
            self._executes(event)
        elif event.pid in self._hooks:
            self._hook_ends(event)
        elif event.pid in self._runtimes:
            pending = self._runtimes[event.pid]
            if not pending.told:
                self._tell_without_hook(pending)
            self._forget(event.pid)

    def _executes(self, event: ProcessEvent) -> None:
        words = self._words(event.pid)
        names = [posixpath.basename(word) for word in words[:_PLACES]]
        if not "".join(names[:1]).startswith("python"):
            names = names[:1]
        place = next((i for i, name in enumerate(names) if name in self._names | HOOKS), None)
        rest = [] if place is None else words[place + 1 :]
        if place is not None and names[place] in self._names and subcommand(rest) in _STARTING:
            # nvgraft-runtime becomes the runtime: the second program counts.
            self._forget(event.pid)
            self._runtimes[event.pid] = self._pending(event.pid, names[place], rest)
        elif place is not None and names[place] in HOOKS and "prestart" in rest:
            self._hook_starts(event)
        elif self._runtimes and words[1:2] != ["init"]:
            self._other_program(event.pid)

    def _pending(self, pid: int, runtime: str, words: list[str]) -> _Pending:
        try:
            given = bundle_directory(words)
        except Refusal:
            given = ""
        bundle = posixpath.normpath(posixpath.join(self._link(pid, "cwd"), given))
        options = [i for i, word in enumerate(words) if not word.startswith("-")]
        start = ContainerStart(
            time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            words[options[-1]] if len(options) > 1 else "",
            runtime,
            subcommand(words),
            bundle,
        )
        pending = _Pending(start, -1)
        try:
            # The runtime may have another root than this process.
            pending.root = os.open(f"{self._proc}/{pid}/root", os.O_PATH | os.O_DIRECTORY)
            pending.uid = os.stat(f"{self._proc}/{pid}").st_uid
            pending.decision = self._decide(read_config(bundle.lstrip("/"), pending.root), bundle)
        except (OSError, Refusal) as error:
            logs.debug("a start that cannot be looked at", bundle=bundle, error=str(error))
        return pending

    def _forget(self, runtime: int) -> None:
        pending = self._runtimes.pop(runtime, None)
        if pending is not None and pending.root >= 0:
            os.close(pending.root)

    def _hook_starts(self, event: ProcessEvent) -> None:
        runtime = self._runtime_of(event.pid)
        if runtime:
            # With the static launcher, the hook's process executes two programs.
            if event.pid not in self._hooks:
                self._runtimes[runtime].hook_began = event.nanoseconds
            self._hooks[event.pid] = runtime

    def _hook_ends(self, event: ProcessEvent) -> None:
        runtime = self._hooks.pop(event.pid)
        pending = self._runtimes.get(runtime)
        if pending is None or event.status is None:
            return
        start = pending.start
        start.milliseconds = (event.nanoseconds - pending.hook_began) / 1e6
        code = os.waitstatus_to_exitcode(event.status)
        lines = self._record(pending)
        if code < 0:
            start.hook, start.message = "killed", f"by signal {-code} | run nvgraft recover"
        elif code:
            self._refused(start, code, lines)
        else:
            start.exit_code = 0
            start.hook, start.message = _success(pending.decision)
            start.warnings = [line for line in lines if "warning: " in line]
        pending.told = True
        self._tell(start)

    def _refused(self, start: ContainerStart, code: int, lines: list[str]) -> None:
        start.hook, start.exit_code = "refused", code
        start.message = lines[-1] if len(lines) > 1 else f"exit code {code}, without a record"

    def _other_program(self, pid: int) -> None:
        """Handle a program of a container, which only starts after all hooks."""
        runtime = self._runtime_of(pid)
        # Hooks of others are in the runtime's own pid namespace.
        if not runtime or self._namespace(pid) in ("", self._namespace(runtime)):
            return
        if not self._runtimes[runtime].told:
            self._tell_without_hook(self._runtimes[runtime])

    def _tell_without_hook(self, pending: _Pending) -> None:
        start, decision = pending.start, pending.decision
        start.message = "no hook ran, or it ended before it could be seen"
        if decision is not None and decision.request is not None:
            asked = ", ".join(decision.request.devices) or "driver files"
            start.message += f", although the container asks for {asked}"
        lines = self._record(pending)
        if lines and (code := _EXIT.search(lines[0])) and code[1] != "0":
            self._refused(start, int(code[1]), lines)
        pending.told = True
        self._tell(start)

    def _record(self, pending: _Pending) -> list[str]:
        """Return the lines of the hook's record of this start; none if it kept none."""
        name = file_name(pending.start.container)
        for directory, owner in ((DIRECTORY, 0), (directory_of(pending.uid), pending.uid)):
            try:
                fd = files.open_file(f"{directory}/{name}".lstrip("/"), pending.root)
            except OSError:
                continue
            try:
                status = os.fstat(fd)
                # A container may have the id of an earlier one.
                if status.st_uid == owner and status.st_mtime >= pending.began - 1:
                    return files.read_fd(fd, SIZE_LIMIT).decode("utf-8", "replace").splitlines()
            finally:
                os.close(fd)
        return []

    def _runtime_of(self, pid: int) -> int:
        """Return the pid of the runtime that started a process; 0 if none did."""
        for _ in range(_GENERATIONS):
            try:
                status = files.read_text(f"{self._proc}/{pid}/stat")
                pid = int(status.rpartition(")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                return 0
            if pid in self._runtimes:
                return pid
        return 0

    def _words(self, pid: int) -> list[str]:
        try:
            return files.read_text(f"{self._proc}/{pid}/cmdline").split("\0")[:-1]
        except OSError:
            return []  # it has ended

    def _link(self, pid: int, name: str) -> str:
        try:
            return os.readlink(f"{self._proc}/{pid}/{name}")
        except OSError:
            return "/"

    def _namespace(self, pid: int) -> str:
        try:
            return os.readlink(f"{self._proc}/{pid}/ns/pid")
        except OSError:
            return ""


def _success(decision: Decision | None) -> tuple[str, str]:
    if decision is None:
        return "configured", "or there was nothing to do: config.json could not be read"
    if decision.verdict != INJECT or decision.request is None:
        return "nothing-to-do", decision.reason
    request = decision.request
    devices = ",".join(request.devices) or "no devices"
    return "configured", f"{devices}; {','.join(request.capabilities) or 'no capability'}"
