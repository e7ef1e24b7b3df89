"""The plan ``nvgraft.plan/1``: everything that the applier does to one container, in order, and why.

Only the document, for people and tools that read plans. The engine has its own values (``nvgraft.plan.actions``), which write it.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, StringConstraints, model_validator

from . import ONLY_SUCH_NAMES, PLAIN_PATH, Strict, parse, read_bytes

SCHEMA = "nvgraft.plan/1"

#: An edited plan leads nowhere but where it says.
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
    """Make one directory."""

    op: Literal["dir"]
    path: AbsolutePath
    mode: Mode
    why: Why


class Bind(Strict):
    """Bind a file, directory, device node or socket of the host."""

    op: Literal["mount"]
    type: Literal["bind"]
    kind: Literal["file", "dir", "device", "socket"]
    source: AbsolutePath
    target: AbsolutePath
    options: Options
    mode: Mode = Field(description="of the placeholder")
    rdev: tuple[Number, Number] | None = Field(
        default=None, description="major and minor number; devices only"
    )
    why: Why

    @model_validator(mode="after")
    def _device_has_a_number(self) -> Self:
        if self.kind == "device" and self.rdev is None:
            raise ValueError("a device needs its rdev")
        return self


class TmpfsData(Strict):
    """Options of the file system itself."""

    mode: Mode


class Tmpfs(Strict):
    """Mount a new tmpfs, which already holds what the `file` actions put in it."""

    op: Literal["mount"]
    type: Literal["tmpfs"]
    source: Literal["tmpfs"]
    target: AbsolutePath
    options: Options
    data: TmpfsData
    why: Why


class WriteFile(Strict):
    """Make a file inside a planned tmpfs."""

    op: Literal["file"]
    path: AbsolutePath
    mode: Mode
    content: str
    why: Why


class Symlink(Strict):
    """Make a symbolic link."""

    op: Literal["symlink"]
    path: AbsolutePath
    target: str
    why: Why


class AllowDevice(Strict):
    """Let the container's cgroup use a device."""

    op: Literal["allow-device"]
    type: Literal["c"]
    major: Number
    minor: Number
    access: Annotated[str, StringConstraints(pattern=r"^r?w?m?$", min_length=1)]
    why: Why


class UpdateLoaderCache(Strict):
    """Rebuild the container's loader cache."""

    op: Literal["ldcache"]
    dirs: list[AbsolutePath]
    why: Why


Mount = Annotated[Bind | Tmpfs, Field(discriminator="type")]
Action = Annotated[
    MakeDirectory | Mount | WriteFile | Symlink | AllowDevice | UpdateLoaderCache,
    Field(discriminator="op"),
]


class Finding(Strict):
    """Something that a person should know."""

    id: str
    level: Literal["info", "warning", "error"]
    message: str
    hint: str


class PlanHost(Strict):
    """The host that the plan is for; absent members: nothing was asked of the host."""

    name: str | None = None
    root: AbsolutePath | None = Field(default=None, description="driver root")
    driver_version: str | None = None
    cuda_version: str | None = None


class Plan(Strict):
    """A decision and all that carries it out; only `inject` has actions."""

    version: Literal["nvgraft.plan/1"] = Field(alias="schema")
    decision: Literal["inject", "skip", "refuse"]
    reason: str
    host: PlanHost
    request: dict[str, JsonValue] = Field(description="what the container asks for")
    target: dict[str, JsonValue] = Field(
        description="where things go in this container: rootfs, libs_dir, libs32_dir, ..."
    )
    actions: list[Action]
    links: dict[AbsolutePath, str] = Field(
        description="SONAME links that the loader cache step makes or replaces",
        json_schema_extra=ONLY_SUCH_NAMES,
    )
    findings: list[Finding]


def parse_plan(raw: bytes, path: str) -> Plan:
    """Turn the text of a plan into its model.

    :param path: named in errors.
    :raises DocumentError: one line with path, cause and fix.
    """
    return parse(Plan, SCHEMA, raw, path)


def load_plan(path: str) -> Plan:
    """Read the plan at ``path``.

    :raises DocumentError: one line with path, cause and fix.
    """
    return parse_plan(read_bytes(path), path)
