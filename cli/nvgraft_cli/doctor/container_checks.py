"""Checks of a container: what it asks for, and what its image has. Each docstring names the threads that reported the failure."""

import posixpath
import re
from collections.abc import Iterator

from nvgraft.base.errors import Refusal
from nvgraft.formats.tree import PathError
from nvgraft.host.gpus import DriverReport
from nvgraft.request.request import Skip, resolve_request
from nvgraft.request.requirements import alternatives, check
from nvgraft_cli.doctor.host_checks import gpu_hooks
from nvgraft_cli.doctor.patient import Finding, NotChecked, Patient
from nvgraft_specs import brands, catalogue, names

_PREFIXES = tuple(row.name for row in catalogue.LIBRARIES)
_VERSIONED = re.compile(r"^(lib[\w+-]+\.so)\.(\d{3,4}\.\d+(?:\.\d+)?)$")

#: Alternatives of requirements that are told; an image of CUDA has some thirty, a hostile one may have any number.
_TRIED = 100

#: What an image has that is of use with a capability alone.
_TELLTALES = {
    "graphics": tuple(
        f"/usr/{directory}/{library}"
        for directory in ("lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "lib64")
        for library in ("libvulkan.so.1", "libEGL.so.1")
    ),
    "video": ("/usr/bin/ffmpeg", "/usr/local/bin/ffmpeg", "/usr/lib/jellyfin-ffmpeg/ffmpeg"),
}


def devices_not_requested(patient: Patient) -> Iterator[Finding]:
    """NVIDIA/nvidia-container-toolkit#718, #672; NVIDIA/nvidia-docker#1668, #1226; containers/podman#16839."""
    outcome = resolve_request(patient.container.spec, patient.host.config)
    if isinstance(outcome, Skip):
        yield Finding(
            f"the container gets nothing: {outcome.reason}",
            "the hook ends without a word when no device is asked for; the program then finds no GPU",
            f"set {names.VISIBLE_DEVICES}=all (docker -e, or ENV in the image)",
        )
    elif not outcome.devices:
        value = patient.container.spec.env.get(names.VISIBLE_DEVICES, "")
        yield Finding(
            f"{names.VISIBLE_DEVICES}={value}: the driver's files are mounted, and no GPU is",
            "with none the container gets the capabilities alone",
            f"set {names.VISIBLE_DEVICES}=all, or to the GPUs that it needs",
            "warning",
        )


def capability_not_requested(patient: Patient) -> Iterator[Finding]:
    """NVIDIA/nvidia-docker#1103, #1226; NVIDIA/cloud-native-docs#477; apptainer/apptainer#2210."""
    plan = patient.injected
    asked = plan.request["capabilities"]
    have = f"this container requests {', '.join(asked) or 'nothing'} ({plan.request['capabilities_from']})"
    program = posixpath.basename(next(iter(patient.container.arguments), ""))
    for row in catalogue.BINARIES:
        if program == row.name and row.component_class not in asked:
            yield Finding(
                f"{program} is provided by capability '{row.component_class}'; {have}",
                "what a container starts is not mounted, so it is not found",
                f"{names.DRIVER_CAPABILITIES}={','.join([*asked, row.component_class])}",
            )
    if "utility" not in asked:
        yield Finding(
            f"nvidia-smi and NVML are provided by capability 'utility'; {have}",
            "programs that look for GPUs by NVML (PyTorch with PYTORCH_NVML_BASED_CUDA_CHECK, monitoring) find none",
            f"{names.DRIVER_CAPABILITIES}={','.join([*asked, 'utility'])}",
            "warning",
        )
    if "compute" not in asked and "video" not in asked:
        yield Finding(
            f"libcuda.so.1 is provided by capability 'compute'; {have}",
            "CUDA programs find no driver",
            f"{names.DRIVER_CAPABILITIES}={','.join([*asked, 'compute'])}",
            "warning",
        )
    for capability, paths in _TELLTALES.items():
        found = patient.in_image(*paths)
        if (
            found
            and capability not in asked
            and not (capability == "graphics" and "display" in asked)
        ):
            yield Finding(
                f"the image has {found}, which works with capability '{capability}'; {have}",
                f"the driver's files for {capability} are not mounted",
                f"{names.DRIVER_CAPABILITIES}={','.join([*asked, capability])}",
                "warning",
            )


def devices_from_image(patient: Patient) -> Iterator[Finding]:
    """NVIDIA/k8s-device-plugin#61, #87, #203; bottlerocket-os/bottlerocket#3718."""
    image = patient.container.image_env
    if image is None:
        raise NotChecked("a config.json does not tell which variables come from the image")
    value = image.get(names.VISIBLE_DEVICES)
    if (
        value is None
        or patient.container.spec.env.get(names.VISIBLE_DEVICES) != value
        or value in {"", "void", "none"}
    ):
        return
    policy = patient.host.config.accept_nvidia_visible_devices_envvar_when_unprivileged
    yield Finding(
        f"{names.VISIBLE_DEVICES}={value} comes from the image, not from the orchestrator",
        "an unprivileged container gets "
        + (
            f"the GPUs of this value ({value})"
            if policy
            else "no GPU: config.toml ignores the variable"
        ),
        "have the orchestrator set the variable (void for none), or accept-nvidia-visible-devices-envvar-when-unprivileged = false",
        "warning",
    )


def _holds(requirement: str, report: DriverReport, devices: list[tuple[str, str]]) -> bool:
    try:
        check([requirement], report.driver_version, report.cuda_version, devices)
    except Refusal:
        return False
    return True


def requirement_unmet(patient: Patient) -> Iterator[Finding]:
    """NVIDIA/nvidia-docker#536, #543, #688, #1442; Xilinx/Vitis-AI#103."""
    refusal = patient.refusal
    if refusal is None or refusal.stage != "requirement":
        return
    request = patient.case.decision.request
    report = patient.host.host.report
    devices = [(gpu.arch, brands.name(gpu.brand)) for gpu in report.gpus]
    kinds: list[tuple[str | None, str | None]] = [*dict.fromkeys(devices)] or [(None, None)]
    tried: list[str] = []
    for requirement in request.requirements if request is not None else ():
        if len(tried) >= _TRIED or _holds(requirement, report, devices):
            continue
        for arch, brand in kinds:
            facts = {
                "cuda": report.cuda_version,
                "driver": report.driver_version,
                "arch": arch,
                "brand": brand,
            }
            answers = alternatives(requirement, facts, _TRIED)
            if all(answer.factor for answer in answers):
                tried += [
                    f"{answer.term}: {answer.factor} {'does not hold' if answer.valid else 'is no valid condition'}"
                    for answer in answers
                ]
    yield Finding(
        f"{refusal.reference_line()}: driver {report.driver_version} provides cuda {report.cuda_version}; "
        f"alternatives tried: {'; '.join(dict.fromkeys(tried))}",
        "the image declares what it needs in NVIDIA_REQUIRE_*; the original names the first alternative only",
        "a newer driver, an older image, or, without support, NVIDIA_DISABLE_REQUIRE=1",
    )


def unknown_device(patient: Patient) -> Iterator[Finding]:
    """NVIDIA/nvidia-container-toolkit#29, #108, #632; NVIDIA/libnvidia-container#204."""
    refusal = patient.refusal
    if refusal is not None and refusal.stage == "device":
        yield Finding(
            f"{refusal.reference_line()}: {refusal.hint}",
            "an index that is too large, the UUID of a GPU that was replaced, or a MIG device that was made anew",
            f"nvidia-smi -L on the host, then {names.VISIBLE_DEVICES}",
        )


def mig_privilege(patient: Patient) -> Iterator[Finding]:
    """NVIDIA/nvidia-container-toolkit#1740, #842; NVIDIA/gpu-operator#322."""
    refusal = patient.refusal
    if refusal is not None and "in non privileged container" in refusal.text:
        yield Finding(
            refusal.text, "administering MIG needs CAP_SYS_ADMIN in the container", refusal.hint
        )


def target_is_symlink(patient: Patient) -> Iterator[Finding]:
    """NVIDIA/nvidia-container-toolkit#289, #176, #295, #274; NVIDIA/nvidia-docker#1551."""
    refusal = patient.refusal
    if refusal is None or not refusal.text.endswith(
        ("file exists", "is a directory", "not a directory")
    ):
        return
    target = refusal.text.removeprefix("file creation failed: ").rpartition(": ")[0]
    inside = target.removeprefix(patient.rootfs.label)
    try:
        node = patient.rootfs.lstat(patient.rootfs.resolve(inside, follow_last=False))
    except (PathError, OSError):
        node = None
    what = (
        f"is a symbolic link to {node.target}"
        if node is not None and node.type == "symlink"
        else f"is a {node.type if node else 'thing'}"
    )
    yield Finding(
        f"{refusal.reference_line()}: {inside} in the image {what}",
        "driver packages were installed in the image, or it was made for another platform",
        "remove the driver packages (libnvidia-*, nvidia-utils) from the image",
    )


def image_has_driver(patient: Patient) -> Iterator[Finding]:
    """NVIDIA/libnvidia-container#266, #138, #140; NVIDIA/nvidia-docker#1488, #1307; NVIDIA/enroot#155."""
    _ = patient.rootfs
    version = patient.host.host.report.driver_version
    empty, foreign = [], []
    for path, node in patient.image_libraries():
        name = posixpath.basename(path)
        if node.type != "file" or not name.startswith(_PREFIXES):
            continue
        match = _VERSIONED.match(name)
        if node.size == 0:
            empty.append(path)
        elif match is not None and match[2] != version:
            foreign.append(path)
    if foreign:
        yield Finding(
            f"the image contains {foreign[0]}"
            + (f" and {len(foreign) - 1} more driver libraries" if len(foreign) > 1 else "")
            + f" (host {version})",
            "of two versions in one directory the loader cache links the greater one, which then does not fit the kernel module",
            "remove the driver packages (libnvidia-*, nvidia-utils) from the image",
        )
    if empty:
        yield Finding(
            f"{len(empty)} zero-byte driver files in the image, such as {empty[0]}",
            "the image was built or committed under the nvidia runtime: its mount points stayed behind",
            "build it without the GPU runtime, or remove the empty files",
            "error" if any(not path.endswith(version) for path in empty) else "warning",
        )


def socket_in_the_way(patient: Patient) -> Iterator[Finding]:
    """NVIDIA/nvidia-docker#1300, #1690; NVIDIA/libnvidia-container#187; NVIDIA/enroot#138, #265."""
    for finding in patient.injected.findings:
        if finding.id in {"socket-skipped", "mps-skipped"}:
            yield Finding(
                finding.message,
                "a volume of the container lies where it would be mounted; the original fails at a socket of the host's that comes with it",
                "where the container needs it: name it as a volume of its own, and do not mount the host's whole /run",
                "warning",
            )


def stderr_hidden(patient: Patient) -> Iterator[Finding]:
    """containers/podman#16094, #24502; containers/crun#665."""
    if not patient.by_podman:
        raise NotChecked("config.json does not tell that podman wrote it")
    if patient.member("annotations", "run.oci.hooks.stderr") is None:
        yield Finding(
            "podman wrote this config.json, and the annotation run.oci.hooks.stderr is not set: when a hook fails, crun hides why",
            "crun, which podman starts unless told otherwise, reports the hook's path and exit code alone",
            "nvgraft last-error CONTAINER tells it afterwards; or --annotation run.oci.hooks.stderr=/run/hook.err",
            "warning",
        )


def graphics_incomplete(patient: Patient) -> Iterator[Finding]:
    """NVIDIA/nvidia-docker#328, #337, #1520; NVIDIA/libnvidia-container#132; NVIDIA/nvidia-container-toolkit#16."""
    asked = set(patient.injected.request["capabilities"])
    if not asked & {"graphics", "display"}:
        raise NotChecked("neither graphics nor display is asked for")
    lacking = []
    if not patient.in_image(*(f"{directory}/libXext.so.6" for directory in _LIBRARY_PLACES)):
        lacking.append("libXext.so.6 (which libGLX_nvidia needs)")
    mounts = patient.member("mounts")
    given = (
        {mount.get("destination") for mount in mounts if isinstance(mount, dict)}
        if isinstance(mounts, list)
        else set()
    )
    icd = ("/usr/share/vulkan/icd.d/nvidia_icd.json", "/etc/vulkan/icd.d/nvidia_icd.json")
    if given.isdisjoint(icd) and not patient.in_image(*icd):
        lacking.append("/usr/share/vulkan/icd.d/nvidia_icd.json (for Vulkan)")
    vendor = (
        "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
        "/etc/glvnd/egl_vendor.d/10_nvidia.json",
    )
    if given.isdisjoint(vendor) and not patient.in_image(*vendor):
        lacking.append("/usr/share/glvnd/egl_vendor.d/10_nvidia.json (for EGL)")
    if lacking:
        yield Finding(
            "graphics is asked for, and the image lacks " + ", ".join(lacking),
            "the hook brings the driver's libraries; the loaders of Vulkan and EGL find them by these files, which the hook does not bring",
            "add the files to the image (packages libglvnd0, libxext6, libvulkan1); nvgraft-runtime, or CDI, mounts those of the host",
            "warning",
        )
    if "display" not in asked:
        yield Finding(
            "graphics without display: /dev/nvidia-modeset is not given to the container",
            "programs that drive a display (Xorg, DRM leases) need it",
            f"{names.DRIVER_CAPABILITIES}={','.join(sorted(asked | {'display'}))}",
            "warning",
        )


_LIBRARY_PLACES = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/lib/x86_64-linux-gnu",
)


