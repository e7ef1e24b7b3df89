"""The life of the plugin: read the node, serve its resources, and begin anew when the kubelet, the
node or a person asks for it.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import structlog

from nvgraft.base.errors import printable
from nvgraft_device_plugin import cdi_files, configuration, mps, node, resources
from nvgraft_device_plugin.allocate import Allocator
from nvgraft_device_plugin.apart import apart
from nvgraft_device_plugin.configuration import Configuration
from nvgraft_device_plugin.devices import Node
from nvgraft_device_plugin.errors import ConfigurationError, NodeError
from nvgraft_device_plugin.health import SILENCE, Change, EventWatcher, watched_xids
from nvgraft_device_plugin.metrics import Endpoint, Liveness, Metrics
from nvgraft_device_plugin.server import ResourceServer
from nvgraft_device_plugin.source import Source, open_source

T = TypeVar("T")

#: Seconds for which the end waits for NVML.
_PARTING = 3.0

#: Seconds after which what did not start is tried again, and between two looks at the sockets.
_AGAIN = 30.0
_LOOK = 0.25

_ADVICE = (
    "If this is a GPU node, did you configure the NVIDIA Container Toolkit?",
    "Pods get the driver through a runtime: check runtimeClassName, or the default runtime.",
    "If this is not a GPU node, set a node selector so that this pod runs on GPU nodes alone,",
    "or give --fail-on-init-error=false to wait.",
)


class Manager:
    """One run of the plugin, from its command line to its exit code."""

    def __init__(self, words: Sequence[str], environ: Mapping[str, str]) -> None:
        self._words = words
        self._environ = environ
        self._log = structlog.get_logger("nvgraft-device-plugin")
        self._servers: list[ResourceServer] = []
        self._watcher: EventWatcher | None = None
        self._source: Source | None = None
        self._restart = asyncio.Event()
        self._stop = asyncio.Event()
        self._changes: set[asyncio.Task[None]] = set()
        self._metrics = Metrics()
        self._liveness = Liveness()
        #: Answers what this process says of itself, also where it is not listening.
        self.endpoint = Endpoint(self._metrics, self._liveness)
        self._address: tuple[str, int] | None = None
        self._registered = False
        #: Seconds after which the node is read again; None: when something has changed.
        self._wait: float | None = None
        self._failure = ""
        #: What waits for NVML, the watcher included.
        self._asked: set[asyncio.Future[Any]] = set()

    def stop(self) -> None:
        """End :meth:`run`."""
        self._stop.set()

    async def run(self) -> int:
        """Serve until a signal ends the process; return the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGHUP, self._restart.set)
        try:
            while not self._stop.is_set():
                self._restart.clear()
                wait = None
                try:
                    await self._unless_stopped(self._start())
                    wait = self._wait
                except NodeError as error:
                    await self._end_servers()
                    self._log.error(str(error), again_in_seconds=_AGAIN)
                    self._metrics.waiting = str(error)
                    if self._registered:
                        self._liveness.fail("kubelet", str(error))
                    wait = _AGAIN
                await self._serve(wait)
                await self._end_servers()
        except (ConfigurationError, _Fatal) as error:
            self._log.error(f"error starting plugins: {error}")
            return 1
        finally:
            await self._end_servers()
            self.endpoint.stop()
        self._log.info("stopped by a signal")
        return 0

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        """Do some work, but leave it when the process is to end."""
        task = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if task.done():
            task.result()
            return
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def _ask_nvml(self, function: Callable[[], T]) -> T:
        """Return what a function returns that asks NVML, and say so while it hangs."""
        answer = apart(function)
        self._asked.add(answer)
        silent = 0.0
        while not (await asyncio.wait({answer}, timeout=SILENCE))[0]:
            silent += SILENCE
            reason = f"no answer for {silent:.0f} s"
            self._liveness.fail("NVML", reason)
            self._log.error(f"NVML: {reason} | {node.HANG_FIX}")
        self._asked.discard(answer)
        self._liveness.mend("NVML")
        return answer.result()

    async def _start(self) -> None:
        """Read everything and begin to serve."""
        config = configuration.load(self._words, self._environ)
        self._config = config
        self._source = source = open_source(config)
        kubelet = config.text("kubelet-socket")
        self._kubelet_was = _identity(kubelet)
        try:
            configuration.check(config, has_nvml=source.loads)
            channels = configuration.check_channel(config, source.exists)
        except ConfigurationError as error:
            raise ConfigurationError(f"unable to validate flags: {error}") from error
        for warning in config.warnings:
            self._log.warning(warning)
        self._log.info("configuration", given=json.dumps(config.document()))
        if config.text("host"):
            self._log.info("serving a recorded host", host=config.text("host"))
        await self._tell(config)
        read = await self._ask_nvml(lambda: self._read_node(config, source))
        for fault in read.faults:
            self._log.warning(f"{fault}: it is left out")
        try:
            divided = resources.divide(read, config)
        except NodeError as error:
            raise _Fatal(f"error getting plugins: {error}") from error
        for warning in divided.warnings:
            self._log.warning(warning)
        for channel in config.channels:
            if channel not in channels:
                self._log.warning(f"Ignoring requested IMEX channel channel{channel}")
        classes = self._write_cdi(source, read, divided.resources, config, channels)
        directory = os.path.dirname(kubelet) or "/var/lib/kubelet/device-plugins"
        if not divided.resources:
            self._log.info("No devices found. Waiting indefinitely.")
        for resource in divided.resources:
            if config.mps and resource.shares:
                await self._wait_for_mps(resource.name, config)
            allocator = Allocator(resource, config, channels, classes, source.exists)
            server = ResourceServer(allocator, directory, read.scores, self._log, self._metrics)
            self._servers.append(server)
            await server.start()
            self._log.info(f"Starting to serve '{resource.name}' on {server.path}")
            if kubelet:
                await server.register(kubelet)
                self._log.info(
                    f"Registered device plugin for '{resource.name}' with Kubelet",
                    devices=len(resource.devices),
                )
                self._registered = True
        self._liveness.mend("kubelet")
        self._metrics.waiting = ""
        if source.watched:
            self._watch_health(read, config)

    async def _tell(self, config: Configuration) -> None:
        """Serve metrics and liveness at the configured address."""
        address = config.metrics_address
        if address == self._address:
            return
        self.endpoint.stop()
        self._address = address
        if address is None:
            return
        try:
            bound = await self.endpoint.start(*address)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            self._log.warning(
                f"no metrics and no liveness at {config.text('metrics-address')}: {reason}"
                " | choose another --metrics-address, or off"
            )
            return
        self._log.info(f"Serving /metrics and /healthz on {bound}")

    async def _wait_for_mps(self, name: str, config: Configuration) -> None:
        root = config.text("mps-root")
        share = await apart(lambda: mps.ask(name, root, self._environ))
        self._log.info("MPS daemon is healthy", resource=name, active_thread_percentage=share)

    def _read_node(self, config: Configuration, source: Source) -> Node:
        self._wait = None
        kind = source.platform(config.text("device-discovery-strategy"))
        self._log.info(f"Detected platform: {kind}")
        if kind != "nvml":
            return Node(kind)
        try:
            source.start()
            return source.read()
        except node.NvmlError as error:
            fail = config.switch("fail-on-init-error")
            if not fail and (error.missing or not config.uses_cdi):
                # A node without a driver is no reason to try again: what is installed is noticed.
                self._wait = None if error.missing else _AGAIN
                again = {"again_in_seconds": self._wait} if self._wait else {}
                fix = node.remedy(str(error))
                self._log.warning(f"Failed to initialize NVML: {error} | {fix}", **again)
                return Node("nvml")
            self._log.error(f"Failed to initialize NVML: {error}")
            for line in _ADVICE:
                self._log.error(line)
            raise _Fatal(f"error getting plugins: {error} | {node.remedy(str(error))}") from error

    def _write_cdi(
        self,
        source: Source,
        read: Node,
        divided: Sequence[resources.Resource],
        config: Configuration,
        channels: Sequence[str],
    ) -> set[str]:
        if not config.uses_cdi or read.platform != "nvml":
            return set()
        classes = set()
        try:
            specifications = cdi_files.specifications(
                divided,
                config,
                lambda: source.gpu_specification(read, config),
                source.names,
                channels,
            )
            for name, spec in specifications:
                path = cdi_files.write(name, spec)
                self._log.info("wrote CDI specification", path=path)
                classes.add(name)
        except NodeError as error:
            raise _Fatal(f"error getting plugins: {error}") from error
        missing = cdi_files.missing_hook_program(config) if source.watched else ""
        if "gpu" in classes and missing:
            self._log.warning(missing)
        return classes

    def _watch_health(self, read: Node, config: Configuration) -> None:
        xids, problems = watched_xids(self._environ)
        for problem in problems:
            self._log.warning(problem)
        if read.platform != "nvml" or not read.gpus:
            return
        if not xids.watching:
            self._log.info("health checks are disabled")
            return
        if xids.all_but:
            self._log.info(f"Ignoring the following XIDs for health checks: {sorted(xids.ignored)}")
        else:
            self._log.info(f"Only these Xids count for health checks: {sorted(xids.enabled)}")
        loop = asyncio.get_running_loop()

        def changed(change: Change) -> None:
            loop.call_soon_threadsafe(self._spread, change)

        def reported(gpu: str, xid: int) -> None:
            self._metrics.xids.labels(gpu, xid).inc()
            counts = "counts" if xids.counts(xid) else "is ignored"
            self._log.warning("NVML reports an Xid", gpu=gpu, xid=xid, health=counts)

        self._watcher = EventWatcher(
            (gpu.uuid for gpu in read.gpus),
            xids,
            changed,
            self._log.warning,
            reported,
            float(config.values["probe-after"]),
        )
        self._asked.add(apart(self._watcher.run))

    def _spread(self, change: Change) -> None:
        for server in self._servers:
            task = asyncio.create_task(server.change(change))
            self._changes.add(task)
            task.add_done_callback(self._changes.discard)

    async def _serve(self, wait: float | None) -> None:
        """Wait until something asks for a new beginning, or for the end.

        :param wait: at most so many seconds; None without a limit.
        """
        kubelet = self._config.text("kubelet-socket")
        signs = self._signs()
        loop = asyncio.get_running_loop()
        end = None if wait is None else loop.time() + wait
        while not (self._stop.is_set() or self._restart.is_set()):
            if end is not None and loop.time() > end:
                return
            now = _identity(kubelet)
            self._look_at_nvml()
            if now is None and self._kubelet_was is not None:
                self._kubelet_was = None
                self._log.warning(f"{kubelet} was removed, waiting for the kubelet")
                if self._registered:
                    self._liveness.fail("kubelet", f"{kubelet} was removed")
            if kubelet and now is not None and now != self._kubelet_was:
                self._log.info(f"inotify: {kubelet} created, restarting.")
                return
            if end is None and any(not os.path.exists(server.path) for server in self._servers):
                self._log.warning("a socket of ours was removed, restarting")
                return
            if self._signs() != signs:
                self._log.info("the node's GPUs or MIG devices have changed, restarting")
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), _LOOK)

    def _signs(self) -> tuple[str, ...]:
        return () if self._source is None else self._source.signs()

    def _look_at_nvml(self) -> None:
        failure = self._watcher.failure if self._watcher is not None else ""
        if failure and failure != self._failure:
            self._log.error(
                f"NVML: {failure} | run nvidia-smi on the node and look for Xids in dmesg; start"
                " this container again when NVML works (a liveness probe of /healthz does)"
            )
        if failure:
            self._liveness.fail("NVML", failure)
        elif self._failure:
            self._liveness.mend("NVML")
            self._log.info("NVML answers again")
        self._failure = failure

    async def _end_servers(self) -> None:
        for server in self._servers:
            self._log.info(f"Stopping to serve '{server.resource.name}' on {server.path}")
        await asyncio.gather(*(server.stop() for server in self._servers))
        self._servers.clear()
        self._metrics.forget_devices()
        if self._watcher is not None:
            self._watcher.stop()
            self._watcher = None
        hanging = self._asked
        if hanging:
            hanging = (await asyncio.wait(hanging, timeout=_PARTING))[1]
        if self._source is not None and not hanging:
            hanging = (await asyncio.wait({apart(self._source.stop)}, timeout=_PARTING))[1]
        if hanging:
            self._log.warning("NVML does not answer: it is not shut down")
        self._asked = set()
        self._source = None
        self._failure = ""


class _Fatal(Exception):
    """The plugin ends: what is wrong does not pass by itself."""


def _identity(path: str) -> tuple[int, int] | None:
    """Return what tells a socket from another one of its name; None if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns


class _OneLine(logging.Handler):
    """Logs what libraries say (gRPC, asyncio) as one line: the error, without its traceback."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        facts = {"error": repr(error)} if error is not None else {}
        log = structlog.get_logger("nvgraft-device-plugin")
        log.warning(record.getMessage().partition("\n")[0], source=record.name, **facts)


def configure_log(*, json_lines: bool) -> None:
    """Log to stderr, as text or as one JSON object for each line."""
    logging.basicConfig(handlers=[_OneLine()], level=logging.WARNING, force=True)
    text = structlog.dev.ConsoleRenderer(colors=False)

    def one_line(logger: Any, name: str, event: Any) -> str:
        return printable(text(logger, name, event))

    renderer = structlog.processors.JSONRenderer() if json_lines else one_line
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
