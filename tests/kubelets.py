"""A kubelet for tests and for the bench: it accepts registrations, and calls device plugins."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from nvgraft_device_plugin import api

_PATIENCE = 20.0


class Kubelet:
    """Serves the kubelet's socket in a directory, in threads.

    :param service: the name of its registration service; an older kubelet has another one.
    :param refusal: the error with which registrations are refused.
    """

    def __init__(
        self, directory: str, *, service: str = "v1beta1.Registration", refusal: str = ""
    ) -> None:
        self.path = os.path.join(directory, "kubelet.sock")
        self.directory = directory
        self.refusal = refusal
        self.registered: list[Any] = []
        self._service = service
        self._changed = threading.Condition()
        self._server: grpc.Server | None = None

    def __enter__(self) -> "Kubelet":
        handler = grpc.unary_unary_rpc_method_handler(
            self._register,
            api.message("RegisterRequest").FromString,
            lambda message: message.SerializeToString(),
        )
        self._server = grpc.server(ThreadPoolExecutor(2))
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(self._service, {"Register": handler}),)
        )
        self._server.add_insecure_port(f"unix://{self.path}")
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.stop(0).wait()
        if os.path.exists(self.path):
            os.unlink(self.path)

    def _register(self, request: Any, context: grpc.ServicerContext) -> Any:
        if self.refusal:
            context.abort(grpc.StatusCode.UNKNOWN, self.refusal)
        with self._changed:
            self.registered.append(request)
            self._changed.notify_all()
        return api.message("Empty")()

    def wait_for(self, count: int) -> list[Any]:
        """Return the registrations when there are so many."""
        with self._changed:
            done = self._changed.wait_for(lambda: len(self.registered) >= count, _PATIENCE)
        assert done, f"{len(self.registered)} registrations, not {count}"
        return list(self.registered)

    def plugin(self, endpoint: str = "nvidia-gpu.sock") -> "Plugin":
        """Return the plugin that serves a socket."""
        return Plugin(os.path.join(self.directory, endpoint))


class Plugin:
    """Calls the methods of a device plugin."""

    def __init__(self, path: str) -> None:
        # A connection of its own: channels share failures, and wait after them.
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.insecure_channel(f"unix://{path}", options)

    def __enter__(self) -> "Plugin":
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def _method(self, name: str, kind: Callable[..., Any]) -> Any:
        return kind(
            f"/{api.SERVICE}/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=api.message(api.METHODS[name][1]).FromString,
        )

    def lists(self, patience: float = _PATIENCE) -> Iterator[dict[str, str]]:
        """Yield id -> health of each list of ListAndWatch, for so many seconds."""
        watch = self._method("ListAndWatch", self._channel.unary_stream)
        for response in watch(api.message("Empty")(), timeout=patience, wait_for_ready=True):
            yield {device.ID: device.health for device in response.devices}

    def allocate(self, *ids: str) -> Any:
        """Return the answer for one container."""
        request = api.message("AllocateRequest")(container_requests=[{"devices_ids": ids}])
        call = self._method("Allocate", self._channel.unary_unary)
        return call(request, timeout=_PATIENCE, wait_for_ready=True).container_responses[0]

    def preferred(self, available: list[str], size: int) -> list[str]:
        """Return the ids that the plugin prefers for one container."""
        wanted = {"available_deviceIDs": available, "allocation_size": size}
        request = api.message("PreferredAllocationRequest")(container_requests=[wanted])
        call = self._method("GetPreferredAllocation", self._channel.unary_unary)
        return list(call(request, timeout=_PATIENCE).container_responses[0].deviceIDs)
