"""The node of a pod: its engine, kubelet and device plugin, and which devices it offers."""

import json
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from nvgraft.base.errors import Refusal
from nvgraft.cdi.discovery import live_facts, recorded_facts
from nvgraft.cdi.edits import CdiEdits, CdiSpec
from nvgraft.cdi.platform import NVML_LIBRARY
from nvgraft.host.graphics_files import FileFinder
from nvgraft_cli.case.hosts import HostSide
from nvgraft_cli.shell.errors import InputError
from nvgraft_device_plugin import cdi_files, configuration
from nvgraft_device_plugin.allocate import Allocator
from nvgraft_device_plugin.configuration import Configuration
from nvgraft_device_plugin.devices import Node
from nvgraft_device_plugin.errors import ConfigurationError, NodeError, RequestError
from nvgraft_device_plugin.preferred import choose
from nvgraft_device_plugin.recorded import read_node, read_reported_node
from nvgraft_device_plugin.resources import Divided, Resource, divide

if TYPE_CHECKING:
    from nvgraft_specs.models.host import Host

CONTAINERD, CONTAINERD_1, CRIO = "containerd", "containerd-1", "cri-o"

#: Fact of --kube -> its values, the default first; none: any word.
FACTS = {
    "engine": (CONTAINERD, CONTAINERD_1, CRIO),
    "default-runtime": (),
    "cdi": ("on", "off"),
    "runtime-annotations": ("off", "on"),
    "cpu-manager": ("none", "static"),
    "dra": ("off", "on"),
}
_RUNC = "runc"

#: What CDI annotations begin with that engines heed.
ENGINE_PREFIX = "cdi.k8s.io/"

_CHANNEL = "/dev/nvidia-caps-imex-channels/channel"


class KubeNode(NamedTuple):
    """What is not recorded of a node.

    :ivar default_runtime: the handler of pods without runtimeClassName.
    :ivar cdi: whether the engine heeds CDI annotations and CDI devices.
    :ivar annotations: whether the engine hands CDI annotations on to the runtime.
    """

    engine: str
    default_runtime: str
    cdi: bool
    annotations: bool
    static_cpus: bool
    dra: bool


def parse_facts(words: Sequence[str]) -> KubeNode:
    """Return the node of the words NAME=VALUE of --kube.

    :raises InputError: a name or a value is unknown.
    """
    given: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if name not in FACTS:
            raise InputError(f"--kube {word}: no such fact | write one of {', '.join(FACTS)}")
        if not equals or not value or (FACTS[name] and value not in FACTS[name]):
            values = ", ".join(FACTS[name]) or "the name of a runtime"
            raise InputError(f"--kube {word}: no such value | {name} takes {values}")
        given[name] = value
    engine = given.get("engine", CONTAINERD)
    cdi = given.get("cdi", "off" if engine == CONTAINERD_1 else "on")
    return KubeNode(
        engine,
        given.get("default-runtime", _RUNC),
        cdi == "on",
        given.get("runtime-annotations") == "on",
        given.get("cpu-manager") == "static",
        given.get("dra") == "on",
    )


class Granted(NamedTuple):
    """What the device plugin answers for one resource.

    :ivar offered: the number of devices on the node.
    """

    resource: Resource
    offered: int
    ids: tuple[str, ...]
    answer: dict[str, Any]


def recorded_host(host: HostSide) -> "Host | None":
    """Return the document of a recorded host as its model; None for this machine."""
    if host.document is None:
        return None
    from nvgraft_specs.models.host import Host

    return Host.model_validate_json(json.dumps(host.document))


def node_of(host: HostSide) -> Node:
    """Return the devices of a host.

    :raises Refusal: its driver does not answer.
    """
    recorded = recorded_host(host)
    facts = host.facts
    return read_reported_node(facts) if recorded is None else read_node(recorded, facts)


