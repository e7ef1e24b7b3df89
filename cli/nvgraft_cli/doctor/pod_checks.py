"""Checks of a pod on its node, as ``nvgraft doctor --pod`` makes them.

The docstring of each check names the threads that reported the failure.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from nvgraft.plan.actions import Injection
from nvgraft.request.request import is_trusted
from nvgraft_cli.doctor.patient import Diagnosis, NotChecked, Patient
from nvgraft_specs import names

if TYPE_CHECKING:  # pods are read with pydantic, which takes long to load
    from nvgraft_cli.pods.handover import PodOnNode

_ACCEPT_MOUNTS = "accept-nvidia-visible-devices-as-volume-mounts"
_MOUNTS = names.VOLUME_MOUNT_PREFIX
_ACCEPT_VARIABLE = "accept-nvidia-visible-devices-envvar-when-unprivileged"


def pod_runtime_class(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``pod-runtime-class``: the runtime of the pod's runtime class, or the engine's
    default, adds no driver.

    Reported in NVIDIA/nvidia-container-runtime#147; NVIDIA/k8s-device-plugin#477, #1304;
    canonical/microk8s#4408.
    """
    pod = _with_devices(patient)
    handover = patient.case.handover
    if handover is None or not handover.bypass or handover.edits:
        return
    yield Diagnosis(
        handover.bypass,
        "the device plugin's answer is in config.json, and no program reads it: the pod counts"
        " as one with a GPU, and has "
        + ("no driver" if pod.answer["devices"] else "neither driver nor device nodes"),
        f"set runtimeClassName: nvidia in the pod (handler now: {pod.handler}), or make NVIDIA's"
        " or nvgraft's runtime the default of the engine (nvgraft register)",
    )


