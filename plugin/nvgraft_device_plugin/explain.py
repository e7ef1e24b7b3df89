"""``nvgraft-device-plugin explain``: the chain from the driver to the kubelet, with the first link
that is broken. It answers why a node advertises no GPU.
"""

import glob
import http.client
import os
import socket
import stat
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import grpc
from prometheus_client.parser import text_string_to_metric_families

from nvgraft.base.errors import printable
from nvgraft_device_plugin import api, configuration, mps, node, resources
from nvgraft_device_plugin.cdi_files import DIRECTORY as CDI_DIRECTORY
from nvgraft_device_plugin.cdi_files import missing_hook_program
from nvgraft_device_plugin.configuration import Configuration
from nvgraft_device_plugin.devices import Node
from nvgraft_device_plugin.errors import ConfigurationError, NodeError
from nvgraft_device_plugin.metrics import UNHEALTHY, WAITING
from nvgraft_device_plugin.resources import Resource
from nvgraft_device_plugin.source import Source, open_source

T = TypeVar("T")

_MODULE = "/proc/driver/nvidia/version"
_GPUS = "/proc/driver/nvidia/gpus"

#: Seconds for NVML, for a running plugin, and for the kubelet's socket.
_NVML_PATIENCE = 10.0
_PATIENCE = 2.0


class Link(NamedTuple):
    """One link of the chain: what was looked at, what was found, and if it is not as it should be
    what to do. ``broken``: the node advertises nothing because of it.
    """

    name: str
    found: str
    fix: str = ""
    broken: bool = True


def chain(words: Sequence[str], environ: Mapping[str, str]) -> Iterator[Link]:
    """Yield the links in order; the last one may be broken."""
    try:
        given = configuration.load(words, environ)
        source = open_source(given)
        configuration.check(given, has_nvml=source.loads or given.uses_cdi)
        configuration.check_channel(given, source.exists)
    except ConfigurationError as error:
        yield _from_error("configuration", error)
        return
    strategies = ", ".join(given.words("device-list-strategy"))
    yield Link(
        "configuration", f"devices by {strategies}, ids by {given.text('device-id-strategy')}"
    )
    for warning in given.warnings:
        yield Link("configuration", warning, "remove it from the config file", broken=False)
    root = given.text("driver-root-ctr-path")
    kind = source.platform(given.text("device-discovery-strategy"))
    if kind != "nvml":
        yield Link("platform", f"{kind}: NVML is not asked")
        yield from _served(given, Node(kind))
        return
    driver = [_driver()] if source.watched else []
    broken = [link for link in driver if link.fix]
    if not source.loads:
        yield from driver
        if not broken:
            yield Link(
                "NVML",
                f"{node.NVML_SONAME} cannot be loaded, neither below {root} nor by its name",
                node.remedy("LIBRARY_NOT_FOUND"),
            )
        return
    failure = None
    try:
        read = _within(_NVML_PATIENCE, lambda: _read(source))
    except TimeoutError:
        failure = Link("NVML", f"no answer for {_NVML_PATIENCE:.0f} s", node.HANG_FIX)
    except node.NvmlError as error:
        failure = Link("NVML", str(error), node.remedy(str(error)))
    if failure is not None:
        yield from broken or (*driver, failure)
        return
    # A container of a simulated node has another /proc, and a working NVML.
    yield from [link for link in driver if not link.fix]
    yield Link("NVML", f"driver {read.driver}, CUDA {read.cuda}")
    yield from _devices(read, _missing(read) if source.watched else "")
    if read.gpus:
        yield from _served(given, read)


def _read(source: Source) -> Node:
    source.start()
    try:
        return source.read()
    finally:
        source.stop()


def _within(seconds: float, function: Callable[[], T]) -> T:
    """Return what a function returns.

    :raises TimeoutError: it takes longer; the thread is left behind.
    """
    results: list[T] = []
    errors: list[node.NvmlError] = []

    def run() -> None:
        try:
            results.append(function())
        except node.NvmlError as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError
    return results[0]


def _from_error(name: str, error: Exception | str) -> Link:
    """Return the link of an error, whose text has the fix behind a bar."""
    found, _, fix = str(error).partition(" | ")
    return Link(name, found, fix or "correct the flag, variable or key that is named")


def _driver() -> Link:
    try:
        with open(_MODULE, encoding="utf-8", errors="replace") as file:
            return Link("driver", file.readline(200).strip().removeprefix("NVRM version: "))
    except OSError:
        return Link(
            "driver",
            f"the nvidia module is not loaded: there is no {_MODULE}",
            "install the driver and load it (modprobe nvidia; dmesg says why it does not load);"
            " if this is not a GPU node, keep the plugin away by a node selector",
        )


