"""What is read of a pod's spec, with the types that the API server checks. Other members are kept.

Source: https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1.
"""

from typing import Annotated, Any

from pydantic import Field

from nvgraft_specs.models import Open

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$", max_length=253)]
Id = Annotated[int, Field(ge=0, le=2**31 - 1)]
_Text = Annotated[str, Field(pattern=r"^[^\x00]*$")]


class PodVariable(Open):
    """An entry of env."""

    name: Annotated[str, Field(pattern=r"^[ -<>-~]+$")]
    value: _Text | None = None


class PodMount(Open):
    """An entry of volumeMounts."""

    name: Name
    mountPath: Annotated[_Text, Field(min_length=1)]


class PodHostPath(Open):
    """The hostPath of a volume."""

    path: _Text


class PodVolume(Open):
    """An entry of volumes."""

    name: Name
    hostPath: PodHostPath | None = None


class PodCapabilities(Open):
    """The capabilities of a container."""

    add: list[str] | None = None
    drop: list[str] | None = None


class PodSecurity(Open):
    """The securityContext of a pod or container."""

    privileged: bool | None = None
    runAsUser: Id | None = None
    runAsGroup: Id | None = None
    capabilities: PodCapabilities | None = None


class PodResources(Open):
    """The resources of a container; the numbers are checked as quantities."""

    limits: dict[str, Any] | None = None
    requests: dict[str, Any] | None = None
    claims: list[Any] | None = None


class PodSpecContainer(Open):
    """An entry of containers or initContainers."""

    name: Name
    command: list[_Text] | None = None
    args: list[_Text] | None = None
    workingDir: _Text | None = None
    env: list[PodVariable] | None = None
    resources: PodResources | None = None
    volumeMounts: list[PodMount] | None = None
    securityContext: PodSecurity | None = None


class PodClaim(Open):
    """An entry of resourceClaims."""

    name: Name


class PodSpec(Open):
    """The spec of a pod."""

    runtimeClassName: Name | None = None
    containers: list[PodSpecContainer]
    initContainers: list[PodSpecContainer] | None = None
    volumes: list[PodVolume] | None = None
    resourceClaims: list[PodClaim] | None = None
    resources: PodResources | None = None
    securityContext: PodSecurity | None = None
