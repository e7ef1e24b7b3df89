"""`nvgraft watch`: which kernel events it reacts to, and when it reads the host."""

import asyncio
import selectors
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyroute2.netlink.uevent import MarshalUevent
from structlog.testing import capture_logs

from machines import Machine
from nvgraft.host import kept_inventory
from nvgraft.request.config import Config
from nvgraft.system import keep
from nvgraft_cli.inventory import uevents, watcher
from nvgraft_cli.shell import logs
from nvgraft_cli.shell.errors import InputError

NULL = b"change@/devices/virtual/mem/null\0ACTION=change\0DEVPATH=/devices/virtual/mem/null\0SUBSYSTEM=mem\0SYNTH_UUID=0\0MAJOR=1\0MINOR=3\0DEVNAME=null\0DEVMODE=0666\0SEQNUM=39841\0"
MODULE = b"add@/module/nvidia_uvm\0ACTION=add\0DEVPATH=/module/nvidia_uvm\0SUBSYSTEM=module\0SEQNUM=5012\0"
OTHER_MODULE = (
    b"add@/module/notnvidia\0ACTION=add\0DEVPATH=/module/notnvidia\0SUBSYSTEM=module\0SEQNUM=5013\0"
)
DRIVER = b"add@/bus/pci/drivers/nvidia\0ACTION=add\0DEVPATH=/bus/pci/drivers/nvidia\0SUBSYSTEM=drivers\0SEQNUM=5014\0"
_PCI = b"%b@/devices/pci0000:00/0000:00:05.0\0ACTION=%b\0DEVPATH=/devices/pci0000:00/0000:00:05.0\0SUBSYSTEM=pci\0PCI_CLASS=30200\0PCI_ID=%b\0PCI_SLOT_NAME=0000:00:05.0\0SEQNUM=5015\0"
GPU = _PCI % (b"bind", b"bind", b"10DE:2236")
NETWORK_CARD = _PCI % (b"bind", b"bind", b"8086:10DE")
UVM = b"add@/devices/virtual/nvidia-uvm/nvidia-uvm\0ACTION=add\0DEVPATH=/devices/virtual/nvidia-uvm/nvidia-uvm\0SUBSYSTEM=nvidia-uvm\0SEQNUM=1\0"
#: udev's copy of an event: a binary header, then the same properties
UDEV = b"libudev\0" + bytes(32) + b"\0ACTION=add\0DEVPATH=/module/nvidia\0SUBSYSTEM=module\0"


def parsed(data: bytes) -> Mapping[str, object]:
    """Return an event as the socket's parser reads it."""
    (event,) = MarshalUevent().parse(data)
    properties: Mapping[str, object] = event
    return properties


@pytest.mark.parametrize(
    ("data", "counts"),
    [
        pytest.param(MODULE, True, id="module"),
        pytest.param(DRIVER, True, id="driver"),
        pytest.param(GPU, True, id="GPU"),
        pytest.param(UVM, True, id="class"),
        pytest.param(UDEV, True, id="udev"),
        pytest.param(NULL, False, id="null"),
        pytest.param(OTHER_MODULE, False, id="other module"),
        pytest.param(NETWORK_CARD, False, id="other vendor"),
        pytest.param(b"add@/x\0", False, id="empty"),
        pytest.param(b"add@/x\0SUBSYSTEM=pci\0DEVPATH=\xff\0", False, id="no UTF-8"),
    ],
)
def test_events_of_the_driver_are_recognised(data: bytes, counts: bool) -> None:
    """Events of NVIDIA's PCI functions, of the driver's modules and of their devices are
    recognised.
    """
    assert uevents.concerns_driver(parsed(data)) == counts


