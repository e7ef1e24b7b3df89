"""The side of a pod that mounts the driver itself: Kubernetes 1.3 to 1.9, before device plugins."""

from typing import Any

from nvgraft_cli.diff.gpus import gpu_nodes
from nvgraft_cli.diff.sides import ComparedMount, ComparedNode, Side, guess_version
from nvgraft_cli.export.pod_volumes import RESOURCE
from nvgraft_cli.shell.errors import InputError

#: What the kubelet of that time gave to a container with GPUs, besides their nodes.
_CONTROL = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
_MOST_GPUS = 1024


def pod_side(label: str, pod: Any) -> Side:
    """Return the side of the first container of a pod: its hostPath volumes, its variables, and the
    device nodes of the GPUs that it asks for, of which the first ones are taken.

    :raises InputError: it has no container, or is not built as a pod is.
    """
    try:
        spec = pod["spec"]
        container = spec["containers"][0]
        sources = {
            volume["name"]: volume["hostPath"]["path"]
            for volume in spec.get("volumes", ())
            if "hostPath" in volume
        }
        mounts = {}
        for mount in container.get("volumeMounts", ()):
            if mount["name"] in sources:
                options = ("ro",) if mount.get("readOnly") else ("rw",)
                target = mount["mountPath"]
                mounts[target] = ComparedMount(target, sources[mount["name"]], "bind", options)
        environment = {
            item["name"]: {"value": item.get("value", "")} for item in container.get("env", ())
        }
        limits = container.get("resources", {}).get("limits", {})
        gpus = int(limits.get(RESOURCE, 0))
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise InputError(
            f"{label}: not a pod that can be read: {type(error).__name__}: {error}"
            " | pass the output of `nvgraft export pod-volumes`"
        ) from error
    if RESOURCE not in limits:
        raise InputError(
            f"{label}: a pod that does not ask for {RESOURCE} | plan it, and compare the plan:"
            f" nvgraft plan --pod {label} --format json -o plan.json"
        )
    names = [f"/dev/nvidia{index}" for index in range(min(gpus, _MOST_GPUS))]
    paths = [*_CONTROL, *names] if gpus > 0 else []
    nodes = {path: ComparedNode(path, path, None) for path in paths}
    side = Side(
        label,
        "pod",
        guess_version([str(mount.source) for mount in mounts.values()]),
        mounts,
        nodes,
        environment=environment,
    )
    side.gpus = [""] * len(gpu_nodes(nodes))
    return side
