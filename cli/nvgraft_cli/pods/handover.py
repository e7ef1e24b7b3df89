"""What the engine makes of a pod's container: config.json, CDI edits, and the runtime that it
calls. Each step is told as a link of a chain that begins at ``resources.limits``.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from nvgraft.base.errors import Refusal
from nvgraft.cdi.edits import CdiEdits
from nvgraft_cli.case.bundle import ContainerSide
from nvgraft_cli.case.handover import ChainLink, Handover
from nvgraft_cli.pods.manifest import Pod, PodContainer, expanded
from nvgraft_cli.pods.node import (
    ENGINE_PREFIX,
    DevicePlugin,
    Granted,
    KubeNode,
    edits_of,
)
from nvgraft_cli.shell.errors import InputError
from nvgraft_device_plugin.configuration import GPU_RESOURCE
from nvgraft_specs import names

#: What the handlers of NVIDIA's and our runtimes begin with, and the mode that an ending fixes.
_OUR_HANDLERS = ("nvidia", "nvgraft")
_FIXED_MODES = {"-cdi": "cdi", "-legacy": "legacy"}
_NOT_EVALUATED = "not evaluated here: nvgraft dra prepare"
_PREPARE = "write the allocated claim into a file: nvgraft dra prepare --claim FILE"
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class PodOnNode:
    """A container of a pod on a node.

    :param chosen: the ids of the devices that the kubelet has chosen; empty: those that the
        plugin prefers on an idle node.
    """

    def __init__(
        self,
        pod: Pod,
        container: PodContainer,
        node: KubeNode,
        plugin: DevicePlugin,
        chosen: Sequence[str] = (),
    ) -> None:
        self.pod = pod
        self.container = container
        self.node = node
        self.plugin = plugin
        self._chosen = tuple(chosen)
        self.granted: list[Granted] = []
        self.refusal: Refusal | None = None
        self._chain: list[ChainLink] = []
        try:
            self._grant()
        except Refusal as refusal:
            self.refusal = refusal

    def _tell(self, layer: str, step: str, how: str, fault: str = "") -> None:
        self._chain.append(ChainLink(layer, step, how, fault))

    # ---- pod and kubelet

    def _grant(self) -> None:
        place = f"container {self.container.name} of {self.pod.kind} {self.pod.name}"
        try:
            asked = self.container.resources()
        except Refusal as refusal:
            self._tell(
                "pod", "resources.limits", f"{place}: the API server refuses it", refusal.text
            )
            raise
        text = ", ".join(
            [
                *(f"{name}: {number}" for name, number in asked.items()),
                *(f"{name} (another vendor's)" for name in self.container.of_other_vendors),
            ]
        )
        self._tell("pod", "resources.limits", f"{text or 'no device'} ({place})")
        if self.pod.claims:
            claims = ", ".join(self.pod.claims)
            self._tell("pod", "resourceClaims", f"{claims}: {_NOT_EVALUATED}")
        try:
            for name, number in self.pod.resources().items():
                self.plugin.resource(name, number)
            if self._chosen:
                self._grant_chosen(asked)
            else:
                self._grant_preferred()
        except Refusal as refusal:
            self._tell("kubelet", "device plugin", refusal.line(), refusal.text)
            raise

    def _grant_chosen(self, asked: Mapping[str, int]) -> None:
        """Give this container the devices that the kubelet is known to have chosen."""
        for name, number in asked.items():
            resource = self.plugin.resource(name, number)
            ids = self._chosen
            if len(asked) > 1:
                known = {device.id for device in resource.devices}
                ids = tuple(identifier for identifier in ids if identifier in known)
            if len(ids) != number:
                raise InputError(
                    f"--plugin-devices: {len(ids)} ids for {name}: {number} | name as many as the"
                    " container asks for"
                )
            self._give(self.plugin.grant(resource, ids), "as given")

    def _grant_preferred(self) -> None:
        """Choose the devices of all containers of the pod, in the kubelet's order.

        Containers get the devices of init containers again, which have ended.
        """
        taken: set[str] = set()
        held: dict[str, list[str]] = {}
        for one in self.pod.in_order:
            for name, number in one.resources().items():
                resource = self.plugin.resource(name, number)
                again = held.get(name, [])
                ids = self.plugin.preferred(resource, number, again, taken)
                granted = self.plugin.grant(resource, ids)
                if one.where == self.container.where:
                    beside = taken & {device.id for device in resource.devices}
                    self._give(granted, _why_these(number, again, beside))
                taken.update(ids)
                held[name] = (
                    list(dict.fromkeys([*again, *ids]))
                    if one.role == "init"
                    else [identifier for identifier in again if identifier not in ids]
                )

    def _give(self, granted: Granted, how: str) -> None:
        self.granted.append(granted)
        self._tell("kubelet", "node offers", f"{granted.resource.name} x {granted.offered}")
        self._tell("kubelet", "kubelet chooses", f"{', '.join(granted.ids)} ({how})")
        self._tell("kubelet", "Allocate answers", ", ".join(_described(granted.answer)))

    @property
    def answer(self) -> dict[str, Any]:
        """What Allocate has answered, for all resources of the container.

        Of a variable that two of them set, the kubelet keeps one, and which one is chance: here it
        is the first.
        """
        whole: dict[str, Any] = {"envs": {}, "mounts": [], "devices": []}
        for granted in self.granted:
            for member, value in granted.answer.items():
                if isinstance(value, dict):
                    whole[member] = {**value, **whole.get(member, {})}
                else:
                    whole[member] = [*whole.get(member, []), *value]
        return whole

    @property
    def rivals(self) -> tuple[str, ...]:
        """The resources of the container that set the variable to different values, of which the
        kubelet keeps one; none if all is well.
        """
        values = {
            granted.resource.name: granted.answer["envs"].get(names.VISIBLE_DEVICES)
            for granted in self.granted
        }
        return tuple(values) if len(set(values.values())) > 1 else ()

    @property
    def gpus(self) -> set[str]:
        """The GPUs of the devices that the kubelet has counted."""
        return {
            device.gpu
            for granted in self.granted
            for device in granted.resource.devices
            if device.id in granted.ids
        }

    @property
    def elsewhere(self) -> str:
        """The reason why it is not known which GPUs the container gets; "" if it is known."""
        claims = self.container.claims
        if self.granted or not claims:
            return ""
        return f"the pod asks by resourceClaims ({', '.join(claims)}), {_NOT_EVALUATED}"

    @property
    def advice(self) -> str:
        """How the pod would get the devices of NVIDIA that it lacks."""
        if self.elsewhere:
            return _PREPARE
        if self.granted:
            return "the kubelet chooses the devices: ask for more under resources.limits"
        try:
            resource = next((one.name for one in self.plugin.divided.resources), GPU_RESOURCE)
        except Refusal:
            resource = GPU_RESOURCE
        fix = f"write `resources.limits: {resource}: 1` into container {self.container.name}"
        if not self.calls_ours and not self.plugin.configuration.uses_cdi:
            fix += ", and a runtimeClassName of NVIDIA's or nvgraft's runtime into the pod"
        if self.pod.claims:
            claims = ", ".join(self.pod.claims)
            return f"list {claims} of resourceClaims under its resources.claims, or {fix}"
        others = ", ".join(self.container.of_other_vendors)
        return f"{others}: another vendor's device plugin gives it; {fix}" if others else fix

    @property
    def all_nodes(self) -> str:
        """Why the engine gives the container all device nodes of the node, or ""."""
        if not self.container.privileged:
            return ""
        return f"privileged: {self.node.engine} gives it all device nodes of the node"

    # ---- engine

    @property
    def handler(self) -> str:
        """The name of the runtime that the engine calls."""
        return self.pod.handler or self.node.default_runtime

    @property
    def calls_ours(self) -> bool:
        """Whether that runtime is NVIDIA's or nvgraft's."""
        return self.handler.startswith(_OUR_HANDLERS)

    @property
    def cdi_names(self) -> tuple[str, ...]:
        """The CDI devices that Allocate has named, by annotation or in the CRI's field."""
        return tuple(dict.fromkeys([*self._annotated(), *self._listed()]))

    def _annotated(self) -> list[str]:
        values = self.answer.get("annotations", {}).values()
        return [name for value in values for name in value.split(",")]

    def _listed(self) -> list[str]:
        return [device["name"] for device in self.answer.get("cdi_devices", [])]

    @property
    def heeded_names(self) -> tuple[str, ...]:
        """Those of the CDI devices that the engine heeds."""
        if not self.node.cdi:
            return ()
        prefix = self.plugin.configuration.text("cdi-annotation-prefix")
        annotated = self._annotated() if prefix == ENGINE_PREFIX else []
        return tuple(dict.fromkeys([*annotated, *self._listed()]))

    def mode(self, given: str | None) -> str:
        """Return the mode in which the container is started, as ``Case`` takes it.

        :param given: --mode; None: what the runtime's handler says.
        """
        if given is not None:
            return given
        ending = next(
            (mode for end, mode in _FIXED_MODES.items() if self.handler.endswith(end)), ""
        )
        return ending or "runtime"

    def handover(self, base: ContainerSide, given_mode: str | None) -> Handover:
        """Return the container as the engine hands it to the runtime, and the chain up to there.

        :param base: the pod's image as a container.
        """
        container = base.rewritten(self._config_json(base))
        refusal = self.refusal
        edits: tuple[CdiEdits, ...] = ()
        if refusal is None:
            self._tell_image(base)
            self._tell_config(container)
            try:
                edits = tuple(self._edits())
            except Refusal as found:
                refusal = found
                self._tell("engine", "CDI devices", found.text, found.text)
        bypass = self._bypass(given_mode)
        if refusal is None:
            self._tell_runtime(bypass, edits, given_mode)
        return Handover(
            container,
            edits,
            ids=self.cdi_names,
            bypass=bypass,
            refusal=refusal,
            chain=tuple(self._chain),
            allocated=tuple(
                {
                    "resource": granted.resource.name,
                    "devices": list(granted.ids),
                    "answer": granted.answer,
                }
                for granted in self.granted
            ),
            advice=self.advice,
            elsewhere=self.elsewhere,
            all_nodes=self.all_nodes,
        )

    def _edits(self) -> Iterator[CdiEdits]:
        named, heeded = self.cdi_names, self.heeded_names
        if heeded:
            specs = list(self.plugin.specifications.values())
            self._tell("engine", "CDI devices", f"{', '.join(heeded)}: their edits are made here")
            yield from edits_of(specs, heeded)
        elif named:
            why = f"{self.node.engine} has CDI off" if not self.node.cdi else "another prefix"
            self._tell("engine", "CDI devices", f"not heeded: {why}", f"CDI is not heeded: {why}")

    def _bypass(self, given_mode: str | None) -> str:
        if self.elsewhere:
            return self.elsewhere
        if given_mode == "hook" or self.calls_ours:
            return ""
        reason = (
            f"runtimeClassName is {self.pod.runtime_class}"
            if self.pod.runtime_class
            else "the pod has no runtimeClassName"
        )
        return f"{reason}, and the engine calls {self.handler}, which adds no driver"

    def _tell_image(self, base: ContainerSide) -> None:
        if not base.rootfs_known:
            self._tell(
                "pod", "image", "not given (--container): an empty root file system is taken"
            )

    def _tell_config(self, container: ContainerSide) -> None:
        final = _environment(container.document)
        asked = self.answer["envs"].get(names.VISIBLE_DEVICES)
        value = final.get(names.VISIBLE_DEVICES)
        if names.VISIBLE_DEVICES in self.container.unknown_env:
            how = f"{names.VISIBLE_DEVICES} of a ConfigMap, Secret or field: taken as not set there"
            fault = ""
        elif value is None:
            how, fault = f"{names.VISIBLE_DEVICES} is not set", ""
        elif asked is not None and value != asked:
            how = (
                f"{names.VISIBLE_DEVICES}={value} of the pod's env, in place of Allocate's {asked}"
            )
            fault = f"the pod's own {names.VISIBLE_DEVICES} hides Allocate's answer"
        else:
            source = "Allocate" if asked is not None else _source(value, self.container, container)
            how, fault = f"{names.VISIBLE_DEVICES}={value} (from {source})", ""
        if self.rivals and not self.heeded_names:
            rivals = " and ".join(self.rivals)
            text = f"{rivals} set {names.VISIBLE_DEVICES}, and the kubelet keeps one of them"
            self._tell("kubelet", "variables", f"{text}: here the first", text)
        self._tell("engine", "config.json", how, fault)
        mounts = [mount["container_path"] for mount in self.answer["mounts"]]
        if mounts:
            self._tell("engine", "mounts", ", ".join(mounts))
        specs = self.answer["devices"]
        if specs:
            paths = ", ".join(one["container_path"] for one in specs)
            self._tell("engine", "device nodes", f"{paths}, with their cgroup rules")
        if self.all_nodes:
            self._tell("engine", "device nodes", self.all_nodes)

    def _tell_runtime(self, bypass: str, edits: Sequence[CdiEdits], given_mode: str | None) -> None:
        source = (
            f"runtimeClassName {self.pod.runtime_class}"
            if self.pod.runtime_class
            else f"the default of {self.node.engine}"
        )
        fault = bypass if bypass and not edits and self.granted else ""
        self._tell("engine", "runtime", f"{self.handler} ({source})", fault)
        if self.elsewhere:
            self._tell("runtime", "mode", f"not told: {self.elsewhere}")
        elif bypass:
            done = "the CDI edits are all that the container gets" if edits else "nothing is added"
            self._tell("runtime", "mode", f"none of nvgraft's: {done}")
        elif given_mode == "hook":
            self._tell("runtime", "mode", "none: the engine calls the hook itself (--mode hook)")
        elif given_mode is None and self.mode(None) == "runtime":
            self._tell("runtime", "config.toml", self.plugin.host.configured_mode)

    # ---- config.json

    def _config_json(self, base: ContainerSide) -> bytes:
        """Return config.json with what the pod and Allocate's answer add.

        As the kubelet does it, the pod's own variables come after those of Allocate's answer, and
        the last value of a name counts.
        """
        document = json.loads(json.dumps(base.document))
        process = document.setdefault("process", {})
        own, answer = self.container.document, self.answer
        added = {**answer["envs"], **self.container.env}
        env = [
            entry for entry in process.get("env") or [] if str(entry).partition("=")[0] not in added
        ]
        process["env"] = [*env, *(f"{name}={value}" for name, value in added.items())]
        words = process.get("args") or ["sh"]
        command, args = (
            [expanded(str(word), added) for word in own.get(member) or ()]
            for member in ("command", "args")
        )
        if command or args:
            process["args"] = [*(command or words[:1]), *args]
        if own.get("workingDir"):
            process["cwd"] = str(own["workingDir"])
        _add_security(process, self.pod.spec.get("securityContext"), own.get("securityContext"))
        document["mounts"] = [*(document.get("mounts") or []), *self._mounts()]
        if answer["devices"]:
            self._add_devices(document)
        if self.node.annotations and answer.get("annotations"):
            document["annotations"] = {
                **(document.get("annotations") or {}),
                **answer["annotations"],
            }
        return json.dumps(document).encode()

    def _mounts(self) -> Iterator[dict[str, object]]:
        volumes = {
            volume.get("name"): volume
            for volume in self.pod.spec.get("volumes") or ()
            if isinstance(volume, dict)
        }
        for mount in self.answer["mounts"]:
            yield _bind(mount["container_path"], mount["host_path"])
        for mount in self.container.document.get("volumeMounts") or ():
            if isinstance(mount, dict) and isinstance(mount.get("mountPath"), str):
                volume = volumes.get(mount.get("name")) or {}
                path = (volume.get("hostPath") or {}).get("path")
                yield _bind(mount["mountPath"], str(path or f"volume {mount.get('name')}"))

    def _add_devices(self, document: dict[str, Any]) -> None:
        linux = document.setdefault("linux", {})
        rules = linux.setdefault("resources", {}).setdefault("devices", [])
        devices = linux.setdefault("devices", [])
        for spec in self.answer["devices"]:
            numbers = self.plugin.numbers(spec["container_path"])
            if numbers is not None:
                entry = {"type": "c", "major": numbers[0], "minor": numbers[1]}
                devices.append({"path": spec["container_path"], **entry})
                rules.append({"allow": True, **entry, "access": spec["permissions"]})


