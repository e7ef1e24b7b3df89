"""Read a pod from a manifest: what it asks for, as the API server checks it."""

import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from nvgraft.base.errors import Refusal
from nvgraft_cli.shell.errors import InputError
from nvgraft_cli.shell.parser import nearest
from nvgraft_specs.documents import DocumentError, read_bytes
from nvgraft_specs.yaml_text import load_yaml_stream

#: What the resources of the device plugin begin with.
VENDOR = "nvidia.com/"

#: What the GPU resources of other vendors' device plugins begin with.
_OTHER_VENDORS = ("amd.com/", "gpu.intel.com/", "habana.ai/")

#: Where the pod of each kind is.
_POD_OF = {
    "Pod": (),
    **dict.fromkeys(
        ("DaemonSet", "Deployment", "Job", "ReplicaSet", "StatefulSet"), ("spec", "template")
    ),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
}
_FORM = "^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$"
_QUANTITY = re.compile(
    r"([+-]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30}))(?:[eE]([+-]?[0-9]{1,2})|(\w{1,2}))?"
)
_UNITS = {
    **{unit: Fraction(1024) ** power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti"), 1)},
    **{unit: Fraction(1000) ** power for power, unit in enumerate(("k", "M", "G", "T"), 1)},
    "m": Fraction(1, 1000),
    "u": Fraction(1, 10**6),
    "n": Fraction(1, 10**9),
}
#: References in values, as the kubelet reads them: $$, $(NAME), and one that is not closed.
_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)(\)?))")

#: Bytes that references may add to the variables of a container: the kernel starts no program with
#: more (a quarter of a stack of 8 MiB).
_MOST_ENVIRONMENT = 2 << 20

_FIX_REQUEST = "write the same whole number under limits and requests, or under limits alone"


class PodContainer(NamedTuple):
    """One container of a pod.

    :ivar where: its JSON path in the pod.
    :ivar env: variables with a value in the manifest, with their references expanded.
    :ivar unknown_env: names of variables whose values come from elsewhere, or refer to such.
    :ivar pod_resources: spec.resources of the pod, which all its containers share.
    """

    name: str
    where: str
    document: Mapping[str, Any]
    env: Mapping[str, str]
    unknown_env: tuple[str, ...]
    pod_resources: Mapping[str, Any]

    @property
    def role(self) -> str:
        """What it is to scheduler and kubelet: "app", "init", or "sidecar", an init container that
        goes on.
        """
        if ".initContainers[" not in f".{self.where}":
            return "app"
        return "sidecar" if self.document.get("restartPolicy") == "Always" else "init"

    def resources(self) -> dict[str, int]:
        """Return resource -> number of the devices of :data:`VENDOR` that it asks for.

        :raises Refusal: in the API server's words, for numbers that it does not accept.
        """
        part = _object(self.document.get("resources"))
        limits, requests = (_object(part.get(kind)) for kind in ("limits", "requests"))
        asked: dict[str, int] = {}
        self._check_pod_level()
        for kind, numbers in (("limits", limits), ("requests", requests)):
            for name, value in numbers.items():
                if name.startswith(VENDOR):
                    self._check_whole(kind, name, value)
        for name, value in requests.items():
            if not name.startswith(VENDOR):
                continue
            if name not in limits:
                raise self._invalid(
                    "limits", "Required value: Limit must be set for non overcommitable resources"
                )
            if _quantity(limits[name]) != _quantity(value):
                raise self._invalid(
                    "requests",
                    f'Invalid value: "{value}": must be equal to {name} limit of {limits[name]}',
                )
        for name, value in limits.items():
            number = _quantity(value)
            if name.startswith(VENDOR) and number:
                asked[name] = int(number)
        return asked

    @property
    def claims(self) -> tuple[str, ...]:
        """The names of the resource claims (DRA) that it uses."""
        claims = _list(_object(self.document.get("resources")).get("claims"))
        return tuple(str(_object(claim).get("name")) for claim in claims)

    @property
    def of_other_vendors(self) -> tuple[str, ...]:
        """The GPU resources of other vendors that it asks for, such as amd.com/gpu."""
        part = _object(self.document.get("resources"))
        numbers = {**_object(part.get("requests")), **_object(part.get("limits"))}
        return tuple(name for name in numbers if name.startswith(_OTHER_VENDORS))

    @property
    def privileged(self) -> bool:
        """Whether the engine gives it all device nodes of the node."""
        return _object(self.document.get("securityContext")).get("privileged") is True

    def _check_pod_level(self) -> None:
        for kind in ("limits", "requests"):
            for name in _object(self.pod_resources.get(kind)):
                if name.startswith(VENDOR):
                    place = f"{self.where.rpartition('.')[0]}.resources.{kind}[{name}]"
                    raise Refusal(
                        "",
                        f'{place}: Unsupported value: "{name}": supported values: "cpu",'
                        ' "hugepages-", "memory"',
                        "write devices under resources.limits of a container",
                    )

    def _check_whole(self, kind: str, name: str, value: object) -> None:
        number = _quantity(value)
        if number is None:
            text = f"quantities must match the regular expression '{_FORM}'"
        elif number.denominator != 1:
            text = f'Invalid value: "{value}": must be an integer'
        elif number < 0:
            text = f'Invalid value: "{value}": must be greater than or equal to 0'
        else:
            return
        raise self._invalid(f"{kind}[{name}]", text)

    def _invalid(self, place: str, text: str) -> Refusal:
        return Refusal("", f"{self.where}.resources.{place}: {text}", _FIX_REQUEST)


