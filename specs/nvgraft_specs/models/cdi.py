"""CDI specifications (Container Device Interface) 0.3.0 to 1.1.0: their model and their parsers.

Source: https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md.
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from nvgraft_specs.documents import DocumentError, load_json, read_bytes
from nvgraft_specs.models import first_error
from nvgraft_specs.yaml_text import load_yaml

#: The supported versions, the newest last.
VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?"
AbsolutePath = Annotated[str, StringConstraints(pattern=r"^/[^\x00]*$")]


class _Part(BaseModel):
    """Base of all parts. An unknown member is an error, as in CDI's own readers."""

    model_config = ConfigDict(strict=True, extra="forbid", populate_by_name=True)


class DeviceNode(_Part):
    """A device node to create in the container."""

    path: AbsolutePath
    host_path: str | None = Field(default=None, alias="hostPath")
    type: str | None = None
    major: int | None = None
    minor: int | None = None
    file_mode: int | None = Field(default=None, alias="fileMode")
    permissions: str | None = None
    uid: int | None = None
    gid: int | None = None


class NetDevice(_Part):
    """A network interface to move into the container (1.1.0)."""

    host_interface_name: str = Field(alias="hostInterfaceName")
    name: str


class Mount(_Part):
    """A bind mount."""

    host_path: str = Field(alias="hostPath", min_length=1)
    container_path: AbsolutePath = Field(alias="containerPath")
    options: list[str] = []
    type: str | None = None


class Hook(_Part):
    """An OCI hook."""

    hook_name: str = Field(alias="hookName")
    path: str
    args: list[str] = []
    env: list[str] = []
    timeout: int | None = None


class IntelRdt(_Part):
    """Intel RDT settings."""

    clos_id: str | None = Field(default=None, alias="closID")
    l3_cache_schema: str | None = Field(default=None, alias="l3CacheSchema")
    mem_bw_schema: str | None = Field(default=None, alias="memBwSchema")
    enable_cmt: bool | None = Field(default=None, alias="enableCMT")
    enable_mbm: bool | None = Field(default=None, alias="enableMBM")


class Edits(_Part):
    """The edits of a container."""

    env: list[str] = []
    device_nodes: list[DeviceNode] = Field(default=[], alias="deviceNodes")
    net_devices: list[NetDevice] = Field(default=[], alias="netDevices")
    hooks: list[Hook] = []
    mounts: list[Mount] = []
    intel_rdt: IntelRdt | None = Field(default=None, alias="intelRdt")
    additional_gids: list[int] = Field(default=[], alias="additionalGids")


class Device(_Part):
    """A named device."""

    name: Annotated[str, StringConstraints(pattern=rf"^{_NAME}$")]
    annotations: dict[str, str] = {}
    edits: Edits = Field(alias="containerEdits")


class Spec(_Part):
    """One specification: devices of one kind, and the edits that all of them share."""

    version: str = Field(alias="cdiVersion")
    kind: Annotated[
        str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_.-]*/[A-Za-z][A-Za-z0-9_.-]*$")
    ]
    annotations: dict[str, str] = {}
    devices: list[Device]
    edits: Edits = Field(default_factory=Edits, alias="containerEdits")


def parse_cdi(raw: bytes, path: str) -> Spec:
    """Parse the text of a CDI specification in JSON or YAML.

    :param path: the path to name in errors.
    :raises DocumentError: when it is not a valid specification.
    """
    return spec_of(load_data(raw, path), path)


def load_data(raw: bytes, path: str) -> Any:
    """Return the data of a JSON or YAML text.

    :raises DocumentError: when the text is neither JSON nor YAML, or too large or too deep.
    """
    return load_json(raw, path) if raw.lstrip()[:1] in {b"{", b"["} else load_yaml(raw, path)


def spec_of(data: Any, path: str) -> Spec:
    """Return the model of a specification's data.

    :raises DocumentError: when the data is not a valid specification, or of an unknown version.
    """
    version = data.get("cdiVersion") if isinstance(data, dict) else None
    if version is None:
        raise DocumentError(path, "$.cdiVersion", "is missing", "pass a CDI specification")
    if version not in VERSIONS:
        raise DocumentError(
            path,
            "$.cdiVersion",
            f"version {version!r} is not known",
            f"upgrade nvgraft, or write the specification in version {VERSIONS[-1]}",
        )
    try:
        return Spec.model_validate(data)
    except ValidationError as error:
        first, more = first_error(error)
        where = "$" + "".join(
            f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]
        )
        raise DocumentError(
            path,
            where,
            first["msg"][:1].lower() + first["msg"][1:] + more,
            "see the CDI specification",
        ) from None


def load_cdi(path: str) -> Spec:
    """Read the CDI specification at ``path``.

    :raises DocumentError: when it cannot be read, or is not a valid specification.
    """
    return parse_cdi(read_bytes(path), path)