def _missing(read: Node) -> str:
    """Return the addresses of GPUs that the driver has and NVML does not list."""
    there = {os.path.basename(path).lower() for path in glob.glob(f"{_GPUS}/*")}
    known = {gpu.bus_id.lower().removeprefix("0000") for gpu in read.gpus}
    return "" if read.faults else ", ".join(sorted(there - known))


def _devices(read: Node, missing: str) -> Iterator[Link]:
    for fault in read.faults:
        yield Link("devices", fault, node.remedy(fault), broken=not read.gpus)
    if missing:
        yield Link(
            "devices",
            f"the driver has a GPU that NVML does not list: {missing}",
            "make its device node /dev/nvidiaN (nvidia-smi as root does), and start this container"
            " again",
            broken=not read.gpus,
        )
    elif not read.gpus and not read.faults:
        yield Link(
            "devices",
            "NVML lists no GPU",
            "check lspci on the node, and that the GPUs are not bound to vfio-pci",
        )
    if read.gpus:
        yield Link("devices", "; ".join(_described(read)))


def _described(read: Node) -> Iterator[str]:
    for gpu in read.gpus:
        mig = f", {len(gpu.mig_devices)} MIG devices" if gpu.mig_enabled else ""
        yield f"{gpu.index}: {gpu.model} {gpu.uuid}{mig}"


def _served(given: Configuration, read: Node) -> Iterator[Link]:
    """Yield the links from the resources on."""
    try:
        divided = resources.divide(read, given)
    except NodeError as error:
        found, _, fix = str(error).partition(" | ")
        mig = "make equal MIG devices on all GPUs (nvidia-smi mig -cgi PROFILE -C), or use"
        yield Link("resources", found, fix or f"{mig} --mig-strategy=mixed or none")
        return
    if not divided.resources:
        cause = "; ".join(divided.warnings) or "no device fits a resource"
        yield Link(
            "resources",
            cause,
            "make MIG devices (nvidia-smi mig -cgi PROFILE -C), or use --mig-strategy=none",
        )
        return
    for warning in divided.warnings:
        found, _, fix = warning.partition(" | ")
        fix = fix or "change --mig-strategy or the MIG devices"
        yield Link("resources", found, fix, broken=False)
    yield from _unselected(given, read, divided.resources)
    counts = [f"{resource.name} x {len(resource.devices)}" for resource in divided.resources]
    yield Link("resources", ", ".join(counts))
    for resource in divided.resources:
        if given.mps and resource.shares:
            mps_link = _mps(resource.name, given)
            yield mps_link
            if mps_link.fix:
                return
    if given.uses_cdi and not _writable(CDI_DIRECTORY):
        yield Link(
            "CDI",
            f"{CDI_DIRECTORY} cannot be written by this user",
            f"mount {CDI_DIRECTORY} of the node (hostPath) writable",
        )
        return
    missing = missing_hook_program(given) if given.uses_cdi and not given.text("host") else ""
    if missing:
        yield _from_error("CDI", missing)._replace(broken=False)
    kubelet = _kubelet(given.text("kubelet-socket"))
    yield kubelet
    if not kubelet.fix:
        directory = os.path.dirname(given.text("kubelet-socket"))
        for resource in divided.resources:
            yield _advertised(resource, directory, given)


def _unselected(given: Configuration, read: Node, divided: Sequence[Resource]) -> Iterator[Link]:
    """Yield what the configuration names and the node does not have."""
    shared = {resource.name for resource in divided if resource.shares}
    for wanted in (given.sharing.resources or []) if given.sharing else []:
        if not {wanted.name, f"{wanted.name}.shared"} & shared:
            names = ", ".join(resource.name for resource in divided)
            yield Link(
                "resources",
                f"sharing names {wanted.name}, which this node does not have",
                f"share one of {names}, or change --mig-strategy",
                broken=False,
            )
    if given.text("mig-strategy") == "none" and not given.uses_cdi:
        enabled = [str(gpu.index) for gpu in read.gpus if gpu.mig_enabled]
        if enabled:
            yield Link(
                "resources",
                f"GPU {', '.join(enabled)} is in MIG mode and given as a whole",
                "use --mig-strategy=single or mixed to give its MIG devices",
                broken=False,
            )


def _mps(name: str, given: Configuration) -> Link:
    try:
        share = mps.ask(name, given.text("mps-root"), os.environ)
    except NodeError as error:
        return _from_error("MPS", error)
    return Link("MPS", f"the control daemon of {name} answers: {share}")


