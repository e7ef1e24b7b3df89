"""Say in one sentence each whether the host serves containers, and whether this one works."""

import posixpath
from collections.abc import Collection
from typing import NamedTuple

from nvgraft.plan.actions import Injection
from nvgraft_cli.case.planning import NO_GPUS
from nvgraft_cli.doctor.cuda_devices import CudaDevices
from nvgraft_cli.doctor.examination import Result
from nvgraft_cli.doctor.patient import Patient
from nvgraft_specs import names

#: The id of the finding about a container that asks for no GPU.
_ASKS_FOR_NONE = "devices-not-requested"


class Verdict(NamedTuple):
    """What becomes of a container.

    :ivar level: ``good`` where it gets what it asks for, ``mend`` where CUDA finds its GPUs and
        something else is wrong, ``bad`` where it does not get what it asks for, ``plain`` where it
        asks for no GPU or the answer is not known.
    :ivar short: in two or three words.
    :ivar sentence: with the reason.
    """

    level: str
    short: str
    sentence: str


def host_verdict(patient: Patient, results: Collection[Result]) -> str:
    """Return the sentence about the host alone.

    :param results: those of the checks that count.
    """
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


def container_verdict(patient: Patient, results: Collection[Result]) -> Verdict:
    """Return what becomes of a container on the host.

    :param results: of all checks, for what keeps a container that starts from working.
    """
    if not patient.host_answers:
        words = "No container gets a GPU on this host: its driver does not answer."
        return Verdict("bad", "No GPU", words)
    if patient.refusal is not None:
        return _not_started(patient.refusal.text)
    findings = [(result, finding) for result in results for finding in result.findings]
    if stopped := next((finding.message for _, finding in findings if finding.stops), ""):
        return _not_started(stopped)
    errors = [
        (result.failure.id, finding.message)
        for result, finding in findings
        if finding.level == "error" and not result.of_host
    ]
    if not isinstance(patient.plan, Injection):
        elsewhere = patient.pod.elsewhere if patient.has_pod else ""
        if elsewhere or patient.case.edited_before:
            reason = elsewhere or patient.plan.reason
            words = f"What this container gets was not checked: {reason}."
            return Verdict("plain", "Not checked", words)
        level = "bad" if any(identifier != _ASKS_FOR_NONE for identifier, _ in errors) else "plain"
        words = f"This container starts without a GPU: {patient.plan.reason}."
        return Verdict(level, "No GPU", words)
    other = errors[0][1] if errors else _broken(results)
    level, short, found = _what_cuda_finds(patient, _sentence(results), other)
    return Verdict(level, short, f"This container starts{found}.")


def _not_started(reason: str) -> Verdict:
    return Verdict("bad", "Does not start", f"This container does not start: {reason}.")


def makes_container_bad(patient: Patient, results: Collection[Result]) -> bool:
    """Tell whether a finding is about the container, or keeps it from its GPUs.

    :param results: those of the checks that count.
    """
    found = [result for result in results if result.findings]
    if not patient.host_answers or patient.refusal is not None:
        return bool(found)
    return any(not result.of_host for result in found) or _sentence(found) + _broken(found) != ""


def _sentence(results: Collection[Result]) -> str:
    """Return how CUDA fails, in the words of the first finding that says it, or ""."""
    return next(
        (finding.sentence for result in results for finding in result.findings if finding.sentence),
        "",
    )


def _broken(results: Collection[Result]) -> str:
    """Return what of the driver fails, in the words of the first finding that says it, or ""."""
    return next(
        (finding.breaks for result in results for finding in result.findings if finding.breaks), ""
    )


def _what_cuda_finds(patient: Patient, failure: str, other: str) -> tuple[str, str, str]:
    """Return level, short words and the rest of the sentence for a container with driver files.

    :param failure: how CUDA fails although the host's libcuda loads, or "".
    :param other: what is wrong beside CUDA, or "".
    """
    request, devices = patient.injected.request, patient.cuda_devices
    mend = f"; to be mended: {other}" if other else ""
    known = patient.host.gpus_known or not request.devices
    if known and not (devices.given or devices.closed):
        files = any(bind.origin == "driver" for bind in patient.binds())
        words = f", {'with' if files else 'without'} the driver's files and without a GPU"
        return "bad" if request.devices else "plain", "No GPU", words
    if not {"compute", "video"} & set(request.capabilities):
        finds = "CUDA finds no driver"
        if patient.container.rootfs_known:
            final = patient.proof("libcuda.so.1").final
            if final.foreign:
                finds = f"its programs load {final.path} of {final.origin}"
        words = f", and {finds}: {names.DRIVER_CAPABILITIES} lacks compute{mend}"
        return "mend" if other else "plain", "No CUDA", words
    if not patient.container.rootfs_known:
        words = f"; whether CUDA is found is not known without the image's files{mend}"
        return "mend" if other else "plain", "Not known", words
    proof = patient.proof("libcuda.so.1")
    if proof.verdict == "no":
        first = proof.load.failures[0]
        words = f", and CUDA does not load: {first.words}"
        if proof.program_ends:
            said = first.words.removeprefix(f"{proof.program}: ")
            words = f", and its program ends at once: {proof.program}: {said}"
        return "bad", "CUDA does not load", words
    final = proof.final
    compat = final.is_compat and (
        failure != "" or (final.is_newer_compat and known and not patient.consumer_gpus)
    )
    if final.foreign and not compat:
        words = f", and its programs load {final.path} of {final.origin}: {final.consequence}"
        return "bad" if other else "plain", "Another libcuda", words
    if failure:
        return "bad", "CUDA fails", f", and {failure}"
    driver = f"driver {patient.injected.host.driver_version}"
    if compat:
        name = posixpath.basename(final.path)
        driver += f", with the image's forward compatibility library {name}"
    if known:
        words = f", and CUDA finds {_found(devices)} ({_setting(devices)}{driver})"
    else:
        words = f", and CUDA loads ({driver}); which GPUs it finds is not known"
    load = proof.load
    doubts = (load.scripted, *load.perhaps.values(), load.computed, load.unfit)
    if unknown := next(filter(None, doubts), ""):
        words += f"; not known is {unknown}"
    if other:
        return "mend", "To be mended", words + mend
    return "good" if known else "plain", "Works" if known else "GPUs not known", words


def _found(devices: CudaDevices) -> str:
    """Return how many devices CUDA finds, and of how many if CUDA_VISIBLE_DEVICES names fewer."""
    if devices.found and devices.found[0].mig:
        return "one MIG device"
    count, given = len(devices.found), len(devices.given) + len(devices.closed)
    return f"{count}{f' of {given}' * (count != given)} {'GPU' if given == 1 else 'GPUs'}"


def _setting(devices: CudaDevices) -> str:
    return "" if devices.named == devices.given else f"{devices.setting}, "
