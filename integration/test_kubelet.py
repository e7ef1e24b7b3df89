"""A real kubelet with containerd on a simulated host: the containers of a pod that ask for a GPU get
it from the device plugin, and in them is what ``nvgraft plan --pod`` says.

The kubelet is the one of PATH: distributions have no package of it.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from containers import CONTAINERD_TOML, ENGINES, HOST, IMAGE, Bundle, image_of
from nvgraft_cli.shell.main import main

pytestmark = pytest.mark.requires(
    "root", "runc", "busybox", "overlayfs", "cgroup-v1", "x86_64", "gcc", "cdi-engines", "kubelet"
)

#: More of containerd's configuration: a runtime as administrators register it.
RUNTIME = """
  default_runtime_name = "nvidia"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
  BinaryName = "{path}"
"""

INSIDE = """
nvidia-smi -L
echo == nodes
ls /dev/nvidia*
echo == variable
echo "$NVIDIA_VISIBLE_DEVICES"
echo == mountinfo
cat /proc/self/mountinfo
echo == end
"""

#: Each ``await`` has a step's number, which is the exit code if the step does not come about.
SCRIPT = """
export PATH={engines}/bin:$PATH
export CONTAINERD_ADDRESS=/run/containerd-test.sock CONTAINERD_NAMESPACE=k8s.io
await() {{
  [ $code = 0 ] || return
  for _ in $(seq 600); do eval "$2" > /dev/null 2>&1 && return; sleep 0.1; done
  code=$1
}}
devices=/var/lib/kubelet/device-plugins logs='/var/log/pods/default_gpu-node_*/*/0.log' code=0
mkdir -p /run/kube-test/manifests
for group in /sys/fs/cgroup/*/; do mkdir -p $group/{name}; done
for file in cpuset.cpus cpuset.mems; do
  cat /sys/fs/cgroup/cpuset/$file > /sys/fs/cgroup/cpuset/{name}/$file
done
containerd -c {place}/containerd.toml > /run/kube-test/containerd.log 2>&1 & containerd=$!
await 91 'ctr version'
ctr images import --snapshotter native {place}/image.tar > /dev/null || code=92
kubelet --config {place}/kubelet.json --hostname-override node > /run/kube-test/kubelet.log 2>&1 &
kubelet=$!
await 93 "[ -S $devices/kubelet.sock ]"
{plugin} > /run/kube-test/plugin.log 2>&1 & plugin=$!
await 94 "grep GPU- $devices/kubelet_internal_checkpoint"
cp {place}/pod.json /run/kube-test/manifests
await 95 '[ $(cat $logs | grep -c "== end") = {containers} ]'
for log in $logs; do
  echo "@@ $(basename $(dirname $log))"
  sed -n 's/^[^ ]* stdout F //p' $log
done
echo "@@ checkpoint"
cat $devices/kubelet_internal_checkpoint
echo; echo "@@ config"
cat /etc/nvidia-container-runtime/config.toml
rm /run/kube-test/manifests/pod.json
await 96 '[ -z "$(ctr tasks ls --quiet)" ]'
kill $plugin $kubelet
wait $plugin $kubelet
kill $containerd
wait $containerd
[ $code = 0 ] || tail -n 20 /run/kube-test/*.log >&2
exit $code
"""


def container(name: str) -> dict[str, object]:
    """Return a container with one GPU that tells what it has."""
    return {
        "name": name,
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", INSIDE],
        "resources": {"limits": {"nvidia.com/gpu": 1}},
    }


POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "gpu", "namespace": "default"},
    "spec": {
        "hostNetwork": True,
        "restartPolicy": "Never",
        "initContainers": [container("first")],
        "containers": [container("main"), container("beside")],
    },
}
NAMES = ("first", "main", "beside")

#: Of a kubelet without an API server.
CONFIGURATION = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    "enableServer": False,
    "staticPodPath": "/run/kube-test/manifests",
    "containerRuntimeEndpoint": "unix:///run/containerd-test.sock",
    "cgroupDriver": "cgroupfs",
    "failCgroupV1": False,
    "failSwapOn": False,
    "fileCheckFrequency": "1s",
    "evictionHard": {"memory.available": "1Mi"},
    "imageGCHighThresholdPercent": 100,
}


def allocated(bundle: Bundle, flags: list[str]) -> dict[str, str]:
    """Run the pod, with a device plugin of these flags; return the output of each container, the
    kubelet's checkpoint, and the host's config.toml (config).
    """
    place, prefix = bundle.path, bundle.installed.prefix
    (place / "image.tar").write_bytes(image_of(place / "rootfs"))
    runtime = RUNTIME.format(path=prefix / "bin/nvgraft-runtime")
    (place / "containerd.toml").write_text(CONTAINERD_TOML + runtime)
    (place / "kubelet.json").write_text(
        json.dumps({**CONFIGURATION, "cgroupRoot": f"/{bundle.name}"})
    )
    (place / "pod.json").write_text(json.dumps(POD))
    python = f"PYTHONPATH={':'.join(sys.path)} {sys.executable}"
    plugin = f"{python} -m nvgraft_device_plugin.main {' '.join(flags)}"
    script = SCRIPT.format(
        engines=ENGINES, place=place, name=bundle.name, plugin=plugin, containers=len(NAMES)
    )
    try:
        done = bundle.on_host(script)
    finally:
        cgroups = ["/sys/fs/cgroup", "-depth", "-type", "d", "-path", f"*/{bundle.name}*"]
        subprocess.run(["find", *cgroups, "-exec", "rmdir", "{}", "+"], check=True)
    assert done.returncode == 0, done.stderr
    return dict(part.split("\n", 1) for part in done.stdout.split("@@ ")[1:])