def _why_these(number: int, again: Sequence[str], taken: Collection[str]) -> str:
    if len(again) >= number:
        return "those of the init containers, again"
    if again:
        return "those of the init containers again, and what the plugin prefers beside them"
    if taken:
        return "what the plugin prefers beside the pod's other containers"
    return "what the plugin prefers on an idle node"


def _described(answer: Mapping[str, Any]) -> Iterator[str]:
    """Yield the parts of an answer of Allocate, for people."""
    yield from (f"{name}={value}" for name, value in answer["envs"].items())
    for key, value in answer.get("annotations", {}).items():
        yield f"annotation {_UUID.sub('UUID', key)}={value}"
    yield from (f"CDI device {device['name']}" for device in answer.get("cdi_devices", ()))
    yield from (
        f"mount {mount['host_path']} on {mount['container_path']}" for mount in answer["mounts"]
    )
    yield from (f"device {device['container_path']}" for device in answer["devices"])


def _source(value: str, pod: PodContainer, container: ContainerSide) -> str:
    if pod.env.get(names.VISIBLE_DEVICES) == value:
        return "the pod's env"
    return "the image" if value in (container.image_env or {}).values() else "config.json"


def _environment(document: Mapping[str, Any]) -> dict[str, str]:
    env = (document.get("process") or {}).get("env") or ()
    return dict(str(entry).partition("=")[::2] for entry in env)


