"""The kubelet's device plugin API, v1beta1, as protobuf messages made from a table.

Source: https://github.com/kubernetes/kubelet/blob/master/pkg/apis/deviceplugin/v1beta1/api.proto
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

VERSION = "v1beta1"
HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"

#: Of a resource's own socket, and of the kubelet's.
SERVICE = "v1beta1.DevicePlugin"
REGISTER = "/v1beta1.Registration/Register"

_PACKAGE = "v1beta1"
_FIELD = descriptor_pb2.FieldDescriptorProto
_TYPES = {
    "string": _FIELD.TYPE_STRING,
    "bool": _FIELD.TYPE_BOOL,
    "int32": _FIELD.TYPE_INT32,
    "int64": _FIELD.TYPE_INT64,
}

#: Message -> its fields in the order of their numbers, which begin with 1. ``*`` is repeated,
#: ``map`` a map of strings; another type is a message.
_MESSAGES: dict[str, tuple[tuple[str, str], ...]] = {
    "DevicePluginOptions": (
        ("pre_start_required", "bool"),
        ("get_preferred_allocation_available", "bool"),
    ),
    "RegisterRequest": (
        ("version", "string"),
        ("endpoint", "string"),
        ("resource_name", "string"),
        ("options", "DevicePluginOptions"),
    ),
    "Empty": (),
    "NUMANode": (("ID", "int64"),),
    "TopologyInfo": (("nodes", "*NUMANode"),),
    "Device": (("ID", "string"), ("health", "string"), ("topology", "TopologyInfo")),
    "ListAndWatchResponse": (("devices", "*Device"),),
    "PreStartContainerRequest": (("devices_ids", "*string"),),
    "PreStartContainerResponse": (),
    "ContainerPreferredAllocationRequest": (
        ("available_deviceIDs", "*string"),
        ("must_include_deviceIDs", "*string"),
        ("allocation_size", "int32"),
    ),
    "PreferredAllocationRequest": (("container_requests", "*ContainerPreferredAllocationRequest"),),
    "ContainerPreferredAllocationResponse": (("deviceIDs", "*string"),),
    "PreferredAllocationResponse": (
        ("container_responses", "*ContainerPreferredAllocationResponse"),
    ),
    "ContainerAllocateRequest": (("devices_ids", "*string"),),
    "AllocateRequest": (("container_requests", "*ContainerAllocateRequest"),),
    "Mount": (("container_path", "string"), ("host_path", "string"), ("read_only", "bool")),
    "DeviceSpec": (
        ("container_path", "string"),
        ("host_path", "string"),
        ("permissions", "string"),
    ),
    "CDIDevice": (("name", "string"),),
    "ContainerAllocateResponse": (
        ("envs", "map"),
        ("mounts", "*Mount"),
        ("devices", "*DeviceSpec"),
        ("annotations", "map"),
        ("cdi_devices", "*CDIDevice"),
    ),
    "AllocateResponse": (("container_responses", "*ContainerAllocateResponse"),),
}

#: Method of the service -> its request and its response. ListAndWatch sends a stream.
METHODS = {
    "GetDevicePluginOptions": ("Empty", "DevicePluginOptions"),
    "ListAndWatch": ("Empty", "ListAndWatchResponse"),
    "Allocate": ("AllocateRequest", "AllocateResponse"),
    "GetPreferredAllocation": ("PreferredAllocationRequest", "PreferredAllocationResponse"),
    "PreStartContainer": ("PreStartContainerRequest", "PreStartContainerResponse"),
}


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="nvgraft/deviceplugin.proto", package=_PACKAGE, syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, (field, type_name) in enumerate(fields, 1):
            _add_field(message, field, type_name, number)
    return file


def _add_field(
    message: descriptor_pb2.DescriptorProto, field: str, type_name: str, number: int
) -> None:
    added = message.field.add(name=field, json_name=field, number=number)
    repeated = type_name.startswith("*") or type_name == "map"
    added.label = _FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL
    plain = type_name.removeprefix("*")
    if plain == "map":
        entry = message.nested_type.add(name=f"{field.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        for position, part in enumerate(("key", "value"), 1):
            _add_field(entry, part, "string", position)
        added.type = _FIELD.TYPE_MESSAGE
        added.type_name = f".{_PACKAGE}.{message.name}.{entry.name}"
    elif plain in _TYPES:
        added.type = _TYPES[plain]
    else:
        added.type = _FIELD.TYPE_MESSAGE
        added.type_name = f".{_PACKAGE}.{plain}"


_pool = descriptor_pool.DescriptorPool()
_pool.Add(_file())


def message(name: str) -> Any:
    """Return the class of a message by its name in the API."""
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
