"""The document ``nvgraft.plan/1``: the actions on one container, in order, each with its reason.

This is the model of the document, for tools that read plans. The engine has values of its own in
``nvgraft.plan.actions``, which write it.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, StringConstraints, model_validator

from nvgraft_specs.documents import read_bytes
from nvgraft_specs.models import ONLY_SUCH_NAMES, PLAIN_PATH, Strict, parse
from nvgraft_specs.models.error import ErrorFacts

SCHEMA = "nvgraft.plan/1"

#: Without "." and "..", so that the path of an edited plan is the path that is used.
AbsolutePath = Annotated[str, StringConstraints(pattern=PLAIN_PATH)]
Mode = Annotated[str, StringConstraints(pattern=r"^[0-7]{4}$")]
Number = Annotated[int, Field(ge=0, le=0xFFFFFFFF)]
Option = Literal["nodev", "noexec", "nosuid", "ro", "rw"]
Options = Annotated[
    list[Option],
    Field(min_length=1, description="field 6 of mountinfo without atime flags, sorted"),
]


class Why(Strict):
    """The reason of an action."""

    capability: str
    row: str = Field(description="row of the component catalogue")
    found: str = Field(description="how the file was found")


class MakeDirectory(Strict):
    """Create one directory."""

    op: Literal["dir"]
    path: AbsolutePath
    mode: Mode
    why: Why


class Bind(Strict):
    """Bind-mount a file, directory, device node or socket of the host."""

    op: Literal["mount"]
    type: Literal["bind"]
    kind: Literal["file", "dir", "device", "socket"]
    source: AbsolutePath
    target: AbsolutePath
    options: Options
    mode: Mode = Field(
        description="of the empty file or directory that is the mount point; with `node`, its own"
    )
    rdev: tuple[Number, Number] | None = Field(
        default=None, description="major and minor number; devices only"
    )
    node: Literal["c", "b", "p"] | None = Field(
        default=None,
        description="type of the device node that the runtime makes (CDI edits only)",
    )
    uid: Number | None = Field(default=None, description="owner of that node")
    gid: Number | None = Field(default=None, description="group of that node")
    why: Why

    @model_validator(mode="after")
    def _device_has_a_number(self) -> Self:
        if self.kind == "device" and self.rdev is None:
            raise ValueError("a device needs its rdev")
        return self


class TmpfsData(Strict):
    """Options of the tmpfs itself."""

    mode: Mode


class Tmpfs(Strict):
    """Mount a new tmpfs. The `file` actions write into it before it is attached."""

    op: Literal["mount"]
    type: Literal["tmpfs"]
    source: Literal["tmpfs"]
    target: AbsolutePath
    options: Options
    data: TmpfsData
    why: Why


class WriteFile(Strict):
    """Write a file: in a planned tmpfs, or as a step of a CDI hook on the root file system."""

    op: Literal["file"]
    path: AbsolutePath
    mode: Mode
    content: str
    why: Why


class Symlink(Strict):
    """Create a symbolic link."""

    op: Literal["symlink"]
    path: AbsolutePath
    target: str
    why: Why


class AllowDevice(Strict):
    """Allow a device in the container's cgroup."""

    op: Literal["allow-device"]
    type: Literal["c", "b"]
    major: Number
    minor: Number
    access: Annotated[str, StringConstraints(pattern=r"^r?w?m?$", min_length=1)]
    why: Why


class UpdateLoaderCache(Strict):
    """Rebuild the container's loader cache."""

    op: Literal["ldcache"]
    dirs: list[AbsolutePath]
    why: Why


class SetVariable(Strict):
    """Set a variable in the container's environment (CDI edits only)."""

    op: Literal["env"]
    name: Annotated[str, StringConstraints(min_length=1)]
    value: str
    why: Why


class AddGroup(Strict):
    """Add a group to those of the container's process (CDI edits only)."""

    op: Literal["group"]
    gid: Number
    why: Why


class RunHook(Strict):
    """Run an OCI hook (CDI edits only). The actions behind it are what the hook does."""

    op: Literal["hook"]
    stage: str
    path: AbsolutePath
    args: list[str]
    env: list[str] = Field(
        default_factory=list, description="its whole environment; if empty, the container's"
    )
    timeout: int | None = Field(default=None, description="seconds")
    why: Why


Mount = Annotated[Bind | Tmpfs, Field(discriminator="type")]
Action = Annotated[
    MakeDirectory
    | Mount
    | WriteFile
    | Symlink
    | AllowDevice
    | UpdateLoaderCache
    | SetVariable
    | AddGroup
    | RunHook,
    Field(discriminator="op"),
]


class Finding(Strict):
    """A note, a warning or an error for the reader."""

    id: str
    level: Literal["info", "warning", "error"]
    message: str
    hint: str


class PlanHost(Strict):
    """The host that the plan is for; empty if the decision did not depend on the host."""

    name: str | None = None
    root: AbsolutePath | None = Field(default=None, description="driver root")
    driver_version: str | None = None
    cuda_version: str | None = None


class ChainLink(Strict):
    """One step from a pod to the call of a runtime or hook."""

    layer: Literal["pod", "kubelet", "engine", "runtime", "hook"]
    step: str
    how: str
    fault: str = Field(description="what is broken there, or empty")


class Allocated(Strict):
    """What the device plugin answers for one resource of the pod's container."""

    resource: str
    devices: list[str] = Field(description="ids that the kubelet has chosen")
    answer: dict[str, JsonValue] = Field(
        description="the members of ContainerAllocateResponse (kubelet v1beta1), by its field names"
    )


class OfPod(Strict):
    """The way from a pod to its container's config.json."""

    allocated: list[Allocated]
    chain: list[ChainLink]


class Plan(Strict):
    """A decision, and the actions that carry it out; only `inject` has actions."""

    version: Literal["nvgraft.plan/1"] = Field(alias="schema")
    decision: Literal["inject", "skip", "refuse"]
    reason: str
    host: PlanHost
    request: dict[str, JsonValue] = Field(description="what the container asks for")
    target: dict[str, JsonValue] = Field(
        description="the directories of this container: rootfs, libs_dir, libs32_dir, ..."
    )
    actions: list[Action]
    links: dict[AbsolutePath, str] = Field(
        description="SONAME links that the loader cache step creates or replaces",
        json_schema_extra=ONLY_SUCH_NAMES,
    )
    findings: list[Finding]
    refusal: ErrorFacts | None = Field(default=None, description="only if the decision is refuse")
    pod: OfPod | None = Field(default=None, description="only with --pod")


def parse_plan(raw: bytes, path: str) -> Plan:
    """Parse the text of a plan.

    :param path: the path to name in errors.
    :raises DocumentError: when it is not a valid plan.
    """
    return parse(Plan, SCHEMA, raw, path)


def load_plan(path: str) -> Plan:
    """Read the plan at ``path``.

    :raises DocumentError: when it cannot be read, or is not a valid plan.
    """
    return parse_plan(read_bytes(path), path)
