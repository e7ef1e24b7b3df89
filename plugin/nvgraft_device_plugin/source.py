"""Where the devices of a node are read: this machine's driver, or a host document (--host)."""

import glob
import json
import os
from typing import Protocol

from nvgraft.cdi.discovery import recorded_facts
from nvgraft.cdi.edits import CdiSpec
from nvgraft.cdi.platform import NVML_LIBRARY
from nvgraft.host.graphics_files import FileFinder
from nvgraft.host.snapshot import snapshot_host
from nvgraft_device_plugin import cdi_files, node, recorded
from nvgraft_device_plugin.configuration import Configuration
from nvgraft_device_plugin.devices import Node
from nvgraft_device_plugin.errors import ConfigurationError
from nvgraft_specs import gallery
from nvgraft_specs.documents import DocumentError, read_bytes
from nvgraft_specs.models.host import parse_host


class Source(Protocol):
    """What the plugin asks of a node.

    :ivar watched: whether NVML's events tell of the health of its GPUs.
    """

    watched: bool

    @property
    def loads(self) -> bool:
        """Tell whether there is an NVML that can be loaded."""

    def platform(self, strategy: str) -> str:
        """Return what kind of node it is: nvml, tegra or wsl.

        :param strategy: of the flag device-discovery-strategy.
        """

    def start(self) -> None:
        """Initialise NVML.

        :raises nvgraft_device_plugin.node.NvmlError: it is missing, or reports an error.
        """

    def stop(self) -> None:
        """End what :meth:`start` has begun."""

    def read(self) -> Node:
        """Return the node.

        :raises nvgraft_device_plugin.node.NvmlError: NVML does not answer.
        """

    def exists(self, path: str) -> bool:
        """Tell whether the node has a device node."""

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory of the node's /dev.

        :raises OSError: there is no such directory.
        """

    def gpu_specification(self, node: Node, configuration: Configuration) -> CdiSpec:
        """Return the CDI specification of the node's GPUs and MIG devices.

        :raises NodeError: the driver's files are not there.
        """

    def signs(self) -> tuple[str, ...]:
        """Return names that change when a GPU or a MIG device comes or goes."""


class LiveSource(node.Nvml):
    """This machine, of which this process sees the driver root at a path."""

    watched = True

    def platform(self, strategy: str) -> str:
        """Return what kind of node this machine is."""
        return node.platform(self.root, strategy, has_nvml=self.loads)

    def read(self) -> Node:
        """Ask NVML."""
        return node.read_node()

    def exists(self, path: str) -> bool:
        """Tell whether this process sees a device node."""
        return os.path.exists(path)

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory of /dev below the driver root."""
        return os.listdir(self.root + directory)

    def gpu_specification(self, node: Node, configuration: Configuration) -> CdiSpec:
        """Return the specification of the files below the driver root."""
        return cdi_files.live_specification(node, configuration)

    def signs(self) -> tuple[str, ...]:
        """Return the names of NVML, and of the driver's nodes and directories."""
        patterns = (
            "/dev/nvidia[0-9]*",
            "/dev/nvidia-caps/*",
            "/proc/driver/nvidia/gpus/*",
            "/proc/driver/nvidia/capabilities/gpu*/mig/gi*/ci*",
        )
        names = sorted(name for pattern in patterns for name in glob.glob(pattern))
        return node.find(self.root, NVML_LIBRARY), *names


class RecordedSource:
    """A host document, which always answers.

    :param name: a host of the gallery, or the path of a ``nvgraft.host/1`` document.
    :raises ConfigurationError: there is no such host, or it is not such a document.
    """

    watched = False

    def __init__(self, name: str) -> None:
        self._path = gallery.path(name) if name in gallery.names() else name
        try:
            raw = read_bytes(self._path)
            self.document = parse_host(raw, self._path)
        except DocumentError as error:
            raise ConfigurationError(
                f"--host {name}: {error}, or one of {', '.join(gallery.names())}"
            ) from error
        self._facts = recorded_facts(json.loads(raw))
        self.engine_host = snapshot_host(json.loads(raw))

    @property
    def loads(self) -> bool:
        """Tell whether the host has NVML."""
        host = self.engine_host
        return bool(
            FileFinder(host.tree, host.machine, lambda: host.entries).libraries(NVML_LIBRARY)
        )

    def platform(self, strategy: str) -> str:
        """Return what kind of node the host is."""
        return self.read().platform if strategy == "auto" else strategy

    def start(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""

    def read(self) -> Node:
        """Return the node that the document describes."""
        return recorded.read_node(self.document, self.engine_host)

    def exists(self, path: str) -> bool:
        """Tell whether the host has a device node."""
        return self.engine_host.tree.lstat(path) is not None

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory of the host's /dev."""
        return self.engine_host.tree.listdir(directory)

    def gpu_specification(self, _node: Node, configuration: Configuration) -> CdiSpec:
        """Return the specification of the recorded files."""
        return cdi_files.gpu_specification(self.engine_host, self._facts, configuration)

    def signs(self) -> tuple[str, ...]:
        """Return what changes when somebody replaces the document."""
        try:
            status = os.stat(self._path)
        except OSError:
            return ()
        return (f"{status.st_ino} {status.st_ctime_ns}",)


def open_source(configuration: Configuration) -> Source:
    """Return the source that a configuration names.

    :raises ConfigurationError: the host document cannot be used.
    """
    host = configuration.text("host")
    if host:
        return RecordedSource(host)
    return LiveSource(configuration.text("driver-root-ctr-path"))
