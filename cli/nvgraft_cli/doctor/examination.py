"""Run all checks, in the order in which their failures would occur, and collect the results."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

from nvgraft.base.errors import HOST_NOT_OPENED, Refusal
from nvgraft.cdi.channels import DIRECTORY
from nvgraft_cli.case.edits import Unmountable
from nvgraft_cli.doctor import (
    cdi_checks,
    container_checks,
    device_checks,
    edit_checks,
    host_checks,
    loading_checks,
    pod_checks,
    start_checks,
)
from nvgraft_cli.doctor.patient import Check, Diagnosis, NotChecked, Patient
from nvgraft_cli.shell import logs
from nvgraft_specs.checks import FAILURES, Failure

#: The check of each failure, by the failure's id.
CHECKS: dict[str, Check] = {
    "driver-not-loaded": host_checks.driver_not_loaded,
    "driver-library-mismatch": host_checks.driver_library_mismatch,
    "nvml-library-missing": host_checks.nvml_library_missing,
    "cuda-library-missing": host_checks.cuda_library_missing,
    "host-layout": host_checks.host_layout,
    "gpus-not-recorded": host_checks.gpus_not_recorded,
    "nvml-slow": host_checks.nvml_slow,
    "fabric-manager": host_checks.fabric_manager,
    "gpu-errors": host_checks.gpu_errors,
    "ldconfig-unusable": host_checks.ldconfig_unusable,
    "cgroup-not-found": device_checks.cgroup_not_found,
    "hook-not-installed": host_checks.hook_not_installed,
    "mode-not-legacy": host_checks.mode_not_legacy,
    "cdi-stale": host_checks.cdi_stale,
    "cdi-directories": cdi_checks.cdi_directories,
    "pod-runtime-class": pod_checks.pod_runtime_class,
    "pod-strategy": pod_checks.pod_strategy,
    "pod-all-gpus": pod_checks.pod_all_gpus,
    "pod-cpu-manager": pod_checks.pod_cpu_manager,
    "pod-dra-and-plugin": pod_checks.pod_dra_and_plugin,
    "hook-registration": container_checks.hook_registration,
    "devices-not-requested": container_checks.devices_not_requested,
    "cdi-and-legacy": container_checks.cdi_and_legacy,
    "devices-from-image": container_checks.devices_from_image,
    "capability-not-requested": container_checks.capability_not_requested,
    "mig-privilege": container_checks.mig_privilege,
    "unknown-device": container_checks.unknown_device,
    "repeated-ids": container_checks.repeated_ids,
    "requirement-unmet": container_checks.requirement_unmet,
    "rootless": device_checks.rootless,
    "device-filter": device_checks.device_filter,
    "device-rules-lost": device_checks.device_rules_lost,
    "device-permissions": device_checks.device_permissions,
    "mig-devices": device_checks.mig_devices,
    "cuda-visible-devices": device_checks.cuda_visible_devices,
    "target-is-symlink": container_checks.target_is_symlink,
    "loader-cache-mounted": start_checks.loader_cache_mounted,
    "socket-in-the-way": container_checks.socket_in_the_way,
    "image-has-driver": container_checks.image_has_driver,
    "compat-libraries": container_checks.compat_libraries,
    "graphics-incomplete": container_checks.graphics_incomplete,
    "cdi-incomplete": edit_checks.cdi_incomplete,
    "image-architecture": loading_checks.image_architecture,
    "program-missing": start_checks.program_missing,
    "loader-missing": loading_checks.loader_missing,
    "library-path": loading_checks.library_path,
    "library-shadowed": loading_checks.library_shadowed,
    "soname-links-missing": loading_checks.soname_links_missing,
    "glibc-too-old": loading_checks.glibc_too_old,
    "cuda-too-new": loading_checks.cuda_too_new,
    "simulated-driver": loading_checks.simulated_driver,
    "simulated-runtime": loading_checks.simulated_runtime,
    "tmp-missing": container_checks.tmp_missing,
    "stderr-hidden": container_checks.stderr_hidden,
}

_BY_ID = {failure.id: failure for failure in FAILURES}

#: The checks that are about the host alone: what they find does not make an image bad.
HOST_CHECKS = frozenset(
    identifier
    for identifier, check in CHECKS.items()
    if check.__module__ in {host_checks.__name__, cdi_checks.__name__}
    and identifier not in {"hook-not-installed", "mode-not-legacy"}
) | {"simulated-driver"}

#: Those that do not look at the container at all: on one host they find the same for each.
CHECKS_WITHOUT_CONTAINER = HOST_CHECKS - {
    "nvml-library-missing",
    "cuda-library-missing",
    "cdi-stale",
    "simulated-driver",
}

#: The checks that look at the devices of a container that gets the driver. What the others find
#: depends on the host, on config.json, and on the driver's files and capabilities.
DEVICE_CHECKS = frozenset(
    identifier
    for identifier, check in CHECKS.items()
    if check.__module__ in {device_checks.__name__, pod_checks.__name__}
) | {
    "hook-not-installed",
    "devices-not-requested",
    "cdi-and-legacy",
    "devices-from-image",
    "repeated-ids",
    "cdi-incomplete",
}

#: The checks that are made for a pod only.
POD_CHECKS = frozenset(
    identifier for identifier, check in CHECKS.items() if check.__module__ == pod_checks.__name__
)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one check.

    :ivar lacking: why the check was not made, or not completed; "" where it was. A complete check
        without findings has passed.
    """

    failure: Failure
    findings: tuple[Diagnosis, ...]
    lacking: str = ""

    @property
    def of_host(self) -> bool:
        """Whether the check, or all that it found, is about the host alone."""
        return self.failure.id in HOST_CHECKS or (
            self.findings != () and all(finding.of_host for finding in self.findings)
        )

    @property
    def levels(self) -> set[str]:
        """The levels of its findings."""
        return {finding.level for finding in self.findings}

    def document(self) -> dict[str, Any]:
        """Return the result as in ``nvgraft.doctor/1``."""
        return {
            "id": self.failure.id,
            "title": self.failure.title,
            "phrase": self.failure.phrase,
            "about": "host" if self.of_host else "container",
            "status": "found" if self.findings else "not-checked" if self.lacking else "ok",
            "lacking": self.lacking,
            "findings": [
                {
                    "level": finding.level,
                    "message": finding.message,
                    "cause": finding.cause,
                    "fix": finding.fix,
                    "phrase": finding.phrase or self.failure.phrase,
                }
                for finding in self.findings
            ],
        }