class InstantClock(selectors.EpollSelector):
    """A selector whose time jumps to the next timer when nothing is ready before."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(None if timeout is None else 0)
        if not ready and timeout:
            self.now += timeout
        return ready


class InstantLoop(asyncio.SelectorEventLoop):
    """An event loop that never waits for a timer."""

    def __init__(self) -> None:
        self.clock = InstantClock()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now


class Scene:
    """A watcher on a machine, with a script of events, and its log."""

    def __init__(self, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.machine = machine
        self.monkeypatch = monkeypatch
        self.queue: asyncio.Queue[bytes | Exception] = asyncio.Queue()
        self.logged: list[Mapping[str, object]] = []
        self.heard = 0
        self.deaf: Exception | None = None
        self.follow_up: Callable[[], None] = lambda: None
        self.lost: Callable[[], str] = lambda: ""
        monkeypatch.setattr(uevents, "listening", self.listening)
        monkeypatch.setattr(watcher, "hook_config", lambda _path: Config(**machine.settings))
        for name in ("QUIET", "PAUSE"):
            monkeypatch.setattr(watcher, name, 0.02)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[AsyncIterator[Mapping[str, object]]]:
        self.heard += 1
        if isinstance(self.deaf, Exception):
            raise self.deaf

        async def events() -> AsyncIterator[Mapping[str, object]]:
            while True:
                data = await self.queue.get()
                if isinstance(data, Exception):
                    raise data
                yield parsed(data)

        yield events()

    def reads(self) -> list[object]:
        """Return the reason of each reading of the host."""
        return [line["reason"] for line in self.logged if line["event"] == "read"]

    def warnings(self) -> list[str]:
        return [
            f"{line['event']}: {line['error']}"
            for line in self.logged
            if line["log_level"] == "warning"
        ]

    async def until(self, condition: str) -> None:
        """Wait for a reading with this reason, or for this warning."""
        for _ in range(500):
            if any(
                str(line.get("reason", line.get("error", ""))).startswith(condition)
                for line in self.logged
            ):
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"no {condition!r} in {self.logged}")

    def play(
        self, script: Callable[[], Awaitable[None]], check: float = 0.0, ask: float = 0.0
    ) -> None:
        """Run the watcher beside the coroutine function ``script``, and end it as systemd does."""

        async def both() -> None:
            watching = watcher.Watcher(None, check, ask, logs.get(), self.follow_up, self.lost)
            running = asyncio.create_task(watching.run())
            await self.until("start")
            try:
                await script()
            finally:
                signal.raise_signal(signal.SIGTERM)
                await asyncio.wait_for(running, 5)

        with capture_logs() as lines:
            self.logged = lines  # type: ignore[assignment]
            with asyncio.Runner(loop_factory=InstantLoop) as runner:
                clock = SimpleNamespace(monotonic=runner.get_loop().time)
                self.monkeypatch.setattr(watcher, "time", clock)
                runner.run(both())
        assert lines[-1]["event"] == "ended"


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    machine = Machine(tmp_path)
    with machine.running():
        machine.tick()
        logs.setup("watch")
        logs.get()  # configures structlog, which capture_logs() changes
        yield Scene(machine, monkeypatch)


def test_the_host_is_read_at_the_start(scene: Scene) -> None:
    """The host is read at the start, so that the first container finds a kept inventory."""

    async def script() -> None:
        assert scene.machine.origin() == "from the kept inventory"

    scene.play(script)
    assert scene.reads() == ["start"]


def test_events_of_the_driver_cause_one_reading(scene: Scene) -> None:
    """The many events of a driver that loads cause one reading; other events cause none."""

    async def script() -> None:
        for data in (NULL, MODULE, GPU, NULL, UVM):
            scene.queue.put_nowait(data)
        await scene.until("uevent")
        scene.queue.put_nowait(NULL)
        await asyncio.sleep(0.2)

    scene.play(script)
    assert scene.reads() == ["start", "uevent add /module/nvidia_uvm"]
    assert scene.machine.queries == 2


def test_endless_events_do_not_prevent_a_reading(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Endless events do not prevent a reading, which does not wait for silence longer than a
    limit.
    """
    monkeypatch.setattr(watcher, "QUIET", 0.2)
    monkeypatch.setattr(watcher, "LONGEST", 0.3)

    async def script() -> None:
        for _ in range(100):
            scene.queue.put_nowait(MODULE)
            await asyncio.sleep(0.01)
            if len(scene.reads()) > 1:
                return
        raise AssertionError("never read")

    scene.play(script)


def test_changes_without_events_are_found_by_checks(scene: Scene) -> None:
    """A change without an event, such as a MIG device, is found by a check, before the next
    container starts.
    """

    async def script() -> None:
        scene.machine.mig(2, 0)
        await scene.until("changed: MIG devices")
        assert scene.machine.origin() == "from the kept inventory"

    scene.play(script, check=0.02)
    assert len(scene.reads()) == 2


def test_a_dropped_inventory_is_read_again(scene: Scene) -> None:
    """A dropped inventory is read again after the next check."""

    async def script() -> None:
        keep.drop()
        await scene.until("no inventory is kept")

    scene.play(script, check=0.02)


def test_nvml_is_queried_at_intervals(scene: Scene) -> None:
    """NVML is queried at intervals, because some changes are not visible in files."""

    async def script() -> None:
        queries_before = scene.machine.queries
        scene.machine.uuids["gpu0"] = "GPU-unseen"
        for _ in range(200):
            await asyncio.sleep(0.01)
            if scene.machine.queries > queries_before:
                break
        await asyncio.sleep(0.05)
        state, _ = kept_inventory.state(Config(**scene.machine.settings))
        assert state is not None
        assert state.report.gpus[0].uuid == "GPU-unseen"

    scene.play(script, ask=0.05)


def test_checks_without_changes_do_not_query_nvml(scene: Scene) -> None:
    """Checks that find no change do not query NVML."""

    async def script() -> None:
        await asyncio.sleep(0.3)

    scene.play(script, check=0.02)
    assert scene.machine.queries == 1


