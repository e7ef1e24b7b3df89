"""The life of the plugin: read the node, serve its resources, and begin anew when the kubelet, the
node or a person asks for it.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from nvgraft_device_plugin import cdi_files, configuration, node, resources
from nvgraft_device_plugin.allocate import Allocator
from nvgraft_device_plugin.configuration import Configuration
from nvgraft_device_plugin.devices import Node
from nvgraft_device_plugin.errors import ConfigurationError, NodeError
from nvgraft_device_plugin.health import Change, EventWatcher, watched_xids
from nvgraft_device_plugin.server import ResourceServer
from nvgraft_device_plugin.source import Source, open_source

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
        self._health: asyncio.Task[None] | None = None
        self._source: Source | None = None
        self._restart = asyncio.Event()
        self._stop = asyncio.Event()
        self._changes: set[asyncio.Task[None]] = set()

    async def run(self) -> int:
        """Serve until a signal ends the process; return the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._restart.set)
        try:
            while not self._stop.is_set():
                self._restart.clear()
                try:
                    await self._start()
                    wait = None
                except NodeError as error:
                    await self._end_servers()
                    self._log.error(f"{error}: trying again", seconds=_AGAIN)
                    wait = _AGAIN
                await self._serve(wait)
                await self._end_servers()
        except ConfigurationError as error:
            self._log.error(f"error starting plugins: {error}")
            return 1
        except _Fatal as error:
            self._log.error(f"error starting plugins: {error}")
            return 1
        finally:
            await self._end_servers()
        self._log.info("stopped by a signal")
        return 0

    async def _start(self) -> None:
        """Read everything and begin to serve."""
        config = configuration.load(self._words, self._environ)
        self._config = config
        self._source = source = open_source(config)
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
        read = self._read_node(config, source)
        try:
            divided = resources.divide(read, config)
        except NodeError as error:
            raise _Fatal(f"error getting plugins: {error}") from error
        for warning in divided.warnings:
            self._log.warning(warning)
        for channel in config.channels:
            if channel not in channels:
                self._log.warning(f"Ignoring requested IMEX channel channel{channel}")
        classes = self._write_cdi(source, read, divided.resources, config)
        kubelet = config.text("kubelet-socket")
        directory = os.path.dirname(kubelet) or "/var/lib/kubelet/device-plugins"
        self._kubelet_was = _identity(kubelet)
        if not divided.resources:
            self._log.info("No devices found. Waiting indefinitely.")
        for resource in divided.resources:
            allocator = Allocator(resource, config, channels, classes, source.exists)
            server = ResourceServer(allocator, directory, read.scores, self._log.info)
            await server.start()
            self._servers.append(server)
            self._log.info(f"Starting to serve '{resource.name}' on {server.path}")
            if kubelet:
                await server.register(kubelet)
                self._log.info(
                    f"Registered device plugin for '{resource.name}' with Kubelet",
                    devices=len(resource.devices),
                )
        if source.watched:
            self._watch_health(read)

    def _read_node(self, config: Configuration, source: Source) -> Node:
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
                self._log.warning(f"Failed to initialize NVML: {error}")
                return Node("nvml")
            self._log.error(f"Failed to initialize NVML: {error}")
            for line in _ADVICE:
                self._log.error(line)
            raise _Fatal(f"error getting plugins: {error}") from error

    def _write_cdi(
        self,
        source: Source,
        read: Node,
        divided: Sequence[resources.Resource],
        config: Configuration,
    ) -> set[str]:
        if not config.uses_cdi or read.platform != "nvml":
            return set()
        classes = set()
        try:
            specifications = cdi_files.specifications(
                divided, config, lambda: source.gpu_specification(read, config), source.names
            )
            for name, spec in specifications:
                path = cdi_files.write(name, spec)
                self._log.info("wrote CDI specification", path=path)
                classes.add(name)
        except NodeError as error:
            raise _Fatal(f"error getting plugins: {error}") from error
        return classes

    def _watch_health(self, read: Node) -> None:
        xids, problems = watched_xids(self._environ)
        for problem in problems:
            self._log.warning(problem)
        if read.platform != "nvml" or not read.gpus:
            return
        if not xids.watching:
            self._log.info("health checks are disabled")
            return
        self._log.info(f"Ignoring the following XIDs for health checks: {sorted(xids.ignored)}")
        loop = asyncio.get_running_loop()

        def changed(change: Change) -> None:
            loop.call_soon_threadsafe(self._spread, change)

        self._watcher = EventWatcher(
            (gpu.uuid for gpu in read.gpus), xids, changed, self._log.warning
        )
        self._health = asyncio.create_task(asyncio.to_thread(self._watcher.run))

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

    async def _end_servers(self) -> None:
        for server in self._servers:
            self._log.info(f"Stopping to serve '{server.resource.name}' on {server.path}")
        await asyncio.gather(*(server.stop() for server in self._servers))
        self._servers.clear()
        if self._watcher is not None and self._health is not None:
            self._watcher.stop()
            await self._health
            self._watcher = self._health = None
        if self._source is not None:
            self._source.stop()
            self._source = None


class _Fatal(Exception):
    """The plugin ends: what is wrong does not pass by itself."""


def _identity(path: str) -> tuple[int, int] | None:
    """Return what tells a socket from another one of its name; None if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns


def configure_log(*, json_lines: bool) -> None:
    """Log to stderr, as text or as one JSON object for each line."""
    renderer: Any = (
        structlog.processors.JSONRenderer()
        if json_lines
        else structlog.dev.ConsoleRenderer(colors=False)
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
