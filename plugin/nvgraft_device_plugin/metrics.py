"""What the plugin tells of itself over HTTP: metrics for Prometheus, and whether it is alive."""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from nvgraft import __version__

_START = "nvgraft_device_plugin"
#: The metric that has the reason of each unhealthy device.
UNHEALTHY = f"{_START}_unhealthy_info"
#: The metric that says why nothing is registered.
WAITING = f"{_START}_waiting_info"

#: Seconds for one request, its bytes, and connections at the same time.
_PATIENCE = 5.0
_REQUEST_LIMIT = 8192
_CONNECTIONS = 16

#: Seconds; an Allocate should take less than 0.005.
_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1)


class Metrics:
    """Counters and gauges of one process."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        info = Gauge(f"{_START}_info", "The version, as a label.", ["version"], registry=registry)
        info.labels(__version__).set(1)
        self._states: dict[str, tuple[int, Mapping[str, str]]] = {}
        #: Why nothing is registered until the next try; empty while all is well.
        self.waiting = ""
        registry.register(self)
        self.allocations = Counter(
            f"{_START}_allocations",
            "Containers that were given devices.",
            ["resource"],
            registry=registry,
        )
        self.refusals = Counter(
            f"{_START}_allocation_errors",
            "Allocate requests that were refused.",
            ["resource"],
            registry=registry,
        )
        self.seconds = Histogram(
            f"{_START}_allocate_seconds",
            "Time of Allocate requests.",
            ["resource"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self.registrations = Counter(
            f"{_START}_registrations",
            "Registrations with the kubelet.",
            ["resource", "result"],
            registry=registry,
        )
        self.xids = Counter(
            f"{_START}_xids",
            "Xids that NVML has reported, ignored ones included.",
            ["gpu", "xid"],
            registry=registry,
        )

    def show_devices(self, resource: str, healthy: int, ill: Mapping[str, str]) -> None:
        """Remember the state of a resource's devices.

        :param ill: id of an unhealthy device -> the reason.
        """
        self._states[resource] = healthy, dict(ill)

    def forget_devices(self) -> None:
        """Forget the devices of all resources."""
        self._states.clear()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield what is known of devices and their registration, for prometheus_client."""
        listed = GaugeMetricFamily(
            f"{_START}_devices",
            "Devices that are listed to the kubelet.",
            labels=["resource", "health"],
        )
        unhealthy = GaugeMetricFamily(
            UNHEALTHY,
            "1 for each unhealthy device, with the reason as a label.",
            labels=["resource", "device", "reason"],
        )
        for resource, (healthy, ill) in self._states.items():
            listed.add_metric([resource, "healthy"], healthy)
            listed.add_metric([resource, "unhealthy"], len(ill))
            for device, reason in ill.items():
                unhealthy.add_metric([resource, device, reason], 1)
        waiting = GaugeMetricFamily(
            WAITING, "1 while nothing is registered, with the reason.", labels=["reason"]
        )
        if self.waiting:
            waiting.add_metric([self.waiting], 1)
        yield from (listed, unhealthy, waiting)


class Liveness:
    """What keeps the plugin from doing its work and may be mended by a new process."""

    def __init__(self) -> None:
        self._problems: dict[str, str] = {}

    def fail(self, part: str, reason: str) -> None:
        """Remember that a part (kubelet, NVML) does not work."""
        self._problems[part] = reason

    def mend(self, part: str) -> None:
        """Forget what a part had."""
        self._problems.pop(part, None)

    def report(self) -> str:
        """Return a line for each part that does not work."""
        return "".join(f"{part}: {reason}\n" for part, reason in self._problems.items())


class Endpoint:
    """Answers GET /metrics and GET /healthz (200, or 503 with the reasons) in the event loop."""

    def __init__(self, metrics: Metrics, liveness: Liveness) -> None:
        self._metrics = metrics
        self._liveness = liveness
        self._server: asyncio.Server | None = None
        self._open = 0

    async def start(self, host: str, port: int) -> str:
        """Listen, and return the address as HOST:PORT.

        :raises OSError: the address cannot be used.
        """
        self._server = await asyncio.start_server(
            self.serve, host or None, port, limit=_REQUEST_LIMIT
        )
        bound = self._server.sockets[0].getsockname()
        return f"[{bound[0]}]:{bound[1]}" if ":" in bound[0] else f"{bound[0]}:{bound[1]}"

    def stop(self) -> None:
        """Close the socket."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the one request of a connection, and close it."""
        self._open += 1
        try:
            if self._open <= _CONNECTIONS:
                async with asyncio.timeout(_PATIENCE):
                    writer.write(self.answer(await reader.readuntil(b"\r\n\r\n")))
                    await writer.drain()
        except (TimeoutError, EOFError, asyncio.LimitOverrunError, OSError):
            return  # what is not a request, or a client that has gone
        finally:
            self._open -= 1
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def answer(self, request: bytes) -> bytes:
        """Return the answer to a request."""
        method, _, rest = request.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method not in {b"GET", b"HEAD"}:
            return _response("405 Method Not Allowed", b"GET and HEAD are answered\n", method)
        if path == b"/metrics":
            content = generate_latest(self._metrics.registry)
            return _response("200 OK", content, method, CONTENT_TYPE_LATEST)
        if path == b"/healthz":
            report = self._liveness.report().encode()
            status = "503 Service Unavailable" if report else "200 OK"
            return _response(status, report or b"ok\n", method)
        return _response("404 Not Found", b"/metrics and /healthz are here\n", method)


def _response(
    status: str, content: bytes, method: bytes, kind: str = "text/plain; charset=utf-8"
) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + (b"" if method == b"HEAD" else content)