def compat_libraries(patient: Patient) -> Iterator[Finding]:
    """NVIDIA/nvidia-docker#1256, #1515; NVIDIA/nvidia-container-toolkit#199, #234, #1967."""
    _ = patient.injected
    try:
        directory = patient.rootfs.resolve("/usr/local/cuda/compat")
        versions = [
            match[2]
            for name in patient.rootfs.listdir(directory)
            if (match := _VERSIONED.match(name)) and match[1] == "libcuda.so"
        ]
    except (PathError, OSError):
        versions = []
    if not versions:
        raise NotChecked("the image has no /usr/local/cuda/compat libraries")
    report = patient.host.host.report
    ours = int(report.driver_version.partition(".")[0])
    for version in versions:
        major = int(version.partition(".")[0])
        geforce = [
            gpu.model for gpu in report.gpus if brands.name(gpu.brand) in {"GeForce", "Titan"}
        ]
        path = patient.container.spec.env.get("LD_LIBRARY_PATH", "")
        if major > ours and geforce:
            yield Finding(
                f"the image ships compat libcuda {version}, and {geforce[0]} is not made for it: expect CUDA error 804",
                "forward compatibility works on data center GPUs alone",
                'an image for the driver\'s own CUDA version, or cuda-compat-mode = "disabled"',
            )
        elif major <= ours and "/usr/local/cuda/compat" in path:
            yield Finding(
                f"the image ships compat libcuda {version}, the host's driver is {report.driver_version}, "
                "and LD_LIBRARY_PATH names the older one first: expect CUDA error 803",
                "a compatibility library is for drivers older than itself",
                "take /usr/local/cuda/compat out of LD_LIBRARY_PATH",
            )


