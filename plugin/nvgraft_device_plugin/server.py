"""The gRPC service of one resource, and its registration with the kubelet."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import grpc
import grpc.aio
from structlog.typing import FilteringBoundLogger

from nvgraft_device_plugin import api
from nvgraft_device_plugin.allocate import Allocator
from nvgraft_device_plugin.devices import Device
from nvgraft_device_plugin.errors import NodeError, RequestError
from nvgraft_device_plugin.health import Change
from nvgraft_device_plugin.metrics import Metrics
from nvgraft_device_plugin.preferred import choose

#: Seconds to wait for the kubelet, and for calls that are under way at the end.
_PATIENCE = 5.0
_GRACE = 0.5

#: Bytes of the path of a socket, of unix(7).
_PATH_LIMIT = 107

#: Channels otherwise share their failures: a new socket would be refused for as long as gRPC waits
#: after a failure with the old one.
_CHANNEL = (("grpc.use_local_subchannel_pool", 1),)


class ResourceServer:
    """Serves one resource on a socket of its own.

    :param scores: how near two GPUs are.
    :param log: gets what is done, as events with facts.
    """

    def __init__(
        self,
        allocator: Allocator,
        directory: str,
        scores: Mapping[tuple[str, str], int],
        log: FilteringBoundLogger,
        metrics: Metrics,
    ) -> None:
        self._allocator = allocator
        self.resource = allocator.resource
        self.path = os.path.join(directory, self.resource.endpoint)
        self._scores = scores
        self._log = log
        self._metrics = metrics
        self._known = {device.id: device for device in self.resource.devices}
        self._ill: dict[str, str] = {}
        self._changes = asyncio.Condition()
        self._version = 0
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Listen on the socket, in the place of an old one.

        :raises NodeError: it cannot be made.
        """
        server = grpc.aio.server()
        handlers = {name: self._handler(name) for name in api.METHODS}
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(api.SERVICE, handlers),)
        )
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)
            server.add_insecure_port(f"unix://{self.path}")
            await server.start()
        except (RuntimeError, OSError) as error:
            raise NodeError(f"could not serve {self.path}: {_cause(error, self.path)}") from error
        self._server = server
        self._show()

    async def stop(self) -> None:
        """End the service and remove its socket."""
        async with self._changes:
            self._version = -1
            self._changes.notify_all()
        if self._server is not None:
            await self._server.stop(_GRACE)
            self._server = None
        with contextlib.suppress(OSError):
            os.unlink(self.path)

    async def register(self, kubelet: str) -> None:
        """Tell the kubelet of this resource.

        :raises NodeError: it cannot be reached, or refuses.
        """
        request = api.message("RegisterRequest")(
            version=api.VERSION,
            endpoint=self.resource.endpoint,
            resource_name=self.resource.name,
            options=self._options(),
        )
        try:
            async with grpc.aio.insecure_channel(f"unix://{kubelet}", options=_CHANNEL) as channel:
                call = channel.unary_unary(
                    api.REGISTER,
                    request_serializer=lambda message: message.SerializeToString(),
                    response_deserializer=api.message("Empty").FromString,
                )
                await call(request, timeout=_PATIENCE)
        except grpc.RpcError as error:
            self._metrics.registrations.labels(self.resource.name, "error").inc()
            raise NodeError(
                f"could not register {self.resource.name} with the kubelet at {kubelet}:"
                f" {_refusal(error, kubelet)}"
            ) from error
        self._metrics.registrations.labels(self.resource.name, "ok").inc()

    async def change(self, change: Change) -> None:
        """Mark the devices that a change concerns, and tell the kubelet."""
        ids = [device.id for device in self.resource.devices if change.concerns(device)]
        known = {identifier: self._ill.get(identifier) for identifier in ids}
        for identifier in ids:
            if change.reason:
                self._ill.setdefault(identifier, change.reason)
            else:
                self._ill.pop(identifier, None)
        changed = [
            identifier for identifier in ids if self._ill.get(identifier) != known[identifier]
        ]
        if not changed:
            return
        for identifier in changed:
            if change.reason:
                self._log.warning(
                    "marking device as unhealthy", device=identifier, reason=change.reason
                )
            else:
                self._log.info("device is healthy again", device=identifier, was=known[identifier])
        self._show()
        async with self._changes:
            self._version += 1
            self._changes.notify_all()

    def _show(self) -> None:
        healthy = len(self.resource.devices) - len(self._ill)
        self._metrics.show_devices(self.resource.name, healthy, self._ill)

    def _options(self) -> Any:
        return api.message("DevicePluginOptions")(get_preferred_allocation_available=True)

    def _handler(self, name: str) -> grpc.RpcMethodHandler:
        request = api.message(api.METHODS[name][0])
        if name == "ListAndWatch":
            return grpc.unary_stream_rpc_method_handler(
                self._watch, request.FromString, lambda message: message.SerializeToString()
            )
        methods: dict[str, Callable[[Any], Any]] = {
            "GetDevicePluginOptions": lambda _: self._options(),
            "PreStartContainer": lambda _: api.message("PreStartContainerResponse")(),
            "Allocate": self._allocate,
            "GetPreferredAllocation": self._prefer,
        }
        return grpc.unary_unary_rpc_method_handler(
            _answering(methods[name]),
            request.FromString,
            lambda message: message.SerializeToString(),
        )

    async def _watch(self, _request: object, _context: object) -> AsyncIterator[Any]:
        """Send the list of devices now and after each change."""
        while True:
            version = self._version
            if version < 0:
                return
            yield self._list()
            async with self._changes:
                await self._changes.wait_for(lambda: self._version != version)  # noqa: B023

    def _list(self) -> Any:
        return api.message("ListAndWatchResponse")(
            devices=[self._described(device) for device in self.resource.devices]
        )

    def _described(self, device: Device) -> dict[str, Any]:
        described: dict[str, Any] = {
            "ID": device.id,
            "health": api.UNHEALTHY if device.id in self._ill else api.HEALTHY,
        }
        if device.numa_node is not None:
            described["topology"] = {"nodes": [{"ID": device.numa_node}]}
        return described

    def _allocate(self, request: Any) -> Any:
        name = self.resource.name
        wanted = [list(container.devices_ids) for container in request.container_requests]
        with self._metrics.seconds.labels(name).time():
            try:
                answers = [self._allocator.allocate(ids) for ids in wanted]
            except RequestError as error:
                self._metrics.refusals.labels(name).inc()
                self._log.warning("allocation refused", resource=name, reason=str(error))
                raise
            response = api.message("AllocateResponse")(container_responses=answers)
        for ids in wanted:
            self._metrics.allocations.labels(name).inc()
            given = [self._known[identifier] for identifier in ids]
            self._log.info(
                "allocated",
                resource=name,
                devices=ids,
                gpus=list(dict.fromkeys(device.gpu for device in given)),
                indices=list(dict.fromkeys(device.index for device in given)),
                strategies=sorted(self._allocator.configuration.strategies),
            )
            ill = {
                identifier: self._ill[identifier] for identifier in ids if identifier in self._ill
            }
            if ill:
                self._log.warning("unhealthy devices were given", reasons=ill)
        return response

    def _prefer(self, request: Any) -> Any:
        packed = self._allocator.configuration.text("shared-devices-allocation-policy") == "packed"
        try:
            chosen = [
                choose(
                    self.resource.devices,
                    list(container.available_deviceIDs),
                    list(container.must_include_deviceIDs),
                    container.allocation_size,
                    self._scores,
                    packed=packed,
                )
                for container in request.container_requests
            ]
        except RequestError as error:
            raise RequestError(
                f"error getting list of preferred allocation devices: {error}"
            ) from error
        return api.message("PreferredAllocationResponse")(
            container_responses=[{"deviceIDs": ids} for ids in chosen]
        )


