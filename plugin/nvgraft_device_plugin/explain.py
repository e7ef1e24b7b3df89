"""``nvgraft-device-plugin explain``: the chain from the driver to the kubelet, with the first link
that is broken. It answers why a node advertises no GPU.
"""

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from nvgraft_device_plugin import configuration, node, resources
from nvgraft_device_plugin.configuration import Configuration
from nvgraft_device_plugin.devices import Node
from nvgraft_device_plugin.errors import ConfigurationError, NodeError
from nvgraft_device_plugin.source import Source, open_source

_MODULE = "/proc/driver/nvidia/version"


class Link(NamedTuple):
    """One link of the chain: what was looked at, what was found, and if it is broken what to do."""

    name: str
    found: str
    fix: str = ""


def chain(words: Sequence[str], environ: Mapping[str, str]) -> Iterator[Link]:
    """Yield the links in order; the last one may be broken."""
    try:
        given = configuration.load(words, environ)
        source = open_source(given)
        configuration.check(given, has_nvml=source.loads)
    except ConfigurationError as error:
        yield Link("configuration", str(error), "correct the flag, variable or key that is named")
        return
    strategies = ", ".join(given.words("device-list-strategy"))
    yield Link(
        "configuration", f"devices by {strategies}, ids by {given.text('device-id-strategy')}"
    )
    if source.watched:
        yield _driver()
    root = given.text("driver-root-ctr-path")
    if not source.loads:
        yield Link(
            "NVML",
            f"{node.NVML_SONAME} cannot be loaded, neither below {root} nor by its name",
            "mount the driver root at the path of --driver-root-ctr-path, or start this container"
            " with the NVIDIA runtime (runtimeClassName) so that the driver is mounted",
        )
        return
    try:
        source.start()
    except node.NvmlError as error:
        yield Link("NVML", str(error), "run nvidia-smi on the node: it reports the same error")
        return
    try:
        yield from _served(given, source)
    finally:
        source.stop()


def _driver() -> Link:
    try:
        with open(_MODULE, encoding="utf-8", errors="replace") as file:
            return Link("driver", file.readline(200).strip())
    except OSError:
        return Link("driver", f"{_MODULE} is not here: this container may not see it")


def _served(given: Configuration, source: Source) -> Iterator[Link]:
    try:
        read = source.read()
    except node.NvmlError as error:
        yield Link("devices", str(error), "run nvidia-smi on the node, and look for Xids in dmesg")
        return
    yield Link("NVML", f"driver {read.driver}, CUDA {read.cuda}")
    if not read.gpus:
        yield Link(
            "devices",
            "NVML knows no GPU",
            "check lspci on the node, and that the GPUs are not bound to vfio-pci",
        )
        return
    yield Link("devices", "; ".join(_described(read)))
    try:
        divided = resources.divide(read, given)
    except NodeError as error:
        yield Link("resources", str(error), "change --mig-strategy, or the MIG devices of the node")
        return
    for warning in divided.warnings:
        yield Link("resources", f"warning: {warning}")
    counts = [f"{resource.name} x {len(resource.devices)}" for resource in divided.resources]
    if not counts:
        yield Link(
            "resources",
            "no device fits a resource",
            "make MIG devices (nvidia-smi mig -cgi), or use --mig-strategy=none",
        )
        return
    yield Link("resources", ", ".join(counts))
    yield _kubelet(given.text("kubelet-socket"))


def _described(read: Node) -> Iterator[str]:
    for gpu in read.gpus:
        mig = f", {len(gpu.mig_devices)} MIG devices" if gpu.mig_enabled else ""
        yield f"{gpu.index}: {gpu.model} {gpu.uuid}{mig}"


def _kubelet(path: str) -> Link:
    if not path:
        return Link("kubelet", "not asked: --kubelet-socket is empty")
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        return Link(
            "kubelet",
            f"{path}: {error.strerror}",
            "mount the kubelet's directory device-plugins (hostPath) at the same path",
        )
    if not stat.S_ISSOCK(mode):
        return Link("kubelet", f"{path} is not a socket", "name the kubelet's socket")
    if not os.access(os.path.dirname(path), os.W_OK):
        return Link(
            "kubelet",
            f"{os.path.dirname(path)} is read-only for this user",
            "mount it writable: the plugin's own sockets lie there",
        )
    return Link("kubelet", f"{path} is there")


def text(words: Sequence[str], environ: Mapping[str, str]) -> tuple[str, int]:
    """Return the chain as text, and the exit code: 1 if a link is broken."""
    lines = []
    broken = False
    for link in chain(words, environ):
        mark = "broken" if link.fix else "ok"
        lines.append(f"{link.name:<14} {mark:<7} {link.found}")
        if link.fix:
            broken = True
            lines.append(f"{'':<22} fix: {link.fix}")
    if broken:
        lines.append("This node advertises no devices before that is mended.")
    return "\n".join(lines), int(broken)