class DevicePlugin:
    """The device plugin of a node, as far as it decides.

    :param words: its flags.
    :raises InputError: they cannot be used.
    """

    def __init__(self, host: HostSide, words: Sequence[str]) -> None:
        self.host = host
        root = host.config.cli_root.rstrip("/") or "/"
        try:
            self.configuration: Configuration = configuration.load(
                [f"--driver-root={root}", *words], {}
            )
            configuration.check(self.configuration, has_nvml=True)
        except ConfigurationError as error:
            raise InputError(f"--plugin-flag: {error}") from error

    @cached_property
    def _node(self) -> Node:
        return node_of(self.host)

    @cached_property
    def divided(self) -> Divided:
        """The resources that the node offers.

        :raises Refusal: the plugin does not serve this node, or its driver does not answer.
        """
        facts = self.host.facts
        finder = FileFinder(facts.tree, facts.machine, lambda: facts.entries)
        has_nvml = self.host.document is None or bool(finder.libraries(NVML_LIBRARY))
        try:
            configuration.check(self.configuration, has_nvml=has_nvml)
            return divide(self._node, self.configuration)
        except (ConfigurationError, NodeError) as error:
            raise _not_served(error) from error

    def resource(self, name: str, number: int) -> Resource:
        """Return a resource of which a pod asks for so many devices.

        :raises Refusal: the node offers fewer, in the scheduler's words.
        """
        resource = next((one for one in self.divided.resources if one.name == name), None)
        if resource is None or len(resource.devices) < number:
            offers = ", ".join(f"{one.name} x {len(one.devices)}" for one in self.divided.resources)
            raise Refusal(
                "",
                f"0/1 nodes are available: 1 Insufficient {name}",
                f"the pod asks for {number}, the node offers {offers or 'no device'}: ask for less,"
                " or change --mig-strategy or the sharing of the device plugin",
            )
        return resource

    def grant(self, resource: Resource, ids: Sequence[str]) -> Granted:
        """Return what a container gets for which the kubelet has chosen devices.

        :raises Refusal: the plugin refuses, and the kubelet with it the pod.
        """
        try:
            return Granted(
                resource, len(resource.devices), tuple(ids), self._allocate(resource, ids)
            )
        except RequestError as error:
            raise Refusal(
                "",
                f"Allocate failed due to rpc error: code = Unknown desc = {error}, which is"
                " unexpected",
                "the kubelet ends such a pod with UnexpectedAdmissionError: ask for one device, or"
                " change the sharing of the device plugin",
            ) from error

    @cached_property
    def specifications(self) -> dict[str, CdiSpec]:
        """CDI class -> the specification that the plugin has written for this node.

        :raises Refusal: it cannot be made.
        """
        facts = self.host.facts
        document = self.host.document
        of_cdi = live_facts(facts) if document is None else recorded_facts(document)

        def make() -> CdiSpec:
            return cdi_files.gpu_specification(facts, of_cdi, self.configuration)

        resources = self.divided.resources
        try:
            return dict(
                cdi_files.specifications(resources, self.configuration, make, facts.tree.listdir)
            )
        except NodeError as error:
            raise _not_served(error) from error

    def numbers(self, path: str) -> tuple[int, int] | None:
        """Return the numbers of a device node of the host, or None if there is none."""
        node = self.host.facts.tree.lstat(path)
        return None if node is None else node.rdev

    def preferred(
        self, resource: Resource, number: int, held: Sequence[str], taken: Collection[str]
    ) -> list[str]:
        """Return the ids that the kubelet chooses: those that it gives again, then those that the
        plugin prefers.

        :param held: ids of init containers that have ended, to give again.
        :param taken: ids that it has given to containers of the pod, ``held`` among them.
        """
        again = list(held[:number])
        if len(again) == number:
            return again
        free = [device.id for device in resource.devices if device.id not in taken]
        packed = self.configuration.text("shared-devices-allocation-policy") == "packed"
        available = [*again, *free]
        scores = self._node.scores
        chosen = choose(resource.devices, available, again, number, scores, packed=packed)
        return list(dict.fromkeys([*again, *(chosen or free)]))[:number]

    def _allocate(self, resource: Resource, ids: Sequence[str]) -> dict[str, Any]:
        tree = self.host.facts.tree
        channels = [one for one in self.configuration.channels if tree.is_there(f"{_CHANNEL}{one}")]
        classes = self.specifications if self.configuration.uses_cdi else ()
        allocator = Allocator(resource, self.configuration, channels, classes, tree.is_there)
        return allocator.allocate(ids)


def _not_served(error: ConfigurationError | NodeError) -> Refusal:
    text, _, fix = str(error).partition(" | ")
    return Refusal(
        "",
        f"error getting plugins: {text}",
        fix or "the device plugin ends on this node: change its flags, or the node",
    )


def edits_of(specs: Sequence[CdiSpec], names: Sequence[str]) -> list[CdiEdits]:
    """Return the edits of qualified device names, those that a specification's devices share first.

    :raises Refusal: a device is in no specification.
    """
    parts: list[CdiEdits] = []
    shared: set[str] = set()
    for name in names:
        kind, _, device_name = name.partition("=")
        spec = next((one for one in specs if one.kind == kind), None)
        devices = {device.name: device for device in spec.devices} if spec else {}
        if spec is None or device_name not in devices:
            raise Refusal(
                "",
                f"failed to inject CDI devices: unresolvable CDI devices {name}",
                "start the device plugin with a CDI strategy, and /var/run/cdi of the node mounted:"
                " it writes the specification",
            )
        if kind not in shared:
            shared.add(kind)
            parts.append(spec.edits)
        parts.append(devices[device_name].edits)
    return parts