class Pod(NamedTuple):
    """A pod.

    :ivar runtime_class: spec.runtimeClassName, or "".
    :ivar handler: the handler of that class, if the manifest has the RuntimeClass too; otherwise
        the name of the class.
    :ivar claims: names of the pod's resource claims (DRA).
    """

    name: str
    kind: str
    runtime_class: str
    handler: str
    claims: tuple[str, ...]
    spec: Mapping[str, Any]
    containers: tuple[PodContainer, ...]

    @property
    def in_order(self) -> list[PodContainer]:
        """Its containers in the order in which the kubelet gives them devices."""
        return sorted(self.containers, key=lambda one: one.role == "app")

    def resources(self) -> dict[str, int]:
        """Return resource -> number of the devices that the scheduler counts for the whole pod:
        those of its containers and sidecars together, or those of one init container beside the
        sidecars before it.

        :raises Refusal: as :meth:`PodContainer.resources`, for any container.
        """
        lasting: dict[str, int] = {}
        most: dict[str, int] = {}
        for one in self.in_order:
            for name, number in one.resources().items():
                together = lasting.get(name, 0) + number
                if one.role != "init":
                    lasting[name] = together
                most[name] = max(most.get(name, 0), together)
        return most

    def container(self, name: str | None) -> PodContainer:
        """Return the container of a name; for None the one that asks for devices, or the only one.

        :raises InputError: there is no such container, or it is not clear which one.
        """
        names = [container.name for container in self.containers]
        if name is not None:
            if name not in names:
                raise InputError(
                    f"the pod has no container {name!r}{nearest(name, names)} | name one of"
                    f" {', '.join(names)}"
                )
            return self.containers[names.index(name)]
        asking = [one for one in self.containers if _asks(one)] or list(self.containers)
        if len(asking) > 1:
            raise InputError(
                f"the pod has several containers: {', '.join(one.name for one in asking)} | name"
                " one with --pod-container"
            )
        return asking[0]


def _asks(container: PodContainer) -> bool:
    part = _object(container.document.get("resources"))
    numbers = {**_object(part.get("requests")), **_object(part.get("limits"))}
    return any(name.startswith(VENDOR) for name in numbers) or bool(part.get("claims"))


def read_documents(path: str) -> list[dict[str, Any]]:
    """Return the objects of a manifest in YAML or JSON; those of a List one by one.

    :raises InputError: it cannot be read.
    """
    try:
        values = load_yaml_stream(read_bytes(path), path)
    except DocumentError as error:
        raise InputError(str(error)) from error
    documents = []
    for value in values:
        if not isinstance(value, dict):
            raise InputError(f"{path}: not an object | pass a manifest with kind and spec")
        items = value.get("items") if str(value.get("kind", "")).endswith("List") else [value]
        documents += [item for item in items or () if isinstance(item, dict)]
    return documents


