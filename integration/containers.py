"""Containers for the integration tests: a busybox bundle, started by real engines on a simulated
host.
"""

import hashlib
import io
import json
import os
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from harness import CHECKOUT, Installed
from nvgraft_cli.simulate.demo import make_bundle

HOST = "runfile-a10x2"

#: Shell commands that make a mount namespace show one version of cgroups only.
CGROUPS = {
    "v1": pytest.param("", id="cgroup-v1", marks=pytest.mark.requires("cgroup-v1")),
    "v2": pytest.param(
        "umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup",
        id="cgroup-v2",
        marks=pytest.mark.requires("cgroup-v2"),
    ),
}

#: A shell command by which the loader looks up libcuda.so.1 by its name alone.
LOADER_LINE = (
    "/lib64/ld-linux-x86-64.so.2 --preload libcuda.so.1 --list /usr/lib/x86_64-linux-gnu/libc.so.6"
)

LOOK = f"""
for node in /dev/nvidiactl /dev/nvidia0 /dev/nvidia1; do [ -e $node ] && (: < $node) 2>&1; done
mknod /tmp/other c 195 77; (: < /tmp/other) 2>&1
cat /proc/self/mountinfo
{LOADER_LINE}
echo done
"""

#: The line between a command's output and the files that it changed.
MARK = "== changed files"

#: The line before the config.json that a lifecycle has left.
CONFIG = "== config.json"

CONFIG_TOML = "/etc/nvidia-container-runtime/config.toml"


def set_ldcache(mode: str) -> str:
    """Return the command that sets config.toml's ``ldcache`` on a simulated host."""
    return f"""sed -i '/^simulated-host/a ldcache = "{mode}"' {CONFIG_TOML}"""


#: containerd and Docker of Debian 13.
ENGINES = CHECKOUT / ".cache/engines/usr"

#: Of the images of this module.
IMAGE = "docker.io/library/test:latest"

#: containerd's configuration on a simulated host. Its last section chooses the runtime.
CONTAINERD_TOML = f"""
version = 2
root = "/srv/containerd-test/root"
state = "/run/containerd-test/state"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.overlayfs",
  "io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri"]
[grpc]
  address = "/run/containerd-test.sock"
[ttrpc]
  address = "/run/containerd-test.sock.ttrpc"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{IMAGE}"
  enable_cdi = true
  disable_apparmor = true
  disable_hugetlb_controller = true
  restrict_oom_score_adj = true
  stream_server_port = "0"
[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "native"
"""


def set_mode(mode: str, hooks: str = "one") -> str:
    """Return the commands that set config.toml's mode, and the number of hooks of CDI edits, on a
    simulated host.
    """
    return (
        f'sed -i \'s/^mode.*/mode = "{mode}"/; /^simulated-host/a cdi-hooks = "{hooks}"\''
        " /etc/nvidia-container-runtime/config.toml"
    )


MPS = ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server")


class Run(NamedTuple):
    """The output of a command on a simulated host, and the bundle's changed files as diff(1)
    lines.
    """

    returncode: int
    stdout: str
    stderr: str
    changes: list[str]


Edit = Callable[[dict[str, Any]], None]