def _answering(method: Callable[[Any], Any]) -> Callable[[Any, Any], Awaitable[Any]]:
    async def answer(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            return method(request)
        except RequestError as error:
            await context.abort(grpc.StatusCode.UNKNOWN, str(error))

    return answer


def _cause(error: Exception, path: str) -> str:
    """Return why a socket cannot be made, and what to do: gRPC itself says only that it failed."""
    directory = os.path.dirname(path)
    if len(os.fsencode(path)) > _PATH_LIMIT:
        return f"longer than {_PATH_LIMIT} bytes | mount the kubelet's directory at a shorter path"
    fix = "mount the kubelet's directory device-plugins writable for this user"
    if isinstance(error, OSError):
        return f"{error.strerror or error} | {fix}"
    if not os.path.isdir(directory):
        return f"there is no directory {directory} | {fix}"
    if not os.access(directory, os.W_OK | os.X_OK):
        return f"permission denied | {fix}"
    return f"{error} | {fix}"


def _refusal(error: grpc.RpcError, kubelet: str) -> str:
    """Return why the kubelet does not register a resource, and what to do."""
    if not isinstance(error, grpc.aio.AioRpcError):
        return f"{error} | see the kubelet's log"
    code, details = error.code(), (error.details() or "").strip()
    if code is grpc.StatusCode.UNIMPLEMENTED or "not supported by kubelet" in details:
        return (
            f"this kubelet does not speak {api.VERSION} ({details})"
            " | use Kubernetes 1.10 or newer on this node"
        )
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"no answer within {_PATIENCE:.0f} s | see the kubelet's log, or restart it"
    if code is grpc.StatusCode.UNAVAILABLE and not os.path.exists(kubelet):
        return (
            "the socket does not exist | start the kubelet, and mount its directory"
            " device-plugins (hostPath) at the same path"
        )
    if code is grpc.StatusCode.UNAVAILABLE:
        last = details.rpartition("connect: ")[2].rpartition("unix:")[2]
        return (
            f"{last or 'the connection was closed'} | start the kubelet (systemctl status kubelet),"
            " and run as a user who may write to its socket"
        )
    return f"{details} | see the kubelet's log"
