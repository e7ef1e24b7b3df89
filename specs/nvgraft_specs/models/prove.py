"""The document ``nvgraft.prove/1``: whether libraries and programs load in the container, and from
where (``nvgraft prove``)."""

from typing import Annotated, Literal

from pydantic import Field

from nvgraft_specs.models import Strict

SCHEMA = "nvgraft.prove/1"

Verdict = Annotated[
    Literal["yes", "no", "unknown"],
    Field(description="unknown: it loads, as far as the host's snapshot tells"),
]


class Object(Strict):
    """A loaded program or library, with the objects that it needs."""

    name: str = Field(description="the name that requested it")
    path: str
    how: str = Field(description="the rule by which it was found")
    side: Literal["host", "image"] = Field(alias="from")
    needs: list["Object"] = Field(
        description="empty also where the object appears in the tree a second time"
    )


class Tried(Strict):
    """A path that the loader tried and did not take."""

    path: str
    reason: str


class Failure(Strict):
    """An error of the loader."""

    asked_by: str = Field(description="the object that needs it, or empty")
    name: str
    words: str
    tried: list[Tried]


class FinalFile(Strict):
    """The file that is loaded in the end."""

    path: str = Field(description="symbolic links followed")
    side: Literal["host", "image"] = Field(alias="from")
    how: str = Field(description="the rule by which it was found")
    instead_of_host: bool = Field(
        description="whether it is loaded in place of a library of the host's driver"
    )
    consequence: str = Field(description="what happens because it is the image's, or empty")


class Proof(Strict):
    """The answer about one program or library."""

    what: str = Field(description="as it was given")
    verdict: Verdict
    file: FinalFile | None = Field(description="null where nothing is loaded")
    program: str = Field(description="the program that opens the library, or empty")
    loader: str
    objects: Object | None = Field(description="null where not even the first object was found")
    failures: list[Failure] = Field(description="in the loader's order")
    unknown: list[str] = Field(description="facts that the snapshot does not record")
    notes: list[str]


class CudaLibrary(Strict):
    """A library of CUDA that is loaded with a module."""

    name: str
    path: str
    side: Literal["host", "image"] = Field(alias="from")
    how: str = Field(description="the rule by which it was found")


class Module(Strict):
    """The answer about one module of the image's Python."""

    module: str = Field(description="as it was given")
    version: str = Field(description="of its distribution, or empty")
    path: str = Field(description="the module, the package, or the distribution's metadata")
    verdict: Verdict
    program: str = Field(description="the Python that imports it")
    loader: str
    extensions: list[Proof] = Field(
        description="its extension modules, each judged in a process of its own"
    )
    libraries: list[Proof] = Field(
        description="other libraries of it, and those of NVIDIA's wheels beside it that do not "
        "load: its code may open them"
    )
    cuda: list[CudaLibrary]
    driver: list[Proof] = Field(description="the driver's libraries that CUDA opens")
    notes: list[str]


class Proofs(Strict):
    """One proof for each argument, in their order."""

    version: Literal["nvgraft.prove/1"] = Field(alias="schema")
    proofs: list[Proof]
    modules: list[Module] = Field(description="one for each --python, in their order")
