"""The image of the device plugin, built of the Containerfile on a root of this distribution, and
started as its manifest says: without root, without a capability, on a read-only root file system.
"""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness import CHECKOUT
from kubelets import Kubelet

pytestmark = pytest.mark.requires("root", "runc", "podman", "overlayfs", "plugin-image")

CACHE = CHECKOUT / ".cache/plugin-image"
BASE, IMAGE = "localhost/nvgraft-base", "localhost/nvgraft-device-plugin"
#: A host of the gallery, and the number of its GPUs.
HOST, GPUS = "h100-580", 8


class Podman:
    """podman with a store of its own."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self._words = [
            *("podman", "--root", str(store / "root"), "--runroot", str(store / "run")),
            *("--storage-driver", "overlay", "--cgroup-manager=cgroupfs"),
            *("--runtime", shutil.which("runc") or "runc"),
        ]

    def command(self, *words: str) -> list[str]:
        """Return the command line of a subcommand."""
        return [*self._words, *words]

    def run(self, *words: str, errors: bool = False) -> str:
        """Run a subcommand that has to succeed; return what it prints.

        :param errors: with what it prints on stderr.
        """
        where = subprocess.STDOUT if errors else subprocess.PIPE
        done = subprocess.run(
            self.command(*words), stdout=subprocess.PIPE, stderr=where, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr or done.stdout
        return done.stdout


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    """Build the image without a registry and without a package index."""
    # podman refuses a --runroot of more than 50 characters, which pytest's directories can have.
    with tempfile.TemporaryDirectory(prefix="nvgraft.", dir="/run") as short:
        store = Path(short)
        # In memory: the layers have 700 MB, and go at the end.
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", short], check=True)
        try:
            podman = Podman(store)
            try:
                build(podman)
                yield podman
            finally:
                podman.run("rm", "--all", "--force")
        finally:
            # Lazily: also what a container keeps open that could not be removed.
            subprocess.run(["umount", "--recursive", "--lazy", short], check=True)


def build(podman: Podman) -> None:
    """Build the image of the Containerfile."""
    pip = podman.store / "pip.conf"
    pip.write_text("[global]\nno-index = true\nfind-links = /wheels\n")
    podman.run("import", "-q", str(CACHE / "root.tar"), BASE)
    podman.run(
        *("build", "--isolation", "chroot", "--network", "host", "--pull-never", "--quiet"),
        *("--volume", f"{CACHE / 'wheels'}:/wheels:ro", "--volume", f"{pip}:/etc/pip.conf:ro"),
        *("--build-arg", f"BASE={BASE}", "--tag", IMAGE),
        *("--file", str(CHECKOUT / "deploy/Containerfile"), str(CHECKOUT)),
    )


def options(container: dict[str, Any], pod: dict[str, Any], node: Path) -> list[str]:
    """Return podman's options for a container of the manifest.

    :param node: a directory that has one for each volume of the pod.
    """
    context = {**pod["securityContext"], **container["securityContext"]}
    assert context["capabilities"] == {"drop": ["ALL"]}
    words = [
        *("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024", "--network", "none"),
        *("--cap-drop", "all", "--security-opt", "no-new-privileges", "--read-only"),
        *("--read-only-tmpfs=false", "--user", f"{context['runAsUser']}:{context['runAsGroup']}"),
    ]
    assert context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"]
    for mount in container["volumeMounts"]:
        read_only = ":ro" if mount.get("readOnly") else ""
        words += ["--volume", f"{node / mount['name']}:{mount['mountPath']}{read_only}"]
    for item in container.get("env", ()):
        words += ["--env", f"{item['name']}={item['value']}"]
    return words


def appears(path: Path) -> bool:
    """Wait at most a minute until a file is there."""
    deadline = time.monotonic() + 60
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return path.exists()


def test_the_image_serves_a_recorded_host(podman: Podman) -> None:
    """The pod of the manifest registers with the kubelet as user 65534, also with one that has made
    its socket anew, answers Allocate, writes a CDI specification and keeps the labels.
    """
    manifest = yaml.safe_load((CHECKOUT / "deploy/device-plugin.yaml").read_text())
    config = yaml.safe_load((CHECKOUT / "deploy/config.yaml").read_text())["data"]
    pod = manifest["spec"]["template"]["spec"]
    (prepare,), (plugin, labels, keeper) = pod["initContainers"], pod["containers"]
    node = podman.store / "node"  # a short path: it has a socket
    node.mkdir()
    for volume in pod["volumes"]:
        (node / volume["name"]).mkdir(mode=0o755 if volume["name"] == "config" else 0o750)
    (node / "config/config.yaml").write_text(config["config.yaml"])
    directory = str(node / "kubelet")
    podman.run("run", "--rm", *options(prepare, pod, node), IMAGE, *prepare["args"])
    start = ("run", "--detach", "--name")
    podman.run(*start, "keeper", *options(keeper, pod, node), IMAGE, *keeper["args"])
    umask = os.umask(0o022)  # as the kubelet's
    try:
        kubelet = Kubelet(directory).__enter__()
    finally:
        os.umask(umask)
    served = ("--host", HOST, "--device-list-strategy=envvar,cdi-cri")
    podman.run(
        *("run", "--detach", "--name", "plugin"), *options(plugin, pod, node), IMAGE, *served
    )
    words = [*labels["args"], "--host", HOST]
    podman.run("run", "--detach", "--name", "labels", *options(labels, pod, node), IMAGE, *words)
    try:
        (registered,) = kubelet.wait_for(1)
        assert registered.resource_name == "nvidia.com/gpu"
        with kubelet.plugin() as served_plugin:
            devices = next(served_plugin.lists())
            assert list(devices.values()) == ["Healthy"] * GPUS
            answer = served_plugin.allocate(min(devices))
        assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == min(devices)
        assert answer.cdi_devices[0].name == f"k8s.device-plugin.nvidia.com/gpu={min(devices)}"
        assert appears(node / "features/nvgraft")
        assert os.listdir(node / "cdi") == ["k8s.device-plugin.nvidia.com-gpu.json"]
        probe = plugin["livenessProbe"]["httpGet"]
        url = f"http://localhost:{plugin['ports'][0]['containerPort']}{probe['path']}"
        ask = f"import urllib.request as r; print(r.urlopen({url!r}, timeout=20).status)"
        assert podman.run("exec", "plugin", "python3", "-c", ask) == "200\n"
        status = podman.run("exec", "plugin", "cat", "/proc/self/status")
        assert "CapEff:\t0000000000000000\n" in status
        assert "Uid:\t65534\t65534" in status
    finally:
        podman.run("stop", "--time", "20", "plugin", "labels", "keeper")
        kubelet.__exit__()
    said = podman.run("logs", "labels", errors=True)
    assert "labels to /etc/kubernetes" in said
    assert os.listdir(node / "features") == []  # removed at the end
    codes = podman.run("inspect", "--format", "{{.State.ExitCode}}", "plugin", "labels", "keeper")
    assert codes.split() == ["0", "0", "0"]