def examine(patient: Patient, known: Iterable[Result] = ()) -> list[Result]:
    """Run every check; without a pod those of pods are left out.

    A refusal of the hook that no check explains becomes a finding: the container would not start.

    :param known: results of checks that are not run, because they are the same for this patient.
    :raises nvgraft_cli.shell.errors.InputError: when an input cannot be read.
    """
    given = {result.failure.id: result for result in known}
    results = {
        identifier: given.get(identifier) or _run(_BY_ID[identifier], check, patient)
        for identifier, check in CHECKS.items()
        if patient.has_pod or identifier not in POD_CHECKS
    }
    refusal = _refusal(patient)
    if refusal is not None:
        _explain(refusal, patient, results)
    return list(results.values())


def selected(results: list[Result], ignored: Collection[str], level: str) -> list[Result]:
    """Return the results without the findings that are not asked for.

    :param ignored: ids of failures.
    :param level: ``error`` leaves out warnings.
    """
    return [
        replace(
            result,
            findings=tuple(
                finding for finding in result.findings if level in {"warning", finding.level}
            ),
        )
        for result in results
        if result.failure.id not in ignored
    ]


def _run(failure: Failure, check: Check, patient: Patient) -> Result:
    findings: list[Diagnosis] = []
    try:
        for finding in check(patient):
            findings.append(finding)  # noqa: PERF402 - keep the findings of a check that breaks off
    except NotChecked as error:
        logs.debug("skipped", check=failure.id, reason=str(error))
        return Result(failure, tuple(findings), str(error))
    except Refusal as refusal:
        lacking = f"this must be fixed first: {refusal.reference_line()}"
        return Result(failure, tuple(findings), lacking)
    return Result(failure, tuple(findings))


def _refusal(patient: Patient) -> Refusal | None:
    """Return why the hook would refuse the container, or any container where none was given."""
    try:
        if patient.has_container:
            return patient.refusal
        return patient.host.facts.refusal
    except Refusal as refusal:
        return refusal


def _explain(refusal: Refusal, patient: Patient, results: dict[str, Result]) -> None:
    """Add the refusal to ``results``, unless a check has explained it already."""
    from nvgraft_cli.explain_error.analysis import analyse

    meanings = analyse(refusal.line()).meanings
    identifier = next((meaning.failure for meaning in meanings if meaning.failure), "refused")
    explaining = {
        identifier,
        "pod-strategy",
        "requirement-unmet",
        "unknown-device",
        "target-is-symlink",
        "mode-not-legacy",
        "loader-cache-mounted",
    }
    if not patient.has_container and identifier not in HOST_CHECKS:
        identifier = "refused"
    if refusal.kind == HOST_NOT_OPENED:
        identifier = "host-layout"
        explaining = {identifier}
    elif identifier == "host-layout" and patient.has_container:
        # The same words of a path in the container.
        label = patient.rootfs.label
        identifier = "refused" if label and label in refusal.text else identifier
    if DIRECTORY in refusal.text:  # a channel, not the driver, is missing
        identifier = "unknown-device"
        explaining = {identifier}
    if isinstance(refusal, Unmountable):
        identifier = "cdi-stale"
        explaining = {identifier}
    if any(results[name].findings for name in explaining & set(results)):
        return
    handover = patient.case.handover if patient.has_container else None
    title = "the hook would refuse this container"
    if handover is not None and handover.refusal is refusal:
        title = "this pod's container is not created"
    failure = _BY_ID.get(identifier) or Failure("refused", title, refusal.text)
    cause = meanings[0].cause if meanings else refusal.hint
    if isinstance(refusal, Unmountable):
        cause = "the CDI edits are of another driver than the host's"
    fix = refusal.hint or "run nvgraft explain-error with this message"
    finding = Diagnosis(refusal.reference_line(), cause, fix, phrase=refusal.text)
    results[identifier] = Result(failure, (finding,))