def tmp_missing(patient: Patient) -> Iterator[Finding]:
    """Programs that use temporary files or MPS in images from scratch."""
    volumes = {destination.rstrip("/") for _, destination in patient.container.spec.mounts}
    if not patient.in_image("/tmp") and "/tmp" not in volumes:  # noqa: S108 - the image's
        yield Finding(
            "the image has no /tmp",
            "CUDA's MPS and many programs put their files there",
            "add the directory to the image, or mount a tmpfs on /tmp (docker --tmpfs /tmp)",
            "warning",
        )


def hook_registration(patient: Patient) -> Iterator[Finding]:
    """CVE-2025-23266: a hook without an environment of its own inherits that of the container."""
    from nvgraft_cli.register.audit import STAGES, problems

    if not isinstance(patient.member("hooks"), dict):
        raise NotChecked("config.json has no hooks")
    ours = gpu_hooks(patient)
    if not ours:
        raise NotChecked("no hook for GPUs is in config.json")
    for stage, hook in ours:
        for problem in problems(hook, stage):
            if problem.member == "path" and patient.host.document is not None:
                continue  # whose the program is can be told on its own node alone
            if problem.member == "timeout" and "timeout" not in hook:
                continue  # docker writes none, and has no setting for one
            yield Finding(
                f"{stage} hook {hook.get('path')}: {problem.member}: {problem.text}",
                "a hook runs as root on the host, in whatever surroundings it is given",
                problem.fix,
                # What the original's own entries lack stops no container.
                "warning"
                if problem.member == "timeout" or (stage in STAGES and not hook.get("env"))
                else "error",
            )
