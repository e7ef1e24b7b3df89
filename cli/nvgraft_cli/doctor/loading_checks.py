"""Checks of what will load in the container: the answers of ``nvgraft prove``, as findings."""

from collections.abc import Iterator

from nvgraft.formats.tree import PathError
from nvgraft_cli.doctor.patient import Finding, NotChecked, Patient
from nvgraft_cli.prove.loading import Failure
from nvgraft_cli.prove.proof import Proof, prove

_SMI = "/usr/bin/nvidia-smi"
_MISSING = "cannot open shared object file"


def _proof(patient: Patient, what: str) -> Proof:
    return prove(
        what, None, patient.planned, patient.injected, patient.container, patient.host.isa_level
    )


def _cuda(patient: Patient) -> Proof:
    asked = set(patient.injected.request["capabilities"])
    if not asked & {"compute", "video"}:
        raise NotChecked("neither compute nor video is asked for: libcuda.so.1 is not mounted")
    return _proof(patient, "libcuda.so.1")


def _other_failure(proof: Proof) -> None:
    """A load that fails for another reason says nothing about the one that is looked for."""
    if proof.verdict == "no" and proof.load.failures:
        raise NotChecked(
            f"libcuda.so.1 does not load for another reason: {proof.load.failures[0].words}"
        )


def loader_missing(patient: Patient) -> Iterator[Finding]:
    """NVIDIA/nvidia-container-toolkit#243, #128; NVIDIA/nvidia-docker#809."""
    if all(bind.target != _SMI for bind in patient.binds()):
        raise NotChecked("nvidia-smi is not mounted")
    proof = _proof(patient, _SMI)
    failure = next(iter(proof.load.failures), None)
    if failure is not None and failure.name == proof.loader:
        musl = next((note for note in proof.notes if "musl" in note), "")
        yield Finding(
            f'"no such file or directory" is about the ELF interpreter: nvidia-smi needs {proof.loader}, which the image lacks'
            + (f"; {musl}" if musl else ""),
            "the driver's programs and libraries are built for glibc",
            "an image with glibc (debian, ubuntu, ubi, distroless/cc)",
        )


def library_path(patient: Patient) -> Iterator[Finding]:
    """NVIDIA/nvidia-container-toolkit#128, #944; Nix and distroless images whose loader never looks into /usr/lib64."""
    proof = _cuda(patient)
    failure = next(
        (
            failure
            for failure in proof.load.failures
            if failure.name == "libcuda.so.1" and _MISSING in failure.words
        ),
        None,
    )
    if failure is None:
        _other_failure(proof)
        return
    place = patient.injected.target["libs_dir"]
    looked = ", ".join(dict.fromkeys(path.rpartition("/")[0] for path, _ in failure.tried))
    yield Finding(
        f"libcuda.so.1: cannot open shared object file: it is mounted in {place}, and the loader looks in {looked}",
        "the image's loader was built with other directories, and does not read /etc/ld.so.cache",
        f"LD_LIBRARY_PATH={place} in the container's environment",
    )


def soname_links_missing(patient: Patient) -> Iterator[Finding]:
    """NVIDIA/nvidia-docker#1399, #1301; NVIDIA/nvidia-container-toolkit#1099, #944; kata-containers/kata-containers#12582."""
    tree = patient.planned
    links = {path for path, _ in patient.injected.links}
    lost = []
    for bind in patient.binds():
        if ".so." not in bind.target or bind.kind != "file":
            continue
        try:
            facts = tree.elf(bind.target, sections=False)
        except (OSError, ValueError):
            continue
        directory, _, name = bind.target.rpartition("/")
        wanted = f"{directory}/{facts.soname}"
        if facts.soname in {None, name} or wanted in links:
            continue
        try:
            leads = tree.find(wanted)[0]
        except (PathError, OSError):
            leads = ""
        if leads != bind.target:
            lost.append((wanted, name))
    if lost:
        wanted, name = lost[0]
        yield Finding(
            f"{wanted} will not lead to {name}"
            + (
                f", nor will {len(lost) - 1} more names to their libraries" if len(lost) > 1 else ""
            ),
            "something else has that name in the image, or a greater version stands beside it",
            f"remove {', '.join(path for path, _ in lost)} and their kin from the image",
        )


def glibc_too_old(patient: Patient) -> Iterator[Finding]:
    """apptainer/apptainer#945, #598, #1080, #2421."""
    proof = _cuda(patient)
    found: list[Failure] = [
        failure for failure in proof.load.failures if "version `" in failure.words
    ]
    if any("versions" in text for text in proof.load.unknown) and not found:
        raise NotChecked("the snapshot does not record which versions of glibc the driver needs")
    if not found:
        _other_failure(proof)
    for failure in found[:1]:
        yield Finding(
            failure.words,
            "a library of the host was built with a newer glibc than the image has",
            "a newer base image",
        )
