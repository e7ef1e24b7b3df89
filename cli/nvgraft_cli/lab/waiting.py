"""The container of the lab: a real one of runc, which waits in a prestart hook for a verdict."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from nvgraft.system import syscalls
from nvgraft_cli.lab.ground.bundles import last_line, member, private_root

#: The prestart hook that the lab registers: it hands the state over and waits. If the lab is gone,
#: it fails, and runc takes the container back.
_WAITER = """\
import socket, sys
lab = socket.socket(socket.AF_UNIX)
lab.connect(sys.argv[1])
lab.sendall(sys.stdin.buffer.read())
lab.shutdown(socket.SHUT_WR)
sys.exit(0 if lab.recv(1) == b"+" else "the lab has ended this start")
"""

#: Seconds to wait for the end of a program before it counts as running.
_PATIENCE = 3.0


class StartFailed(Exception):
    """The runtime could not start the container; the text is its own."""


class WaitingContainer:
    """A container between `runc create` and the start of its program.

    :ivar image: a bundle with the root file system as it is without the hook; ``bundle`` is the one
        of the container.
    :ivar pid: the process that becomes the container's; ``rootfs`` its root file system.
    """

    def __init__(self, name: str, work: str, config: dict[str, Any]) -> None:
        """Prepare the bundle.

        :param work: a private directory, which this object makes.
        :param config: config.json; its hooks are left out.
        """
        self.name = name
        self.image, self.bundle = f"{work}/image", f"{work}/bundle"
        self.rootfs = private_root(config["root"]["path"], work)
        self.environment: list[str] = config["process"]["env"]
        self.arguments = [str(word) for word in config["process"]["args"]]
        self.left_out = sum(
            len(hooks) for hooks in member(config, "hooks").values() if isinstance(hooks, list)
        )
        self.pid = 0
        self.pivoted = False
        self._runc = ["runc", "--root", f"{work}/runc"]
        self._socket = f"{work}/waiter"
        self._waiter: socket.socket | None = None
        self._create: subprocess.Popen[bytes] | None = None
        _write_config(self.image, config)
        (self._output, self._errors) = (os.memfd_create(name) for name in ("output", "errors"))
        config = {**config, "process": {**config["process"], "terminal": False}}
        config["linux"] = {
            key: value
            for key, value in member(config, "linux").items()
            if key != "cgroupsPath"  # the lab removes the cgroup by the container's name
        }
        waiter = [sys.executable, "-ISBc", _WAITER, self._socket]
        config["hooks"] = {"prestart": [{"path": sys.executable, "args": waiter}]}
        config["root"] = {**config["root"], "path": self.rootfs}
        _write_config(self.bundle, config)

    def as_it_is(self) -> str:
        """Return a bundle of the container as it is now, which asks for nothing."""
        bundle = f"{self.bundle}-now"
        config = json.loads(Path(self.bundle, "config.json").read_bytes())
        inside = "" if self.pivoted else self.rootfs
        config["root"]["path"] = f"/proc/{self.pid}/root{inside}"
        config["process"]["env"] = [
            entry for entry in self.environment if not entry.startswith(("NVIDIA_", "CUDA_"))
        ]
        _write_config(bundle, config)
        return bundle

    def create(self) -> bytes:
        """Let runc make the container, and return the OCI state once it waits.

        :raises StartFailed: runc has refused.
        """
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self._socket)
            listener.listen(1)
            self._create = subprocess.Popen(
                [*self._runc, "create", "--bundle", self.bundle, self.name],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._errors,
                start_new_session=True,  # a terminal's signals are for the lab
            )
            ended = syscalls.pidfd_open(self._create.pid)
            try:
                ready, _, _ = select.select([listener.fileno(), ended], [], [])
            finally:
                os.close(ended)
            if ended in ready:
                self._create.wait()
                raise StartFailed(self._complaint())
            self._waiter, _ = listener.accept()
        state = b"".join(iter(self._hear, b""))
        self.pid = json.loads(state)["pid"]
        return state

    def _hear(self) -> bytes:
        assert self._waiter is not None
        return self._waiter.recv(1 << 16)

    def waits(self) -> bool:
        """Tell whether runc still waits for a verdict."""
        return self._create is not None and self._create.poll() is None

    def lives(self) -> bool:
        """Tell whether the container's process lives. One that nobody has waited for does not."""
        return os.path.exists(f"/proc/{self.pid}/ns/mnt")

    def pivot(self) -> None:
        """Let runc go on until the container has its own root.

        :raises StartFailed: runc has refused, or was killed.
        """
        self._give(b"+")
        if self._create is None or self._create.wait() != 0:
            raise StartFailed(self._complaint())
        self.pivoted = True

    def start(self) -> None:
        """Start the program.

        :raises StartFailed: it cannot be executed.
        """
        done = subprocess.run(
            [*self._runc, "start", self.name], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise StartFailed(last_line(done.stderr))

    def end_of_program(self) -> int | None:
        """Wait a moment for the end of the program, and return its exit code; None if it runs.

        This process must be the reaper of its descendants.
        """
        try:
            ended = syscalls.pidfd_open(self.pid)
        except OSError:
            ended = -1
        if ended >= 0:
            try:
                if not select.select([ended], [], [], _PATIENCE)[0]:
                    return None
            finally:
                os.close(ended)
        try:
            _, status = os.waitpid(self.pid, 0)
        except ChildProcessError:
            return 0
        return os.waitstatus_to_exitcode(status)

    def output(self) -> list[str]:
        """Return what the program has written."""
        data = os.pread(self._output, 1 << 20, 0) + os.pread(self._errors, 1 << 20, 0)
        return data.decode("utf-8", "replace").splitlines()

    def remove(self) -> None:
        """Fail the start if runc waits, and take back what runc has made."""
        if self._create is None:
            return
        self._give(b"-")
        self._create.wait()
        subprocess.run(
            [*self._runc, "delete", "--force", self.name], capture_output=True, check=False
        )

    def _give(self, verdict: bytes) -> None:
        if self._waiter is not None:
            with suppress(BrokenPipeError):  # the waiter was killed: runc fails by itself
                self._waiter.sendall(verdict)
            self._waiter.close()
            self._waiter = None

    def _complaint(self) -> str:
        text = os.pread(self._errors, 1 << 16, 0).decode("utf-8", "replace")
        code = self._create.returncode if self._create is not None else 0
        if code is not None and code < 0:
            return f"runc was ended by {signal_name(-code)}"
        return last_line(text) or f"runc ended with exit code {code}"


def signal_name(number: int) -> str:
    """Return the number and the name of a signal; those for real time have no name."""
    names = {one.value: f" ({one.name})" for one in signal.Signals}
    return f"signal {number}{names.get(number, '')}"


def _write_config(bundle: str, config: dict[str, Any]) -> None:
    os.makedirs(bundle, exist_ok=True)
    Path(bundle, "config.json").write_text(json.dumps(config), encoding="utf-8")
