"""Checks of a container: what it asks for, and what its image contains.

The docstring of each check names the threads that reported the failure.
"""

import posixpath
import re
from collections.abc import Iterable, Iterator

from nvgraft.base.errors import NO_SUCH_DEVICE, NOT_PRIVILEGED, WRONG_MODE, Refusal
from nvgraft.formats.tree import PathError
from nvgraft.host.gpus import DriverReport
from nvgraft.request.request import (
    Skip,
    device_variables,
    requested_devices,
    requirements_of,
)
from nvgraft.request.requirements import alternatives, check
from nvgraft_cli.case.cdi_requests import trouble, unheard
from nvgraft_cli.case.rewritten import is_cdi_hook
from nvgraft_cli.doctor.host_checks import gpu_hooks
from nvgraft_cli.doctor.patient import Diagnosis, NotChecked, Patient
from nvgraft_cli.prove.opened import opened_libraries
from nvgraft_specs import brands, catalogue, names

_PREFIXES = tuple(row.name for row in catalogue.LIBRARIES)
_VERSIONED = re.compile(r"^(lib[\w+-]+\.so)\.(\d{3,4}\.\d+(?:\.\d+)?)$")

#: The stages at which the hook is called.
_BEFORE = ("prestart", "createRuntime")

#: Alternatives of requirements to list: a CUDA image has some thirty, a hostile one any number.
_ALTERNATIVES = 100

