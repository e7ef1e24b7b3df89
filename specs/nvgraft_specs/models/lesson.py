"""The document ``nvgraft.lesson/1``: a lesson of the lab, as a TOML file (docs/lessons.md)."""

from pathlib import PurePosixPath
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from nvgraft_specs.models import Strict

SCHEMA = "nvgraft.lesson/1"

#: Characters of a lesson; the largest of nvgraft's own has some thousand.
SIZE_LIMIT = 64 << 10

#: Where the containers of a lesson are on the node.
DIRECTORY = "/lesson"

#: Directories of the kernel, in which a file is this machine's own.
_OF_THE_KERNEL = ("/proc", "/sys")
_DRIVER = "/proc/driver"


def _checked_path(text: str) -> str:
    path = PurePosixPath(text)
    if not path.is_absolute() or ".." in path.parts or str(path) != text or text == "/":
        raise ValueError(f"{text!r} is not an absolute path without . and .. parts")
    kernel = any(text == place or text.startswith(f"{place}/") for place in _OF_THE_KERNEL)
    if kernel and not text.startswith(f"{_DRIVER}/"):
        raise ValueError(f"{text!r} is a file of this machine's kernel")
    return text


Word = Annotated[str, Field(pattern=r"^[^\x00\n]*$", max_length=1000)]
Text = Annotated[str, Field(pattern=r"^[^\x00-\x08\x0b-\x1f\x7f]*$", max_length=8000)]
Line = Annotated[
    str, Field(pattern=r"^[^\x00-\x1f\x7f]*$", min_length=1, max_length=300, strict=True)
]
NodePath = Annotated[str, Field(max_length=1000), AfterValidator(_checked_path)]
ContainerName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,30}$")]


class LessonMount(Strict):
    """A bind mount of a container."""

    source: NodePath
    destination: NodePath


class LessonContainer(Strict):
    """A container, as a bundle of its own."""

    image: Literal["debian", "static", "nix"] = Field(
        "debian",
        description="debian: busybox, a dynamic loader and the C library; static: busybox alone;"
        " nix: as debian, with a loader that reads /nix/etc/ld.so.cache",
    )
    program: Annotated[list[Word], Field(min_length=1, max_length=30)]
    env: Annotated[list[Word], Field(max_length=30)] = []
    mounts: Annotated[list[LessonMount], Field(max_length=10)] = []
    starts_with: Literal["hook", "runtime"] = Field(
        "hook",
        description="hook: runc calls nvgraft-hook; runtime: nvgraft-runtime takes runc's place",
    )
    cgroups: Literal["cgroupfs", "systemd"] = Field(
        "cgroupfs",
        description="the engine's cgroup driver, whose form linux.cgroupsPath of config.json has",
    )
    adds: dict[NodePath, Literal["cuda-stub", "other-driver", "cuda-compat"]] = Field(
        {},
        max_length=5,
        description="libcuda.so.1 that the image brings: the directory in the image, and which one:"
        " for linking alone (34), of another driver (803), or of cuda-compat on a GPU that it does"
        " not serve (804)",
    )


class LessonChange(Strict):
    """One change of the node or of an image, before the learner comes. One member besides ``path``
    (and ``mode``) says which."""

    path: NodePath
    text: Text | None = Field(None, description="write this file")
    mode: Annotated[str, Field(pattern=r"^0[0-7]{3,4}$")] = Field("0644", description="of the file")
    remove: Literal[True] | None = Field(None, description="remove the file, or the directory")
    replace: Annotated[list[Text], Field(min_length=2, max_length=2)] | None = Field(
        None, description="in this file, replace the first text by the second"
    )
    cdi_of: Line | None = Field(
        None, description="write the CDI specification of this host; named as ``node`` is"
    )

    @model_validator(mode="after")
    def _one_change(self) -> "LessonChange":
        given = (self.text, self.remove, self.replace, self.cdi_of)
        if sum(value is not None for value in given) != 1:
            raise ValueError("give one of text, remove, replace and cdi_of")
        return self


class LessonCheck(Strict):
    """A look into a container that is started for it, with its config.json as it is now."""

    container: ContainerName
    as_made: bool = Field(
        False,
        description="start it with the config.json of the lesson, whatever the learner has made of"
        " it: another container of the same kind",
    )
    run: Annotated[list[Word], Field(max_length=30)] = Field(
        [], description="the program, in place of the container's; empty: that of the lesson"
    )
    code: Annotated[int, Field(ge=0, le=255)] = Field(0, description="its exit code")
    says: Annotated[list[Line], Field(max_length=10)] = Field(
        [], description="what its output must have"
    )
    never: Annotated[list[Line], Field(max_length=10)] = Field(
        [], description="what its output must not have"
    )
    driver: bool = Field(
        False,
        description="cuda-check, which the program is or runs, must have loaded the node's"
        " libcuda.so.1, mounted by the container stack",
    )
    after: Literal["daemon-reload"] | None = Field(
        None,
        description="run the program in the running container again, after this event, and look"
        " at that output too",
    )
    why: Line = Field(description="what this look is for")


class WrongRepair(Strict):
    """A repair that comes to mind, and does not help."""

    commands: Annotated[list[Line], Field(min_length=1, max_length=10)]
    why: Text = Field(description="why it does not help")


class Lesson(Strict):
    """A lesson."""

    schema_: Literal["nvgraft.lesson/1"] = Field(alias="schema")
    title: Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=72)]
    node: Line = Field(
        description="a name of `nvgraft simulate --list`, or a line of `nvgraft simulate --make`"
    )
    failures: Annotated[list[Line], Field(max_length=5)] = Field(
        [], description="failures of the node, as `nvgraft simulate --fail` names them"
    )
    task: Text = Field(description="what the learner reads first: the symptom, not the cause")
    containers: dict[ContainerName, LessonContainer] = Field(min_length=1, max_length=3)
    changes: Annotated[list[LessonChange], Field(max_length=30)] = []
    check: Annotated[list[LessonCheck], Field(min_length=1, max_length=5)]
    hints: Annotated[list[Text], Field(min_length=1, max_length=6)]
    solution: Annotated[list[Line], Field(min_length=1, max_length=10)] = Field(
        description="commands that mend it, in the node's shell"
    )
    wrong: Annotated[list[WrongRepair], Field(min_length=1, max_length=4)]
    explanation: Text = Field(description="what the learner reads at the end")

    @model_validator(mode="after")
    def _known_containers(self) -> "Lesson":
        for check in self.check:
            if check.container not in self.containers:
                raise ValueError(f"there is no container {check.container!r} to check")
        return self
