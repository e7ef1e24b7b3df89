"""Say in one sentence whether the container starts, and whether CUDA finds its GPUs."""

import re

from nvgraft.plan.actions import Injection
from nvgraft_cli.doctor.examination import HOST_CHECKS, Result
from nvgraft_cli.doctor.patient import Patient
from nvgraft_specs import names

_GPU_NODE = re.compile(r"/dev/nvidia\d+")


def verdict(patient: Patient, results: list[Result]) -> str:
    """Return the sentence about the container, or about the host if no container was given.

    :param results: of all checks, for what keeps a container that starts from working.
    """
    error = next(
        (
            result.failure
            for result in results
            for finding in result.findings
            if finding.level == "error"
            and (not patient.has_container or result.failure.id not in HOST_CHECKS)
        ),
        None,
    )
    if not patient.has_container:
        if error is not None:
            return f"This host does not serve GPU containers: {error.title}."
        return "This host can serve GPU containers, as far as was checked."
    if not patient.host_answers:
        return "No container gets a GPU on this host: its driver does not answer."
    if patient.refusal is not None:
        return f"This container does not start: {patient.refusal.text}."
    if not isinstance(patient.plan, Injection):
        return f"This container starts without a GPU: {patient.plan.reason}."
    sentence = next(
        (finding.sentence for result in results for finding in result.findings if finding.sentence),
        "",
    )
    problem = sentence or (f"this is to be mended: {error.title}" if error else "")
    return f"This container starts{_what_cuda_finds(patient, problem)}."


def _what_cuda_finds(patient: Patient, problem: str) -> str:
    """Return the rest of the sentence about a container that gets driver files.

    :param problem: what a check says of a container in which the host's libcuda loads, or "".
    """
    gpus = len({bind.rdev for bind in patient.binds() if _GPU_NODE.fullmatch(bind.target)})
    if not gpus:
        return ", with the driver's files and without a GPU"
    if not {"compute", "video"} & set(patient.injected.request.capabilities):
        return f", and CUDA finds no driver: {names.DRIVER_CAPABILITIES} lacks compute"
    if not patient.container.rootfs_known:
        return "; whether CUDA is found is not known without the image's files"
    proof = patient.proof("libcuda.so.1")
    if proof.verdict == "no":
        return f", and CUDA does not load: {proof.load.failures[0].words}"
    if proof.final.foreign:
        return f", and its programs load {proof.final.path} of the image: {proof.final.consequence}"
    if problem:
        return f", and {problem}"
    noun = "GPU" if gpus == 1 else "GPUs"
    return f", and CUDA finds {gpus} {noun} (driver {patient.injected.host.driver_version})"