#: Files of an image that work only with a capability.
_CAPABILITY_FILES = {
    "graphics": tuple(
        f"/usr/{directory}/{library}"
        for directory in ("lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "lib64")
        for library in ("libvulkan.so.1", "libEGL.so.1")
    ),
    "video": ("/usr/bin/ffmpeg", "/usr/local/bin/ffmpeg", "/usr/lib/jellyfin-ffmpeg/ffmpeg"),
}


def devices_not_requested(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``devices-not-requested``: the container asks for no GPU, so it gets none, and no
    error says so.

    Reported in NVIDIA/nvidia-container-toolkit#718, #672; NVIDIA/nvidia-docker#1668, #1226;
    containers/podman#16839.
    """
    outcome = requested_devices(patient.container.spec, patient.host.config)
    if isinstance(outcome, Skip):
        if patient.case.edited_before:
            raise NotChecked(patient.case.edited_before)
        if patient.case.decision.request is not None or patient.case.looks_up_devices:
            return  # annotations request devices
        if patient.case.before_runtime:
            elsewhere = patient.pod.elsewhere if patient.has_pod else ""
            raise NotChecked(
                elsewhere or "the pod's container comes to no runtime that adds a driver"
            )
        if named := unheard(patient.case):
            yield Diagnosis(f"the container gets nothing: {outcome.reason}", *named)
            return
        if patient.has_pod:
            yield Diagnosis(
                f"the container gets nothing: {outcome.reason}",
                "its container asks the kubelet for no device of NVIDIA's; the program then finds"
                " no GPU",
                patient.pod.advice,
            )
            return
        if patient.case.started is not None:
            way = f"{patient.way_to_gpus}, or name CDI devices (docker --device nvidia.com/gpu=all"
            if patient.case.reads_annotations:
                way += ", or an annotation that begins with cdi.k8s.io/"
            yield Diagnosis(
                f"the container gets nothing: {outcome.reason}",
                f"nvgraft-runtime in mode {patient.case.acting_mode} adds and says nothing "
                "when a container asks for no device; the program then finds no GPU",
                f"{way})",
            )
            return
        yield Diagnosis(
            f"the container gets nothing: {outcome.reason}",
            "the hook does nothing, and reports nothing, when a container asks for no device; "
            "the program then finds no GPU",
            patient.way_to_gpus,
        )
    elif not outcome.ids and patient.refusal is None:
        value = patient.container.spec.env.get(names.VISIBLE_DEVICES, "")
        yield Diagnosis(
            f"{names.VISIBLE_DEVICES}={value}: the driver's files are mounted, but no GPU",
            "the value none asks for the driver's files without a GPU",
            f"set {names.VISIBLE_DEVICES} to all, or to the GPUs that the container needs",
            "warning",
        )


def cdi_and_legacy(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``cdi-and-legacy``: CDI edits and the prestart hook both act on the container.

    Reported in NVIDIA/nvidia-container-toolkit#395; canonical/lxd#14372.
    """
    if not patient.case.reads_config:
        patient.check_hook_acts()
    if not isinstance(patient.member("hooks"), dict):
        raise NotChecked("config.json has no hooks")
    called = [
        path
        for stage, hook in gpu_hooks(patient)
        if stage in _BEFORE
        and posixpath.basename(path := str(hook.get("path"))) in names.HOOK_NAMES
    ]
    request = patient.case.decision.request
    if not patient.case.edited_before or not called or request is None:
        return
    yield Diagnosis(
        f"{patient.case.edited_before}, and {called[0]} is called as well: {request.devices_from}",
        "devices were passed by their CDI names, and a variable or volume mount requests some from "
        "the hook: the container gets the GPUs of both, and each driver file twice",
        f"request GPUs in one way: by CDI names with {names.VISIBLE_DEVICES}={names.VOID}, which "
        "new specifications set, or without CDI names",
        "warning",
    )


def capability_not_requested(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``capability-not-requested``: the container does not request a driver capability
    that it needs.

    Reported in NVIDIA/nvidia-docker#1103, #1226; NVIDIA/cloud-native-docs#477;
    apptainer/apptainer#2210.
    """
    plan = patient.injected
    requested = plan.request.capabilities
    capabilities = ", ".join(requested) or "nothing"
    request = f"this container requests {capabilities} ({plan.request.capabilities_from})"

    lacks_nvml = "utility" not in requested and patient.host_has("libnvidia-ml.so")
    lacks_cuda = not {"compute", "video"} & set(requested) and patient.host_has("libcuda.so")
    usual = [*["utility"] * lacks_nvml, *["compute"] * lacks_cuda]

    def fix(capability: str) -> str:
        # All findings name one value: one fix does not take back the other.
        wanted = dict.fromkeys((*requested, *usual, capability))
        return f"set {names.DRIVER_CAPABILITIES}={','.join(wanted)}"

    program = posixpath.basename(next(iter(patient.container.arguments), ""))
    for row in catalogue.BINARIES:
        if program == row.name and row.component_class not in requested:
            if not patient.host_has(program):
                continue  # program-missing reports it
            known = patient.container.rootfs_known
            failure = patient.missing_program if known else None
            missing = failure.words if failure else ""
            if known and not missing:
                continue  # the image has one of its own
            provided = f"{program} is provided by capability '{row.component_class}'; {request}"
            yield Diagnosis(
                f"{missing}: {provided}" if missing else provided,
                "the program that the container starts is not mounted, so the start fails",
                fix(row.component_class),
                stops=True,
                phrase=missing,
            )
    if lacks_nvml:
        yield Diagnosis(
            "nvidia-smi and NVML (libnvidia-ml.so.1) are provided by capability 'utility'; "
            + request,
            "programs that find GPUs through NVML (monitoring, PyTorch with "
            "PYTORCH_NVML_BASED_CUDA_CHECK) find none",
            fix("utility"),
            "warning",
        )
    if lacks_cuda:
        yield Diagnosis(
            f"libcuda.so.1 is provided by capability 'compute'; {request}",
            "CUDA programs find no driver",
            fix("compute"),
            "warning",
            phrase="Found no NVIDIA driver on your system",
        )
    for capability, paths in _CAPABILITY_FILES.items():
        if capability in requested or (capability == "graphics" and "display" in requested):
            continue
        path = patient.in_image(*paths)
        if path:
            mounted = set(opened_libraries(requested))
            absent = [name for name in opened_libraries({capability}) if name not in mounted]
            yield Diagnosis(
                f"the image has {path}, which needs capability '{capability}'; {request}",
                f"the driver's files for {capability} are not mounted: {', '.join(absent)}",
                fix(capability),
                "warning",
                phrase=f"{absent[0]}: cannot open shared object file: No such file or directory",
            )


def devices_from_image(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``devices-from-image``: the image, not the orchestrator, asks for GPUs.

    Reported in NVIDIA/k8s-device-plugin#61, #87, #203; bottlerocket-os/bottlerocket#3718.
    """
    image = patient.container.image_env
    if image is None:
        raise NotChecked("a config.json does not say which variables come from the image")
    value = image.get(names.VISIBLE_DEVICES)
    if (
        value is None
        or patient.container.spec.env.get(names.VISIBLE_DEVICES) != value
        or value in {"", "void", "none"}
    ):
        return
    accepted = patient.host.config.accept_nvidia_visible_devices_envvar_when_unprivileged
    yield Diagnosis(
        f"{names.VISIBLE_DEVICES}={value} comes from the image, not from the orchestrator",
        f"an unprivileged container gets the GPUs that the image names ({value})"
        if accepted
        else "an unprivileged container gets no GPU: config.toml says to ignore the variable",
        "let the orchestrator set the variable (void for no GPU), or set "
        "accept-nvidia-visible-devices-envvar-when-unprivileged = false in config.toml",
        "warning",
    )


def repeated_ids(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``repeated-ids``: the container names a GPU twice, which NVIDIA's runtime takes for
    no GPU in its CDI modes.

    Reported in NVIDIA/nvidia-container-toolkit#2108.
    """
    request = patient.case.decision.request
    if request is None or request.devices in {(), (names.ALL,)}:
        return
    variables = device_variables(patient.container.spec.env, patient.host.config.swarm_resource)
    given = {name: patient.container.spec.env.get(name, "") for name in variables}
    written = [item.strip() for value in given.values() for item in value.split(",")]
    if set(request.devices) != set(filter(None, written)):
        return  # volume mounts name the devices
    repeated = [device for device in request.devices if written.count(device) > 1]
    if repeated:
        name = next(iter(given))
        value = ",".join(dict.fromkeys(filter(None, written)))
        yield Diagnosis(
            f"{' '.join(f'{name}={value}' for name, value in given.items())} names "
            f"{', '.join(repeated)} more than once",
            "it is harmless in mode legacy, in which each GPU counts once; NVIDIA's runtime gives "
            "such a container no GPU and no error in its mode jit-cdi, which auto may choose, and "
            "refuses it in mode cdi",
            f"set {name}={value}",
            "warning",
        )


def _is_met(requirement: str, report: DriverReport, devices: list[tuple[str, str]]) -> bool:
    try:
        check([requirement], report.driver_version, report.cuda_version, devices)
    except Refusal:
        return False
    return True


def requirement_unmet(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``requirement-unmet``: the image requires a newer CUDA or driver than the host has.

    Reported in NVIDIA/nvidia-docker#536, #543, #688, #1442; Xilinx/Vitis-AI#103.
    """
    refusal = patient.refusal
    report = patient.host.facts.report
    if patient.by_edits and refusal is None:
        yield from _unchecked_requirements(patient, report)
    if refusal is None or refusal.stage != "requirement":
        return
    request = patient.case.decision.request
    failed = _failed_alternatives(request.requirements if request is not None else (), report)
    yield Diagnosis(
        f"{refusal.reference_line()}: driver {report.driver_version} provides cuda "
        f"{report.cuda_version}; alternatives tried: {failed}",
        "the image states its needs in NVIDIA_REQUIRE_*, and this host does not meet them; the "
        "error names only the first alternative",
        "use a newer driver or an older image; to start it anyway, unsupported, set "
        "NVIDIA_DISABLE_REQUIRE=1",
    )


def _unchecked_requirements(patient: Patient, report: DriverReport) -> Iterator[Diagnosis]:
    """Report what the hook would refuse, and CDI edits let start.

    :raises NotChecked: the GPUs of the host, which requirements may name, are not known.
    """
    config = patient.host.config
    requirements = requirements_of(patient.container.spec.env, disabled=config.disable_require)
    if not requirements or patient.case.decision.request is None:
        return
    patient.check_gpus_known()
    failed = _failed_alternatives(requirements, report)
    if failed:
        yield Diagnosis(
            f"driver {report.driver_version} provides cuda {report.cuda_version}; alternatives "
            f"tried: {failed}",
            "the image states its needs in NVIDIA_REQUIRE_*, and this host does not meet them; "
            "CDI edits do not check them, so the container starts, and the hook would refuse it",
            "use a newer driver or an older image",
            "warning",
        )


def _failed_alternatives(requirements: Iterable[str], report: DriverReport) -> str:
    """Return why the host does not meet requirements, "" if it meets them."""
    devices = [(gpu.arch, brands.name(gpu.brand)) for gpu in report.gpus]
    kinds: list[tuple[str | None, str | None]] = [*dict.fromkeys(devices)] or [(None, None)]
    failed: list[str] = []
    for requirement in requirements:
        if len(failed) >= _ALTERNATIVES or _is_met(requirement, report, devices):
            continue
        for arch, brand in kinds:
            facts = {
                "cuda": report.cuda_version,
                "driver": report.driver_version,
                "arch": arch,
                "brand": brand,
            }
            answers = alternatives(requirement, facts, _ALTERNATIVES)
            if not all(answer.factor for answer in answers):
                continue  # this kind of GPU meets the requirement
            for answer in answers:
                fault = "does not hold" if answer.valid else "is not a valid condition"
                failed.append(f"{answer.term}: {answer.factor} {fault}")
    return "; ".join(dict.fromkeys(failed))


def unknown_device(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``unknown-device``: the container asks for a device that the host does not have.

    Reported in NVIDIA/nvidia-container-toolkit#29, #108, #632; NVIDIA/libnvidia-container#204;
    NVIDIA/nvidia-container-toolkit#434, NVIDIA/k8s-device-plugin#1203 (a CDI device).
    """
    patient.check_gpus_known()
    refusal = patient.refusal
    named = trouble(patient.case)
    if refusal is not None and named is not None and refusal.kind != WRONG_MODE:
        yield Diagnosis(refusal.reference_line(), *named)
        return
    if refusal is not None and refusal.kind == NO_SUCH_DEVICE:
        yield Diagnosis(
            f"{refusal.reference_line()}: {refusal.hint}",
            "the runtime makes the devices from the driver's report, which has none of this name: "
            "the index is too large, or the GPU or MIG device was replaced",
            f"run nvidia-smi -L on the host and set {names.VISIBLE_DEVICES} to a device in it",
        )
        return
    if refusal is not None and refusal.stage == "device":
        yield Diagnosis(
            f"{refusal.reference_line()}: {refusal.hint}",
            "the index is too large, the GPU with this UUID was replaced, or the MIG device was "
            "created anew",
            f"run nvidia-smi -L on the host and set {names.VISIBLE_DEVICES} to a device in it",
        )


def mig_privilege(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``mig-privilege``: MIG administration needs a privileged container.

    Reported in NVIDIA/nvidia-container-toolkit#1740, #842; NVIDIA/gpu-operator#322.
    """
    refusal = patient.refusal
    if refusal is not None and refusal.kind == NOT_PRIVILEGED:
        yield Diagnosis(
            refusal.text, "MIG administration needs CAP_SYS_ADMIN in the container", refusal.hint
        )


def target_is_symlink(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``target-is-symlink``: the image has a symbolic link where a driver file is to be
    mounted.

    Reported in NVIDIA/nvidia-container-toolkit#289, #176, #295, #274; NVIDIA/nvidia-docker#1551.
    """
    refusal = patient.refusal
    if refusal is None or not refusal.text.endswith(("file exists", "is a directory")):
        return
    target = refusal.text.removeprefix("file creation failed: ").rpartition(": ")[0]
    inside = target.removeprefix(patient.rootfs.label)
    try:
        node = patient.rootfs.lstat(patient.rootfs.resolve(inside, follow_last=False))
    except (PathError, OSError):
        node = None
    obstacle = ""
    if node is not None:
        kind = f"symbolic link to {node.target}" if node.type == "symlink" else node.type
        obstacle = f": {inside} in the image is a {kind}"
    yield Diagnosis(
        f"{refusal.reference_line()}{obstacle}",
        "driver packages were installed in the image, or it was built for another platform",
        "remove the driver packages (libnvidia-*, nvidia-utils) from the image",
    )


def image_has_driver(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``image-has-driver``: the image contains driver libraries of its own.

    Reported in NVIDIA/libnvidia-container#266, #138, #140; NVIDIA/nvidia-docker#1488, #1307;
    NVIDIA/enroot#155.
    """
    _ = patient.rootfs
    version = patient.host.facts.report.driver_version
    empty, foreign = [], []
    for path, node in patient.image_libraries(_PREFIXES):
        if node.type != "file":
            continue
        name = posixpath.basename(path)
        match = _VERSIONED.match(name)
        if node.size == 0:
            empty.append(path)
        elif match is not None and match[2] != version:
            foreign.append(path)
    if foreign:
        more = f" and {len(foreign) - 1} more driver libraries" if len(foreign) > 1 else ""
        yield Diagnosis(
            f"the image contains {foreign[0]}{more}, but the host's driver is {version}",
            "of two versions in one directory, the SONAME link leads to the greater one; it is "
            "harmless while that is the host's (library-shadowed says where it is not)",
            "remove the driver packages (libnvidia-*, nvidia-utils) from the image",
            "warning",
        )
    if empty:
        yield Diagnosis(
            f"{len(empty)} zero-byte driver files in the image, such as {empty[0]}",
            "the image was built or committed under the nvidia runtime, and its mount points "
            "stayed in the image; they are harmless unless a program loads one of them "
            "(library-shadowed says so)",
            "build the image without the nvidia runtime, or remove the empty files",
            "warning",
        )


def socket_in_the_way(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``socket-in-the-way``: a volume covers the place of a driver service's socket.

    Reported in NVIDIA/nvidia-docker#1300, #1690; NVIDIA/libnvidia-container#187; NVIDIA/enroot#138,
    #265.
    """
    for finding in patient.injected.findings:
        if finding.id in {"socket-skipped", "mps-skipped"}:
            yield Diagnosis(
                finding.message,
                "a volume of the container covers the place where it would be mounted; NVIDIA's "
                "hook fails if that volume contains the host's socket",
                "if the container needs it, mount it as a volume of its own instead of the host's "
                "whole /run",
                "warning",
            )


def stderr_hidden(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``stderr-hidden``: the engine hides the hook's error message.

    Reported in containers/podman#16094, #24502; containers/crun#665.
    """
    if not patient.by_podman:
        raise NotChecked("config.json does not say that podman wrote it")
    if patient.member("annotations", "run.oci.hooks.stderr") is None:
        yield Diagnosis(
            "podman wrote this config.json without the annotation run.oci.hooks.stderr: if a hook "
            "fails, its error message is hidden",
            "crun, podman's default runtime, reports only the hook's path and exit code",
            "after a failure, run nvgraft last-error CONTAINER; or start the container with "
            "--annotation run.oci.hooks.stderr=/run/hook.err",
            "warning",
        )


def graphics_incomplete(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``graphics-incomplete``: Vulkan, EGL or GLX need a file that the hook does not
    mount.

    Reported in NVIDIA/nvidia-docker#328, #337, #1520; NVIDIA/libnvidia-container#132;
    NVIDIA/nvidia-container-toolkit#16.
    """
    requested = patient.capabilities
    if not requested & {"graphics", "display"}:
        raise NotChecked("the container requests neither graphics nor display")
    missing = []
    if not patient.in_image(*(f"{directory}/libXext.so.6" for directory in _LIBRARY_PLACES)):
        missing.append("libXext.so.6 (which libGLX_nvidia needs)")
    mounted = [mount.get("destination") for mount in patient.objects("mounts")]
    mounted += [bind.target for bind in patient.binds()]
    icd = ("/usr/share/vulkan/icd.d/nvidia_icd.json", "/etc/vulkan/icd.d/nvidia_icd.json")
    if not any(path in mounted for path in icd) and not patient.in_image(*icd):
        missing.append("/usr/share/vulkan/icd.d/nvidia_icd.json (for Vulkan)")
    vendor = (
        "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
        "/etc/glvnd/egl_vendor.d/10_nvidia.json",
    )
    if not any(path in mounted for path in vendor) and not patient.in_image(*vendor):
        missing.append("/usr/share/glvnd/egl_vendor.d/10_nvidia.json (for EGL)")
    if missing:
        yield Diagnosis(
            "the container requests graphics, and the image lacks " + ", ".join(missing),
            "CDI edits mount what the host's driver has of these files, and no other library"
            if patient.by_edits
            else "the hook mounts the driver's libraries, but not these files, by which the loaders"
            " of Vulkan and EGL find them",
            "add the files to the image (packages libglvnd0, libxext6, libvulkan1)"
            + (
                ""
                if patient.by_edits
                else ", or use nvgraft-runtime or CDI, which mount the host's"
            ),
            "warning",
        )
    if "display" not in requested and not patient.by_edits:
        yield Diagnosis(
            "the container requests graphics without display, so it does not get "
            "/dev/nvidia-modeset",
            "programs that drive a display (Xorg, DRM leases) need this device",
            f"if it has such programs, add display to {names.DRIVER_CAPABILITIES}",
            "warning",
        )


_LIBRARY_PLACES = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/lib/x86_64-linux-gnu",
)


def _compat_versions(patient: Patient, path: str) -> list[str]:
    """Return the versions of libcuda in a directory of CUDA's compatibility libraries."""
    versions = []
    try:
        directory = patient.rootfs.resolve(path)
        for name in patient.rootfs.listdir(directory):
            if (match := _VERSIONED.match(name)) and match[1] == "libcuda.so":
                patient.rootfs.count_library(f"{directory}/{name}")
                versions.append(match[2])
    except (PathError, OSError):
        return []
    return versions


def compat_libraries(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``compat-libraries``: the image's CUDA compatibility libraries do not fit this host.

    Reported in NVIDIA/nvidia-docker#1256, #1515; NVIDIA/nvidia-container-toolkit#199, #234, #1967.
    """
    _ = patient.injected
    proof = patient.proof("libcuda.so.1")
    loads_one = proof.final.is_compat
    directory = posixpath.dirname(proof.final.path) if loads_one else "/usr/local/cuda/compat"
    versions = _compat_versions(patient, directory)
    if not versions:
        raise NotChecked("the image has no /usr/local/cuda/compat libraries")
    if proof.verdict != "no" and not loads_one:
        return  # the container's program loads none of them
    if "/usr/local/cuda/compat" not in patient.container.spec.env.get("LD_LIBRARY_PATH", ""):
        patient.check_gpus_known()
    report = patient.host.facts.report
    driver_major = int(report.driver_version.partition(".")[0])
    way_out = 'set cuda-compat-mode = "disabled" in config.toml'
    if loads_one and not proof.final.precedence.by_compat_rule:
        way_out = f"take {directory} out of what leads the program there: {proof.final.how}"
    for version in versions:
        major = int(version.partition(".")[0])
        geforce = patient.consumer_gpus
        library = f"the image's forward compatibility library {version}"
        fails = f"CUDA fails with error 803 because {library} works only with an older driver"
        path = patient.container.spec.env.get("LD_LIBRARY_PATH", "")
        if major > driver_major and geforce:
            yield Diagnosis(
                f"the image ships compat libcuda {version}, which {geforce[0]} does not support: "
                "expect CUDA error 804",
                "forward compatibility works on data center GPUs only",
                f"use an image for the driver's own CUDA version, or {way_out}",
                sentence=f"CUDA fails with error 804 because {geforce[0]} does not support "
                f"{library}",
            )
        elif major <= driver_major and "/usr/local/cuda/compat" in path:
            yield Diagnosis(
                f"the image ships compat libcuda {version}, and LD_LIBRARY_PATH names it before "
                f"the host's driver {report.driver_version}: expect CUDA error 803",
                "a compatibility library works only with a driver older than itself",
                "remove /usr/local/cuda/compat from LD_LIBRARY_PATH",
                sentence=f"{fails} than {report.driver_version}",
            )
        elif major <= driver_major and proof.final.is_compat:
            yield Diagnosis(
                f"the container's program loads the compat libcuda {version} of the image "
                f"({proof.final.how}), not the host's driver {report.driver_version}: expect CUDA "
                "error 803",
                "a compatibility library works only with a driver older than itself",
                "remove /usr/local/cuda/compat where its search path is set: the image's start "
                "script, a profile, or a file in /etc/ld.so.conf.d",
                sentence=f"{fails} than {report.driver_version}",
            )


def tmp_missing(patient: Patient) -> Iterator[Diagnosis]:
    """Programs that use temporary files, or MPS, in images built from scratch."""
    volumes = {destination.rstrip("/") for _, destination in patient.container.spec.mounts}
    if not patient.in_image("/tmp") and "/tmp" not in volumes:  # noqa: S108 - the image's
        yield Diagnosis(
            "the image has no directory /tmp, and no volume is mounted on it",
            "CUDA's MPS and many programs create files there",
            "add the directory to the image, or mount a tmpfs on /tmp (docker --tmpfs /tmp)",
            "warning",
        )


def hook_registration(patient: Patient) -> Iterator[Diagnosis]:
    """CVE-2025-23266: a hook without an environment of its own inherits the container's."""
    if not isinstance(patient.member("hooks"), dict):
        raise NotChecked("config.json has no hooks")
    ours = gpu_hooks(patient)
    if not ours:
        raise NotChecked("config.json has no GPU hook")
    from nvgraft_cli.register.audit import STAGES, problems

    for stage, hook in ours:
        for problem in problems(hook, stage):
            if is_cdi_hook(hook) and problem.member != "env":
                continue  # CDI edits have a stage and arguments of their own
            if problem.member == "path" and patient.host.document is not None:
                continue  # only the node itself can tell who owns the program
            if problem.member == "timeout" and "timeout" not in hook:
                continue  # docker writes no timeout, and has no setting for one
            yield Diagnosis(
                f"{stage} hook {hook.get('path')}: {problem.member}: {problem.text}",
                "a hook runs as root on the host with the environment and the limits of its "
                "registration",
                problem.fix,
                # The reference's own entries lack these members, and containers start with them.
                "warning"
                if problem.member == "timeout" or (stage in STAGES and not hook.get("env"))
                else "error",
            )
