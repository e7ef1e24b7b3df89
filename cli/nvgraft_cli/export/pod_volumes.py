"""A pod of Kubernetes 1.3 to 1.9, before device plugins: the kubelet gave it device nodes, and the
pod mounted the driver itself (alpha.kubernetes.io/nvidia-gpu, hostPath volumes).
"""

from typing import Any

from nvgraft.base import paths
from nvgraft.host.components import Component, Inventory
from nvgraft_cli.shell.errors import InputError
from nvgraft_specs import catalogue

RESOURCE = "alpha.kubernetes.io/nvidia-gpu"

#: Where the container sees the driver, and its own search path.
LIBRARIES = "/usr/local/nvidia/lib64"
PROGRAMS = "/usr/local/nvidia/bin"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

#: What a pod of that time wanted: CUDA, and nvidia-smi.
_CAPABILITIES = ("compute", "utility")


def pod(inventory: Inventory, image: str, gpus: int) -> dict[str, Any]:
    """Return the manifest of a pod that mounts each file of the driver that CUDA needs.

    Each library is mounted under its SONAME, because nothing runs ldconfig in such a container. A
    directory that has other libraries too cannot be mounted: the image has its own libc.

    :raises InputError: the host has no such file.
    """
    files = _files(inventory)
    if not files:
        raise InputError(
            "this host has no driver file that such pods mounted: Tegra boards and WSL2 came after"
            " them | name a host with NVIDIA's driver for data centers or desktops"
        )
    root = inventory.root.rstrip("/")
    mounts = [
        {"name": f"driver-{number}", "mountPath": target, "readOnly": True}
        for number, (_, target) in enumerate(files)
    ]
    volumes = [
        {"name": f"driver-{number}", "hostPath": {"path": root + source}}
        for number, (source, _) in enumerate(files)
    ]
    amount = {RESOURCE: gpus}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "gpu-pod"},
        "spec": {
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "main",
                    "image": image,
                    "env": [
                        {"name": "LD_LIBRARY_PATH", "value": LIBRARIES},
                        {"name": "PATH", "value": f"{PROGRAMS}:{_PATH}"},
                    ],
                    "resources": {"requests": amount, "limits": dict(amount)},
                    "volumeMounts": mounts,
                }
            ],
            "volumes": volumes,
        },
    }


def _files(inventory: Inventory) -> list[tuple[str, str]]:
    """Return path on the host and path in the container of each file."""
    libraries = {kind for name in _CAPABILITIES for kind in catalogue.LIBRARY_CLASSES.get(name, ())}
    programs = {kind for name in _CAPABILITIES for kind in catalogue.BINARY_CLASSES.get(name, ())}
    return [
        *(
            (component.path, paths.join(LIBRARIES, _loaded_name(component)))
            for component in inventory.files.libraries
            if component.row.component_class in libraries
        ),
        *(
            (component.path, paths.join(PROGRAMS, component.name))
            for component in inventory.files.binaries
            if component.row.component_class in programs
        ),
    ]


def _loaded_name(component: Component) -> str:
    """Return the name by which programs load a library."""
    return component.soname or component.name
