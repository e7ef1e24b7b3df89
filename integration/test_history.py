"""The ways before the hook, acted out on a simulated host: the driver is where the guide shows it."""

import re
from typing import Any

import pytest
import yaml

from containers import LOADER_LINE, Bundle
from harness import CHECKOUT
from test_docker import docker

pytestmark = pytest.mark.requires("root", "runc", "busybox", "overlayfs", "x86_64", "gcc")

HISTORY = CHECKOUT / "docs/history"
MOUNTINFO = HISTORY / "nvidia-docker-1.0.mountinfo"
GUIDE = CHECKOUT / "docs/guide/10-ten-years.md"

#: docker as NV_DOCKER names it: what is not a question is printed.
ASKED = """#!/bin/sh
case $1 in inspect | pull) exec docker "$@" ;; *) echo docker "$@" ;; esac
"""

SCRIPT = """
nvgraft docker-v1 plugin > /dev/null & plugin=$!
until [ -S /run/docker/plugins/nvidia-docker.sock ]; do kill -0 $plugin || exit 90; sleep 0.1; done
tar -C {rootfs} -c . | docker import --change 'LABEL com.nvidia.volumes.needed=nvidia_driver' - gpu > /dev/null
export NV_GPU=0
NV_DOCKER=/tmp/asked nvgraft docker-v1 run --network none gpu
nvgraft docker-v1 run --rm --network none gpu sh -c 'cat /proc/self/mountinfo; ls /dev/nvidia*'
code=$?
kill $plugin
exit $code
"""


def mounted(text: str) -> list[list[str]]:
    """Return source, target and options of the driver's mounts in a mountinfo."""
    rows = [line.split() for line in text.splitlines() if " - " in line and "nvidia" in line]
    return [[row[3], row[4], row[5]] for row in rows]


def test_a_pod_of_kubernetes_1_3_mounts_the_driver_itself(bundle: Bundle) -> None:
    """Without a hook, with the pod's volumes and variables and the nodes that the kubelet gave: the
    loader finds libcuda.so.1, and nvidia-smi lists the GPU. Without LD_LIBRARY_PATH it does not.
    """
    spec = yaml.safe_load((HISTORY / "pod-1.6.yaml").read_text())["spec"]
    (container,) = spec["containers"]
    sources = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"]}
    files = [(sources[item["name"]], item["mountPath"]) for item in container["volumeMounts"]]
    nodes = [f"/dev/{name}" for name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia0")]

    def change(config: dict[str, Any]) -> None:
        del config["hooks"]
        config["process"]["env"] = [f"{item['name']}={item['value']}" for item in container["env"]]
        config["linux"]["resources"] = {"devices": [{"allow": True, "access": "rwm"}]}
        config["mounts"] += [
            {"type": "bind", "source": source, "destination": target, "options": ["bind", "ro"]}
            for source, target in [*files, *((node, node) for node in nodes)]
        ]

    bundle.edit(change)
    done = bundle.run(
        f"{LOADER_LINE} && nvidia-smi -L || exit; unset LD_LIBRARY_PATH; {LOADER_LINE}"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("libcuda.so.1 => /usr/local/nvidia/lib64/libcuda.so.1") == 1
    assert done.stdout.count("GPU 0: NVIDIA A10") == 1
    assert "GPU 1" not in done.stdout
    assert "libcuda.so.1' from --preload cannot be preloaded" in done.stderr


@pytest.mark.requires("docker", "cgroup-v1")
def test_nvidia_docker_mounts_one_volume(bundle: Bundle) -> None:
    """The volume is mounted as the recorded mountinfo says, with the command line of the guide; the
    device nodes are docker's own.
    """
    asked = bundle.path / "asked"
    asked.write_text(ASKED)
    prepare = f"install -m 0755 {asked} /tmp/asked"
    done = docker(bundle, f"{prepare}; {SCRIPT.format(rootfs=bundle.path / 'rootfs')}")
    assert done.returncode == 0, done.stderr
    assert mounted(done.stdout) == mounted(MOUNTINFO.read_text())
    (command,) = re.findall(r"^docker run .*$", done.stdout, re.MULTILINE)
    assert f"\n{command}\n" in GUIDE.read_text(), command
    nodes = re.findall(r"^/dev/nvidia\S*$", done.stdout, re.MULTILINE)
    assert "/dev/nvidia0" in nodes
    assert "/dev/nvidia1" not in nodes