class Bundle:
    """A busybox bundle with the hook, and ways to run it on a simulated host."""

    def __init__(self, directory: Path, installed: Installed) -> None:
        self.path = directory / "bundle"
        self.path.mkdir()
        self.installed = installed
        make_bundle(str(self.path), str(installed.hook))
        self.name = f"nvgraft-test-{os.getpid()}-{abs(hash(directory)) % 10**6}"

    def edit(self, change: Edit) -> None:
        file = self.path / "config.json"
        config = json.loads(file.read_text())
        change(config)
        file.write_text(json.dumps(config))

    def give_to(self, owner: int) -> None:
        """Give this bundle to another owner, as an engine does for a user namespace."""
        self.path.parent.chmod(0o755)
        for directory, directories, files in os.walk(self.path):
            for name in [*directories, *files]:
                os.chown(os.path.join(directory, name), owner, owner, follow_symlinks=False)

    @property
    def reachable(self) -> str:
        """Return the command that makes this bundle reachable for others on a simulated host."""
        return (
            "chmod a+x "
            f"{' '.join(str(parent) for parent in self.path.parents if str(parent).startswith('/tmp/'))}"
        )

    def set_program(self, script: str) -> None:
        """Make ``script`` the container's program, in a cgroup of this bundle's own."""

        def change(config: dict[str, Any]) -> None:
            config["process"]["args"] = ["/bin/sh", "-c", script]
            config["linux"]["cgroupsPath"] = f"/{self.name}"

        self.edit(change)

    def on_host(self, command: str, host: str = HOST, options: tuple[str, ...] = ()) -> Run:
        """Run a shell command on a simulated host, and return its output and the bundle's changed
        files.

        The host's files are a layer over this machine's and vanish with it, so changes can only be
        seen from inside.
        """
        files = (
            f"find {self.path.parent} -xdev -mindepth 1 -type d -printf '%p d %m %U\\n' -o "
            "-printf '%p %y %m %U %s %l\\n' | sort"
        )
        compare = f"({files}) > /run/after; echo; echo {MARK}; diff /run/before /run/after"
        script = f"({files}) > /run/before; ({command}); code=$?; {compare}; exit $code"
        done = subprocess.run(
            [str(self.installed.cli), "simulate", *options, host, "--", "sh", "-c", script],
            capture_output=True,
            text=True,
            timeout=120,
            # crun gives its standard input to the container's root, and /dev/null is this machine's.
            input="",
        )
        output, _, changes = done.stdout.partition(f"\n{MARK}\n")
        return Run(
            done.returncode,
            output,
            done.stderr,
            [line for line in changes.splitlines() if line[0] in "<>"],
        )

    def lifecycle(self, options: str = "--root /run/runc-test") -> str:
        """Return an engine's commands: create, start, wait, state and delete, all through
        nvgraft-runtime.

        :param options: for the low-level runtime.
        """
        runtime = f"{self.installed.prefix}/bin/nvgraft-runtime {options}"
        return (
            f"{runtime} create --bundle {self.path} {self.name} > /run/out 2>&1 < /dev/null || {{ "
            f"cat /run/out >&2; exit 1; }}; "
            f"{runtime} state {self.name} > /run/state || exit 2; {runtime} start {self.name} || "
            "exit 3; "
            f"for _ in $(seq 600); do {runtime} state {self.name} | "
            'grep -q \'"status": "stopped"\' && break; sleep 0.05; done; '
            f'{runtime} delete {self.name} || exit 4; cat /run/out; grep \'"status": "created"\' '
            "/run/state || exit 5; "
            f"echo; echo '{CONFIG}'; cat {self.path}/config.json"
        )

    def run(self, script: str = LOOK, prepare: str = "", times: int = 1, host: str = HOST) -> Run:
        """Run the container under runc ``times`` times, after the shell command ``prepare`` on the
        host.
        """
        self.set_program(script)
        start = f"runc --root /run/runc-test run --bundle {self.path} {self.name}"
        return self.on_host(" && ".join([prepare or "true", *[start] * times]), host)


def environment(*entries: str) -> Edit:
    def change(config: dict[str, Any]) -> None:
        config["process"]["env"] = ["PATH=/usr/bin:/bin", *entries]

    return change


def image_of(rootfs: Path) -> bytes:
    """Return an archive as of `docker save`, of an image with these files that waits by default."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.add(rootfs, arcname=".")
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "Cmd": ["sh", "-c", "while :; do sleep 1; done"],
            "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, data in (
            ("layer.tar", layer.getvalue()),
            ("config.json", json.dumps(config).encode()),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return archive.getvalue()
