"""The gRPC service of one resource, and its registration with the kubelet."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import grpc
import grpc.aio

from nvgraft_device_plugin import api
from nvgraft_device_plugin.allocate import Allocator
from nvgraft_device_plugin.devices import Device
from nvgraft_device_plugin.errors import NodeError, RequestError
from nvgraft_device_plugin.health import Change
from nvgraft_device_plugin.preferred import choose

#: Seconds to wait for the kubelet, and for calls that are under way at the end.
_PATIENCE = 5.0
_GRACE = 0.5


class ResourceServer:
    """Serves one resource on a socket of its own.

    :param scores: how near two GPUs are.
    :param log: called with an event and its facts.
    """

    def __init__(
        self,
        allocator: Allocator,
        directory: str,
        scores: Mapping[tuple[str, str], int],
        log: Callable[..., None],
    ) -> None:
        self._allocator = allocator
        self.resource = allocator.resource
        self.path = os.path.join(directory, self.resource.endpoint)
        self._scores = scores
        self._log = log
        self._ill: dict[str, str] = {}
        self._changes = asyncio.Condition()
        self._version = 0
        self._server: grpc.aio.Server | None = None

    @property
    def healthy(self) -> int:
        """The number of healthy devices."""
        return len(self.resource.devices) - len(self._ill)

    async def start(self) -> None:
        """Listen on the socket, in the place of an old one.

        :raises NodeError: it cannot be made.
        """
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        server = grpc.aio.server()
        handlers = {name: self._handler(name) for name in api.METHODS}
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(api.SERVICE, handlers),)
        )
        try:
            server.add_insecure_port(f"unix://{self.path}")
            await server.start()
        except (RuntimeError, OSError) as error:
            raise NodeError(
                f"could not serve {self.path}: {error} | mount the kubelet's directory writable"
            ) from error
        self._server = server

    async def stop(self) -> None:
        """End the service and remove its socket."""
        async with self._changes:
            self._version = -1
            self._changes.notify_all()
        if self._server is not None:
            await self._server.stop(_GRACE)
            self._server = None
        with contextlib.suppress(FileNotFoundError):
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
            async with grpc.aio.insecure_channel(f"unix://{kubelet}") as channel:
                call = channel.unary_unary(
                    api.REGISTER,
                    request_serializer=lambda message: message.SerializeToString(),
                    response_deserializer=api.message("Empty").FromString,
                )
                await call(request, timeout=_PATIENCE)
        except grpc.RpcError as error:
            details = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
            raise NodeError(
                f"could not register {self.resource.name} with the kubelet at {kubelet}: {details}"
            ) from error

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
                self._log("marking device as unhealthy", device=identifier, reason=change.reason)
            else:
                self._log("device is healthy again", device=identifier, was=known[identifier])
        async with self._changes:
            self._version += 1
            self._changes.notify_all()

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
        answers = [
            self._allocator.allocate(list(container.devices_ids))
            for container in request.container_requests
        ]
        for container in request.container_requests:
            self._log(
                "allocated",
                resource=self.resource.name,
                devices=list(container.devices_ids),
                strategies=sorted(self._allocator.configuration.strategies),
            )
        return api.message("AllocateResponse")(container_responses=answers)

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