def _bind(target: str, source: str) -> dict[str, object]:
    return {
        "destination": target,
        "source": source,
        "type": "bind",
        "options": ["rbind", "rprivate"],
    }


def _add_security(process: dict[str, Any], of_pod: Any, own: Any) -> None:
    context: dict[str, Any] = {
        **(of_pod if isinstance(of_pod, dict) else {}),
        **(own if isinstance(own, dict) else {}),
    }
    capabilities = process.setdefault("capabilities", {})
    bounding = list(capabilities.get("bounding") or ())
    changes = context.get("capabilities")
    changes = changes if isinstance(changes, dict) else {}
    dropped = {_capability(name) for name in changes.get("drop") or ()}
    bounding = [name for name in bounding if name not in dropped and "CAP_ALL" not in dropped]
    added = [_capability(name) for name in changes.get("add") or ()]
    if context.get("privileged") is True or "CAP_ALL" in added:
        added.append(names.PRIVILEGED_CAPABILITY)
    capabilities["bounding"] = list(dict.fromkeys([*bounding, *added]))
    user = process.setdefault("user", {})
    for member, key in (("uid", "runAsUser"), ("gid", "runAsGroup")):
        if isinstance(context.get(key), int):
            user[member] = context[key]


def _capability(name: object) -> str:
    return f"CAP_{str(name).upper().removeprefix('CAP_')}"