def test_a_failing_driver_is_reported_once(scene: Scene) -> None:
    """When the driver fails, it is reported once and the inventory is dropped, so that the hook
    refuses; it is read again afterwards.
    """

    async def script() -> None:
        scene.machine.remove("proc/driver/nvidia/version")
        await scene.until("nvgraft: initialization error: nvml error: driver not loaded")
        await asyncio.sleep(0.15)
        assert kept_inventory.state(Config(**scene.machine.settings))[0] is None
        scene.machine.driver("535.1")
        await scene.until("no inventory is kept")
        assert scene.machine.origin() == "from the kept inventory"

    scene.play(script, check=0.02)
    assert len(scene.warnings()) == 1


def test_lost_events_cause_a_check(scene: Scene) -> None:
    """After lost events (ENOBUFS) the watcher listens again and checks the host."""

    async def script() -> None:
        scene.queue.put_nowait(OSError(105, "No buffer space available"))
        await scene.until("lost events")
        scene.queue.put_nowait(MODULE)
        await scene.until("uevent")

    scene.play(script)
    assert scene.heard == 2
    assert len(scene.warnings()) == 1


def test_without_a_socket_for_events_checks_go_on(scene: Scene) -> None:
    """Without a socket for events, as in a container, one warning is logged and checks still find
    changes.
    """
    scene.deaf = OSError(93, "Protocol not supported")

    async def script() -> None:
        scene.machine.mig(2, 0)
        await scene.until("changed: MIG devices")
        await asyncio.sleep(0.1)

    scene.play(script, check=0.02)
    assert scene.heard > 2
    assert scene.warnings() == [
        "events were lost, or cannot be received here: [Errno 93] Protocol not supported"
    ]


def test_sighup_causes_a_reading(scene: Scene) -> None:
    """SIGHUP causes a reading."""

    async def script() -> None:
        signal.raise_signal(signal.SIGHUP)
        await scene.until("SIGHUP")

    scene.play(script)
    assert scene.machine.queries == 2


def test_a_changed_config_toml_is_used_by_the_next_check(scene: Scene) -> None:
    """config.toml is read at every check, so that a change is used by the next one."""

    async def script() -> None:
        scene.machine.settings["cli_environment"] = ("A=b",)
        await scene.until("no inventory is kept")
        assert scene.machine.origin() == "from the kept inventory"

    scene.play(script, check=0.02)


def test_nothing_is_read_after_the_end(scene: Scene) -> None:
    """The signal that ends the watcher is no reason for a check, which would find this change."""

    async def script() -> None:
        scene.machine.settings["cli_environment"] = ("A=b",)

    scene.play(script, check=3600)
    assert scene.reads() == ["start"]


def test_what_follows_a_reading(scene: Scene) -> None:
    """The follow-up is called after the reading at the start and after each change. Its error is
    one line in the log, and each check tries again until it succeeds.
    """
    calls: list[int] = []

    def follow_up() -> None:
        calls.append(scene.machine.queries)
        if 1 < len(calls) < 5:
            raise InputError("/run/x: cannot be written | choose another file")

    scene.follow_up = follow_up

    async def script() -> None:
        assert calls == [1]
        scene.machine.mig(2, 0)
        await scene.until("/run/x: cannot be written")
        await asyncio.sleep(0.3)

    scene.play(script, check=0.02)
    assert len(calls) == 5
    assert [line for line in scene.warnings() if "/run/x" in line] == [
        "nothing is written: /run/x: cannot be written | choose another file"
    ]


def test_what_was_lost_is_made_again(scene: Scene) -> None:
    """What somebody has removed is made again after the next check."""
    made: list[str] = []
    scene.follow_up = lambda: made.append("x")
    scene.lost = lambda: "" if made else "x is gone"

    async def script() -> None:
        made.clear()
        await scene.until("x is gone")
        assert made

    scene.play(script, check=0.02)
    assert scene.reads() == ["start", "x is gone"]


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_told_after_the_first_reading(
    scene: Scene, tmp_path: Path, abstract: bool
) -> None:
    """A service of Type=notify is ready after the first reading and what follows it."""
    address = str(tmp_path / "notify")
    told: list[bytes] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.setblocking(False)
        systemd.bind("\0" + address if abstract else address)
        scene.monkeypatch.setenv("NOTIFY_SOCKET", "@" + address if abstract else address)

        def follow_up() -> None:
            with pytest.raises(BlockingIOError):
                systemd.recv(64)

        scene.follow_up = follow_up

        async def script() -> None:
            told.append(systemd.recv(64))

        scene.play(script)
    assert told == [b"READY=1"]


def test_nothing_follows_a_failed_reading(scene: Scene) -> None:
    """While the driver fails, nothing is written: what was written before stays."""
    calls: list[None] = []
    scene.follow_up = lambda: calls.append(None)

    async def script() -> None:
        scene.machine.remove("proc/driver/nvidia/version")
        await scene.until("nvgraft: initialization error: nvml error: driver not loaded")
        assert len(calls) == 1

    scene.play(script, check=0.02)