def _writable(directory: str) -> bool:
    """Tell whether files can be made in a directory, or in the parent that it will be made in."""
    while not os.path.isdir(directory) and directory != "/":
        directory = os.path.dirname(directory)
    return os.access(directory, os.W_OK | os.X_OK)


def _kubelet(path: str) -> Link:
    if not path:
        return Link(
            "kubelet",
            "--kubelet-socket is empty: the plugin does not register",
            "leave the flag and KUBELET_SOCKET out",
        )
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        return Link(
            "kubelet",
            f"{path}: {(error.strerror or str(error)).lower()}",
            "start the kubelet, and mount its directory device-plugins (hostPath) at the same path",
        )
    if not stat.S_ISSOCK(mode):
        return Link("kubelet", f"{path} is not a socket", "name the kubelet's socket")
    if not os.access(os.path.dirname(path), os.W_OK):
        return Link(
            "kubelet",
            f"{os.path.dirname(path)} is read-only for this user",
            "mount it writable: the plugin's own sockets lie there",
        )
    try:
        _connect(path)
    except OSError as error:
        return Link(
            "kubelet",
            f"{path}: {(error.strerror or str(error)).lower()}",
            "start the kubelet (systemctl status kubelet), and run as a user who may write to its"
            " socket",
        )
    return Link("kubelet", f"{path} answers")


def _connect(path: str) -> None:
    """Connect to a socket, and close the connection.

    :raises OSError: nobody listens, or this user may not.
    """
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(_PATIENCE)
        client.connect(path)


def _advertised(resource: Resource, directory: str, given: Configuration) -> Link:
    """Return what a running plugin lists of a resource."""
    path = os.path.join(directory, resource.endpoint)
    listed = _listed(path) if os.path.exists(path) else None
    if listed is None:
        for told in _told(given, WAITING):
            found, _, fix = told["reason"].partition(" | ")
            return Link(
                "plugin", f"{resource.name} is not registered: {found}", fix or "see its log"
            )
        return Link(
            "plugin",
            f"nobody serves {resource.name}: nvgraft-device-plugin does not run, or waits",
            "start it; its log has the cause if it ends or waits",
            broken=False,
        )
    ill = [name for name, health in listed.items() if health != api.HEALTHY]
    found = f"{resource.name}: {len(listed)} listed"
    if not ill:
        return Link("plugin", f"{found}, all healthy")
    reasons = {told["device"]: told["reason"] for told in _told(given, UNHEALTHY)}
    described = [f"{name} ({reasons[name]})" if name in reasons else name for name in ill[:8]]
    more = f" and {len(ill) - 8} more" if len(ill) > 8 else ""
    return Link(
        "plugin",
        f"{found}, {len(ill)} unhealthy: {', '.join(described)}{more}",
        "look for the Xid in dmesg; a GPU that answers is healthy again after --probe-after"
        " seconds, a lost one needs a reset (nvidia-smi -r) or a reboot",
        broken=len(ill) == len(listed),
    )


def _listed(path: str) -> dict[str, str] | None:
    """Return id -> health of the devices that a plugin's socket lists; None without an answer."""
    response = api.message("ListAndWatchResponse")
    try:
        with grpc.insecure_channel(f"unix://{path}") as channel:
            call = channel.unary_stream(
                f"/{api.SERVICE}/ListAndWatch",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=response.FromString,
            )(api.message("Empty")(), timeout=_PATIENCE)
            first = next(call)
            call.cancel()
    except (grpc.RpcError, StopIteration):
        return None
    return {device.ID: device.health for device in first.devices}


def _told(given: Configuration, metric: str) -> list[dict[str, str]]:
    """Return the labels of each sample of a metric of a running plugin; none without an answer."""
    address = given.metrics_address
    if address is None:
        return []
    host = f"[{address[0]}]" if ":" in address[0] else address[0] or "127.0.0.1"
    try:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(f"http://{host}:{address[1]}/metrics", timeout=_PATIENCE) as got:
            text = got.read(1 << 20).decode("utf-8", "replace")
        return [
            sample.labels
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == metric
        ]
    except (OSError, ValueError, KeyError, http.client.HTTPException):
        return []


def text(words: Sequence[str], environ: Mapping[str, str]) -> tuple[str, int]:
    """Return the chain as text, and the exit code: 1 if a link is broken."""
    lines = []
    broken = False
    for link in chain(words, environ):
        mark = "ok" if not link.fix else "broken" if link.broken else "warning"
        lines.append(f"{link.name:<14} {mark:<8} {printable(link.found)}")
        if link.fix:
            broken = broken or link.broken
            lines.append(f"{'':<23} fix: {link.fix}")
    if broken:
        lines.append("This node advertises no devices before that is mended.")
    return "\n".join(lines), int(broken)
