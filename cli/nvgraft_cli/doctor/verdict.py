"""Say in one sentence each whether the host serves containers, and whether this one works."""

from collections.abc import Collection

from nvgraft.plan.actions import Injection
from nvgraft_cli.case.planning import NO_GPUS
from nvgraft_cli.doctor.cuda_devices import CudaDevices
from nvgraft_cli.doctor.examination import Result
from nvgraft_cli.doctor.patient import Patient
from nvgraft_specs import names


def verdict(patient: Patient, results: Collection[Result]) -> str:
    """Return the last line: about the container, or about the host if no container was given.

    :param results: of all checks, for what keeps a container that starts from working.
    """
    if patient.has_container:
        return container_verdict(patient, results)
    return host_verdict(patient, results)


def host_verdict(patient: Patient, results: Collection[Result]) -> str:
    """Return the sentence about the host alone."""
    found = [result for result in results if result.of_host and result.findings]
    if not patient.has_container:
        # Docker's settings and hooks are checked on the node for any container.
        found = [result for result in results if result.findings]
    error = next((result.failure for result in found if "error" in result.levels), None)
    if not patient.host_answers:
        title = error.title if error else "its driver does not answer"
        return f"This host does not serve GPU containers: {title}."
    if sentence := _sentence(found):
        return f"Containers start on this host, and {sentence}."
    if error is not None:
        return f"This host does not serve all GPU containers: {error.title}."
    words = "This host can serve GPU containers, as far as was checked"
    if not patient.host.gpus_known:
        words = f"{words} without its GPUs, which are not recorded"
    warnings = [result.failure.id for result in found if result.failure.id != NO_GPUS.id]
    return f"{words} (warnings: {', '.join(warnings)})." if warnings else f"{words}."


def container_verdict(patient: Patient, results: Collection[Result]) -> str:
    """Return the sentence about a container on the host."""
    if not patient.host_answers:
        return "No container gets a GPU on this host: its driver does not answer."
    if patient.refusal is not None:
        return f"This container does not start: {patient.refusal.text}."
    findings = [(result, finding) for result in results for finding in result.findings]
    if stopped := next((finding.message for _, finding in findings if finding.stops), ""):
        return f"This container does not start: {stopped}."
    if not isinstance(patient.plan, Injection):
        if patient.has_pod and patient.pod.elsewhere:
            return f"What this container gets was not checked: {patient.pod.elsewhere}."
        if patient.case.edited_before:
            return f"What this container gets was not checked: {patient.plan.reason}."
        return f"This container starts without a GPU: {patient.plan.reason}."
    errors = (
        finding.message
        for result, finding in findings
        if finding.level == "error" and not result.of_host
    )
    found = _what_cuda_finds(patient, _sentence(results), next(errors, ""))
    return f"This container starts{found}."


def makes_container_bad(patient: Patient, results: Collection[Result]) -> bool:
    """Tell whether a finding is about the container, or keeps it from its GPUs.

    :param results: those of the checks that count.
    """
    found = [result for result in results if result.findings]
    if not patient.host_answers or patient.refusal is not None:
        return bool(found)
    return any(not result.of_host for result in found) or _sentence(found) != ""


def _sentence(results: Collection[Result]) -> str:
    """Return how CUDA fails, in the words of the first finding that says it, or ""."""
    return next(
        (finding.sentence for result in results for finding in result.findings if finding.sentence),
        "",
    )


def _what_cuda_finds(patient: Patient, failure: str, other: str) -> str:
    """Return the rest of the sentence about a container that gets driver files.

    :param failure: how CUDA fails although the host's libcuda loads, or "".
    :param other: what is wrong beside CUDA, or "".
    """
    devices = patient.cuda_devices
    known = patient.host.gpus_known or not patient.injected.request.devices
    if known and not (devices.given or devices.closed):
        files = any(bind.origin == "driver" for bind in patient.binds())
        return f", {'with' if files else 'without'} the driver's files and without a GPU"
    if not {"compute", "video"} & set(patient.injected.request.capabilities):
        return f", and CUDA finds no driver: {names.DRIVER_CAPABILITIES} lacks compute"
    if not patient.container.rootfs_known:
        return "; whether CUDA is found is not known without the image's files"
    proof = patient.proof("libcuda.so.1")
    if proof.verdict == "no":
        return f", and CUDA does not load: {proof.load.failures[0].words}"
    if proof.final.foreign:
        final = proof.final
        return f", and its programs load {final.path} of {final.origin}: {final.consequence}"
    if failure:
        return f", and {failure}"
    driver = f"driver {patient.injected.host.driver_version}"
    if known:
        words = f", and CUDA finds {_found(devices)} ({_setting(devices)}{driver})"
    else:
        words = f", and CUDA loads ({driver}); which GPUs it finds is not known"
    return f"{words}; to be mended: {other}" if other else words


def _found(devices: CudaDevices) -> str:
    """Return how many devices CUDA finds, and of how many if CUDA_VISIBLE_DEVICES names fewer."""
    if devices.found and devices.found[0].mig:
        return "one MIG device"
    count, given = len(devices.found), len(devices.given)
    return f"{count}{f' of {given}' * (count != given)} {'GPU' if given == 1 else 'GPUs'}"


def _setting(devices: CudaDevices) -> str:
    return "" if devices.named == devices.given else f"{devices.setting}, "