def read_pod(path: str) -> Pod:
    """Return the pod of a manifest: a Pod, or the template of a workload.

    :raises InputError: there is none or more than one, or it cannot be used.
    """
    documents = read_documents(path)
    pods = [one for one in documents if str(one.get("kind")) in _POD_OF]
    if len(pods) != 1:
        has = "no pod" if not pods else f"{len(pods)} pods"
        kinds = ", ".join(sorted({str(one.get("kind")) for one in documents})) or "nothing"
        raise InputError(
            f"{path}: has {has} (it has {kinds}) | pass a manifest of one {', '.join(_POD_OF)}"
        )
    (found,) = pods
    pod: Mapping[str, Any] = found
    for member in _POD_OF[str(found["kind"])]:
        pod = _object(pod.get(member))
    spec = _object(pod.get("spec"))
    where = ".".join([*_POD_OF[str(found["kind"])], "spec"])
    if not spec.get("containers"):
        raise InputError(f"{path}: {where}.containers: missing | list the pod's containers")
    _check_types(spec, f"{path}: {where}")
    containers = tuple(_containers(spec, where))
    runtime_class = str(spec.get("runtimeClassName") or "")
    metadata = _object(found.get("metadata"))
    claims = spec.get("resourceClaims")
    return Pod(
        str(metadata.get("name") or "without-a-name"),
        str(found["kind"]),
        runtime_class,
        _handler(documents, runtime_class),
        tuple(str(_object(claim).get("name")) for claim in _list(claims)),
        spec,
        containers,
    )


def _check_types(spec: Mapping[str, Any], where: str) -> None:
    """Check that what is read of a pod is of the types that the API server takes.

    :raises InputError: naming the first member that is not.
    """
    from pydantic import ValidationError

    from nvgraft_cli.pods.pod_model import PodSpec
    from nvgraft_specs.models import first_error

    try:
        PodSpec.model_validate(spec)
    except ValidationError as error:
        first, more = first_error(error)
        place = "".join(
            f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]
        )
        is_object = first["type"] in {"model_type", "dict_type"}
        cause = "input should be an object" if is_object else first["msg"]
        cause = cause[:1].lower() + cause[1:]
        raise InputError(
            f"{where}{place}: {cause}{more} | correct it: the API server refuses such a pod"
        ) from None


def _handler(documents: list[dict[str, Any]], runtime_class: str) -> str:
    for document in documents:
        named = _object(document.get("metadata")).get("name") == runtime_class
        if document.get("kind") == "RuntimeClass" and named and document.get("handler"):
            return str(document["handler"])
    return runtime_class


def _containers(spec: Mapping[str, Any], where: str) -> Iterator[PodContainer]:
    for member in ("containers", "initContainers"):
        for number, document in enumerate(_list(spec.get(member))):
            entry = _object(document)
            place = f"{where}.{member}[{number}]"
            env = _variables(entry, place)
            yield PodContainer(
                str(entry.get("name") or ""),
                place,
                entry,
                {name: value for name, value in env.items() if value is not None},
                tuple(name for name, value in env.items() if value is None),
                _object(spec.get("resources")),
            )


def _variables(container: Mapping[str, Any], where: str) -> dict[str, str | None]:
    """Return name -> value of the variables of env; None for a value that is not known.

    :raises InputError: references make them larger than any program's environment.
    """
    env: dict[str, str | None] = {}
    size = 0
    for variable in map(_object, _list(container.get("env"))):
        name = str(variable.get("name") or "")
        text = str(variable.get("value") or "")
        if "valueFrom" in variable:
            env[name] = None
            continue
        used = [match[1] for match in _REFERENCE.finditer(text) if match[2]]
        size += sum(len(env.get(one) or "") for one in used)
        if size > _MOST_ENVIRONMENT:
            raise InputError(
                f"{where}.env: references of {name} make the environment larger than"
                f" {_MOST_ENVIRONMENT:,} bytes | shorten them: the kernel starts no"
                " program with a larger one"
            )
        elsewhere = bool(container.get("envFrom"))
        unknown = any(env.get(one, None if elsewhere else "") is None for one in used)
        if name:
            env[name] = None if unknown else expanded(text, env)
    return env


def expanded(text: str, values: Mapping[str, str | None]) -> str:
    """Return a value or an argument with its references expanded, as the kubelet does it.

    ``$(NAME)`` is the variable's value, or stays where there is none; ``$$`` is ``$``.
    Source: third_party/forked/golang/expansion of Kubernetes.
    """

    def value(match: re.Match[str]) -> str:
        name, closed = match.groups()
        if name is None:
            return "$"
        if not closed:
            return "$(" + str(name).replace("$$", "$")
        found = values.get(name)
        return match[0] if found is None else found

    return _REFERENCE.sub(value, text)


def _quantity(value: object) -> Fraction | None:
    """Return the number of a Kubernetes quantity, or None if it is not one."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        return None
    number, exponent, unit = match.groups()
    if unit is not None and unit not in _UNITS:
        return None
    scale = _UNITS[unit] if unit else Fraction(10) ** int(exponent or 0)
    return Fraction(number.rstrip(".")) * scale


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
