"""A real kubelet with containerd on a simulated host: a pod that asks for a GPU gets it from the
device plugin, and in it is what ``nvgraft plan --pod`` says.

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
devices=/var/lib/kubelet/device-plugins log='/var/log/pods/default_gpu-node_*/main/0.log' code=0
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
await 95 "grep '== end' $log"
sed -n 's/^[^ ]* stdout F //p' $log
cat $devices/kubelet_internal_checkpoint
echo; echo "== config"
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

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "gpu", "namespace": "default"},
    "spec": {
        "hostNetwork": True,
        "restartPolicy": "Never",
        "containers": [
            {
                "name": "main",
                "image": IMAGE,
                "imagePullPolicy": "Never",
                "command": ["sh", "-c", INSIDE],
                "resources": {"limits": {"nvidia.com/gpu": 1}},
            }
        ],
    },
}

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
    """Run the pod, with a device plugin of these flags; return the parts of its output by their
    names, the kubelet's checkpoint as the one that is called end, and the host's config.toml.
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
    script = SCRIPT.format(engines=ENGINES, place=place, name=bundle.name, plugin=plugin)
    try:
        done = bundle.on_host(script)
    finally:
        cgroups = ["/sys/fs/cgroup", "-depth", "-type", "d", "-path", f"*/{bundle.name}*"]
        subprocess.run(["find", *cgroups, "-exec", "rmdir", "{}", "+"], check=True)
    assert done.returncode == 0, done.stderr
    return dict(part.split("\n", 1) for part in f"smi\n{done.stdout}".split("== "))


@pytest.mark.parametrize("strategy", ["envvar", "cdi-cri"])
def test_a_pod_gets_the_gpu_that_was_allocated(
    strategy: str, bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """nvidia-smi lists the GPU of the kubelet's checkpoint alone, and the nodes and mounts are those
    of the plan for this pod.
    """
    hook = bundle.installed.prefix / "bin/nvgraft-cdi-hook"
    flags = [f"device-list-strategy={strategy}", "driver-root-ctr-path=/"]
    flags.append(f"nvidia-cdi-hook-path={hook}")
    parts = allocated(bundle, [f"--{flag}" for flag in flags])
    (entry,) = json.loads(parts["end"])["Data"]["PodDeviceEntries"]
    (gpu,) = entry["DeviceIDs"]["-1"]
    lines = [line for line in parts["smi"].splitlines() if line.startswith("GPU ")]
    assert lines == [f"GPU 0: NVIDIA A10 (UUID: {gpu})"]
    assert parts["variable"].strip() == (gpu if strategy == "envvar" else "void")

    pod, planned = str(bundle.path / "pod.json"), str(tmp_path / "plan.json")
    node = ["--host", HOST, "--kube", "default-runtime=nvidia", "--plugin-devices", gpu]
    config = tmp_path / "config.toml"
    config.write_text(parts["config"])
    node += ["--config", str(config)]
    image = ["--container", str(bundle.path / "image.tar")]
    words = [word for flag in flags for word in ("--plugin-flag", flag)]
    assert main(["plan", "--pod", pod, *image, *node, *words, "--format", "json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    Path(planned).write_text(json.dumps(plan))
    nodes = {
        action["target"]
        for action in plan["actions"]
        if action["op"] == "mount" and action.get("kind") == "device"
    }
    assert set(parts["nodes"].split()) == nodes
    (tmp_path / "mountinfo").write_text(parts["mountinfo"])
    main(["diff", planned, str(tmp_path / "mountinfo"), "--format", "json"])
    changes = json.loads(capsys.readouterr().out)["changes"]
    # With CDI edits the runtime makes the nodes itself.
    assert [change for change in changes if change["what"] != "device node"] == []
    assert strategy == "cdi-cri" or changes == []
