"""Nodes of a cluster that has none: Node objects for KWOK, with the resources and labels that the
device plugin gives to recorded hosts.

Source of annotation, taint and sizes: https://kwok.sigs.k8s.io/docs/user/kwok-manage-nodes-and-pods/
"""

import re
from collections.abc import Sequence
from typing import Any

from nvgraft.host.components import Host as EngineHost
from nvgraft_cli.shell.errors import InputError
from nvgraft_device_plugin.configuration import Configuration, check, load
from nvgraft_device_plugin.errors import ConfigurationError, NodeError
from nvgraft_device_plugin.labels import node_labels
from nvgraft_device_plugin.recorded import read_node
from nvgraft_device_plugin.resources import divide
from nvgraft_specs.models.host import Host

#: The annotation, and the key of the taint, by which KWOK knows its nodes.
_KWOK = "kwok.x-k8s.io/node"
_FAKE = "fake"

#: What KWOK's own nodes have.
_CPUS, _MEMORY, _PODS = 32, "256Gi", 110

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
#: Characters of a node's name, which is also a label.
_NAME_LIMIT = 63


def plugin_configuration(flags: Sequence[str]) -> Configuration:
    """Return the configuration of the device plugin for ``NAME=VALUE`` flags.

    :raises InputError: they cannot be used.
    """
    try:
        configuration = load([f"--{flag}" for flag in flags], {})
        check(configuration, has_nvml=True)
    except ConfigurationError as error:
        raise InputError(f"--plugin-flag: {error}") from error
    return configuration


class NodeMaker:
    """Makes the nodes of one recorded host.

    :raises InputError: the plugin would refuse this host, or it has no name for a node.
    """

    def __init__(self, host: Host, engine_host: EngineHost, configuration: Configuration) -> None:
        self.name = re.sub(r"[^a-z0-9.-]+", "-", host.name.lower()).strip(".-")
        if not self.name or len(self.name) > _NAME_LIMIT - len("-99999"):
            raise InputError(
                f"{host.name!r}: not a name for a node | change `name` in its document"
            )
        node = read_node(host, engine_host)
        try:
            divided = divide(node, configuration)
            self._labels = node_labels(node, configuration)
        except NodeError as error:
            fix = "" if " | " in str(error) else " | choose another --plugin-flag, or another host"
            raise InputError(f"{host.name}: the device plugin refuses it: {error}{fix}") from error
        self.warnings = [f"{host.name}: {warning}" for warning in divided.warnings]
        self._capacity = {
            "cpu": str(_cpus(host) or _CPUS),
            "memory": _MEMORY,
            "pods": str(_PODS),
            **{resource.name: str(len(resource.devices)) for resource in divided.resources},
        }
        machine = engine_host.machine
        self._architecture = _ARCHITECTURES.get(machine, machine)

    def node(self, number: int) -> dict[str, Any]:
        """Return the Node object of a number."""
        name = f"{self.name}-{number}"
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "annotations": {"node.alpha.kubernetes.io/ttl": "0", _KWOK: _FAKE},
                "labels": {
                    "kubernetes.io/arch": self._architecture,
                    "kubernetes.io/hostname": name,
                    "kubernetes.io/os": "linux",
                    "type": "kwok",
                    **self._labels,
                },
            },
            "spec": {"taints": [{"effect": "NoSchedule", "key": _KWOK, "value": _FAKE}]},
            "status": {
                "allocatable": dict(self._capacity),
                "capacity": dict(self._capacity),
                "nodeInfo": {
                    "architecture": self._architecture,
                    "bootID": "",
                    "containerRuntimeVersion": "",
                    "kernelVersion": "",
                    "kubeProxyVersion": _FAKE,
                    "kubeletVersion": _FAKE,
                    "machineID": "",
                    "operatingSystem": "linux",
                    "osImage": "",
                    "systemUUID": "",
                },
                "phase": "Running",
            },
        }


def _cpus(host: Host) -> int:
    """Return the number of processors of the recorded NUMA nodes, 0 if they are not known."""
    nodes = (host.topology.numa if host.topology else None) or ()
    count = 0
    for node in nodes:
        for first, last in re.findall(r"(\d{1,6})(?:-(\d{1,6}))?(?:,|$)", node.cpus):
            count += max(int(last or first) - int(first) + 1, 0)
    return count