@pytest.mark.parametrize("strategy", ["envvar", "cdi-cri"])
def test_a_pod_gets_the_gpus_that_were_allocated(
    strategy: str, bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In each container nvidia-smi lists the GPU of the kubelet's checkpoint alone, and the nodes
    and mounts are those of the plan. Two containers have two GPUs, the init container's again.
    """
    hook = bundle.installed.prefix / "bin/nvgraft-cdi-hook"
    flags = [f"device-list-strategy={strategy}", "driver-root-ctr-path=/"]
    flags.append(f"nvidia-cdi-hook-path={hook}")
    outputs = allocated(bundle, [f"--{flag}" for flag in flags])
    gpus = {}
    for entry in json.loads(outputs["checkpoint"])["Data"]["PodDeviceEntries"]:
        (gpus[entry["ContainerName"]],) = entry["DeviceIDs"]["-1"]
    assert gpus["first"] == gpus["main"] != gpus["beside"]

    config = tmp_path / "config.toml"
    config.write_text(outputs["config"])
    pod, image = str(bundle.path / "pod.json"), str(bundle.path / "image.tar")
    node = ["--host", HOST, "--kube", "default-runtime=nvidia", "--config", str(config)]
    words = [word for flag in flags for word in ("--plugin-flag", flag)]
    for name in NAMES:
        parts = dict(part.split("\n", 1) for part in f"smi\n{outputs[name]}".split("== "))
        lines = [line for line in parts["smi"].splitlines() if line.startswith("GPU ")]
        assert lines == [f"GPU 0: NVIDIA A10 (UUID: {gpus[name]})"]
        assert parts["variable"].strip() == (gpus[name] if strategy == "envvar" else "void")

        of_container = ["--pod-container", name, "--plugin-devices", gpus[name], *node, *words]
        answer = ["plan", "--pod", pod, "--container", image, *of_container, "--format", "json"]
        assert main(answer) == 0
        plan = json.loads(capsys.readouterr().out)
        planned, mountinfo = tmp_path / f"{name}.json", tmp_path / f"{name}.mountinfo"
        planned.write_text(json.dumps(plan))
        nodes = {
            action["target"]
            for action in plan["actions"]
            if action["op"] == "mount" and action.get("kind") == "device"
        }
        assert set(parts["nodes"].split()) == nodes
        mountinfo.write_text(parts["mountinfo"])
        main(["diff", str(planned), str(mountinfo), "--format", "json"])
        changes = json.loads(capsys.readouterr().out)["changes"]
        # With CDI edits the runtime makes the nodes itself.
        assert [change for change in changes if change["what"] != "device node"] == []
        assert strategy == "cdi-cri" or changes == []