def pod_strategy(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``pod-strategy``: neither engine nor runtime heeds the way in which the device
    plugin hands devices on.

    Reported in NVIDIA/gpu-operator#372 (volume mounts); containerd/containerd#7329,
    kubernetes-sigs/dra-driver-nvidia-gpu#426 (CDI that is off); NVIDIA/k8s-device-plugin#203
    (the variable), #728 (two resources).
    """
    from nvgraft_cli.pods.node import ENGINE_PREFIX

    pod = _with_devices(patient)
    config = patient.host.config
    strategies = pod.plugin.configuration.strategies
    if not pod.heeded_names and pod.cdi_names and strategies <= {"cdi-annotations", "cdi-cri"}:
        if pod.node.annotations and pod.calls_ours and "cdi-annotations" in strategies:
            return
        cause = (
            f"{pod.node.engine} has CDI off (enable_cdi), and leaves CDI devices out without a word"
            if not pod.node.cdi
            else f"the engine heeds annotations that begin with {ENGINE_PREFIX}"
        )
        yield Diagnosis(
            f"the devices are named by {', '.join(sorted(strategies))}, and {cause}",
            "the container starts without driver and device nodes",
            "set enable_cdi = true in containerd's config.toml (containerd 2 has it by default) and"
            f" --cdi-annotation-prefix={ENGINE_PREFIX}, or use --device-list-strategy=envvar",
        )
    if not pod.calls_ours or pod.heeded_names:
        return
    if pod.rivals:
        yield Diagnosis(
            f"{' and '.join(pod.rivals)} set {names.VISIBLE_DEVICES}, and the kubelet keeps one of"
            " them, which one is chance",
            "the container gets the devices of one resource, and the others are counted for it",
            "let a container ask for one resource (CUDA uses one MIG device only), or use"
            " --device-list-strategy=cdi-cri",
            phrase="nvidia-smi lists one of two MIG devices",
        )
    if "volume-mounts" in strategies and not config.accept_nvidia_visible_devices_as_volume_mounts:
        yield Diagnosis(
            f"the devices are named by mounts below {_MOUNTS}, and {_ACCEPT_MOUNTS} is false",
            f"the runtime reads {names.VISIBLE_DEVICES}={_MOUNTS} instead, which names no GPU",
            f"set {_ACCEPT_MOUNTS} = true in config.toml of the runtime, or use"
            " --device-list-strategy=envvar",
        )
    elif strategies == {"envvar"} and not is_trusted(patient.container.spec, patient.host.config):
        yield Diagnosis(
            f"the devices are named by {names.VISIBLE_DEVICES}, and {_ACCEPT_VARIABLE} is false",
            "the runtime ignores the variable of an unprivileged container",
            "use --device-list-strategy=volume-mounts, which that setting is for, with"
            f" {_ACCEPT_MOUNTS} = true",
        )


def pod_all_gpus(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``pod-all-gpus``: the container gets other GPUs than the kubelet has counted, since
    it is privileged, or its image or pod sets the variable.

    Reported in NVIDIA/k8s-device-plugin#61, #87, #195, #1605; bottlerocket-os/bottlerocket#3718.
    """
    pod = patient.pod
    if pod.all_nodes and pod.refusal is None and _has_more_gpus(patient):
        yield Diagnosis(
            f"{pod.all_nodes}, {len(patient.host.facts.report.gpus)} GPUs among them, and the pod"
            f" asks for {len(pod.gpus) or 'none'}",
            "the kubelet does not know of these GPUs: other pods get them too",
            "leave out securityContext.privileged, and add the capabilities that the program"
            " needs; or set privileged_without_host_devices = true for the runtime in containerd's"
            " config.toml",
            "warning",
            phrase="privileged: true",
        )
    if not pod.calls_ours or pod.heeded_names:
        return
    value = patient.container.spec.env.get(names.VISIBLE_DEVICES)
    if value is None and not patient.container.rootfs_known and not pod.granted:
        raise NotChecked("the image's variables are not known (--container)")
    asked = pod.answer["envs"].get(names.VISIBLE_DEVICES)
    trusted = is_trusted(patient.container.spec, patient.host.config)
    if value in {None, "", names.VOID, names.NONE, asked} or not trusted:
        return
    if not isinstance(patient.plan, Injection):
        return
    counted = sum(len(granted.ids) for granted in pod.granted)
    in_pod = names.VISIBLE_DEVICES in pod.container.env
    yield Diagnosis(
        f"{names.VISIBLE_DEVICES}={value} of the {'pod' if in_pod else 'image'} gives GPUs, and the"
        f" pod asks for {counted or 'none'}",
        "the kubelet does not know of these GPUs: other pods get them too",
        f"set {_ACCEPT_VARIABLE} = false and {_ACCEPT_MOUNTS} = true in config.toml with"
        " --device-list-strategy=volume-mounts, or use a CDI strategy; "
        + (
            f"remove {names.VISIBLE_DEVICES} from the pod"
            if in_pod
            else f"or set {names.VISIBLE_DEVICES}=void in a pod without GPUs"
        ),
    )


def pod_cpu_manager(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``pod-cpu-manager``: the kubelet's static CPU manager takes the devices away, since
    config.json does not have them.

    Reported in NVIDIA/k8s-device-plugin#145; kubernetes/kubernetes#77073;
    NVIDIA/nvidia-docker#966.
    """
    pod = _with_devices(patient)
    if not pod.node.static_cpus:
        return
    if patient.by_edits or pod.answer["devices"] or not isinstance(patient.plan, Injection):
        return
    yield Diagnosis(
        "the CPU manager's policy is static, and the hook allows devices that config.json lacks",
        "every 10 seconds the kubelet updates the container's CPUs, and the runtime then writes"
        " the device rules of config.json again: CUDA and NVML fail from then on",
        "start the device plugin with --pass-device-specs (privileged), or let the runtime write"
        ' the devices into config.json: mode = "jit-cdi", or a CDI strategy',
        sentence="soon finds no GPU: the kubelet's CPU manager takes the devices away",
    )


def pod_dra_and_plugin(patient: Patient) -> Iterator[Diagnosis]:
    """Look for ``pod-dra-and-plugin``: a node gives the same GPUs by the device plugin and by DRA.

    Reported in NVIDIA/aicr#332; NVIDIA/gpu-operator#1541; ai-dynamo/dynamo#13536.
    """
    pod = patient.pod
    if not pod.granted or not (pod.node.dra or pod.pod.claims):
        return
    claims = ", ".join(pod.pod.claims)
    yield Diagnosis(
        f"the pod has the resource claims {claims} beside {pod.granted[0].resource.name}"
        if claims
        else "the node has the device plugin and the DRA driver for GPUs",
        "each of the two counts all GPUs, and does not know what the other has given: two pods"
        " get one GPU",
        "give a node one of them: the device plugin, or the DRA driver with gpus enabled",
        "warning",
    )


def _has_more_gpus(patient: Patient) -> bool:
    return len(patient.host.facts.report.gpus) > len(patient.pod.gpus)


def _with_devices(patient: Patient) -> "PodOnNode":
    pod = patient.pod
    if pod.refusal is not None:
        raise NotChecked(f"the pod is refused: {pod.refusal.text}")
    if not pod.granted:
        raise NotChecked("the pod asks for no device of the device plugin")
    return pod
